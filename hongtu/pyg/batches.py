"""What a sampled batch is made of: a ``Data``, or a ``HeteroData`` of a graph with named types.

Legend: N vertices, F features of the batch.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from hongtu.pyg.draw import Drawn
from hongtu.pyg.sampler import NeighborSampler
from hongtu.pyg.stores import label_rows

Batch: TypeAlias = Data | HeteroData


def batch_of(sampler: NeighborSampler, drawn: Drawn, x: Tensor | None) -> Batch:
    """What torch_geometric's models take.

    Args:
        x: float32 [N, F] of the batch's vertices, or None where features are learned.
    """
    artifact, size = sampler.graph.artifact, drawn.vertices_per_hop[0]
    if artifact.types is not None:
        return _by_type(sampler, drawn, x)
    n_id = torch.from_numpy(sampler.original(drawn))
    return Data(
        x=x,
        edge_index=torch.from_numpy(np.stack([drawn.source, drawn.destination])),
        n_id=n_id,
        e_id=torch.from_numpy(sampler.edge_ids(drawn)),
        input_id=n_id[:size],
        batch_size=size,
        loss_weight=1.0,
        num_nodes=len(drawn.vertices),
        num_sampled_nodes=drawn.vertices_per_hop,
        num_sampled_edges=drawn.edges_per_hop,
        **_known(sampler, drawn.vertices),
        **_of_edges(sampler, drawn.edge),
    )


def _by_type(sampler: NeighborSampler, drawn: Drawn, x: Tensor | None) -> HeteroData:
    """The vertices of each type and the edges of each relation, in the order in which they were drawn."""
    graph, types = sampler.graph, sampler.graph.artifact.types
    assert types is not None
    original = sampler.original(drawn)
    kind_N = np.searchsorted(types.starts, original, side="right") - 1
    place_N, id_N = np.empty_like(original), original - np.array(types.starts)[kind_N]
    batch = HeteroData(loss_weight=1.0)
    for kind, name in enumerate(types.names):
        mine, store = np.flatnonzero(kind_N == kind), batch[name]
        place_N[mine] = np.arange(len(mine))
        store.num_nodes, store.n_id = len(mine), torch.from_numpy(id_N[mine])
        store.num_sampled_nodes = _counted(mine, drawn.vertices_per_hop)
        if x is not None and types.widths[kind]:
            store.x = x[mine, types.first_column : types.first_column + types.widths[kind]]
        if name in graph.labelled:
            for known, rows in _known(sampler, drawn.vertices[mine]).items():
                store[known] = rows
    seeds = batch[types.names[kind_N[0]]]
    seeds.batch_size = drawn.vertices_per_hop[0]
    seeds.input_id = seeds.n_id[: seeds.batch_size]
    relation_D = np.asarray(graph.artifact.topology.edge_type)[drawn.edge]
    for relation, key in enumerate(types.relations):
        mine, store = np.flatnonzero(relation_D == relation), batch[key]
        source, destination, edge = drawn.source[mine], drawn.destination[mine], drawn.edge[mine]
        store.edge_index = torch.from_numpy(np.stack([place_N[source], place_N[destination]]))
        store.e_id = torch.from_numpy(edge + graph.relation_shift[relation][id_N[destination]])
        store.num_sampled_edges = _counted(mine, drawn.edges_per_hop)
        given, columns = _of_edges(sampler, edge), types.edge_columns[relation]
        if "edge_weight" in given:
            store.edge_weight = given["edge_weight"]
        if columns:
            store.edge_attr = given["edge_attr"][:, :columns]
    return batch


def _known(sampler: NeighborSampler, vertices: np.ndarray) -> dict[str, Tensor]:
    """Labels and masks of some of the artifact's vertices."""
    artifact = sampler.graph.artifact
    masks = {f"{split}_mask": np.asarray(mask)[vertices] for split, mask in artifact.masks.items()}
    return {"y": label_rows(artifact, vertices)} | {name: torch.from_numpy(mask) for name, mask in masks.items()}


def _of_edges(sampler: NeighborSampler, edges: np.ndarray) -> dict[str, Any]:
    """What the artifact has of some of its edges."""
    topology = sampler.graph.artifact.topology
    rows = {"edge_weight": topology.edge_weight, "edge_attr": topology.edge_features, "edge_type": topology.edge_type}
    return {name: torch.from_numpy(np.asarray(of)[edges]) for name, of in rows.items() if of is not None}


def _counted(positions: np.ndarray, per_hop: list[int]) -> list[int]:
    """How many of some ascending positions each hop has."""
    ends = np.searchsorted(positions, [*itertools.accumulate(per_hop, initial=0)])
    return np.diff(ends).tolist()
