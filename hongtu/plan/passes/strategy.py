"""Strategies: which savings are on. Every saving is exact; none changes a number beyond summation order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from hongtu.errors import InputError
from hongtu.graph.halo import Halo

Reuse = Literal["none", "p2p", "paper", "lookahead"]
SAVINGS = (
    "lookahead",
    "once_per_vertex",
    "transform_first",
    "no_input_gradient",
    "cache_input_aggregate",
    "fuse_last_layer",
    "resident",
    "prune",
)
ONCE: Literal["once"] = "once"  # the view of setup passes, where these run in finer chunks than the others
View = int | None | Literal["once"]


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """The savings of one run.

    Attributes:
        reuse: which rows stay on a device between batches: "none" (every chunk loads its whole neighbour set) or
            "p2p" (deduplicated loads and pulls between devices), "paper" (and adjacent reuse; paper section 5), or
            "lookahead" (Belady's choice on the known schedule).
        schedule: order of the chunks: "input", or "paper" for Algorithm 4's (not with ``group``).
        group: run consecutive chunks as one where the budget allows.
        once_per_vertex: compute what depends on one vertex alone before the exchange. Else layers have the paper's
            forms: GCN's self-loops and normalisation are edges and their weights, GAT and GGCN exchange h as it is and
            multiply every replica of it; where the layers of a model would need different edges for that, they do not.
        transform_first: exchange the narrower side of a layer's first linear map: ``A (H W) = (A H) W``.
        no_input_gradient: compute no gradient of the features, which are constant, nor of what depends on frozen
            parameters alone.
        cache_input_aggregate: keep layer 0's aggregate of constant features (of K hops in a row, the last) instead of
            computing it every epoch.
        fuse_last_layer: forward, loss and backward of the last layer in one pass, where that is predicted cheaper.
        prune: train on what the loss vertices depend on, layer by layer, where that is much less than the graph.
        resident: leave vertex tensors on the devices that have room for them.
        overlap: on devices with memory of their own, and between host and disk, bring the next batch and take the last
            one away while one computes, where the budget has room for it.
        capture: on a GPU, have it do again what an epoch that repeats has given it, without the host.
        save: without a memory limit, save what stages computed until backward instead of computing it again.
    """

    reuse: Reuse = "lookahead"
    schedule: Literal["input", "paper"] = "input"
    group: bool = True
    once_per_vertex: bool = True
    transform_first: bool = True
    no_input_gradient: bool = True
    cache_input_aggregate: bool = True
    fuse_last_layer: bool = True
    prune: bool = True
    resident: bool = True
    overlap: bool = True
    capture: bool = True
    save: bool = True

    def __post_init__(self) -> None:
        if self.group and self.schedule == "paper":
            raise InputError("strategy: group needs schedule='input' (Algorithm 4 orders the artifact's own chunks)")


_OFF: dict[str, Any] = {switch.name: False for switch in fields(Strategy) if switch.default is True}
_PAPER = Strategy(reuse="paper", schedule="paper", **_OFF)
STRATEGIES = {
    "none": replace(_PAPER, reuse="none"),
    "p2p": replace(_PAPER, reuse="p2p"),
    "paper": _PAPER,
    "full": Strategy(),
}


def get_strategy(strategy: str | Strategy) -> Strategy:
    """Look a strategy up by name; a ``Strategy`` is returned as it is.

    Raises:
        InputError: for an unknown name.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if strategy not in STRATEGIES:
        raise InputError(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[strategy]


# one after the other on top of the paper's reuse; "lookahead" goes with groups of chunks, which only it can use


def with_saving(strategy: Strategy, saving: str) -> Strategy:
    """A strategy with one more saving on."""
    if saving == "lookahead":
        return replace(strategy, reuse="lookahead", schedule="input", group=True)
    switched: dict[str, Any] = {saving: True}
    return replace(strategy, **switched)


def alone(saving: str) -> Strategy:
    """The paper's strategy with one saving on.

    Raises:
        InputError: for an unknown saving.
    """
    if saving not in SAVINGS:
        raise InputError(f"saving {saving!r}: expected one of {', '.join(SAVINGS)}")
    return with_saving(_PAPER, saving)


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
