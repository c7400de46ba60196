"""Graphs to train on, small and awkward or real, and their artifacts.

Legend: V vertices, E edges, F features, C classes.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hongtu
from hongtu.graph.artifact import Artifact
from tests import graphs

_directory = tempfile.TemporaryDirectory(prefix="hongtu-tests-")
atexit.register(_directory.cleanup)


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to train on, in original vertex order.

    Attributes:
        edges: int64 [2, E].
        weights: float32 [E] or None.
        features: float32 [V, F].
        labels: int64 [V] or float32 [V, C].
        masks: bool [V] each.
        edge_features: float32 [E, F_e] or None.
        edge_type: int64 [E] or None.
        vertex_type: int64 [V], then the features are rows of an artifact: the type, and what ``type_features`` has.
        type_features: float32 [V_k, F_k] for each type.
        task: what the labels are, where their form does not say it.
        columns: what a model of it gives, where that is not a column for each class.
        given: arrays for ``preprocess_graph`` in another form than the ones here, or ``data`` with all of them.
    """

    name: str
    edges: np.ndarray
    weights: np.ndarray | None
    features: np.ndarray
    labels: np.ndarray
    masks: dict[str, np.ndarray]
    edge_features: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    vertex_type: np.ndarray | None = None
    type_features: tuple[np.ndarray, ...] = ()
    task: str | None = None
    columns: int | None = None
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def num_vertices(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        return self.features.shape[1]

    @property
    def classes(self) -> int:
        if self.columns is not None:
            return self.columns
        return self.labels.shape[1] if self.labels.ndim == 2 else int(self.labels.max()) + 1

    @property
    def edge_index(self) -> Tensor:
        return torch.from_numpy(self.edges)

    def edge_weight(self, dtype: torch.dtype = torch.float64) -> Tensor | None:
        return None if self.weights is None else torch.from_numpy(self.weights).to(dtype)

    def edge_data(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """What torch_geometric's convolutions take, by the name of the argument."""
        found = {"edge_weight": self.edge_weight(dtype)}
        if self.edge_features is not None:
            found["edge_attr"] = torch.from_numpy(self.edge_features).to(dtype)
        if self.edge_type is not None:
            found["edge_type"] = torch.from_numpy(self.edge_type)
        return {name: tensor for name, tensor in found.items() if tensor is not None}


def problem_of(
    graph: graphs.Graph, *, width: int = 6, classes: int = 3, multi_label: bool = False, regression: bool = False
) -> Problem:
    """Random features, labels and masks for a graph; about half of the vertices train."""
    rng = np.random.default_rng(17)
    v = graph.num_vertices
    labels = (rng.random((v, classes)) < 0.4).astype(np.float32) if multi_label else rng.integers(0, classes, v)
    if regression:
        labels = rng.normal(size=(v, classes)).astype(np.float32)
    elif not multi_label:
        labels[:classes] = np.arange(classes)[:v]
    split = rng.choice(3, size=v, p=(0.5, 0.25, 0.25))
    split[0] = 0
    weights = None if graph.weights is None else graph.weights.astype(np.float32)
    return Problem(
        name=graph.name + ("-multilabel" if multi_label else "-regression" if regression else ""),
        edges=np.ascontiguousarray(graph.edges, dtype=np.int64),
        weights=weights,
        features=rng.normal(size=(v, width)).astype(np.float32),
        labels=labels,
        masks={name: split == k for k, name in enumerate(("train", "val", "test"))},
        task="regression" if regression else None,
    )


def awkward_graph() -> graphs.Graph:
    """Everything at once: a hub that is read by and reads many, isolated vertices, duplicate edges, repeated loops."""
    rng = np.random.default_rng(11)
    v, some = 64, np.arange(40)
    hub = np.stack([np.r_[np.full(40, 5), some], np.r_[some, np.full(40, 5)]])  # holds the loop 5 -> 5 twice
    random = rng.integers(0, 48, (2, 120))  # 48 to 63: no edges, but for:
    ends = np.array([[50, 3, 52, 52, 52], [4, 51, 52, 52, 52]])  # no in-edge, no out-edge, only loops
    loops = np.tile(np.array([1, 1, 1, 2, 7]), (2, 1))
    edges = np.concatenate([hub, random, random[:, :40], ends, loops], axis=1)
    edges = edges[:, rng.permutation(edges.shape[1])]
    return graphs.Graph("awkward", edges, rng.uniform(0.1, 2, edges.shape[1]), v)


EDGE_COLUMNS, EDGE_TYPES = 4, 3
TYPE_WIDTHS = (3, 7, 2)


def with_edge_data(problem: Problem, columns: int = EDGE_COLUMNS) -> Problem:
    """The same graph with features and types on its edges."""
    rng = np.random.default_rng(29)
    edges = problem.edges.shape[1]
    features = rng.normal(size=(edges, columns)).astype(np.float32)
    return replace(problem, edge_features=features, edge_type=rng.integers(0, EDGE_TYPES, edges))


def typed(num_vertices: int, seed: int = 5) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The type of every vertex and each type's features."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, len(TYPE_WIDTHS), num_vertices)
    counts = np.bincount(kind, minlength=len(TYPE_WIDTHS))
    return kind, tuple(rng.normal(size=size).astype(np.float32) for size in zip(counts, TYPE_WIDTHS, strict=True))


@functools.cache
def edge_data() -> Problem:
    return with_edge_data(awkward())


@functools.cache
def typed_vertices() -> Problem:
    """Edges with types between vertices with types."""
    kind, parts = typed(awkward().num_vertices)
    rows = np.zeros((len(kind), 1 + max(TYPE_WIDTHS)), dtype=np.float32)
    rows[:, 0] = kind
    for k, part in enumerate(parts):
        rows[kind == k, 1 : 1 + part.shape[1]] = part
    return replace(edge_data(), name="typed", features=rows, vertex_type=kind, type_features=parts)


@functools.cache
def few_train() -> Problem:
    """Two vertices carry a loss: most of the graph is outside their receptive fields."""
    problem = awkward()
    train = np.zeros(problem.num_vertices, dtype=bool)
    train[[2, 40]] = True
    return replace(problem, masks={"train": train, "val": ~train, "test": np.zeros_like(train)})


@functools.cache
def directed_weighted() -> Problem:
    return problem_of(graphs.weighted())


@functools.cache
def awkward() -> Problem:
    return problem_of(awkward_graph())


@functools.cache
def odd_widths() -> Problem:
    """Rows that are no multiple of 16 bytes, and long enough to be padded on a GPU."""
    return problem_of(awkward_graph(), width=129, classes=47)


@functools.cache
def whole_lines() -> Problem:
    """Rows of features that begin where a cache line does."""
    return problem_of(awkward_graph(), width=8)


@functools.cache
def multi_label() -> Problem:
    return problem_of(graphs.weighted(), classes=4, multi_label=True)


@functools.cache
def planetoid(directory: Path, columns: int | None = None) -> Problem:
    """Cora or Citeseer with row-normalised features, all or the first ``columns`` of them."""
    import scipy.sparse

    features = scipy.sparse.load_npz(directory / "features.npz").toarray().astype(np.float32)
    features /= features.sum(axis=1, keepdims=True).clip(min=1)
    return Problem(
        name=directory.name,
        edges=np.load(directory / "edges.npy").astype(np.int64),
        weights=None,
        features=np.ascontiguousarray(features[:, :columns]),
        labels=np.load(directory / "labels.npy"),
        masks={split: np.load(directory / f"{split}_mask.npy") for split in ("train", "val", "test")},
    )


@functools.cache
def real(directory: Path) -> Problem:
    """A graph of the data directory, with random features and labels."""
    edges = np.load(directory / "edges.npy").astype(np.int64)
    return problem_of(graphs.Graph(directory.name, edges, None, int(edges.max()) + 1))


@functools.cache
def regression() -> Problem:
    return problem_of(awkward_graph(), classes=2, regression=True)


def new_path(name: str = "artifact") -> Path:
    """A path that does not exist, removed at exit."""
    return Path(tempfile.mkdtemp(dir=_directory.name)) / name


_prepared: dict[tuple[Any, ...], tuple[Problem, Artifact]] = {}


def prepare(problem: Problem, m: int = 1, n: int = 1, **config: Any) -> Artifact:
    """The problem as an artifact; made once per process."""
    key = (id(problem), m, n, *sorted(config.items()))
    if key not in _prepared:
        arrays: dict[str, Any] = {"features": problem.features, "labels": problem.labels, "masks": problem.masks}
        if problem.vertex_type is not None:
            arrays |= {"features": list(problem.type_features), "vertex_type": problem.vertex_type}
        if problem.task is not None:
            config["task"] = problem.task
        if importlib.util.find_spec("pymetis") is None:  # a machine for GPU tests need not have it
            config = {"partitioner": "range"} | config
        arrays |= {"edges": problem.edges, "num_vertices": problem.num_vertices, "edge_weight": problem.weights}
        arrays |= {"edge_features": problem.edge_features, "edge_type": problem.edge_type, **problem.given}
        if "data" in problem.given:
            arrays = {"data": problem.given["data"]}
        artifact = hongtu.preprocess_graph(artifact=new_path(problem.name), **arrays, partitions=m, chunks=n, **config)
        _prepared[key] = (problem, artifact)  # the problem too: its id must stay taken
    return _prepared[key][1]
