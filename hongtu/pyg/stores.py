"""An artifact as torch_geometric's FeatureStore and GraphStore: rows and edges by the vertices' original numbers.

Legend: V vertices, E edges, F features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.pyg.draw import SampledGraph, sampled_graph


class ArtifactFeatures(FeatureStore):
    """``x`` float32 [V, F], where the artifact has features, and ``y``, its labels; read only."""

    def __init__(self, graph: SampledGraph) -> None:
        super().__init__()
        self.graph = graph

    def __reduce__(self) -> tuple[Any, ...]:
        return ArtifactFeatures, (self.graph,)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """What batches get of their vertices."""
        names = ("y",) if self.graph.artifact.learns_features else ("x", "y")
        return [TensorAttr(group_name=None, attr_name=name) for name in names]

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        index = attr.index.numpy() if isinstance(attr.index, Tensor) else attr.index
        rows = self.graph.new_id[slice(None) if index is None else index]
        if attr.attr_name not in {known.attr_name for known in self.get_all_tensor_attrs()}:
            return None
        return (feature_rows if attr.attr_name == "x" else label_rows)(self.graph.artifact, np.atleast_1d(rows))

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        artifact = self.graph.artifact
        if attr.attr_name == "x" and not artifact.learns_features:
            return artifact.num_vertices, artifact.feature_width
        return tuple(artifact.labels.shape) if attr.attr_name == "y" else None

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise _read_only(self.graph.artifact)

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise _read_only(self.graph.artifact)


class ArtifactGraph(GraphStore):
    """The edges by destination, in the sequence of their ids (a batch's ``e_id``); read only. A sampler of hongtu reads
    the artifact instead: only who asks for all edges gets a copy of them, of 8 bytes an edge."""

    def __init__(self, graph: SampledGraph) -> None:
        super().__init__()
        self.graph = graph

    def __reduce__(self) -> tuple[Any, ...]:
        return ArtifactGraph, (self.graph,)

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """One kind of edges, by destination."""
        vertices = self.graph.artifact.num_vertices
        return [EdgeAttr(edge_type=None, layout=EdgeLayout.CSC, size=(vertices, vertices))]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.layout != EdgeLayout.CSC:
            return None
        topology, graph = self.graph.artifact.topology, self.graph
        graph.artifact.check_bounds()
        degree = np.diff(topology.in_edge_start)
        start = np.concatenate([[0], np.cumsum(degree[graph.new_id])])
        at = np.arange(topology.num_edges) + np.repeat(graph.edge_shift, degree)
        source = np.empty(topology.num_edges, dtype=np.int64)
        source[at] = graph.original_id[topology.global_sources()]
        return torch.from_numpy(source), torch.from_numpy(start)

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise _read_only(self.graph.artifact)

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise _read_only(self.graph.artifact)


def feature_store(artifact: Artifact) -> FeatureStore:
    """An artifact's features ``x`` and labels ``y`` for torch_geometric's loaders, by original numbers."""
    return ArtifactFeatures(sampled_graph(artifact))


def graph_store(artifact: Artifact) -> GraphStore:
    """An artifact's edges for torch_geometric's loaders, by original numbers."""
    return ArtifactGraph(sampled_graph(artifact))


def feature_rows(artifact: Artifact, rows: np.ndarray) -> Tensor:
    """float32 [R, F] of the artifact's vertices ``rows``, dense."""
    if artifact.sparse_features is None:
        return torch.from_numpy(np.asarray(artifact.features)[rows])
    start, column, value = artifact.sparse_features.part(rows)
    found = np.zeros((len(rows), artifact.feature_width), dtype=np.float32)
    found[np.repeat(np.arange(len(rows)), np.diff(start)), column] = value
    return torch.from_numpy(found)


def label_rows(artifact: Artifact, rows: np.ndarray) -> Tensor:
    """int64 [R] or float32 [R, C]."""
    return torch.from_numpy(np.asarray(artifact.labels)[rows])


def _read_only(artifact: Artifact) -> InputError:
    return InputError(f"{artifact.path}: an artifact is read only; run `hongtu preprocess` with the new data")
