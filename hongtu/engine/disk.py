"""Rows that host memory does not hold: what goes between the host's windows and the memories below (``stores.py``).

Staging memory of the host stands between these and everything else: what recalls rows fills it, what spills rows
empties it. All is work of the stream ``disk``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device, Stores
from hongtu.device.memory import as_numpy
from hongtu.engine.chunk import Chunk
from hongtu.engine.host_store import HostStore
from hongtu.engine.stores import STORES, File, Store
from hongtu.kernels.rows import put_rows_alone
from hongtu.metrics import Traffic
from hongtu.plan.memory.disk import DiskLayout, Kept
from hongtu.plan.program.moves import Ref
from hongtu.plan.program.on_disk import ARTIFACT, Bucket, Laid, Summed, Target

CAST = 1 << 16  # bytes that are cast at a time: torch takes no threads for so few


class Disk:
    """The memories below the host, and what goes to and from them.

    Args:
        directory: where files are.
        layout: of all that they will hold.
        traffic: counter that every copy adds to.
        host: rows that are in memory.
        features: of the artifact, where they stay in their file.

    Raises:
        OutputError: when a file cannot be made.
    """

    def __init__(
        self, directory: str, layout: DiskLayout, traffic: Traffic, host: HostStore, features: np.ndarray | None
    ) -> None:
        self._traffic, self._host = traffic, host
        self._stores = {memory: STORES[memory](directory, n, layout.ends) for memory, n in layout.nbytes.items()}
        self._artifact: File | None = None
        if isinstance(features, np.memmap):
            path, self._offset = str(features.filename), features.offset
            self._artifact = File(open(path, "rb", buffering=0), path)  # noqa: SIM115 - as long as the engine

    def close(self) -> None:
        """Free their space."""
        for store in self._stores.values():
            store.close()
        if self._artifact is not None:
            self._artifact.close()

    @property
    def nbytes(self) -> dict[str, int]:
        """What every memory holds."""
        return {memory: store.nbytes for memory, store in self._stores.items()}

    # -------------------------------------------------------------------------------------------------- instructions

    def recall(self, there: Ref, chunk: Chunk) -> None:
        """A chunk's own rows come to staging memory, and are added up there."""
        if there.rows is ARTIFACT:
            self._recall_given(there, chunk)
            return
        assert isinstance(there.rows, Summed)
        into, (first, end) = _staging(there, chunk), _span(there, chunk)
        where = chunk.i, chunk.own_number, first, end, _row_bytes(into)
        pieces = (piece for of in there.rows.given for piece in of.pieces(*where))
        if there.rows.straight:
            self._read_chunk(self._stores[there.where], next(pieces).begin, there, chunk)
            return
        as_numpy(into).fill(0)
        for piece in pieces:
            rows = chunk.device.beside(f"parts {there.tensor}", 0)[: piece.rows]
            self._read(there.where, piece.begin, rows)
            taken = as_numpy(rows) if piece.take is None else as_numpy(rows)[piece.take]
            flags = piece.stores if isinstance(piece.stores, np.ndarray) else np.full(len(taken), piece.stores)
            put_rows_alone(taken, as_numpy(into), piece.row - np.int32(first), flags)

    def _recall_given(self, there: Ref, chunk: Chunk) -> None:
        """Those of a tensor that the artifact has, in float32."""
        assert self._artifact is not None
        start, into = perf_counter(), _staging(there, chunk)
        row = into.shape[1] * torch.float32.itemsize
        begin = self._offset + chunk.first * row
        if into.dtype == torch.float32:
            self._read_chunk(self._artifact, begin, there, chunk)
            return
        for part in into.split(max(1, CAST // max(row, 1))):
            rows = np.empty(part.shape, np.float32)
            self._artifact.read(begin, rows.reshape(-1).view(np.uint8))
            part.copy_(torch.from_numpy(rows))
            begin += rows.nbytes
        self._count(there.where, len(into) * row, start)

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
        self._read(there.where, region.begin[i] + lies.start * _row_bytes(into), rows)

    def spill(self, there: Ref, chunk: Chunk) -> None:
        """A chunk's own rows go from staging memory to where they are read, and to who loads them."""
        rows, first = _staging(there, chunk), _span(there, chunk)[0]
        assert isinstance(there.rows, Laid)
        self._put(there.where, rows, there.rows.places(chunk.i, chunk.own_number, first, _row_bytes(rows)))

    def spill_bucket(self, there: Ref, device: Device, i: int, batch: int, number: int) -> None:
        """The rows that a batch flushes, from set ``number`` of staging memory, to each chunk's place."""
        rows = device.beside(f"bucket {there.tensor}", number)
        assert isinstance(there.rows, Bucket)
        self._put(there.where, rows, there.rows.places(i, batch, _row_bytes(rows)))

    # ------------------------------------------------------------------------------------------------------ the rows

    def _put(self, memory: str, rows: Tensor, places: Iterable[Target]) -> None:
        for begin, which in places:
            taken = rows[which] if isinstance(which, slice) else torch.from_numpy(as_numpy(rows).take(which, axis=0))
            self._write(memory, begin, taken)

    def _write(self, memory: str, begin: int, rows: Tensor) -> None:
        start, data = perf_counter(), _bytes_of(rows)
        self._stores[memory].write(begin, data)
        self._count(memory, len(data), start)

    def _read(self, memory: str, begin: int, rows: Tensor) -> None:
        start, data = perf_counter(), _bytes_of(rows)
        self._stores[memory].read(begin, data)
        self._count(memory, len(data), start)

    def _read_chunk(self, store: Store | File, begin: int, there: Ref, chunk: Chunk) -> None:
        """The chunk's rows, as they lie from a byte on; its staging memory begins where they come to."""
        start, rows = perf_counter(), _staging(there, chunk)  # perhaps not all, where they began in it before
        first, end = _span(there, chunk)
        nbytes = (end - first) * _row_bytes(rows)
        if chunk.device.queues:  # copies of what is at the beginning
            store.read(begin, _bytes_of(rows))
        else:
            chunk.device.fill_beside(f"disk {there.tensor}", chunk.set, partial(store.read_within, begin, nbytes))
        self._count(there.where, nbytes, start)

    def _count(self, memory: str, nbytes: int, start: float) -> None:
        self._traffic.add(memory, nbytes, seconds=perf_counter() - start)


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


def _row_bytes(rows: Tensor) -> int:
    return rows.shape[1] * rows.itemsize


def _bytes_of(rows: Tensor) -> np.ndarray:
    """uint8 [n], the same memory."""
    return as_numpy(rows).reshape(-1).view(np.uint8)
