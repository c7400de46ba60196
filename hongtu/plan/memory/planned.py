"""What a training run keeps in memory: every buffer of every pass, on each device and on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hongtu.graph.halo import Crossing, Halo
from hongtu.graph.topology import Topology
from hongtu.plan.memory.buffers import Buffer, cache_buffers, pass_buffers, staged
from hongtu.plan.memory.disk import DiskLayout, disk_staging, lay_out
from hongtu.plan.memory.host import HostPlacement
from hongtu.plan.memory.slab import Places, Price, stacked
from hongtu.plan.memory.structure import FLOAT, Over, nbytes_of, spans
from hongtu.plan.passes.definition import FEATURES, Pass, PassList
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import ONCE

INDEX, STEP = 8, 4  # bytes of where a row is, and of when it leaves


@dataclass(frozen=True)
class Crossings:
    """Those of all passes; without a halo none.

    Attributes:
        row: bytes of a row of a tensor on the host, as it crosses.
    """

    passes: PassList
    shape: NetworkShape
    halo: Halo | None
    row: Mapping[str, int]

    def fetched(self, p: Pass) -> tuple[Crossing, ...]:
        """The rounds in which ranks fetch of one another what a pass exchanges; backward finds the rows there."""
        return self._of(p, None if self.halo is None or p.direction == "backward" else self.halo.fetched, p.exchange)

    def sent_back(self, p: Pass) -> tuple[Crossing, ...]:
        """Those in which they send what it flushes."""
        return self._of(p, None if self.halo is None else self.halo.sent, p.flush)

    def _of(self, p: Pass, rounds: Sequence[tuple[Crossing, ...]] | None, name: str | None) -> tuple[Crossing, ...]:
        layers = self.shape.graph_layers
        return () if rounds is None or name is None or p.layer not in layers else rounds[layers.index(p.layer)]

    def next_fetched(self, p: Pass) -> tuple[tuple[str, Crossing], ...]:
        """What the next pass fetches of this one's rows in its first round: they leave while this one goes on."""
        following = self._following.get(p.name)
        if following is None or following.exchange is None or following.exchange not in p.outputs:
            return ()
        return tuple((following.exchange, crossing) for crossing in self.fetched(following)[:1])

    def posted(self, p: Pass) -> Crossing | None:
        """The round of what a pass fetches that the one before it has sent."""
        before = next((q for q in self.passes.every if self._following.get(q.name) is p), None)
        sent = () if before is None else self.next_fetched(before)
        return sent[0][1] if sent else None

    @cached_property
    def _following(self) -> dict[str, Pass]:
        """By the name of a pass, the next one."""
        groups = self.passes.train, self.passes.evaluate
        return {p.name: following for passes in groups for p, following in pairwise(passes)}

    @property
    def nbytes(self) -> int | None:
        """The most bytes that are on their way at a time; None where no rank fetches any."""
        if self.halo is None:
            return None
        found = [0]
        for p in self.passes.every:
            found += [crossing.both * self.row[str(p.exchange)] for crossing in self.fetched(p)]
            found += [crossing.both * self.row[str(p.flush)] for crossing in self.sent_back(p)]
        return max(found)

    @property
    def index_bytes(self) -> int:
        """Of what says in which order rows leave and arrive in passes that post them."""
        total = 0
        for p in (*self.passes.train, *self.passes.evaluate):
            for crossing in self.sent_back(p)[:1]:
                total += INDEX * crossing.both + STEP * crossing.rows
            for _, crossing in self.next_fetched(p):
                total += INDEX * crossing.both + STEP * (crossing.both - crossing.rows)
        return total


class PlannedMemory(HostPlacement):
    """The buffers that passes need, and the bytes that they take."""

    def structure_bytes(self, device: int) -> int:
        """Bytes of the structure that stays on a device."""
        arrays = [(p, array) for p, _, array in self.structure.values()]
        arrays += [(p, array) for p in self.edge_orders.values() for _, array in self.edge_order(p).values()]
        entries = ((int(self.spans_of(self.structure_view(p))[device][array.over][-1]), array) for p, array in arrays)
        return sum(nbytes_of(array.shape(count), array.dtype, self.shape.itemsize) for count, array in entries)

    def spans_of(self, view: int | None) -> list[dict[Over, np.ndarray]]:
        """By device, where every chunk of a view begins in what stays there."""
        if view not in self._spans:
            self._spans[view] = [spans(self.views[view], i) for i in self.devices]
        return self._spans[view]

    @cached_property
    def _spans(self) -> dict[int | None, list[dict[Over, np.ndarray]]]:
        return {}

    @property
    def once(self) -> tuple[Topology, np.ndarray] | None:
        """The chunks and the schedule of setup passes, where they have their own."""
        return (self.views[ONCE], self.schedules[ONCE]) if ONCE in self.views else None

    @cached_property
    def device_bytes(self) -> dict[str, int]:
        """Planned peak bytes of every device, "device 0", ...: buffers and, where it was probed, the workspace."""
        return self._device_bytes(self.workspace)

    @cached_property
    def likely_bytes(self) -> int:
        """About the most that one device holds without a limit: the same with what layers take then, which is probed
        where it is asked for."""
        return max(self._device_bytes(self.probe(self)).values())

    def _device_bytes(self, workspace: Mapping[str, int]) -> dict[str, int]:
        peaks = {}
        for i in self.devices:
            taken = (self.pass_arena(p, i) + self.taken_beside(p, workspace) for p in self.passes.every)
            peaks[f"device {i}"] = max(taken)
        return peaks

    def taken_beside(self, p: Pass, workspace: Mapping[str, int] | None = None) -> int:
        """Bytes that layers take at most beside the planned buffers of a pass, where they were probed. A slab is there
        in all of its passes, so that beside it is what layers take in any of these."""
        passes = [q for q in self.passes.every if self._in_slab(q)] if self._in_slab(p) else [p]
        return max((self.workspace if workspace is None else workspace).get(q.name, 0) for q in passes)

    def _in_slab(self, p: Pass) -> bool:
        """Whether the buffers of a pass lie in a slab: it runs again and again where devices have their own memory."""
        return self.choice.staging > 0 and self.choice.slab and p.when != "setup"

    def keeps_scripts(self, p: Pass) -> bool:
        """Whether what one copy brings in a batch of a pass is packed once."""
        return self.choice.staging > 0 and self.choice.scripts and p.when == "train"

    def pass_arena(self, p: Pass, device: int) -> int:
        """Planned bytes of one pass on one device, the model and resident tensors included; of a slab up to the last
        that the pass uses."""
        return self.prices[device][p.name].peak(self.capacity(p, device))

    @cached_property
    def prices(self) -> list[dict[str, Price]]:
        """Of every device, what passes take of it, by pass name; their transfers need not be planned."""
        return [dict(self._prices(i)) for i in self.devices]

    def _prices(self, device: int) -> Iterator[tuple[str, Price]]:
        """The one account of a device's memory: what set-up leaves stays below the tensors that passes make, and free
        again, and these below the buffers of a pass."""
        item, sets = self.shape.itemsize, self.choice.staging
        beside = self.shape.model_bytes + self.structure_bytes(device)
        there = {name: self.resident_bytes(name, device) for name in self.placed & {FEATURES}}
        yield "setup", Price(beside, sum(there.values()), (), slab=False, at={})
        for passes in (self.passes.setup, self.passes.train, self.passes.evaluate):
            places = Places()
            for p in passes:
                made = {name: self.resident_bytes(name, device) for name in p.creates if name in self.placed}
                there |= made
                own, on_host = self._buffers(p, device)
                if slab := self._in_slab(p):
                    at = {name: places.put(name, nbytes) for name, nbytes in made.items()}
                    fixed = places.height + stacked(own, on_host, sets, item)
                else:
                    at = {}
                    fixed = sum(there.values()) + sum(buffer.nbytes(item) for buffer in own.values())
                rows = tuple(buffer.nbytes(item) for buffer in cache_buffers(self, p, 1).values())
                yield p.name, Price(beside, fixed, rows, slab, at)
                for name in there.keys() & set(p.frees):
                    del there[name]
                    if slab:
                        places.free(name)
            if passes is self.passes.setup:
                beside += sum(there.values())
                there = {}
            assert not there, f"nobody frees {there}"

    @cached_property
    def slabs(self) -> tuple[int, ...]:
        """Bytes of every device's slab; () where the devices' memory is the host's."""
        passes = [p for p in self.passes.every if self._in_slab(p)]
        prices = self.prices if passes else []
        return tuple(max(of[p.name].height(self.capacity(p, i)) for p in passes) for i, of in enumerate(prices))

    def place_of(self, p: Pass, name: str) -> tuple[int, ...]:
        """Where a tensor that a pass makes and that stays begins in every device's slab; () where it lies elsewhere."""
        return tuple(of[p.name].at[name] for of in self.prices if name in of[p.name].at)

    def buffers(self, p: Pass, device: int) -> dict[str, Buffer]:
        """The device buffers that a pass allocates, by name."""
        return self._buffers(p, device)[0] | cache_buffers(self, p, self.capacity(p, device))

    def host_staging(self, p: Pass, device: int) -> dict[str, Buffer]:
        """The pinned staging memory of a pass for one device, by name."""
        return self._buffers(p, device)[1] | disk_staging(self, self.disk, p, device, self.disk_sets(p))

    def disk_sets(self, p: Pass) -> int:
        """Of staging memory between the host and the disk in a pass: two where rows come a batch ahead; what runs once
        leaves that to the chunks that stay in memory."""
        ahead = self.strategy.overlap and self.choice.ahead and p.when != "setup"
        return self.choice.staging or 1 + ahead

    @cached_property
    def disk(self) -> DiskLayout:
        """Where rows lie below the host."""
        return lay_out(self)

    def _buffers(self, p: Pass, device: int) -> tuple[dict[str, Buffer], dict[str, Buffer]]:
        own = pass_buffers(self, p, device)
        return staged(self, p, device, own, self.host_dtype) if self.choice.staging else (own, {})

    def capacity(self, p: Pass, device: int) -> int:
        """Slots of a pass's caches; the fewest that work where its transfers are not planned."""
        if p.name in self.transfers:
            return self.transfers[p.name].devices[device].capacity
        return self.limits_of(p)[device].slots

    def capacities(self, p: Pass, budget: int) -> tuple[int, ...]:
        """Slots of every device's caches in a pass that fill the budget, but never fewer than one batch needs nor
        more than there are rows."""
        most, capacities = self.topology.num_vertices, []
        for prices, limits in zip(self.prices, self.limits_of(p), strict=True):
            slots = prices[p.name].slots(budget - self.taken_beside(p))
            capacities.append(max(limits.slots, most if slots is None else min(slots, most)))
        return tuple(capacities)

    def resident_bytes(self, name: str, device: int) -> int:
        rows = Buffer((self.resident_rows(name, device), self.passes.width[name]), FLOAT, padded=self.apart)
        return rows.nbytes(self.shape.itemsize)

    @cached_property
    def crossings(self) -> Crossings:
        """What ranks send each other."""
        rows = {name: self.host_row(name) for name in self.passes.width}
        return Crossings(self.passes, self.shape, self.choice.halo, rows)

    @property
    def _pageable(self) -> int:
        v, item = self.topology.num_vertices, self.shape.itemsize
        identity = self.shape.uses_edge_ids
        labels = any(p.loss for p in self.passes.train) * (self.shape.label_bytes + 1)
        beside = self.shape.learned_bytes + self.shape.loss_bytes + self.shape.rows_bytes
        if self.shape.sparse_input is not None:
            beside += self.shape.sparse_input.nbytes(item)
        beside += (self.crossings.nbytes or 0) + self.crossings.index_bytes
        beside += 2 * self.shape.gathered[0] * self.shape.output * item  # and their gradients
        row = labels + 8 + self.shape.statistics_columns * item + identity * 8  # ids, ...
        beside += sum(buckets.nbytes for buckets in self.disk.buckets)
        return v * row + beside + sum(array.nbytes for array in self.arrays())

    def forget(self) -> None:
        """Drop what its views remember, which may be as large as the plan; who needs it again finds it again."""
        for view in self.views.values():
            view.memo.clear()

    def arrays(self) -> list[np.ndarray]:
        """The graph's structure and the plan's own arrays but the order of rows on the disk, each once."""
        found: dict[int, np.ndarray] = {}
        planned = (*self.transfers.values(), *self.writers.values())
        beside = (*planned, self.choice.halo)
        _collect((self.topology, *self.views.values(), *self.schedules.values(), *beside), found)
        return list(found.values())


def _collect(value: Any, found: dict[int, np.ndarray]) -> None:
    if isinstance(value, np.ndarray):
        found[id(value)] = value
    elif isinstance(value, list | tuple):
        for entry in value:
            _collect(entry, found)
    elif is_dataclass(value):
        for part in fields(value):
            _collect(getattr(value, part.name), found)
