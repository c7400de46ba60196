"""Where below the host, as on a disk, the rows of spilled tensors lie: region by region, each for one use, in the
order of that use, where regions lay that no later pass reads.

A pass gives a tensor's own rows, in the order of vertices; again those rows that a later pass loads, batch by batch;
and gradient rows that its caches let go, chunk by chunk. So whatever is read is read in one piece, and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import lcm

import numpy as np

from hongtu.host import CACHE_LINE, DISK_BLOCK
from hongtu.plan.cache.buckets import Buckets, Side, make_buckets
from hongtu.plan.cache.transfer import TransferPlan
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.host import HostPlacement
from hongtu.plan.memory.slab import Places
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Pass

Key = tuple[str, str]  # of a pass and a tensor
EVEN = 16  # rows, of which a set of staging memory has a multiple: every set is aligned like memory of its own


@dataclass(eq=False)
class Region:
    """Rows that go between the chunks of one pass and the batches of another.

    Attributes:
        buckets: of every device, their order.
        row: bytes of one.
        begin: of every device, the first byte on the disk, once it has a place.
    """

    buckets: tuple[Buckets, ...]
    row: int
    begin: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.buckets)) * self.row

    def begin_at(self, first: int) -> None:
        """Lie there from a byte on, device by device."""
        self.begin = tuple(accumulate((len(one) * self.row for one in self.buckets[:-1]), initial=first))


@dataclass(eq=False)
class DiskLayout:
    """All regions.

    Attributes:
        nbytes: of every memory that has some, from the first byte to the last.
        own: where the own rows begin that a pass gives of a tensor; ``flushed``: the rows that its caches let go;
            ``loaded``: those that it loads.
        takers: of what a pass gives, the rows that later passes load; of the features, under "".
        givers: which passes gave what a pass reads of a tensor, in order.
    """

    nbytes: dict[str, int] = field(default_factory=dict)
    own: dict[Key, int] = field(default_factory=dict)
    flushed: dict[Key, Region] = field(default_factory=dict)
    loaded: dict[Key, Region] = field(default_factory=dict)
    takers: dict[Key, list[Region]] = field(default_factory=dict)
    givers: dict[Key, tuple[Pass, ...]] = field(default_factory=dict)

    @property
    def buckets(self) -> list[Buckets]:
        """Of all regions, each once."""
        every = (one for region in (*self.flushed.values(), *self.loaded.values()) for one in region.buckets)
        return list({id(one): one for one in every}.values())

    @property
    def tables(self) -> int:
        """Bytes of their tables of batches and chunks, which are the host's."""
        return sum(one.tables for one in self.buckets)

    @property
    def ends(self) -> int:
        """How many places of regions a pass appends rows to in turns, at most."""
        groups = (*self.takers.values(), *([region] for region in self.flushed.values()))
        return max(
            (sum(max(one.every.shape) for region in group for one in region.buckets) for group in groups), default=0
        )


def lay_out(plan: HostPlacement) -> DiskLayout:
    """The regions of a plan whose transfers are planned, if any lie below the host."""
    layout, passes = DiskLayout(), plan.passes
    lasting = plan.kept.keys() & (passes.constant | {FEATURES})
    stay = _regions(plan, layout, sorted(lasting), passes.every, len(passes.setup))
    for group in (passes.setup, passes.train, passes.evaluate):  # each writes over the last one's rows
        there = [region for region in stay if region.last is None or group is passes.setup]
        own = _regions(plan, layout, sorted(plan.kept.keys() - lasting), group, len(group))
        for where in sorted(set(map(plan.below, plan.kept))):
            end = _place([region for region in (*there, *own) if region.where == where])
            layout.nbytes[where] = max(layout.nbytes.get(where, 0), end)
    return layout


@dataclass(frozen=True)
class _Wanted:
    """A place for what one pass gives and others read.

    Attributes:
        where: the memory.
        nbytes: how many.
        first: the number of the pass that writes it, or -1.
        last: that of the pass that reads it last; None: it stays.
        put: is told the first byte.
    """

    where: str
    nbytes: int
    first: int
    last: int | None
    put: Callable[[int], None]


def _place(wanted: Sequence[_Wanted]) -> int:
    """Tell all where they lie, those that stay first; returns the byte behind the last. Passes run one after another:
    what one reads for the last time makes room for what the next writes."""
    places, there, end = Places(), list[_Wanted](), 0
    for new in sorted(wanted, key=lambda one: -1 if one.last is None else one.first + 1):
        for old in [one for one in there if one.last is not None and one.last < new.first]:
            places.free(old)
            there.remove(old)
        new.put(places.put(new, new.nbytes))
        there.append(new)
        end = max(end, places.height)
    return end


def _regions(
    plan: HostPlacement, layout: DiskLayout, names: Sequence[str], passes: Sequence[Pass], once: int
) -> list[_Wanted]:
    """All of some tensors that passes give one another, without their places. What is read by one after the first
    ``once`` stays."""
    found, trains = list[_Wanted](), any(p.direction == "backward" for p in passes)

    def want(name: str, nbytes: int, first: int, last: int, put: Callable[[int], None]) -> None:
        found.append(_Wanted(plan.below(name), nbytes, first, last if last < once else None, put))

    for name in names:
        givers: dict[str, int] = {}
        last: dict[str, int] = {}
        for k, p in enumerate(passes):
            writes, reads = name in p.written or p.flush == name, name in (*p.inputs, *p.gradients)
            assert not (reads and writes), f"{p.name} reads and writes {name}"
            if reads and name != FEATURES:
                layout.givers[p.name, name] = tuple(passes[giver] for giver in givers.values())
                last |= dict.fromkeys(givers, k)
            if p.exchange == name and _moves(plan, p):
                (giver,) = givers.values() or (None,)  # values have one
                start = plan.topology.chunk_start if giver is None else plan.view(passes[giver]).chunk_start
                region = _region(plan, p, name, start, "batch", retiring=p.direction == "backward")
                layout.loaded[p.name, name] = region
                layout.takers.setdefault(("" if giver is None else passes[giver].name, name), []).append(region)
                want(name, region.nbytes, -1 if giver is None else giver, k, region.begin_at)
            if writes:
                givers[p.name] = k
        for k in givers.values():
            p = passes[k]
            if name == OUTPUT and not (trains and p.name in last):  # whoever infers reads that
                last[p.name] = once
            if name in p.written and p.name in last:
                laid = laid_rows(plan, p, name)
                rows = int(plan.kept[name].at(plan.topology.num_vertices)) if laid is None else len(laid)
                want(name, rows * plan.disk_row(name), k, last[p.name], partial(layout.own.__setitem__, (p.name, name)))
            if p.flush == name and _moves(plan, p):
                start, backward = plan.view(p).chunk_start, p.direction == "backward"
                region = _region(plan, p, name, start, "chunk", retiring=not backward)
                layout.flushed[p.name, name] = region
                want(name, region.nbytes, k, last.get(p.name, k), region.begin_at)
    return found


def laid_rows(plan: HostPlacement, p: Pass, name: str) -> np.ndarray | None:
    """int32, the vertices whose rows lie behind one another where a pass lays its own of a tensor; None: all."""
    return None if name == OUTPUT or name in plan.passes.of_edges else plan.view(p).active


def _moves(plan: HostPlacement, p: Pass) -> bool:
    found = plan.transfers.get(p.name)
    return isinstance(found, TransferPlan) and any(len(device.loads) for device in found.devices)


def _region(plan: HostPlacement, p: Pass, name: str, chunk_start: np.ndarray, by: Side, *, retiring: bool) -> Region:
    transfers, known = plan.exchange_plan(p), plan.known
    buckets = list[Buckets]()
    chunks, backward = (len(chunk_start) - 1) // len(transfers.devices), p.direction == "backward"
    order = range(plan.schedule(p).shape[1])[:: -1 if backward else 1]
    for i, device in enumerate(transfers.devices):
        begins = int(plan.kept[name].end[i])
        same = id(device.loads), id(chunk_start), by, retiring, backward
        every, some = (*same, 0), (*same, begins)
        if every not in known:
            own = chunk_start[i * chunks : (i + 1) * chunks + 1]
            known[every] = make_buckets(device.loads, own, order, by, retiring=retiring)
        if some not in known:
            known[some] = replace(known[every], begins=begins)
        buckets.append(known[some])
    return Region(tuple(buckets), plan.disk_row(name))


def is_straight(plan: HostPlacement, layout: DiskLayout, p: Pass, name: str) -> bool:
    """Whether a pass finds the rows of a tensor as they are, and need not put them together."""
    givers = layout.givers[p.name, name]
    return (
        len(givers) == 1
        and givers[0].flush != name
        and name not in givers[0].direct
        and plan.view(givers[0]).active is None
    )


def disk_staging(plan: HostPlacement, layout: DiskLayout, p: Pass, device: int, sets: int) -> dict[str, Buffer]:
    """The host memory through which a pass's rows come from the disk and go there, for one device, by name."""
    start, n, found = plan.view(p).chunk_start, plan.view(p).chunks, dict[str, Buffer]()
    for name, kept in sorted(plan.kept.items()):
        ends = kept.at(start[device * n : (device + 1) * n + 1])
        most = -(-int(np.diff(ends).max()) // EVEN) * EVEN
        columns, dtype = plan.passes.width[name], plan.host_dtype(name)
        reads = name in (*p.inputs, *p.gradients)
        straight = reads and (name == FEATURES or is_straight(plan, layout, p, name))
        if reads or name in p.written:
            rows = _room(most, plan.host_row(name)) if straight else most
            found[f"disk {name}"] = Buffer((rows, columns), dtype, sets)
        if reads and not straight:
            flushed = (layout.flushed.get((giver.name, name)) for giver in layout.givers[p.name, name])
            rows = max([most, *(region.buckets[device].most_of_chunk for region in flushed if region is not None)])
            found[f"parts {name}"] = Buffer((rows, columns), dtype)
        region = layout.loaded.get((p.name, name)) or layout.flushed.get((p.name, name))
        if region is not None:
            found[f"bucket {name}"] = Buffer((region.buckets[device].most_of_batch, columns), dtype, sets)
    return found


def _room(rows: int, row_bytes: int) -> int:
    """How many rows have room for so many that come from a file in whole blocks; sets of them begin with a block.

    >>> _room(16, 512), _room(16, 188)
    (32, 16)
    """
    if row_bytes % CACHE_LINE:  # few of them begin where they could come to
        return rows
    step = lcm(EVEN * row_bytes, DISK_BLOCK)
    return -(-(rows * row_bytes + 2 * DISK_BLOCK) // step) * step // row_bytes
