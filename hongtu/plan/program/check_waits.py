"""Between instructions of a pass that conflict there is what orders them."""

from __future__ import annotations

from functools import partial

from hongtu.plan.program import moves, spilling, waiting
from hongtu.plan.program.check_slots import demand
from hongtu.plan.program.instruction import Instruction
from hongtu.plan.program.program import PassProgram

THROUGH = ("disk ", "bucket ", "parts ")  # names of the staging memory through which rows come from the disk
STREAMS = (waiting.Wait, waiting.HostWait, waiting.Signal, waiting.Follow, waiting.Meet)
RECALLS = (spilling.Recall, spilling.RecallGiven, spilling.RecallPicks)
SPILLS = (spilling.Spill, spilling.SpillPicks)
ON_LOAD = (moves.Bring, moves.Ship, moves.Load, moves.Pull)
ON_COMPUTE = (moves.Zero, moves.Compute, moves.Push)
ON_FLUSH = (moves.Deliver, moves.Flush)
ON_HOST = (moves.Post,)
ON_DISK = (*RECALLS, *SPILLS)
BY_DISK = ("recalled", "spilled")  # events of its stream


def check_waits(p: PassProgram, at: str) -> None:
    """Demand the waits of a pass, which errors call ``at``.

    Raises:
        ProgramError: names the first that is missing.
    """
    around = [x for x in p.body if isinstance(x, STREAMS) and getattr(x, "event", "") not in BY_DISK]
    staged = bool(around) or any(not name.startswith(THROUGH) for beside in p.staging for name in beside)
    if staged:
        _streams(p, at)
    _disk(p, at, staged=staged)


def _streams(p: PassProgram, at: str) -> None:
    body, need = p.body, partial(_need, at, p.body)
    words = [_word(x) for x in body]
    need("wait load sent", (), ON_LOAD)
    if not p.keeps:
        need("host_wait brought", (), ON_LOAD)
    elif (
        p.sets == 1
        and any(isinstance(x, moves.Pull) for x in body)
        and not any(isinstance(x, moves.Push) for x in body)
    ):
        need("meet load", (), (moves.Load,))
    need("signal load brought", ON_LOAD, ON_COMPUTE)
    need("wait compute brought", ON_LOAD, ON_COMPUTE)
    need("follow flush compute", ON_COMPUTE, ON_FLUSH)
    need("wait flush added", ON_COMPUTE, ON_FLUSH)
    need("signal flush sent", ON_FLUSH, ())
    need("signal host added", (*ON_FLUSH, *ON_HOST), ())
    demand(words.index("signal load brought") < words.index("wait compute brought"), f"{at}: 'brought' is late")
    if any(isinstance(x, ON_HOST) for x in body):
        need("follow host flush", ON_FLUSH, ON_HOST)
    if any(isinstance(x, moves.Pull) for x in body):
        need("meet load", (moves.Load,), (moves.Pull,))
    if any(isinstance(x, moves.Push) for x in body):
        need("meet compute", (moves.Compute,), (moves.Push,))
        need("meet compute", (moves.Push,), ON_FLUSH)


def _disk(p: PassProgram, at: str, *, staged: bool) -> None:
    """The same of what comes from the disk and goes there."""
    recalls, spills = p.recalls, any(isinstance(x, SPILLS) for x in p.body)
    demand(not any(isinstance(x, RECALLS) for x in p.body), f"{at}: the body recalls")
    in_place = any(isinstance(x, moves.Bring) and getattr(x.source, "in_place", False) for x in p.body)
    may = not staged and p.view.active is None  # the device is the host, and wants every row of a chunk
    demand(may or not in_place, f"{at}: rows that have come from the disk are not copied")
    if recalls:
        _need(at, recalls, "signal disk recalled", RECALLS, ())
        _need(at, p.body, "wait load recalled", (), ON_LOAD)
    if recalls and staged:
        _need(at, recalls, "wait disk brought", (), RECALLS)
    if spills:
        _need(at, p.body, "signal disk spilled", SPILLS, ())
    if spills and staged:
        _need(at, p.body, "follow disk flush", ON_FLUSH, SPILLS)
        _need(at, p.body, "follow disk host", ON_FLUSH, SPILLS)
    if spills and not recalls and staged:
        _need(at, p.body, "wait flush spilled", ON_COMPUTE, ON_FLUSH)
    if spills and not recalls and not staged:
        _need(at, p.body, "wait compute spilled", (), (moves.Compute,))


def _need(at: str, body: tuple[Instruction, ...], word: str, after: tuple[type, ...], before: tuple[type, ...]) -> None:
    ends = [k for k, x in enumerate(body) if isinstance(x, before)]
    starts = [k for k, x in enumerate(body) if isinstance(x, after)]
    lo, hi = max(starts, default=-1), min(ends, default=len(body))
    found = word in map(_word, body[lo + 1 : hi])
    demand(found, f"{at}: no '{word}' in its place, between instructions {lo + 1} and {hi}")


def _word(x: Instruction) -> str:
    parts = (getattr(x, name, "") for name in ("stream", "other", "event"))
    return " ".join((x.verb, *(part for part in parts if isinstance(part, str) and part)))
