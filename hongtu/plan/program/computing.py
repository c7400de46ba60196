"""The instructions inside ``Compute``: what one chunk's device does with what it has at hand.

That lies in *registers*, which are named after the vertex tensors or arrays that they hold rows of; "a" is the
aggregate's output, "z" the sources' rows side by side, and "d x" the gradient that backward gave the register x.
"""

from __future__ import annotations

import numpy as np

from hongtu.plan.memory.disk import Kept
from hongtu.plan.program.instruction import Instruction, Stores, Where, kind

# ------------------------------------------------------------------------------------------------------- at hand


@kind
class Here(Instruction):
    """The chunk's part of an array that stays on the device."""

    words = "{name} = {buffer}[chunk]"
    name: str
    buffer: str
    start: tuple[np.ndarray, ...]


@kind
class Own(Instruction):
    """The chunk's rows of a vertex tensor on the device; ``written``: they have been."""

    words = "{name} = device {tensor}[chunk]"
    MAKES = ("name",)
    name: str
    tensor: str
    written: bool = True


@kind
class Pick(Instruction):
    """A copy of those rows of a register that the pass computes, in the buffer of that name."""

    words = "{name} = {name}[row_in_chunk]"
    READS, MAKES = ("name",), ("name",)
    name: str


@kind
class Front(Instruction):
    """The front of a buffer of the pass, with anything in it: a row for every destination."""

    words = "{name} = buffer {buffer}"
    MAKES = ("name",)
    name: str
    buffer: str


@kind
class New(Instruction):
    """The same in new memory; ``zero``: with zeros in it."""

    words = "{name} = new, of {columns}"
    MAKES = ("name",)
    name: str
    columns: int
    zero: bool = False


@kind
class Take(Instruction):
    """The rows of a vertex tensor that the chunk has for itself; ``last``: nobody takes them again."""

    words = "{name} = what the chunk has of it"
    MAKES = ("name",)
    name: str
    last: bool


@kind
class Copy(Instruction):
    """Registers in memory of their own, for what another pass needs of them: staging is filled again."""

    words = "{names} in memory of their own"
    names: tuple[str, ...]


@kind
class Dense(Instruction):
    """Rows of a CSR tensor made dense, in the buffer of that name."""

    words = "{name} = dense({name} start, column, value)"
    MAKES = ("name",)
    name: str


@kind
class Drop(Instruction):
    """Forget registers."""

    words = "{names}"
    names: tuple[str, ...]


@kind
class Enter(Instruction):
    """Gradients will be wanted of these registers."""

    words = "{names}"
    READS = ("names",)
    names: tuple[str, ...]


# ----------------------------------------------------------------------------------------------------- aggregates


@kind
class Gather(Instruction):
    """The sources' rows from the cache, side by side."""

    words = "{into} = {cache}[slot_of_source]"
    MAKES = ("into",)
    cache: str
    into: str = "z"


@kind
class Sum(Instruction):
    """A declared reduction over the rows in the cache, into a register."""

    words = "{a} = {how} over in-edges of {cache}[slot_of_source]{weights}"
    READS = ("a",)
    cache: str
    mean: bool
    weighted: bool
    a: str = "a"


@kind
class Aggregate(Instruction):
    """The layer's own aggregate of the sources' rows; ``graph``: recorded, where the body is."""

    words = "{a} = aggregate of layer {layer} ({reads})"
    READS, MAKES = ("z", "s"), ("a",)
    layer: int
    s: tuple[str, ...]
    graph: bool
    z: str = "z"
    a: str = "a"


@kind
class Combine(Instruction):
    """The aggregate together with s, as the layer combines them, in its place."""

    words = "{a} = combine of layer {layer} ({reads})"
    READS, MAKES = ("a", "s"), ("a",)
    layer: int
    s: tuple[str, ...]
    a: str = "a"


# --------------------------------------------------------------------------------------------------------- stages


@kind
class Stage(Instruction):
    """The row-wise stage behind an aggregate.

    Attributes:
        base: the aggregate's output, what is read in its place, or the features of stage 0.
        gives: registers of what it returns, in order.
        keeps_input: the first of these is the features as they are.
        gradients_only: of what it returns, nobody looks at the values.
    """

    words = "{gives} = stage {stage} ({reads})"
    READS, MAKES = ("base", "s", "values"), ("gives",)
    stage: int
    base: str
    s: tuple[str, ...]
    values: tuple[str, ...]
    gives: tuple[str, ...]
    keeps_input: bool = False
    gradients_only: bool = False


@kind
class GatherMoments(Instruction):
    """Add the rows of a register to the moments that the pass gathers."""

    words = "of {name}"
    READS = ("name",)
    name: str


@kind
class Loss(Instruction):
    """The loss of the destinations, and the gradient of their output."""

    words = "{gradient} = gradient of the loss at {output}"
    READS, MAKES = ("output",), ("gradient",)
    output: str
    gradient: str


@kind
class Add(Instruction):
    """The sum of registers."""

    words = "{name} = {terms}"
    READS, MAKES = ("parts",), ("name",)
    name: str
    parts: tuple[str, ...]


@kind
class Write(Instruction):
    """A register to the destinations' rows of a vertex tensor; where they lie then is what the register has.

    Attributes:
        holds: what is saved of the register may lie there.
        picked: the pass computes some of the chunk's rows alone.
        kept: which rows of a tensor on the disk are in host memory all the same; None: it is not on the disk.
    """

    words = "{there} <- {register}"
    READS = ("register",)
    name: str
    where: Where
    register: str
    stores: Stores
    holds: bool = False
    picked: bool = False
    kept: Kept | None = None


@kind
class Save(Instruction):
    """Keep the recorded operations for a later pass."""

    words = "stage {stage} for backward"
    stage: int


# ------------------------------------------------------------------------------------------------------- backward


@kind
class Resume(Instruction):
    """Take what an earlier pass saved."""

    words = "stage {stage} as it was saved"
    stage: int


@kind
class ThroughMoments(Instruction):
    """Add what comes back by way of a normalisation's statistics to the gradient of its input ``x``."""

    words = "{gradient} += by way of mean and variance of {x}"
    READS = ("x", "gradient")
    stage: int
    x: str
    gradient: str


@kind
class Differentiate(Instruction):
    """Backpropagate the gradients of what the stage gave.

    Attributes:
        gradients: registers, None for what has no gradient.
        gives: "d x" of every x that was entered; zeros where nothing came back to it.
    """

    words = "{gives} = backward({gradients})"
    READS, MAKES = ("gradients",), ("gives",)
    gradients: tuple[str | None, ...]
    gives: tuple[str, ...]


@kind
class Uncombine(Instruction):
    """The gradients of the plain aggregate and of s from that of what ``Combine`` gave.

    Attributes:
        columns: of every element of s.
        gives: "d a", then of every element of s, None where it gets none.
    """

    words = "{makes} = backward of combine of layer {layer} ({gradient})"
    READS, MAKES = ("gradient",), ("gives",)
    layer: int
    gradient: str
    columns: tuple[int, ...]
    gives: tuple[str | None, ...]


@kind
class TransposeSum(Instruction):
    """Add A^T of a gradient to the cache, A as in ``Sum``."""

    words = "{cache}[slot_of_source] += transpose of {how} over in-edges ({gradient}{weights})"
    READS = ("gradient",)
    gradient: str
    cache: str
    mean: bool
    weighted: bool


@kind
class TransposeAggregate(Instruction):
    """The same for a layer's own linear aggregate; its ``z`` and s have so many columns."""

    words = "{cache}[slot_of_source] += transpose of aggregate of layer {layer} ({gradient})"
    READS = ("gradient",)
    layer: int
    gradient: str
    cache: str
    z: int
    s: tuple[int, ...]


@kind
class AddToCache(Instruction):
    """Add the gradients of the sources' rows, side by side in a register, to the cache."""

    words = "{cache}[slot_of_source] += {gradient}"
    READS = ("gradient",)
    gradient: str
    cache: str
