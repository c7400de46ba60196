"""Chunks of a vertex-renumbered graph: in-edges, neighbour sets and local source indices.

Legend: V vertices, E edges, C = m * n chunks, S sources of one chunk, D destinations of one chunk.
Chunk (i, j) has the flat index ``c = i * n + j`` and owns the vertices ``chunk_start[c] : chunk_start[c + 1]``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hongtu.graph.neighbour_sets import count_below, globalise, merge_sets, miss_ratio, neighbour_sets, relabel

COUNTED = 1 << 22  # edges that are looked at to know how soon sources are needed again


@dataclass(frozen=True)
class ChunkTopology:
    """One chunk as a bipartite CSC; all indices are local to the chunk.

    Attributes:
        first: first vertex of the chunk (new id); the D destinations are the ones from there on, or ``active``.
        indptr: int64 [D + 1], starts at 0.
        local_source: int32 [E_c], position of each edge's source in ``sources``.
        sources: int32 [S], the neighbour set N_ij: unique source vertices (new ids), ascending.
        edge_weight: float32 [E_c] or None.
        active: int32 [D], ascending destinations (new ids), or None for contiguous ones.
    """

    first: int
    indptr: np.ndarray
    local_source: np.ndarray
    sources: np.ndarray
    edge_weight: np.ndarray | None
    active: np.ndarray | None = None

    @cached_property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.local_source)


@dataclass(frozen=True, eq=False)
class Topology:
    """All chunks of a graph at one grain.

    Attributes:
        partitions: m.
        chunks: n, chunks per partition.
        chunk_start: int64 [m * n + 1], first vertex of every chunk, then V.
        in_edge_start: int64 [V + 1], CSC column pointers over new vertex ids.
        source_start: int64 [m * n + 1], where each chunk's neighbour set starts in ``sources``.
        sources: int32 [sum |N_ij|].
        local_source: int32 [E].
        edge_weight: float32 [E] or None.
        edge_features: float32 [E, F] or None, a memory map where the artifact is on disk.
        edge_type: int32 [E] or None.
        edge_position: int [E], or None: pruned chunks keep ``edge_features`` and ``edge_type`` of the whole graph,
            and this is the row of each of their edges there.
        active: int32 [A], ascending: the vertices that are destinations at all, or None for every vertex; the others
            have no in-edges here.
        active_start: int64 [m * n + 1], where each chunk's destinations start in ``active``, or None.
    """

    partitions: int
    chunks: int
    chunk_start: np.ndarray
    in_edge_start: np.ndarray
    source_start: np.ndarray
    sources: np.ndarray
    local_source: np.ndarray
    edge_weight: np.ndarray | None
    edge_features: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    edge_position: np.ndarray | None = None
    active: np.ndarray | None = None
    active_start: np.ndarray | None = None

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What was computed from these chunks and may be needed again; whoever fills it clears it."""
        return {}

    @property
    def num_vertices(self) -> int:
        return len(self.in_edge_start) - 1

    @property
    def num_edges(self) -> int:
        return int(self.in_edge_start[-1])

    @property
    def partition_start(self) -> np.ndarray:
        """int64 [m + 1], first vertex of every partition, then V."""
        return np.asarray(self.chunk_start[:: self.chunks])

    @property
    def input_order(self) -> np.ndarray:
        """int32 [m, n], the schedule that runs chunks as they are numbered."""
        return np.tile(np.arange(self.chunks, dtype=np.int32), (self.partitions, 1))

    @cached_property
    def num_dst(self) -> np.ndarray:
        """int64 [C], destinations of every chunk."""
        return np.diff(self.chunk_start if self.active_start is None else self.active_start)

    @cached_property
    def num_sources(self) -> np.ndarray:
        """int64 [C], |N_ij| of every chunk."""
        return np.diff(self.source_start)

    @cached_property
    def chunk_edges(self) -> np.ndarray:
        """int64 [C], in-edges of every chunk."""
        return np.diff(np.asarray(self.in_edge_start)[self.chunk_start])

    @cached_property
    def longest(self) -> np.ndarray:
        """int64 [C], in-edges of every chunk's destination that has most."""
        pairs = zip(self.chunk_start[:-1], self.chunk_start[1:], strict=True)
        return np.array([np.diff(self.in_edge_start[a : b + 1]).max(initial=0) for a, b in pairs], dtype=np.int64)

    @cached_property
    def miss_ratio(self) -> np.ndarray:
        """What ``neighbour_sets.miss_ratio`` says of the sources of consecutive edges, from the largest chunk on."""
        first = int(self.chunk_edges.argmax())
        edge_start = np.asarray(self.in_edge_start)[self.chunk_start[first:]]
        local_source = self.local_source[edge_start[0] : edge_start[-1]][:COUNTED]
        ends = np.minimum(edge_start - edge_start[0], len(local_source))
        return miss_ratio(globalise(ends, self.source_start[first:], self.sources, local_source))

    def neighbour_set(self, chunk: int) -> np.ndarray:
        """int32 [S], the ascending unique sources of one chunk."""
        return self.sources[self.source_start[chunk] : self.source_start[chunk + 1]]

    def active_rows(self, chunk: int) -> np.ndarray | None:
        """int32 [D], ascending destinations of one chunk, or None where they are all of its vertices."""
        if self.active is None or self.active_start is None:
            return None
        return self.active[self.active_start[chunk] : self.active_start[chunk + 1]]

    def destinations(self, chunk: int) -> slice | np.ndarray:
        """Which vertices one chunk computes: a range of them, or int32 [D], ascending."""
        active = self.active_rows(chunk)
        return slice(*self.chunk_start[chunk : chunk + 2].tolist()) if active is None else active

    def row_in_chunk(self, chunk: int) -> np.ndarray | None:
        """int32 [D], where the destinations are among the vertices of one chunk, or None where they are all of them."""
        active = self.active_rows(chunk)
        return None if active is None else active - np.int32(self.chunk_start[chunk])

    def destinations_before(self, chunk: int, vertex: int) -> int:
        """How many destinations of one chunk come before a vertex."""
        active, (first, end) = self.active_rows(chunk), self.chunk_start[chunk : chunk + 2].tolist()
        return min(max(vertex - first, 0), end - first) if active is None else int(count_below(active, vertex))

    def chunk(self, chunk: int) -> ChunkTopology:
        first, end = int(self.chunk_start[chunk]), int(self.chunk_start[chunk + 1])
        lo, hi = int(self.in_edge_start[first]), int(self.in_edge_start[end])
        active = self.active_rows(chunk)
        starts = self.in_edge_start[first : end + 1] if active is None else np.append(self.in_edge_start[active], hi)
        return ChunkTopology(
            first=first,
            indptr=starts - lo,
            local_source=self.local_source[lo:hi],
            sources=self.neighbour_set(chunk),
            edge_weight=None if self.edge_weight is None else self.edge_weight[lo:hi],
            active=active,
        )

    def edge_rows(self, rows: np.ndarray, chunk: int) -> np.ndarray:
        """Those of ``edge_features`` or ``edge_type`` that belong to one chunk's in-edges."""
        ends = np.asarray(self.in_edge_start)[self.chunk_start[chunk : chunk + 2]]
        own = slice(int(ends[0]), int(ends[1]))
        return rows[own if self.edge_position is None else self.edge_position[own]]

    def edges_among(self, larger: Topology, chunk: int) -> np.ndarray | None:
        """int32, where the in-edges of one chunk are among those that the same chunk has in a topology with more
        destinations, or None where they are all of them."""
        active = self.active_rows(chunk)
        if active is None or self.active is larger.active:
            return None
        first, end = self.chunk_start[chunk : chunk + 2].tolist()
        own = np.zeros(end - first, dtype=np.bool_)
        own[active - first] = True
        return np.flatnonzero(np.repeat(own, np.diff(larger.in_edge_start[first : end + 1]))).astype(np.int32)

    def pruned(self, wanted: np.ndarray) -> Topology:
        """The same chunks with only the wanted destinations.

        Args:
            wanted: bool [V].
        """
        degree = np.where(wanted, np.diff(self.in_edge_start), 0)
        kept = np.repeat(wanted, np.diff(self.in_edge_start))
        in_edge_start = np.concatenate([[0], np.cumsum(degree)])
        weight = None if self.edge_weight is None else np.asarray(self.edge_weight)[kept]
        source = self.global_sources()[kept]
        smaller = build_topology(self.partitions, self.chunk_start, in_edge_start, source, weight)
        active = np.flatnonzero(wanted).astype(np.int32)
        smaller = replace(smaller, active=active, active_start=np.searchsorted(active, self.chunk_start))
        if self.edge_features is None and self.edge_type is None:
            return smaller
        return smaller.picking(self, np.flatnonzero(kept) if self.edge_position is None else self.edge_position[kept])

    def picking(self, whole: Topology, position: np.ndarray) -> Topology:
        """The same chunks with what lies beside the edges of the whole graph.

        Args:
            position: int [E], where the edges' own are there.
        """
        places = next(len(rows) for rows in (whole.edge_type, whole.edge_features) if rows is not None)
        position = position.astype(np.int32 if places < 2**31 else np.int64, copy=False)
        return replace(self, edge_features=whole.edge_features, edge_type=whole.edge_type, edge_position=position)

    def keeping(self, *, edge_features: bool, edge_type: bool) -> Topology:
        """The same chunks with, of what lies beside their edges, only what somebody reads."""
        if (edge_features or self.edge_features is None) and (edge_type or self.edge_type is None):
            return self
        features = self.edge_features if edge_features else None
        return replace(self, edge_features=features, edge_type=self.edge_type if edge_type else None)

    def grouped(self, size: int) -> Topology:
        """The same graph with every ``size`` consecutive chunks of a partition as one."""
        return self.in_groups(self.grouped_sets(size))

    def in_groups(self, larger: Topology) -> Topology:
        """The same graph on larger chunks that ``grouped_sets`` made of these."""
        bounds = self.chunk_start, larger.chunk_start
        edge_start, larger_start = (np.asarray(self.in_edge_start)[start] for start in bounds)
        sets = self.source_start, self.sources, larger.source_start, larger.sources
        local_source = relabel(edge_start, larger_start, *sets, self.local_source)
        return replace(larger, local_source=local_source)

    def grouped_sets(self, size: int) -> Topology:
        """``grouped`` without edges: neighbour sets and counts only, which is much faster and all that planners
        need to compare grains."""
        kept = np.arange(self.partitions)[:, None] * self.chunks + np.arange(0, self.chunks, size)
        source_start, sources = merge_sets(self.source_start, self.sources, self.partitions, size, self.num_vertices)
        larger = replace(
            self,
            chunks=-(-self.chunks // size),
            chunk_start=np.append(np.asarray(self.chunk_start)[kept.ravel()], self.num_vertices),
            source_start=source_start,
            sources=sources,
            local_source=np.empty(0, dtype=np.int32),
        )
        if self.active is not None:
            larger = replace(larger, active_start=np.searchsorted(self.active, larger.chunk_start))
        vars(larger)["miss_ratio"] = self.miss_ratio  # its edges are the same
        return larger

    def global_sources(self) -> np.ndarray:
        """int32 [E], the source vertex (new id) of every edge in CSC order."""
        edge_start = np.asarray(self.in_edge_start)[self.chunk_start]
        return globalise(edge_start, self.source_start, self.sources, self.local_source)


def build_topology(
    partitions: int,
    chunk_start: np.ndarray,
    in_edge_start: np.ndarray,
    source: np.ndarray,
    edge_weight: np.ndarray | None = None,
) -> Topology:
    """Neighbour sets and local source indices of every chunk (paper section 4.1).

    Args:
        partitions: m; ``len(chunk_start) - 1`` must be a multiple of it.
        chunk_start: int64 [m * n + 1].
        in_edge_start: int64 [V + 1].
        source: int32 or int64 [E], source vertex (new id) of each edge in CSC order.
        edge_weight: float32 [E] or None.

    >>> # five vertices, two chunks {0, 1} and {2, 3, 4}; edges 3->0, 4->1, 3->1, 0->2, 0->4
    >>> t = build_topology(1, np.array([0, 2, 5]), np.array([0, 1, 3, 4, 4, 5]), np.array([3, 4, 3, 0, 0]))
    >>> t.sources.tolist(), t.source_start.tolist(), t.local_source.tolist()
    ([3, 4, 0], [0, 2, 3], [0, 1, 0, 0, 0])
    """
    chunk_start = np.ascontiguousarray(chunk_start, dtype=np.int64)
    chunks, sets = (len(chunk_start) - 1) // partitions, neighbour_sets(chunk_start, in_edge_start, source)
    return Topology(partitions, chunks, chunk_start, in_edge_start, *sets, edge_weight)
