"""A program as text, to be read like a disassembly: pass by pass, what is placed, moved, computed and freed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np

from hongtu.errors import InputError
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.program import moves
from hongtu.plan.program.moves import Call, Compute, Instruction
from hongtu.plan.program.on_disk import Summed
from hongtu.plan.program.program import PassProgram, Program, crossing_bytes, row_bytes
from hongtu.plan.program.ref import Ref, Stores
from hongtu.plan.program.rows import DESTINATIONS, FRONT, PartOfChunk, Picked, Selection

ADJACENCY = ("indptr", "local_source", "slot_of_source")  # registers of a chunk's in-edges
ARRAYS = (*ADJACENCY, "ids", "statistics", "factors", "edge_weight", "edge_features", "edge_type", "sources", "active",
          "edge_id_start", "labels", "loss_bits", "row_in_chunk")  # fmt: skip
Line = tuple[str, str, str, str]  # operands; rows; bytes; why, or what is stored and what added
Row = tuple[str, str, str, str, str]  # verb, operands, rows, bytes, note
WIDEST = 64  # an operand beyond that moves its own line's columns only


def _line(
    what: str, rows: tuple[int, ...] = (), unit: str = "rows", *, nbytes: int | None = None, note: str = ""
) -> Line:
    """One instruction in one batch: ``rows`` of every device, () where it moves none, and the bytes that all devices
    move together."""
    counted = f"{' + '.join(map(str, rows))} {unit}" if rows else ""
    return what, counted, "" if nbytes is None else f"{nbytes} B", note


class Described:
    """Says what the instructions of a pass do.

    Args:
        p: the pass.
        batch: where rows are counted; None outside of batches.
    """

    def __init__(self, p: PassProgram, batch: int | None = None) -> None:
        self._p, self._batch, self._row = p, batch, row_bytes(p)
        self._devices = range(len(p.buffers))

    def line(self, x: Instruction) -> Line:
        """What one instruction does."""
        match x:
            case moves.Place():
                zero = "" if x.zero is False else "zeros" if x.zero is True else f"{len(x.zero)} rows begin as zeros"
                of = f" of {prod(x.shape)}" if x.shape else ""
                return _line(f"{x.name} ({x.where}){of}", x.rows, nbytes=x.nbytes(self._p.itemsize), note=zero)
            case moves.Cross():
                there, nbytes = f"host {x.tensor}[halo]", x.crossing.rows * crossing_bytes(x, self._p, self._row)
                fetches = x.link == "fetch"
                what = f"{there} = of the ranks that own them" if fetches else f"their owners' {x.tensor} += {there}"
                return _line(what, (x.crossing.rows,), nbytes=nbytes)
            case moves.Copy():
                return self._copy(x)
            case moves.Ship():
                return _line(f"{', '.join(x.names)} in one copy")
            case moves.Call():
                rows = self._lengths(x.at.rows) if x.at is not None and x.at.counted else ()
                return _line(_call(x), rows, note=self._settings(x))
            case moves.Compute():
                kept = ", operations kept for a later pass" if x.saves else ", with gradients" if x.graph else ""
                return _line(f"on every chunk{kept}", self._lengths(DESTINATIONS), "destinations")
        return _line(x.words.format(**vars(x)), note=getattr(x, "why", ""))

    def _copy(self, x: moves.Copy) -> Line:
        moved = x.there
        rows, nbytes, notes = self._lengths(moved.rows), None, list[str]()
        if x.is_below:
            notes += ["added up"] * (isinstance(moved.rows, Summed) and not moved.rows.straight)
            notes += [f"but {moved.kept.rows} rows in memory"] if moved.kept is not None and moved.kept.rows else []
        else:
            if x.in_place and x.src.kept is not None:
                there = zip(self._chunks(), enumerate(rows), strict=True)
                starts = self._p.view.chunk_start
                rows = tuple(n * x.src.kept.has(i, int(starts[chunk])) for chunk, (i, n) in there)
                notes = ["or in place"]
            nbytes = sum(rows) * crossing_bytes(x, self._p, self._row)
        if x.link in ("write", "flush"):
            notes = [self._stores(x.dst, moved)]
        if isinstance(x.dst.rows, PartOfChunk):
            nbytes = None
        to = x.dst.tensor if x.dst.rows is FRONT else str(x.dst)
        unit = "entries" if x.src.where == "plan" else moved.rows.unit
        return _line(f"{to} {'+=' if x.dst.adds else '<-'} {x.src}", rows, unit, nbytes=nbytes, note="; ".join(notes))

    def _chunks(self) -> list[int]:
        return [self._p.chunk(i, self._batch) for i in self._devices]

    def _lengths(self, rows: Selection) -> tuple[int, ...]:
        chunks, view, batch = np.array(self._chunks()), self._p.view, [self._batch]
        return tuple(int(rows.lengths(view, i, chunks[i : i + 1], batch)[0]) for i in self._devices)

    def _settings(self, x: Call) -> str:
        """Of a kernel, its other arguments, and whether it stores or adds."""
        plain = {k: v for k, v in x.settings.items() if not isinstance(v, tuple) and v is not False}
        said = [k if v is True else f"{k} {v}" for k, v in plain.items()]
        if x.at is not None and x.at.where != "host" and x.takes and isinstance(x.at.access, Stores):
            said.insert(0, self._stores(x.at))
        drops = ", ".join(name for name in x.drops if name not in ARRAYS)
        return "; ".join(filter(None, (", ".join(said), f"drops {drops}" if drops else "")))

    def _stores(self, into: Ref, moved: Ref | None = None) -> str:
        """Which rows are stored, which added."""
        access, batch = into.access, self._batch
        where = access.where if isinstance(access, Stores) else None
        if isinstance(where, bool):
            return "store" if where else "add"
        if where is not None:
            return _mixed(where[np.r_[self._p.view.destinations(chunk)]] for chunk in self._chunks())
        assert isinstance(access, tuple) and isinstance(into.rows, Picked)
        rows, picks = self._lengths(moved.rows), into.rows.picks
        return _mixed(np.broadcast_to(access[i].among(picks.intervals(i, batch)), rows[i]) for i in self._devices)


def _call(x: Call) -> str:
    """What a kernel reads and writes; "A" is the chunk's adjacency matrix."""
    at, takes = x.at, ["none" if name is None else name for name in x.takes]
    if x.takes[:3] == ADJACENCY:
        takes[:4] = ["A" if x.takes[3] is None else "weighted A"]
    if at is not None and isinstance(at.access, Stores):
        return f"{at} <- {', '.join(takes)}" if takes else " = ".join([*x.makes, str(at)])
    read = _listed([*takes, *([] if at is None else [str(at)])])
    return f"{', '.join(x.makes)} = {read}" if x.makes else read


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


def list_program(program: Program, name: str | None = None, batch: int | None = None) -> str:
    """The listing of a program, or of one of its passes.

    Args:
        name: of the pass; None for every pass.
        batch: whose rows are shown; None for the first that each pass visits. Others differ in rows alone.

    Raises:
        InputError: for a pass or batch that the program does not have.
    """
    passes = {p.name: p for p in (*program.setup, *program.train, *program.evaluate)}
    if name is not None and name not in passes:
        raise InputError(f"--listing {name!r}: there is no such pass; there are {', '.join(map(repr, passes))}")
    shown = [p for p in passes.values() if name is None or p.name == name]
    most = max(len(p.order) for p in shown)
    if batch is not None and not 0 <= batch < most:
        which = "the pass has" if name else "passes have"
        raise InputError(f"--batch {batch}: {which} {f'batches 0 to {most - 1}' if most else 'no batches'}")
    when = dict.fromkeys(program.setup, "once") | dict.fromkeys(program.train, "every epoch")
    return "\n".join(_list_pass(p, when.get(p, "every evaluation"), batch) for p in shown)


def _list_pass(p: PassProgram, when: str, batch: int | None) -> str:
    devices = len(p.buffers)
    backward = ", from last to first" if p.order.step < 0 else ""
    sets = f", {p.sets} sets of staging" if any(p.staging) else ""
    counted = f"{_count(devices, 'device')}, {_count(len(p.order), 'batch', 'batches')}"
    ahead = ", recalled a batch ahead" if p.ahead else ""
    head = f"pass '{p.name}' ({when}): {counted}{backward}{sets}{ahead}"
    lines, outside = [head], Described(p)
    lines += _table(_rows(p.before, outside), "  ")
    lines += _table([*_buffers("buffer", p.buffers, p.itemsize), *_buffers("staging", p.staging, p.itemsize)], "  ")
    for i in range(devices if len(p.order) else 0):
        lines.append(f"  device {i} runs chunks {runs(p.schedule[i])}")
    if len(p.order):
        shown = p.order[0] if batch is None or batch not in p.order else batch
        chunks = ", ".join(str(int(chunk)) for chunk in p.schedule[:, shown])
        lines.append(f"  batch {shown}, chunk{'s' * (devices > 1)} {chunks}:")
        lines += _table(_rows((*p.recalls, *p.body), Described(p, shown)), "    ")
    lines += _table(_rows((*p.after, *p.frees), outside), "  ")
    return "\n".join(lines) + "\n"


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def _buffers(verb: str, buffers: Sequence[dict[str, Buffer]], itemsize: int) -> Iterator[Row]:
    """Of all devices, which differ in rows alone."""
    for name in dict.fromkeys(name for found in buffers for name in found):
        every = [found[name] for found in buffers]
        columns = "".join(f" of {n}" for n in every[0].shape[1:])
        rows = f"{' + '.join(str(buffer.shape[0]) for buffer in every)} rows"
        sets = f"{every[0].sets} sets" if every[0].sets > 1 else ""
        yield verb, f"{name}: {every[0].dtype}{columns}", rows, f"{sum(b.nbytes(itemsize) for b in every)} B", sets


def _rows(body: Iterable[Instruction], described: Described) -> Iterator[Row]:
    for x in body:
        yield x.verb, *described.line(x)
        if isinstance(x, Compute):
            for inner in x.body:
                yield "  " + inner.verb, *described.line(inner)


def _table(rows: Iterable[Row], indent: str) -> list[str]:
    """Lines with aligned columns."""
    found = list(rows)
    columns = list(zip(*found, strict=True))
    wide = [max((len(cell) for cell in column if len(cell) <= WIDEST), default=0) for column in columns]
    lines = []
    for verb, what, moved, nbytes, note in found:
        cells = (verb.ljust(wide[0]), what.ljust(wide[1]), moved.rjust(wide[2]), nbytes.rjust(wide[3]), note)
        lines.append(indent + "  ".join(cells).rstrip())
    return lines


def runs(numbers: np.ndarray) -> str:
    """Numbers in their order, those that follow one another by their ends.

    >>> runs(np.array([0, 1, 2, 3, 7, 5, 6]))
    '0-3 7 5 6'
    """
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return " ".join(f"{part[0]}-{part[-1]}" if len(part) > 2 else " ".join(map(str, part)) for part in parts)
