"""One slab of a device's memory for the planned buffers of all epochs: where each begins, the same in every epoch.

What stays for several passes has a place while it is there; the buffers of a pass are stacked above all of these. What
set-up leaves for good lies elsewhere, where it came to lie first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from hongtu.hardware import ALIGNMENT, aligned
from hongtu.plan.memory.buffers import Buffer


class Places:
    """Which bytes are taken.

    >>> places = Places()
    >>> [places.put(name, 300) for name in "abc"], places.height
    ([0, 512, 1024], 1536)
    >>> places.free("b")
    >>> places.put("d", 600), places.put("e", 512), places.height
    (1536, 512, 2304)
    """

    def __init__(self) -> None:
        self._taken: dict[Hashable, tuple[int, int]] = {}

    def put(self, name: Hashable, nbytes: int) -> int:
        """The first byte of the lowest gap that is large enough, which is taken."""
        at = 0
        for begin, end in sorted(self._taken.values()):
            if at + nbytes <= begin:
                break
            at = end
        self._taken[name] = at, at + aligned(nbytes)
        return at

    def free(self, name: Hashable) -> None:
        del self._taken[name]

    @property
    def height(self) -> int:
        """The byte behind the last that is taken."""
        return max((end for _, end in self._taken.values()), default=0)


class Price(NamedTuple):
    """What a pass takes of one device: so many bytes, and so many for each slot of its caches.

    Attributes:
        beside: bytes of the model and of what set-up leaves for good.
        fixed: of everything else but caches.
        rows: from one row of each cache to the next.
        slab: the pass's buffers lie in a slab, where every one begins at a multiple of ``ALIGNMENT``.
        at: where what the pass makes, and what stays beyond it, begins there, by name.
    """

    beside: int
    fixed: int
    rows: tuple[int, ...]
    slab: bool
    at: dict[str, int]

    def height(self, slots: int) -> int:
        """Bytes beside what is always there, with so many slots."""
        caches = (slots * row for row in self.rows)
        return self.fixed + sum(map(aligned, caches) if self.slab else caches)

    def peak(self, slots: int) -> int:
        """All bytes."""
        return self.beside + self.height(slots)

    def slots(self, nbytes: int) -> int | None:
        """How many slots fit so many bytes, wherever caches begin; None: there is no cache."""
        beside = self.beside + self.fixed + (ALIGNMENT - 1) * len(self.rows) * self.slab
        return (nbytes - beside) // sum(self.rows) if self.rows else None


def stacked(buffers: Mapping[str, Buffer], beside: Mapping[str, Buffer], sets: int, itemsize: int) -> int:
    """Bytes of a pass's buffers in a slab. Arrays that one copy brings are one piece, once for each set.

    Args:
        beside: the host's side of staging memory.
        sets: of that.
    """
    packed = {name for name in buffers if name in beside and name != "flush_rows"}
    script = sum(buffers[name].nbytes(itemsize) for name in packed) // sets
    return sets * aligned(script) + sum(
        aligned(b.nbytes(itemsize)) for name, b in buffers.items() if name not in packed
    )
