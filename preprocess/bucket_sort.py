"""A stable counting sort of edges by one end, in parallel, through buckets that fit the cache; the graph read the
other way, and made undirected: what partitioners and orders look at.

Scattering edges straight to their place misses the cache once per edge. So edges go first to the bucket of their key's
high bits, side by side and in input order, then inside each bucket to their place.

Legend: V vertices, E edges, T threads, B buckets of 2 ** BITS keys.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hongtu.compiled import compiled
from hongtu.files import Create, in_memory
from hongtu.parallel import parallel_for
from hongtu.threads import num_threads

BLOCK = 1 << 20  # keys counted at a time
BITS = 16  # of the key inside a bucket: what is left fits uint16, and 2 ** 16 counters fit the L2 cache


def group_by_key(
    pairs: list[tuple[np.ndarray, np.ndarray]], num_vertices: int, create: Create, dtype: str = "int32"
) -> tuple[np.ndarray, np.ndarray]:
    """The values of each key, in input order.

    Args:
        pairs: arrays of (keys, values), integers of one length, one list after the other.
        num_vertices: V; keys are from 0 to V - 1.
        create: makes the arrays "start" and "value".
        dtype: of the values that are returned.

    Returns:
        start int64 [V + 1] and values. Takes 6 bytes per edge beside them.

    >>> from hongtu.files import in_memory
    >>> group_by_key([(np.array([1, 0, 1]), np.array([7, 8, 9]))], 2, in_memory)
    (array([0, 1, 3]), array([8, 7, 9], dtype=int32))
    """
    threads, buckets = num_threads(), (num_vertices >> BITS) + 1
    bounds = [np.linspace(0, len(keys), threads + 1).astype(np.int64) for keys, _ in pairs]
    counts = np.zeros((len(pairs) * threads, buckets), dtype=np.int64)
    for k, (keys, _) in enumerate(pairs):
        _count(keys, bounds[k], counts[k * threads : (k + 1) * threads])
    total = int(counts.sum())
    ends = np.cumsum(counts.T).reshape(counts.T.shape)  # bucket by bucket, thread by thread
    at = np.ascontiguousarray((ends - counts.T).T)
    local, values = np.empty(total, dtype=np.uint16), np.empty(total, dtype=dtype)
    for k, (keys, found) in enumerate(pairs):
        both = (np.ascontiguousarray(array) for array in (keys, found))  # kernels are compiled for one layout
        _scatter.each(threads, *both, bounds[k], at[k * threads : (k + 1) * threads], local, values)
    start = create("start", "int64", (num_vertices + 1,))
    sorted_value = create("value", dtype, (total,))
    start[-1] = total
    _place.each(buckets, np.concatenate([[0], ends[:, -1]]).astype(np.int64), local, values, start, sorted_value)
    return start, sorted_value


def _count(keys: np.ndarray, bounds: np.ndarray, counts: np.ndarray) -> None:
    """Keys of each bucket in each thread's part, to ``counts`` int64 [T, B]."""

    def count(t: int) -> None:
        for lo in range(bounds[t], bounds[t + 1], BLOCK):
            bucket = keys[lo : min(lo + BLOCK, bounds[t + 1])] >> BITS
            counts[t] += np.bincount(bucket, minlength=counts.shape[1])

    parallel_for(count, len(counts))


def _plain_scatter(keys, values, bounds, at, local, bucketed):
    for t, (lo, hi) in enumerate(pairwise(bounds)):
        bucket = keys[lo:hi] >> BITS
        order, count = np.argsort(bucket, kind="stable"), np.bincount(bucket, minlength=at.shape[1])
        place = np.repeat(at[t] - np.cumsum(count) + count, count) + np.arange(hi - lo)
        local[place] = (keys[lo:hi] & ((1 << BITS) - 1))[order]
        bucketed[place] = values[lo:hi][order]


@compiled(plain=_plain_scatter)
def _scatter(t, keys, values, bounds, at, local, bucketed):
    """To the buckets; ``at`` int64 [T, B] is where each thread writes in each."""
    mask, own = (1 << BITS) - 1, np.empty(at.shape[1], dtype=np.int64)
    for bucket in range(len(own)):
        own[bucket] = at[t, bucket]
    for e in range(bounds[t], bounds[t + 1]):
        bucket = keys[e] >> BITS
        k = own[bucket]
        own[bucket] = k + 1
        local[k] = keys[e] & mask
        bucketed[k] = values[e]


def _plain_place(bucket_start, local, bucketed, start, value):
    for b, (lo, hi) in enumerate(pairwise(bucket_start)):
        own = start[:-1][b << BITS : (b + 1) << BITS]
        count = np.bincount(local[lo:hi], minlength=len(own))
        own[:] = lo + np.cumsum(count)[: len(own)] - count[: len(own)]
        value[lo:hi] = bucketed[lo:hi][np.argsort(local[lo:hi], kind="stable")]


@compiled(plain=_plain_place)
def _place(b, bucket_start, local, bucketed, start, value):
    """Of a bucket, where each key's values begin, and they."""
    first, last = b << BITS, min((b + 1) << BITS, len(start) - 1)
    at = np.empty((1 << BITS) + 1, dtype=np.int64)
    for v in range(len(at)):
        at[v] = 0
    for k in range(bucket_start[b], bucket_start[b + 1]):
        at[local[k] + 1] += 1
    at[0] = bucket_start[b]
    for v in range(last - first):
        at[v + 1] += at[v]
        start[first + v] = at[v]
    for k in range(bucket_start[b], bucket_start[b + 1]):
        place = at[local[k]]
        at[local[k]] = place + 1
        value[place] = bucketed[k]


def transpose(in_edge_start: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Who reads every vertex: starts int64 [V + 1] and destinations int32 [E], ascending. Takes 14 bytes per edge.

    >>> start, reader = transpose(np.array([0, 2, 3, 4]), np.int32([0, 1, 0, 0]))
    >>> start.tolist(), reader.tolist()  # 0->0, 1->0, 0->1, 0->2
    ([0, 3, 4, 4], [0, 1, 2, 0])
    """
    num_vertices = len(in_edge_start) - 1
    destination = np.repeat(np.arange(num_vertices, dtype=np.int32), np.diff(in_edge_start))
    return group_by_key([(source, destination)], num_vertices, in_memory)


def symmetric_neighbours(in_edge_start: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Undirected neighbour lists without duplicates and self-loops: starts int64 [V + 1] and neighbours int32 [A].

    >>> start, neighbour = symmetric_neighbours(np.array([0, 2, 3, 4]), np.int32([0, 1, 0, 0]))
    >>> start.tolist(), neighbour.tolist()  # 0->0, 1->0, 0->1, 0->2
    ([0, 2, 3, 4], [1, 2, 0, 0])
    """
    out_start, reader = transpose(in_edge_start, source)
    bounds = np.linspace(0, len(in_edge_start) - 1, num_threads() + 1).astype(np.int64)
    graph = (in_edge_start, source, out_start, reader, bounds)
    start = np.zeros(len(in_edge_start), dtype=np.int64)
    count = np.zeros(len(in_edge_start) - 1, dtype=np.int64)
    _merge.each(len(bounds) - 1, *graph, start, np.empty(0, dtype=np.int32), count)
    np.cumsum(count, out=start[1:])
    neighbour = np.empty(int(start[-1]), dtype=np.int32)
    _merge.each(len(bounds) - 1, *graph, start, neighbour, count)
    return start, neighbour


def _plain_merge(in_edge_start, source, out_start, reader, bounds, start, neighbour, count):
    num_vertices = len(in_edge_start) - 1
    vertex = np.concatenate([np.repeat(np.arange(num_vertices), np.diff(ends)) for ends in (in_edge_start, out_start)])
    other = np.concatenate([source, reader])
    order = np.argsort(vertex, kind="stable")  # the sources of each before its readers
    vertex, other = vertex[order], other[order]
    first = np.sort(np.unique(vertex * num_vertices + other, return_index=True)[1])
    first = first[vertex[first] != other[first]]
    if len(neighbour):
        neighbour[:] = other[first]
    count[:] = np.bincount(vertex[first], minlength=num_vertices)


@compiled(plain=_plain_merge)
def _merge(part, in_edge_start, source, out_start, reader, bounds, start, neighbour, count):
    """How many neighbours every vertex has, to ``count`` int64 [V]; they, to ``neighbour`` where ``start`` says, unless
    that is of length 0."""
    write = len(neighbour) > 0
    seen_by = np.empty(len(count), dtype=np.int32)
    for v in range(len(seen_by)):
        seen_by[v] = -1
    for v in range(bounds[part], bounds[part + 1]):
        seen_by[v] = v
        at = start[v]
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            if seen_by[source[e]] != v:
                seen_by[source[e]] = v
                if write:
                    neighbour[at] = source[e]
                at += 1
        for e in range(out_start[v], out_start[v + 1]):
            if seen_by[reader[e]] != v:
                seen_by[reader[e]] = v
                if write:
                    neighbour[at] = reader[e]
                at += 1
        count[v] = at - start[v]


def even_blocks(in_edge_start: np.ndarray, blocks: int) -> np.ndarray:
    """First vertex of each of some ranges with about as many edges, then V; int64 [blocks + 1].

    >>> even_blocks(np.array([0, 6, 6, 7, 8]), 2).tolist()
    [0, 1, 4]
    """
    num_vertices = len(in_edge_start) - 1
    inner = np.searchsorted(in_edge_start, np.linspace(0, in_edge_start[-1], blocks + 1)[1:-1])
    return np.concatenate([[0], np.minimum(inner, num_vertices), [num_vertices]]).astype(np.int64)
