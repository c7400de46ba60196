"""Neighbourhoods of seeds, drawn in-edge by in-edge: one hop of a sampled batch.

A vertex's draws depend on a key and on its original number alone, never on the other vertices of its batch, on the hop
in which it is met, on the partitioning or on the process. In a graph with named types each relation has draws of its
own: a vertex's in-edges lie one relation behind the other. Vertices get their positions in the batch from a hash table
that grows with it, so that nothing as long as the graph is touched.
Legend: V vertices, E edges, L relations of the graph; N vertices, D draws of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from hongtu.compiled import compiled
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.nn.dropout import mix

SMALLEST = 64  # slots of a table
ALL = -1  # as a fan-out: every in-edge


@dataclass(frozen=True, eq=False)
class SampledGraph:
    """What drawing reads of an artifact: its arrays, as they lie there, and where original numbers begin."""

    artifact: Artifact

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes, which open the artifact themselves."""
        return sampled_graph, (str(self.artifact.path),)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """As ``_draw`` takes them."""
        t = self.artifact.topology
        starts = (np.asarray(array) for array in (t.chunk_start, t.in_edge_start, t.source_start))
        named = self.artifact.types is not None
        edge_type = np.asarray(t.edge_type) if named else np.empty(0, dtype=np.int32)
        return *starts, np.asarray(t.sources), np.asarray(t.local_source), self.original_id, edge_type

    @cached_property
    def original_id(self) -> np.ndarray:
        """int32 [V]."""
        return np.asarray(self.artifact.original_id)

    @cached_property
    def new_id(self) -> np.ndarray:
        """int32 [V], the artifact's number of every vertex, by original number."""
        found = np.empty(len(self.original_id), dtype=np.int32)
        found[self.original_id] = np.arange(len(found), dtype=np.int32)
        return found

    @cached_property
    def edge_shift(self) -> np.ndarray:
        """int64 [V]: an in-edge's id (``Artifact.edge_id_starts``) less its position in the artifact."""
        return self.artifact.edge_id_starts() - np.asarray(self.artifact.topology.in_edge_start)[:-1]

    @cached_property
    def relation_shift(self) -> list[np.ndarray]:
        """Of each relation int64, by the numbers that its destinations have in their type: an in-edge's place among all
        of the relation, by destination, less its position in the artifact."""
        types, (_, in_edge_start, *_, edge_type) = self.artifact.types, self.arrays
        assert types is not None
        found = []
        for relation, (_, _, name) in enumerate(types.relations):
            first, count = _runs(in_edge_start, edge_type, self.new_id[types.span(name)], relation)
            found.append(np.cumsum(count) - count - first)
        return found

    @cached_property
    def labelled(self) -> frozenset[str]:
        """The types of which some vertex has a label."""
        types, labels = self.artifact.types, np.asarray(self.artifact.labels)
        assert types is not None
        known = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
        known = known[self.new_id].reshape(len(known), -1).any(axis=1)
        return frozenset(name for name in types.names if known[types.span(name)].any())


def sampled_graph(artifact: Artifact | str) -> SampledGraph:
    """Of an artifact or its directory."""
    return SampledGraph((open_artifact(artifact) if isinstance(artifact, str) else artifact).whole)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A sampled batch.

    Attributes:
        vertices: int64 [N], the artifact's numbers: the seeds, then the others as they were met.
        source, destination: int64 [D], positions in ``vertices`` of the ends of every drawn edge.
        edge: int64 [D], its position in the artifact.
        vertices_per_hop: the seeds, then those that each hop met first.
        edges_per_hop: those that each hop drew.
    """

    vertices: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    edge: np.ndarray
    vertices_per_hop: list[int]
    edges_per_hop: list[int]


Fanout: TypeAlias = int | tuple[int, ...]  # of a hop, for all relations or by their numbers


def draw(graph: SampledGraph, seeds: np.ndarray, fanouts: list[Fanout], key: int, replace: bool = False) -> Drawn:
    """Hop by hop, in-edges of the vertices that the hop before met first, as torch_geometric's loaders draw them.

    Args:
        seeds: int64 [B], the artifact's numbers.
        fanouts: of every hop, in-edges per vertex (of each relation, where these have names); all of them for -1, and
            where there are fewer.
        key: of ``hongtu.nn.dropout.dropout_key``.
        replace: draw with replacement: as often as the fan-out says where there is any in-edge.
    """
    vertices = np.asarray(seeds, dtype=np.int32)
    table = _entered(np.full(SMALLEST, -1, dtype=np.int64), vertices)
    met, parts, begin, types = [len(vertices)], [], 0, graph.artifact.types
    for fanout in fanouts:
        by_relation = np.full(1 if types is None else len(types.relations), fanout, dtype=np.int64)
        table, new, *edges = _draw(graph.arrays, vertices[begin:], begin, table, by_relation, replace, np.uint64(key))
        begin = len(vertices)
        vertices = np.concatenate([vertices, new])
        met.append(len(new))
        parts.append(edges)
    source, destination, edge = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Drawn(vertices.astype(np.int64), source, destination, edge, met, [len(edges[0]) for edges in parts])


def part_of(drawn: Drawn, mine: np.ndarray) -> Drawn:
    """What some of a batch's seeds see of it in as many hops, in an order of its own.

    Args:
        mine: bool [B], of the seeds.
    """
    hops = len(drawn.edges_per_hop)
    far = np.full(len(drawn.vertices), hops + 1)
    far[: len(mine)][mine] = 0
    for hop in range(hops):
        reached = drawn.source[far[drawn.destination] == hop]
        far[reached] = np.minimum(far[reached], hop + 1)
    hop_of = far[drawn.destination]
    vertices, edges = np.argsort(far, kind="stable"), np.argsort(hop_of, kind="stable")
    met, taken = np.bincount(far, minlength=hops + 2)[: hops + 1], np.bincount(hop_of, minlength=hops)[:hops]
    vertices, edges = vertices[: met.sum()], edges[: taken.sum()]
    position = np.empty(len(far), dtype=np.int64)
    position[vertices] = np.arange(len(vertices))
    ends = position[drawn.source[edges]], position[drawn.destination[edges]]
    return Drawn(drawn.vertices[vertices], *ends, drawn.edge[edges], met.tolist(), taken.tolist())


@compiled
def _draw(arrays, vertices, first, table, fanouts, replace, key):
    """One hop from ``vertices``, which are at the positions from ``first`` on."""
    chunk_start, in_edge_start, source_start, sources, local_source, original_id, edge_type = arrays
    count = 0
    for v in vertices:
        begin = in_edge_start[v]
        while begin < in_edge_start[v + 1]:
            relation, end = _run(edge_type, begin, in_edge_start[v + 1])
            count += _taken(end - begin, fanouts[relation], replace)
            begin = end
    source, destination = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    edge, new = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int32)
    known, k = first + len(vertices), 0
    for i in range(len(vertices)):
        v = vertices[i]
        begin, row = in_edge_start[v], mix(np.uint64(original_id[v])) ^ key
        base = source_start[np.searchsorted(chunk_start, v, side="right") - 1]
        while begin < in_edge_start[v + 1]:
            relation, end = _run(edge_type, begin, in_edge_start[v + 1])
            taken = _taken(end - begin, fanouts[relation], replace)
            picked = edge[k : k + taken]
            of_relation = mix(row + np.uint64(relation) * np.uint64(0xD1B54A32D192ED03))
            _pick(picked, end - begin, replace and fanouts[relation] >= 0, of_relation)
            for j in range(taken):
                picked[j] += begin
                source[k + j] = sources[base + local_source[picked[j]]]
            for j in range(taken):
                u = source[k + j]
                if 2 * known >= len(table):
                    table = _grown(table)
                at = _slot(table, u)
                entry = table[at]
                if entry < 0:
                    entry = (u << 32) | known
                    table[at] = entry
                    new[known - first - len(vertices)] = u
                    known += 1
                source[k + j] = entry & 0xFFFFFFFF
                destination[k + j] = first + i
            k += taken
            begin = end
    return table, new[: known - first - len(vertices)].copy(), source, destination, edge


@compiled
def _run(edge_type, begin, end):
    """The relation of the in-edges that follow each other from ``begin`` on, and where these end; all, of one, where
    relations have no names."""
    if len(edge_type) == 0:
        return np.int64(0), end
    relation = edge_type[begin]
    return np.int64(relation), begin + max(1, np.searchsorted(edge_type[begin:end], relation, side="right"))


@compiled
def _runs(in_edge_start, edge_type, vertices, relation):
    """int64 each: where the in-edges of a relation begin, of some vertices, and how many there are."""
    first, count = np.empty(len(vertices), dtype=np.int64), np.empty(len(vertices), dtype=np.int64)
    for i in range(len(vertices)):
        begin = in_edge_start[vertices[i]]
        own = edge_type[begin : in_edge_start[vertices[i] + 1]]
        first[i] = begin + np.searchsorted(own, relation)
        count[i] = begin + np.searchsorted(own, relation, side="right") - first[i]
    return first, count


@compiled
def _taken(degree, fanout, replace):
    """How many in-edges are drawn of so many."""
    if fanout < 0 or degree == 0:
        return degree
    return fanout if replace else min(degree, fanout)


@compiled
def _pick(picked, degree, replace, row):
    """Fill with positions from 0 to degree - 1; without replacement each set of so many is as likely as any other
    (Floyd's algorithm)."""
    taken = len(picked)
    if taken == degree and not replace:
        for j in range(taken):
            picked[j] = j
        return
    for j in range(taken):
        end = degree if replace else degree - taken + j + 1
        bits = mix(row + np.uint64(j) * np.uint64(0x9E3779B97F4A7C15))
        found = np.int64(np.float64(bits >> np.uint64(11)) * 2.0**-53 * end)
        if not replace:
            for before in range(j):
                if picked[before] == found:
                    found = end - 1
                    break
        picked[j] = found


@compiled
def _slot(table, vertex):
    """Where a vertex is in the table, or would be. An entry is the vertex, then its position in 32 bits."""
    mask = len(table) - 1
    at = np.int64((np.uint64(vertex) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    entry = table[at]
    while entry >= 0 and entry >> 32 != vertex:
        at = (at + 1) & mask
        entry = table[at]
    return at


@compiled
def _grown(table):
    larger = np.full(4 * len(table), -1, dtype=np.int64)
    for entry in table:
        if entry >= 0:
            larger[_slot(larger, entry >> 32)] = entry
    return larger


@compiled
def _entered(table, vertices):
    """The table with seeds at their positions; one that is there twice is at its first."""
    while len(table) < 2 * len(vertices):
        table = _grown(table)
    for i in range(len(vertices)):
        at = _slot(table, np.int64(vertices[i]))
        if table[at] < 0:
            table[at] = (np.int64(vertices[i]) << 32) | i
    return table
