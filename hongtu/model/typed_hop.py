"""One hop of a model for typed graphs as a layer: rows of all types packed in one matrix, taken apart by type in it.

Legend: D destinations and S sources of a block, E edges, R rows, K types of vertices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from hongtu.graph.vertex_types import VertexTypes
from hongtu.model.typed_kernels import called
from hongtu.model.typed_rows import Packing, rows_by_kind
from hongtu.nn.block import Block
from hongtu.nn.layer import Layer
from hongtu.nn.message_dropout import Edges, nothing_left

EDGE_INDEX, EDGE_ATTR, EDGE_WEIGHT, EDGES = "edge_index", "edge_attr", "edge_weight", "edges"


def first_rows(found: Any, own: Any) -> Any:
    """Of what a convolution gave for all rows that it was given, what it gave for a chunk's own, which come first."""
    if isinstance(found, dict):
        return {kind: None if rows is None else rows[: len(own[kind])] for kind, rows in found.items()}
    return found[: len(own)]


def rows_at(rows: Tensor, ids_R: Tensor, first: int) -> Tensor:
    """Of rows for all vertices of a type, whose first has that id, those with some ids."""
    return torch.nn.functional.embedding(ids_R - first, rows)


def gcn_degrees(ids_D: Tensor, edge_index: Tensor, edge_weight: Tensor | None, loop: float | None) -> Tensor:
    """float [D], by what a GCNConv normalises: the weights of a vertex's in-edges of one relation, and of the self-loop
    that takes the place of its own."""
    ends, weight = _with_loops(len(ids_D), edge_index, edge_weight, loop)
    return weight.new_zeros(len(ids_D)).index_add(0, ends[1], weight)


def _with_loops(
    count: int, edge_index: Tensor, edge_weight: Tensor | None, loop: float | None
) -> tuple[Tensor, Tensor]:
    """Edges and their weights, with one self-loop for each of so many destinations unless ``loop`` is None: of the
    weight of the last that there is, else of ``loop``."""
    ones = torch.ones(edge_index.shape[1], dtype=torch.float64, device=edge_index.device)
    weight = ones if edge_weight is None else edge_weight
    if loop is None:
        return edge_index, weight
    own = edge_index[0] == edge_index[1]
    of_loops = weight.new_full((count,), 1.0 if edge_weight is None else loop)  # as torch_geometric has it
    last = torch.full((count,), -1, device=own.device)
    where = own.nonzero().squeeze(1)
    last.scatter_reduce_(0, edge_index[1, where], where, "amax")
    if len(weight):
        of_loops = torch.where(last >= 0, weight[last.clamp(min=0)], of_loops)
    loops = torch.arange(count, device=own.device).expand(2, -1)
    return torch.cat([edge_index[:, ~own], loops], dim=1), torch.cat([weight[~own], of_loops])


class NormalizedGcn(torch.nn.Module):
    """torch_geometric's GCNConv on a chunk, with degrees that are known.

    Args:
        conv: a GCNConv that normalises.
    """

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.conv = conv

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None, degrees: Tensor, own: Tensor
    ) -> Tensor:
        """[D, G], of x [S, F] and degrees [S], of which those of the destinations ``own`` [D, F] come first."""
        edges, weight = _with_loops(len(own), edge_index, edge_weight, gcn_loop(self.conv))
        roots = degrees.pow(-0.5)
        roots = roots.masked_fill(roots == torch.inf, 0)
        conv, weight = self.conv, roots[edges[0]] * weight.to(x.dtype) * roots[edges[1]]
        conv.normalize = False
        try:
            return called(conv, x, edges, weight)[: len(own)]
        finally:
            conv.normalize = True


def gcn_loop(conv: Any) -> float | None:
    """The weight of the self-loops that a GCNConv adds, or None."""
    return (2.0 if conv.improved else 1.0) if conv.add_self_loops else None


def is_gcn(module: Any) -> bool:
    """Whether it is torch_geometric's GCNConv, and normalises."""
    return type(module).__name__ == "GCNConv" and module.normalize and not module.cached


class TypedHop(Layer):
    """Runs all convolutions of a traced forward that are as many hops away from the features, and what is computed of
    them before the next ones.

    Args:
        types: of the graph.
        hop: own rows, rows of sources, edges and ids, by the names of its placeholders -> values by name.
        takes: what it takes of sources, then what else it takes, or hands on, of destinations.
        gives: the same of the next hop; of the last one nothing, and what the model returns.
        front: of the first hop: features by type -> what it takes.

    Attributes:
        returns: of the last hop: the type whose rows the model returns, "" for a dictionary; columns by type.
    """

    uses_edge_type = True
    returns: tuple[str, dict[int, int]] | None = None

    def __init__(
        self,
        types: VertexTypes,
        hop: fx.GraphModule,
        takes: tuple[Packing, Packing],
        gives: tuple[Packing, Packing],
        front: fx.GraphModule | None,
    ) -> None:
        super().__init__()
        self.types, self.hop, self.front = types, hop, front
        (self.exchanged, self.own), self.gives = takes, gives
        self._takes, self._front_takes = _placeholders(hop), () if front is None else _placeholders(front)
        self.weighted, self.uses_edge_features = (
            any(name.startswith(data) for name in self._takes) for data in (EDGE_WEIGHT, EDGE_ATTR)
        )

    @property
    def relations(self) -> list[tuple[int, tuple[int, ...]]]:
        """Of each relation its number and the first two vertices of its destinations' type, where it has some."""
        spans = [self.types.span(destination) for _, _, destination in self.types.relations]
        return [(k, tuple(range(s.start, min(s.stop, s.start + 2)))) for k, s in enumerate(spans) if s.start < s.stop]

    def kinds(self, ids_R: Tensor) -> Tensor:
        """int64 [R], the number of each vertex's type."""
        kinds_R = torch.zeros_like(ids_R)
        for start in self.types.starts[1:-1]:
            kinds_R += ids_R >= start
        return kinds_R

    def rows_of(self, kinds_R: Tensor) -> list[Tensor]:
        """For each type int64, where its rows are."""
        return [(kinds_R == kind).nonzero().squeeze(1) for kind in range(len(self.types.names))]

    def transform(self, h: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.front is not None:
            return self._begin(h, self.front)
        z, own = h.split([self.exchanged.columns, self.own.columns], dim=1)
        return self._pair(z, own) if self.own.columns else (h, (h,))

    def _pair(self, z: Tensor, own: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        z = z if z.shape[1] else z.new_zeros((len(z), 1))  # something has to be exchanged
        return (z, (z, own)) if own.shape[1] else (z, (z,))

    def _begin(self, h: Tensor, front: fx.GraphModule) -> tuple[Tensor, tuple[Tensor, ...]]:
        first, ids, rows_of = self.types.first_column, self.rows.ids, self.rows_of(self.kinds(self.rows.ids))
        given: dict[str, Tensor] = {}
        for kind, (rows, width) in enumerate(zip(rows_by_kind(h, rows_of), self.types.widths, strict=True)):
            given |= {f"x_{kind}": rows[:, first : first + width], f"ids_{kind}": ids[rows_of[kind]]}
        values = _called(front, self._front_takes, given)
        return self._pair(self.exchanged.pack(values, rows_of, h), self.own.pack(values, rows_of, h))

    def aggregate(self, block: Block, z: Tensor, s: Any) -> Tensor:
        block, others = block.with_destinations()
        given, mine, beside = self._edges(block)
        every = rows_by_kind(s[0], mine, z, [others[where] for where in beside])
        own = rows_by_kind(s[-1], mine) if self.own.columns else ()
        for kind, rows in enumerate(every):
            of_all, count = self.exchanged.take(rows, kind), len(mine[kind])
            given |= {f"all_{name}": value for name, value in of_all.items()}
            given |= {f"own_{name}": value[:count] for name, value in of_all.items()}
            given |= {f"own_{name}": value for name, value in (self.own.take(own[kind], kind) if own else {}).items()}
            given[f"ids_{kind}"] = block.rows.ids[mine[kind]]
        return self.packed(given, mine, z)

    def packed(self, given: Mapping[str, Tensor], rows_of: Sequence[Tensor], like: Tensor) -> Tensor:
        """float [D, columns]: what it makes of what its placeholders are given, for the next hop.

        Args:
            rows_of: int64 for each type, where its rows are among the D.
        """
        with nothing_left(self.hop):
            values = _called(self.hop, self._takes, given)
        packed = [packing.pack(values, rows_of, like) for packing in self.gives if packing.columns]
        return packed[0] if len(packed) == 1 else torch.cat(packed, dim=1)

    def _edges(self, block: Block) -> tuple[dict[str, Any], list[Tensor], list[Tensor]]:
        """The edges of every relation between rows of their types, and, for each type, where its rows are among
        destinations, and among the sources behind them."""
        assert block.edge_type is not None
        ends = torch.tensor([self.types.ends(relation) for relation in range(len(self.types.relations))])
        of_source, of_destination = ends.to(block.indptr.device).T.contiguous()
        kind_E, (source, destination) = block.edge_type.long(), block.edge_index
        kinds_S = torch.zeros(block.num_src, dtype=torch.int64, device=source.device)
        kinds_S[source] = of_source[kind_E]
        kinds_S[: block.num_dst] = self.kinds(block.rows.ids)
        fits = (kinds_S[source] == of_source[kind_E]) & (kinds_S[destination] == of_destination[kind_E])
        kind_E = torch.where(fits, kind_E, -1)  # all fit, but in graphs that are made up
        own, beside = (self.rows_of(kinds) for kinds in kinds_S.split([block.num_dst, block.num_src - block.num_dst]))
        position_S, given = torch.empty_like(kinds_S), dict[str, Any]()
        for where in map(torch.cat, zip(own, (where + block.num_dst for where in beside), strict=True)):
            position_S[where] = torch.arange(len(where), device=where.device)
        for relation in range(len(self.types.relations)):
            mine = (kind_E == relation).nonzero().squeeze(1)
            given[f"{EDGE_INDEX}_{relation}"] = position_S[block.edge_index[:, mine]]
            if block.edge_features is not None:
                given[f"{EDGE_ATTR}_{relation}"] = block.edge_features[mine, : self.types.edge_columns[relation]]
            if f"{EDGES}_{relation}" in self._takes:
                first, last = self.types.ends(relation)
                rows = block.num_graph_edges + block.rows.ids[own[last]]
                of = given[f"{EDGE_INDEX}_{relation}"], block.edge_ids[mine], rows, first == last
                given[f"{EDGES}_{relation}"] = Edges(*of)
            weight = torch.ones(1, device=mine.device) if block.edge_weight is None else block.edge_weight
            given[f"{EDGE_WEIGHT}_{relation}"] = weight.expand(block.num_edges)[mine]
        return given, own, beside


def _placeholders(graph: fx.GraphModule) -> tuple[str, ...]:
    return tuple(str(node.target) for node in graph.graph.nodes if node.op == "placeholder")


def _called(graph: fx.GraphModule, takes: Sequence[str], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return graph(*(given[name] for name in takes))
