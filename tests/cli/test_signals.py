"""Signals at any line: a few of what `python -m tests.faults signals` does at length."""

import pytest

from tests.faults.signals import Preprocessing, Training, interrupt


@pytest.mark.parametrize("kind, tries", [(Training, 4), (Preprocessing, 8)])
def test_signals_at_any_line_lose_nothing(kind, tries):
    outcome = interrupt(kind, tries, seed=7)
    assert outcome.tries == tries and not outcome.losses, "\n".join(outcome.losses)
