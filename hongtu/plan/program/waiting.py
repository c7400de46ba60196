"""The instructions by which streams wait for one another."""

from __future__ import annotations

from typing import Literal, get_args

from hongtu.plan.program.instruction import Instruction, kind

StreamName = Literal["load", "compute", "flush", "host", "disk"]
EventName = Literal["brought", "sent", "added", "recalled", "spilled"]
EVENTS: tuple[EventName, ...] = get_args(EventName)


@kind
class Wait(Instruction):
    """A stream holds until an event of this batch, or of the last one that had its staging set."""

    stream: StreamName
    event: EventName
    why: str


@kind
class HostWait(Instruction):
    """The host holds until an event."""

    event: EventName
    why: str


@kind
class Signal(Instruction):
    """An event is all that a stream has been given so far."""

    stream: StreamName
    event: EventName


@kind
class Follow(Instruction):
    """A stream holds until another of its device has done what it has been given so far."""

    stream: StreamName
    other: StreamName
    why: str


@kind
class Meet(Instruction):
    """The same stream of every device holds until all the others' have done what they have been given so far."""

    stream: StreamName
    why: str
