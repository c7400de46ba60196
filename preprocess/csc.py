"""In-edges grouped by destination, in input order within each (that position is an edge's identity), and what the
flags ask to change in edges: without flags nothing is changed.

Legend: V vertices, E edges, T threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hongtu.files import Create, in_memory
from hongtu.graph.sparse_rows import positions
from hongtu.parallel import parallel_for
from hongtu.preprocess.bucket_sort import even_blocks, group_by_key
from hongtu.threads import num_threads


class Csc(NamedTuple):
    """In-edges of every vertex.

    Attributes:
        in_edge_start: int64 [V + 1].
        source: int32 [E].
    """

    in_edge_start: np.ndarray
    source: np.ndarray


def build_csc(
    source: np.ndarray,
    destination: np.ndarray,
    num_vertices: int,
    *,
    undirected: bool = False,
    loops: np.ndarray | None = None,
    create: Create = in_memory,
) -> Csc:
    """A stable counting sort of the edges by destination; ``undirected`` adds the reverse of every edge after them all,
    and then come self-loops of the vertices ``loops``.

    >>> # five vertices; edges 3->1, 0->2, 4->1, 3->0, 0->4
    >>> csc = build_csc(np.int32([3, 0, 4, 3, 0]), np.int32([1, 2, 1, 0, 4]), 5, loops=np.int32([0]))
    >>> csc.in_edge_start.tolist(), csc.source.tolist()
    ([0, 2, 4, 5, 5, 6], [3, 0, 3, 4, 0, 0])
    """
    pairs = [(destination, source), *([(source, destination)] if undirected else [])]
    return Csc(*group_by_key(pairs + ([] if loops is None else [(loops, loops)]), num_vertices, create))


def renumber(csc: Csc, original_id: np.ndarray, create: Create = in_memory) -> Csc:
    """The same graph where vertex v is what was vertex ``original_id[v]``; each in-edge list keeps its order.

    >>> csc = Csc(np.array([0, 1, 1, 3]), np.int32([2, 0, 1]))  # 2->0, 0->2, 1->2
    >>> new = renumber(csc, np.int32([2, 0, 1]))  # the new vertex 0 was vertex 2
    >>> new.in_edge_start.tolist(), new.source.tolist()
    ([0, 2, 3, 3], [1, 2, 0])
    """
    new_id = np.empty(len(original_id), dtype=np.int32)
    new_id[original_id] = np.arange(len(original_id), dtype=np.int32)
    start = create("start", "int64", (len(original_id) + 1,))
    start[0] = 0
    np.cumsum(np.diff(csc.in_edge_start)[original_id], out=start[1:])
    source, bounds = create("value", "int32", csc.source.shape), vertex_ranges(start)

    def move(part: int) -> None:
        old = original_id[bounds[part] : bounds[part + 1]]
        source[start[bounds[part]] : start[bounds[part + 1]]] = new_id[csc.source[positions(csc.in_edge_start, old)]]

    parallel_for(move, len(bounds) - 1)
    return Csc(start, source)


def degrees(csc: Csc) -> tuple[np.ndarray, np.ndarray]:
    """In-degree and out-degree, int64 [V]."""
    return np.diff(csc.in_edge_start), np.bincount(csc.source, minlength=len(csc.in_edge_start) - 1)


def statistics(csc: Csc) -> dict[str, int]:
    """Counts for the manifest: repeated edges (beyond the first), self-loops, vertices without an edge to another."""
    bounds, linked = vertex_ranges(csc.in_edge_start), np.zeros(len(csc.in_edge_start) - 1, dtype=np.bool_)
    counts = np.zeros((len(bounds) - 1, 2), dtype=np.int64)

    def count(part: int) -> None:
        keys = _keys(*csc, *bounds[part : part + 2])
        keys.sort()
        source, destination = keys & MOST, (keys >> BITS) + bounds[part]
        others = source != destination
        linked[source[others]] = linked[destination[others]] = True  # threads only ever write True
        counts[part] = np.count_nonzero(keys[1:] == keys[:-1]), len(keys) - np.count_nonzero(others)

    parallel_for(count, len(counts))
    duplicates, loops = counts.sum(axis=0)
    return {
        "duplicate_edges": int(duplicates),
        "self_loops": int(loops),
        "isolated_vertices": int(len(linked) - linked.sum()),
        "max_in_degree": int(np.diff(csc.in_edge_start).max()),
    }


def _keys(in_edge_start: np.ndarray, source: np.ndarray, first: int, end: int) -> np.ndarray:
    """int64: of every in-edge of a range of vertices the destination, counted from the first, above its source: in
    order they are the lists, each with ascending sources."""
    destination = np.repeat(np.arange(end - first) << BITS, np.diff(in_edge_start[first : end + 1]))
    return destination | source[in_edge_start[first] : in_edge_start[end]]


BLOCKS = 8  # of about equally many edges, per thread
LOOKS = 1000  # edges that are enough to tell a graph of which most edges go one way
BITS, MOST = 32, (1 << 32) - 1  # of a key that a source takes


def share_both_ways(csc: Csc) -> float:
    """Of ``LOOKS`` random edges between different vertices about the share whose reverse is there, too.

    >>> share_both_ways(Csc(np.array([0, 1, 2]), np.int32([1, 0])))  # 1->0, 0->1
    1.0
    >>> share_both_ways(Csc(np.array([0, 1, 1]), np.int32([1])))  # 1->0
    0.0
    """
    edges = np.random.default_rng(0).integers(0, len(csc.source), LOOKS)
    destinations = np.searchsorted(csc.in_edge_start, edges, side="right") - 1
    found = [
        destination in csc.source[csc.in_edge_start[source] : csc.in_edge_start[source + 1]]
        for source, destination in zip(csc.source[edges], destinations, strict=True)
        if source != destination
    ]
    return float(np.mean(found)) if found else 1.0


BLOCK = 1 << 22  # edges looked at in one step


def without_loop(source: np.ndarray, destination: np.ndarray, num_vertices: int) -> np.ndarray:
    """The vertices that have no self-loop, ascending, of the type of ``source``.

    >>> without_loop(np.int32([0, 1, 2]), np.int32([0, 2, 1]), 3).tolist()
    [1, 2]
    """
    lacking = np.ones(num_vertices, dtype=bool)
    for lo in range(0, len(source), BLOCK):
        part = source[lo : lo + BLOCK]
        lacking[part[part == destination[lo : lo + BLOCK]]] = False
    return np.flatnonzero(lacking).astype(source.dtype)


def coalesce(
    in_edge_start: np.ndarray, source: np.ndarray, origin: np.ndarray | None = None, create: Create = in_memory
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In-edge lists with ascending sources, each once.

    Args:
        in_edge_start, source: the lists; the sources are sorted where they are.
        origin: integers [E] beside the sources, brought into their order; None: there are none.
        create: makes the new lists, "start" and "value".

    Returns:
        the new lists, int64 [V + 1] and int32 [A], and bool [E]: whether a sorted source differs from the one before.

    >>> origin = np.int32([0, 1, 2])
    >>> [array.tolist() for array in (*coalesce(np.array([0, 3]), np.int32([2, 0, 2]), origin), origin)]
    [[0, 2], [0, 2], [True, True, False], [1, 0, 2]]
    """
    first = np.empty(len(source), dtype=np.bool_)
    bounds, kept = vertex_ranges(in_edge_start), np.zeros(len(in_edge_start) - 1, dtype=np.int64)

    def sort(part: int) -> None:
        vertices = slice(*bounds[part : part + 2])
        own = slice(*in_edge_start[bounds[part : part + 2]])
        keys = _keys(in_edge_start, source, vertices.start, vertices.stop)
        if origin is None:
            keys.sort()
        else:
            order = np.argsort(keys, kind="stable")  # equal ones in the input's order
            keys, origin[own] = keys[order], origin[own][order]
        source[own] = keys & MOST
        first[own][:1], first[own][1:] = True, keys[1:] != keys[:-1]
        kept[vertices] = np.bincount(keys[first[own]] >> BITS, minlength=vertices.stop - vertices.start)

    parallel_for(sort, len(bounds) - 1)
    start = create("start", "int64", in_edge_start.shape)
    start[0] = 0
    np.cumsum(kept, out=start[1:])
    merged = create("value", "int32", (int(start[-1]),))

    def compact(part: int) -> None:
        old, new = (ends[bounds[part : part + 2]] for ends in (in_edge_start, start))
        merged[new[0] : new[1]] = source[old[0] : old[1]][first[old[0] : old[1]]]

    parallel_for(compact, len(bounds) - 1)
    return start, merged, first


def vertex_ranges(in_edge_start: np.ndarray) -> np.ndarray:
    """First vertices of ``even_blocks``, some for each thread."""
    return even_blocks(in_edge_start, BLOCKS * num_threads())
