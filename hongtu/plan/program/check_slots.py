"""Which row every slot of a pass's caches holds, batch by batch, as the program moves them: the checker's memory.

Legend: V vertices; C slots of a cache; S sources of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hongtu.plan.program.moves import Call, Copy, Ref
from hongtu.plan.program.program import PassProgram
from hongtu.plan.program.rows import Picked, Picks

NONE = -1  # no row
NEVER = -(1 << 30)  # a step before every other


class ProgramError(RuntimeError):
    """A program does not do what it must: a fault of the planner, never of its user."""


def demand(holds: bool | np.bool_, what: str) -> None:
    """Raise ProgramError unless something holds."""
    if not holds:
        raise ProgramError(what)


class Slots:
    """The caches of one pass.

    Args:
        p: the pass.
        rows: by tensor placed on the devices, its rows on each of them; such a tensor is its own cache.
    """

    def __init__(self, p: PassProgram, rows: dict[str, tuple[int, ...]]) -> None:
        self._p, self._step = p, 0
        self._first = p.view.partition_start
        self._staged: dict[str, list[np.ndarray]] = {}
        self.held: dict[str, list[np.ndarray]] = {}
        self._used: dict[str, list[np.ndarray]] = {}
        for name, counts in rows.items():
            self.held[name] = [self._own(i, count) for i, count in enumerate(counts)]
        for name in ("cache", "gradient_cache"):
            if all(name in buffers for buffers in p.buffers):
                self.held[name] = [np.full(buffers[name].shape[0], NONE) for buffers in p.buffers]
        for name, held in self.held.items():
            self._used[name] = [np.full(len(slots), NEVER) for slots in held]

    def _own(self, device: int, count: int) -> np.ndarray:
        first, end = self._first[device : device + 2]
        held = np.full(max(count, end - first), NONE)
        held[: end - first] = np.arange(first, end)
        return held[:count]

    def begin(self, step: int) -> None:
        """A batch begins: nothing is staged."""
        self._step = step
        self._staged.clear()

    def bring_picks(self, name: str, column: Picked, batch: int) -> None:
        self._staged[name] = [column.of(i, batch) for i in range(len(self._p.buffers))]

    def _index(self, ref: Ref, device: int, batch: int) -> np.ndarray:
        """What was brought of where the rows of a reference are."""
        assert isinstance(ref.rows, Picked)
        name, column = ref.rows.at, ref.rows.of(device, batch)
        demand(name in self._staged, f"{name} was not brought")
        found = self._staged[name][device]
        count = f"{name} has {len(found)} entries, {len(column)} rows move"
        demand(len(found) == len(column), f"device {device}: {count}")
        if ref.where in ("host", "window"):
            demand(np.array_equal(found, column), f"device {device}: {name} are of other rows")
        return found

    def _fill(self, name: str, device: int, slots: np.ndarray, rows: np.ndarray, *, lost: bool) -> None:
        """Rows begin to live in slots; ``lost``: what was there is of worth until it was taken out."""
        demand(name in self.held, f"there is no cache {name}")
        held, used = self.held[name][device], self._used[name][device]
        where = f"device {device}: {name}"
        demand(len(slots) == 0 or (slots.min() >= 0 and slots.max() < len(held)), f"{where} has {len(held)} slots")
        demand(len(np.unique(slots)) == len(slots), f"{where}: two rows go to one slot")
        if name not in ("cache", "gradient_cache"):
            own = self._first[device + 1] - self._first[device]
            demand(bool((slots >= own).all()), f"{where}: a row of a peer goes to an own row's slot")
        busy = used[slots] > self._step - self._p.sets
        demand(not busy.any(), f"{where}: slot {_first(slots, busy)} is filled while another batch may use it")
        if lost:
            full = held[slots] != NONE
            demand(not full.any(), f"{where}: slot {_first(slots, full)} still has the gradient of another row")
        held[slots] = rows

    def take(self, name: str, device: int, slots: np.ndarray, rows: np.ndarray, what: str) -> None:
        """Slots must hold these rows now."""
        demand(name in self.held, f"there is no cache {name}")
        held = self.held[name][device]
        demand(len(slots) == len(rows), f"device {device}: {what} has {len(slots)} slots for {len(rows)} rows")
        demand(len(slots) == 0 or slots.max() < len(held), f"device {device}: {name} has {len(held)} slots")
        wrong = held[slots] != rows
        row, slot = _first(rows, wrong), _first(slots, wrong)
        demand(not wrong.any(), f"device {device}: {what} needs row {row} in slot {slot} of {name}, it is not there")
        self._used[name][device][slots] = self._step

    def load(self, x: Copy, batch: int) -> None:
        for i, _, rows in self._picked(x.src, batch):
            self._index(x.src, i, batch)
            self._fill(x.dst.tensor, i, self._index(x.dst, i, batch), rows, lost=False)

    def zero(self, x: Call, batch: int) -> None:
        assert x.at is not None
        for i, _, rows in self._picked(x.at, batch):
            self._fill(x.at.tensor, i, self._index(x.at, i, batch), rows, lost=True)

    def _picked(self, ref: Ref, batch: int) -> Iterator[tuple[int, Picks, np.ndarray]]:
        """Every device with what is picked and of which rows."""
        assert isinstance(ref.rows, Picked)
        for i in range(len(self._p.buffers)):
            yield i, ref.rows.picks, ref.rows.picks.column("row", i, batch)

    def pull(self, x: Copy, batch: int) -> None:
        for i, picks, rows in self._picked(x.src, batch):
            source, target = self._index(x.src, i, batch), self._index(x.dst, i, batch)
            for peer, part in picks.by_peer(i, batch):
                self.take(x.src.tensor, peer, source[part], rows[part], f"pull of device {i}")
            self._fill(x.dst.tensor, i, target, rows, lost=False)

    def push(self, x: Copy, batch: int) -> None:
        for i, picks, rows in self._picked(x.src, batch):
            source, target = self._index(x.src, i, batch), self._index(x.dst, i, batch)
            self.take(x.src.tensor, i, source, rows, "push")
            for peer, part in picks.by_peer(i, batch):
                self.take(x.dst.tensor, peer, target[part], rows[part], f"push of device {i}")
            self.held[x.src.tensor][i][source] = NONE

    def flush(self, x: Copy, batch: int) -> None:
        for i, _, rows in self._picked(x.src, batch):
            slots = self._index(x.src, i, batch)
            self.take(x.src.tensor, i, slots, rows, "flush")
            self.held[x.src.tensor][i][slots] = NONE

    def end(self, gradients: set[str]) -> None:
        """No gradient is left in a cache when the pass ends."""
        for name in gradients:
            for i, held in enumerate(self.held[name]):
                own = 0 if name == "gradient_cache" else int(self._first[i + 1] - self._first[i])
                left = held[own:] != NONE
                demand(not left.any(), f"device {i}: row {_first(held[own:], left)} never leaves {name}")


def _first(values: np.ndarray, mask: np.ndarray) -> int:
    found = np.flatnonzero(mask)
    return int(values[found[0]]) if len(found) else NONE
