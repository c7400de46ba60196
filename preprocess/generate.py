"""Synthetic graphs in the neutral format, with planted labels.

Legend: V vertices, E edges, F feature columns, C classes, K communities (or hosts), u a uniform number in [0, 1).
Every kind gives exactly E edges; only R-MAT may repeat an edge or make a self-loop.
"""

from __future__ import annotations

import json
import operator
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hongtu import files
from hongtu.errors import InputError, note
from hongtu.preprocess import graph_models

LABEL_NOISE = 0.08  # share of vertices whose label is drawn anew, so that no model reaches 1.0
SIGNAL = 1.5  # length of a class's mean feature vector; the noise has unit variance in each column
GENERATOR, META = "hongtu generate", "meta.json"
FILES = ("edges.npy", "features.npy", "labels.npy", "train_mask.npy", "val_mask.npy", "test_mask.npy")
BLOCK_ELEMENTS = 1 << 22
KINDS = {"citation": graph_models.citation, "rmat": graph_models.rmat, "web": graph_models.web}


def generate(
    kind: str,
    output: str | os.PathLike[str],
    *,
    vertices: int,
    edges: int,
    features: int = 64,
    classes: int = 16,
    seed: int = 0,
    force: bool = False,
) -> Path:
    """Write a graph: edges.npy, features.npy, labels.npy, three masks (60/20/20, random) and meta.json.

    Args:
        kind: "citation" (communities and preferential attachment, newer -> older, ids shuffled), "rmat" (a = 0.57,
            b = c = 0.19, ids shuffled) or "web" (pages in lexicographic order, links mostly inside a host).
        output: directory to make; written to a temporary sibling and renamed.
        vertices, edges, features, classes: V, E, F and C.
        seed: equal arguments give equal files.
        force: replace a directory that this function made.

    Raises:
        InputError: for arguments that no such graph has, or when the output exists and is another graph.
    """
    path = Path(output)
    _check_arguments(kind, vertices, edges, features, classes, seed)
    meta = {"generator": GENERATOR, "kind": kind, "nodes": vertices, "edges": edges, "features": features}
    meta |= {"classes": classes, "seed": seed}
    if _meta(path) == meta and not force:
        note(f"{path}: is there already, of the same kind, sizes and seed")
        return path

    def check() -> None:
        if force and os.path.lexists(path):
            ours = FILES if _meta(path).get("generator") == GENERATOR else None
            files.check_replaceable(path, "generated graphs", META, lambda file: ours)
        else:
            files.check_new_directory(path)

    check()
    rng = np.random.default_rng((seed, sorted(KINDS).index(kind)))
    with files.whole_directory(path) as partial:
        edge_list, labels = KINDS[kind](vertices, edges, classes, rng)
        noisy = rng.random(vertices) < LABEL_NOISE
        labels[noisy] = rng.integers(0, classes, int(noisy.sum()))
        np.save(partial / "edges.npy", edge_list)
        np.save(partial / "labels.npy", labels.astype(np.int64))
        _write_masks(partial, vertices, rng)
        _write_features(partial / "features.npy", labels, features, classes, rng)
        (partial / META).write_text(json.dumps(meta, indent=1) + "\n", "utf-8")
        for name in (*FILES, META):
            files.sync(partial / name)
        files.replace_directory(partial, path, check)
    return path


def _check_arguments(kind: str, vertices: int, edges: int, features: int, classes: int, seed: int) -> None:
    if kind not in KINDS:
        raise InputError(f"kind: {kind!r}, expected one of {', '.join(KINDS)}")
    for name, value, least in (
        ("vertices", vertices, 1), ("edges", edges, 0), ("features", features, 1), ("classes", classes, 1),
        ("seed", seed, 0),
    ):  # fmt: skip
        if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
            raise InputError(f"{name}: {value!r}, expected an integer of at least {least}")
    if vertices >= 2**31:
        raise InputError(f"vertices: {vertices}, expected fewer than {2**31}")
    pairs = vertices * (vertices - 1)
    most = {"citation": pairs // 2, "web": pairs, "rmat": 2**62}[kind]
    if edges > most:
        raise InputError(f"edges: {edges}, but a {kind} graph of {vertices} vertices has at most {most}")


def _meta(path: Path) -> dict[str, Any]:
    """The meta.json of a directory, or nothing."""
    with suppress(InputError):
        if isinstance(meta := files.read_json(path / META, ""), dict):
            return meta
    return {}


def _write_masks(directory: Path, vertices: int, rng: np.random.Generator) -> None:
    order = rng.permutation(vertices)
    ends = [0, max(1, round(0.6 * vertices)), max(1, round(0.8 * vertices)), vertices]
    for split, lo, hi in zip(("train", "val", "test"), ends, ends[1:], strict=False):
        mask = np.zeros(vertices, dtype=bool)
        mask[order[lo:hi]] = True
        np.save(directory / f"{split}_mask.npy", mask)


def _write_features(file: Path, labels: np.ndarray, width: int, classes: int, rng: np.random.Generator) -> None:
    """float32 [V, F]: the class mean (a random vector of length ``SIGNAL``) plus unit noise."""
    mean = rng.standard_normal((classes, width)).astype(np.float32)
    mean *= SIGNAL / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-6)
    features = files.create_array(file, np.float32, (len(labels), width))
    step = max(1, BLOCK_ELEMENTS // width)
    for lo in range(0, len(labels), step):
        block = features[lo : lo + step]
        block[...] = mean[labels[lo : lo + step]]
        block += rng.standard_normal(block.shape, dtype=np.float32)
    features.flush()
