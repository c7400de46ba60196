"""The artifact is the input: everything read back through the mapping equals what was given, exactly."""

from __future__ import annotations

import tempfile
from pathlib import Path

import networkx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import hongtu
from hongtu.config import ORDERS
from hongtu.preprocess.partition import PARTITIONERS
from hongtu.preprocess.parts import kaminpar_installed


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


@pytest.mark.long
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


@pytest.mark.long
@given(graphs(), *[st.booleans()] * 4, st.sampled_from(list(PARTITIONERS)))
def test_the_flags_change_what_they_say(graph, undirected, self_loops, normalize, sparse, partitioner):
    if partitioner == "kaminpar" and not kaminpar_installed():
        partitioner = "streaming"
    graph |= {"edge_features": None, "edge_type": None}  # see tests/preprocess/test_edge_rows.py
    source, destination = graph["edges"].tolist()
    weight = [1.0] * len(source) if graph["edge_weight"] is None else graph["edge_weight"].tolist()
    expected = list(zip(source, destination, weight, strict=True))
    if undirected:  # both ways, each pair once, weights summed in the order of the input
        sums = {}
        for s, d, w in expected + [(d, s, w) for s, d, w in expected]:
            sums[s, d] = sums.get((s, d), 0.0) + w
        expected = [(s, d, float(np.float32(w))) for (s, d), w in sums.items()]
    if self_loops:
        have = {s for s, d, _ in expected if s == d}
        expected += [(v, v, 1.0) for v in range(graph["num_vertices"]) if v not in have]
    dense = graph["features"]
    settings = {
        "undirected": undirected, "self_loops": self_loops, "normalize_features": normalize, "partitioner": partitioner,
        "features": scipy.sparse.csc_array(dense) if sparse else dense, "partitions": min(2, graph["num_vertices"]),
        "edge_features": None, "edge_type": None,  # edges that flags add would have none
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        artifact = hongtu.preprocess_graph(artifact=Path(folder, "out"), chunks=1, **graph | settings)
        artifact.verify()
        original, topology = np.asarray(artifact.original_id), artifact.topology
        ends = original[topology.global_sources()], np.repeat(original, np.diff(topology.in_edge_start))
        found = [end.tolist() for end in ends]
        if graph["edge_weight"] is None:
            assert topology.edge_weight is None
            assert sorted(zip(*found)) == sorted((s, d) for s, d, _ in expected)
        else:
            assert sorted(zip(*found, topology.edge_weight.tolist())) == sorted(expected)
        if normalize:
            dense = np.stack([row / max(1, row.sum()) for row in dense])
        assert np.allclose(artifact.features[np.argsort(original)], dense, rtol=1e-6, atol=0)


names = st.text(max_size=3) | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9)


@pytest.mark.long
@given(st.lists(st.tuples(names, names), min_size=1, max_size=30, unique_by=str), st.booleans(), st.booleans())
def test_a_networkx_graph_is_what_comes_out(pairs, directed, multiple):
    kinds = {
        (0, 0): networkx.Graph,
        (1, 0): networkx.DiGraph,
        (0, 1): networkx.MultiGraph,
        (1, 1): networkx.MultiDiGraph,
    }
    graph = kinds[directed, multiple]([(str(a), str(b)) if str in map(type, (a, b)) else (a, b) for a, b in pairs])
    texts = [str(node) for node in graph]
    graph = networkx.relabel_nodes(graph, dict(zip(graph, texts))) if str in map(type, graph) else graph
    expected = list(graph.edges())
    expected += [] if directed else [(b, a) for a, b in expected if a != b]
    synthetic = {"features": "degree", "labels": "random:2", "random_split": (0.5, 0.2, 0.3)}
    with tempfile.TemporaryDirectory() as folder:
        artifact = hongtu.preprocess_graph(
            data=graph, artifact=Path(folder, "out"), partitions=1, chunks=1, **synthetic
        )
        original, topology = np.asarray(artifact.original_id), artifact.topology
        ids = range(len(original)) if artifact.vertex_ids is None else artifact.vertex_ids
        ends = original[topology.global_sources()], np.repeat(original, np.diff(topology.in_edge_start))
        found = [(ids[s], ids[d]) for s, d in zip(*(end.tolist() for end in ends))]
        assert list(ids) == list(graph)
        assert sorted(found, key=str) == sorted(expected, key=str)
