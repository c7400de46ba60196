"""Predicted seconds of an epoch on a hardware profile.

Everything that is not known exactly is an estimate; bytes and rows are exact. Times add up, except where a plan has
copies run beside arithmetic: there a pass takes as long as the longest of what comes, what is computed and what leaves.
Devices of one machine work at the same time: a pass takes as long as the slowest.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.hardware import Hardware
from hongtu.plan.passes import FEATURES, Pass
from hongtu.plan.shapes import StageWork
from hongtu.topology import Topology

TENSORS = 8  # of a chunk's rows that a stage has in use
LOSS_SWEEPS = 8  # times that the loss and its gradient touch the output: picked, its logarithm, back, put in place


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
        work = _work(plan, p, v, plan.topology.num_edges, 0)
        total += _aggregate_seconds(work, hardware) + _rowwise_seconds(work, hardware)
    return total


def computing_seconds(plan: ExecutionPlan, hardware: Hardware) -> tuple[float, float]:
    """What an epoch takes at least, for its arithmetic and for starting chunks; needs no planned transfers."""
    arithmetic, starting = 0.0, 0.0
    for p in plan.passes.train:
        on_device = np.zeros((min(hardware.devices, plan.topology.partitions), 2))
        for i in range(plan.topology.partitions):
            work = partition_work(plan, p, i, hardware.cache)
            computed = _aggregate_seconds(work, hardware) + _rowwise_seconds(work, hardware)
            on_device[i % len(on_device)] += computed, _dispatch_seconds(work, hardware)
        least = on_device[on_device.sum(axis=1).argmin()]
        arithmetic, starting = arithmetic + float(least[0]), starting + float(least[1])
    return arithmetic, starting


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
    traffic, work = plan.device_traffic(p, i), partition_work(plan, p, i, hardware.cache)
    moved, rows = traffic.bytes, traffic.rows
    return Seconds(
        load=moved["load"] / hardware.host_link + rows["load"] * hardware.row_seconds,
        flush=moved["flush"] / hardware.host_link + rows["flush"] * hardware.row_seconds,
        peer=(moved["pull"] + moved["push"]) / hardware.peer_link,
        contiguous=(moved["read"] + moved["write"]) / hardware.contiguous_link
        + moved["topology"] / hardware.structure_link,
        aggregate=_aggregate_seconds(work, hardware),
        rowwise=_rowwise_seconds(work, hardware),
        dispatch=_dispatch_seconds(work, hardware),
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one device computes in one pass.

    Attributes:
        summed, transposed: bytes of rows that sums over in-edges read, and that their transposes read and write.
        summed_edges, transposed_edges: edges that they look at.
        fetched: bytes of rows that they find in no cache; function_fetched: that functions of edges find in none.
        function: bytes of rows that functions of edges and their gradients touch; function_edges: the edges;
            exponentials: those they take.
        flops: multiplications and additions of dense products of rows, in those of 4-byte numbers; product_bytes: of
            what these take and give; weight_flops and weight_bytes: the same for gradients of weights.
        swept: bytes of the chunks' own rows that row-wise stages touch; largest: of one tensor of one chunk.
        chunks: chunks that run; of these aggregate_chunks have in-edges or their sums, gradient_chunks gradients,
            transpose_chunks those of an aggregate, loss_chunks the loss; exchange_chunks: of all, for every tensor
            whose rows they get from, or send, elsewhere; peer_chunks: where that may be another device.
        calls: operations of row-wise stages.
    """

    summed: float = 0.0
    transposed: float = 0.0
    summed_edges: float = 0.0
    transposed_edges: float = 0.0
    calls: int = 0
    fetched: float = 0.0
    function_fetched: float = 0.0
    function: float = 0.0
    function_edges: float = 0.0
    exponentials: float = 0.0
    flops: float = 0.0
    product_bytes: float = 0.0
    weight_flops: float = 0.0
    weight_bytes: float = 0.0
    swept: float = 0.0
    largest: int = 0
    chunks: int = 0
    aggregate_chunks: int = 0
    gradient_chunks: int = 0
    transpose_chunks: int = 0
    loss_chunks: int = 0
    exchange_chunks: int = 0
    peer_chunks: int = 0


def partition_work(plan: ExecutionPlan, p: Pass, i: int, cache: int | None = None) -> Work:
    """What partition ``i`` computes in a pass.

    Args:
        cache: bytes of the device's, None for none.
    """
    view = plan.view(p)
    own = slice(i * view.chunks, (i + 1) * view.chunks)
    num_dst = view.num_dst[own]
    work = _work(plan, p, int(num_dst.sum()), int(view.chunk_edges[own].sum()), int(np.count_nonzero(num_dst)))
    widest = max((plan.passes.width[name] for name in (*p.inputs, *p.gradients, *p.written)), default=0)
    work = replace(work, largest=int(num_dst.max()) * widest * plan.shape.itemsize)
    if cache is None:
        return work
    item, exchanged = plan.shape.itemsize, [name for name in (p.exchange, p.flush) if name is not None]
    row = item * max((plan.passes.width[name] for name in exchanged), default=0)
    share = _missed(view, own, cache / max(row, 1))
    return replace(work, fetched=share * (work.summed + work.transposed), function_fetched=share * work.function)


def _missed(view: Topology, own: slice, rows: float) -> float:
    """The share of accesses that find their row in no cache of so many rows: every source's first, and, of a chunk with
    more sources, the later ones of those that are needed least."""
    sources, edges = view.num_sources[own], view.chunk_edges[own]
    parts = np.linspace(0, 1, len(view.later_accesses))
    held = np.interp(np.minimum(rows / np.maximum(sources, 1), 1), parts, view.later_accesses)
    later = np.maximum(edges - sources, 0) * (1 - held)
    return float((sources + later).sum()) / max(int(edges.sum()), 1)


def _work(plan: ExecutionPlan, p: Pass, vertices: int, edges: int, chunks: int) -> Work:
    """Row accesses per edge: a sum reads; its transpose reads and writes; a function of edges is taken for twice a
    sum, and backward runs it again before its gradients, where it was not kept. Per vertex and parameter of a stage a
    multiplication and an addition; backward does twice that, once where the input gets no gradient, and first forward
    again where nothing was kept."""
    item, width = plan.shape.itemsize, plan.passes.width
    loss = LOSS_SWEEPS * plan.shape.output if p.loss else 0
    known = p.stage is not None and plan.shape.stage_work
    stage_work = plan.shape.stage_work[p.stage] if known and p.stage is not None else StageWork()
    backward, again = p.direction != "forward", p.again or not p.keep
    runs_forward = not backward or again
    swept = stage_work.sweeps
    sweeps = runs_forward * swept.forward + backward * swept.backward
    calls = runs_forward * swept.forward_calls + backward * swept.backward_calls
    if p.layer is not None:
        own, brings, sends = stage_work.aggregate, p.exchange is not None, p.flush is not None
        again_for_gradient = sends and (not brings or plan.shape.layers[p.layer].linear)
        sweeps += brings * own.forward + sends * own.backward
        calls += (brings + again_for_gradient) * own.forward_calls + sends * own.backward_calls
    copied = sum(width[name] for name in p.written if name in plan.resident)
    if p.keep and not p.again and p.direction == "forward":
        copied += swept.saved
    gradients = stage_work.products.times(backward)
    products = stage_work.products.times(runs_forward) + gradients
    products += stage_work.entry.times(-(backward and not _input_wanted(plan, p)))
    products += stage_work.mapped.times(-(again and p.direction == "backward"))
    stage: dict[str, Any] = {
        "chunks": chunks,
        "calls": chunks * calls,
        "aggregate_chunks": chunks if p.layer is not None else 0,
        "gradient_chunks": chunks if backward else 0,
        "transpose_chunks": chunks if backward and p.layer is not None else 0,
        "loss_chunks": chunks if p.loss else 0,
        "flops": 2 * vertices * products.parameters * item / 4,  # rates are of 4-byte numbers
        "product_bytes": vertices * products.columns * item,
        "weight_flops": 2 * vertices * gradients.parameters * item / 4,
        "weight_bytes": vertices * gradients.columns * item,
        "swept": vertices * (sweeps + 2 * copied + loss) * item,
    }
    if p.layer is None or (p.exchange is None and p.flush is None):
        return Work(**stage)
    linked = [name for name in (p.exchange, p.flush) if name is not None and _moves(plan, name)]
    stage["exchange_chunks"] = chunks * len(linked)
    shares = plan.topology.partitions > 1 and plan.strategy.reuse != "none"
    stage["peer_chunks"] = chunks * len(linked) * shares
    touched = edges * item * max(width[name] for name in (p.exchange, p.flush) if name is not None)
    forward, transpose = p.direction != "backward", p.flush is not None
    if plan.shape.layers[p.layer].reduce is not None:
        stage["swept"] += vertices * plan.shape.layers[p.layer].a * (forward + transpose) * item
        sums: dict[str, Any] = {
            "summed": forward * touched,
            "transposed": 2 * transpose * touched,
            "summed_edges": forward * edges,
            "transposed_edges": transpose * edges,
        }
        return Work(**stage, **sums)
    accesses = (forward or not p.keep) + 2 * transpose
    functions: dict[str, Any] = {
        "function": 2 * accesses * touched,
        "function_edges": accesses * edges,
        "exponentials": accesses * edges * plan.shape.layers[p.layer].exponentials,
    }
    return Work(**stage, **functions)


def _moves(plan: ExecutionPlan, name: str) -> bool:
    """Whether rows of a vertex tensor that is exchanged come from the host, or from other devices."""
    return name not in plan.resident or plan.topology.partitions > 1


def _input_wanted(plan: ExecutionPlan, p: Pass) -> bool:
    """Whether what a pass's stage begins with gets a gradient."""
    names = (FEATURES,) if p.layer is None else plan.passes.layer_inputs[p.layer]
    return not plan.passes.wanted.isdisjoint(names)


def _dispatch_seconds(work: Work, hardware: Hardware) -> float:
    return (
        work.chunks * hardware.stage_seconds
        + work.aggregate_chunks * hardware.aggregate_stage_seconds
        + work.gradient_chunks * hardware.gradient_stage_seconds
        + work.transpose_chunks * hardware.transpose_stage_seconds
        + work.loss_chunks * hardware.loss_stage_seconds
        + work.exchange_chunks * hardware.exchange_stage_seconds
        + work.peer_chunks * hardware.peer_stage_seconds
        + work.calls * hardware.call_seconds
    )


def _aggregate_seconds(work: Work, hardware: Hardware) -> float:
    """Rows from memory, with next to no arithmetic, and a fixed part for every edge."""
    return (
        work.summed / hardware.memory_bandwidth
        + work.transposed / hardware.transpose_bandwidth
        + work.function / hardware.function_bandwidth
        + work.fetched / hardware.fetch_bandwidth
        + work.function_fetched / hardware.function_fetch_bandwidth
        + work.summed_edges * hardware.edge_seconds
        + work.transposed_edges * hardware.transpose_edge_seconds
        + work.function_edges * hardware.function_edge_seconds
        + work.exponentials * hardware.exponential_seconds
    )


def _rowwise_seconds(work: Work, hardware: Hardware) -> float:
    """Products, bringing and taking away their rows, then everything else that touches rows: one after the other."""
    rows = work.product_bytes / hardware.product_bandwidth + work.weight_bytes / hardware.weight_bandwidth
    return arithmetic_seconds(work, hardware) + rows + work.swept / _sweep_bandwidth(work.largest, hardware)


def arithmetic_seconds(work: Work, hardware: Hardware) -> float:
    """What the operations of dense products take where their rows are at hand."""
    return work.flops / hardware.flops + work.weight_flops / hardware.weight_flops


def is_near(largest: int, hardware: Hardware) -> bool:
    """Whether a chunk's tensors stay in the cache from one operation to the next."""
    return hardware.cache is not None and largest * TENSORS <= hardware.cache


def _sweep_bandwidth(largest: int, hardware: Hardware) -> float:
    if is_near(largest, hardware):
        return hardware.near_bandwidth
    reused = hardware.largest_reused is None or largest <= hardware.largest_reused
    return hardware.sweep_bandwidth if reused else hardware.fresh_bandwidth
