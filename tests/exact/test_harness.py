"""Some of the random trainings beside plain torch; ``python -m tests.exact.harness --cases 2000`` runs many."""

import pytest

from tests.exact.harness import run_case


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10, 5))
def test_random_trainings_agree_with_plain_torch(first):
    found = [run_case(number) for number in range(first, first + 5)]
    wrong = [f"{ran.title}\n{ran.wrong}" for ran in found if ran.wrong]
    assert not wrong, "\n".join(wrong)
