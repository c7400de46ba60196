"""What layers take in a run beyond what a probe of them found when it was planned.

A layer whose memory depends on the data, or a device that has less than it said, shows only where a run fails; there
layers are measured, and the planner learns the factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hongtu.train.tracing.probe import Correct

SHARES = (1.0, 0.5, 0.25, 0.1, 0.0)
GROWTH = 1.25  # of what is expected of layers, where they cannot be measured


@dataclass(frozen=True)
class WorkspaceCorrection:
    """By pass, how many times as much as a probe finds layers take, and how many bytes at most."""

    factor: dict[str, float] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def likely(self, name: str, probed: int) -> int:
        """Where it shrinks with the chunks."""
        return int(self.factor.get(name, 1.0) * probed)

    def part(self, share: float) -> Correct:
        """Only so much of what is likely."""
        return lambda name, probed: probed + int(share * (self.likely(name, probed) - probed))

    def surely(self, name: str, probed: int) -> int:
        """Where it does not."""
        return max(self.likely(name, probed), probed + self.most.get(name, 0))

    def learned(
        self,
        name: str,
        taken: int,
        probed: Mapping[str, int],
        measured: Mapping[str, int] | None,
        planned: Mapping[str, int],
    ) -> WorkspaceCorrection:
        """What is known after a pass failed.

        Args:
            name: of the pass; taken: bytes that its layers had then.
            probed, planned: what a probe finds in every pass, and what the plan that failed gave layers there.
            measured: what layers took in some passes; None: it could not be measured.
        """
        found = measured or {name: int(GROWTH * taken)}
        factor = self.factor | {key: max(1.0, size / max(probed[key], 1)) for key, size in found.items()}
        # of which the own part shrinks with the chunks, and may not be the peak
        learned = WorkspaceCorrection(factor, self.most | dict(found))
        if all(learned.likely(key, probed[key]) <= planned.get(key, 0) for key in found):  # nothing new
            factor[name] = GROWTH * max(factor[name], self.factor.get(name, 1.0))
        return learned
