"""The planned device memory: every buffer that a pass keeps on a device, with its exact size.

Legend: D destinations, S sources, E in-edges of a chunk; a buffer has room for the largest chunk of its device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hongtu.plan.passes import FEATURES, Pass
from hongtu.plan.shapes import NetworkShape
from hongtu.plan.transfer import BatchLimits
from hongtu.topology import Topology

FLOAT = "float"  # stands for the run's dtype


@dataclass(frozen=True)
class Buffer:
    """A device buffer.

    Attributes:
        shape: rows, or (rows, columns).
        dtype: "float" (the run's dtype), "int32", "int64", "bool" or "uint8".
        sets: how many of them: copies of one batch fill a set while another batch computes from its own.
    """

    shape: tuple[int, ...]
    dtype: str
    sets: int = 1

    def nbytes(self, itemsize: int) -> int:
        size = itemsize if self.dtype == FLOAT else np.dtype(self.dtype).itemsize
        return int(np.prod((self.sets, *self.shape), dtype=np.int64)) * size


@dataclass(frozen=True)
class Needs:
    """Which parts of a chunk's structure a pass brings to the device.

    Attributes:
        edges: the aggregate runs, forward or backward: column pointers, local sources, slots.
        weights: with edge weights.
        edge_features: columns of the edge features that the layer reads, or 0.
        edge_type: with edge types.
        identity: with source ids and edge ids (layers that are not one declared reduction).
        statistics: degree statistics of the chunk's own rows.
        labels: labels and loss terms of the chunk's own rows (the pass that evaluates the loss).
    """

    edges: bool
    weights: bool
    edge_features: int
    edge_type: bool
    identity: bool
    statistics: bool
    labels: bool


def layers_near(p: Pass, shape: NetworkShape) -> list[int]:
    """The layers whose update or transform a pass's stage runs."""
    return [k for k in (p.layer, p.stage) if k is not None and k < len(shape.layers)]


def pass_needs(p: Pass, shape: NetworkShape, weighted_graph: bool) -> Needs:
    """What a pass needs besides vertex rows."""
    layer = None if p.layer is None else shape.layers[p.layer]
    edges = layer is not None and (p.exchange is not None or p.flush is not None)
    return Needs(
        edges=edges,
        weights=edges and weighted_graph and (layer.reduce is None or layer.weighted),
        edge_features=shape.edges.features if edges and layer.edge_features else 0,
        edge_type=edges and layer.edge_type,
        identity=edges and layer.reduce is None,
        statistics=any(shape.layers[k].uses_statistics for k in layers_near(p, shape)),
        labels=p.loss,
    )


def pass_buffers(
    p: Pass,
    shape: NetworkShape,
    width: dict[str, int],
    needs: Needs,
    topology: Topology,
    limits: BatchLimits,
    device: int,
    resident: frozenset[str],
) -> dict[str, Buffer]:
    """Every planned buffer of one pass on one device but its caches and what stays there, by name."""
    own = slice(device * topology.chunks, (device + 1) * topology.chunks)
    d, s, e = (int(x[own].max()) for x in (topology.num_dst, topology.num_sources, topology.chunk_edges))
    staged = [name for name in (*p.inputs, *p.gradients) if name not in resident or topology.active is not None]
    buffers = {name: Buffer((d, width[name]), FLOAT) for name in dict.fromkeys(staged)}
    if FEATURES in p.inputs and shape.sparse_input is not None:
        buffers |= _sparse_buffers(d, int(shape.sparse_input.numbers(topology)[own].max()))
    buffers["ids"] = Buffer((d,), "int64")
    if topology.active is not None:
        buffers["row_in_chunk"] = Buffer((d,), "int32")
        if needs.identity:
            buffers["active"] = Buffer((d,), "int32")
    if needs.statistics:
        buffers["statistics"] = Buffer((d, 3), FLOAT)
    if needs.labels:
        buffers["labels"] = Buffer((d, shape.label_bytes), "uint8")
        buffers["loss_bits"] = Buffer((d,), "uint8")
    if needs.edges:
        buffers |= _edge_buffers(p, needs, d, s, e)
        reduces = shape.layers[p.layer].reduce is not None and p.direction != "backward" and not p.keep
        if reduces and not aggregates_in_place(p, shape, topology, resident):
            buffers["aggregate"] = Buffer((d, width[f"a{p.layer}"]), FLOAT)
        buffers |= _exchange_buffers(p, limits)
    return buffers


def _sparse_buffers(d: int, numbers: int) -> dict[str, Buffer]:
    """Rows of features as they come, beside the buffer in which they become dense."""
    return {
        f"{FEATURES} start": Buffer((d + 1,), "int64"),
        f"{FEATURES} column": Buffer((numbers,), "int32"),
        f"{FEATURES} value": Buffer((numbers,), FLOAT),
    }


def aggregates_in_place(p: Pass, shape: NetworkShape, topology: Topology, resident: frozenset[str]) -> bool:
    """Whether a declared reduction writes where its output stays."""
    return p.checkpoint in resident and topology.active is None and not shape.layers[p.layer].combined


def _edge_buffers(p: Pass, needs: Needs, d: int, s: int, e: int) -> dict[str, Buffer]:
    buffers = {
        "indptr": Buffer((d + 1,), "int64"),
        "local_source": Buffer((e,), "int32"),
        "slot_of_source": Buffer((s,), "int32"),
    }
    if needs.weights:
        buffers["edge_weight"] = Buffer((e,), FLOAT)
    if needs.edge_features:
        buffers["edge_features"] = Buffer((e, needs.edge_features), FLOAT)
    if needs.edge_type:
        buffers["edge_type"] = Buffer((e,), "int32")
    if needs.identity:
        buffers |= {"sources": Buffer((s,), "int32"), "edge_id_start": Buffer((d,), "int64")}
    return buffers


def _exchange_buffers(p: Pass, limits: BatchLimits) -> dict[str, Buffer]:
    loads, pulls = Buffer((limits.loads,), "int32"), Buffer((limits.pulls,), "int32")
    buffers: dict[str, Buffer] = {}
    if p.exchange is not None:
        buffers |= {"load_rows": loads, "load_slots": loads, "pull_from": pulls, "pull_to": pulls}
    if p.flush is not None:
        if p.exchange is None:
            buffers |= {"load_slots": loads, "pull_to": pulls}
        buffers |= {"flush_slots": loads, "push_from": pulls, "push_to": pulls}
    return buffers


def cached_rows(p: Pass, resident: frozenset[str]) -> tuple[str, ...]:
    """The tensors whose rows go through caches of a pass's own: values, gradients, or both."""
    return tuple(name for name in (p.exchange, p.flush) if name is not None and name not in resident)


def staged(
    p: Pass, buffers: dict[str, Buffer], width: dict[str, int], limits: BatchLimits, num_dst: int, kept: frozenset[str],
    sets: int,
) -> tuple[dict[str, Buffer], dict[str, Buffer]]:  # fmt: skip
    """The buffers of a pass where device and host have memories of their own.

    Args:
        buffers: those it has anyway.
        num_dst: destinations of the device's largest chunk.
        kept: the tensors that stay on the devices.
        sets: of staging memory.

    Returns:
        the buffers on the device, rows on their way to the host among them, and the pinned ones on the host, through
        which everything goes that is not read from or stored in host rows as it is.
    """
    away = {name: Buffer((num_dst, width[name]), FLOAT) for name in p.written if name not in kept}
    device = buffers | {f"send {name}": buffer for name, buffer in away.items()}
    if p.flush is not None and p.flush not in kept:
        device["flush_rows"] = Buffer((limits.loads, width[p.flush]), FLOAT)
    host = {name: buffer for name, buffer in buffers.items() if name not in (*p.inputs, *p.gradients, "aggregate")}
    host |= {f"add {name}": away[name] for name in p.direct if name in away}
    if "flush_rows" in device:
        host["flush_rows"] = device["flush_rows"]
    repeated = {name: replace(buffer, sets=sets) for name, buffer in device.items() if name != "aggregate"}
    return device | repeated, {name: replace(buffer, sets=sets) for name, buffer in host.items()}


def cache_buffers(p: Pass, width: dict[str, int], capacity: int, resident: frozenset[str]) -> dict[str, Buffer]:
    """The caches of one pass on one device: row values, gradient rows, or both."""
    buffers = {}
    if p.exchange is not None and p.exchange not in resident:
        buffers["cache"] = Buffer((capacity, width[p.exchange]), FLOAT)
    if p.flush is not None and p.flush not in resident:
        buffers["gradient_cache"] = Buffer((capacity, width[p.flush]), FLOAT)
    return buffers
