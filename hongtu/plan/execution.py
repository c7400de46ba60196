"""The execution plan: passes, transfers, planned memory and predicted traffic of one training run."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np

from hongtu.metrics import Traffic
from hongtu.plan.arena import Buffer, Needs, cache_buffers, pass_buffers, pass_needs, row_caches
from hongtu.plan.passes import Pass, PassList, plan_passes
from hongtu.plan.shapes import NetworkShape
from hongtu.plan.strategy import Strategy
from hongtu.plan.transfer import BatchLimits, DeviceTransfers, TransferPlan, batch_limits, plan_transfers
from hongtu.topology import Topology


@dataclass(frozen=True)
class ExecutionPlan:
    """Everything that is decided before the first epoch; the runtime replays it and decides nothing.

    Attributes:
        topology: the chunks that run (the artifact's, or groups of them).
        shape: the model as the planner sees it.
        strategy: the savings that are on.
        passes: the passes of a training epoch and of an evaluation.
        schedule: int32 [m, B], chunk of each partition that runs in batch b.
        limits: per device, the largest requests of a batch.
        transfers: the transfer plan of every pass that exchanges or flushes rows, by pass name.
        workspace: bytes that layers take at most inside each pass, by pass name, where they were probed.
    """

    topology: Topology
    shape: NetworkShape
    strategy: Strategy
    passes: PassList
    schedule: np.ndarray
    limits: list[BatchLimits]
    transfers: dict[str, TransferPlan]
    workspace: dict[str, int] = field(default_factory=dict)

    @property
    def traffic(self) -> Traffic:
        """Predicted traffic of one training epoch."""
        return sum((self.pass_traffic(p) for p in self.passes.train), Traffic())

    @property
    def bytes(self) -> dict[str, int]:
        """Predicted bytes per link of one training epoch (links: :mod:`hongtu.metrics`)."""
        return self.traffic.bytes

    @property
    def rows(self) -> dict[str, int]:
        """Predicted rows per sparse link of one training epoch."""
        return self.traffic.rows

    @property
    def arena_bytes(self) -> dict[str, int]:
        """Planned peak bytes per memory in training: "device 0", ..., "pinned host", "pageable host"; exact."""
        devices = range(self.topology.partitions)
        peaks = {f"device {i}": max(self.pass_arena(p, i) for p in self.passes.train) for i in devices}
        return peaks | self.host_bytes

    @property
    def peak_bytes(self) -> dict[str, int]:
        """``arena_bytes`` plus, where it was probed, the bound of the layers' workspace: what a run stays under."""
        return self.device_bytes | self.host_bytes

    @property
    def device_bytes(self) -> dict[str, int]:
        """The part of ``peak_bytes`` that a device budget limits."""
        peaks = {}
        for i in range(self.topology.partitions):
            p = self.tightest_pass(i)
            peaks[f"device {i}"] = self.pass_arena(p, i) + self.workspace.get(p.name, 0)
        return peaks

    def tightest_pass(self, device: int) -> Pass:
        """The training pass that needs the most memory on a device."""
        return max(self.passes.train, key=lambda p: self.pass_arena(p, device) + self.workspace.get(p.name, 0))

    def capacities(self, p: Pass, budget: int) -> tuple[int, ...]:
        """Slots of every device's caches in a pass that fill the budget, but never fewer than one batch needs nor
        more than there are rows."""
        row = row_caches(p) * self.passes.width[p.exchange or p.flush or ""] * self.shape.itemsize
        capacities = []
        for i, limits in enumerate(self.limits):
            beside = sum(b.nbytes(self.shape.itemsize) for b in self.buffers_beside_caches(p, i).values())
            free = budget - self.shape.model_bytes - beside - self.workspace.get(p.name, 0)
            slots = free // row if row else self.topology.num_vertices
            capacities.append(max(limits.slots, min(slots, self.topology.num_vertices)))
        return tuple(capacities)

    def needs(self, p: Pass) -> Needs:
        return pass_needs(p, self.shape, self.topology.edge_weight is not None)

    def buffers(self, p: Pass, device: int) -> dict[str, Buffer]:
        """The device buffers that a pass allocates, by name."""
        buffers = self.buffers_beside_caches(p, device)
        if p.name not in self.transfers:
            return buffers
        return buffers | cache_buffers(p, self.passes.width, self.transfers[p.name].devices[device].capacity)

    def buffers_beside_caches(self, p: Pass, device: int) -> dict[str, Buffer]:
        limits, width = self.limits[device], self.passes.width
        return pass_buffers(p, self.shape, width, self.needs(p), self.topology, limits, device)

    def pass_arena(self, p: Pass, device: int) -> int:
        """Planned bytes of one pass on one device, the model included."""
        buffers = self.buffers(p, device).values()
        return self.shape.model_bytes + sum(buffer.nbytes(self.shape.itemsize) for buffer in buffers)

    def pass_traffic(self, p: Pass) -> Traffic:
        """Predicted traffic of one pass over all devices."""
        return sum((self.device_traffic(p, i) for i in range(self.topology.partitions)), Traffic())

    def device_traffic(self, p: Pass, device: int) -> Traffic:
        """Predicted traffic of one pass on one device."""
        traffic, width, item = Traffic(), self.passes.width, self.shape.itemsize
        v = int(np.diff(self.topology.partition_start)[device])
        needs = self.needs(p)
        columns = sum(width[name] for name in (*p.inputs, *p.gradients))
        traffic.add("read", v * (columns * item + needs.labels * (self.shape.label_bytes + 1)))
        written = sum(width[name] for name in p.outputs) + (width[p.checkpoint] if p.checkpoint else 0)
        written += sum(width[name] for name in p.direct if name is not None and name not in p.outputs)
        traffic.add("write", v * written * item)
        transfers = self.transfers[p.name].devices[device] if p.name in self.transfers else None
        if transfers is not None:
            traffic += self._sparse_traffic(p, transfers)
        traffic.add("topology", self._topology_bytes(p, needs, device, transfers))
        return traffic

    def _sparse_traffic(self, p: Pass, device: DeviceTransfers) -> Traffic:
        traffic, item = Traffic(), self.shape.itemsize
        loads, pulls = len(device.loads), len(device.pulls)
        if p.exchange is not None:
            row = self.passes.width[p.exchange] * item
            traffic.add("load", loads * row, loads)
            traffic.add("pull", pulls * row, pulls)
        if p.flush is not None:
            row = self.passes.width[p.flush] * item
            traffic.add("push", pulls * row, pulls)
            traffic.add("flush", loads * row, loads)
        return traffic

    def _topology_bytes(self, p: Pass, needs: Needs, device: int, transfers: DeviceTransfers | None) -> int:
        """Structure and plan arrays that a pass copies to one device."""
        t, item = self.topology, self.shape.itemsize
        own = slice(device * t.chunks, (device + 1) * t.chunks)
        busy = t.num_dst[own] > 0
        d, s, e = (int(x[own][busy].sum()) for x in (t.num_dst, t.num_sources, t.chunk_edges))
        total = d * (8 + needs.statistics * 3 * item)
        if needs.edges:
            total += 8 * (d + int(busy.sum())) + 4 * e + 4 * s
            total += needs.weights * e * item + needs.identity * (4 * s + 8 * d)
            assert transfers is not None
            loads, pulls = len(transfers.loads), len(transfers.pulls)
            if p.exchange is not None:
                total += 8 * (loads + pulls)
            if p.flush is not None:
                total += 4 * loads + 8 * pulls + (4 * (loads + pulls) if p.exchange is None else 0)
        return total

    @property
    def host_bytes(self) -> dict[str, int]:
        """Planned peak bytes of the host: vertex rows, which are pinned where there is a GPU, and everything else."""
        v, item = self.topology.num_vertices, self.shape.itemsize
        live = peak = v * self.shape.features * item
        for p in self.passes.train:
            live += sum(v * self.passes.width[name] * item for name in p.creates)
            peak = max(peak, live)
            live -= sum(v * self.passes.width[name] * item for name in p.frees)
        statistics = any(layer.uses_statistics for layer in self.shape.layers)
        identity = any(layer.reduce is None for layer in self.shape.layers)
        row = self.shape.label_bytes + 1 + 8 + statistics * 3 * item + identity * 8  # labels, mask, ids, ...
        return {"pinned host": peak, "pageable host": v * row + sum(array.nbytes for array in self.arrays())}

    def arrays(self) -> list[np.ndarray]:
        """The graph's structure and the plan's own arrays, each once."""
        found: dict[int, np.ndarray] = {}
        _collect((self.topology, self.schedule, *self.transfers.values()), found)
        return list(found.values())

    def to_dict(self) -> dict[str, Any]:
        """What ``hongtu plan --json`` and run records show."""
        traffic = self.traffic
        return {"rows": traffic.rows, "bytes": traffic.bytes, "peak_bytes": self.peak_bytes}


def _collect(value: Any, found: dict[int, np.ndarray]) -> None:
    if isinstance(value, np.ndarray):
        found[id(value)] = value
    elif isinstance(value, list | tuple):
        for entry in value:
            _collect(entry, found)
    elif is_dataclass(value):
        for entry in vars(value).values():
            _collect(entry, found)


def make_plan(
    topology: Topology,
    schedule: np.ndarray,
    shape: NetworkShape,
    strategy: Strategy,
    budget: int | None = None,
    workspace: dict[str, int] | None = None,
    peer_cost: float = 0.0,
) -> ExecutionPlan:
    """Plan a run at one grain.

    Args:
        schedule: int32 [m, B], chunk of each partition per batch.
        budget: bytes per device that lookahead caches may fill; None for caches with room for every row.
        workspace: bytes that layers take at most inside each pass, by pass name.
        peer_cost: seconds that a row of a peer takes, in those of a row of the host.
    """
    limits = batch_limits(topology, schedule, strategy.reuse)
    passes = plan_passes(shape, strategy)
    plan = ExecutionPlan(topology, shape, strategy, passes, schedule, limits, {}, workspace or {})
    known: dict[tuple[int, ...] | None, TransferPlan] = {}
    for p in passes.train:
        if not row_caches(p):
            continue
        capacity = None if budget is None or strategy.reuse != "lookahead" else plan.capacities(p, budget)
        if capacity not in known:
            known[capacity] = plan_transfers(topology, schedule, strategy.reuse, capacity, peer_cost=peer_cost)
        plan.transfers[p.name] = known[capacity]
    return plan
