from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.errors import InputError
from hongtu.preprocess.clean import add_self_loops, coalesce, normalize_rows
from hongtu.preprocess.csc import build_csc


@st.composite
def weighted_graphs(draw):
    num_vertices = draw(st.integers(1, 8))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, num_vertices - 1)] * 2), max_size=30))
    weights = draw(st.lists(st.integers(-4, 4), min_size=len(pairs), max_size=len(pairs)))
    return num_vertices, np.array(pairs, dtype=np.int64).reshape(-1, 2).T, np.array(weights, dtype=np.float32)


def lists(edges, weight, num_vertices, undirected=False):
    csc = build_csc(*edges, weight, num_vertices, undirected=undirected)
    return csc.in_edge_start, csc.source, csc.weight


def flat(start, source, weight):
    """source, destination and weight of every edge, by destination."""
    return source, np.repeat(np.arange(len(start) - 1), np.diff(start)), weight


def dense(source, destination, weight, num_vertices):
    matrix = np.zeros((num_vertices, num_vertices))
    np.add.at(matrix, (source, destination), 1 if weight is None else weight)
    return matrix


@given(weighted_graphs())
def test_undirected_sums_weights(graph):
    num_vertices, edges, weight = graph
    matrix = dense(*edges, weight, num_vertices)
    source, destination, summed = flat(*coalesce(*lists(edges, weight, num_vertices, undirected=True)))
    key = destination.astype(int) * num_vertices + source
    assert (np.diff(key) > 0).all()  # sorted, each pair once
    assert np.array_equal(dense(source, destination, summed, num_vertices), matrix + matrix.T)
    assert set(key.tolist()) == {d * num_vertices + s for a, b in edges.T.tolist() for s, d in ((a, b), (b, a))}


@given(weighted_graphs())
def test_undirected_without_weights_keeps_each_pair_once(graph):
    num_vertices, edges, _ = graph
    matrix = dense(*edges, None, num_vertices)
    source, destination, weight = flat(*coalesce(*lists(edges, None, num_vertices, undirected=True)))
    assert weight is None
    assert np.array_equal(dense(source, destination, None, num_vertices), (matrix + matrix.T) > 0)


@given(weighted_graphs())
def test_self_loops_are_added_where_there_is_none(graph):
    num_vertices, edges, weight = graph
    given_lists = lists(edges, weight, num_vertices)
    start, source, new = add_self_loops(*given_lists)
    had = set(edges[0][edges[0] == edges[1]].tolist())
    for v in range(num_vertices):
        before = slice(given_lists[0][v], given_lists[0][v + 1])
        found = slice(start[v], start[v + 1])
        assert source[found].tolist() == given_lists[1][before].tolist() + ([] if v in had else [v])
        assert new[found].tolist() == given_lists[2][before].tolist() + ([] if v in had else [1])


def test_coalesce_refuses_an_overflow():
    most = np.full(2, 3e38, dtype=np.float32)
    with pytest.raises(InputError, match="overflows float32"):
        coalesce(np.array([0, 2]), np.zeros(2, np.int32), most)
    summed = coalesce(np.array([0, 3]), np.zeros(3, np.int32), np.float32([3e38, 3e38, -3e38]))[2]
    assert summed.tolist() == [np.float32(3e38)]  # only the whole sum counts, in float64


def test_normalize_rows():
    rows = np.array([[0, 0], [2, 6], [0.5, 0.25], [-1, -1]], dtype=np.float32)
    assert normalize_rows(rows).tolist() == [[0, 0], [0.25, 0.75], [0.5, 0.25], [-1, -1]]
    assert normalize_rows(rows).dtype == np.float32
