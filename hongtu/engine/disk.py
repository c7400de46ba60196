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
from hongtu.graph.artifact import Artifact
from hongtu.host import drop_pages
from hongtu.kernels.rows import cast_alone, put_rows_alone
from hongtu.metrics import Traffic
from hongtu.plan.memory.disk import DiskLayout
from hongtu.plan.memory.host import Kept
from hongtu.plan.program.on_disk import ARTIFACT, Bucket, Laid, Summed, Target
from hongtu.plan.program.ref import Ref

CAST = 1 << 20  # bytes that are written of numbers that are cast, at a time: they stay in a processor's cache


class Disk:
    """The memories below the host, and what goes to and from them.

    Args:
        directory: where files are.
        layout: of all that they will hold.
        traffic: counter that every copy adds to.
        host: rows that are in memory.
        artifact: whose features stay in their file.

    Raises:
        OutputError: when a file cannot be made.
    """

    def __init__(
        self, directory: str, layout: DiskLayout, traffic: Traffic, host: HostStore, artifact: Artifact
    ) -> None:
        self._traffic, self._host, self._artifact = traffic, host, artifact
        self._stores = {memory: STORES[memory](directory, n, layout.ends) for memory, n in layout.nbytes.items()}
        self._cast = torch.empty(CAST, dtype=torch.uint8)
        self._given: File | None = None
        self._mapped: np.ndarray | None = None
        features = artifact.whole.features
        if isinstance(features, np.memmap):
            path, self._offset = str(features.filename), features.offset
            self._given = File(open(path, "rb", buffering=0), path)  # noqa: SIM115 - as long as the engine

    def close(self) -> None:
        """Free their space."""
        self._mapped = None
        for store in self._stores.values():
            store.close()
        if self._given is not None:
            self._given.close()

    @property
    def nbytes(self) -> dict[str, int]:
        """What every memory holds."""
        return {memory: store.nbytes for memory, store in self._stores.items()}

    # -------------------------------------------------------------------------------------------------- instructions

    def recall(self, there: Ref, chunk: Chunk) -> None:
        """A chunk's own rows come to staging memory, and are added up there."""
        into, (first, end) = chunk.in_window(there), chunk.span(there.rows)
        if there.rows is ARTIFACT:  # in float32
            assert self._given is not None
            row = _row_bytes(into, torch.float32)
            runs = [(self._offset + lo * row, hi - lo) for lo, hi in self._artifact.spans(first, end)]
            self._read_chunk(self._given, runs, torch.float32, there, chunk)
            return
        assert isinstance(there.rows, Summed)
        kind = self._kind(there)
        where = chunk.i, chunk.own_number, first, end, _row_bytes(into, kind)
        pieces = (piece for of in there.rows.given for piece in of.pieces(*where))
        if there.rows.straight:
            runs = [(piece.begin, end - first) for piece in pieces]  # one, or none of a chunk without in-edges
            self._read_chunk(self._stores[there.where], runs, kind, there, chunk)
            return
        as_numpy(into).fill(0)
        for piece in pieces:
            rows = chunk.device.beside(f"parts {there.tensor}", 0)[: piece.rows]
            self._read(there, piece.begin, rows)
            taken = as_numpy(rows) if piece.take is None else as_numpy(rows)[piece.take]
            flags = piece.stores if isinstance(piece.stores, np.ndarray) else np.full(len(taken), piece.stores)
            put_rows_alone(taken, as_numpy(into), piece.row - np.int32(first), flags)

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
        self._read(there, region.begin[i] + lies.start * _row_bytes(into, self._kind(there)), rows)

    def spill(self, there: Ref, chunk: Chunk) -> None:
        """A chunk's own rows go from staging memory to where they are read, and to who loads them."""
        rows, span, kind = chunk.in_window(there), chunk.span(there.rows), self._kind(there)
        assert isinstance(there.rows, Laid)
        self._put(there, rows, there.rows.places(chunk.i, chunk.own_number, *span, _row_bytes(rows, kind)))

    def spill_bucket(self, there: Ref, device: Device, i: int, batch: int, number: int) -> None:
        """The rows that a batch flushes, from set ``number`` of staging memory, to each chunk's place."""
        rows, kind = device.beside(f"bucket {there.tensor}", number), self._kind(there)
        assert isinstance(there.rows, Bucket)
        self._put(there, rows, there.rows.places(i, batch, _row_bytes(rows, kind)))

    # ------------------------------------------------------------------------------------------------------ the rows

    def whole(self, name: str, where: str, begin: int, columns: int, kept: Kept) -> Tensor:
        """[V, columns], the rows that a pass has given of a tensor, where they lie in memory ``where`` from a byte on;
        those that are on the host come beside them."""
        dtype, count = self._host.dtype, self._host.num_vertices
        self._mapped = self._stores[where].mapped(begin, count * columns * dtype.itemsize)
        rows = torch.from_numpy(self._mapped).view(dtype).view(count, columns)
        if name in self._host.names():
            parts = self._host[name].split((kept.end - kept.start).tolist())
            for first, part in zip(kept.start.tolist(), parts, strict=True):
                rows[first : first + len(part)] = part
        return rows

    def let_go(self) -> None:
        """Have the system forget what it has in memory of the rows that ``whole`` gave."""
        if self._mapped is not None:
            drop_pages(self._mapped, cached=True)

    def _kind(self, there: Ref) -> torch.dtype:
        """What the memory has the rows of a tensor in."""
        return self._host.torch_dtype(there.dtype)

    def _put(self, there: Ref, rows: Tensor, places: Iterable[Target]) -> None:
        for begin, which in places:
            if isinstance(which, np.ndarray):
                self._write(there, begin, torch.from_numpy(as_numpy(rows).take(which, axis=0)).view(rows.dtype))
            else:
                self._write(there, begin, rows[which])

    def _write(self, there: Ref, begin: int, rows: Tensor) -> None:
        start, kind = perf_counter(), self._kind(there)
        store = self._stores[there.where]
        if rows.dtype == kind:
            store.write(begin, _bytes_of(rows))
        else:
            room, at = self._cast.view(kind), begin
            for part in rows.view(-1).split(len(room)):
                cast_alone(part, room[: len(part)])
                store.write(at, _bytes_of(room[: len(part)]))
                at += len(part) * kind.itemsize
        self._traffic.add(there.where, rows.numel() * kind.itemsize, seconds=perf_counter() - start)

    def _read(self, there: Ref, begin: int, rows: Tensor) -> None:
        start, kind = perf_counter(), self._kind(there)
        _read_as(kind, self._stores[there.where], begin, rows)
        self._traffic.add(there.where, len(rows) * _row_bytes(rows, kind), seconds=perf_counter() - start)

    def _read_chunk(
        self, store: Store | File, runs: list[tuple[int, int]], kind: torch.dtype, there: Ref, chunk: Chunk
    ) -> None:
        """The chunk's rows, which lie there in some numbers in runs: from a byte on, so many. One run of the same
        numbers comes to where staging memory begins from then on."""
        start, rows, name = perf_counter(), chunk.in_window(there), f"disk {there.tensor}"
        nbytes = sum(count for _, count in runs) * _row_bytes(rows, kind)
        if kind != rows.dtype or len(runs) != 1:
            chunk.device.fill_beside(name, chunk.set, lambda room: 0)
            parts = chunk.in_window(there).split([count for _, count in runs])  # of all, wherever they began before
            for (begin, _), part in zip(runs, parts, strict=True):
                _read_as(kind, store, begin, part)
        elif chunk.device.queues:  # copies of what is at the beginning
            store.read(runs[0][0], _bytes_of(rows))
        else:
            chunk.device.fill_beside(name, chunk.set, partial(store.read_within, runs[0][0], nbytes))
        self._traffic.add(there.where, nbytes, seconds=perf_counter() - start)


def add_kept(kept: Kept, bucket: Tensor, vertices: np.ndarray, stores: Stores, host: Tensor) -> None:
    """Store or add the rows of a bucket that are in memory, which come first there.

    Args:
        vertices: int32 [K], whose rows the bucket has; ``stores``: of these, which are stored.
    """
    order = np.argsort(vertices, kind="stable")
    places = kept.places(vertices[order])
    flags = stores[order[: len(places)]] if isinstance(stores, np.ndarray) else np.full(len(places), stores)
    put_rows_alone(bucket.numpy()[: len(places)], host.numpy(), places, flags)


def _row_bytes(rows: Tensor, kind: torch.dtype) -> int:
    """Of one of them below the host."""
    return rows.shape[1] * kind.itemsize


def _read_as(kind: torch.dtype, store: Store | File, begin: int, into: Tensor) -> None:
    """Consecutive rows, which lie there in other numbers or in these."""
    if kind == into.dtype:
        store.read(begin, _bytes_of(into))
        return
    flat, at = into.view(-1), 0
    for piece in store.pieces(begin, into.numel() * kind.itemsize):
        part = torch.from_numpy(piece).view(kind)
        cast_alone(part, flat[at : at + len(part)])
        at += len(part)


def _bytes_of(rows: Tensor) -> np.ndarray:
    """uint8 [n], the same memory."""
    return as_numpy(rows).reshape(-1).view(np.uint8)
