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
        p: the pass: which host tensors take part.
    """

    def __init__(self, devices: list[CpuDevice], plan: TransferPlan, host: HostStore, p: Pass) -> None:
        self.devices, self.plan, self.host, self.p = devices, plan, host, p

    def open(self, batch: int) -> None:
        """Before batch ``batch`` computes: values in, gradient slots zeroed."""
        forward = self.p.direction == "forward"
        if self.p.exchange is not None:
            self._fill(lambda table: table.opening(batch) if forward else table.retiring(batch))
        if self.p.flush is not None:
            self._zero(batch)

    def close(self, batch: int) -> None:
        """After batch ``batch`` has computed: gradients out (backward)."""
        if self.p.flush is not None:
            self._push(batch)
            self._flush(batch)

    def _fill(self, select: Select) -> None:
        assert self.p.exchange is not None
        host = self.host[self.p.exchange]
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.loads
            pick = select(table)
            rows = _bring(device, "load_rows", table.row[pick])
            slots = _bring(device, "load_slots", table.slot[pick])
            device.load_rows(host, rows, device.buffer("cache"), slots)
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.pulls
            pick = select(table)
            peer = table.peer[pick]
            by_peer = np.argsort(peer, kind="stable")
            pull_from = _bring(device, "pull_from", table.peer_slot[pick][by_peer])
            pull_to = _bring(device, "pull_to", table.slot[pick][by_peer])
            for p, part in self._peers(peer[by_peer]):
                cache = device.buffer("cache")
                device.pull_rows(self.devices[p].buffer("cache"), pull_from[part], cache, pull_to[part])

    def _zero(self, batch: int) -> None:
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            for table, name in ((transfers.loads, "load_slots"), (transfers.pulls, "pull_to")):
                if self.p.exchange is None:
                    slots = _bring(device, name, table.slot[table.retiring(batch)])
                else:  # the slots came with the values
                    slots = device.buffer(name)[: len(table.retiring(batch))]
                device.zero_rows(device.buffer("gradient_cache"), slots)

    def _push(self, batch: int) -> None:
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.pulls
            pick = table.opening(batch)
            by_peer = np.argsort(table.peer[pick], kind="stable")
            push_from = _bring(device, "push_from", table.slot[pick][by_peer])
            push_to = _bring(device, "push_to", table.peer_slot[pick][by_peer])
            for p, part in self._peers(table.peer[pick][by_peer]):
                peer_cache = self.devices[p].buffer("gradient_cache")
                device.push_rows(device.buffer("gradient_cache"), push_from[part], peer_cache, push_to[part])

    def _flush(self, batch: int) -> None:
        assert self.p.flush is not None
        for device, transfers in zip(self.devices, self.plan.devices, strict=True):
            table = transfers.loads
            pick = table.opening(batch)
            slots = _bring(device, "flush_slots", table.slot[pick])
            device.flush_rows(device.buffer("gradient_cache"), slots, self.host[self.p.flush], table.row[pick])

    def _peers(self, sorted_peer: np.ndarray) -> list[tuple[int, slice]]:
        """The range of each peer in an array sorted by peer."""
        bounds = np.searchsorted(sorted_peer, np.arange(len(self.devices) + 1))
        return [
            (p, slice(int(bounds[p]), int(bounds[p + 1])))
            for p in range(len(self.devices))
            if bounds[p] < bounds[p + 1]
        ]


def _bring(device: CpuDevice, name: str, array: np.ndarray) -> Tensor:
    return device.bring(name, array, "topology")
