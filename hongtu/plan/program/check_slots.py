"""Which row every slot of a pass's caches holds, batch by batch, as the program moves them: the checker's memory.

Legend: V vertices; C slots of a cache; S sources of a chunk.
"""

from __future__ import annotations

import numpy as np

from hongtu.plan.program.moves import Flush, Load, Pull, Push, Zero
from hongtu.plan.program.origins import Column
from hongtu.plan.program.program import PassProgram

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

    def bring_picks(self, name: str, column: Column, batch: int) -> None:
        self._staged[name] = [column.of(i, batch) for i in range(len(self._p.buffers))]

    def _get(self, name: str, device: int, expected: int) -> np.ndarray:
        demand(name in self._staged, f"{name} was not brought")
        found = self._staged[name][device]
        demand(len(found) == expected, f"device {device}: {name} has {len(found)} entries, {expected} rows move")
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

    def load(self, x: Load, batch: int) -> None:
        self._open(x, batch, "load_slots", lost=False)

    def zero(self, x: Zero, batch: int) -> None:
        self._open(x, batch, x.slots, lost=True)

    def _open(self, x: Load | Zero, batch: int, slot_name: str, *, lost: bool) -> None:
        for i in range(len(self._p.buffers)):
            rows = x.picks.column("row", i, batch)
            if isinstance(x, Load):
                same = np.array_equal(self._get("load_rows", i, len(rows)), x.picks.column(x.column, i, batch))
                demand(same, f"device {i}: load_rows are of other rows")
            self._fill(x.cache, i, self._get(slot_name, i, len(rows)), rows, lost=lost)

    def pull(self, x: Pull, batch: int) -> None:
        for i in range(len(self._p.buffers)):
            rows = x.picks.column("row", i, batch)
            source, target = (self._get(name, i, len(rows)) for name in ("pull_from", "pull_to"))
            for peer, part in x.picks.by_peer(i, batch):
                self.take(x.cache, peer, source[part], rows[part], f"pull of device {i}")
            self._fill(x.cache, i, target, rows, lost=False)

    def push(self, x: Push, batch: int) -> None:
        for i in range(len(self._p.buffers)):
            rows = x.picks.column("row", i, batch)
            source, target = (self._get(name, i, len(rows)) for name in ("push_from", "push_to"))
            self.take(x.cache, i, source, rows, "push")
            for peer, part in x.picks.by_peer(i, batch):
                self.take(x.cache, peer, target[part], rows[part], f"push of device {i}")
            self.held[x.cache][i][source] = NONE

    def flush(self, x: Flush, batch: int) -> None:
        for i in range(len(self._p.buffers)):
            rows = x.picks.column("row", i, batch)
            slots = self._get("flush_slots", i, len(rows))
            self.take(x.cache, i, slots, rows, "flush")
            self.held[x.cache][i][slots] = NONE

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
