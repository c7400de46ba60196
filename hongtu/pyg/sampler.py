"""torch_geometric's sampler interface on an artifact, without pyg-lib or torch-sparse."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.vertex_types import Relation, VertexTypes
from hongtu.nn.dropout import dropout_key
from hongtu.pyg.draw import ALL, Drawn, Fanout, draw, sampled_graph

Fanouts: TypeAlias = Sequence[int] | Mapping[Relation, Sequence[int]]


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
        """Is refused.

        Raises:
            InputError: always.
        """
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
