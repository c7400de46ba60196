"""The instructions around chunks: memory, and rows that go from one memory to another.

Those of a pass's body run once per batch, each on all devices before the next one. "On ``load``" names the stream of a
device that does it. Legend: V vertices, K intervals of one device's cache.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hongtu.graph.halo import Crossing
from hongtu.plan.memory.disk import Kept
from hongtu.plan.program.call import Call
from hongtu.plan.program.instruction import Contended, Instruction, Picks, Stores, Where, kind
from hongtu.plan.program.origins import Origin


@kind
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

    words = "{name} ({where}){of_columns}"
    name: str
    where: Where
    rows: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = "float"
    zero: bool | np.ndarray = False
    kept: Kept | None = None
    at: tuple[int, ...] = ()
    padded: bool = False


@kind
class Free(Instruction):
    """Give the memory of a tensor back."""

    words = "{name} ({where})"
    name: str
    where: Where


@kind
class BeginMoments(Instruction):
    """Begin to gather mean and variance of what a stage gives the normalisation behind it."""

    on = "dispatch"
    words = "mean and variance behind stage {stage}: {columns} columns"
    stage: int
    columns: int


@kind
class EndMoments(Instruction):
    """Give every network the statistics of all rows."""

    words = "mean and variance behind stage {stage} to every network"
    stage: int


@kind
class SumStatistics(Instruction):
    """Give every network the gradients of a normalisation's statistics, summed over all of them."""

    on = "dispatch"
    words = "gradients of the statistics of layer {layer}, over all networks"
    layer: int


@kind
class Cross(Instruction):
    """Over the network: "fetch" rows of a host tensor that other ranks own, as their owners computed them; or "send"
    gradients of these to their owners, who add them to their own rank by rank.

    Attributes:
        crossing: which rows are whose.
    """

    on = "dispatch"
    words = "{rows_of_ranks}"
    tensor: str
    crossing: Crossing
    link: Literal["fetch", "send"]


@kind
class Post(Instruction):
    """On ``host``: the same begins for rows that no later batch changes.

    Attributes:
        steps: of every rank int32, the batch in the pass's order from which on each row that goes to it stays as it is;
            None where transfers are only counted.
    """

    on = "host"
    words = "{link} begins: rows of host {tensor} that stay as they are leave"
    tensor: str
    crossing: Crossing
    link: Literal["fetch", "send"]
    steps: tuple[np.ndarray, ...] | None


@kind
class LossOverEdges(Instruction):
    """Evaluate the loss over edges on the host: the whole output in, its gradient out."""

    on = "dispatch"
    words = "{gradient} = loss over edges of {output}"
    output: str
    gradient: str


@kind
class Bring(Instruction):
    """On ``load``: an array, or rows of a host tensor, to the device."""

    on = "load"
    words = "{name} = {origin}"
    name: str
    origin: Origin
    link: Literal["read", "topology"] = "topology"

    @property
    def kept(self) -> Kept | None:
        """Of host rows, those that are in memory, where others are on the disk."""
        return self.origin.kept


@kind
class Ship(Instruction):
    """On ``load``: of what was brought so far, these arrays reach the device in one copy.

    Attributes:
        names: in the order in which they are packed; none has numbers larger than those before it.
    """

    on = "load"
    words = "{names} in one copy"
    names: tuple[str, ...]


@kind
class Fill(Bring):
    """On ``load``: the same to the chunk's part of what stays on the device.

    Attributes:
        buffer: where it stays.
        start: of every device int64 [n + 1], where each chunk's part begins.
    """

    words = "{buffer}[chunk] = {origin}"
    buffer: str
    start: tuple[np.ndarray, ...]


@kind
class Load(Instruction):
    """On ``load``: ``cache[load_slots] = tensor[load_rows]`` over the host link.

    Attributes:
        from_bucket: the rows are those of a bucket, which is at hand.
    """

    on = "load"
    words = "{cache}[load_slots] = host {tensor}[load_rows]"
    tensor: str
    cache: str
    picks: Picks
    from_bucket: bool = False

    @property
    def column(self) -> Literal["row", "place"]:
        """What says where the rows are."""
        return "place" if self.from_bucket else "row"


@kind
class Pull(Instruction):
    """On ``load``: ``cache[pull_to] = peer's cache[pull_from]``."""

    on = "load"
    words = "{cache}[pull_to] = peer's {cache}[pull_from]"
    cache: str
    picks: Picks


@kind
class Zero(Instruction):
    """On ``compute``: ``cache[slots] = 0``."""

    on = "compute"
    words = "{cache}[{slots}] = 0"
    cache: str
    picks: Picks
    slots: Literal["load_slots", "pull_to"]


@kind
class Push(Instruction):
    """On ``compute``: ``peer's cache[push_to] += cache[push_from]``.

    Attributes:
        contended: where several devices add to one row; elsewhere each has one writer, whose adds need not be atomic.
    """

    on = "compute"
    words = "peer's {cache}[push_to] += {cache}[push_from]"
    cache: str
    picks: Picks
    contended: Contended


@kind
class Compute(Instruction):
    """On ``compute``: a body of its own on every device's chunk, if that has destinations.

    Attributes:
        graph: operations are recorded for backward; ``saves``: and what they save stays until another pass.
    """

    on = "compute"
    words = "on every chunk{recorded}"
    body: tuple[Call, ...]
    graph: bool
    saves: bool


@kind
class Deliver(Instruction):
    """On ``flush`` and ``host``: what ``Write`` gave for a host tensor reaches it; ``kept`` as there."""

    on = "flush"
    words = "host {name}[chunk] <- {name}"
    name: str
    stores: Stores
    kept: Kept | None = None


@kind
class Flush(Instruction):
    """On ``flush`` and ``host``: ``tensor[rows] += cache[flush_slots]``.

    Attributes:
        stores: of every device, the intervals whose rows are stored.
        to_bucket: the rows become a bucket, which goes to the disk, but for those of this tensor that are in memory.
    """

    on = "flush"
    words = "host {tensor}[rows] <- {cache}[flush_slots]"
    tensor: str
    cache: str
    picks: Picks
    stores: tuple[Stores, ...]
    to_bucket: Kept | None = None

    @property
    def column(self) -> Literal["row", "place"]:
        """What says where the rows are to be."""
        return "row" if self.to_bucket is None else "place"
