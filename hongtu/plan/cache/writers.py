"""Who writes a row of a gradient tensor first: that one stores, later ones add, and rows without a writer are zeroed.

A pass writes to such a tensor on the host in two ways: batch by batch its chunks give their own rows ("direct"), then
the caches' rows are flushed that end with the batch. Which of them comes first is known before the first epoch.

Legend: V vertices, B batches, m devices, K intervals of a device's loads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.cache.transfer import TransferPlan
from hongtu.plan.passes.definition import Pass

NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Writers:
    """Of one tensor, in the pass that creates it.

    Attributes:
        flush: bool [K] of every device, the intervals whose flush stores; () where none is flushed.
        direct: bool [V], the vertices whose own chunk stores, where flushes go to the same tensor; else None: all do.
        unwritten: int32 [U], ascending: rows that this pass does not write, and later ones read or add to.
    """

    flush: tuple[np.ndarray, ...]
    direct: np.ndarray | None
    unwritten: np.ndarray


def find_writers(
    p: Pass,
    name: str,
    view: Topology,
    schedule: np.ndarray,
    transfers: TransferPlan | None,
    needed: np.ndarray | None,
) -> Writers:
    """The writers of a tensor that a pass creates.

    Args:
        view, schedule: the chunks that the pass computes, int32 [m, B] in this order.
        transfers: of the pass, if it flushes to the tensor.
        needed: bool [V], the rows that later passes use; None for all.
    """
    flushes = [] if transfers is None else flush_times(p, transfers)
    tables = [] if transfers is None else [device.loads for device in transfers.devices]
    first = np.full(view.num_vertices, NEVER, dtype=np.int32)
    for loads, time in zip(tables, flushes, strict=True):
        np.minimum.at(first, loads.row, time)
    direct = None
    if name in p.direct:
        own = direct_times(p, view, schedule)
        direct = None if transfers is None else own < first
        first = np.minimum(first, own)
    stores = tuple(time == first[loads.row] for loads, time in zip(tables, flushes, strict=True))
    unwritten = first == NEVER
    if needed is not None:
        unwritten &= needed
    return Writers(stores, direct, np.flatnonzero(unwritten).astype(np.int32))


def flush_times(p: Pass, transfers: TransferPlan) -> list[np.ndarray]:
    """int32 [K] of every device: when each interval is flushed, in an order of all that a pass writes."""
    between, times = len(transfers.devices) + 1, []
    for i, loads in enumerate(device.loads for device in transfers.devices):
        step = loads.num_batches - 1 - loads.first if p.direction == "backward" else loads.last
        times.append((step * between + 1 + i).astype(np.int32))
    return times


def direct_times(p: Pass, view: Topology, schedule: np.ndarray) -> np.ndarray:
    """int32 [V]: when each vertex's chunk writes, in the same order; NEVER for vertices that the pass leaves out."""
    devices, batches = schedule.shape
    step = np.arange(batches, dtype=np.int32)[:: -1 if p.direction == "backward" else 1]
    of_chunk = np.empty(devices * view.chunks, dtype=np.int32)
    of_chunk[np.arange(devices)[:, None] * view.chunks + schedule] = step * (devices + 1)
    times = np.repeat(of_chunk, np.diff(view.chunk_start))
    if view.active is not None:
        left_out = np.ones(len(times), dtype=np.bool_)
        left_out[view.active] = False
        times[left_out] = NEVER
    return times


def last_steps(p: Pass, name: str, view: Topology, schedule: np.ndarray, transfers: TransferPlan | None) -> np.ndarray:
    """int32 [V]: which batch in the pass's order is the last that changes each row of a tensor; 0 where none does.

    Args:
        transfers: of the pass, if it flushes to the tensor.
    """
    between = len(schedule) + 1  # numbers of one batch, of its own rows and of every device's flushes
    last = np.zeros(view.num_vertices, dtype=np.int32)
    if name in p.written:
        own = slice(None) if view.active is None else view.active
        last[own] = direct_times(p, view, schedule)[own] // between
    for device, times in () if transfers is None else zip(transfers.devices, flush_times(p, transfers), strict=True):
        np.maximum.at(last, device.loads.row, times // np.int32(between))
    return last
