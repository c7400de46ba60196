"""The training run that faults are done to: everything that a snapshot must hold is in use."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hongtu
from hongtu import nn as hnn
from hongtu.graph.artifact import Artifact
from hongtu.model.random_state import seed_generators
from hongtu.train import snapshot
from hongtu.train.run_directory import RunDirectory


def prepare(path: Path, vertices: int = 60, edges: int = 300, features: Any = "embedding:6") -> Artifact:
    """A random graph, whose features are learned where none are given."""
    rng = np.random.default_rng(0)
    masks = np.arange(vertices) % 3
    return hongtu.preprocess_graph(
        rng.integers(0, vertices, (2, edges)),
        vertices,
        path,
        features=features,
        labels=rng.integers(0, 3, vertices),
        masks={name: masks == k for k, name in enumerate(("train", "val", "test"))},
        partitions=2,
        chunks=3,
    )


def make_trainer(artifact: Artifact, **options: Any) -> hongtu.Trainer:
    """Dropout, embeddings, Adam with a scheduler, two optimizers: always from the same start."""
    seed_generators(0)
    layers = [
        hnn.GATConv(artifact.feature_width, 5, heads=2, dropout=0.3, activation="elu", input_dropout=0.2),
        hnn.SAGEConv(10, artifact.num_classes, input_dropout=0.5),
    ]
    defaults = {
        "optimizer": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=1e-3),
        "embedding_optimizer": lambda p: torch.optim.Adagrad(p, lr=0.1),
        "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.7),
        "clip_grad_norm": 1.0,
        "seed": 4,
    }
    return hongtu.Trainer(artifact, layers, **(defaults | options))


def hashed(body: bytes) -> bytes:
    """A snapshot whose hash is right, whatever it holds."""
    return body + snapshot._last_line(hashlib.blake2b(body, digest_size=32).hexdigest())


def same_result(first: Path, second: Path) -> bool:
    """Whether the newest snapshots of two run directories hold the same, bit for bit, but for seconds."""
    states = [snapshot.read_snapshot(RunDirectory(directory).snapshots()[-1]) for directory in (first, second)]
    for state, directory in zip(states, (first, second), strict=True):
        history = RunDirectory(directory).history(state["epoch"])
        state["history"] = [{name: entry[name] for name in ("epoch", "loss", "metrics")} for entry in history]
    return _same(*states) and len(states[0]["history"]) == states[0]["epoch"]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)
