"""Replays a transfer plan: brings neighbour rows into the caches and takes gradient rows out of them.

It decides nothing: which rows, slots and peers is in the plan. Owners' rows are in place when peers pull them, and
complete when they are flushed: that is what the waits between devices are for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from hongtu.device.base import Device
from hongtu.device.streams import Stream, Turn
from hongtu.engine.host_store import HostStore
from hongtu.plan.cache.intervals import Intervals
from hongtu.plan.cache.transfer import TransferPlan
from hongtu.plan.passes.definition import Pass

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
        self, devices: list[Device], plan: TransferPlan, host: HostStore, p: Pass, resident: frozenset[str]
    ) -> None:
        self.devices, self.plan, self.host, self.p, self.resident = devices, plan, host, p, resident
        self._shares = any(len(transfers.pulls) for transfers in plan.devices)
        self._moves = self._shares or any(len(transfers.loads) for transfers in plan.devices)

    def bring(self, batch: int, turn: Turn) -> None:
        """On ``load``: values in, and the slots whose gradients begin."""
        if not self._moves:
            return
        select = self._beginning(batch)
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.loads
            pick = select(table)
            slots = device.bring("load_slots", turn.set, table.slot[pick], "topology")
            if self.p.exchange is not None:
                rows = device.bring("load_rows", turn.set, table.row[pick], "topology")
                if len(rows):
                    device.load_rows(self.host[self.p.exchange], rows, self._cache(device, "value"), slots)
        if not self._shares:
            return
        if self.p.exchange is None:
            for device, transfers in zip(self.devices, self.plan.devices, strict=True):
                device.bring("pull_to", turn.set, transfers.pulls.slot[select(transfers.pulls)], "topology")
            return
        self._await_each_other([d.streams.load for d in self.devices], "pull: the owner has loaded")
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.pulls
            pick = select(table)
            peer = table.peer[pick]
            by_peer = np.argsort(peer, kind="stable")
            pull_from = device.bring("pull_from", turn.set, table.peer_slot[pick][by_peer], "topology")
            pull_to = device.bring("pull_to", turn.set, table.slot[pick][by_peer], "topology")
            for p, part in self._peers(peer[by_peer]):
                cache = self._cache(device, "value")
                device.pull_rows(self._cache(self.devices[p], "value"), pull_from[part], cache, pull_to[part])

    def bring_ends(self, batch: int, turn: Turn) -> None:
        """On ``load``: which gradients the batch completes."""
        if not self._moves:
            return
        select = self._ending(batch)
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            pulls, loads = transfers.pulls, transfers.loads
            if self._shares:
                pick = select(pulls)
                by_peer = np.argsort(pulls.peer[pick], kind="stable")
                device.bring("push_from", turn.set, pulls.slot[pick][by_peer], "topology")
                device.bring("push_to", turn.set, pulls.peer_slot[pick][by_peer], "topology")
            device.bring("flush_slots", turn.set, loads.slot[select(loads)], "topology")

    def zero(self, batch: int, turn: Turn) -> None:
        """On ``compute``: gradients begin with nothing."""
        if not self._moves:
            return
        select = self._beginning(batch)
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            for table, name in ((transfers.loads, "load_slots"), (transfers.pulls, "pull_to")):
                count = len(table.slot[select(table)])
                device.zero_rows(self._cache(device, "gradient"), device.staging(name, turn.set)[:count])

    def push(self, batch: int, turn: Turn) -> None:
        """On ``compute``: mirrors' gradients to their owners, while no device computes."""
        if not self._shares:
            return
        streams = [device.streams.compute for device in self.devices]
        self._await_each_other(streams, "push: the owner has computed")
        select = self._ending(batch)
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.pulls
            peer = np.sort(table.peer[select(table)])
            push_from = device.staging("push_from", turn.set)
            push_to = device.staging("push_to", turn.set)
            for p, part in self._peers(peer):
                peer_cache = self._cache(self.devices[p], "gradient")
                device.push_rows(self._cache(device, "gradient"), push_from[part], peer_cache, push_to[part])
        self._await_each_other(streams, "compute: peers have pushed")

    def flush(self, batch: int, turn: Turn, first: tuple[np.ndarray, ...]) -> None:
        """On ``flush``: owners' gradients to the host.

        Args:
            first: bool [K] of every device, the intervals that store rows; others add. () where all add.
        """
        assert self.p.flush is not None
        select = self._ending(batch)
        for i, (device, transfers) in enumerate(zip(self.devices, self.plan.devices, strict=True)):
            pick = select(transfers.loads)
            rows = transfers.loads.row[pick]
            if len(rows):
                slots, cache = device.staging("flush_slots", turn.set)[: len(rows)], self._cache(device, "gradient")
                stores = first[i][pick] if first else np.zeros(len(rows), dtype=np.bool_)
                device.flush_rows(turn.set, cache, slots, self.host[self.p.flush], rows, stores)

    def _await_each_other(self, streams: list[Stream], why: str) -> None:
        moments = [stream.record() for stream in streams]
        for k, stream in enumerate(streams):
            for other, moment in enumerate(moments):
                if other != k:
                    stream.wait(moment, why)

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

    def _cache(self, device: Device, kind: str) -> Tensor:
        return cache_of(device, self.p, self.resident, kind)

    def _peers(self, sorted_peer: np.ndarray) -> list[tuple[int, slice]]:
        """The range of each peer in an array sorted by peer."""
        bounds = np.searchsorted(sorted_peer, np.arange(len(self.devices) + 1))
        return [
            (p, slice(int(bounds[p]), int(bounds[p + 1])))
            for p in range(len(self.devices))
            if bounds[p] < bounds[p + 1]
        ]


def cache_of(device: Device, p: Pass, resident: frozenset[str], kind: str) -> Tensor:
    """The rows that slots count, of values ("value") or gradients ("gradient")."""
    name, own = (p.exchange, "cache") if kind == "value" else (p.flush, "gradient_cache")
    return device.buffer(name if name is not None and name in resident else own)
