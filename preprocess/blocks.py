"""How many rows of a large array are copied in one step."""

from __future__ import annotations

from hongtu.host import available_bytes

BUFFER = 1 << 22  # elements of a block
SHARE = 4  # of the memory that is left, for blocks of an array that does not fit it


def block_rows(nbytes: int, width: int, most: int | None = None) -> int:
    """Rows of a block of an array of so many bytes. Rows that lie anywhere in a file larger than memory are read again
    for every block, so that blocks are then as large as memory allows.

    Args:
        most: bytes of memory that may be used for blocks; None: what the machine has.
    """
    available = min((left for left in (available_bytes(), most) if left is not None), default=None)
    small = available is None or nbytes < available // 2
    elements = BUFFER if small else max(BUFFER, available // (4 * SHARE * 2))
    return max(1, elements // width)
