"""Some of the random trainings beside plain torch; ``python -m tests.exact.harness --cases 2000`` runs many."""

import pytest
import torch

from tests.exact.harness import Case, run_case


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10, 5))
def test_random_trainings_agree_with_plain_torch(first):
    found = [run_case(number) for number in range(first, first + 5)]
    wrong = [f"{ran.title}\n{ran.wrong}" for ran in found if ran.wrong]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_case_is_judged_alike_whatever_ran_before(seed):
    """Of rows that nearly tie: few of the moves of its parameters change its gradients as far as bfloat16 does."""
    torch.manual_seed(seed)
    ran = run_case(996059)
    assert not ran.wrong and "ill-conditioned" in ran.kinds


@pytest.mark.parametrize("factor", [0, 2], ids=["dropped", "doubled"])
@pytest.mark.parametrize("number", [23, 32])
def test_a_wrong_gradient_under_autocast_is_found(number, factor, monkeypatch):
    compare = Case._compare_cast

    def wrong(case, epoch, loss, expected, mine, theirs):
        name = max(theirs, key=lambda name: theirs[name].norm())
        compare(case, epoch, loss, expected, mine | {name: factor * mine[name]}, theirs)

    monkeypatch.setattr(Case, "_compare_cast", wrong)
    assert "gradients are off by" in run_case(996000 + number).wrong
