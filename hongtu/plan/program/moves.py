"""The kinds of instructions: memory, copies, kernels, and what streams wait for.

Those of a pass's body run once per batch, each on all devices before the next one. "On ``load``" names the stream of a
device that does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from typing_extensions import dataclass_transform

from hongtu.graph.halo import Crossing
from hongtu.metrics import BELOW
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.host import Kept
from hongtu.plan.memory.structure import FLOAT
from hongtu.plan.program.ref import Ref, Where

Link = Literal["read", "topology", "load", "pull", "push", "flush", "write"]
StreamName = Literal["load", "compute", "flush", "host", "disk", "dispatch"]  # dispatch gives the others their work
EventName = Literal[  # how far the batch has come that has a set of staging memory
    "brought",  # on ``load``: values and structure are there; the host's side of the set is free again
    "sent",  # on ``flush``: it has computed, and what it gave has left the device
    "added",  # on ``host``: and has been stored or added up
    "recalled",  # on ``disk``: its rows have come
    "spilled",  # on ``disk``: what it gave has gone there
]
EVENTS: tuple[EventName, ...] = get_args(EventName)

ON: dict[str, StreamName] = {  # the streams that do it, by verb; what is flushed or written, ``host`` adds
    "read": "load", "topology": "load", "load": "load", "pull": "load", "ship": "load", "zero_rows": "compute",
    "compute": "compute", "push": "compute", "flush": "flush", "write": "flush", "post": "host", "recall": "disk",
    "spill": "disk", "cross": "dispatch", "begin_moments": "dispatch", "end_moments": "dispatch",
    "sum_statistics": "dispatch", "loss_over_edges": "dispatch",
}  # fmt: skip


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
class Instruction:
    """A move or a computation with every operand resolved: plain data, whose fields are given by name.

    Attributes:
        verb: what it is called in listings, and by whoever runs it: its kind's name, if it has no other.
        words: what it does, for listings, with its operands' names in braces; of some kinds ``listing.py`` says more.
    """

    verb: ClassVar[str]
    words: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, kw_only=True)(cls)
        if "verb" not in vars(cls):
            cls.verb = cls.__name__.lower()

    @property
    def on(self) -> str:
        """The stream that does it."""
        return ON.get(self.verb, "")


# ---------------------------------------------------------------------------------------------------------- memory


class Place(Instruction):
    """Make a tensor that stays until it is freed.

    Attributes:
        rows: of every device's part, or (V,).
        shape: of a row; () for plain numbers.
        dtype: "float" stands for the run's.
        zero: all rows, or int32 rows of a host tensor, begin as zeros; others with anything.
        kept: the rows of a host tensor that there are; None: all.
        at: of every device, the byte of its slab where the tensor begins; (): it lies elsewhere.
        padded: rows are apart, as ``hardware.padded`` says.
    """

    name: str
    where: Where
    rows: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = "float"
    zero: bool | np.ndarray = False
    kept: Kept | None = None
    at: tuple[int, ...] = ()
    padded: bool = False

    def nbytes(self, itemsize: int) -> int:
        """Of all devices' parts."""
        return Buffer((sum(self.rows), *self.shape), self.dtype, padded=self.padded).nbytes(itemsize)


class Free(Instruction):
    """Give the memory of a tensor back."""

    words = "{name} ({where})"
    name: str
    where: Where


# ---------------------------------------------------------------------------------------------------------- copies


class Copy(Instruction):
    """Rows go from one memory to another.

    Attributes:
        link: what their bytes are counted as: of a memory below the host, its name.
        in_place: rows that have come from below stay in the host's window, where the device works on them.
    """

    link: Link | str
    dst: Ref
    src: Ref
    in_place: bool = False

    @property
    def verb(self) -> str:  # type: ignore[override]
        """The link's name; of a memory's below the host, by where rows go."""
        if self.is_below:
            return "recall" if self.dst.where == "window" else "spill"
        return self.link

    @property
    def is_below(self) -> bool:
        """Whether they go between the host and a memory below it."""
        return self.link in BELOW

    @property
    def there(self) -> Ref:
        """What is below the host, of a copy that comes from there or goes there."""
        return self.dst if self.verb == "spill" else self.src

    @property
    def narrow(self) -> Ref | None:
        """The end whose numbers are narrower than the run's, as they cross then; None: neither is."""
        return next((ref for ref in (self.src, self.dst) if ref.dtype != FLOAT), None)


class Ship(Instruction):
    """On ``load``: of what was brought so far, these arrays reach the device in one copy.

    Attributes:
        names: in the order in which they are packed; none has numbers larger than those before it.
    """

    names: tuple[str, ...]


class Cross(Instruction):
    """Over the network: "fetch" rows of a host tensor that other ranks own, as their owners computed them; or "send"
    gradients of these to their owners, who add them to their own rank by rank.

    Attributes:
        crossing: which rows are whose.
        dtype: what the host has them in, as they cross.
    """

    tensor: str
    crossing: Crossing
    link: Literal["fetch", "send"]
    dtype: str = FLOAT


class Post(Instruction):
    """On ``host``: the same begins for rows that no later batch changes.

    Attributes:
        steps: of every rank int32, the batch in the pass's order from which on each row that goes to it stays as it is;
            None where transfers are only counted.
    """

    words = "{link} begins: rows of host {tensor} that stay as they are leave"
    tensor: str
    crossing: Crossing
    link: Literal["fetch", "send"]
    steps: tuple[np.ndarray, ...] | None


# --------------------------------------------------------------------------------------------------------- kernels


class Call(Instruction):
    """A kernel runs: on one chunk's device, in ``Compute``; else on every device.

    What a chunk has at hand lies in *registers*, which are named after the vertex tensors or arrays that they hold rows
    of; "a" is the aggregate's output, "z" the sources' rows side by side, and "d x" the gradient that backward gave the
    register x.

    Attributes:
        kernel: its name: the method of whoever runs it.
        takes: the registers that are its arguments, in order; None: it has none there.
        gives: the registers that get what it returns, in order; None: nobody wants that.
        arrays: registers that it finds by name: the chunk's structure.
        at: what it reads or writes beside these.
        settings: its other arguments by name.
        drops: registers that nobody needs behind it.
    """

    kernel: str
    takes: tuple[str | None, ...] = ()
    gives: tuple[str | None, ...] = ()
    arrays: tuple[str, ...] = ()
    at: Ref | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    drops: tuple[str, ...] = ()

    @property
    def verb(self) -> str:  # type: ignore[override]
        return self.kernel

    @cached_property
    def keywords(self) -> dict[str, Any]:
        """What it is called with beside the registers that it takes."""
        return self.settings if self.at is None else {"at": self.at, **self.settings}

    @property
    def reads(self) -> tuple[str, ...]:
        """The registers that it needs."""
        return (*(name for name in self.takes if name is not None), *self.arrays)

    @property
    def makes(self) -> tuple[str, ...]:
        """The registers that it gives a tensor."""
        return tuple(name for name in self.gives if name is not None)


def call(kernel: str, *takes: str | None, gives: tuple[str | None, ...] | str = (), at: Ref | None = None,
         arrays: tuple[str, ...] = (), **settings: Any) -> Call:  # fmt: skip
    """A kernel with its arguments, as one writes a call."""
    gives = (gives,) if isinstance(gives, str) else gives
    return Call(kernel=kernel, takes=takes, gives=gives, arrays=arrays, at=at, settings=settings)


def with_drops(body: Sequence[Call]) -> tuple[Call, ...]:
    """The same without views that nobody reads, and with every register dropped behind the last that reads it, or
    behind the one that makes it."""
    read = {name for x in body for name in x.reads}
    body = [x for x in body if x.kernel != "view" or x.settings.get("last") or not read.isdisjoint(x.makes)]
    last = {name: k for k, x in enumerate(body) for name in (*x.makes, *x.reads)}
    return tuple(replace(x, drops=tuple(name for name, end in last.items() if end == k)) for k, x in enumerate(body))


class Compute(Instruction):
    """On ``compute``: a body of its own on every device's chunk, if that has destinations.

    Attributes:
        graph: operations are recorded for backward; ``saves``: and what they save stays until another pass.
    """

    body: tuple[Call, ...]
    graph: bool
    saves: bool


# ----------------------------------------------------------------------------------------------------------- waits


class Wait(Instruction):
    """A stream holds until an event of this batch, or of the last one that had its staging set."""

    words = "{stream} until '{event}'"
    stream: StreamName
    event: EventName
    why: str


class Signal(Instruction):
    """An event is all that a stream has been given so far."""

    words = "'{event}' when {stream} is here"
    stream: StreamName
    event: EventName


class Follow(Instruction):
    """A stream holds until another of its device has done what it has been given so far."""

    words = "{stream} until {other} is here"
    stream: StreamName
    other: StreamName
    why: str


class Meet(Instruction):
    """The same stream of every device holds until all the others' have done what they have been given so far."""

    words = "{stream} of every device until all are here"
    stream: StreamName
    why: str
