"""The same model twice: hongtu's layers, and torch_geometric's or dense references on the whole graph.

Legend: V vertices, C classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from hongtu import nn as hnn
from tests.problems import Problem

H = 5  # hidden width


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


class Wrapped(nn.Module):
    """A torch_geometric convolution under the name that ``PyGLayer`` gives it."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(h, edge_index)


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
        whole_loss: (output [V, C], problem, epoch) -> the value of that loss on the whole graph, where it is not the
            mean of ``vertex_losses`` over the train mask.
        frozen: entries of the list whose parameters are not trained.
    """

    name: str
    layers: Modules
    reference: Modules
    inner: Callable[[Tensor], Tensor] | None = None
    loss: Any = "cross_entropy"
    whole_loss: Callable[[Tensor, Problem, int], Tensor] | None = None
    frozen: tuple[int, ...] = ()

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
        for index in self.frozen:
            modules_of(layers)[index].requires_grad_(False)
        return layers

    def build_reference(self, problem: Problem, dtype: torch.dtype = torch.float64) -> nn.ModuleList:
        entries = self.reference(problem.width, problem.classes)
        modules = modules_of(entries).to(dtype)
        modules.load_state_dict(modules_of(self.build(problem)).state_dict())
        for index in self.frozen:
            modules[index].requires_grad_(False)
        modules.headers = [entry[1] if isinstance(entry, tuple) else None for entry in entries]
        return modules

    def reference_loss(
        self, modules: nn.ModuleList, problem: Problem, epoch: int = 0, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """What an epoch minimises, on the whole graph; of what is computed in ``dtype``, in float64."""
        out = self.run_reference(modules, problem, dtype).double()
        if self.whole_loss is not None:
            return self.whole_loss(out, problem, epoch)
        mask = torch.from_numpy(problem.masks["train"])
        return vertex_losses(self.loss, out[mask], torch.from_numpy(problem.labels)[mask]).mean()

    def of_all(self, out: Tensor) -> Tensor:
        """[V, C]: what ``predict`` gives, as ``run_reference`` gives it."""
        return out

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


def vertex_losses(loss: Any, out: Tensor, target: Tensor) -> Tensor:
    """[V]: a loss by its name, or one of the caller's own."""
    if loss == "cross_entropy":
        return nn.functional.cross_entropy(out, target, reduction="none")
    if loss == "bce_with_logits":
        target = target.to(out.dtype)
        return nn.functional.binary_cross_entropy_with_logits(out, target, reduction="none").mean(1)
    return loss(out, target)
