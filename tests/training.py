"""Training the same model with hongtu and, on the whole graph at once, with torch_geometric or a dense reference.

Legend: V vertices, E edges, F features, C classes.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import hongtu
from hongtu import nn as hnn
from hongtu.artifact import Artifact
from hongtu.errors import BudgetError
from tests import graphs

GRAINS = ((1, 1), (1, 7), (2, 3), (4, 8))  # (m, n)
STRATEGIES = ("none", "paper", "full")

_directory = tempfile.TemporaryDirectory(prefix="hongtu-tests-")
atexit.register(_directory.cleanup)


# ---------------------------------------------------------------------------------------------------------- problems


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
    """

    name: str
    edges: np.ndarray
    weights: np.ndarray | None
    features: np.ndarray
    labels: np.ndarray
    masks: dict[str, np.ndarray]
    edge_features: np.ndarray | None = None
    edge_type: np.ndarray | None = None

    @property
    def num_vertices(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        return self.features.shape[1]

    @property
    def classes(self) -> int:
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


@functools.cache
def directed_weighted() -> Problem:
    return problem_of(graphs.weighted())


@functools.cache
def awkward() -> Problem:
    return problem_of(awkward_graph())


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
        path = new_path(problem.name)
        arrays = {"features": problem.features, "labels": problem.labels, "masks": problem.masks}
        artifact = hongtu.preprocess_graph(
            problem.edges, problem.num_vertices, path, **arrays, edge_weight=problem.weights,
            edge_features=problem.edge_features, edge_type=problem.edge_type, partitions=m, chunks=n, **config,
        )  # fmt: skip
        _prepared[key] = (problem, artifact)  # the problem too: its id must stay taken
    return _prepared[key][1]


# ------------------------------------------------------------------------------------------------------------ models


class CommNetReference(nn.Module):
    """W_1 h + W_2 mean over in-edges."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin_self = nn.Linear(in_channels, out_channels, bias=False)
        self.lin_neighbour = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        source, destination = edge_index
        degree = torch.bincount(destination, minlength=len(h)).clamp(min=1).to(h.dtype)
        mean = torch.zeros_like(h).index_add(0, destination, h[source]) / degree.unsqueeze(1)
        return self.lin_self(h) + self.lin_neighbour(mean)


class Rowwise(nn.Module):
    """A function of rows, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, h: Tensor) -> Tensor:
        return self.function(h)


Modules = Callable[[int, int], Sequence[nn.Module]]


@dataclass(frozen=True, eq=False)
class Model:
    """The same model twice, with the same parameter names.

    Attributes:
        layers: (features, classes) -> hongtu's layers.
        reference: (features, classes) -> modules for the whole graph: convolutions get the edges, others only rows.
        inner: function that the reference applies after every convolution but the last.
        loss: what to train with.
    """

    name: str
    layers: Modules
    reference: Modules
    inner: Callable[[Tensor], Tensor] | None = None
    loss: Any = "cross_entropy"

    def __repr__(self) -> str:
        return self.name

    def build(self, problem: Problem, seed: int = 0) -> list[nn.Module]:
        """hongtu's layers with initial parameters decided by the seed, none of them zero."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = list(self.layers(problem.width, problem.classes))
            with torch.no_grad():
                for parameter in modules_of(layers).parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return layers

    def build_reference(self, problem: Problem, dtype: torch.dtype = torch.float64) -> nn.ModuleList:
        entries = self.reference(problem.width, problem.classes)
        modules = modules_of(entries).to(dtype)
        modules.load_state_dict(modules_of(self.build(problem)).state_dict())
        modules.headers = [entry[1] if isinstance(entry, tuple) else None for entry in entries]
        return modules

    def run_reference(self, modules: nn.ModuleList, problem: Problem, dtype: torch.dtype = torch.float64) -> Tensor:
        """[V, C]: the model on the whole graph."""
        given = {"x": torch.from_numpy(problem.features).to(dtype)}
        name = "x"
        convolutions = [module for module in modules if _takes_edges(module)]
        for module, header in zip(modules, modules.headers, strict=True):
            takes, gives = (header or f"{name} -> {name}").split(" -> ")
            rows = [given[taken] for taken in takes.split(", ")]
            name = gives
            if not _takes_edges(module):
                given[name] = module(rows) if isinstance(module, pyg.JumpingKnowledge) else module(*rows)
                continue
            taken = inspect.signature(module.forward).parameters
            beside = {k: v for k, v in problem.edge_data(dtype).items() if k in taken}
            given[name] = module(*rows, problem.edge_index, **beside)
            if self.inner is not None and module is not convolutions[-1]:
                given[name] = self.inner(given[name])
        return given[name]


def modules_of(entries: Sequence[Any]) -> nn.ModuleList:
    """The modules of a layer list, with headers or without."""
    return nn.ModuleList(entry[0] if isinstance(entry, tuple) else entry for entry in entries)


def _takes_edges(module: nn.Module) -> bool:
    return "edge_index" in inspect.signature(module.forward).parameters


def _mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, out))


H = 5  # hidden width

SIX = (
    Model(
        "gcn",
        lambda f, c: [hnn.GCNConv(f, H, activation="relu"), hnn.GCNConv(H, c)],
        lambda f, c: [pyg.GCNConv(f, H), pyg.GCNConv(H, c)],
        torch.relu,
    ),
    Model(
        "sage",
        lambda f, c: [hnn.SAGEConv(f, H, activation="relu"), hnn.SAGEConv(H, c)],
        lambda f, c: [pyg.SAGEConv(f, H), pyg.SAGEConv(H, c)],
        torch.relu,
    ),
    Model(
        "gin",
        lambda f, c: [hnn.GINConv(_mlp(f, H), train_eps=True, activation="relu"), hnn.GINConv(_mlp(H, c), 0.3)],
        lambda f, c: [pyg.GINConv(_mlp(f, H), train_eps=True), pyg.GINConv(_mlp(H, c), 0.3)],
        torch.relu,
    ),
    Model(
        "commnet",
        lambda f, c: [hnn.CommNetConv(f, H, activation="relu"), hnn.CommNetConv(H, c)],
        lambda f, c: [CommNetReference(f, H), CommNetReference(H, c)],
        torch.relu,
    ),
    Model(
        "gat",
        lambda f, c: [hnn.GATConv(f, H, heads=3, activation="elu"), hnn.GATConv(3 * H, c, heads=2, concat=False)],
        lambda f, c: [pyg.GATConv(f, H, heads=3), pyg.GATConv(3 * H, c, heads=2, concat=False)],
        nn.functional.elu,
    ),
    Model(
        "ggcn",
        lambda f, c: [hnn.GGCNConv(f, H, activation="relu"), hnn.GGCNConv(H, c)],
        lambda f, c: [pyg.ResGatedGraphConv(f, H), pyg.ResGatedGraphConv(H, c)],
        torch.relu,
    ),
)

DEEP = Model(
    "gcn-gat-sage",
    lambda f, c: [
        hnn.GCNConv(f, H, activation="relu"),
        hnn.GATConv(H, H, heads=2, activation="relu"),
        hnn.SAGEConv(2 * H, c),
    ],
    lambda f, c: [pyg.GCNConv(f, H), pyg.GATConv(H, H, heads=2), pyg.SAGEConv(2 * H, c)],
    torch.relu,
)


# ---------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Outcome:
    """Losses and gradients (before each step) of some epochs, and the buffers (running statistics) after each."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    buffers: list[dict[str, Tensor]] = field(default_factory=list)

    def first(self, epochs: int) -> Outcome:
        return Outcome(self.losses[:epochs], self.gradients[:epochs], self.buffers[:epochs])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)


def vertex_losses(loss: Any, out: Tensor, target: Tensor) -> Tensor:
    if loss == "cross_entropy":
        return nn.functional.cross_entropy(out, target, reduction="none")
    if loss == "bce_with_logits":
        target = target.to(out.dtype)
        return nn.functional.binary_cross_entropy_with_logits(out, target, reduction="none").mean(1)
    return loss(out, target)


@functools.cache
def train_reference(model: Model, problem: Problem, epochs: int = 5) -> Outcome:
    """Train the reference on the whole graph in float64."""
    modules = model.build_reference(problem)
    optimizer = sgd(modules.parameters())
    mask = torch.from_numpy(problem.masks["train"])
    target = torch.from_numpy(problem.labels)[mask]
    outcome = Outcome()
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = vertex_losses(model.loss, model.run_reference(modules, problem)[mask], target).mean()
        loss.backward()
        outcome.losses.append(float(loss.detach()))
        outcome.gradients.append({name: p.grad.clone() for name, p in modules.named_parameters() if p.grad is not None})
        outcome.buffers.append({name: b.clone() for name, b in modules.named_buffers()})
        optimizer.step()
    return outcome


def make_trainer(model: Model, problem: Problem, grain: tuple[int, int] = (1, 1), **options: Any) -> hongtu.Trainer:
    """A float64 trainer with SGD of the model's layers, freshly built; ``device_memory="smallest"`` finds it."""
    options = {"optimizer": sgd, "dtype": torch.float64, "loss": model.loss} | options
    artifact = prepare(problem, *grain)
    if options.get("device_memory") == "smallest":
        options["device_memory"] = smallest_budget(artifact, lambda: model.build(problem), **options)
    return hongtu.Trainer(artifact, model.build(problem), **options)


def train(trainer: hongtu.Trainer, epochs: int = 5) -> Outcome:
    outcome = Outcome()
    for _ in range(epochs):
        outcome.losses.append(trainer.train_epoch().loss)
        outcome.gradients.append({name: g.detach().clone() for name, g in trainer.gradients().items()})
        outcome.buffers.append({name: b.clone() for name, b in trainer.model.named_buffers()})
    return outcome


def assert_same(found: Outcome, expected: Outcome, tolerance: float) -> None:
    """Every loss and gradient within ``tolerance`` of the largest gradient entry of its epoch."""
    assert len(found.losses) == len(expected.losses)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=tolerance, atol=tolerance)
    for epoch, (mine, reference) in enumerate(zip(found.gradients, expected.gradients, strict=True)):
        assert mine.keys() == reference.keys()
        largest = max(float(g.abs().max()) for g in reference.values())
        assert largest > 0
        for name, gradient in reference.items():
            difference = float((mine[name].double() - gradient).abs().max())
            assert difference <= tolerance * largest, f"epoch {epoch}: gradient of {name} is off by {difference}"
    for epoch, reference in enumerate(expected.buffers):  # where the other side kept any
        mine = found.buffers[epoch]
        assert mine.keys() == reference.keys()
        for name, buffer in reference.items():
            difference = float((mine[name].double() - buffer).abs().max())
            assert difference <= tolerance * max(1.0, float(buffer.abs().max())), f"epoch {epoch}: {name}, {difference}"


def smallest_budget(artifact: Artifact, layers: Callable[[], list[nn.Module]], **options: Any) -> int:
    """The smallest device budget that works, as the error of a hopeless one names it."""
    with pytest.raises(BudgetError) as caught:
        hongtu.Trainer(artifact, layers(), **(options | {"device_memory": 1}))
    named = re.search(r"smallest that works is (\d+)", str(caught.value))
    assert named, str(caught.value)
    return int(named[1])
