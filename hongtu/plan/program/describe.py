"""What each instruction does in one batch, in words: operands, rows of every device, bytes.

The words are those of the kinds, ``Instruction.words``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from hongtu.plan.memory.disk import Kept
from hongtu.plan.program import moves, spilling
from hongtu.plan.program.call import ARRAYS, Call
from hongtu.plan.program.instruction import Instruction, Stores
from hongtu.plan.program.origins import Column, OfChunk, Origin
from hongtu.plan.program.predict import placed_row
from hongtu.plan.program.program import PassProgram


@dataclass(frozen=True)
class Line:
    """One instruction in one batch.

    Attributes:
        what: its operands.
        rows: of every device; () where it moves none.
        unit: what these count.
        nbytes: that all devices move together; None where it moves none.
        note: why, or what is stored and what added.
    """

    what: str
    rows: tuple[int, ...] = ()
    unit: str = "rows"
    nbytes: int | None = None
    note: str = ""


class Described:
    """Says what the instructions of a pass do.

    Args:
        p: the pass.
        widths: columns of the vertex tensors that were placed.
        itemsize: bytes of the run's floating-point numbers.
        batch: where rows are counted; None outside of batches.
    """

    def __init__(self, p: PassProgram, widths: dict[str, int], itemsize: int, batch: int | None = None) -> None:
        self._p, self._widths, self._itemsize, self._batch = p, widths, itemsize, batch
        self._devices = range(len(p.buffers))

    def line(self, x: Instruction) -> Line:
        """What one instruction does."""
        rows, name = self._moved(x)
        nbytes = sum(rows) * self._row_bytes(name) if name else None
        if isinstance(x, moves.Place):
            nbytes = sum(rows) * placed_row(x, self._itemsize)
        if isinstance(x, Call):
            return Line(_call(x), rows, note=self._settings(x))
        unit = "destinations" if isinstance(x, moves.Compute) else getattr(getattr(x, "origin", None), "unit", "rows")
        return Line(x.words.format_map(_Operands(x)), rows, unit, nbytes, self._note(x))

    def _moved(self, x: Instruction) -> tuple[tuple[int, ...], str]:
        """Of every device, the rows that it has to do with; and what they are of, where their bytes count."""
        match x:
            case moves.Place():
                return x.rows, ""
            case moves.Cross():
                return (x.crossing.rows,), x.tensor
            case moves.Fill():
                return self._lengths(x.origin), ""
            case moves.Bring():
                there = (self._is_there(x, i, chunk) for i, chunk in enumerate(self._chunks()))
                return tuple(n * here for n, here in zip(self._lengths(x.origin), there, strict=True)), x.name
            case moves.Load() | moves.Pull() | moves.Push() | moves.Flush():
                return self._lengths(Column(x.picks, "row")), x.cache
            case moves.Zero():
                return self._lengths(Column(x.picks, "row")), ""
            case moves.Deliver():
                return self._lengths(OfChunk("destinations")), x.name
            case moves.Compute():
                return self._lengths(OfChunk("destinations")), ""
            case Call(at=at) if at is not None and at.rows in ("destinations", "sources"):
                return self._lengths(OfChunk("sources" if at.rows == "sources" else "destinations")), ""
            case spilling.RecallPicks() | spilling.SpillPicks():
                return tuple(int(buckets.count[self._batch].sum()) for buckets in x.region.buckets), ""
            case spilling.Recall() | spilling.RecallGiven() | spilling.Spill():
                view = self._p.view
                return tuple(int(np.diff(view.chunk_start)[c]) if view.num_dst[c] else 0 for c in self._chunks()), ""
        return (), ""

    def _chunks(self) -> list[int]:
        assert self._batch is not None
        return [self._p.chunk(i, self._batch) for i in self._devices]

    def _lengths(self, origin: Origin) -> tuple[int, ...]:
        assert self._batch is not None
        chunks, view, batch = np.array(self._chunks()), self._p.view, [self._batch]
        return tuple(int(origin.lengths(view, i, chunks[i : i + 1], batch)[0]) for i in self._devices)

    def _is_there(self, x: moves.Bring, device: int, chunk: int) -> bool:
        """Whether rows have to be brought."""
        first = int(self._p.view.chunk_start[chunk])
        return not x.origin.in_place or x.kept is None or x.kept.has(device, first)

    def _row_bytes(self, name: str) -> int:
        """Bytes of a row of a buffer, or of a vertex tensor."""
        buffer = next((found[name] for found in self._p.buffers if name in found), None)
        if buffer is None:
            return self._widths.get(name, 1) * self._itemsize
        return buffer.row_bytes(self._itemsize)

    def _note(self, x: Instruction) -> str:
        match x:
            case moves.Place():
                return "" if x.zero is False else "zeros" if x.zero is True else f"{len(x.zero)} rows begin as zeros"
            case moves.Bring() if x.origin.in_place and x.kept is not None:
                return "or in place"
            case moves.Deliver():
                return self._stores(x.stores)
            case moves.Flush():
                batch, rows = self._batch, self._moved(x)[0]
                assert batch is not None
                flags = (np.broadcast_to(x.stores[i].of(x.picks.of(i, batch)), rows[i]) for i in self._devices)
                return _mixed(flags)
            case spilling.Recall() | spilling.RecallGiven() | spilling.Spill():
                return "; ".join(filter(None, ("" if getattr(x, "straight", True) else "added up", _but(x.kept))))
            case spilling.RecallPicks() | spilling.SpillPicks():
                return _but(x.kept)
        return getattr(x, "why", "")

    def _settings(self, x: Call) -> str:
        """Of a kernel, its other arguments, and whether it stores or adds."""
        plain = {k: v for k, v in x.settings.items() if not isinstance(v, Kept | tuple) and v is not False}
        said = [k if v is True else f"{k} {v}" for k, v in plain.items() if v is not None]
        if x.at is not None and x.at.where != "host" and isinstance(x.at.access, Stores):
            said.insert(0, self._stores(x.at.access))
        drops = ", ".join(name for name in x.drops if name not in ARRAYS)
        return "; ".join(filter(None, (", ".join(said), f"drops {drops}" if drops else "")))

    def _stores(self, stores: Stores) -> str:
        if isinstance(stores.where, bool):
            return "store" if stores.where else "add"
        return _mixed(stores.where[np.r_[self._p.view.destinations(chunk)]] for chunk in self._chunks())


class _Operands(dict[str, str]):
    """The operands of an instruction by name, in words; and what some are called together."""

    def __init__(self, x: Instruction) -> None:
        self._x: Any = x

    def __missing__(self, name: str) -> Any:
        x, value = self._x, getattr(self._x, name, None)
        match name:
            case "origin":
                return value.words.format(name=x.name)
            case "rows_of_ranks" if x.link == "fetch":
                return f"host {x.tensor}[halo] = of the ranks that own them"
            case "rows_of_ranks":
                return f"their owners' {x.tensor} += host {x.tensor}[halo]"
            case "of_columns":
                return f" of {prod(x.shape)}" if x.shape else ""
            case "recorded":
                return ", operations kept for a later pass" if x.saves else ", with gradients" if x.graph else ""
            case "passes":
                return _count(x.given if isinstance(x, spilling.Recall) else x.takers, "pass", "passes")
            case "to_be_read":
                takers = f", for {_count(x.takers, 'pass', 'passes')} to load" if x.takers else ""
                return f"{'' if x.own is None else ', to be read'}{takers}"
        return _listed(each for each in value if each is not None) if isinstance(value, tuple) else value


def _call(x: Call) -> str:
    """What a kernel reads and writes."""
    at, takes = x.at, x.arguments
    if at is not None and isinstance(at.access, Stores):
        return f"{at} <- {', '.join(takes)}" if takes else f"{_listed(x.makes)} = {at}"
    read = _listed([*takes, *([] if at is None else [str(at)])])
    return f"{', '.join(x.makes)} = {read}" if x.makes else read


def _count(found: Sequence[object], one: str, more: str) -> str:
    return f"{len(found)} {one if len(found) == 1 else more}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _mixed(stores: Iterable[np.ndarray]) -> str:
    """
    >>> _mixed([np.array([True, False]), np.array([True])])
    'store 2, add 1'
    """
    every = np.concatenate([np.asarray(part, dtype=np.bool_) for part in stores])
    stored, added = int(every.sum()), int((~every).sum())
    if stored and added:
        return f"store {stored}, add {added}"
    return "add" if added else "store"


def _but(kept: Kept) -> str:
    return f"but {kept.rows} rows in memory" if kept.rows else ""
