"""Rows that host memory does not hold: in one file without a name, which is gone when its process is.

Staging memory of the host stands between the file and everything else: what recalls rows fills it, what spills rows
empties it. All is work of the disk's own stream, and NumPy's: Torch would start OpenMP threads for a
thread more, and with more of them than processors none waits for another without sleeping.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device, Stores
from hongtu.device.memory import as_numpy
from hongtu.engine.blocks import Blocks
from hongtu.engine.chunk import Chunk
from hongtu.engine.host_store import HostStore
from hongtu.engine.reads import Reads
from hongtu.errors import OutputError
from hongtu.graph.artifact import Artifact
from hongtu.kernels.rows import put_rows_alone
from hongtu.metrics import Traffic
from hongtu.plan.memory.disk import DiskLayout, Kept
from hongtu.plan.program.moves import Ref
from hongtu.plan.program.on_disk import Bucket, Laid, Summed, Target

CAST = 1 << 16  # bytes that are cast at a time: torch takes no threads for so few


class Disk:
    """A file, and what goes to and from it.

    Args:
        directory: where the file is.
        layout: of all that it will hold; its bytes are taken now, so that the disk cannot be full later.
        traffic: counter that every copy adds to.
        host: rows that are in memory.
        artifact: whose features stay in their file.

    Raises:
        OutputError: when the file cannot be made.
    """

    def __init__(
        self, directory: str, layout: DiskLayout, traffic: Traffic, host: HostStore, artifact: Artifact
    ) -> None:
        self._directory, self._traffic, self._host, self._artifact = directory, traffic, host, artifact
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - as long as the engine
            file = self._file.fileno()
            if layout.nbytes:
                os.posix_fallocate(file, 0, layout.nbytes)
            self._blocks, self._reads = Blocks(file, layout.nbytes, layout.ends), Reads(file)
        except OSError as error:
            raise OutputError(directory, error) from error
        self._given, features = None, artifact.whole.features
        if isinstance(features, np.memmap):
            self._given, self._offset = open(str(features.filename), "rb", buffering=0), features.offset  # noqa: SIM115
            self._reads_given = Reads(self._given.fileno())

    def close(self) -> None:
        """Free its space."""
        self._blocks.close()
        self._reads.close()
        self._file.close()
        if self._given is not None:
            self._reads_given.close()
            self._given.close()

    @property
    def nbytes(self) -> int:
        """What the file holds."""
        return os.fstat(self._file.fileno()).st_size

    # -------------------------------------------------------------------------------------------------- instructions

    def recall(self, there: Ref, chunk: Chunk) -> None:
        """A chunk's own rows come to staging memory, and are added up there."""
        into, kind = _staging(there, chunk), self._kind(there)
        if not isinstance(there.rows, Summed):
            self._recall_given(there, into, chunk)
            return
        first, end = _span(there, chunk)
        where = chunk.i, chunk.own_number, first, end, _row_bytes(into, kind)
        pieces = (piece for of in there.rows.given for piece in of.pieces(*where))
        if there.rows.straight:
            begin = next(pieces).begin
            if kind == into.dtype:
                self._read_chunk(self._reads, begin, there, chunk)
            else:
                self._read(begin, into, kind)
            return
        as_numpy(into).fill(0)
        for piece in pieces:
            rows = chunk.device.beside(f"parts {there.tensor}", 0)[: piece.rows]
            self._read(piece.begin, rows, kind)
            taken = as_numpy(rows) if piece.take is None else as_numpy(rows)[piece.take]
            flags = piece.stores if isinstance(piece.stores, np.ndarray) else np.full(len(taken), piece.stores)
            put_rows_alone(taken, as_numpy(into), piece.row - np.int32(first), flags)

    def _recall_given(self, there: Ref, into: Tensor, chunk: Chunk) -> None:
        """Those of a tensor that the artifact has."""
        assert self._given is not None
        start, row = perf_counter(), into.shape[1] * torch.float32.itemsize
        spans = self._artifact.spans(chunk.first, chunk.end)
        if into.dtype == torch.float32 and len(spans) == 1:
            self._read_chunk(self._reads_given, self._offset + spans[0][0] * row, there, chunk)
            return
        chunk.device.fill_beside(f"disk {there.tensor}", chunk.set, lambda room: 0)  # they come to where it begins
        into = _staging(there, chunk)
        with self._reading(self._reads_given):
            for (first, _), rows in zip(spans, into.split([end - first for first, end in spans]), strict=True):
                _read_as(torch.float32, self._reads_given, self._offset + first * row, rows)
        self._count(len(into) * row, start)

    def recall_bucket(self, there: Ref, device: Device, i: int, batch: int, number: int) -> None:
        """The rows that a batch loads, by row, into set ``number`` of staging memory, for device ``i``."""
        assert isinstance(there.rows, Bucket)
        region, picks = there.rows.region, there.rows.picks
        lies, into = region.buckets[i].of_batch(batch), device.beside(f"bucket {there.tensor}", number)
        here = region.buckets[i].in_memory(batch)
        if here:
            assert there.kept is not None
            places = there.kept.places(np.sort(picks.column("row", i, batch)))
            np.take(as_numpy(self._host[there.tensor]), places, axis=0, out=as_numpy(into)[:here], mode="clip")
        rows = into[here : here + lies.stop - lies.start]
        kind = self._kind(there)
        self._read(region.begin[i] + lies.start * _row_bytes(into, kind), rows, kind)

    def spill(self, there: Ref, chunk: Chunk) -> None:
        """A chunk's own rows go from staging memory to where they are read, and to who loads them."""
        rows, first, kind = _staging(there, chunk), _span(there, chunk)[0], self._kind(there)
        assert isinstance(there.rows, Laid)
        self._put(rows, there.rows.places(chunk.i, chunk.own_number, first, _row_bytes(rows, kind)), kind)

    def spill_bucket(self, there: Ref, device: Device, i: int, batch: int, number: int) -> None:
        """The rows that a batch flushes, from set ``number`` of staging memory, to each chunk's place."""
        rows, kind = device.beside(f"bucket {there.tensor}", number), self._kind(there)
        assert isinstance(there.rows, Bucket)
        self._put(rows, there.rows.places(i, batch, _row_bytes(rows, kind)), kind)

    # ------------------------------------------------------------------------------------------------------ the file

    def _kind(self, there: Ref) -> torch.dtype:
        """What the file has the rows of a tensor in."""
        return self._host.torch_dtype(there.dtype)

    def _put(self, rows: Tensor, places: Iterable[Target], kind: torch.dtype) -> None:
        for begin, which in places:
            if isinstance(which, np.ndarray):
                self._write(begin, torch.from_numpy(as_numpy(rows).take(which, axis=0)).view(rows.dtype), kind)
            else:
                self._write(begin, rows[which], kind)

    def _write(self, begin: int, rows: Tensor, kind: torch.dtype) -> None:
        start, row = perf_counter(), _row_bytes(rows, kind)
        try:
            for part in _in_parts(rows, kind):
                self._blocks.put(begin, _bytes_of(part.to(kind)))
                begin += len(part) * row
        except OSError as error:
            raise OutputError(self._directory, error) from error
        self._count(len(rows) * row, start)

    def _read(self, begin: int, rows: Tensor, kind: torch.dtype) -> None:
        start, nbytes = perf_counter(), len(rows) * _row_bytes(rows, kind)
        self._settle(begin, nbytes)
        with self._reading(self._reads):
            _read_as(kind, self._reads, begin, rows)
        self._count(nbytes, start)

    def _read_chunk(self, reads: Reads, begin: int, there: Ref, chunk: Chunk) -> None:
        """The chunk's rows, as they lie in a file from a byte on; its staging memory begins where they come to."""
        start, rows = perf_counter(), _staging(there, chunk)  # perhaps not all, where they began in it before
        first, end = _span(there, chunk)
        nbytes = (end - first) * _row_bytes(rows, rows.dtype)
        if reads is self._reads:
            self._settle(begin, nbytes)
        with self._reading(reads):
            if chunk.device.queues:  # copies of what is at the beginning
                reads.read(begin, _bytes_of(rows))
            else:
                chunk.device.fill_beside(f"disk {there.tensor}", chunk.set, partial(reads.read_within, begin, nbytes))
        self._count(nbytes, start)

    @contextmanager
    def _reading(self, reads: Reads) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self._directory if reads is self._reads or self._given is None else self._given.name
            raise OutputError(path, error, read=True) from error

    def _settle(self, begin: int, nbytes: int) -> None:
        try:
            self._blocks.settle(begin, begin + nbytes)
        except OSError as error:
            raise OutputError(self._directory, error) from error

    def _count(self, nbytes: int, start: float) -> None:
        self._traffic.add("disk", nbytes, seconds=perf_counter() - start)


def add_kept(kept: Kept, bucket: Tensor, vertices: np.ndarray, stores: Stores, host: Tensor) -> None:
    """Store or add the rows of a bucket that are in memory, which come first there.

    Args:
        vertices: int32 [K], whose rows the bucket has; ``stores``: of these, which are stored.
    """
    order = np.argsort(vertices, kind="stable")
    places = kept.places(vertices[order])
    flags = stores[order[: len(places)]] if isinstance(stores, np.ndarray) else np.full(len(places), stores)
    put_rows_alone(bucket.numpy()[: len(places)], host.numpy(), places, flags)


def _staging(there: Ref, chunk: Chunk) -> Tensor:
    """The chunk's own rows of a tensor."""
    first, end = _span(there, chunk)
    return chunk.device.beside(f"disk {there.tensor}", chunk.set)[: end - first]


def _span(there: Ref, chunk: Chunk) -> tuple[int, int]:
    """The first of the chunk's own rows of a tensor, and the one behind them."""
    assert there.kept is not None
    return int(there.kept.at(chunk.first)), int(there.kept.at(chunk.end))


def _row_bytes(rows: Tensor, kind: torch.dtype) -> int:
    """Of one of them in the file."""
    return rows.shape[1] * kind.itemsize


def _in_parts(rows: Tensor, kind: torch.dtype) -> Sequence[Tensor]:
    """All, or so few at a time that they are cast beside."""
    return (rows,) if rows.dtype == kind else rows.split(max(1, CAST // max(rows.shape[1] * 4, 1)))


def _read_as(kind: torch.dtype, reads: Reads, begin: int, into: Tensor) -> None:
    """Consecutive rows, which the file has in other numbers or in these."""
    for part in _in_parts(into, kind):
        rows = part if part.dtype == kind else torch.empty(part.shape, dtype=kind)
        reads.read(begin, _bytes_of(rows))
        begin += rows.nbytes
        if rows is not part:
            part.copy_(rows)


def _bytes_of(rows: Tensor) -> np.ndarray:
    """uint8 [n], the same memory."""
    return as_numpy(rows).reshape(-1).view(np.uint8)
