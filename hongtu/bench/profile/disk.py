"""What files in a directory take: as fast as the disk itself, for no page of theirs is left in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from hongtu.errors import OutputError
from hongtu.host import check_disk, drop_file_pages

BLOCK = 16 << 20  # bytes of one write or read
BLOCKS = 64
SECONDS = 5.0  # that writing, and then reading, may take


def disk_rate(directory: Path) -> float:
    """Bytes per second of rows that are written to a file once and read once; each for some seconds at most.

    Raises:
        InputError, OutputError: no file of so many bytes can be made there.
    """
    check_disk(directory, BLOCK * BLOCKS)
    block = bytearray(np.random.default_rng(0).bytes(BLOCK))  # a disk may compress zeros
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as stream:
            file, written = stream.fileno(), 0
            start = perf_counter()
            while written < BLOCKS and (not written or perf_counter() - start < SECONDS):
                os.pwrite(file, block, written * BLOCK)
                drop_file_pages(file, written=True)
                written += 1
            seconds, done = (perf_counter() - start) / written, 0
            start = perf_counter()
            while done < written and (not done or perf_counter() - start < SECONDS):
                os.preadv(file, [block], done * BLOCK)
                drop_file_pages(file)
                done += 1
            seconds += (perf_counter() - start) / done
    except OSError as error:
        raise OutputError(directory, error) from error
    return 2 * BLOCK / seconds
