"""Gradient rows that the host stores or adds up: by its own threads, or by a function that a graph calls."""

from __future__ import annotations

import numpy as np

from hongtu.device.base import Stores
from hongtu.host import in_parts
from hongtu.kernels.rows import put_address, put_halves_alone, put_rows_alone


class Put:
    """Work of the ``host`` stream: ``host[index] = rows`` where ``stores`` says so, else ``+=``.

    Args:
        rows, host: [D, F] and [N, F], of one dtype; int16: the bits of bfloat16.
        index: int32 [D], different rows, or None: the first D.
    """

    def __init__(self, rows: np.ndarray, host: np.ndarray, index: np.ndarray | None, stores: Stores) -> None:
        self._given = rows, host, index, stores

    def __call__(self) -> None:
        put_rows(*self._given)

    def native(self) -> tuple[int, int, object]:
        """The same for a caller without Python: the address of a function of one pointer, which runs on one thread and
        takes no lock; the pointer; and what must live as long as it may be called."""
        rows, host, index, stores = self._given
        to = np.arange(len(rows), dtype=np.int32) if index is None else np.ascontiguousarray(index)
        flags = np.ascontiguousarray(np.broadcast_to(stores, len(rows)))
        arrays = rows, host, to, flags
        numbers = np.array([*(array.ctypes.data for array in arrays), len(rows), len(host), rows.shape[1]], np.int64)
        assert rows.flags.c_contiguous and host.flags.c_contiguous and len(to) == len(rows)
        return put_address(rows.dtype), numbers.ctypes.data, (numbers, arrays)


def put_rows(rows: np.ndarray, host: np.ndarray, index: np.ndarray | None, stores: Stores) -> None:
    """What ``Put`` does, on several threads where it is much."""

    def put(part: slice) -> None:
        halves = rows.dtype == np.int16
        if index is None and stores is False and not halves:
            np.add(host[part], rows[part], out=host[part])
            return
        to = np.arange(part.start, part.stop, dtype=np.int32) if index is None else index[part]
        flags = stores[part] if isinstance(stores, np.ndarray) else np.full(len(to), stores)
        (put_halves_alone if halves else put_rows_alone)(rows[part], host, to, flags)

    in_parts(put, len(rows), rows.nbytes)
