"""Predicted seconds of an epoch on a hardware profile.

Everything that is not known exactly is an estimate; bytes and rows are exact. Times add up, except where a plan has
copies run beside arithmetic: there a pass takes as long as its program's critical path (``walk``).
Devices of one machine work at the same time: a pass takes as long as the slowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import get_args

import numpy as np

from hongtu.hardware import Hardware
from hongtu.metrics import BELOW, Traffic
from hongtu.plan.cost.work import Extent, Work, partition_work, pass_work
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import OUTPUT, Pass
from hongtu.plan.passes.shapes import Counts
from hongtu.plan.program import moves
from hongtu.plan.program.program import PassProgram

ROUNDS = 4  # of all sets that are walked; from then on every round takes as long as the last


@dataclass(frozen=True, kw_only=True)
class Seconds(Counts):
    """Where the time goes.

    Attributes:
        load, flush: sparse rows from and to the host.
        peer: rows pulled from and pushed to other devices.
        contiguous: chunks' own rows, structure and plan arrays.
        network: rows fetched from other ranks, and gradients sent to them.
        disk: rows that host memory does not hold, recalled and spilled; all devices together.
        accumulate: gradient rows added up on the host.
        aggregate: sums over in-edges and their transposes.
        rowwise: the row-wise stages and the loss, recomputation included.
        dispatch: fixed cost of every chunk of every pass; none where one GPU does captured passes again.
        hidden: what runs beside something that takes longer; negative.
    """

    load: float = 0.0
    flush: float = 0.0
    peer: float = 0.0
    contiguous: float = 0.0
    network: float = 0.0
    disk: float = 0.0
    accumulate: float = 0.0
    aggregate: float = 0.0
    rowwise: float = 0.0
    dispatch: float = 0.0
    hidden: float = 0.0

    @property
    def total(self) -> float:
        return sum(asdict(self).values())

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def predict_seconds(plan: ExecutionPlan, hardware: Hardware) -> Seconds:
    """Seconds of one training epoch and where they go."""
    return sum((pass_seconds(plan, p, hardware) for p in plan.passes.train), Seconds())


def sketch_seconds(plan: ExecutionPlan, hardware: Hardware, *, linked: bool) -> float:
    """About what an epoch takes if every row that is exchanged moves once; needs no planned transfers.

    Args:
        linked: rows move between host and device; else everything stays on the devices, each partition in one chunk,
            whose start counts.
    """
    total, v = 0.0, plan.topology.num_vertices
    row = {name: plan.host_row(name) for name in plan.passes.width}
    extent = Extent(v, plan.topology.num_edges, int(plan.topology.num_sources.sum()), plan.topology.partitions)
    captured = plan.strategy.capture and plan.shape.repeats and _captures(hardware)  # a sketch has no buffers yet
    starts = not (linked or captured)
    for p in plan.passes.train:
        sparse_bytes = v * sum(row[name] for name in (p.exchange, p.flush) if name is not None)
        own_bytes = sum(plan.count(p, name) * row[name] for name in (*p.inputs, *p.gradients, *p.written))
        if linked:
            total += (sparse_bytes + own_bytes) / hardware.host_link
        work = pass_work(plan, p, extent, hardware.cache)
        total += aggregate_seconds(work, hardware) + rowwise_seconds(work, hardware)
        total += starts * work.chunks * hardware.chunk_seconds
    return total


def least_seconds(plan: ExecutionPlan, hardware: Hardware) -> float:
    """What an epoch takes at least; needs no planned transfers, which also decide whether it is captured."""
    arithmetic, starting = computing_seconds(plan, hardware)
    return arithmetic if plan.repeats and _captures(hardware) else arithmetic + starting


def computing_seconds(plan: ExecutionPlan, hardware: Hardware) -> tuple[float, float]:
    """What the arithmetic of an epoch takes, and starting its chunks from Python; needs no planned transfers."""
    total = np.zeros(2)
    for p in plan.passes.train:
        on_device = np.zeros((min(hardware.devices, plan.topology.partitions), 2))
        for i in plan.devices:
            on_device[i % len(on_device)] += _computing(plan, p, i, hardware)
        total += on_device[on_device.sum(axis=1).argmin()]
    return float(total[0]), float(total[1])


def partition_seconds(plan: ExecutionPlan, hardware: Hardware) -> np.ndarray:
    """float64 [m], the same of every partition by itself."""
    return np.array([sum(sum(_computing(plan, p, i, hardware)) for p in plan.passes.train) for i in plan.devices])


def _computing(plan: ExecutionPlan, p: Pass, i: int, hardware: Hardware) -> tuple[float, float]:
    work = partition_work(plan, p, i, hardware.cache, hardware.largest_reused)
    return aggregate_seconds(work, hardware) + rowwise_seconds(work, hardware), _dispatch_seconds(work, hardware)


def pass_seconds(plan: ExecutionPlan, p: Pass, hardware: Hardware) -> Seconds:
    """Seconds of one pass: those of the device that takes longest; partitions are dealt to devices in turn."""
    count = min(hardware.devices, plan.topology.partitions)
    on_device, moved = [Seconds()] * count, [Traffic()] * count
    for i in plan.devices:
        traffic = plan.device_traffic(p, i)
        on_device[i % count] += _partition_seconds(plan, p, i, traffic, hardware)
        moved[i % count] += traffic
    slowest = max(range(count), key=lambda k: on_device[k].total)
    added = sum(t.bytes["flush"] for t in moved) / hardware.host_link if hardware.staged else 0.0  # else a flush adds
    disk = sum(sum(t.bytes[link] for t in moved) / getattr(hardware, rate) for link, rate in BELOW.items())
    s = on_device[slowest] + Seconds(accumulate=added, network=_network_seconds(plan, p, hardware), disk=disk)
    pushed = moved[slowest].bytes["push"] / hardware.peer_link
    written = moved[slowest].bytes["write"] / hardware.host_link
    s, program = overlapped(plan, p, s, pushed=pushed, written=written), plan.pass_program(p)
    posts = [x for x in program.body if isinstance(x, moves.Post)]
    work, batches = s.total - s.network, len(program.order)
    return s + Seconds(hidden=-sum(_beside(x, batches, work, _link_seconds(plan, x, hardware)) for x in posts))


def overlapped(plan: ExecutionPlan, p: Pass, s: Seconds, *, pushed: float, written: float) -> Seconds:
    """Seconds of a pass with those that its program's critical path hides, where copies run beside arithmetic.

    Args:
        s: of its parts, nothing hidden.
        pushed, written: of rows pushed to other devices, which are in ``s.peer``, and of those written to the host, in
            ``s.contiguous``.
    """
    program = plan.pass_program(p)
    hidden = 0.0
    if plan.choice.staging > 1:
        hidden = min(walk(program, _streams(s, pushed, written)) - (s.total - s.network - s.disk), 0.0)
    beside = s.total - s.network - s.disk + hidden
    if program.ahead:  # all but what comes first and leaves last
        hidden -= min(s.disk, beside) * (1 - 1 / max(len(program.order), 1))
    return s + Seconds(hidden=hidden)


def walk(p: PassProgram, streams: Mapping[str, float]) -> float:
    """Seconds of a pass: the critical path of its streams, each in its order, waiting where the program says so.

    Args:
        streams: what its instructions take on every stream, without moves. Batches are taken to be alike; in one
            they follow one another between a stream's waits, so that the first is given the time of all.
    """
    batch = {stream: seconds / len(p.order) for stream, seconds in streams.items()}
    clock, ends = dict.fromkeys(get_args(moves.StreamName), 0.0), [0.0]
    turns = [dict.fromkeys(moves.EVENTS, 0.0) for _ in range(p.sets)]
    for step in range(min(len(p.order), ROUNDS * p.sets)):
        turn, left = turns[step % p.sets], dict(batch)
        for x in p.body:
            if isinstance(x, moves.Wait):
                clock[x.stream] = max(clock[x.stream], turn[x.event])
            elif isinstance(x, moves.Follow):
                clock[x.stream] = max(clock[x.stream], clock[x.other])
            elif isinstance(x, moves.Signal):
                turn[x.event] = clock[x.stream]
            elif x.on in ("load", "compute", "flush"):
                clock[x.on] += left.pop(x.on, 0.0)
                if x.on == "flush":  # and the host takes what has arrived
                    clock["host"] = max(clock["host"], clock["flush"]) + left.pop("host", 0.0)
        ends.append(max(clock.values()))
    beyond = len(p.order) - (len(ends) - 1)
    return ends[-1] + beyond * (ends[-1] - ends[-1 - p.sets]) / p.sets if beyond else ends[-1]


def _streams(s: Seconds, pushed: float, written: float) -> dict[str, float]:
    """What every stream does; ranks exchange rows between passes."""
    return {
        "load": s.load + s.peer - pushed + s.contiguous - written,
        "compute": s.aggregate + s.rowwise + s.dispatch + pushed,
        "flush": s.flush + written,
        "host": s.accumulate,
    }


def _network_seconds(plan: ExecutionPlan, p: Pass, hardware: Hardware) -> float:
    """Rows are gathered, cross the network in both directions at the same time, and are put in their places. The pass
    that posts them takes the time."""
    program, total = plan.pass_program(p), 0.0
    posted = {(p.exchange, plan.crossings.posted(p))}
    posted |= {(x.tensor, x.crossing) for x in program.body if isinstance(x, moves.Post)}
    for x in (*program.before, *program.body, *program.after):
        if isinstance(x, moves.Cross):
            row = plan.host_row(x.tensor)
            total += row * x.crossing.both / hardware.host_link
        if isinstance(x, moves.Post) or (isinstance(x, moves.Cross) and (x.tensor, x.crossing) not in posted):
            total += _link_seconds(plan, x, hardware)
    if p.edge_loss:
        total += 2 * plan.shape.gathered[1] * plan.host_row(OUTPUT) / hardware.network_link
    return total


def _link_seconds(plan: ExecutionPlan, x: moves.Cross | moves.Post, hardware: Hardware) -> float:
    rows, both, pace = x.crossing.rows, x.crossing.both, x.crossing.pace
    row = plan.host_row(x.tensor)
    return row * (max(rows, both - rows) / hardware.network_link if pace is None else pace)


def _beside(x: moves.Post, batches: int, work: float, crossing: float) -> float:
    """Seconds of a crossing that pass while the batches of a pass work."""
    steps = range(batches) if x.steps is None else np.concatenate(x.steps)
    leave = np.bincount(steps, minlength=batches) / max(len(steps), 1)
    still_to_leave = leave[::-1].cumsum()[::-1]  # from every batch on
    ends = work * np.arange(1, batches + 1) / batches + crossing * still_to_leave
    return work + crossing - max(work, float(ends.max(initial=0.0)))


def _partition_seconds(plan: ExecutionPlan, p: Pass, i: int, traffic: Traffic, hardware: Hardware) -> Seconds:
    work, moved = partition_work(plan, p, i, hardware.cache, hardware.largest_reused), traffic.bytes
    return Seconds(
        load=moved["load"] / hardware.host_link,
        flush=moved["flush"] / hardware.host_link,
        peer=(moved["pull"] + moved["push"]) / hardware.peer_link,
        contiguous=(moved["read"] + moved["write"] + moved["topology"]) / hardware.host_link,
        aggregate=aggregate_seconds(work, hardware),
        rowwise=rowwise_seconds(work, hardware),
        dispatch=0.0 if _captures(hardware) and plan.captured else _dispatch_seconds(work, hardware),
    )


def _captures(hardware: Hardware) -> bool:
    """Whether passes that can be captured are: on one GPU."""
    return hardware.staged and hardware.devices == 1


def _dispatch_seconds(work: Work, hardware: Hardware) -> float:
    return work.chunks * hardware.chunk_seconds + work.calls * hardware.call_seconds


def aggregate_seconds(work: Work, hardware: Hardware) -> float:
    """Rows from memory, with next to no arithmetic."""
    return work.found / hardware.memory_bandwidth


def rowwise_seconds(work: Work, hardware: Hardware) -> float:
    """Products, and everything that touches rows in order: one after the other."""
    return work.swept / hardware.memory_bandwidth + work.flops / hardware.flops
