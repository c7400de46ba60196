"""HANConv: attention over the in-edges of each relation, as in a convolution, then over relations, by the scores of all
vertices of a type: statistics of the whole graph, as a normalisation has them.

Legend: V vertices, D destinations of a type, R rows, L relations to a type, C columns.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hongtu.kernels.torch_private import is_pyg
from hongtu.model.typed_hop import TypedHop
from hongtu.nn.message_dropout import Edges, MessageDropout
from hongtu.nn.norm import Normalization


def is_han(module: Any) -> bool:
    """Whether it is torch_geometric's HANConv."""
    return type(module).__name__ == "HANConv" and is_pyg(module)


class TypedConv(nn.Module):
    """Stands for one of torch_geometric's convolutions: of dictionaries, by type and by relation, to one by type."""


class ByRelation(TypedConv):
    """What a HANConv computes of every relation by itself.

    Args:
        conv: a HANConv.
    """

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.conv, self.dropout = conv, MessageDropout()

    def forward(
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor], edges: dict[Any, Edges] | None = None
    ) -> dict[str, Tensor]:
        """By type [D, L, C + 1]: what each relation gives a vertex, and how the vertex scores that."""
        conv, found = self.conv, dict[str, list[Tensor]]()
        rows = {
            kind: conv.proj[kind](x).view(len(x), conv.heads, conv.out_channels // conv.heads)
            for kind, x in x_dict.items()
        }
        for relation, edge_index in edge_index_dict.items():
            name, ends = "__".join(relation), (rows[relation[0]], rows[relation[2]])
            weights = conv.lin_src[name], conv.lin_dst[name]
            alpha = tuple((x * weight).sum(-1) for x, weight in zip(ends, weights, strict=True))
            with nullcontext() if edges is None else self.dropout.inside(conv, partial(edges.__getitem__, relation)):
                rows_DC = conv.propagate(edge_index, x=ends, alpha=alpha).relu()
            score_D = (conv.q * torch.tanh(conv.k_lin(rows_DC))).sum(1, keepdim=True)
            found.setdefault(relation[2], []).append(torch.cat([rows_DC, score_D], dim=1))
        return {kind: torch.stack(parts, dim=1) for kind, parts in found.items()}


def scores(given: Tensor) -> Tensor:
    """[R, L] of what ``ByRelation`` gives one type."""
    return given[:, :, -1]


def attended(given: Tensor, mean: Tensor) -> Tensor:
    """[R, C]: the sum of what relations give, each by its share.

    Args:
        given: [R, L, C + 1], of ``ByRelation``.
        mean: [L] or, in a trace, [R, L]: scores.
    """
    mean = mean.mean(0) if mean.ndim > 1 else mean
    return (given[:, :, :-1] * mean.softmax(0).to(given.dtype).view(1, -1, 1)).sum(1)


class TypedStatistics(Normalization):
    """A step between two hops that depends on means over all vertices of a type.

    Args:
        step: whose ``exchanged`` columns are those whose means it takes, each of one type and zero for the others.
    """

    def __init__(self, step: TypedHop) -> None:
        super().__init__()
        self.step, self.returns = step, None

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        step, rows, types = self.step, self.step.rows, self.step.types
        rows_of = step.rows_of(step.kinds(rows.ids))
        of_mean, own = x.split([step.exchanged.columns, step.own.columns], dim=1)
        given: dict[str, Tensor] = {}
        for kind, where in enumerate(rows_of):
            of_kind = mean[None, : step.exchanged.columns] * (sum(types.counts) / max(types.counts[kind], 1))
            given |= {f"all_{name}": value[0] for name, value in step.exchanged.take(of_kind, kind).items()}
            values = step.exchanged.take(of_mean[where], kind) | step.own.take(own[where], kind)
            given |= {f"own_{name}": value for name, value in values.items()} | {f"ids_{kind}": rows.ids[where]}
        return step.packed(given, rows_of, x)
