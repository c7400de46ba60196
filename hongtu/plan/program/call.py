"""A kernel that one chunk's device runs, with all that it reads and writes.

What is at hand lies in *registers*, which are named after the vertex tensors or arrays that they hold rows of; "a" is
the aggregate's output, "z" the sources' rows side by side, and "d x" the gradient that backward gave the register x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Literal

from hongtu.plan.program.instruction import Instruction, Stores, Where, kind

ADJACENCY = ("indptr", "local_source", "slot_of_source")  # registers of a chunk's in-edges
ARRAYS = (*ADJACENCY, "ids", "statistics", "factors", "edge_weight", "edge_features", "edge_type", "sources", "active",
          "edge_id_start", "labels", "loss_bits", "row_in_chunk")  # fmt: skip
Rows = Literal["destinations", "sources", "part", "front"]


@kind
class Ref(Instruction):
    """Rows of a tensor that is no register.

    Attributes:
        tensor: its name, or that of a buffer.
        where: the memory in which it lies.
        rows: the chunk's destinations; the slots of its sources; its part of an array that stays; or, of a buffer, the
            first so many rows as the chunk has destinations.
        access: they are read, added to (`Stores(False)`), stored, or stored where it says so; None: they are reserved.
    """

    tensor: str
    where: Where = "device"
    rows: Rows = "destinations"
    access: Literal["read"] | Stores | None = "read"

    def __str__(self) -> str:
        index = {"destinations": "chunk", "sources": "slot_of_source", "part": "chunk", "front": ":"}[self.rows]
        return f"{'' if self.where == 'device' else self.where + ' '}{self.tensor}[{index}]"


@kind
class Call(Instruction):
    """A kernel runs.

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

    @property
    def arguments(self) -> list[str]:
        """What it takes, for people: "A" is the chunk's adjacency matrix."""
        takes = ["none" if name is None else name for name in self.takes]
        if self.takes[:3] != ADJACENCY:
            return takes
        return ["A" if self.takes[3] is None else "weighted A", *takes[4:]]

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
    """The same with every register dropped behind the last that reads it, or behind the one that makes it."""
    last = {name: k for k, x in enumerate(body) for name in (*x.makes, *x.reads)}
    return tuple(replace(x, drops=tuple(name for name, end in last.items() if end == k)) for k, x in enumerate(body))
