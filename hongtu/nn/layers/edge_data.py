"""Layers whose messages depend on what edges have: CGConv, GMMConv, NNConv and RGCNConv, as torch_geometric's.

Legend: R rows, S sources, D destinations, E edges, T relations (types of edges), F and G columns in and out,
K kernels, P columns of the edge features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear as product
from torch.nn.functional import softplus
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.convolution import Common, Convolution, glorot, linear, takes_mean, zeros
from hongtu.nn.layer import Skip


class CGConv(Convolution):
    """h'_d = h_d + sum over in-edges of sigmoid(W_f x + b_f) softplus(W_s x + b_s), with x = [h_d, h_s, e].

    The parts of both products that depend on one vertex are computed once per vertex: ``z`` and s are [R, 2 F].

    Args:
        channels: F.
        dim: columns of the edge features; 0: none are read.
        aggr: "add" ("sum") or "mean".
        bias: add b_f and b_s.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self, channels: int, dim: int = 0, aggr: str = "add", *, bias: bool = True, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.channels, self.dim, self.mean = channels, dim, takes_mean("CGConv", aggr)
        self.uses_edge_features = dim > 0
        self.lin_f = linear(2 * channels + dim, channels, bias=bias)
        self.lin_s = linear(2 * channels + dim, channels, bias=bias)

    @property
    def bare_maps(self) -> tuple[torch.nn.Module, ...]:
        return self.lin_f, self.lin_s

    def _weights(self) -> tuple[Tensor, ...]:
        """Both products' weights of the destination, the source and the edge: [2 F, F], [2 F, F], [2 F, dim]."""
        both = torch.cat([self.lin_f.weight, self.lin_s.weight])
        return both.split([self.channels, self.channels, self.dim], dim=1)

    def _bias(self) -> Tensor | None:
        """Both products' biases [2 F], 0 where only the other one has any."""
        maps = (self.lin_f, self.lin_s)
        if all(part.bias is None for part in maps):
            return None
        return torch.cat([part.weight.new_zeros(self.channels) if part.bias is None else part.bias for part in maps])

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        destination, source, _ = self._weights()
        return product(h, source), (product(h, destination, self._bias()), h)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        x_E2F = block.gather(z) + block.gather_destination(s[0])
        if self.dim:
            x_E2F = torch.addmm(x_E2F, block.edge_features, self._weights()[2].t())
        gate_EF, core_EF = x_E2F.chunk(2, dim=1)
        message_EF = torch.sigmoid(gate_EF) * softplus(core_EF)
        return block.segment_mean(message_EF) if self.mean else block.segment_sum(message_EF)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.activate(a + s[1])


LEAST = 1e-15  # added to variances


class GMMConv(Convolution):
    """h'_d = W h_d + b + mean over in-edges of sum_k w_k(e) G_k h_s, with w_k a Gaussian of mean mu_k, width sigma_k.

    ``z`` is [G_1 h | ... | G_K h], [R, K G].

    Args:
        in_channels, out_channels: widths of h and h'.
        dim: P.
        kernel_size: K.
        aggr: "mean", or "sum" ("add").
        root_weight: add W h_d.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    uses_edge_features = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dim: int,
        kernel_size: int,
        aggr: str = "mean",
        root_weight: bool = True,
        *,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.mean = in_channels, out_channels, takes_mean("GMMConv", aggr)
        self.dim, self.kernel_size, self.root_weight = dim, kernel_size, root_weight
        self.g = torch.nn.Parameter(torch.empty(in_channels, out_channels * kernel_size))
        self.mu = torch.nn.Parameter(torch.empty(kernel_size, dim))
        self.sigma = torch.nn.Parameter(torch.empty(kernel_size, dim))
        for parameter in (self.g, self.mu, self.sigma):
            glorot(parameter)
        if root_weight:
            self.root = linear(in_channels, out_channels, bias=False, glorot_weight=True)
        self.register_parameter("bias", zeros(out_channels, bias))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return h @ self.g, self.root(h) if self.root_weight else None

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        distance_EKP = (block.edge_features.unsqueeze(1) - self.mu).square() / (LEAST + self.sigma.square())
        weight_EK = torch.exp(-0.5 * distance_EKP.sum(2))
        sum_DKG = block.attend(z, weight_EK, z.shape[1]).view(block.num_dst, self.kernel_size, -1)
        sum_DG = sum_DKG.sum(1)
        return sum_DG / block.in_degree.clamp(min=1).unsqueeze(1) if self.mean else sum_DG

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.finish(a + s if self.root_weight else a, self.bias)


class NNConv(Convolution):
    """h'_d = W h_d + b + sum over in-edges of h_s nn(e), with nn(e) a matrix [F, G]; takes F G numbers per edge.

    Args:
        in_channels, out_channels: F and G.
        nn: module from edge features [E, F_e] to [E, F G].
        aggr: "add" ("sum") or "mean".
        root_weight: add W h_d.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    uses_edge_features = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        nn: torch.nn.Module,
        aggr: str = "add",
        root_weight: bool = True,
        *,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.mean = in_channels, out_channels, takes_mean("NNConv", aggr)
        self.nn = nn
        self.root_weight = root_weight
        if root_weight:
            self.lin = linear(in_channels, out_channels, bias=False)
        self.register_parameter("bias", zeros(out_channels, bias))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return h, self.lin(h) if self.root_weight else None

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        weight_EFG = self.nn(block.edge_features).view(-1, self.in_channels, self.out_channels)
        message_EG = torch.bmm(block.gather(z).unsqueeze(1), weight_EFG).squeeze(1)
        return block.segment_mean(message_EG) if self.mean else block.segment_sum(message_EG)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.finish(a + s if self.root_weight else a, self.bias)


class RGCNConv(Convolution):
    """h'_d = W h_d + b + sum over relations t of W_t mean(h_s of the in-edges of type t).

    ``z`` is h: what a relation's neighbours add up to is multiplied once per destination, never per edge.

    Args:
        in_channels, out_channels: F and G.
        num_relations: T; at least as many as the graph's edge types.
        num_bases: W_t is a sum of so many shared matrices, with coefficients ``comp``.
        num_blocks: W_t is block-diagonal with so many blocks.
        aggr: "mean", or "sum" ("add"), over the in-edges of one type.
        root_weight: add W h_d.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    uses_edge_type = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        aggr: str = "mean",
        root_weight: bool = True,
        *,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        if num_bases is not None and num_blocks is not None:
            raise ValueError("RGCNConv: num_bases and num_blocks are two ways to share weights; give one")
        if num_blocks is not None and (in_channels % num_blocks or out_channels % num_blocks):
            raise ValueError(f"RGCNConv: {in_channels} and {out_channels} channels are not divided by {num_blocks}")
        self.in_channels, self.out_channels, self.num_relations = in_channels, out_channels, num_relations
        self.num_bases, self.num_blocks, self.mean = num_bases, num_blocks, takes_mean("RGCNConv", aggr)
        shape: tuple[int, ...] = (num_bases or num_relations, in_channels, out_channels)
        if num_blocks is not None:
            shape = (num_relations, num_blocks, in_channels // num_blocks, out_channels // num_blocks)
        self.weight = torch.nn.Parameter(torch.empty(shape))
        glorot(self.weight)
        self.register_parameter("comp", None if num_bases is None else _matrix(num_relations, num_bases))
        self.register_parameter("root", _matrix(in_channels, out_channels) if root_weight else None)
        self.register_parameter("bias", zeros(out_channels, bias))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return h, h if self.root is not None else None

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        sums_TDF = block.sum_by_type(z, self.num_relations, mean=self.mean)
        weight: Tensor = self.weight
        if self.num_blocks is not None:
            blocks = sums_TDF.view(*sums_TDF.shape[:2], self.num_blocks, -1)
            return torch.einsum("tdbf,tbfg->dbg", blocks, weight).flatten(1)
        if self.comp is not None:
            weight = (self.comp @ weight.flatten(1)).view(-1, *weight.shape[1:])
        out_DG = z.new_zeros((block.num_dst, self.out_channels))
        for sum_DF, weight_FG in zip(sums_TDF.unbind(), weight.unbind(), strict=True):
            out_DG = torch.addmm(out_DG, sum_DF, weight_FG)
        return out_DG

    def update(self, a: Tensor, s: Skip) -> Tensor:
        h = a if self.root is None else torch.addmm(a, s, self.root)
        return self.finish(h, self.bias)


def _matrix(rows: int, columns: int) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.empty(rows, columns))
    glorot(parameter)
    return parameter
