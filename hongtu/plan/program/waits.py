"""Waits between streams: they follow from what the parts of a batch read and write, and on which stream.

A memory of a set is free for a batch when whoever read it in the last batch of the set has done so, and has a value
when its writer is through. A stream waits where nothing that it waited for before says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from hongtu.plan.program import moves
from hongtu.plan.program.moves import EVENTS, EventName, Instruction, StreamName

Part = Literal["recall", "bring", "pull", "zero", "compute", "push", "deliver", "post", "spill"]
Stream = tuple[StreamName, int]  # of a device
Clock = Counter[Stream]  # how much of each is done
Wait = moves.Wait | moves.Follow | moves.Meet
Waiting = dict[tuple[object, ...], Wait]  # by all that they say
OF_DEVICES = "load", "compute", "flush"  # streams that every device has for itself


class Access(NamedTuple):
    """What a stream does to a set of a memory in a part of a batch.

    Attributes:
        memory: "packed", what one copy brings, on the host; "brought", staging memory of the device; "loaded", slots
            that peers pull from; "given", what the device computed; "returned", staging memory of the host for that;
            "host", its rows; "coming" and "going", its windows of the memories below.
        why: what it waits for; "": it never has to, for the device orders it.
        peers: the memory is that of the other devices.
    """

    stream: StreamName
    memory: str
    writes: bool
    why: str
    peers: bool = False


# where the device is the host, it writes to the window itself
IN_PLACE = Access("compute", "going", True, "compute: the disk has taken the last")
ACCESSES: dict[Part, tuple[Access, ...]] = {
    "recall": (Access("disk", "coming", True, "recall: the last rows have left staging"),),
    "bring": (
        Access("load", "brought", True, "load: the last batch is done with slots and staging"),
        Access("dispatch", "packed", True, "stage: the last copies are through"),  # peers have pulled, too
        Access("load", "packed", False, ""),
        Access("load", "loaded", True, "load: peers have pulled the last"),
        Access("load", "coming", False, "load: the rows have come from the disk"),
    ),
    "pull": (Access("load", "loaded", False, "pull: the owner has loaded", peers=True),),
    "zero": (Access("compute", "brought", False, "compute: inputs are there, the last results are away"),),
    "compute": (
        Access("compute", "brought", False, "compute: inputs are there, the last results are away"),
        IN_PLACE,
        Access("compute", "given", True, "compute: the last results have left"),
    ),
    "push": (Access("compute", "given", True, "push: the owner has computed", peers=True),),
    "deliver": (
        Access("compute", "given", False, "compute: peers have pushed"),
        Access("flush", "given", False, "deliver: results are there"),
        Access("flush", "brought", False, ""),
        Access("flush", "returned", True, "deliver: the host has taken the last"),
        Access("flush", "going", True, "deliver: the disk has taken the last"),
        Access("flush", "host", True, ""),
        Access("host", "returned", False, ""),
        Access("host", "going", True, ""),
    ),
    "post": (Access("host", "host", False, "post: the rows are on the host"),),
    "spill": (Access("disk", "going", False, "spill: the rows are in staging"),),
}
PARTS: dict[str, Part] = {
    "recall": "recall", "read": "bring", "topology": "bring", "load": "bring", "ship": "bring", "pull": "pull",
    "zero_rows": "zero", "compute": "compute", "push": "push", "write": "deliver", "flush": "deliver", "post": "post",
    "spill": "spill",
}  # fmt: skip
SIGNALLED: dict[EventName, Part] = {"brought": "bring", "sent": "deliver"}  # even where nothing is
Item = Part | tuple[StreamName, EventName]  # of a batch; the latter: a signal


def with_waits(
    recalls: Sequence[Instruction], body: Sequence[Instruction], devices: int, sets: int, ahead: int,
    *, staged: bool, keeps: bool,
) -> tuple[tuple[Instruction, ...], tuple[Instruction, ...]]:  # fmt: skip
    """The instructions of a batch, with signals, and the waits that they need.

    Args:
        sets: of staging memory; ``ahead``: batches that ``recalls`` run before the body.
        staged: devices have memory and streams of their own; else only what lies below the host has a stream.
        keeps: what one copy brings is packed once.
    """
    items = tuple(map(_item, (*recalls, *body)))
    waits = _waits(items, len(recalls), min(devices, 2), max(sets, 1 + ahead), ahead, staged, keeps)
    found = [(*waits.get(k, ()), x) for k, x in enumerate((*recalls, *body))]
    return sum(found[: len(recalls)], ()), sum(found[len(recalls) :], ())


def _item(x: Instruction) -> Item:
    return (x.stream, x.event) if isinstance(x, moves.Signal) else PARTS[x.verb]


@lru_cache(maxsize=1024)
def _waits(
    items: tuple[Item, ...], recalls: int, devices: int, sets: int, ahead: int, staged: bool, keeps: bool
) -> dict[int, tuple[Instruction, ...]]:
    """By the number of an item, the waits before it: those of some batches one after the other."""
    begins: dict[Part, int] = {}  # a part's waits are before its first item
    for k, item in enumerate(items):
        part = item if isinstance(item, str) else SIGNALLED.get(item[1])
        if part is not None:
            begins.setdefault(part, k)
    run, found = _Run(devices, staged), defaultdict[int, dict[Access, Waiting]](dict)
    for step in range(2 * sets + ahead):
        for k, item in enumerate(items):
            run.batch = step if k < recalls else step - ahead
            run.turn = run.batch % sets
            for part in (part for part, first in begins.items() if first == k and run.batch >= 0):
                for access in ACCESSES[part]:
                    if not (keeps and access.memory == "packed") and not (staged and access is IN_PLACE):
                        run.do(access, found[k].setdefault(access, {}))
            if not isinstance(item, str) and run.batch >= 0:
                run.signal(*item)
    return {k: tuple(x for waits in found[k].values() for x in waits.values()) for k in found}


class _Run:
    """What streams know to be done: vector clocks. Streams of two devices stand for those of more. Nothing is concluded
    from what the disk has waited for, so that waits for it and for others are apart.

    Attributes:
        batch, turn: which batch, and which set it has.
    """

    def __init__(self, devices: int, staged: bool) -> None:
        self._devices, self._staged, self.batch, self.turn = range(devices), staged, 0, 0
        self._clocks: defaultdict[Stream, Clock] = defaultdict(Counter)
        self._events: dict[tuple[int, EventName], list[Clock]] = {}
        self._done: defaultdict[tuple[str, int, int], list[tuple[bool, Stream, int]]] = defaultdict(list)

    def _stream(self, name: StreamName, device: int) -> Stream:
        if not self._staged and name != "disk":
            return "dispatch", 0
        return name, device if name in OF_DEVICES else 0

    def signal(self, stream: StreamName, event: EventName) -> None:
        keys = [self._stream(stream, i) for i in self._devices]
        self._events[self.turn, event] = [_alone(self._clocks[key], key, stream) for key in keys]

    def do(self, x: Access, waits: Waiting) -> None:
        """Access a set on every device, behind the waits that are found and whatever others are needed."""
        for wait in waits.values():
            self._hold(wait)
        pairs = [
            (i, owner)
            for i in self._devices
            for owner in self._devices
            if x.stream not in OF_DEVICES or (i != owner) == x.peers
        ]
        for i, owner in pairs if x.why else ():
            for writes, stream, tick in self._done[x.memory, self.turn, owner]:
                while (x.writes or writes) and self._knows(x.stream, i)[stream] < tick:
                    wait = self._wait(x, i, stream, tick)
                    waits.setdefault((wait.verb, *vars(wait).values()), wait)
                    self._hold(wait)
        for i, owner in pairs:
            own, clock = self._stream(x.stream, i), self._knows(x.stream, i)
            clock[own] += 1
            self._done[x.memory, self.turn, owner].append((x.writes, own, clock[own]))

    def _knows(self, name: StreamName, device: int) -> Clock:
        """What a stream that is given work now knows: all that the thread does which gives it."""
        clock = self._clocks[self._stream(name, device)]
        clock |= self._clocks["dispatch", 0]
        return clock

    def _wait(self, x: Access, i: int, stream: Stream, tick: int) -> Wait:
        """For the event that says that a stream has come so far, or for the stream itself."""
        for event in EVENTS:
            signalled = self._events.get((self.turn, event), [])
            for clock in signalled[i : i + 1] if x.stream in OF_DEVICES else signalled:
                if clock[stream] >= tick:
                    return moves.Wait(stream=x.stream, event=event, why=x.why)
        name, device = stream
        if x.stream in OF_DEVICES and name in OF_DEVICES and device != i:
            return moves.Meet(stream=name, why=x.why)
        return moves.Follow(stream=x.stream, other=name, why=x.why)

    def _hold(self, x: Wait) -> None:
        """A stream of every device waits."""
        now = {key: _alone(clock, key, x.stream) for key, clock in self._clocks.items()}
        for i in self._devices:
            match x:
                case moves.Wait():
                    seen = self._events.get((self.turn, x.event), [])[i : i + 1]
                case moves.Follow():
                    seen = [now.get(self._stream(x.other, i), Counter())]
                case moves.Meet():
                    seen = [now.get(self._stream(x.stream, other), Counter()) for other in self._devices]
            for clock in seen:
                self._clocks[self._stream(x.stream, i)] |= clock


def _alone(clock: Clock, key: Stream, stream: StreamName) -> Clock:
    """A copy of a stream's clock: only of itself, where it is the disk's, or the disk asks."""
    return Counter({key: clock[key]}) if "disk" in (stream, key[0]) else clock.copy()
