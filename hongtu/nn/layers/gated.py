"""Residual gated graph convolutions (Bresson and Laurent): without states of edges, as torch_geometric's
ResGatedGraphConv, and with them (Dwivedi et al., Benchmarking GNNs).

Legend: R rows, S sources, D destinations, E edges, F columns.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as product
from typing_extensions import Unpack

from hongtu.graph.paper_edges import PaperEdges
from hongtu.nn.block import Block
from hongtu.nn.convolution import Activation, Common, Convolution, activation_module, linear, takes_mean, zeros
from hongtu.nn.layer import Layer, Skip, is_plain

EPSILON = 1e-6


class GGCNConv(Convolution):
    """h'_d = W_skip h_d + sum over in-edges of sigmoid(key(h_d) + query(h_s)) * value(h_s), plus b.

    ``z`` is [query | value], [R, 2 F']; ``s`` is (key, W_skip h).

    Args:
        in_channels, out_channels: widths of h and h'.
        root_weight: add W_skip h.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        root_weight: bool = True,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.root_weight = in_channels, out_channels, root_weight
        self.lin_key = linear(in_channels, out_channels, bias=True)
        self.lin_query = linear(in_channels, out_channels, bias=True)
        self.lin_value = linear(in_channels, out_channels, bias=True)
        if root_weight:
            self.lin_skip = linear(in_channels, out_channels, bias=False)
        self.register_parameter("bias", zeros(out_channels, bias))

    @property
    def paper_edges(self) -> PaperEdges | None:
        maps = [module for module in self.children() if isinstance(module, torch.nn.Linear)]
        plain = self.built_in and all(map(is_plain, maps)) and len(maps) == 3 + self.root_weight
        return PaperEdges() if plain else None

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if not self.once_per_vertex:
            return h, h
        key = self.lin_key(h)
        return self._sent(h), (key, self.lin_skip(h)) if self.root_weight else key

    def _sent(self, h: Tensor) -> Tensor:
        return torch.cat([self.lin_query(h), self.lin_value(h)], dim=1)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        if not self.once_per_vertex:
            return block.gated_sum(self._sent(z), self.lin_key(s))
        return block.gated_sum(z, s[0] if self.root_weight else s)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if not self.root_weight:
            return self.finish(a, self.bias)
        return self.finish(a + (s[1] if self.once_per_vertex else self.lin_skip(s)), self.bias)


class GatedGCNConv(Convolution):
    """g = C e + D x_destination + E x_source; e' = e + act(norm(g)); x' = x + act(norm(A x + sum over in-edges of
    sigmoid(g) B x_source / (sum of sigmoid(g) + 1e-6))).

    Takes and gives the states of edges, in a list of layers "x, e -> x, e", which is what it has without a header. Maps
    are named as in GraphGPS. The published models have batch norm, over all vertices and all edges, in place of layer
    norm; over edges there is none here.

    Args:
        in_channels, out_channels: columns of vertices, and of edges behind the layer.
        edge_dim: columns of edges before it; None: in_channels.
        norm: "layer" or None.
        residual: add x, and e, where they have ``out_channels`` columns.
        activation, input_dropout: see ``Convolution``; the latter is of x.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        edge_dim: int | None = None,
        *,
        norm: str | None = "layer",
        residual: bool = True,
        activation: Activation = "relu",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(activation=activation, **common)
        if norm not in ("layer", None):
            raise ValueError(
                f"GatedGCNConv(norm={norm!r}): expected 'layer' or None; batch norm over all edges there is not, over "
                "vertices hongtu.nn.BatchNorm may stand behind GatedGCNConv(..., activation=None, residual=False)"
            )
        edge_dim = edge_dim or in_channels
        self.in_channels, self.out_channels = in_channels, out_channels
        self.residual = residual and in_channels == out_channels
        self.edge_residual = residual and edge_dim == out_channels
        self.A, self.B, self.D, self.E = (nn.Linear(in_channels, out_channels) for _ in range(4))
        self.C = nn.Linear(edge_dim, out_channels)
        self.norm_x, self.norm_e = (nn.LayerNorm(out_channels) if norm else nn.Identity() for _ in range(2))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return torch.cat([self.B(h), self.E(h)], dim=1), (self.D(h), h)

    def update_edges(self, block: Block, z: Tensor, s: Skip, e: Tensor) -> tuple[Tensor, Tensor]:
        g_EF = self.C(e) + block.gather_destination(s[0]) + block.gather(z[:, self.out_channels :].contiguous())
        out_EF = self.activate(self.norm_e(g_EF))
        return e + out_EF if self.edge_residual else out_EF, g_EF

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        assert block.edge_features is not None
        gate_EF = torch.sigmoid(block.edge_features)
        return block.attend(z, gate_EF, self.out_channels) / (block.segment_sum(gate_EF) + EPSILON)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        out = self.activate(self.norm_x(self.A(s[1]) + a))
        return s[1] + out if self.residual else out


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
