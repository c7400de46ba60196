"""What files in a directory take, moved as rows are that host memory does not hold."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from hongtu.engine.stores import DiskStore
from hongtu.host import check_disk, in_large_pages

BLOCK = 8 << 20  # bytes that are written or read at a time, as rows of a chunk are
BLOCKS = 128
SECONDS = 5.0  # that writing, and then reading, may take


def disk_rate(directory: Path) -> float:
    """Bytes per second of rows that go to a file and come from it again, for some seconds at most.

    Raises:
        InputError, OutputError: no file of so many bytes can be made there.
    """
    check_disk(directory, BLOCK * BLOCKS)
    data = in_large_pages(BLOCK)
    data[:] = np.frombuffer(np.random.default_rng(0).bytes(BLOCK), np.uint8)  # a disk may compress zeros
    store, moved = DiskStore(str(directory), BLOCK * BLOCKS, ends=1), 0
    start = perf_counter()
    while moved < BLOCKS and (not moved or perf_counter() - start < SECONDS):
        store.write(moved * BLOCK, data)
        moved += 1
    written, done = (perf_counter() - start) / moved, 0
    start = perf_counter()
    while done < moved and (not done or perf_counter() - start < SECONDS):
        store.read_within(done * BLOCK, BLOCK, data)
        done += 1
    read = (perf_counter() - start) / done
    store.close()
    return 2 * BLOCK / (written + read)
