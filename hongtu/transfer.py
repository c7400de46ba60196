"""Replays a transfer plan: brings neighbour rows into the caches and takes gradient rows out of them.

It decides nothing: which rows, slots and peers is in the plan. All devices of a batch finish one kind of transfer
before the next begins, so an owner's rows are in place when its peers pull, and complete when it flushes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from hongtu.device import CpuDevice
from hongtu.host_store import HostStore
from hongtu.plan.intervals import Intervals
from hongtu.plan.passes import Pass
from hongtu.plan.transfer import TransferPlan

Select = Callable[[Intervals], "slice | np.ndarray"]


class Exchange:
    """The cache traffic of one pass.

    Args:
        devices: one per partition, with the pass's buffers allocated.
        plan: what to move when.
        host: where rows come from and gradients go.
        p: the pass: which vertex tensors take part.
        resident: vertex tensors that live on the devices: their own buffers are the caches.
    """

    def __init__(
        self, devices: list[CpuDevice], plan: TransferPlan, host: HostStore, p: Pass, resident: frozenset[str]
    ) -> None:
        self.devices, self.plan, self.host, self.p, self.resident = devices, plan, host, p, resident

    def open(self, batch: int) -> None:
        """Before batch ``batch`` computes: values in, gradient slots zeroed."""
        if self.p.exchange is not None:
            self._fill(self._beginning(batch))
        if self.p.flush is not None:
            self._zero(self._beginning(batch))

    def close(self, batch: int) -> None:
        """After batch ``batch`` has computed: gradients out."""
        if self.p.flush is not None:
            self._push(self._ending(batch))
            self._flush(self._ending(batch))

    def _beginning(self, batch: int) -> Select:
        """The intervals that begin with a batch, in the order in which batches are visited."""
        if self.p.direction == "backward":
            return lambda table: table.retiring(batch)
        return lambda table: table.opening(batch)

    def _ending(self, batch: int) -> Select:
        """Those that end with it."""
        if self.p.direction == "backward":
            return lambda table: table.opening(batch)
        return lambda table: table.retiring(batch)

    def _cache(self, device: CpuDevice, kind: str) -> Tensor:
        return cache_of(device, self.p, self.resident, kind)

    def _fill(self, select: Select) -> None:
        assert self.p.exchange is not None
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.loads
            pick = select(table)
            rows = _bring(device, "load_rows", table.row[pick])
            slots = _bring(device, "load_slots", table.slot[pick])
            if len(rows):
                device.load_rows(self.host[self.p.exchange], rows, self._cache(device, "value"), slots)
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.pulls
            pick = select(table)
            peer = table.peer[pick]
            by_peer = np.argsort(peer, kind="stable")
            pull_from = _bring(device, "pull_from", table.peer_slot[pick][by_peer])
            pull_to = _bring(device, "pull_to", table.slot[pick][by_peer])
            for p, part in self._peers(peer[by_peer]):
                cache = self._cache(device, "value")
                device.pull_rows(self._cache(self.devices[p], "value"), pull_from[part], cache, pull_to[part])

    def _zero(self, select: Select) -> None:
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            for table, name in ((transfers.loads, "load_slots"), (transfers.pulls, "pull_to")):
                slot = table.slot[select(table)]
                # with values, the slots came with them
                slots = _bring(device, name, slot) if self.p.exchange is None else device.buffer(name)[: len(slot)]
                device.zero_rows(self._cache(device, "gradient"), slots)

    def _push(self, select: Select) -> None:
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.pulls
            pick = select(table)
            by_peer = np.argsort(table.peer[pick], kind="stable")
            push_from = _bring(device, "push_from", table.slot[pick][by_peer])
            push_to = _bring(device, "push_to", table.peer_slot[pick][by_peer])
            for p, part in self._peers(table.peer[pick][by_peer]):
                peer_cache = self._cache(self.devices[p], "gradient")
                device.push_rows(self._cache(device, "gradient"), push_from[part], peer_cache, push_to[part])

    def _flush(self, select: Select) -> None:
        assert self.p.flush is not None
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.loads
            pick = select(table)
            slots = _bring(device, "flush_slots", table.slot[pick])
            if len(slots):
                device.flush_rows(self._cache(device, "gradient"), slots, self.host[self.p.flush], table.row[pick])

    def _peers(self, sorted_peer: np.ndarray) -> list[tuple[int, slice]]:
        """The range of each peer in an array sorted by peer."""
        bounds = np.searchsorted(sorted_peer, np.arange(len(self.devices) + 1))
        return [
            (p, slice(int(bounds[p]), int(bounds[p + 1])))
            for p in range(len(self.devices))
            if bounds[p] < bounds[p + 1]
        ]


def cache_of(device: CpuDevice, p: Pass, resident: frozenset[str], kind: str) -> Tensor:
    """The rows that slots count, of values ("value") or gradients ("gradient")."""
    name, own = (p.exchange, "cache") if kind == "value" else (p.flush, "gradient_cache")
    return device.buffer(name if name is not None and name in resident else own)


def _bring(device: CpuDevice, name: str, array: np.ndarray) -> Tensor:
    return device.bring(name, array, "topology")
