"""The transfer plan: for every batch and device, which rows to load, pull, push, flush and retire, and where.

One plan serves both directions. Forward batch b: open intervals (owners load, then mirrors pull), compute through
``slot_of_source``, retire. Backward batch b: begin the intervals that retire after b (zero gradients; owners load
and mirrors pull again where values are recomputed), compute, then mirrors push and owners flush those opening at b.
Every mirror interval lies inside one owner interval, so the owner's row is always there.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import cast

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.cache.intervals import Intervals, assign_slots, make_intervals
from hongtu.plan.cache.lookahead import count_lookahead, lookahead_intervals
from hongtu.plan.cache.reuse import (
    Requests,
    adjacent_intervals,
    neighbour_requests,
    no_requests,
    single_intervals,
    uses_of,
)
from hongtu.plan.passes.strategy import Reuse


@dataclass(frozen=True)
class DeviceCounts:
    """How many rows one device moves.

    Attributes:
        capacity: slots of the device's cache.
        loads: one for each row that comes from (backward: goes to) the host.
        pulls: one for each that mirrors a peer's row.
    """

    capacity: int
    loads: Sized
    pulls: Sized


@dataclass(frozen=True)
class DeviceTransfers(DeviceCounts):
    """The transfers of one device.

    Attributes:
        loads, pulls: intervals.
        source_start: int64 [B + 1].
        slot_of_source: int32 [sum |N_ij|], slot of each source of batch b's chunk, in the chunk's own order.
    """

    loads: Intervals
    pulls: Intervals
    source_start: np.ndarray
    slot_of_source: np.ndarray

    def slots(self, batch: int) -> np.ndarray:
        """int32 [S], the slot of every source of the batch's chunk."""
        return self.slot_of_source[self.source_start[batch] : self.source_start[batch + 1]]


@dataclass(frozen=True)
class TransferCounts:
    """How many rows all devices move over one pass."""

    devices: Sequence[DeviceCounts]

    @property
    def rows_loaded(self) -> int:
        """Rows over the host link in one pass; backward flushes as many."""
        return sum(len(device.loads) for device in self.devices)

    @property
    def rows_pulled(self) -> int:
        """Rows between devices in one pass; backward pushes as many."""
        return sum(len(device.pulls) for device in self.devices)


@dataclass(frozen=True)
class TransferPlan(TransferCounts):
    """The transfers of all devices over one pass."""

    devices: Sequence[DeviceTransfers]


def count_transfers(
    topology: Topology, schedule: np.ndarray, capacity: Sequence[int] | None, prefetch: int, peer_cost: float
) -> TransferCounts:
    """About what a "lookahead" plan would move (:func:`hongtu.plan.cache.lookahead.count_lookahead`)."""
    slots = [topology.num_vertices] * topology.partitions if capacity is None else capacity
    counts = count_lookahead(topology, schedule, capacity, prefetch, peer_cost)
    return TransferCounts(
        [DeviceCounts(s, range(loads), range(pulls)) for s, (loads, pulls) in zip(slots, counts, strict=True)]
    )


@dataclass(frozen=True)
class BatchLimits:
    """The most rows that one batch requests on a device: of its own partition (or in all, without deduplication),
    and of its peers'. No batch opens or retires more, and no cache can have fewer slots than ``slots``."""

    loads: int
    pulls: int
    slots: int


def _requests(topology: Topology, schedule: np.ndarray, reuse: Reuse) -> list[tuple[Requests, Requests]]:
    """What every device requests of its own partition, or of all without deduplication; and of its peers."""
    if reuse != "none":
        return [(uses.own, uses.mirror) for uses in uses_of(topology, schedule)]
    nothing = no_requests(topology, schedule)
    return [(neighbour_requests(topology, schedule, i), nothing) for i in range(topology.partitions)]


def batch_limits(topology: Topology, schedule: np.ndarray, reuse: Reuse, prefetch: int = 0) -> list[BatchLimits]:
    """The largest requests of every device; they bound the buffers that hold a batch's plan arrays."""
    limits = []
    for i, of_device in enumerate(_requests(topology, schedule, reuse)):
        own, peers = (np.diff(requests.start) for requests in of_device)
        slots = own + peers
        if prefetch and reuse in ("none", "p2p") and len(slots):  # a row of two batches has a slot for each
            slots = np.convolve(slots, np.ones(prefetch + 1, dtype=np.int64))[prefetch:]
        elif prefetch:
            slots = uses_of(topology, schedule)[i].window_rows(prefetch)
        limits.append(BatchLimits(*(int(x.max(initial=0)) for x in (own, peers, slots))))
    return limits


def plan_transfers(
    topology: Topology,
    schedule: np.ndarray,
    reuse: Reuse,
    capacity: Sequence[int] | int | None = None,
    prefetch: int = 0,
    peer_cost: float = 0.0,
) -> TransferPlan:
    """Plan one pass over ``topology`` in the order of ``schedule``.

    Args:
        schedule: int32 [m, B].
        reuse: "none", "p2p", "paper" (see ``reuse.py``) or "lookahead" (``lookahead.py``).
        capacity: most slots of each device under "lookahead"; None for no limit. The others take what they need.
        prefetch: how many batches ahead of its first use a row may be brought.
        peer_cost: under "lookahead", seconds that a row of a peer takes, in those of a row of the host.

    Raises:
        BudgetError: when ``capacity`` is less than one batch needs.
    """
    if reuse == "lookahead":
        intervals = lookahead_intervals(topology, schedule, capacity, prefetch, peer_cost)
        return _compile(topology, schedule, *intervals, prefetch)
    keep = adjacent_intervals if reuse == "paper" else single_intervals
    columns = [(keep(own), keep(mirror)) for own, mirror in _requests(topology, schedule, reuse)]
    owners, mirrors = zip(*columns, strict=True)
    return _compile(topology, schedule, owners, mirrors, prefetch)


def plan_resident(topology: Topology, schedule: np.ndarray, prefetch: int = 0) -> TransferPlan:
    """Plan one pass whose rows live on their owner's device: slot k is row k of the partition, mirrors come behind.

    Nothing is loaded or flushed, and every mirror row is pulled once. Remembered in ``topology.memo``.
    """
    key = "resident", np.asarray(schedule).tobytes(), prefetch
    if key not in topology.memo:
        topology.memo[key] = _plan_resident(topology, schedule, prefetch)
    return cast(TransferPlan, topology.memo[key])


def _plan_resident(topology: Topology, schedule: np.ndarray, prefetch: int) -> TransferPlan:
    v, starts = topology.num_vertices, topology.partition_start
    devices = []
    for i in range(topology.partitions):
        uses = uses_of(topology, schedule)[i]
        row, first, last = uses.mirror.intervals(uses.mirror.next_use >= 0)
        slot, mirrors = assign_slots(np.maximum(first - prefetch, 0), last, schedule.shape[1])
        own = int(starts[i + 1] - starts[i])
        peer = (np.searchsorted(starts, row, side="right") - 1).astype(np.int32)
        peer_slot = (row - starts[peer]).astype(np.int32)
        pulls = make_intervals(row, slot + np.int32(own), first, last, schedule.shape[1], peer, peer_slot)
        none = np.empty(0, dtype=np.int32)
        loads = make_intervals(none, none, none, none, schedule.shape[1])
        sources = neighbour_requests(topology, schedule, i)
        slot_of_row = np.zeros(v, dtype=np.int32)
        slot_of_row[starts[i] : starts[i + 1]] = np.arange(own)
        slot_of_row[row] = pulls.slot  # one interval per row
        devices.append(DeviceTransfers(own + mirrors, loads, pulls, sources.start, slot_of_row[sources.row]))
    return TransferPlan(devices)


def _compile(topology, schedule, owner_columns, mirror_columns, prefetch=0) -> TransferPlan:
    """Give every interval a slot, every mirror its owner's slot, every source its slot."""
    num_batches = schedule.shape[1]
    loads, pulls, capacities = [], [], []
    for owner, mirror in zip(owner_columns, mirror_columns, strict=True):
        slot, capacity = _shared_slots(owner, mirror, num_batches, prefetch)
        row, first, last = owner
        loads.append(make_intervals(row, slot[: len(row)], first, last, num_batches))
        pulls.append((*mirror, slot[len(row) :]))
        capacities.append(capacity)
    devices = []
    for i, (row, first, last, slot) in enumerate(pulls):
        peer = (np.searchsorted(topology.partition_start, row, side="right") - 1).astype(np.int32)
        peer_slot = np.empty(len(row), dtype=np.int32)
        for p in np.unique(peer):
            of_peer = np.flatnonzero(peer == p)
            start = np.searchsorted(first[of_peer], np.arange(num_batches + 1))  # intervals are sorted by it
            peer_slot[of_peer] = _slots_at(start, row[of_peer], [loads[p]], topology.num_vertices)
        mirror = make_intervals(row, slot, first, last, num_batches, peer, peer_slot)
        sources = neighbour_requests(topology, schedule, i)
        slot_of_source = _slots_at(sources.start, sources.row, [loads[i], mirror], topology.num_vertices)
        devices.append(DeviceTransfers(capacities[i], loads[i], mirror, sources.start, slot_of_source))
    return TransferPlan(devices)


def _shared_slots(owner, mirror, num_batches, prefetch):
    """Slots for a device's owner and mirror intervals in one cache, in the order owner then mirror; a slot is taken
    ``prefetch`` batches before the first use."""
    if not len(mirror[0]):  # they are in order
        return assign_slots(np.maximum(owner[1] - prefetch, 0) if prefetch else owner[1], owner[2], num_batches)
    first, last = np.concatenate([owner[1], mirror[1]]), np.concatenate([owner[2], mirror[2]])
    first = np.maximum(first - prefetch, 0)
    order = np.argsort(first, kind="stable")
    slot = np.empty(len(first), dtype=np.int32)
    slot[order], capacity = assign_slots(first[order], last[order], num_batches)
    return slot, capacity


def _slots_at(start, source, tables, num_vertices):
    """int32, the slot of each source, those of batch b from ``start[b]`` on, as what opened last has it.

    Args:
        tables: of intervals.
    """
    slot_of_row = np.full(num_vertices, -1, dtype=np.int32)
    slot = np.empty(len(source), dtype=np.int32)
    for b in range(len(start) - 1):
        for table in tables:
            opening = table.opening(b)
            slot_of_row[table.row[opening]] = table.slot[opening]
        slot[start[b] : start[b + 1]] = slot_of_row[source[start[b] : start[b + 1]]]
    return slot
