"""What one kind of fault did: a line of the table in docs/reliability.md."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Tries and losses of one fault.

    Attributes:
        fault: what was done.
        expected: what must come of it.
        tries: how often.
        losses: the tries of which something else came, in words; empty where all is well.
        note: seeds, counts.
    """

    fault: str
    expected: str
    tries: int = 0
    losses: list[str] = field(default_factory=list)
    note: str = ""

    def expect(self, good: bool, loss: str) -> None:
        """Count one try."""
        self.tries += 1
        if not good:
            self.losses.append(loss)
