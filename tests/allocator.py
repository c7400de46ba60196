"""torch's caching allocator on a GPU, as a model: which memory it takes from the driver for the requests of a stream.

Sizes are rounded up to 512 bytes. What takes at most 1 MiB comes from segments of 2 MiB, else from segments of 20 MiB,
or of its own size rounded up to 2 MiB from 10 MiB on. The smallest free block that is large enough is taken, and cut
where enough is left of it; neighbours that are free become one block again. Segments stay. Expandable segments are one
for small sizes and one for large ones, which grow by pages of 2 and 20 MiB where no free block is large enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 1 << 20
ROUND, SMALL, LARGE = 512, 1 * MIB, 10 * MIB
SMALL_SEGMENT, LARGE_SEGMENT, ROUND_SEGMENT = 2 * MIB, 20 * MIB, 2 * MIB


class Block:
    """A piece of a segment, between two others of it; ``small``: for sizes up to 1 MiB."""

    def __init__(
        self, at: int, size: int, small: bool, before: Block | None = None, after: Block | None = None
    ) -> None:
        self.at, self.size, self.small, self.free = at, size, small, True
        self.before, self.after = before, after

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.at

    def cut(self, size: int) -> Block:
        """Keep so many bytes; returns the block of the others."""
        rest = Block(self.at + size, self.size - size, self.small, self, self.after)
        if rest.after is not None:
            rest.after.before = rest
        self.size, self.after = size, rest
        return rest

    def join(self) -> None:
        """Take over the block after this one."""
        assert self.after is not None
        self.size, self.after = self.size + self.after.size, self.after.after
        if self.after is not None:
            self.after.before = self


class CachingAllocator:
    """Of one stream.

    Attributes:
        reserved: bytes of all segments.
    """

    def __init__(self, *, expandable: bool = False) -> None:
        self.reserved, self._expandable = 0, expandable
        self._free: dict[bool, list[Block]] = {True: [], False: []}  # by whether small; by size, then address
        self._last: dict[bool, Block] = {}  # of expandable segments

    def take(self, nbytes: int) -> Block:
        """The block of a tensor."""
        size = max(-(-nbytes // ROUND) * ROUND, ROUND)
        small = size <= SMALL
        free = self._free[small]
        at = bisect_left(free, (size, 0), key=lambda block: block.key)
        if at == len(free) and self._expandable:
            block = self._grown(size, small)
        else:
            block = free.pop(at) if at < len(free) else self._segment(size, small)
        left = block.size - size
        if left >= ROUND if small else left > SMALL:
            rest = block.cut(size)
            if self._last.get(small) is block:
                self._last[small] = rest
            insort(free, rest, key=lambda block: block.key)
        block.free = False
        return block

    def give(self, block: Block) -> None:
        """Take one back."""
        free = self._free[block.small]
        if block.after is not None and block.after.free:
            free.remove(block.after)
            self._forget(block.after, block)
            block.join()
        if block.before is not None and block.before.free:
            free.remove(block.before)
            self._forget(block, block.before)
            block = block.before
            block.join()
        block.free = True
        insort(free, block, key=lambda block: block.key)

    def _forget(self, block: Block, joined: Block) -> None:
        if self._last.get(block.small) is block:
            self._last[block.small] = joined

    def _segment(self, size: int, small: bool) -> Block:
        least = SMALL_SEGMENT if small else LARGE_SEGMENT
        nbytes = least if size < LARGE else -(-size // ROUND_SEGMENT) * ROUND_SEGMENT
        self.reserved += nbytes
        return Block(self.reserved << 8, nbytes, small)

    def _grown(self, size: int, small: bool) -> Block:
        last, page = self._last.get(small), SMALL_SEGMENT if small else LARGE_SEGMENT
        there = last.size if last is not None and last.free else 0
        more = -(-(size - there) // page) * page
        self.reserved += more
        if last is not None and last.free:
            self._free[small].remove(last)
            last.size += more
            return last
        end = (1 << 60) * small if last is None else last.at + last.size
        self._last[small] = Block(end, more, small, last)
        if last is not None:
            last.after = self._last[small]
        return self._last[small]
