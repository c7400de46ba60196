"""Where below the host, as on a disk, the rows of spilled tensors lie: region by region, each for one use, in the
order of that use.

A pass gives a tensor's own rows, in the order of vertices; again those rows that a later pass loads, batch by batch;
and gradient rows that its caches let go, chunk by chunk. So whatever is read is read in one piece, and written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import lcm

import numpy as np

from hongtu.hardware import aligned
from hongtu.host import CACHE_LINE, DISK_BLOCK
from hongtu.plan.cache.buckets import Buckets, Side, make_buckets
from hongtu.plan.cache.transfer import TransferPlan
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.host import HostPlacement
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Pass

Key = tuple[str, str]  # of a pass and a tensor
EVEN = 16  # rows, of which a set of staging memory has a multiple: every set is aligned like memory of its own


@dataclass(frozen=True, eq=False)
class Region:
    """Rows that go between the chunks of one pass and the batches of another.

    Attributes:
        begin: of every device, the first byte on the disk.
        buckets: of every device, their order.
    """

    begin: tuple[int, ...]
    buckets: tuple[Buckets, ...]


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
    lasting = sorted(plan.kept.keys() & (passes.constant | {FEATURES}))
    at = dict.fromkeys(map(plan.below, sorted(plan.kept)), 0)
    for name in lasting:
        at[plan.below(name)] = _add(plan, layout, name, passes.every, at[plan.below(name)])
    layout.nbytes = at
    for group in (passes.setup, passes.train, passes.evaluate):  # each writes over the last one's rows
        end = dict(at)
        for name in sorted(plan.kept.keys() - lasting):
            end[plan.below(name)] = _add(plan, layout, name, group, end[plan.below(name)])
        layout.nbytes = {where: max(nbytes, end[where]) for where, nbytes in layout.nbytes.items()}
    return layout


def _add(plan: HostPlacement, layout: DiskLayout, name: str, passes: Sequence[Pass], at: int) -> int:
    """Regions of one tensor, from a byte on; returns the byte behind them."""
    givers: list[Pass] = []
    wanted: set[str] = set()
    for p in passes:
        writes, reads = name in p.written or p.flush == name, name in (*p.inputs, *p.gradients)
        assert not (reads and writes), f"{p.name} reads and writes {name}"
        if reads and name != FEATURES:
            layout.givers[p.name, name] = tuple(givers)
            wanted |= {giver.name for giver in givers}
        if p.exchange == name and _moves(plan, p):
            (giver,) = givers or (None,)  # values have one
            start = plan.topology.chunk_start if giver is None else plan.view(giver).chunk_start
            region, at = _region(plan, p, name, start, at, "batch", retiring=p.direction == "backward")
            layout.loaded[p.name, name] = region
            layout.takers.setdefault(("" if giver is None else giver.name, name), []).append(region)
        if writes:
            givers.append(p)
    for p in givers:
        if name in p.written and (p.name in wanted or name == OUTPUT):  # whoever infers reads that
            layout.own[p.name, name] = at = aligned(at)
            at += int(plan.kept[name].at(plan.topology.num_vertices)) * plan.disk_row(name)
        if p.flush == name and _moves(plan, p):
            start, backward = plan.view(p).chunk_start, p.direction == "backward"
            layout.flushed[p.name, name], at = _region(plan, p, name, start, at, "chunk", retiring=not backward)
    return at


def _moves(plan: HostPlacement, p: Pass) -> bool:
    found = plan.transfers.get(p.name)
    return isinstance(found, TransferPlan) and any(len(device.loads) for device in found.devices)


def _region(
    plan: HostPlacement, p: Pass, name: str, chunk_start: np.ndarray, at: int, by: Side, *, retiring: bool
) -> tuple[Region, int]:
    transfers, known = plan.exchange_plan(p), plan.known
    begin, buckets = list[int](), list[Buckets]()
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
        begin.append(at)
        at += len(buckets[i]) * plan.disk_row(name)
    return Region(tuple(begin), tuple(buckets)), at


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
