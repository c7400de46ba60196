"""The structure of chunks as arrays that devices have: what each has an entry for, and which a pass needs.

A pass brings a chunk's arrays with the chunk, or they stay on the device for all chunks of its partition, one chunk's
behind another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.passes.definition import Pass
from hongtu.plan.passes.shapes import NetworkShape

FLOAT = "float"  # stands for the run's dtype
HALF = "bfloat16"
SIZES = {"uint8": 1, "bool": 1, HALF: 2, "int32": 4, "int64": 8}  # bytes of the others
Over = Literal["destinations", "pointers", "edges", "sources", "source pointers"]


def nbytes_of(shape: tuple[int, ...], dtype: str, itemsize: int) -> int:
    """Bytes of so many numbers, where the run's have ``itemsize``."""
    return prod(shape) * (itemsize if dtype == FLOAT else SIZES[dtype])


@dataclass(frozen=True)
class Array:
    """An array of a chunk's structure.

    Attributes:
        over: what it has an entry for; "pointers" are one more than the destinations, or than the sources.
        dtype: "float" (the run's dtype), "uint8", "int32" or "int64".
        columns: of every entry, None for a plain number.
    """

    over: Over
    dtype: str
    columns: int | None = None

    def shape(self, entries: int) -> tuple[int, ...]:
        return (entries,) if self.columns is None else (entries, self.columns)


@dataclass(frozen=True)
class Needs:
    """What a pass needs of its chunks besides vertex rows.

    Attributes:
        structure: arrays that may stay on the devices, by name.
        beside: those that come with every chunk.
        edges: the aggregate runs, forward or backward.
    """

    structure: dict[str, Array]
    beside: dict[str, Array]
    edges: bool


def edge_order(*, mean: bool, weighted: bool) -> dict[str, Array]:
    """The edges in the order of their sources, by the names of registers: where each source's begin, their
    destinations, and what a sum multiplies their rows with, if not by one."""
    found = {"by_source start": Array("source pointers", "int32"), "by_source destination": Array("edges", "int32")}
    return found | ({"by_source scale": Array("edges", FLOAT)} if mean or weighted else {})


def pass_needs(p: Pass, shape: NetworkShape, view: Topology) -> Needs:
    """What a pass on chunks needs."""
    layer = None if p.layer is None else shape.layers[p.layer]
    edges = layer is not None and (p.exchange is not None or p.flush is not None)
    found, beside = {"ids": Array("destinations", "int64")}, dict[str, Array]()
    near = [shape.layers[k] for k in (p.layer, p.stage) if k is not None and k < len(shape.layers)]
    if any(of.uses_statistics for of in near):  # whose update or transform the stage runs
        if shape.factors is not None:
            found["factors"] = Array("destinations", FLOAT, 2)
        elif shape.statistics_columns:
            found["statistics"] = Array("destinations", FLOAT, shape.statistics_columns)
    if view.active is not None:  # rows of the host are brought by it
        beside["row_in_chunk"] = Array("destinations", "int32")
    if edges:
        found["indptr"] = Array("pointers", "int64")
        found["local_source"] = Array("edges", "int32")
        found["slot_of_source"] = Array("sources", "int32")
        if view.edge_weight is not None and not layer.ignores_weights and (layer.reduce is None or layer.weighted):
            found["edge_weight"] = Array("edges", FLOAT)
        if layer.edge_features and shape.edges.features:
            found["edge_features"] = Array("edges", FLOAT, shape.edges.features)
        if layer.edge_type:
            found["edge_type"] = Array("edges", "int32")
        if layer.reduce is None:  # which edges these are may matter
            found["sources"] = Array("sources", "int32")
            found["edge_id_start"] = Array("destinations", "int64")
            if view.active is not None:
                found["active"] = Array("destinations", "int32")
    if p.loss:
        beside["labels"] = Array("destinations", "uint8", shape.label_bytes)
        beside["loss_bits"] = Array("destinations", "uint8")
    return Needs(found, beside, edges)


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
