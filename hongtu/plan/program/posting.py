"""Rows that ranks send each other leave while the pass that makes them goes on: each in the batch behind which nothing
changes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.passes.definition import Pass
from hongtu.plan.program.moves import Post
from hongtu.plan.program.operands import Exchanged, transfers_of


def posts(plan: PlannedMemory, p: Pass) -> Iterator[Post]:
    """What a pass sends while it runs."""
    for name, crossing in plan.crossings.next_fetched(p):
        yield Post(tensor=name, crossing=crossing, link="fetch", steps=_steps(plan, p, name, crossing.leaving("fetch")))
    for crossing in plan.crossings.sent_back(p)[:1]:
        name = str(p.flush)
        yield Post(tensor=name, crossing=crossing, link="send", steps=_steps(plan, p, name, crossing.leaving("send")))


def _steps(plan: PlannedMemory, p: Pass, name: str, leave: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """Of every rank int32, which batch in the pass's order is the last that changes each row; None where transfers are
    only counted."""
    view, schedule = plan.view(p), np.asarray(plan.schedule(p))
    step = np.arange(schedule.shape[1], dtype=np.int32)
    if p.direction == "backward":
        step = step[::-1]
    last = np.zeros(view.num_vertices, dtype=np.int32)
    if name in p.written:
        of_chunk = np.zeros(schedule.size, dtype=np.int32)
        for i, chunks in enumerate(schedule):
            of_chunk[i * view.chunks + chunks] = step
        own = slice(None) if view.active is None else view.active
        last[own] = np.repeat(of_chunk, np.diff(view.chunk_start))[own]
    if name == p.flush:
        ends = Exchanged(plan, p).of("end", mirrors=False)
        for i, device in enumerate(transfers_of(plan, p)):
            if isinstance(device.loads, range):
                return None
            table = ends.table(i)
            np.maximum.at(last, table.row, step[table.last if ends.retiring else table.first])
    return tuple(last[rows] for rows in leave)
