"""What a layer sees of the graph: the rows of a row-wise call, and the bipartite CSC of one chunk.

Legend: D destinations, S sources, E edges, F features, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hongtu.kernels.dispatch import has_numba_kernel, kernels_for
from hongtu.nn import aggr
from hongtu.nn.ops import aggregates, attention

if TYPE_CHECKING:
    import torch_sparse


@dataclass
class Rows:
    """The vertices of a row-wise call (``transform``, ``update``).

    Attributes:
        ids: int64 [D], original vertex ids.
        statistics: float [D, 3] of the run dtype, or None: the sum of the weights of a vertex's in-edges (1 per edge
            when the graph has none), the sum of the weights of its stored self-loops, and the weight of the last
            stored self-loop (NaN without any); [D, 4] where a layer ``uses_out_degrees``: the sum of the weights of its
            out-edges but self-loops.
        factors: float [D, 2], or None: where all layers that need the statistics make the same two numbers of them,
            these in their place: D^-1/2, and what a sum over stored edges lacks of the vertex's self-loop.
        memo: what a layer computes from these rows alone and needs again in the same chunk.
        of_edges: they are edges, by their ids.

    Where a graph has edge weights that some layers ignore, statistics have twice as many columns: those without weights
    come last.
    """

    ids: Tensor
    statistics: Tensor | None = None
    factors: Tensor | None = None
    memo: dict[Any, Any] = field(default_factory=dict)
    of_edges: bool = False

    def seen(self, ignores_weights: bool) -> Rows:
        """The same with statistics [D, 3 or 4]: those of edges without weights, or with them."""
        if self.statistics is None or self.statistics.shape[1] <= 4:
            return self
        if ignores_weights not in self.memo:
            columns = self.statistics.chunk(2, dim=1)[ignores_weights]
            self.memo[ignores_weights] = replace(self, statistics=columns, memo={})
        return self.memo[ignores_weights]


@dataclass
class Block:
    """The in-edges of D destination vertices, from their S unique sources.

    Attributes:
        indptr: int64 [D + 1], starts at 0.
        local_source: int32 [E], position of each edge's source in ``sources``.
        sources: int32 [S], unique source vertices (new ids); ascending, except in ``with_destinations()``.
        first: first destination (new id); without ``active`` destination d is vertex ``first + d``.
        edge_weight: float [E] of the run dtype, or None.
        rows: the destinations' ids and statistics.
        edge_id_start: int64 [D], id of the first in-edge of each destination.
        num_graph_edges: E of the whole graph; ids from there on are free (self-loops that a layer adds).
        active: int32 [D], ascending destinations (new ids), or None where they are contiguous.
        edge_features: float [E, F] of the run dtype, where the layer has ``uses_edge_features``: the graph's, or what a
            header names, or what ``update_edges`` gave; else None.
        edge_type: int32 [E], where the layer has ``uses_edge_type``; else None.
        kept_ids: int64 [E], of a block that has lost some edges the ids of those that are left; else None.
        memo: what is known of these edges, from epoch to epoch.
    """

    indptr: Tensor
    local_source: Tensor
    sources: Tensor
    first: int
    edge_weight: Tensor | None
    rows: Rows
    edge_id_start: Tensor
    num_graph_edges: int
    active: Tensor | None = None
    edge_features: Tensor | None = None
    edge_type: Tensor | None = None
    kept_ids: Tensor | None = None
    memo: dict[str, bool] = field(default_factory=dict)

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_src(self) -> int:
        return len(self.sources)

    @property
    def num_edges(self) -> int:
        return len(self.local_source)

    def seen(self, ignores_weights: bool) -> Block:
        """The same edges, each of weight 1 for a layer that ignores weights."""
        rows, weight = self.rows.seen(ignores_weights), None if ignores_weights else self.edge_weight
        return (
            self if rows is self.rows and weight is self.edge_weight else replace(self, rows=rows, edge_weight=weight)
        )

    @cached_property
    def destinations(self) -> Tensor:
        """int32 [D], ascending destination vertices (new ids)."""
        if self.active is not None:
            return self.active
        return torch.arange(self.first, self.first + self.num_dst, dtype=torch.int32, device=self.indptr.device)

    @cached_property
    def last_source(self) -> Tensor:
        """int64 [D], position of the source of each destination's last in-edge, where all have some."""
        return self.local_source[self.indptr[1:] - 1].long()

    @cached_property
    def in_degree(self) -> Tensor:
        """int64 [D], in-edges of each destination."""
        return self.indptr.diff()

    @cached_property
    def dst_of_edge(self) -> Tensor:
        """int64 [E], position of each edge's destination."""
        return torch.repeat_interleave(self.indptr.diff(), output_size=self.num_edges)

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 [2, E], source position and destination position of each edge."""
        return torch.stack([self.local_source.long(), self.dst_of_edge])

    @cached_property
    def edge_ids(self) -> Tensor:
        """int64 [E], identity of each edge, the same however the graph is cut into chunks."""
        if self.kept_ids is not None:
            return self.kept_ids
        offset = self.edge_id_start - self.indptr[:-1]
        return offset[self.dst_of_edge] + torch.arange(self.num_edges, device=offset.device)

    @cached_property
    def rows_of_edges(self) -> Rows:
        """The edges, as rows of a call."""
        return Rows(ids=self.edge_ids, of_edges=True)

    def keeping(self, kept_E: Tensor) -> Block:
        """The same destinations and sources, with those of the edges where bool [E] is True."""

        def left(rows: Tensor | None) -> Tensor | None:
            return None if rows is None else rows[kept_E]

        return replace(
            self,
            indptr=torch.cat([self.indptr.new_zeros(1), kept_E.cumsum(0)])[self.indptr],
            local_source=self.local_source[kept_E],
            edge_weight=left(self.edge_weight),
            edge_features=left(self.edge_features),
            edge_type=left(self.edge_type),
            kept_ids=self.edge_ids[kept_E],
            memo={},
        )

    @cached_property
    def loop_mask(self) -> Tensor:
        """bool [E], True where the source is the destination itself."""
        if not has_numba_kernel(self.indptr):
            own = torch.repeat_interleave(self.destinations, self.indptr.diff(), output_size=self.num_edges)
            return self.sources[self.local_source.long()] == own
        found = self.indptr.new_empty(self.num_edges, dtype=torch.bool)
        kernels_for(found).loop_mask(self.indptr, self.local_source, self.sources, self.destinations, found)
        return found

    @property
    def has_loops(self) -> bool:
        """Whether any edge is a self-loop; on a GPU, which would have to be waited for, whether one may be."""
        if "has_loops" not in self.memo:
            self.memo["has_loops"] = not has_numba_kernel(self.indptr) or bool(self.loop_mask.any())
        return self.memo["has_loops"]

    def sum(self, x: Tensor, weighted: bool = False) -> Tensor:
        """[S, F] -> [D, F]: sum over in-edges, times the edge weights if ``weighted`` and the graph has any."""
        return self._reduce(x, weighted, mean=False)

    def mean(self, x: Tensor, weighted: bool = False) -> Tensor:
        """[S, F] -> [D, F]: ``sum`` over the number of in-edges; 0 for a destination without any."""
        return self._reduce(x, weighted, mean=True)

    def _reduce(self, x: Tensor, weighted: bool, mean: bool) -> Tensor:
        weight = self.edge_weight if weighted else None
        out = aggregates.aggregate(_rows(x), self.indptr, self.local_source, weight, mean)
        return out.view(self.num_dst, *x.shape[1:])

    def reduce(self, x: Tensor, how: str | Sequence[str], weighted: bool = False) -> Tensor:
        """[S, F] -> [D, F]: a reduction over in-edges by its name, as torch_geometric.nn.aggr computes it.

        Args:
            x: float [S, F], or [S, ..., F].
            how: "sum" ("add"), "mean", "max", "min", "mul", "var", "std", "softmax" or "powermean"; of several names
                the results are put side by side, [D, ..., k F].
            weighted: multiply by the edge weights, if the graph has any; sum, mean, max and min only.

        Raises:
            ValueError: for another name, or weights where there is no weighted form.
        """
        if not isinstance(how, str):
            return torch.cat([self.reduce(x, name, weighted) for name in how], dim=-1)
        return aggr.reduce(self, _rows(x), how, weighted).view(self.num_dst, *x.shape[1:])

    @cached_property
    def of_edges(self) -> Block:
        """The same destinations, with the in-edges as their sources: reduces rows [E, F] of edges."""
        every = torch.arange(self.num_edges, dtype=torch.int32, device=self.indptr.device)
        return replace(self, local_source=every, sources=every, edge_features=None, edge_type=None, memo={})

    def gather(self, x: Tensor) -> Tensor:
        """[S, F] -> [E, F]: the row of each edge's source."""
        return aggregates.edge_gather(_rows(x), self.local_source).view(self.num_edges, *x.shape[1:])

    def gather_destination(self, x: Tensor) -> Tensor:
        """[D, F] -> [E, F]: the row of each edge's destination."""
        return aggregates.destination_gather(_rows(x), self.indptr, self.num_edges).view(self.num_edges, *x.shape[1:])

    def segment_sum(self, x_EF: Tensor) -> Tensor:
        """[E, F] -> [D, F]: sum of the edge rows of each destination."""
        return aggregates.segment_sum(_rows(x_EF), self.indptr).view(self.num_dst, *x_EF.shape[1:])

    def segment_mean(self, x_EF: Tensor, exclude: Tensor | None = None) -> Tensor:
        """[E, F] -> [D, F]: the mean of the edge rows of each destination, less those where bool [E] ``exclude`` is
        True; 0 for a destination without any."""
        count = self.in_degree.to(x_EF.dtype)
        if exclude is not None:
            x_EF = x_EF.masked_fill(exclude.view(-1, *[1] * (x_EF.dim() - 1)), 0)
            count = count - self.segment_sum(exclude.to(x_EF.dtype).unsqueeze(1)).squeeze(1)
        return self.segment_sum(x_EF) / count.clamp(min=1).view(-1, *[1] * (x_EF.dim() - 1))

    def sum_by_type(self, x: Tensor, num_types: int, mean: bool = False) -> Tensor:
        """[S, F] -> [T, D, F]: for each of T edge types, the sum (or mean) over the in-edges of that type."""
        indptr, local_source = self._edges_by_type(num_types)
        out = aggregates.aggregate(_rows(x), indptr, local_source, None, mean)
        return out.view(num_types, self.num_dst, *x.shape[1:])

    def _edges_by_type(self, num_types: int) -> tuple[Tensor, Tensor]:
        """The CSC whose column t D + d holds the in-edges of destination d that have type t."""
        assert self.edge_type is not None, "the layer does not say uses_edge_type = True"
        order = torch.argsort(self.edge_type, stable=True)  # edges are ordered by destination already
        column = self.edge_type[order].long() * self.num_dst + self.dst_of_edge[order]
        columns = torch.arange(num_types * self.num_dst + 1, device=column.device)
        return torch.searchsorted(column, columns), self.local_source[order]

    def softmax(
        self, logits_EH: Tensor, exclude: Tensor | None = None, extra: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Softmax over the in-edges of each destination.

        Args:
            logits_EH: float [E, H].
            exclude: bool [E], True for edges that take no part; their share is 0.
            extra: float [D, H], one more logit per destination.

        Returns:
            the shares [E, H]; with ``extra``, also its shares [D, H].
        """
        alpha_EH, alpha_DH = aggregates.edge_softmax(logits_EH, self.indptr, exclude, extra)
        return alpha_EH if alpha_DH is None else (alpha_EH, alpha_DH)

    def attend(self, x: Tensor, alpha_EH: Tensor, width: int) -> Tensor:
        """[S, >= width], [E, H] -> [D, width]: per head, the sum of the source rows times alpha.

        ``width`` is H times the channels of a head; further columns of ``x`` are ignored.
        """
        return aggregates.attend(x, alpha_EH, self.indptr, self.local_source, width)

    def dot(self, key: Tensor, query_DF: Tensor, heads: int) -> Tensor:
        """[S, F], [D, F] -> [E, H]: per head, the product of the source's key and the destination's query."""
        return attention.dot(key, query_DF, self.indptr, self.local_source, heads)

    def additive_logits(self, x: Tensor, query_DF: Tensor, att_F: Tensor, heads: int, slope: float) -> Tensor:
        """[S, F], [D, F], [F] -> [E, H]: per head <att, leaky_relu(source's row + destination's query)>."""
        return attention.additive_logits(x, query_DF, att_F, self.indptr, self.local_source, heads, slope)

    def graph_attention(self, x: Tensor, query_DH: Tensor, own: Tensor | None, slope: float) -> Tensor:
        """[S, F + H], [D, H] -> [D, F]: per head, the sum of the source rows, weighted with the softmax of
        leaky_relu(source's logit, which is behind its row, + ``query``). With ``own`` [D, F + H] a self-loop of these
        rows takes the place of those that are stored. Without numba's kernels see ``softmax`` and ``attend``."""
        exclude = self.loop_mask if own is not None and self.has_loops else None
        return attention.graph_attention(x, query_DH, own, exclude, self.indptr, self.local_source, slope)

    def gated_sum(self, x: Tensor, key_DF: Tensor) -> Tensor:
        """[S, 2 F] (query | value), [D, F] -> [D, F]: sum over in-edges of sigmoid(key + query) * value."""
        return aggregates.gated_sum(x, key_DF, self.indptr, self.local_source)

    def with_destinations(self) -> tuple[Block, Tensor]:
        """The block whose sources start with its own destinations, for layers that give ``forward(block, h)``.

        Returns:
            the block (source d is destination d, then the other sources), and int64 [S - common]: the positions,
            in this block's sources, of those others. Its input is ``cat([h_of_destinations, z[others]])``.
        """
        return self._with_destinations

    @cached_property
    def _with_destinations(self) -> tuple[Block, Tensor]:
        num_dst, device = self.num_dst, self.sources.device
        position = torch.searchsorted(self.destinations, self.sources).clamp(max=num_dst - 1)
        own = self.destinations[position] == self.sources
        others = (~own).nonzero().squeeze(1)
        position[others] = torch.arange(num_dst, num_dst + len(others), device=device)
        block = replace(
            self,
            local_source=position[self.local_source.long()].to(self.local_source.dtype),
            sources=torch.cat([self.destinations, self.sources[others]]),
        )
        return block, others

    def to_torch_sparse(self) -> torch_sparse.SparseTensor:
        """``torch_sparse.SparseTensor`` [D, S] of the in-edges, with the edge weights if there are any.

        Raises:
            ImportError: when torch-sparse is not installed.
        """
        try:
            from torch_sparse import SparseTensor
        except ImportError as error:
            raise ImportError(
                f"Block.to_torch_sparse: {error}; pip install --no-build-isolation torch-scatter torch-sparse, or use "
                "block.edge_index"
            ) from error
        return SparseTensor(
            rowptr=self.indptr,
            col=self.local_source.long(),
            value=self.edge_weight,
            sparse_sizes=(self.num_dst, self.num_src),
            is_sorted=True,
            trust_data=True,
        )


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(len(x), x.shape[1:].numel())
