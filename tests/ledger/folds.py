"""What follows from the list of a pass: bytes, peaks, arenas, streams, waits. One function each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hongtu.hardware import aligned
from hongtu.metrics import Traffic
from hongtu.plan.memory.slab import Places
from tests.ledger.form import HOST, All, Alloc, Call, Chunk, Column, Copy, Free, Op, Ref, Space

Key = tuple[str, Space]
There = dict[Key, Alloc]  # what is there
OUTSIDE = ("disk", "rank")  # whose tensors nobody makes
WINDOWS = ("host", "staging", "window")


class LedgerError(RuntimeError):
    """A list does what cannot be."""


def there_after(ops: Iterable[Op], there: There) -> Iterator[tuple[Op, There]]:
    """Every operation with what is there when it is done.

    Raises:
        LedgerError: when something is made twice, or used or freed where it is not there.
    """
    for x in ops:
        if isinstance(x, Alloc):
            if x.ref.key in there:
                raise LedgerError(f"{x.ref.key} is made twice")
            there[x.ref.key] = x
        elif isinstance(x, Free) and isinstance(x.ref.rows, All):
            if there.pop(x.ref.key, None) is None:
                raise LedgerError(f"{x.ref.key} is freed, but it is not there")
        else:
            for ref in (*x.reads, *x.writes) if isinstance(x, Copy | Call) else (x.ref,):
                _in_bounds(ref, there)
        yield x, there


def _in_bounds(ref: Ref, there: There) -> None:
    made = there.get(ref.key)
    if made is None:
        if ref.space.kind in OUTSIDE or (ref.space == HOST and isinstance(ref.rows, All)):
            return  # the graph's own arrays and the plan's are always there
        raise LedgerError(f"{ref.key} is not there")
    end = end_of(ref.rows)
    if made.row and end > made.rows:
        raise LedgerError(f"{ref.key} has {made.rows} rows, not {end}")


def end_of(rows: All | Chunk | Column) -> int:
    if isinstance(rows, Chunk):
        return rows.end if rows.end > rows.first else 0
    return 0 if isinstance(rows, All) else int(rows.index.max(initial=-1)) + 1


class Values:
    """Which rows of what is there have a value, and which values nobody has used yet.

    Args:
        there: what is there before the first pass; all of it has values.
    """

    def __init__(self, there: There) -> None:
        self._there, self._buffers = dict(there), set[Key]()
        self._known = {key: np.full(max(made.rows, 1), True) for key, made in there.items()}
        self._unused = {key: np.zeros_like(known) for key, known in self._known.items()}

    def check(self, ops: Iterable[Op]) -> None:
        """Go through a pass.

        Raises:
            LedgerError: when something is read that has no value, or goes before anybody has used its value.
        """
        for x, _ in there_after(ops, self._there):
            if isinstance(x, Alloc):
                strict = not x.stays and x.ref.space.kind != "window"  # from where rows go whose turn comes
                (self._buffers.add if strict else self._buffers.discard)(x.ref.key)
                self._known[x.ref.key], self._unused[x.ref.key] = np.full((2, max(x.rows, 1)), False)
            elif isinstance(x, Free):
                self._end(x.ref)
            elif isinstance(x, Copy) and "disk" in (x.src.space.kind, x.dst.space.kind):
                self._whole_chunk(x)
            else:
                self._run(x)

    def _run(self, x: Copy | Call) -> None:
        for ref in x.reads:
            if isinstance(x, Call) or ref is not x.dst:
                self._use(ref)
        if isinstance(x, Copy) and not x.stores and x.dst.space.kind != "rank":
            rows = self._rows(self._known, x.dst)
            _demand(rows if x.adds else rows | x.mode, x.dst)  # type: ignore[operator]
        for ref in x.writes:
            through = isinstance(x, Copy) and ref is x.through
            self._set(ref, True, unused=not through and _is_for_somebody(x))

    def _use(self, ref: Ref) -> None:
        given = isinstance(ref.rows, All) and ref.space == HOST and ref.key not in self._known
        if not given and ref.space.kind != "rank":
            _demand(self._rows(self._known, ref), ref)
            self._unused[ref.key][units_of(ref.rows)] = False

    def _rows(self, table: dict[Key, np.ndarray], ref: Ref) -> np.ndarray:
        rows: np.ndarray = table[ref.key][units_of(ref.rows)]
        return rows

    def _set(self, ref: Ref, value: bool | np.ndarray, *, unused: bool) -> None:
        if ref.space.kind in OUTSIDE:
            if ref.space.kind == "rank":
                return
            self._grow(ref)
        self._known[ref.key][units_of(ref.rows)] = value
        self._unused[ref.key][units_of(ref.rows)] = unused

    def _grow(self, ref: Ref) -> None:
        """Of the disk there is as much as was ever named."""
        for table in (self._known, self._unused):
            known = table.get(ref.key, np.full(0, False))
            table[ref.key] = np.append(known, np.full(max(end_of(ref.rows) - len(known), 0), ref.tensor == "artifact"))

    def _end(self, ref: Ref) -> None:
        if ref.key in self._buffers and self._rows(self._unused, ref).any():
            raise LedgerError(f"a value of {ref.key} goes before anybody has used it")
        self._set(ref, False, unused=False)
        if isinstance(ref.rows, All):
            del self._known[ref.key], self._unused[ref.key]

    def _whole_chunk(self, x: Copy) -> None:
        """All rows of a chunk go to the disk and come back, of a pruned one those without a value, too."""
        self._grow(x.src if x.src.space.kind == "disk" else x.dst)
        rows, there = self._rows(self._known, x.src), self._rows(self._known, x.dst)
        few, many = sorted((len(rows), len(there)))
        if not few or many % few:
            raise LedgerError(f"{x.src.key} has {len(rows)} entries, {x.dst.key} {len(there)}")
        if x.src.space.kind == "disk":
            self._set(x.dst, rows.reshape(few, -1).all(axis=1), unused=True)
        else:
            self._unused[x.src.key][units_of(x.src.rows)] = False
            self._set(x.dst, np.repeat(rows, many // few), unused=True)


def _is_for_somebody(x: Copy | Call) -> bool:
    """What is computed, and what leaves; a batch may come with rows that it does not need."""
    return (
        x.kernel not in ("zero", "stage")
        if isinstance(x, Call)
        else x.src.space.kind == "device" or x.dst.space.kind == "staging"
    )


def _demand(known: np.ndarray, ref: Ref) -> None:
    if not known.all():
        raise LedgerError(f"{ref.key} is read where it has no value")


# ---------------------------------------------------------------------------------------------------------------- bytes


def traffic(ops: Iterable[Op], there: There) -> dict[int, Traffic]:
    """By device, what crosses every link. Ranks and what the disk moves for set-up count for the first."""
    found: defaultdict[int, Traffic] = defaultdict(Traffic)
    for x, now in there_after(ops, there):
        link = link_of(x) if isinstance(x, Copy) else None
        if link is not None:
            rows = _count(x)
            nbytes = rows * _row(x, now)
            found[device_of(x)].add(link, nbytes, rows)
    return found


def link_of(x: Copy) -> str | None:
    """What a copy counts as: its two spaces, which rows they have on the device, and whether it adds."""
    src, dst = x.src.space.kind, x.dst.space.kind
    if "disk" in (src, dst):
        return "disk"
    if src == "device" and dst == "device":
        return None if x.src.space == x.dst.space else "push" if x.adds else "pull"
    if dst == "device":
        return "topology" if x.topology else "load" if isinstance(x.dst.rows, Column) else "read"
    if src == "device":
        return "flush" if isinstance(x.src.rows, Column) else "write"
    if src == "rank" and x.stores:
        return "fetch"
    return "send" if dst == "rank" and x.adds else None


def device_of(x: Copy) -> int:
    for space in (x.src.space, x.dst.space) if x.adds else (x.dst.space, x.src.space):
        if space.kind in ("device", "window"):
            return space.number
    return 0


def _count(x: Copy) -> int:
    """Rows that move: of the side that is counted in bytes, these."""
    side = x.src.rows if x.src.space.kind == "disk" else x.dst.rows
    if isinstance(side, All):
        side = x.src.rows
    if isinstance(side, Chunk):
        return side.end - side.first
    return len(side.index) if isinstance(side, Column) else 0


def _row(x: Copy, there: There) -> int:
    if "disk" in (x.src.space.kind, x.dst.space.kind):
        return 1  # counted in bytes
    made = there.get(x.dst.key) or there.get(x.src.key)
    if made is None or not made.row:
        made = there[x.src.key]
    return made.row


# ---------------------------------------------------------------------------------------------------------------- peaks


def memory_of(space: Space) -> str | None:
    if space.kind == "device":
        return f"device {space.number}"
    return "pinned host" if space.kind in WINDOWS else None


def peaks(ops: Iterable[Op], there: There) -> Counter[str]:
    """The most bytes that are there in every memory."""
    live: Counter[str] = Counter()
    for made in there.values():
        live[str(memory_of(made.ref.space))] += round(made.nbytes)
    most = Counter(live)
    for x in ops:
        if isinstance(x, Alloc):
            live[str(memory_of(x.ref.space))] += round(x.nbytes)
            there[x.ref.key] = x
        elif isinstance(x, Free) and isinstance(x.ref.rows, All):
            live[str(memory_of(x.ref.space))] -= round(there.pop(x.ref.key).nbytes)
        most |= live
    return most


def slab(groups: Sequence[Sequence[Sequence[Op]]], device: int) -> int:
    """Bytes of one device's slab: what stays for several passes lies in the lowest gaps, the rest is stacked above."""
    height = 0
    for passes in groups:
        places, standing = Places(), set()
        for ops in passes:
            stack: dict[str, int] = {}
            for x in ops:
                whole = isinstance(x, Alloc | Free) and isinstance(x.ref.rows, All)
                if whole and x.ref.space == Space("device", device):
                    name = x.ref.tensor
                    if isinstance(x, Alloc) and x.row and x.stays:
                        places.put(name, x.nbytes)
                        standing.add(name)
                    elif isinstance(x, Alloc) and x.row:
                        stack[name] = aligned(x.nbytes)
                    elif name in standing:
                        places.free(name)
                        standing.remove(name)
                    else:
                        stack.pop(name, None)
                    height = max(height, places.height + sum(stack.values()))
    return height


def units_of(rows: All | Chunk | Column) -> slice | np.ndarray:
    if isinstance(rows, Chunk):
        return slice(rows.first, rows.end)
    return rows.index if isinstance(rows, Column) else slice(None)
