"""What the arrays of an artifact must satisfy together, so that nothing that runs on them reads out of bounds.

``artifact`` is an ``Artifact``, whose file imports this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.graph.format import expect


def check_bounds(artifact: Any) -> None:
    """Compare the least and the largest of every index with what it points into: cheap, and enough for memory safety.

    Raises:
        InputError: naming the first array that does not fit the others.
    """
    topology, vertices = artifact.topology, artifact.num_vertices
    _expect_range(artifact, "original_id", artifact.original_id, 0, vertices)
    _expect_range(artifact, "schedule_paper", artifact.schedule_paper, 0, topology.chunks)
    _expect_range(artifact, "sources", topology.sources, 0, vertices)
    _expect_range(artifact, "local_source", topology.local_source, 0, vertices)
    if topology.edge_type is not None:
        _expect_range(artifact, "edge_type", topology.edge_type, 0, artifact.num_edge_types)
    edge_start = np.asarray(topology.in_edge_start)[topology.chunk_start]
    busy = np.flatnonzero(np.diff(edge_start))
    if len(busy):
        largest = np.maximum.reduceat(topology.local_source, edge_start[busy])
        beyond = busy[largest >= topology.num_sources[busy]]
        _expect(artifact, "local_source", not len(beyond), f"less than the chunk's sources in chunk {beyond[:1]}")
    if artifact.sparse_features is not None:
        _expect_range(artifact, "feature_column", artifact.sparse_features.column, 0, artifact.sparse_features.width)
    if artifact.task == "multiclass":
        _expect_range(artifact, "labels", artifact.labels, -1, artifact.num_classes)


def check_indices(artifact: Any) -> None:
    """Read every index and compare it with what it must be.

    Raises:
        InputError: naming the first array that does not fit the others.
    """
    check_bounds(artifact)
    topology, vertices = artifact.topology, artifact.num_vertices
    seen = np.zeros(vertices, dtype=bool)
    seen[artifact.original_id] = True
    _expect(artifact, "original_id", bool(seen.all()), f"each number from 0 to {vertices - 1} once")
    chunks = np.arange(topology.chunks)
    rows = np.sort(np.asarray(artifact.schedule_paper), axis=1)
    _expect(
        artifact, "schedule_paper", bool((rows == chunks).all()), f"each chunk from 0 to {len(chunks) - 1} in a row"
    )
    steps = np.diff(np.asarray(topology.sources).astype(np.int64))
    starts = np.asarray(topology.source_start)[1:-1]
    steps[starts[(starts > 0) & (starts <= len(steps))] - 1] = 1  # from one chunk to the next
    _expect(artifact, "sources", bool(np.all(steps > 0)), "ascending vertices in every chunk")
    if artifact.task == "multiclass":
        for split, mask in artifact.masks.items():
            _expect(artifact, f"{split}_mask", bool(np.all(artifact.labels[mask] >= 0)), "labelled vertices only")


def _expect_range(artifact: Any, name: str, array: np.ndarray, least: int, end: int) -> None:
    for found in (array.min(initial=least), array.max(initial=end - 1)):
        said = f"holds {found}, expected {least} to {end - 1}"
        expect(artifact.path / f"{name}.npy", bool(least <= found < end), said)


def _expect(artifact: Any, name: str, good: bool, expected: str) -> None:
    expect(artifact.path / f"{name}.npy", good, f"expected {expected}")
