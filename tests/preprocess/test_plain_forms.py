"""Small graphs compile nothing: NumPy forms of the kernels of preprocessing give the same bits."""

import numpy as np
import pytest

from hongtu.graph import neighbour_sets
from hongtu.preprocess import bucket_sort, csc, graph_models, partition, reorganize
from hongtu.preprocess import order as orders
from hongtu.preprocess import partition as partitions_
from hongtu.preprocess.order import clusters
from tests.plain_forms import assert_each_same, assert_same

GRAPHS = [(1, 0), (1, 3), (7, 0), (40, 200), (300, 900), (70_000, 3000)]  # vertices and edges; the last in two blocks


def csc_of(vertices, edges, seed=0):
    rng = np.random.default_rng(seed)
    destination = np.sort(rng.integers(0, vertices, edges))
    start = np.zeros(vertices + 1, dtype=np.int64)
    np.cumsum(np.bincount(destination, minlength=vertices), out=start[1:])
    return start, rng.integers(0, vertices, edges).astype(np.int32)


@pytest.fixture(params=GRAPHS, ids=str)
def graph(request):
    return csc_of(*request.param)


def bounds_of(length, parts=3):
    return np.linspace(0, length, parts + 1).astype(np.int64)


def test_edges_are_sorted_and_read_the_other_way(graph):
    start, source = graph
    v = len(start) - 1
    destination = np.repeat(np.arange(v, dtype=np.int32), np.diff(start))
    bounds, buckets = bounds_of(len(source)), (v >> bucket_sort.BITS) + 1
    counts = np.zeros((3, buckets), np.int64)
    bucket_sort._count(source, bounds, counts)
    ends = np.cumsum(counts.T).reshape(counts.T.shape)
    at = np.ascontiguousarray((ends - counts.T).T)
    local, values = np.zeros(len(source), np.uint16), np.zeros(len(source), np.int32)
    assert_each_same(bucket_sort._scatter, 3, source, destination, bounds, at, local, values)
    bucket_sort._scatter.plain(source, destination, bounds, at, local, values)
    firsts = np.concatenate([[0], ends[:, -1]]).astype(np.int64)
    out = np.zeros(v + 1, np.int64), np.zeros(len(source), np.int32)
    assert_each_same(bucket_sort._place, buckets, firsts, local, values, *out)


def test_neighbours_without_direction(graph):
    start, source = graph
    both = (start, source, *bucket_sort.transpose(start, source), bounds_of(len(start) - 1))
    found, count = np.zeros(len(start), np.int64), np.zeros(len(start) - 1, np.int64)
    count = assert_each_same(bucket_sort._merge, 3, *both, found, np.empty(0, np.int32), count)
    np.cumsum(count, out=found[1:])
    assert_each_same(bucket_sort._merge, 3, *both, found, np.zeros(found[-1], np.int32), count)


@pytest.mark.parametrize("origin", [False, True])
def test_lists_are_coalesced(graph, origin):
    start, source = graph
    destination = np.repeat(np.arange(len(start) - 1), np.diff(start))
    order = np.lexsort((source, destination))
    pairs = np.stack([destination, source])[:, order]
    given = source.copy(), np.arange(len(source), dtype=np.int32) if origin else None
    found, merged, first = csc.coalesce(start, *given)
    np.testing.assert_array_equal(first, np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0))[: len(source)])
    np.testing.assert_array_equal([np.repeat(np.arange(len(start) - 1), np.diff(found)), merged], pairs[:, first])
    np.testing.assert_array_equal(given[0], pairs[1])
    if origin:
        np.testing.assert_array_equal(given[1], order)


def test_edges_are_counted(graph):
    start, source = graph
    v = len(start) - 1
    destination = np.repeat(np.arange(v), np.diff(start))
    pairs, others = np.stack([destination, source]), source != destination
    assert csc.statistics(csc.Csc(start, source)) == {
        "duplicate_edges": len(source) - np.unique(pairs, axis=1).shape[1], "self_loops": int((~others).sum()),
        "isolated_vertices": v - len(np.unique(pairs[:, others])), "max_in_degree": int(np.diff(start).max()),
    }  # fmt: skip
    part = np.random.default_rng(2).integers(0, 3, v).astype(np.int32)
    assert partitions_._edge_cut(start, source, part) == (part[source] != part.repeat(np.diff(start))).sum()


@pytest.mark.parametrize(("partitions", "chunks"), [(1, 1), (1, 5), (3, 4)])
def test_chunks(graph, partitions, chunks):
    start, source = graph
    v = len(start) - 1
    chunk_start = np.linspace(0, v, partitions * chunks + 1).astype(np.int64)
    edge_start, words = start[chunk_start], (v + 63) // 64
    count = partitions * chunks
    sizes = assert_each_same(neighbour_sets._set_sizes, count, edge_start, source, words, np.zeros(count, np.int64))
    at = np.concatenate([[0], np.cumsum(sizes)])
    sources, local = np.zeros(at[-1], np.int32), np.zeros(len(source), np.int32)
    assert_each_same(neighbour_sets._fill, count, edge_start, source, words, at, sources, local)
    neighbour_sets._fill.plain(edge_start, source, words, at, sources, local)
    for edges in (len(local), len(local) // 2):
        ends = np.minimum(edge_start, edges)
        np.testing.assert_array_equal(neighbour_sets.globalise(ends, at, sources, local[:edges]), source[:edges])
    larger_start, larger = neighbour_sets.merge_sets(at, sources, partitions, 3, v)
    groups = np.append(np.arange(partitions)[:, None] * chunks + np.arange(0, chunks, 3), partitions * chunks)
    ends = edge_start[groups]
    again = neighbour_sets.relabel(edge_start, ends, at, sources, larger_start, larger, local)
    np.testing.assert_array_equal(neighbour_sets.globalise(ends, larger_start, larger, again), source)
    cuts = reorganize.block_cuts(at, sources, v)
    schedule = np.stack([np.random.default_rng(i).permutation(chunks) for i in range(partitions)]).astype(np.int32)
    rows = schedule + np.arange(partitions)[:, None] * chunks
    for left, right in ((rows, rows), (rows[-1:], rows[: max(1, partitions - 1)]), (rows[:1], rows)):
        sets = [[{*np.concatenate([sources[at[c] : at[c + 1]] for c in column])} for column in side.T]
                for side in (left, right)]  # fmt: skip
        expected = [[len(one & other) for other in sets[1]] for one in sets[0]]
        assert reorganize.count_overlap(cuts, sources, left, right).tolist() == expected


@pytest.mark.parametrize("steps", [1, 6])
def test_rows_that_an_order_loads(graph, steps):
    start, source = graph
    v, m = len(start) - 1, 2
    part = np.random.default_rng(4).integers(0, m, v).astype(np.int32)
    order = np.argsort(part, kind="stable").astype(np.int32)
    ends = np.linspace(0, v, m * steps + 1).astype(np.int64)
    assert_same(orders._gap_histogram, order, ends, part, m, start, source)


def test_clusters_and_streams(graph):
    start, source = graph
    v = len(start) - 1
    if v > 1000:
        return  # loops of Python
    part, size = np.zeros(v, np.int32), np.ones(v, np.int64)
    for weight in (np.empty(0, np.int32), np.arange(len(source), dtype=np.int32) % 3 + 1):
        label, filled = np.arange(v, dtype=np.int32), size.copy()
        args = start, source, weight, part, size, 4, label, filled, np.zeros(v, np.int32)
        assert_same(clusters._propagate, *args)
        clusters._propagate.plain(*args)
        kept, label = np.unique(label, return_inverse=True)
        members, member = np.append(0, np.cumsum(np.bincount(label))), np.argsort(label, kind="stable")
        out = np.zeros(len(kept) + 1, np.int64), *np.zeros((2, len(source)), np.int32)
        graph_ = start, source, weight, label.astype(np.int32), members, member.astype(np.int32)
        assert_same(clusters._contract, *graph_, np.full(len(kept), -1), *out)
    mask, own = np.arange(v) % 2 == 0, (np.arange(v) % 2).astype(np.uint8)
    load = np.stack([np.bincount(own, w, minlength=2) for w in (np.ones(v), np.diff(start) + 1, mask)], axis=1)
    share = np.maximum(load.sum(axis=0), 1) / 2
    back = bucket_sort.transpose(start, source)
    assert_same(partition._stream, start, source, *back, mask, own, load.astype(float), share)
    assert_same(graph_models._spread, np.arange(v), np.full(v, v))


def test_gaps(graph):
    start, source = graph
    assert_same(
        neighbour_sets._count_gaps, source, np.full(len(start) - 1, -1, np.int64), np.zeros(len(source), np.int64)
    )
