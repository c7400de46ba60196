"""The slow interpreter of transfer plans: the definition of what a plan means, and the oracle of its tests.

It replays load / pull / push / flush / retire one row at a time on plain numpy, keeps the true content of every slot
and fails on the first breach of an invariant. A slot without a live row holds NaN.
"""

from __future__ import annotations

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.cache.transfer import TransferPlan


class Cache:
    """One device's slots, with the row that each of them holds (-1 = none)."""

    def __init__(self, capacity: int, width: int) -> None:
        self.value = np.full((capacity, width), np.nan)
        self.row = np.full(capacity, -1)

    def open(self, slot: int, row: int, value: np.ndarray) -> None:
        assert 0 <= slot < len(self.row), "capacity exceeded"
        assert self.row[slot] == -1, f"slot {slot} still holds live row {self.row[slot]}"
        assert row not in self.row, f"row {row} is live twice on one device"
        self.row[slot], self.value[slot] = row, value

    def close(self, slot: int, row: int) -> np.ndarray:
        assert self.row[slot] == row, f"slot {slot} holds {self.row[slot]}, not {row}"
        value = self.value[slot].copy()
        self.row[slot], self.value[slot] = -1, np.nan
        return value

    def read(self, slot: int, row: int) -> np.ndarray:
        assert self.row[slot] == row, f"slot {slot} holds {self.row[slot]}, not {row}"
        return self.value[slot]


class Interpreter:
    """Replays one plan over one topology; ``moved`` counts rows per link."""

    def __init__(self, topology: Topology, plan: TransferPlan, width: int = 2) -> None:
        self.topology, self.plan, self.width = topology, plan, width
        self.moved = {"load": 0, "pull": 0, "push": 0, "flush": 0}

    def caches(self) -> list[Cache]:
        return [Cache(device.capacity, self.width) for device in self.plan.devices]

    def chunk(self, device: int, batch: int):
        return self.topology.chunk(device * self.topology.chunks + int(self.plan.schedule[device, batch]))

    def edges(self, device: int, batch: int):
        """(source slot, source row, destination row, weight) of every edge of a chunk."""
        chunk, slots = self.chunk(device, batch), self.plan.devices[device].slots(batch)
        for d in range(chunk.num_dst):
            for e in range(chunk.indptr[d], chunk.indptr[d + 1]):
                local = chunk.local_source[e]
                weight = 1.0 if chunk.edge_weight is None else float(chunk.edge_weight[e])
                yield slots[local], chunk.sources[local], chunk.first + d, weight

    def fill(self, caches: list[Cache], host: np.ndarray, picks: list[tuple[object, object]]) -> None:
        for i, (loads, _) in enumerate(picks):
            table = self.plan.devices[i].loads
            for k in np.arange(len(table))[loads]:
                caches[i].open(table.slot[k], table.row[k], host[table.row[k]])
                self.moved["load"] += 1
        for i, (_, pulls) in enumerate(picks):
            table = self.plan.devices[i].pulls
            for k in np.arange(len(table))[pulls]:
                value = caches[table.peer[k]].read(table.peer_slot[k], table.row[k])
                caches[i].open(table.slot[k], table.row[k], value)
                self.moved["pull"] += 1

    def opening(self, batch: int) -> list[tuple[slice, slice]]:
        return [(d.loads.opening(batch), d.pulls.opening(batch)) for d in self.plan.devices]

    def retiring(self, batch: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(d.loads.retiring(batch), d.pulls.retiring(batch)) for d in self.plan.devices]

    def retire(self, caches: list[Cache], picks: list[tuple[object, object]]) -> None:
        for i, (loads, pulls) in enumerate(picks):
            for table, pick in ((self.plan.devices[i].loads, loads), (self.plan.devices[i].pulls, pulls)):
                for k in np.arange(len(table))[pick]:
                    caches[i].close(table.slot[k], table.row[k])

    def forward(self, host: np.ndarray) -> np.ndarray:
        """A @ host."""
        out = np.zeros((self.topology.num_vertices, self.width))
        caches = self.caches()
        for b in range(self.plan.num_batches):
            self.fill(caches, host, self.opening(b))
            for i in range(self.topology.partitions):
                for slot, row, dst, weight in self.edges(i, b):
                    out[dst] += weight * caches[i].read(slot, row)
            self.retire(caches, self.retiring(b))
        self.check_empty(caches)
        return out

    def backward(self, gradient: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        """A.T @ gradient; with ``values`` every source's value is brought again and checked (recomputation)."""
        out = np.zeros((self.topology.num_vertices, self.width))
        caches = self.caches()
        value_caches = self.caches()
        for b in reversed(range(self.plan.num_batches)):
            if values is not None:
                self.fill(value_caches, values, self.retiring(b))
            for i, picks in enumerate(self.retiring(b)):
                for table, pick in zip((self.plan.devices[i].loads, self.plan.devices[i].pulls), picks, strict=True):
                    for k in pick:
                        caches[i].open(table.slot[k], table.row[k], np.zeros(self.width))
            for i in range(self.topology.partitions):
                for slot, row, dst, weight in self.edges(i, b):
                    caches[i].read(slot, row)[:] += weight * gradient[dst]
                    if values is not None:
                        assert np.array_equal(value_caches[i].read(slot, row), values[row])
            self.push_and_flush(caches, out, b)
            if values is not None:
                self.retire(value_caches, self.opening(b))
        self.check_empty(caches)
        self.check_empty(value_caches)
        return out

    def push_and_flush(self, caches: list[Cache], host: np.ndarray, batch: int) -> None:
        for i, device in enumerate(self.plan.devices):
            table = device.pulls
            for k in range(len(table))[table.opening(batch)]:
                value = caches[i].close(table.slot[k], table.row[k])
                caches[table.peer[k]].read(table.peer_slot[k], table.row[k])[:] += value
                self.moved["push"] += 1
        for i, device in enumerate(self.plan.devices):
            table = device.loads
            for k in range(len(table))[table.opening(batch)]:
                host[table.row[k]] += caches[i].close(table.slot[k], table.row[k])
                self.moved["flush"] += 1

    @staticmethod
    def check_empty(caches: list[Cache]) -> None:
        assert all((cache.row == -1).all() for cache in caches), "a row was never retired"
