"""One slab of a device's memory for the planned buffers of all epochs: where each begins, the same in every epoch.

What stays for several passes has a place while it is there; the buffers of a pass are stacked above all of these. What
set-up leaves for good lies elsewhere, where it came to lie first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hongtu.hardware import aligned
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.passes.definition import Pass


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
        self._taken: dict[str, tuple[int, int]] = {}

    def put(self, name: str, nbytes: int) -> int:
        """The first byte of the lowest gap that is large enough, which is taken."""
        at = 0
        for begin, end in sorted(self._taken.values()):
            if at + nbytes <= begin:
                break
            at = end
        self._taken[name] = at, at + aligned(nbytes)
        return at

    def free(self, name: str) -> None:
        del self._taken[name]

    @property
    def height(self) -> int:
        """The byte behind the last that is taken."""
        return max((end for _, end in self._taken.values()), default=0)


@dataclass(frozen=True)
class Standing:
    """What stays for several passes on one device.

    Attributes:
        at: by pass and tensor, where what a pass makes begins.
        height: by pass, the byte behind all that is there while it runs.
    """

    at: dict[tuple[str, str], int] = field(default_factory=dict)
    height: dict[str, int] = field(default_factory=dict)


def stand(groups: Sequence[Sequence[Pass]], placed: frozenset[str], nbytes: Callable[[str], int]) -> Standing:
    """Where everything stays on one device.

    Args:
        groups: passes, which run one group after another; each frees what it makes.
        placed: the vertex tensors that stay; ``nbytes``: of one of them.
    """
    standing = Standing()
    for passes in groups:
        places, there = Places(), set()
        for p in passes:
            for name in (name for name in p.creates if name in placed):
                standing.at[p.name, name] = places.put(name, nbytes(name))
                there.add(name)
            standing.height[p.name] = places.height
            for name in there.intersection(p.frees):
                places.free(name)
                there.remove(name)
        assert not there, f"nobody frees {there}"
    return standing


def stacked(
    buffers: Mapping[str, Buffer], beside: Mapping[str, Buffer], caches: Mapping[str, Buffer], sets: int, itemsize: int
) -> int:
    """Bytes of a pass's buffers on a device. Arrays that one copy brings are one piece, once for each set.

    Args:
        beside: the host's side of staging memory.
        sets: of that.
    """
    packed = {name for name in buffers if name in beside and name != "flush_rows"}
    script = sum(buffers[name].nbytes(itemsize) for name in packed) // sets
    others = [buffer for name, buffer in buffers.items() if name not in packed]
    return sets * aligned(script) + sum(aligned(buffer.nbytes(itemsize)) for buffer in (*others, *caches.values()))
