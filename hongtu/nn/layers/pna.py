"""Principal neighbourhood aggregation (Corso et al.), as torch_geometric's PNAConv.

Legend: R rows, S sources, D destinations, E edges, T towers, F columns of a tower.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from hongtu.graph.topology import Topology
from hongtu.nn.aggr import DegreeScaler
from hongtu.nn.block import Block
from hongtu.nn.convolution import Activation, Common, Convolution, activation_module, linear
from hongtu.nn.layer import Skip, is_chain

_SHIFTED = ("sum", "add", "mean", "max", "min")
_UNSHIFTED = ("var", "std")


def degree_histogram(topology: Topology) -> Tensor:
    """int64 [longest + 1], how many vertices have each number of in-edges: ``PNAConv``'s ``deg``.

    Args:
        topology: an artifact's (``artifact.topology``).
    """
    return torch.from_numpy(np.bincount(np.diff(topology.in_edge_start)))


class PNAConv(Convolution):
    """h' = W [towers of post([h_d, scalers x aggregators of pre([h_d, h_s])])] + b.

    With one layer before the aggregation, pre is W_d h_d + W_s h_s + b: ``z`` is W_s h, and W_d h_d + b shifts what
    comes out, so that nothing is computed per edge. With more, or with edge features e (pre([h_d, h_s, encoder(e)])),
    the messages of a chunk's edges are [E, T F] in memory.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggregators: names of ``Block.reduce``: "sum", "mean", "min", "max", "var", "std".
        scalers: "identity", "amplification", "attenuation", "linear", "inverse_linear".
        deg: int64, histogram of in-degrees (``degree_histogram``).
        edge_dim: columns of the edge features; None: they are not read.
        towers: T; must divide ``out_channels``.
        pre_layers, post_layers: linear maps before and behind the aggregation.
        divide_input: every tower sees its part of h, not all of it.
        act: between those maps: a name in ``torch.nn.functional``, a callable or a module.
        train_norm: learn the average degrees of the scalers.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggregators: Sequence[str],
        scalers: Sequence[str],
        deg: Tensor,
        edge_dim: int | None = None,
        *,
        towers: int = 1,
        pre_layers: int = 1,
        post_layers: int = 1,
        divide_input: bool = False,
        act: Activation = "relu",
        train_norm: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        unknown = [name for name in aggregators if name not in (*_SHIFTED, *_UNSHIFTED)]
        if unknown or not aggregators:
            known = ", ".join((*_SHIFTED, *_UNSHIFTED))
            raise ValueError(f"PNAConv(aggregators={list(aggregators)}): expected some of {known}")
        if out_channels % towers or (divide_input and in_channels % towers):
            raise ValueError(
                f"PNAConv: {towers} towers do not divide out_channels {out_channels}"
                + (f" and in_channels {in_channels}" if divide_input else "")
            )
        self.in_channels, self.out_channels, self.towers = in_channels, out_channels, towers
        self.divide_input, self.aggregators = divide_input, list(aggregators)
        self.columns = in_channels // towers if divide_input else in_channels
        self.aggr_module = DegreeScaler(scalers, deg, train_norm)
        wide = (len(aggregators) * len(self.aggr_module.scaler) + 1) * self.columns
        self.edge_dim, self.uses_edge_features = edge_dim, edge_dim is not None
        if edge_dim is not None:
            self.edge_encoder = linear(edge_dim, self.columns, bias=True)
        seen = (2 if edge_dim is None else 3) * self.columns
        self.pre_nns = nn.ModuleList(_mlp(seen, self.columns, pre_layers, act) for _ in range(towers))
        self.post_nns = nn.ModuleList(_mlp(wide, out_channels // towers, post_layers, act) for _ in range(towers))
        self.lin = linear(out_channels, out_channels, bias=True)

    @property
    def bare_maps(self) -> tuple[nn.Module, ...]:
        return tuple(pre[0] if is_chain(pre) else pre for pre in self.pre_nns)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        towers = h.reshape(len(h), -1, self.columns).expand(-1, self.towers, -1)
        own, sent = [], []
        for x, pre in zip(towers.unbind(1), self.pre_nns, strict=True):
            of_destination, of_source = pre[0].weight.split(self.columns, dim=1)[:2]
            own.append(nn.functional.linear(x, of_destination, pre[0].bias))
            sent.append(nn.functional.linear(x, of_source))
        return torch.cat(sent, dim=1), (h, torch.cat(own, dim=1))

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        own = s[1]
        if all(len(pre) == 1 for pre in self.pre_nns) and self.edge_dim is None:
            reduced = [self._shifted(block, z, own, how) for how in self.aggregators]
        else:
            first = block.gather(z) + block.gather_destination(own)
            if self.edge_dim is not None:
                encoded = self.edge_encoder(block.edge_features)
                of_edge = [pre[0].weight[:, 2 * self.columns :] for pre in self.pre_nns]
                first = first + nn.functional.linear(encoded, torch.cat(of_edge))
            parts = zip(first.view(-1, self.towers, self.columns).unbind(1), self.pre_nns, strict=True)
            messages = torch.cat([pre[1:](part) for part, pre in parts], dim=1)
            reduced = [block.of_edges.reduce(messages, how) for how in self.aggregators]
        towers = torch.cat([x.view(-1, self.towers, self.columns) for x in reduced], dim=2)
        return self.aggr_module(block, towers).flatten(1)

    def _shifted(self, block: Block, z: Tensor, own: Tensor, how: str) -> Tensor:
        """The reduction of z[src] + own[dst]: that of z, shifted where there are in-edges."""
        reduced = block.reduce(z, how)
        if how in _UNSHIFTED:
            return reduced
        degree_D1 = block.indptr.diff().unsqueeze(1).to(z.dtype)
        return reduced + own * (degree_D1 if how in ("sum", "add") else degree_D1.clamp(max=1))

    def update(self, a: Tensor, s: Skip) -> Tensor:
        h = s[0]
        own = h.reshape(len(h), -1, self.columns).expand(-1, self.towers, -1)
        both = torch.cat([own, a.view(len(h), self.towers, -1)], dim=2)
        outs = [post(x) for post, x in zip(self.post_nns, both.unbind(1), strict=True)]
        return self.activate(self.lin(torch.cat(outs, dim=1)))


def _mlp(given: int, wanted: int, layers: int, act: Activation) -> nn.Sequential:
    """Linear maps with the activation between them, numbered as torch_geometric numbers them."""
    modules: list[nn.Module] = [linear(given, wanted, bias=True)]
    for _ in range(layers - 1):
        modules += [activation_module(act), linear(wanted, wanted, bias=True)]
    return nn.Sequential(*modules)
