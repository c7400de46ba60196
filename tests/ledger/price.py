"""What a plan takes before its transfers are planned: of every pass so many bytes, and so many for each slot.

The search asks it of hundreds of plans. It is a fold over ``Alloc`` and ``Free`` alone: what a pass allocates is known
from its shapes, but for the rows of its caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hongtu.hardware import ALIGNMENT, aligned
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.slab import Places
from hongtu.plan.passes.definition import FEATURES, Pass
from tests.ledger.form import Alloc, Free, Ref, Space

CACHES = "cache", "gradient_cache"
Memory = list[Alloc | Free]


class Price(NamedTuple):
    """Of one pass on one device.

    Attributes:
        fixed: bytes of everything but caches.
        steps: bytes from one row of each cache to the next.
        slab: every cache begins at a multiple of ``ALIGNMENT``.
    """

    fixed: int
    steps: tuple[int, ...]
    slab: bool

    def peak(self, slots: int) -> int:
        nbytes = (slots * step for step in self.steps)
        return self.fixed + sum(map(aligned, nbytes) if self.slab else nbytes)

    def slots(self, free: int) -> int | None:
        """As many as so many bytes have room for; None: there is no cache."""
        beside = self.fixed + (ALIGNMENT - 1) * len(self.steps) * self.slab
        return (free - beside) // sum(self.steps) if self.steps else None


def lasting(plan: ExecutionPlan, device: int) -> Memory:
    """What set-up brings to a device and leaves there: the chunks' structure, the features."""
    there, item = Space("device", device), plan.shape.itemsize
    spans = plan.structure_spans[device] if plan.choice.structure else {}
    found: Memory = []
    for name, (_, _, array) in plan.structure.items() if plan.choice.structure else ():
        row = array.nbytes(1, item)
        found.append(Alloc(Ref(name, there), int(spans[array.over][-1]), row, row, stays=True))
    return found + ([_resident(plan, FEATURES, device)] if FEATURES in plan.placed else [])


def allocated(plan: ExecutionPlan, p: Pass, device: int) -> tuple[Memory, Memory]:
    """What a pass makes on a device, caches with the fewest rows, and what it frees of it that may stay."""
    own, on_host = plan._buffers(p, device)
    made: Memory = [_resident(plan, name, device) for name in p.creates if name in plan.placed]
    made += _buffers(own, on_host, plan.choice.staging, Space("device", device), plan.shape.itemsize)
    made += [_buffer(*cache, Space("device", device), plan.shape.itemsize) for cache in plan._caches(p, device).items()]
    return made, [Free(Ref(name, Space("device", device))) for name in p.frees if name in plan.placed]


def _resident(plan: ExecutionPlan, name: str, device: int) -> Alloc:
    step = plan.row_on_device(name)
    return Alloc(Ref(name, Space("device", device)), plan.resident_rows(name, device), step, step, stays=True)


def _buffers(own: dict[str, Buffer], on_host: dict[str, Buffer], sets: int, there: Space, item: int) -> Iterator[Alloc]:
    """Arrays that one copy brings are one piece, once for each set."""
    packed = {name for name in own if name in on_host and name != "flush_rows"}
    nbytes = sum(own[name].nbytes(item) for name in packed) // max(sets, 1)
    yield from (Alloc(Ref(f"script {k}", there), nbytes, 1, 1) for k in range(sets if packed else 0))
    yield from (_buffer(name, buffer, there, item) for name, buffer in own.items() if name not in packed)


def _buffer(name: str, buffer: Buffer, there: Space, item: int) -> Alloc:
    rows = buffer.sets * buffer.shape[0]
    step = Buffer((1, *buffer.shape[1:]), buffer.dtype, padded=buffer.padded).nbytes(item)
    return Alloc(Ref(name, there), rows, step, step)


def prices(plan: ExecutionPlan, device: int) -> dict[str, Price]:
    """Of every pass, by name; its transfers need not be planned."""
    found: dict[str, Price] = {}
    beside = plan.shape.model_bytes + sum(x.nbytes for x in lasting(plan, device) if isinstance(x, Alloc))
    for passes in (plan.passes.setup, plan.passes.train, plan.passes.evaluate):
        places, standing = Places(), dict[str, int]()
        slab = plan.choice.staging > 0 and plan.choice.slab and passes is not plan.passes.setup
        for p in passes:
            made, freed = allocated(plan, p, device)
            fixed, steps = beside, []
            for x in made:
                assert isinstance(x, Alloc)
                if x.stays:
                    standing[x.ref.tensor] = x.nbytes
                    places.put(x.ref.tensor, x.nbytes)
                elif x.ref.tensor in CACHES:
                    steps.append(x.step)
                else:
                    fixed += aligned(x.nbytes) if slab else x.nbytes
            fixed += places.height if slab else sum(standing.values())
            found[p.name] = Price(fixed, tuple(steps), slab)
            for free in freed:
                places.free(free.ref.tensor)
                del standing[free.ref.tensor]
        beside += sum(standing.values())  # what set-up leaves
    return found
