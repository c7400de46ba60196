"""What a program moves and keeps: sums over its instructions, known before any of them runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from hongtu.hardware import aligned
from hongtu.metrics import Traffic
from hongtu.plan.memory.structure import nbytes_of
from hongtu.plan.program import moves
from hongtu.plan.program.on_disk import ARTIFACT, OnDisk
from hongtu.plan.program.program import PassProgram


def device_traffic(p: PassProgram, device: int) -> Traffic:
    """Traffic of one pass on one device."""
    row, traffic = row_bytes(p, device), Traffic()
    for x in p.around:
        if isinstance(x, moves.Cross):
            count = x.crossing.rows if device == 0 else 0  # of the rank, whatever its devices
            traffic.add(x.link, count * crossing_bytes(x, p, row), count)
        elif isinstance(x, moves.Call) and "others" in x.settings and device == 0:
            count = x.settings["others"]  # rows of the output, and their gradients
            for link in ("fetch", "send"):
                traffic.add(link, count * p.width[x.settings["output"]] * p.itemsize, count)
        elif isinstance(x, moves.Copy):
            count = copied_rows(x, p, device)
            traffic.add(x.link, count * crossing_bytes(x, p, row), count)
    return traffic


def copied_rows(x: moves.Copy, p: PassProgram, device: int) -> int:
    """Rows that a copy moves in a pass for one device."""
    rows, kept = x.there.rows, x.there.kept
    if isinstance(rows, OnDisk):
        return rows.moved(p.view, device, kept)
    beside = ARTIFACT.moved(p.view, device, x.src.kept) if x.in_place and x.src.kept is not None else 0
    return x.src.rows.total(p.view, device) - beside


def row_bytes(p: PassProgram, device: int = 0) -> dict[str, int]:
    """Of vertex tensors, what was placed and the buffers of a pass."""
    row = {name: columns * p.itemsize for name, columns in p.width.items()}
    row |= {x.name: nbytes_of(x.shape, x.dtype, p.itemsize) for x in p.before if isinstance(x, moves.Place)}
    return row | {name: buffer.row_bytes(p.itemsize) for name, buffer in p.buffers[device].items()}


def crossing_bytes(x: moves.Copy | moves.Cross, p: PassProgram, row: Mapping[str, int]) -> int:
    """Of a row as it crosses its link; ``row``: what rows have on the device."""
    if isinstance(x, moves.Cross):
        return nbytes_of((p.width[x.tensor],), x.dtype, p.itemsize)
    if x.src.rows is ARTIFACT:  # whose file has numbers of 4 bytes
        return 4 * p.width[x.src.tensor]
    return row[x.dst.tensor] if x.narrow is None else nbytes_of((p.width[x.narrow.tensor],), x.narrow.dtype, p.itemsize)


def host_peaks(passes: Iterable[PassProgram], kept: Mapping[str, int]) -> Iterator[int]:
    """Bytes of vertex rows and staging memory that the host holds at most in each of consecutive passes.

    Args:
        kept: bytes of the tensors that are there before the first pass.
    """
    live = dict(kept)
    for p in passes:
        placed = (x for x in p.before if isinstance(x, moves.Place) and x.where == "host")
        live |= {x.name: x.nbytes(p.itemsize) for x in placed}
        yield sum(live.values()) + sum(buffer.nbytes(p.itemsize) for buffer in p.passing)
        for free in p.frees:
            if free.where == "host":
                live.pop(free.name, None)


def script_bytes(p: PassProgram, device: int) -> list[int]:
    """What one copy brings to a device in every batch of a pass, in the order in which it visits them."""
    row = row_bytes(p, device)
    chunks, total = np.array([p.chunk(device, batch) for batch in p.order], dtype=np.int64), np.zeros(len(p.order), int)
    for x in p.body:
        if isinstance(x, moves.Copy) and x.dst.tensor in p.packed:
            total += row[x.dst.tensor] * x.src.rows.lengths(p.view, device, chunks, p.order)
    return [int(nbytes) for nbytes in total]


def kept_bytes(passes: Iterable[PassProgram]) -> int:
    """Bytes of the host in which scripts of passes stay, of all devices."""
    keeping = [(p, i) for p in passes if p.keeps and p.packed for i in range(len(p.buffers))]
    return sum(aligned(nbytes) for p, i in keeping for nbytes in script_bytes(p, i))
