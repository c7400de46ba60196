from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.preprocess.bucket_sort import BITS, transpose
from hongtu.preprocess.csc import build_csc, degrees, renumber, statistics
from hongtu.preprocess.edge_rows import sort_origins


@st.composite
def edge_lists(draw):
    num_vertices = draw(st.integers(1, 9))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, num_vertices - 1)] * 2), max_size=40))
    edges = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return num_vertices, np.ascontiguousarray(edges[:, 0]), np.ascontiguousarray(edges[:, 1])


def in_edges(csc, v):
    """Sources of the in-edges of v, in order."""
    return csc.source[csc.in_edge_start[v] : csc.in_edge_start[v + 1]].tolist()


@given(edge_lists())
def test_input_order_is_kept_within_a_destination(graph):
    num_vertices, source, destination = graph
    csc, origin = build_csc(source, destination, num_vertices), sort_origins(source, destination, num_vertices)
    assert np.array_equal(csc.source, source[origin])
    for v in range(num_vertices):
        assert in_edges(csc._replace(source=origin), v) == np.flatnonzero(destination == v).tolist()


@given(edge_lists(), st.randoms(use_true_random=False))
def test_renumber_keeps_every_in_edge_list(graph, random):
    num_vertices, source, destination = graph
    csc = build_csc(source, destination, num_vertices)
    original_id = np.array(random.sample(range(num_vertices), num_vertices), dtype=np.int32)
    new = renumber(csc, original_id)
    for v in range(num_vertices):
        assert original_id[in_edges(new, v)].tolist() == in_edges(csc, original_id[v])


@given(edge_lists())
def test_statistics(graph):
    num_vertices, source, destination = graph
    pairs = list(zip(source.tolist(), destination.tolist(), strict=True))
    csc = build_csc(source, destination, num_vertices)
    counts = statistics(csc)
    linked = {v for s, d in pairs if s != d for v in (s, d)}
    assert counts == {
        "duplicate_edges": len(pairs) - len(set(pairs)),
        "self_loops": sum(s == d for s, d in pairs),
        "isolated_vertices": num_vertices - len(linked),
        "max_in_degree": max(sum(d == v for _, d in pairs) for v in range(num_vertices)),
    }
    in_degree, out_degree = degrees(csc)
    assert in_degree.tolist() == [sum(d == v for _, d in pairs) for v in range(num_vertices)]
    assert out_degree.tolist() == [sum(s == v for s, _ in pairs) for v in range(num_vertices)]


@pytest.mark.parametrize("num_vertices", [1, 5])
def test_no_edges(num_vertices):
    none = np.empty(0, dtype=np.int32)
    csc = renumber(build_csc(none, none, num_vertices), np.arange(num_vertices, dtype=np.int32)[::-1].copy())
    assert csc.in_edge_start.tolist() == [0] * (num_vertices + 1) and len(csc.source) == 0
    assert statistics(csc)["isolated_vertices"] == num_vertices


def test_more_vertices_than_a_bucket_holds():
    """Keys on both sides of every bucket's border, more edges than threads."""
    rng = np.random.default_rng(0)
    num_vertices = (3 << BITS) + 5
    borders = np.array([0, 1, (1 << BITS) - 1, 1 << BITS, (2 << BITS) - 1, 2 << BITS, num_vertices - 1])
    source = rng.integers(0, num_vertices, 5000)
    destination = np.where(rng.random(5000) < 0.5, rng.choice(borders, 5000), rng.integers(0, num_vertices, 5000))
    for dtype in (np.int32, np.int64):
        csc = build_csc(source.astype(dtype), destination.astype(dtype), num_vertices)
        order = np.argsort(destination, kind="stable")
        assert np.array_equal(csc.source, source[order])
        assert np.array_equal(sort_origins(source, destination, num_vertices), order)
        assert np.array_equal(np.diff(csc.in_edge_start), np.bincount(destination, minlength=num_vertices))
        start, reader = transpose(csc.in_edge_start, csc.source)
        back = np.lexsort((destination, source))
        assert np.array_equal(reader, destination[back])
        assert np.array_equal(np.diff(start), np.bincount(source, minlength=num_vertices))
