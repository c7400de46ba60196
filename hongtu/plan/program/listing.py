"""A program as text, to be read like a disassembly: pass by pass, what is placed, moved, computed and freed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hongtu.errors import InputError
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.program.describe import Described
from hongtu.plan.program.moves import Compute, Instruction
from hongtu.plan.program.program import PassProgram, Program

Row = tuple[str, str, str, str, str]  # verb, operands, rows, bytes, note
WIDEST = 64  # an operand beyond that moves its own line's columns only


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
