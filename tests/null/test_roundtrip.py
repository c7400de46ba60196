"""The artifact is the input: everything read back through the mapping equals what was given, exactly."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hongtu
from hongtu.config import ORDERS
from hongtu.preprocess.kaminpar import kaminpar_installed
from hongtu.preprocess.partition import PARTITIONERS


@st.composite
def graphs(draw):
    """Edges with repetitions and self-loops, and everything that may lie beside them."""
    v = draw(st.integers(1, 30))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, v - 1)] * 2), max_size=80))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    edges = np.array(pairs, dtype=draw(st.sampled_from([np.int32, np.int64]))).reshape(-1, 2).T
    multilabel = draw(st.booleans())
    labels = rng.integers(0, 2, (v, 3)).astype(np.float32) if multilabel else rng.integers(-1, 4, v)
    split = rng.integers(0, 4, v)
    split[0] = 0
    if not multilabel:
        labels[0] = 1
        split[labels < 0] = 3
    return {
        "edges": edges,
        "num_vertices": v,
        "features": rng.standard_normal((v, draw(st.sampled_from([1, 3, 8])))).astype(np.float32),
        "labels": labels,
        "masks": {name: split == k for k, name in enumerate(("train", "val", "test"))},
        "edge_weight": rng.standard_normal(len(pairs)).astype(np.float32) if draw(st.booleans()) else None,
        "edge_features": rng.standard_normal((len(pairs), 3)).astype(np.float32) if draw(st.booleans()) else None,
        "edge_type": rng.integers(0, 5, len(pairs)) if draw(st.booleans()) else None,
    }


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@given(graphs(), st.integers(1, 5), st.integers(1, 4), st.sampled_from(ORDERS))
def test_the_artifact_is_the_input(partitioner, graph, m, n, order):
    if not kaminpar_installed() and "kaminpar" in (partitioner, order):
        pytest.skip("kaminpar is not installed")
    m = min(m, graph["num_vertices"])
    n = min(n, graph["num_vertices"] // m)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"partitions": m, "chunks": n, "partitioner": partitioner, "order": order}
        artifact = hongtu.preprocess_graph(artifact=Path(folder, "out"), **graph, **settings)
        artifact.verify()
        check(artifact, graph)


def check(artifact, graph):
    original = np.asarray(artifact.original_id)
    assert sorted(original.tolist()) == list(range(graph["num_vertices"]))
    back = np.argsort(original)
    assert np.array_equal(artifact.features[back], graph["features"])
    assert np.array_equal(artifact.labels[back], graph["labels"])
    for split, mask in graph["masks"].items():
        assert np.array_equal(artifact.masks[split][back], mask)
    # the in-edges of every vertex, in input order, with what lies beside them
    source, destination = graph["edges"]
    order = np.argsort(destination, kind="stable")
    topology = artifact.topology
    start = np.asarray(topology.in_edge_start)
    found = np.concatenate([np.arange(start[v], start[v + 1]) for v in back]).astype(np.int64)
    assert np.array_equal(np.diff(start)[back], np.bincount(destination, minlength=len(original)))
    assert np.array_equal(original[topology.global_sources()][found], source[order])
    for name in ("edge_weight", "edge_features", "edge_type"):
        if graph[name] is None:
            assert getattr(topology, name) is None
        else:
            assert np.array_equal(np.asarray(getattr(topology, name))[found], graph[name][order]), name
    # every neighbour set is the ascending unique sources of its chunk
    for c in range(topology.partitions * topology.chunks):
        chunk = topology.chunk(c)
        assert chunk.sources.tolist() == np.unique(chunk.sources[chunk.local_source]).tolist()
