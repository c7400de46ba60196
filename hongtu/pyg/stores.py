"""An artifact by torch_geometric's interfaces: FeatureStore and GraphStore, whose rows and edges have the vertices'
original numbers, and a sampler, without pyg-lib or torch-sparse.

Legend: V vertices, E edges, F features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.vertex_types import Relation, VertexTypes
from hongtu.nn.dropout import dropout_key
from hongtu.pyg.draw import ALL, Drawn, Fanout, SampledGraph, draw, sampled_graph

Fanouts: TypeAlias = Sequence[int] | Mapping[Relation, Sequence[int]]


class _ReadOnly:
    """What both stores have: the graph, which other processes open themselves."""

    def __init__(self, graph: SampledGraph) -> None:
        super().__init__()
        self.graph = graph

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.graph,)

    def refuse(self, *_: Any) -> NoReturn:
        path = self.graph.artifact.path
        raise InputError(f"{path}: an artifact is read only; run `hongtu preprocess` with the new data")


class ArtifactFeatures(_ReadOnly, FeatureStore):
    """``x`` float32 [V, F], where the artifact has features, and ``y``, its labels; read only."""

    _put_tensor = _remove_tensor = _ReadOnly.refuse

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


class ArtifactGraph(_ReadOnly, GraphStore):
    """The edges by destination, in the sequence of their ids (a batch's ``e_id``); read only. A sampler of hongtu reads
    the artifact instead: only who asks for all edges gets a copy of them, of 8 bytes an edge."""

    _put_edge_index = _remove_edge_index = _ReadOnly.refuse

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


class NeighborSampler(BaseSampler):
    """Samples in-edges hop by hop, for ``torch_geometric.loader.NodeLoader``; an approximation of the whole graph.

    Vertices have their original numbers, edges their ids in ``graph_store``. A batch depends on the seed and on the
    vertices that it is for: any number of workers gives the same batches, and a loader that does not shuffle gives the
    same ones in every epoch (``NeighborLoader`` does not).

    Args:
        fanouts: of every hop, the in-edges that a vertex gets (of each relation, where these have names); -1: all. A
            dictionary has those of every relation.
        replace: draw with replacement.
        seed: of the random numbers.

    Raises:
        InputError: for fan-outs that are none, or an artifact that is damaged.
    """

    def __init__(self, artifact: Artifact, fanouts: Fanouts, *, replace: bool = False, seed: int = 0) -> None:
        artifact.check_bounds()
        self.graph = sampled_graph(artifact)
        self.fanouts, self.replace, self.seed = check_fanouts(fanouts, artifact.types), replace, seed

    def sample(self, seeds: np.ndarray, key: int) -> Drawn:
        """The neighbourhood of vertices (int64 [B], original numbers) under a key."""
        return draw(self.graph, self.graph.new_id[seeds], self.fanouts, key, self.replace)

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """As torch_geometric's loaders call it.

        Raises:
            InputError: for times of the seeds.
        """
        if inputs.time is not None:
            raise InputError("hongtu.pyg.NeighborSampler: an artifact has no times; leave input_time away")
        seeds = inputs.node.numpy()
        digest = hashlib.blake2b(seeds.astype("<i8").tobytes(), digest_size=8).digest()
        drawn = self.sample(seeds, dropout_key(self.seed, int.from_bytes(digest, "little")))
        return SamplerOutput(
            node=torch.from_numpy(self.original(drawn)), row=torch.from_numpy(drawn.source),
            col=torch.from_numpy(drawn.destination), edge=torch.from_numpy(self.edge_ids(drawn)),
            num_sampled_nodes=drawn.vertices_per_hop, num_sampled_edges=drawn.edges_per_hop,
            metadata=(inputs.input_id, inputs.time),
        )  # fmt: skip

    def sample_from_edges(self, inputs: Any, neg_sampling: Any = None) -> SamplerOutput:
        """Is refused."""
        raise InputError(
            "hongtu.pyg.NeighborSampler: it samples for vertices; for links there is hongtu.LinkLoss, exact"
        )

    def original(self, drawn: Drawn) -> np.ndarray:
        """int64 [N], the original numbers of a batch's vertices."""
        return self.graph.original_id[drawn.vertices].astype(np.int64)

    def edge_ids(self, drawn: Drawn) -> np.ndarray:
        """int64 [D], a batch's edges by their place in ``graph_store``: the same for every partitioning."""
        return drawn.edge + self.graph.edge_shift[drawn.vertices[drawn.destination]]


def check_fanouts(fanouts: Fanouts, types: VertexTypes | None) -> list[Fanout]:
    """Whole numbers of every hop.

    Raises:
        InputError: naming the first that is none, or relations that are not those of the graph.
    """
    if isinstance(fanouts, Mapping):
        relations = () if types is None else types.relations
        wrong = sorted(map(str, {*fanouts} ^ {*relations}))
        if wrong:
            raise InputError(
                f"fanouts: by relation, and {wrong[0]} is not one of both; the graph has {list(relations)}, each of "
                "which needs as many numbers as the model has layers"
            )
        by_relation = [check_fanouts(fanouts[relation], None) for relation in relations]
        if len({*map(len, by_relation)}) > 1:
            hops = {relation: len(fanouts[relation]) for relation in relations}
            raise InputError(f"fanouts: of {hops} layers, expected as many for every relation; 0 draws no in-edge")
        return [*zip(*by_relation, strict=True)]
    for hop, fanout in enumerate(fanouts, 1):
        if not isinstance(fanout, (int, np.integer)) or fanout < ALL:
            raise InputError(f"fanouts: {fanout!r} for hop {hop}, expected a number from 0, or -1 for all in-edges")
    if not len(fanouts):
        raise InputError("fanouts: none, expected one for every layer of the model, such as [15, 10]")
    return [int(fanout) for fanout in fanouts]
