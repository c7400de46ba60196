"""What the planner decides beyond the strategy's switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hongtu.graph.halo import Halo

ONCE: Literal["once"] = "once"  # the view of setup passes, where these run in finer chunks than the others
View = int | None | Literal["once"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One combination of all that is compared.

    Attributes:
        fuse: forward, loss and backward of the last layer in one pass.
        save: save what stages compute until backward.
        resident: vertex tensors that stay on the devices.
        spilled: those of the host whose rows lie below it, as on a disk, each with how many of the first chunks of
            every partition have them in memory all the same.
        below: of these, the memory below the host's in which they lie, where that is not the disk.
        ahead: rows come from there a batch ahead, in a second set of staging memory.
        fields: bool [V] each, the vertices within 0, 1, ... hops of the loss vertices, or the halo's; () to compute
            every vertex.
        halo: the rows that ranks fetch of one another, or None.
        structure: the chunks' structure stays on the devices, too.
        ordered: and the order of their edges by source, for what adds gradients to sources' rows.
        staging: sets of staging memory on both sides of the host link, so that as many batches may be on their way
            or computed at a time; 0 where device and host share their memory.
        scripts: what one copy brings in a batch of training is packed once, in host memory of its own.
        slab: planned buffers of devices with their own memory lie in one slab, at the same places in every epoch.
        padded: vertex rows are padded on the devices without staging memory, too.
    """

    fuse: bool = False
    save: bool = False
    resident: frozenset[str] = frozenset()
    spilled: Mapping[str, int] = field(default_factory=dict)
    below: Mapping[str, str] = field(default_factory=dict)
    ahead: bool = True
    fields: tuple[np.ndarray, ...] = ()
    halo: Halo | None = None
    structure: bool = False
    ordered: bool = False
    staging: int = 0
    scripts: bool = True
    slab: bool = True
    padded: bool = False

    @property
    def prefetch(self) -> int:
        """Batches ahead of its first use that a row may be brought."""
        return max(self.staging - 1, 0)
