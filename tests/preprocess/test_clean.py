from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.errors import InputError
from hongtu.preprocess.csc import build_csc, coalesce, without_loop
from hongtu.preprocess.edge_rows import EdgeOrder, copy_edge_rows, normalize_rows, sort_origins


@st.composite
def weighted_graphs(draw):
    num_vertices = draw(st.integers(1, 8))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, num_vertices - 1)] * 2), max_size=30))
    weights = draw(st.lists(st.integers(-4, 4), min_size=len(pairs), max_size=len(pairs)))
    return num_vertices, np.array(pairs, dtype=np.int64).reshape(-1, 2).T, np.array(weights, dtype=np.float32)


def dense(source, destination, weight, num_vertices):
    matrix = np.zeros((num_vertices, num_vertices))
    np.add.at(matrix, (source, destination), 1 if weight is None else weight)
    return matrix


def weights_of(lists, first, origin, weight):
    """Of the edges of lists in their own order, by the origins that were sorted beside them."""
    start = lists[0]
    group_start = None if first is None else np.append(np.flatnonzero(first), len(first))
    order = EdgeOrder(origin, group_start, start, start, np.arange(len(start) - 1))
    found = np.empty(int(start[-1]), np.float32)
    copy_edge_rows("edge_weight", weight, order, found)
    return found


@given(weighted_graphs())
def test_undirected_keeps_each_pair_once_and_sums_weights(graph):
    num_vertices, edges, weight = graph
    matrix = dense(*edges, weight, num_vertices)
    lists = build_csc(*edges, num_vertices, undirected=True)
    origin = sort_origins(*edges, num_vertices, undirected=True)
    alone = coalesce(lists.in_edge_start, lists.source.copy())
    start, source, first = coalesce(*lists, origin)
    assert np.array_equal(alone[1], source) and np.array_equal(alone[2], first)
    destination = np.repeat(np.arange(num_vertices), np.diff(start))
    key = destination.astype(int) * num_vertices + source
    assert (np.diff(key) > 0).all()  # sorted, each pair once
    summed = weights_of((start, source), first, origin, weight)
    assert np.array_equal(dense(source, destination, summed, num_vertices), matrix + matrix.T)
    assert set(key.tolist()) == {d * num_vertices + s for a, b in edges.T.tolist() for s, d in ((a, b), (b, a))}


@given(weighted_graphs())
def test_self_loops_are_added_where_there_is_none(graph):
    num_vertices, edges, weight = graph
    plain, loops = build_csc(*edges, num_vertices), without_loop(*edges, num_vertices)
    had = set(edges[0][edges[0] == edges[1]].tolist())
    assert loops.tolist() == [v for v in range(num_vertices) if v not in had]
    lists = build_csc(*edges, num_vertices, loops=loops)
    old = weights_of(plain, None, sort_origins(*edges, num_vertices), weight)
    new = weights_of(lists, None, sort_origins(*edges, num_vertices, loops=loops), weight)
    for v in range(num_vertices):
        before = slice(*plain.in_edge_start[v : v + 2])
        found = slice(*lists.in_edge_start[v : v + 2])
        assert lists.source[found].tolist() == plain.source[before].tolist() + ([] if v in had else [v])
        assert new[found].tolist() == old[before].tolist() + ([] if v in had else [1])


def test_sums_of_weights_refuse_an_overflow():
    lists, first, origin = (np.array([0, 1]), np.zeros(1, np.int32)), np.array([True, False, False]), np.arange(3)
    with pytest.raises(InputError, match="edge_weight: the sum over duplicate edges overflows float32"):
        weights_of(lists, first[:2], origin[:2], np.full(2, 3e38, dtype=np.float32))
    summed = weights_of(lists, first, origin, np.float32([3e38, 3e38, -3e38]))
    assert summed.tolist() == [np.float32(3e38)]  # only the whole sum counts, in float64


def test_normalize_rows():
    rows = np.array([[0, 0], [2, 6], [0.5, 0.25], [-1, -1]], dtype=np.float32)
    assert normalize_rows(rows).tolist() == [[0, 0], [0.25, 0.75], [0.5, 0.25], [-1, -1]]
    assert normalize_rows(rows).dtype == np.float32
