"""Rows that host memory does not hold: in one file without a name, which is gone when its process is.

Staging memory of the host stands between the file and everything else: instructions that recall rows fill it, those
that spill rows empty it. All but what runs once, at set-up, is work of the disk's own stream.
"""

from __future__ import annotations

import errno
import os
import tempfile
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device, Stores
from hongtu.engine.chunk import Chunk
from hongtu.engine.host_store import HostStore, in_file
from hongtu.errors import OutputError
from hongtu.host import drop_file_pages
from hongtu.kernels.rows import put_rows_alone
from hongtu.metrics import Traffic
from hongtu.plan.memory.disk import Kept, Region
from hongtu.plan.program import spilling

MOST = 1 << 30  # bytes of one read or write; the system takes no more than twice that
CACHED = 64 << 20  # bytes that the system may have of the file in memory before they are dropped


class Disk:
    """A file, and what goes to and from it.

    Args:
        directory: where the file is.
        nbytes: all that it will hold; taken now, so that the disk cannot be full later.
        traffic: counter that every copy adds to.
        host: rows that are in memory.
        features: of the artifact, where they stay in their file.

    Raises:
        OutputError: when the file cannot be made.
    """

    def __init__(
        self, directory: str, nbytes: int, traffic: Traffic, host: HostStore, features: np.ndarray | None
    ) -> None:
        self._directory, self._traffic, self._host = directory, traffic, host
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - as long as the engine
            if nbytes:
                os.posix_fallocate(self._file.fileno(), 0, nbytes)
        except OSError as error:
            raise OutputError(directory, error) from error
        self._moved, self._written = 0, False  # since pages were dropped
        self._given = None
        if isinstance(features, np.memmap):
            self._given, self._offset = open(str(features.filename), "rb", buffering=0), features.offset  # noqa: SIM115
            if hasattr(os, "posix_fadvise"):  # or the system reads ahead what is dropped
                os.posix_fadvise(self._given.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        """Free its space."""
        self._file.close()
        if self._given is not None:
            self._given.close()

    @property
    def nbytes(self) -> int:
        """What the file holds."""
        return os.fstat(self._file.fileno()).st_size

    # -------------------------------------------------------------------------------------------------- instructions

    def recall(self, x: spilling.Recall, chunk: Chunk) -> None:
        if x.kept.has(chunk.i, chunk.first):
            return
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

    def recall_given(self, x: spilling.RecallGiven | spilling.LayOut, chunk: Chunk) -> None:
        if x.kept.has(chunk.i, chunk.first):
            return
        assert self._given is not None
        start, into, given = perf_counter(), _staging(x.name, chunk), self._given
        rows = into if into.dtype == torch.float32 else torch.empty(into.shape, dtype=torch.float32)
        read = _read(given.fileno(), self._offset + chunk.first * _row_bytes(rows), _bytes_of(rows))
        if rows is not into:
            into.copy_(rows)
        drop_file_pages(given.fileno())
        self._count(read, start)

    def recall_picks(self, x: spilling.RecallPicks, device: Device, i: int, batch: int, number: int) -> None:
        """Into set ``number`` of staging memory, for device ``i``."""
        lies, into = x.region.buckets[i].of_batch(batch), device.beside(f"bucket {x.tensor}", number)
        places = x.kept.places(np.sort(x.picks.column("row", i, batch)))  # they come first
        if len(places):
            np.take(self._host[x.tensor].numpy(), places, axis=0, out=into.numpy()[: len(places)], mode="clip")
        rows = into[len(places) : len(places) + lies.stop - lies.start]
        self._read(x.region.begin[i] + lies.start * _row_bytes(into), rows)

    def lay_out(self, x: spilling.LayOut, chunk: Chunk) -> None:
        self.recall_given(x, chunk)
        if not x.kept.has(chunk.i, chunk.first):
            self._give(x.takers, _staging(x.name, chunk), chunk)

    def spill(self, x: spilling.Spill, chunk: Chunk) -> None:
        rows = _staging(x.name, chunk)
        if x.kept.has(chunk.i, chunk.first):
            return
        if x.own is not None:
            self._write(x.own + chunk.first * _row_bytes(rows), rows)
        self._give(x.takers, rows, chunk)

    def spill_picks(self, x: spilling.SpillPicks, device: Device, i: int, batch: int, number: int) -> None:
        """From set ``number`` of staging memory, to each chunk's place."""
        rows, buckets = device.beside(f"bucket {x.tensor}", number), x.region.buckets[i]
        at = len(x.kept.places(x.picks.column("row", i, batch)))
        for lo, count in zip(buckets.begin[batch].tolist(), buckets.count[batch].tolist(), strict=True):
            self._write(x.region.begin[i] + lo * _row_bytes(rows), rows[at : at + count])
            at += count

    # ------------------------------------------------------------------------------------------------------ the file

    def _give(self, takers: tuple[Region, ...], rows: Tensor, chunk: Chunk) -> None:
        """Write a chunk's rows into the buckets of the batches that load them."""
        number = _number(chunk)
        for region in takers:
            buckets, begin = region.buckets[chunk.i], region.begin[chunk.i]
            for lo, count in zip(buckets.begin[:, number].tolist(), buckets.count[:, number].tolist(), strict=True):
                if count:
                    taken = rows.numpy()[buckets.rows(slice(lo, lo + count)) - chunk.first]
                    self._write(begin + lo * _row_bytes(rows), in_file(taken))

    def _write(self, begin: int, rows: Tensor) -> None:
        start, data, done = perf_counter(), _bytes_of(rows), 0
        try:
            while done < len(data):
                done += os.pwrite(self._file.fileno(), data[done : done + MOST], begin + done)
            self._written = True
            self._drop(len(data))
        except OSError as error:
            raise OutputError(self._directory, error) from error
        self._count(len(data), start)

    def _read(self, begin: int, rows: Tensor) -> None:
        start = perf_counter()
        nbytes = _read(self._file.fileno(), begin, _bytes_of(rows))
        self._drop(nbytes)
        self._count(nbytes, start)

    def _drop(self, nbytes: int) -> None:
        """So many bytes more are in the system's cache, which is memory: too many must not stay there."""
        self._moved += nbytes
        if self._moved >= CACHED:
            drop_file_pages(self._file.fileno(), written=self._written)
            self._moved, self._written = 0, False

    def _count(self, nbytes: int, start: float) -> None:
        self._traffic.add("disk", nbytes, seconds=perf_counter() - start)


def _read(file: int, begin: int, into: memoryview) -> int:
    """Fill memory from a file, from a byte on; returns how many.

    Raises:
        OSError: where the file ends before that.
    """
    done = 0
    while done < len(into):
        got = os.preadv(file, [into[done : done + MOST]], begin + done)
        if not got:
            raise OSError(errno.EIO, f"a file ends at byte {begin + done}, expected {len(into) - done} bytes more")
        done += got
    return done


def add_kept(kept: Kept, bucket: Tensor, vertices: np.ndarray, stores: Stores, host: Tensor) -> None:
    """Store or add the rows of a bucket that are in memory, which come first there.

    Args:
        vertices: int32 [K], whose rows the bucket has; ``stores``: of these, which are stored.
    """
    order = np.argsort(vertices, kind="stable")
    places = kept.places(vertices[order])
    flags = stores[order[: len(places)]] if isinstance(stores, np.ndarray) else np.full(len(places), stores)
    put_rows_alone(bucket.numpy()[: len(places)], host.numpy(), places, flags)


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
