"""Models of the generated recipes: of a mesh, as a list of layers and on the whole graph, and of a graph with types."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 349


def encoder(columns: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width))


def mesh_layers(block: Callable[[int], nn.Module], steps: int, width: int) -> list[Any]:
    """MeshGraphNet: encoders of places and of differences, so many steps, and a decoder."""
    both = [(encoder(2, width), "x -> x"), (encoder(2, width), "e -> e")]
    return [*both, *(block(width) for _ in range(steps)), nn.Linear(width, 2)]


class MeshWhole(nn.Module):
    """The same layers on the whole graph, in plain torch."""

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        (of_x, _), (of_e, _), *steps, last = layers
        self.of_x, self.of_e, self.steps, self.last = of_x, of_e, nn.ModuleList(steps), last

    def forward(self, x: Tensor, e: Tensor, edge_index: Tensor) -> Tensor:
        source, destination = edge_index
        x, e = self.of_x(x), self.of_e(e)
        for step in self.steps:
            m: Tensor = step.edge_mlp(torch.cat([e, x[source], x[destination]], dim=1))  # type: ignore[operator]
            a = torch.zeros_like(x).index_add(0, destination, m)
            x, e = x + step.vertex_mlp(torch.cat([x, a], dim=1)), e + m  # type: ignore[operator]
        out: Tensor = self.last(x)
        return out


class Typed(nn.Module):
    """As torch_geometric's examples: a linear map of each type, two hops, a linear map of papers.

    A type that is no destination keeps its rows.
    """

    def __init__(self, make: Callable[[], nn.Module], options: Namespace, kinds: Sequence[str]) -> None:
        super().__init__()
        self.first = nn.ModuleDict({kind: nn.Linear(options.features, options.hidden) for kind in kinds})
        self.convs, self.last = nn.ModuleList(make() for _ in range(2)), nn.Linear(options.hidden, CLASSES)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        x_dict = {kind: lin(x_dict[kind]).relu() for kind, lin in self.first.items()}
        for conv in self.convs:
            x_dict = {**x_dict, **{kind: x.relu() for kind, x in conv(x_dict, edge_index_dict).items()}}
        return self.last(x_dict["paper"])
