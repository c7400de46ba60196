from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.errors import InputError
from hongtu.preprocess.clean import clean_edges, coalesce, normalize_rows


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


@given(weighted_graphs())
def test_without_flags_nothing_changes(graph):
    num_vertices, edges, weight = graph
    source, destination, kept = clean_edges(edges, weight, num_vertices, undirected=False, self_loops=False)
    assert np.array_equal(np.stack([source, destination]), edges) and np.array_equal(kept, weight)
    assert source.dtype == destination.dtype == np.int32


@given(weighted_graphs())
def test_undirected_sums_weights(graph):
    num_vertices, edges, weight = graph
    matrix = dense(*edges, weight, num_vertices)
    source, destination, summed = clean_edges(edges, weight, num_vertices, undirected=True, self_loops=False)
    key = destination.astype(int) * num_vertices + source
    assert (np.diff(key) > 0).all()  # sorted, each pair once
    assert np.array_equal(dense(source, destination, summed, num_vertices), matrix + matrix.T)
    assert set(key.tolist()) == {d * num_vertices + s for a, b in edges.T.tolist() for s, d in ((a, b), (b, a))}


@given(weighted_graphs())
def test_undirected_without_weights_keeps_each_pair_once(graph):
    num_vertices, edges, _ = graph
    matrix = dense(*edges, None, num_vertices)
    source, destination, weight = clean_edges(edges, None, num_vertices, undirected=True, self_loops=False)
    assert weight is None
    assert np.array_equal(dense(source, destination, None, num_vertices), (matrix + matrix.T) > 0)


@given(weighted_graphs())
def test_self_loops_are_added_where_there_is_none(graph):
    num_vertices, edges, weight = graph
    source, destination, new = clean_edges(edges, weight, num_vertices, undirected=False, self_loops=True)
    count = edges.shape[1]
    assert np.array_equal(np.stack([source, destination])[:, :count], edges)
    had = set(edges[0][edges[0] == edges[1]].tolist())
    assert source[count:].tolist() == destination[count:].tolist() == [v for v in range(num_vertices) if v not in had]
    assert (new[count:] == 1).all()


def test_coalesce_refuses_an_overflow():
    with pytest.raises(InputError, match="overflows float32"):
        coalesce(np.array([0, 0]), np.array([0, 0]), np.full(2, 3e38, dtype=np.float32), 1)


def test_ids_near_the_limit_do_not_overflow():
    largest = 2**31 - 2
    source, destination, _ = clean_edges(
        np.array([[largest], [largest - 1]]), None, largest + 1, undirected=True, self_loops=False
    )
    assert source.tolist() == [largest, largest - 1] and destination.tolist() == [largest - 1, largest]


def test_normalize_rows():
    rows = np.array([[0, 0], [2, 6], [0.5, 0.25], [-1, -1]], dtype=np.float32)
    assert normalize_rows(rows).tolist() == [[0, 0], [0.25, 0.75], [0.5, 0.25], [-1, -1]]
    assert normalize_rows(rows).dtype == np.float32
