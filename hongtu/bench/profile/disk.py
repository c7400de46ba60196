"""What files in a directory take, moved as rows are that host memory does not hold."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from hongtu.engine.blocks import Blocks
from hongtu.engine.reads import Reads
from hongtu.errors import OutputError
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
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as stream:
            file, moved = stream.fileno(), 0
            os.posix_fallocate(file, 0, BLOCK * BLOCKS)
            blocks, reads = Blocks(file, BLOCK * BLOCKS, ends=1), Reads(file)
            start = perf_counter()
            while moved < BLOCKS and (not moved or perf_counter() - start < SECONDS):
                blocks.put(moved * BLOCK, data)
                moved += 1
            written, done = (perf_counter() - start) / moved, 0
            start = perf_counter()
            while done < moved and (not done or perf_counter() - start < SECONDS):
                reads.read_within(done * BLOCK, BLOCK, data)
                done += 1
            read = (perf_counter() - start) / done
            blocks.close()
            reads.close()
    except OSError as error:
        raise OutputError(directory, error) from error
    return 2 * BLOCK / (written + read)
