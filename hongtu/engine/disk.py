"""Rows that host memory does not hold: in one file without a name, which is gone when its process is.

Staging memory of the host stands between the file and everything else: instructions that recall rows fill it, those
that spill rows empty it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
from torch import Tensor

from hongtu.device.base import Device
from hongtu.engine.chunk import Chunk
from hongtu.engine.host_store import in_file
from hongtu.errors import OutputError
from hongtu.host import drop_pages
from hongtu.kernels.rows import put_rows_alone
from hongtu.metrics import Traffic
from hongtu.plan.memory.disk import Region
from hongtu.plan.program import moves

MOST = 1 << 30  # bytes of one read or write; the system takes no more than twice that


class Disk:
    """A file, and what goes to and from it.

    Args:
        directory: where the file is.
        nbytes: all that it will hold; taken now, so that the disk cannot be full later.
        traffic: counter that every copy adds to.
        features: of the artifact, where they stay in their file.

    Raises:
        OutputError: when the file cannot be made.
    """

    def __init__(self, directory: str, nbytes: int, traffic: Traffic, features: np.ndarray | None) -> None:
        self._directory, self._traffic, self._features = directory, traffic, features
        self._counts = threading.Lock()  # the host's stream may be a thread
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - as long as the engine
            if nbytes:
                os.posix_fallocate(self._file.fileno(), 0, nbytes)
        except OSError as error:
            raise OutputError(directory, error) from error

    @property
    def nbytes(self) -> int:
        """What the file holds."""
        return os.fstat(self._file.fileno()).st_size

    # -------------------------------------------------------------------------------------------------- instructions

    def recall(self, x: moves.Recall, chunk: Chunk) -> None:
        into = _staging(x.name, chunk)
        where = chunk.i, _number(chunk), chunk.first, chunk.end, _row_bytes(into)
        pieces = (piece for of in x.given for piece in of.pieces(*where))
        if x.straight:
            self._read(next(pieces).begin, into)
            return
        into.zero_()
        for piece in pieces:
            rows = chunk.device.beside(f"parts {x.name}", 0)[: piece.rows]
            self._read(piece.begin, rows)
            taken = rows.numpy() if piece.take is None else rows.numpy()[piece.take]
            flags = piece.stores if isinstance(piece.stores, np.ndarray) else np.full(len(taken), piece.stores)
            put_rows_alone(taken, into.numpy(), piece.row - np.int32(chunk.first), flags)

    def recall_given(self, x: moves.RecallGiven, chunk: Chunk) -> None:
        assert self._features is not None
        start, rows = perf_counter(), self._features[chunk.first : chunk.end]
        _staging(x.name, chunk).copy_(in_file(rows))
        drop_pages(self._features)
        self._count(rows.nbytes, start)

    def recall_picks(self, x: moves.RecallPicks, device: Device, i: int, batch: int, number: int) -> None:
        """Into set ``number`` of staging memory, for device ``i``."""
        lies, into = x.region.buckets[i].of_batch(batch), device.beside(f"bucket {x.tensor}", number)
        self._read(x.region.begin[i] + lies.start * _row_bytes(into), into[: lies.stop - lies.start])

    def lay_out(self, x: moves.LayOut, chunk: Chunk) -> None:
        self.recall_given(moves.RecallGiven(name=x.name), chunk)
        self._give(x.takers, _staging(x.name, chunk), chunk)

    def spill(self, x: moves.Spill, chunk: Chunk) -> None:
        rows = _staging(x.name, chunk)

        def spill() -> None:
            if x.own is not None:
                self._write(x.own + chunk.first * _row_bytes(rows), rows)
            self._give(x.takers, rows, chunk)

        _on_host_stream(chunk.device, spill)

    def spill_picks(self, x: moves.SpillPicks, device: Device, i: int, batch: int, number: int) -> None:
        rows, buckets, begin = device.beside(f"bucket {x.tensor}", number), x.region.buckets[i], x.region.begin[i]
        _on_host_stream(device, partial(self._scatter, rows, begin, buckets.begin[batch], buckets.count[batch]))

    # ------------------------------------------------------------------------------------------------------ the file

    def _give(self, takers: tuple[Region, ...], rows: Tensor, chunk: Chunk) -> None:
        """Write a chunk's rows into the buckets of the batches that load them."""
        number = _number(chunk)
        for region in takers:
            buckets, begin = region.buckets[chunk.i], region.begin[chunk.i]
            for lo, count in zip(buckets.begin[:, number].tolist(), buckets.count[:, number].tolist(), strict=True):
                if count:
                    taken = rows.numpy()[buckets.row[lo : lo + count] - chunk.first]
                    self._write(begin + lo * _row_bytes(rows), in_file(taken))

    def _scatter(self, rows: Tensor, begin: int, first: np.ndarray, count: np.ndarray) -> None:
        """Write a batch's rows, which lie chunk by chunk, to each chunk's place."""
        at = 0
        for lo, rows_of_chunk in zip(first.tolist(), count.tolist(), strict=True):
            self._write(begin + lo * _row_bytes(rows), rows[at : at + rows_of_chunk])
            at += rows_of_chunk

    def _write(self, begin: int, rows: Tensor) -> None:
        start, data, done = perf_counter(), _bytes_of(rows), 0
        try:
            while done < len(data):
                done += os.pwrite(self._file.fileno(), data[done : done + MOST], begin + done)
        except OSError as error:
            raise OutputError(self._directory, error) from error
        self._count(len(data), start)

    def _read(self, begin: int, rows: Tensor) -> None:
        start, data, done = perf_counter(), _bytes_of(rows), 0
        while done < len(data):
            done += os.preadv(self._file.fileno(), [data[done : done + MOST]], begin + done)
        self._count(len(data), start)

    def _count(self, nbytes: int, start: float) -> None:
        with self._counts:
            self._traffic.add("disk", nbytes, seconds=perf_counter() - start)


def _staging(name: str, chunk: Chunk) -> Tensor:
    """The chunk's own rows of a tensor."""
    return chunk.device.beside(f"disk {name}", chunk.set)[: chunk.end - chunk.first]


def _number(chunk: Chunk) -> int:
    """On its device."""
    return chunk.number - chunk.i * chunk.p.view.chunks


def _row_bytes(rows: Tensor) -> int:
    return rows.shape[1] * rows.itemsize


def _bytes_of(rows: Tensor) -> memoryview:
    return memoryview(rows.numpy()).cast("B") if rows.numel() else memoryview(b"")  # type: ignore[arg-type]


def _on_host_stream(device: Device, work: Callable[[], object]) -> None:
    streams = device.streams
    streams.host.wait(streams.flush.record(), "spill: the rows have arrived")
    streams.host.run(work)
