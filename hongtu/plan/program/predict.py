"""What a program moves and keeps: sums over its instructions, known before any of them runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

import numpy as np

from hongtu.hardware import aligned, padded
from hongtu.metrics import Traffic
from hongtu.plan.memory.disk import Kept, Region
from hongtu.plan.memory.structure import FLOAT, SIZES, device_entries
from hongtu.plan.program import moves, spilling
from hongtu.plan.program.program import PassProgram


def device_traffic(p: PassProgram, device: int, width: Mapping[str, int], itemsize: int) -> Traffic:
    """Traffic of one pass on one device.

    Args:
        width: columns of vertex tensors by name.
        itemsize: bytes of a number.
    """
    buffers, rows = p.buffers[device], device_entries(p.view)[device].busy["destinations"]
    row = {name: columns * itemsize for name, columns in width.items()}  # bytes
    row |= {x.name: _row(x.shape, x.dtype, itemsize) for x in p.before if isinstance(x, moves.Place)}
    row |= {name: buffer.row_bytes(itemsize) for name, buffer in buffers.items()}
    traffic = Traffic()
    for x in (*p.before, *p.recalls, *p.body, *p.after):
        match x:
            case moves.Fill():
                traffic.add(x.link, x.origin.total(p.view, device) * row[x.buffer])
            case moves.Bring():
                stay = 0 if x.kept is None or not x.origin.in_place else _rows_on_disk(p, device, x.kept)
                count = x.origin.total(p.view, device) - stay
                traffic.add(x.link, count * row[x.name])
            case moves.Load() | moves.Pull() | moves.Push() | moves.Flush():
                count = len(x.picks.table(device))
                traffic.add(x.verb, count * row[x.cache], count)
            case moves.Deliver():
                traffic.add("write", rows * row[x.name])
            case moves.Cross():
                count = x.crossing.rows if device == 0 else 0  # of the rank, whatever its devices
                traffic.add(x.link, count * row[x.tensor], count)
    traffic.add("disk", sum(disk_bytes(p, device, width, itemsize)))
    return traffic


def disk_bytes(p: PassProgram, device: int, width: Mapping[str, int], itemsize: int) -> tuple[int, int]:
    """Bytes that one pass recalls for one device, and that it spills; arguments as for ``device_traffic``."""
    busy = p.view.num_dst[device * p.view.chunks :][: p.view.chunks] > 0
    recalled = spilled = 0
    for x in (*p.before, *p.recalls, *p.body, *p.after):
        match x:
            case spilling.RecallGiven():  # from a file of 4-byte numbers
                recalled += 4 * width[x.name] * _rows_on_disk(p, device, x.kept)
            case spilling.Recall():
                found = (of.count(device, *chunk) for chunk in _on_disk(p, device, x.kept) for of in x.given)
                recalled += sum(found) * width[x.name] * itemsize
            case spilling.RecallPicks():
                recalled += len(x.region.buckets[device]) * width[x.tensor] * itemsize
            case spilling.SpillPicks():
                spilled += len(x.region.buckets[device]) * width[x.tensor] * itemsize
            case spilling.Spill():
                rows = 0 if x.own is None else _rows_on_disk(p, device, x.kept)
                spilled += (rows + _taken(x.takers, device, busy)) * width[x.name] * itemsize
    return recalled, spilled


def _on_disk(p: PassProgram, device: int, kept: Kept) -> list[tuple[int, int, int]]:
    """The number on the device, and the first vertex and the one behind the last, of chunks that run and have the rows
    of a tensor on the disk."""
    n = p.view.chunks
    ends, busy = p.view.chunk_start[device * n : (device + 1) * n + 1].tolist(), p.view.num_dst[device * n :][:n] > 0
    return [(c, ends[c], ends[c + 1]) for c in np.flatnonzero(busy).tolist() if not kept.has(device, ends[c])]


def _rows_on_disk(p: PassProgram, device: int, kept: Kept) -> int:
    return sum(end - first for _, first, end in _on_disk(p, device, kept))


def _taken(takers: Iterable[Region], device: int, busy: np.ndarray) -> int:
    """Rows of chunks that run which later passes load."""
    return sum(int(region.buckets[device].count[:, busy].sum()) for region in takers)


def host_peaks(passes: Iterable[PassProgram], kept: Mapping[str, int], itemsize: int) -> Iterator[int]:
    """Bytes of vertex rows and staging memory that the host holds at most in each of consecutive passes.

    Args:
        kept: bytes of the tensors that are there before the first pass.
    """
    live = dict(kept)
    for p in passes:
        placed = (x for x in p.before if isinstance(x, moves.Place) and x.where == "host")
        live |= {x.name: sum(x.rows) * placed_row(x, itemsize) for x in placed}
        yield sum(live.values()) + sum(buffer.nbytes(itemsize) for buffer in p.passing)
        for free in p.frees:
            if free.where == "host":
                live.pop(free.name, None)


def script_bytes(p: PassProgram, device: int, itemsize: int) -> list[int]:
    """What one copy brings to a device in every batch of a pass, in the order in which it visits them."""
    row = {name: buffer.row_bytes(itemsize) for name, buffer in p.buffers[device].items()}
    chunks, total = np.array([p.chunk(device, batch) for batch in p.order], dtype=np.int64), np.zeros(len(p.order), int)
    for x in p.body:
        if isinstance(x, moves.Bring) and x.name in p.packed:
            total += row[x.name] * x.origin.lengths(p.view, device, chunks, p.order)
    return [int(nbytes) for nbytes in total]


def kept_bytes(passes: Iterable[PassProgram], itemsize: int) -> int:
    """Bytes of the host in which scripts of passes stay, of all devices."""
    keeping = [(p, i) for p in passes if p.keeps and p.packed for i in range(len(p.buffers))]
    return sum(aligned(nbytes) for p, i in keeping for nbytes in script_bytes(p, i, itemsize))


def placed_row(x: moves.Place, itemsize: int) -> int:
    """Bytes from one row of what is placed to the next."""
    return padded(x.shape[0], itemsize) * itemsize if x.padded else _row(x.shape, x.dtype, itemsize)


def _row(shape: tuple[int, ...], dtype: str, itemsize: int) -> int:
    return prod(shape) * (itemsize if dtype == FLOAT else SIZES[dtype])
