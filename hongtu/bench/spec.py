"""What is timed: models, and the systems that train them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hongtu.config import parse_bytes, parse_share, size
from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.plan.passes.strategy import SAVINGS, STRATEGIES, Strategy, alone

OURS = "hongtu"
ON_RANKS = ("sar",)  # baselines that several processes run together
SAMPLED = ("pyg-loader", "loader")  # systems that train on sampled mini-batches
UNGROUPED = "full, chunks as they are"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A stack of one built-in layer, and how its parameters begin."""

    name: str
    hidden: int = 128
    layers: int = 2
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As the columns of a row."""
        return {"model": self.name, "hidden": self.hidden, "layers": self.layers}

    def widths(self, artifact: Artifact) -> list[int]:
        """Columns before the first layer, between layers, and after the last."""
        return [artifact.feature_width, *[self.hidden] * (self.layers - 1), artifact.num_classes]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One system that trains one model.

    Attributes:
        system: "hongtu" or a baseline's name.
        strategy: of hongtu: "full", "paper", "none", "paper + SAVING", or "full, chunks as they are" (not in groups).
        budget: bytes per partition; None: no limit.
        share: the part of what hongtu needs in memory that ``budget`` is; None where bytes were asked for.
        ranks: processes that train together, of hongtu and of baselines in ``ON_RANKS``.
        dependencies: where ranks have rows of one another from.
    """

    system: str = OURS
    strategy: str | None = None
    budget: int | None = None
    share: float | None = None
    ranks: int = 1
    dependencies: str = "cache"

    @property
    def label(self) -> str:
        """For people."""
        if self.system != OURS:
            together = f", {self.ranks} ranks" if self.ranks > 1 else ""
            return self.system + together + (" (sampled: approximate)" if self.system in SAMPLED else "")
        limit = "" if self.budget is None else f", {size(self.budget)}"
        if self.share is not None:
            limit += f" = {self.share:.0%}"
        together = "" if self.ranks == 1 else f", {self.ranks} ranks, {self.dependencies}"
        return f"{OURS} {self.strategy}{limit}{together}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def named_strategy(name: str) -> Strategy:
    """The strategy of a ``Run``."""
    if name == UNGROUPED:
        return replace(STRATEGIES["full"], group=False)
    return STRATEGIES[name] if name in STRATEGIES else alone(name.removeprefix("paper + "))


def parse_strategies(names: Sequence[str]) -> list[str]:
    """Names of strategies; "alone" stands for the paper's with each saving alone.

    >>> parse_strategies(["full", "alone"])[:2]
    ['full', 'paper + lookahead']
    """
    found: list[str] = []
    for name in names:
        if name not in (*STRATEGIES, "alone"):
            raise InputError(f"strategy {name!r}: expected one of {', '.join(STRATEGIES)}, alone")
        found += [f"paper + {saving}" for saving in SAVINGS] if name == "alone" else [name]
    return list(dict.fromkeys(found))


def parse_budgets(texts: Sequence[str]) -> list[float | int | None]:
    """None for "none", bytes for a size, a share of what hongtu needs in memory for a percentage.

    >>> parse_budgets(["none", "25%", "64MiB"])
    [None, 0.25, 67108864]
    """
    found: list[float | int | None] = []
    for text in texts:
        share = parse_share(text)
        found.append(None if text == "none" else parse_bytes(text, "budget") if share is None else share)
    return found
