"""Predicted seconds of an epoch on a hardware profile.

Everything that is not known exactly is an estimate; bytes and rows are exact. Times add up, except where a plan has
copies run beside arithmetic: there a pass takes as long as the longest of what comes, what is computed and what leaves.
Devices of one machine work at the same time: a pass takes as long as the slowest.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import numpy as np

from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.hardware import Hardware
from hongtu.plan.passes import Pass


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Where the time goes.

    Attributes:
        load, flush: sparse rows from and to the host.
        peer: rows pulled from and pushed to other devices.
        contiguous: chunks' own rows, structure and plan arrays.
        accumulate: gradient rows added up on the host.
        aggregate: sums over in-edges and their transposes.
        rowwise: dense products of the row-wise stages, recomputation included.
        dispatch: fixed cost of every chunk of every pass.
        hidden: what runs beside something that takes longer; negative.
    """

    load: float = 0.0
    flush: float = 0.0
    peer: float = 0.0
    contiguous: float = 0.0
    accumulate: float = 0.0
    aggregate: float = 0.0
    rowwise: float = 0.0
    dispatch: float = 0.0
    hidden: float = 0.0

    @property
    def total(self) -> float:
        return sum(asdict(self).values())

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def predict_seconds(plan: ExecutionPlan, hardware: Hardware) -> Seconds:
    """Seconds of one training epoch and where they go."""
    return sum((pass_seconds(plan, p, hardware) for p in plan.passes.train), Seconds())


def sketch_seconds(plan: ExecutionPlan, hardware: Hardware, *, linked: bool) -> float:
    """About what an epoch takes if every row that is exchanged moves once; needs no planned transfers.

    Args:
        linked: rows move between host and device; else everything stays on the devices.
    """
    total, v, width = 0.0, plan.topology.num_vertices, plan.passes.width
    for p in plan.passes.train:
        sparse = sum(width[name] for name in (p.exchange, p.flush) if name is not None)
        own = sum(width[name] for name in (*p.inputs, *p.gradients, *p.written))
        sparse_bytes, own_bytes = (v * columns * plan.shape.itemsize for columns in (sparse, own))
        if linked:
            total += sparse_bytes / hardware.host_link + own_bytes / hardware.contiguous_link
        total += _aggregate_seconds(plan, p, plan.topology.num_edges, hardware)
        total += _rowwise_seconds(plan, p, v, sparse_bytes + own_bytes, hardware)
    return total


def pass_seconds(plan: ExecutionPlan, p: Pass, hardware: Hardware) -> Seconds:
    """Seconds of one pass: those of the device that takes longest; partitions are dealt to devices in turn."""
    on_device = [Seconds()] * min(hardware.devices, plan.topology.partitions)
    for i in range(plan.topology.partitions):
        on_device[i % len(on_device)] += _partition_seconds(plan, p, i, hardware)
    flushed = plan.pass_traffic(p).bytes["flush"]
    slowest = max(on_device, key=lambda seconds: seconds.total)
    found = slowest + Seconds(accumulate=flushed / hardware.host_add)
    return found + Seconds(hidden=_hidden(found)) if plan.choice.staging > 1 else found


def _hidden(s: Seconds) -> float:
    lanes = (s.load + s.peer + s.contiguous, s.aggregate + s.rowwise + s.dispatch, s.flush, s.accumulate)
    return max(lanes) - sum(lanes)


def _partition_seconds(plan: ExecutionPlan, p: Pass, i: int, hardware: Hardware) -> Seconds:
    moved, view = plan.device_traffic(p, i).bytes, plan.view(p)
    own = slice(i * view.chunks, (i + 1) * view.chunks)
    vertices, edges = int(view.num_dst[own].sum()), int(view.chunk_edges[own].sum())
    return Seconds(
        load=moved["load"] / hardware.host_link,
        flush=moved["flush"] / hardware.host_link,
        peer=(moved["pull"] + moved["push"]) / hardware.peer_link,
        contiguous=(moved["read"] + moved["write"] + moved["topology"]) / hardware.contiguous_link,
        aggregate=_aggregate_seconds(plan, p, edges, hardware),
        rowwise=_rowwise_seconds(plan, p, vertices, moved["read"] + moved["write"], hardware),
        dispatch=int(np.count_nonzero(view.num_dst[own])) * _stages(plan, p) * hardware.stage_seconds,
    )


EDGE_FUNCTION_STAGES = 4  # fixed cost of a function of edges, some tens of tensor operations, in plain stages


def _stages(plan: ExecutionPlan, p: Pass) -> int:
    edge_function = p.exchange is not None and p.layer is not None and plan.shape.layers[p.layer].reduce is None
    return EDGE_FUNCTION_STAGES if edge_function else 1


def _aggregate_seconds(plan: ExecutionPlan, p: Pass, edges: int, hardware: Hardware) -> float:
    """Row accesses per edge: a sum reads; its transpose reads and writes; a function of edges is taken for twice a
    sum, and backward runs it again before its gradients, where it was not kept."""
    if p.layer is None or (p.exchange is None and p.flush is None):
        return 0.0
    columns = max(plan.passes.width[name] for name in (p.exchange, p.flush) if name is not None)
    forward, transpose = p.direction != "backward", p.flush is not None
    if plan.shape.layers[p.layer].reduce is not None:
        sweeps = forward + 2 * transpose
    else:
        sweeps = 2 * (forward or not p.keep) + 4 * transpose
    elements = sweeps * edges * columns
    return max(2 * elements / hardware.flops, elements * plan.shape.itemsize / hardware.memory_bandwidth)


def _rowwise_seconds(plan: ExecutionPlan, p: Pass, vertices: int, nbytes: int, hardware: Hardware) -> float:
    """A multiplication and an addition per vertex and parameter; backward does twice that, and first forward again
    where nothing was kept."""
    known = p.stage is not None and plan.shape.stage_parameters
    parameters = plan.shape.stage_parameters[p.stage] if known and p.stage is not None else 0
    sweeps = 1 if p.direction == "forward" else 2 if p.keep else 3
    operations = 2 * sweeps * vertices * parameters * plan.shape.itemsize / 4  # rates are of 4-byte numbers
    return max(operations / hardware.flops, sweeps * nbytes / hardware.memory_bandwidth)
