"""The execution plan: what runs, in which memory, and the traffic that this takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.metrics import Traffic
from hongtu.plan.cache.transfer import DeviceCounts, DeviceTransfers
from hongtu.plan.memory.buffers import PlannedMemory
from hongtu.plan.memory.structure import Needs, device_entries
from hongtu.plan.passes.definition import FEATURES, Pass


class ExecutionPlan(PlannedMemory):
    """Everything that is decided before the first epoch; the runtime replays it and decides nothing."""

    @property
    def traffic(self) -> Traffic:
        """Predicted traffic of one training epoch."""
        return self._traffic_of(self.passes.train)

    @property
    def setup_traffic(self) -> Traffic:
        """Predicted traffic of what runs once before the first epoch, resident features and structure included."""
        traffic = self._traffic_of(self.passes.setup)
        if self.choice.structure:
            traffic.add("topology", sum(self.structure_bytes(i) for i in range(self.topology.partitions)))
        if FEATURES in self.resident:
            traffic.add("read", self.topology.num_vertices * self.shape.features * self.shape.itemsize)
        return traffic

    @property
    def bytes(self) -> dict[str, int]:
        """Predicted bytes per link of one training epoch (links: :mod:`hongtu.metrics`)."""
        return self.traffic.bytes

    @property
    def rows(self) -> dict[str, int]:
        """Predicted rows per sparse link of one training epoch."""
        return self.traffic.rows

    def _traffic_of(self, passes: Sequence[Pass]) -> Traffic:
        return sum((self.pass_traffic(p) for p in passes), Traffic())

    def pass_traffic(self, p: Pass) -> Traffic:
        """Predicted traffic of one pass over all devices."""
        return sum((self.device_traffic(p, i) for i in range(self.topology.partitions)), Traffic())

    def device_traffic(self, p: Pass, device: int) -> Traffic:
        """Predicted traffic of one pass on one device."""
        traffic, width, item = Traffic(), self.passes.width, self.shape.itemsize
        view, needs = self.view(p), self.needs(p)
        v = device_entries(view)[device].busy["destinations"]
        sparse = () if self.shape.sparse_input is None else (FEATURES,)
        read = sum(width[name] for name in (*p.inputs, *p.gradients) if name not in (*self.resident, *sparse))
        traffic.add("read", v * (read * item + needs.labels * (self.shape.label_bytes + 1)))
        if sparse and FEATURES in p.inputs:
            traffic.add("read", self._sparse_bytes(view, device))
        written = sum(width[name] for name in p.written if name not in self.resident)
        traffic.add("write", v * written * item)
        transfers = self.transfers[p.name].devices[device] if p.name in self.transfers else None
        if transfers is not None:
            traffic += self._sparse_traffic(p, transfers)
        traffic.add("topology", self._topology_bytes(p, needs, device, transfers))
        return traffic

    def _sparse_bytes(self, view: Topology, device: int) -> int:
        """CSR rows that a pass reads to one device: the starts of every busy chunk and one more, columns, values."""
        own = slice(device * view.chunks, (device + 1) * view.chunks)
        num_dst, numbers = view.num_dst[own], self.shape.sparse_input.numbers(view)[own]
        starts = int(num_dst.sum()) + int(np.count_nonzero(num_dst))
        return 8 * starts + int(numbers.sum()) * (4 + self.shape.itemsize)

    def _sparse_traffic(self, p: Pass, device: DeviceTransfers | DeviceCounts) -> Traffic:
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

    def _topology_bytes(
        self, p: Pass, needs: Needs, device: int, transfers: DeviceTransfers | DeviceCounts | None
    ) -> int:
        """Structure and plan arrays that a pass copies to one device."""
        t, item = self.view(p), self.shape.itemsize
        entries = device_entries(t)[device].busy
        total = (t.active is not None) * 4 * (1 + needs.identity) * entries["destinations"]
        if not self.structure_stays(p):
            total += sum(array.nbytes(entries[array.over], item) for array in needs.structure.values())
        if needs.edges:
            assert transfers is not None
            loads, pulls = len(transfers.loads), len(transfers.pulls)
            if p.exchange is not None:
                total += 8 * (loads + pulls)
            if p.flush is not None:
                total += 4 * loads + 8 * pulls + (4 * (loads + pulls) if p.exchange is None else 0)
        return total

    def to_dict(self) -> dict[str, Any]:
        """What ``hongtu plan --json`` and run records show."""
        traffic = self.traffic
        return {"rows": traffic.rows, "bytes": traffic.bytes, "peak_bytes": self.peak_bytes}
