"""The processor's step of mesh models (MeshGraphNet, Pfaff et al.), which changes states of edges and of vertices.

Legend: S sources, D destinations, E edges, F columns of vertices, G columns of edges.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as product

from hongtu.nn.block import Block
from hongtu.nn.convolution import Activation, activation_module, takes_mean
from hongtu.nn.layer import Layer, Skip


class MeshBlock(Layer):
    """m = edge_mlp([e, x_source, x_destination]); e' = e + m; x' = x + vertex_mlp([x, sum of m over in-edges]).

    Takes and gives the states of edges, in a list of layers "x, e -> x, e", which is what it has without a header. What
    the edge MLP's first map makes of a vertex is computed once for every source and destination of a chunk. The same
    block several times in a list is several steps with shared weights.

    Args:
        channels: F.
        edge_channels: G; None: F.
        hidden: columns inside both MLPs; None: F.
        hidden_layers: of each MLP, at least 1.
        activation: between their maps: name of a function in ``torch.nn.functional``, a callable or a module.
        norm: layer norm behind each MLP.
        aggr: "sum" ("add") or "mean".
    """

    def __init__(
        self,
        channels: int,
        edge_channels: int | None = None,
        hidden: int | None = None,
        hidden_layers: int = 2,
        *,
        activation: Activation = "relu",
        norm: bool = True,
        aggr: str = "sum",
    ) -> None:
        super().__init__()
        self.channels, self.edge_channels = channels, edge_channels or channels
        self.mean = takes_mean("MeshBlock", aggr)
        inside = [hidden or channels] * hidden_layers
        self.edge_mlp = mlp([self.edge_channels + 2 * channels, *inside, self.edge_channels], activation, norm=norm)
        self.vertex_mlp = mlp([channels + self.edge_channels, *inside, channels], activation, norm=norm)

    @property
    def bare_maps(self) -> tuple[nn.Module, ...]:
        return (self.edge_mlp[0],)

    def update_edges(self, block: Block, z: Tensor, s: Skip, e: Tensor) -> tuple[Tensor, Tensor]:
        first = self.edge_mlp[0]
        of_edge, of_source, of_destination = first.weight.split([self.edge_channels, *[self.channels] * 2], dim=1)
        m_EG = product(e, of_edge) + block.gather(product(z, of_source))
        m_EG = m_EG + block.gather_destination(product(s, of_destination, first.bias))
        for part in [*self.edge_mlp][1:]:
            m_EG = part(m_EG)
        return e + m_EG, m_EG

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        m_EG = block.edge_features
        assert m_EG is not None
        return block.segment_mean(m_EG) if self.mean else block.segment_sum(m_EG)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        assert isinstance(s, Tensor)
        return s + self.vertex_mlp(torch.cat([s, a], dim=1))


def mlp(columns: list[int], activation: Activation = "relu", *, norm: bool) -> nn.Sequential:
    """Linear maps between so many columns, the activation between them, and layer norm behind."""
    parts: list[nn.Module] = []
    for before, behind in pairwise(columns):
        parts += [nn.Linear(before, behind), activation_module(activation)]
    return nn.Sequential(*parts[:-1], *[nn.LayerNorm(columns[-1])] * norm)
