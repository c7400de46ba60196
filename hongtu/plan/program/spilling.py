"""The instructions by which rows go between the host and the disk.

Attributes of all of them: ``kept``, the rows of the tensor that are in host memory. Of these none moves, but to its
place in a bucket.
"""

from __future__ import annotations

from hongtu.plan.memory.disk import Kept, Region
from hongtu.plan.program.instruction import Given, Instruction, Picks, kind


@kind
class Recall(Instruction):
    """On ``disk``: the destinations' rows of a tensor come to staging memory of the host, and are added up there.

    Attributes:
        given: by which passes, in their order.
        straight: they are there as they are.
    """

    on = "disk"
    words = "host {name}[chunk] = disk, by {passes}"
    name: str
    kept: Kept
    given: tuple[Given, ...]
    straight: bool


@kind
class RecallGiven(Instruction):
    """The same of a tensor that the artifact has."""

    on = "disk"
    words = "host {name}[chunk] = of the artifact"
    name: str
    kept: Kept


@kind
class RecallPicks(Instruction):
    """On ``disk``: the rows that the batch loads come to staging memory of the host, by row."""

    on = "disk"
    words = "host {tensor}[load_rows] = disk"
    tensor: str
    kept: Kept
    region: Region
    picks: Picks


@kind
class Spill(Instruction):
    """On ``disk``: the destinations' rows go there from staging memory of the host.

    Attributes:
        own: the first byte of the tensor's own rows, or None where nobody reads these.
        takers: where later passes load them.
    """

    on = "disk"
    words = "disk <- host {name}[chunk]{to_be_read}"
    name: str
    kept: Kept
    own: int | None
    takers: tuple[Region, ...]


@kind
class SpillPicks(Instruction):
    """The same of the rows that the batch flushes."""

    on = "disk"
    words = "disk <- host {tensor}[rows]"
    tensor: str
    kept: Kept
    region: Region
    picks: Picks
