"""The structure of chunks as arrays that devices have: what each has an entry for, and which a pass needs.

A pass brings a chunk's arrays with the chunk, or they stay on the device for all chunks of its partition, one chunk's
behind another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.passes.definition import Pass
from hongtu.plan.passes.shapes import NetworkShape

FLOAT = "float"  # stands for the run's dtype
HALF = "bfloat16"
SIZES = {"uint8": 1, "bool": 1, HALF: 2, "int32": 4, "int64": 8}  # bytes of the others
Over = Literal["destinations", "pointers", "edges", "sources", "source pointers"]


@dataclass(frozen=True)
class Array:
    """An array of a chunk's structure.

    Attributes:
        over: what it has an entry for; "pointers" are one more than the destinations, or than the sources.
        dtype: "float" (the run's dtype), "int32" or "int64".
        columns: of every entry, 0 for a plain number.
    """

    over: Over
    dtype: str
    columns: int = 0

    def shape(self, entries: int) -> tuple[int, ...]:
        return (entries, self.columns) if self.columns else (entries,)

    def nbytes(self, entries: int, itemsize: int) -> int:
        """Of so many entries."""
        size = itemsize if self.dtype == FLOAT else SIZES[self.dtype]
        return entries * max(self.columns, 1) * size


@dataclass(frozen=True)
class Needs:
    """Which parts of a chunk's structure a pass needs on the device.

    Attributes:
        edges: the aggregate runs, forward or backward: column pointers, local sources, slots.
        weights: with edge weights.
        edge_features: columns of the edge features that the layer reads, or 0.
        edge_type: with edge types.
        identity: with source ids and edge ids (layers that are not one declared reduction).
        statistics: columns of the degree statistics of the chunk's own rows, or 0; ``factors``: what layers make of
            them instead.
        labels: labels and loss terms of the chunk's own rows (the pass that evaluates the loss).
    """

    edges: bool
    weights: bool
    edge_features: int
    edge_type: bool
    identity: bool
    statistics: int
    labels: bool
    factors: bool = False

    @property
    def structure(self) -> dict[str, Array]:
        """The arrays of a chunk's structure, by name."""
        found = {"ids": Array("destinations", "int64")}
        if self.statistics:
            found["statistics"] = Array("destinations", FLOAT, self.statistics)
        if self.factors:
            found["factors"] = Array("destinations", FLOAT, 2)
        if self.edges:
            found["indptr"] = Array("pointers", "int64")
            found["local_source"] = Array("edges", "int32")
            found["slot_of_source"] = Array("sources", "int32")
        if self.weights:
            found["edge_weight"] = Array("edges", FLOAT)
        if self.edge_features:
            found["edge_features"] = Array("edges", FLOAT, self.edge_features)
        if self.edge_type:
            found["edge_type"] = Array("edges", "int32")
        if self.identity:
            found["sources"] = Array("sources", "int32")
            found["edge_id_start"] = Array("destinations", "int64")
        return found


def edge_order(*, mean: bool, weighted: bool) -> dict[str, Array]:
    """The edges in the order of their sources, by the names of registers: where each source's begin, their
    destinations, and what a sum multiplies their rows with, if not by one."""
    found = {"by_source start": Array("source pointers", "int32"), "by_source destination": Array("edges", "int32")}
    return found | ({"by_source scale": Array("edges", FLOAT)} if mean or weighted else {})


def layers_near(p: Pass, shape: NetworkShape) -> list[int]:
    """The layers whose update or transform a pass's stage runs."""
    return [k for k in (p.layer, p.stage) if k is not None and k < len(shape.layers)]


def pass_needs(p: Pass, shape: NetworkShape, weighted_graph: bool) -> Needs:
    """What a pass needs besides vertex rows."""
    layer = None if p.layer is None else shape.layers[p.layer]
    degrees = any(shape.layers[k].uses_statistics for k in layers_near(p, shape))
    edges = layer is not None and (p.exchange is not None or p.flush is not None)
    return Needs(
        edges=edges,
        weights=edges and weighted_graph and not layer.ignores_weights and (layer.reduce is None or layer.weighted),
        edge_features=shape.edges.features if edges and layer.edge_features else 0,
        edge_type=edges and layer.edge_type,
        identity=edges and layer.reduce is None,
        statistics=shape.statistics_columns if degrees and shape.factors is None else 0,
        factors=degrees and shape.factors is not None,
        labels=p.loss,
    )


@dataclass(frozen=True)
class Entries:
    """What the chunks of one device have entries for.

    Attributes:
        most: of the largest chunk, by what is counted.
        busy: of all chunks with destinations.
    """

    most: dict[Over, int]
    busy: dict[Over, int]


def device_entries(topology: Topology) -> list[Entries]:
    """Of every device; remembered in ``topology.memo``."""
    if "entries" not in topology.memo:
        shape = topology.partitions, topology.chunks
        counts = {over: count.reshape(shape) for over, count in chunk_entries(topology).items()}
        busy = counts["destinations"] > 0
        most = {over: count.max(axis=1).tolist() for over, count in counts.items()}
        total = {over: (count * busy).sum(axis=1).tolist() for over, count in counts.items()}
        topology.memo["entries"] = [
            Entries({over: n[i] for over, n in most.items()}, {over: n[i] for over, n in total.items()})
            for i in range(topology.partitions)
        ]
    return list(topology.memo["entries"])


def spans(topology: Topology, device: int) -> dict[Over, np.ndarray]:
    """int64 [n + 1] each: where every chunk of a device begins in arrays of all of them, then their length."""
    own = slice(device * topology.chunks, (device + 1) * topology.chunks)
    return {over: np.append(0, np.cumsum(count[own])) for over, count in chunk_entries(topology).items()}


def chunk_entries(topology: Topology) -> dict[Over, np.ndarray]:
    """int64 [C] each: what every chunk has entries for."""
    destinations = topology.num_dst
    return {
        "destinations": destinations,
        "pointers": destinations + 1,
        "edges": topology.chunk_edges,
        "sources": topology.num_sources,
        "source pointers": topology.num_sources + 1,
    }
