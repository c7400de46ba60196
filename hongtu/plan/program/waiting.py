"""The instructions by which streams wait for one another."""

from __future__ import annotations

from typing import Literal, get_args

from hongtu.plan.program.instruction import Instruction, kind

StreamName = Literal["load", "compute", "flush", "host", "disk", "dispatch"]  # dispatch gives the others their work
EventName = Literal["brought", "sent", "added", "recalled", "spilled"]
EVENTS: tuple[EventName, ...] = get_args(EventName)


@kind
class Wait(Instruction):
    """A stream holds until an event of this batch, or of the last one that had its staging set."""

    words = "{stream} until '{event}'"
    stream: StreamName
    event: EventName
    why: str


@kind
class Signal(Instruction):
    """An event is all that a stream has been given so far."""

    words = "'{event}' when {stream} is here"
    stream: StreamName
    event: EventName


@kind
class Follow(Instruction):
    """A stream holds until another of its device has done what it has been given so far."""

    words = "{stream} until {other} is here"
    stream: StreamName
    other: StreamName
    why: str


@kind
class Meet(Instruction):
    """The same stream of every device holds until all the others' have done what they have been given so far."""

    words = "{stream} of every device until all are here"
    stream: StreamName
    why: str
