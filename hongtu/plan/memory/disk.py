"""Where below the host, as on a disk, the rows of spilled tensors lie: region by region, each for one use, in the
order of that use.

A pass gives a tensor's own rows, in the order of vertices; again those rows that a later pass loads, batch by batch;
and gradient rows that its caches let go, chunk by chunk. So whatever is read is read in one piece, and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.hardware import aligned
from hongtu.host import CACHE_LINE, DISK_BLOCK
from hongtu.plan.cache.buckets import Buckets, Side, make_buckets
from hongtu.plan.cache.transfer import TransferPlan
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.passes.definition import FEATURES, Pass, PassList

Known = dict[tuple[int, int, Side, bool, bool, int], Buckets]  # by intervals, chunks, how they are sorted, their first
Key = tuple[str, str]  # of a pass and a tensor
EVEN = 16  # rows, of which a set of staging memory has a multiple: every set is aligned like memory of its own


@dataclass(frozen=True, eq=False)
class Kept:
    """The rows of a tensor on the disk that are in host memory all the same, one partition's behind another's.

    Attributes:
        start, end: int64 [m], the first vertex of every partition, and the one behind those that are in memory.
        edges: the chunks whose in-edges the tensor has rows of; None: it has those of vertices.

    >>> kept = Kept(np.array([0, 10]), np.array([2, 13]))
    >>> kept.rows, kept.has(1, 12), kept.has(1, 13)
    (5, True, False)
    >>> kept.places(np.array([1, 2, 9, 10, 12, 13])).tolist()
    [1, 2, 4]
    """

    start: np.ndarray
    end: np.ndarray
    edges: Topology | None = None

    def at(self, vertex: Any) -> Any:
        """The row with which those of a vertex, or of several, begin, or would."""
        return vertex if self.edges is None else self.edges.in_edge_start[vertex]

    @property
    def rows(self) -> int:
        """How many there are."""
        return int((self.at(self.end) - self.at(self.start)).sum())

    def has(self, partition: int, first: int) -> bool:
        """Whether the rows of a chunk are among them, which begins with a vertex."""
        return first < int(self.end[partition])

    def places(self, rows: np.ndarray) -> np.ndarray:
        """int32, where those of some rows are that are among them."""
        start, end = self.at(self.start), self.at(self.end)
        partition = np.searchsorted(start, rows, side="right") - 1
        place = rows - (start - (np.cumsum(end - start) - (end - start)))[partition]
        return place[rows < end[partition]].astype(np.int32)


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
    def ends(self) -> int:
        """How many places of regions a pass appends rows to in turns, at most."""
        groups = (*self.takers.values(), *([region] for region in self.flushed.values()))
        return max(
            (sum(max(one.every.shape) for region in group for one in region.buckets) for group in groups), default=0
        )


class DiskPlan:
    """Lays regions out.

    Args:
        kept: of every tensor whose rows lie on the disk, those that do not.
        view: the chunks of a pass.
        transfers: of the passes that exchange or flush rows, by name.
        topology: the chunks by which the features are read.
        row: bytes of a row of a tensor; ``memory``: where its rows lie.
        known: orders that were found before; others join them.
    """

    def __init__(
        self,
        kept: Mapping[str, Kept],
        passes: PassList,
        view: Callable[[Pass], Topology],
        transfers: dict[str, TransferPlan],
        topology: Topology,
        row: Callable[[str], int],
        memory: Callable[[str], str],
        known: Known,
    ) -> None:
        self._passes, self._view, self._transfers, self._topology = passes, view, transfers, topology
        self._row, self._known, self._kept = row, known, kept
        self.layout = DiskLayout()
        lasting = sorted(kept.keys() & (passes.constant | {FEATURES}))
        at = dict.fromkeys(map(memory, sorted(kept)), 0)
        for name in lasting:
            at[memory(name)] = self._add(name, passes.every, at[memory(name)])
        self.layout.nbytes = at
        for group in (passes.setup, passes.train, passes.evaluate):  # each writes over the last one's rows
            end = dict(at)
            for name in sorted(kept.keys() - lasting):
                end[memory(name)] = self._add(name, group, end[memory(name)])
            self.layout.nbytes = {where: max(nbytes, end[where]) for where, nbytes in self.layout.nbytes.items()}

    def _add(self, name: str, passes: Sequence[Pass], at: int) -> int:
        """Regions of one tensor, from a byte on; returns the byte behind them."""
        layout = self.layout
        givers: list[Pass] = []
        wanted: set[str] = set()
        for p in passes:
            writes, reads = name in p.written or p.flush == name, name in (*p.inputs, *p.gradients)
            assert not (reads and writes), f"{p.name} reads and writes {name}"
            if reads and name != FEATURES:
                layout.givers[p.name, name] = tuple(givers)
                wanted |= {giver.name for giver in givers}
            if p.exchange == name and self._moves(p):
                (giver,) = givers or (None,)  # values have one
                start = self._topology.chunk_start if giver is None else self._view(giver).chunk_start
                region, at = self._region(p, name, start, at, "batch", retiring=p.direction == "backward")
                layout.loaded[p.name, name] = region
                layout.takers.setdefault(("" if giver is None else giver.name, name), []).append(region)
            if writes:
                givers.append(p)
        for p in givers:
            if name in p.written and p.name in wanted:
                layout.own[p.name, name] = at = aligned(at)
                at += int(self._kept[name].at(self._topology.num_vertices)) * self._row(name)
            if p.flush == name and self._moves(p):
                start, backward = self._view(p).chunk_start, p.direction == "backward"
                layout.flushed[p.name, name], at = self._region(p, name, start, at, "chunk", retiring=not backward)
        return at

    def _moves(self, p: Pass) -> bool:
        return p.name in self._transfers and any(len(device.loads) for device in self._transfers[p.name].devices)

    def _region(
        self, p: Pass, name: str, chunk_start: np.ndarray, at: int, by: Side, *, retiring: bool
    ) -> tuple[Region, int]:
        devices, begin, buckets = self._transfers[p.name].devices, [], []
        chunks, backward = (len(chunk_start) - 1) // len(devices), p.direction == "backward"
        order = range(self._transfers[p.name].num_batches)[:: -1 if backward else 1]
        for i, device in enumerate(devices):
            begins, known = int(self._kept[name].end[i]), self._known
            same = id(device.loads), id(chunk_start), by, retiring, backward
            every, some = (*same, 0), (*same, begins)
            if every not in known:
                own = chunk_start[i * chunks : (i + 1) * chunks + 1]
                known[every] = make_buckets(device.loads, own, order, by, retiring=retiring)
            if some not in known:
                known[some] = replace(known[every], begins=begins)
            buckets.append(known[some])
            begin.append(at)
            at += len(buckets[i]) * self._row(name)
        return Region(tuple(begin), tuple(buckets)), at


def is_straight(p: Pass, name: str, layout: DiskLayout, view: Callable[[Pass], Topology]) -> bool:
    """Whether a pass finds the rows of a tensor as they are, and need not put them together."""
    givers = layout.givers[p.name, name]
    return (
        len(givers) == 1 and givers[0].flush != name and name not in givers[0].direct and view(givers[0]).active is None
    )


def disk_staging(
    p: Pass, device: int, layout: DiskLayout, kept: Mapping[str, Kept], view: Callable[[Pass], Topology],
    width: dict[str, int], sets: int, row: Callable[[str], int], dtype: Callable[[str], str],
) -> dict[str, Buffer]:  # fmt: skip
    """The host memory through which a pass's rows come from the disk and go there, for one device, by name."""
    start, n, found = view(p).chunk_start, view(p).chunks, dict[str, Buffer]()
    for name in sorted(kept):
        ends = kept[name].at(start[device * n : (device + 1) * n + 1])
        most = -(-int(np.diff(ends).max()) // EVEN) * EVEN
        columns = width[name]
        reads = name in (*p.inputs, *p.gradients)
        straight = reads and (name == FEATURES or is_straight(p, name, layout, view))
        if reads or name in p.written:
            rows = _room(most, row(name)) if straight else most
            found[f"disk {name}"] = Buffer((rows, columns), dtype(name), sets)
        if reads and not straight:
            flushed = (layout.flushed.get((giver.name, name)) for giver in layout.givers[p.name, name])
            rows = max([most, *(region.buckets[device].most_of_chunk for region in flushed if region is not None)])
            found[f"parts {name}"] = Buffer((rows, columns), dtype(name))
        region = layout.loaded.get((p.name, name)) or layout.flushed.get((p.name, name))
        if region is not None:
            found[f"bucket {name}"] = Buffer((region.buckets[device].most_of_batch, columns), dtype(name), sets)
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
