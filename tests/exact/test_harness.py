"""Some of the random trainings beside plain torch; ``python -m tests.exact.harness --cases 2000`` runs many."""

import pytest
import torch

import hongtu
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


@pytest.mark.parametrize("number", [2000567, 2000647], ids=["few rows", "divergence"])
def test_what_plain_torch_does_not_know_either_is_not_wrong(number):
    """Norms of a few alike rows under autocast; steps that grow a hundredfold, and what two sides round with them:
    another thing on each processor."""
    assert not run_case(number).wrong


@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_gradient_that_is_a_little_wrong_is_found(number, monkeypatch):
    gradients = hongtu.Trainer.gradients
    monkeypatch.setattr(
        hongtu.Trainer, "gradients", lambda self: {name: g * (1 + 1e-6) for name, g in gradients(self).items()}
    )
    assert "is off by" in run_case(number).wrong


@pytest.mark.parametrize("factor", [0, 2], ids=["dropped", "doubled"])
@pytest.mark.parametrize("number", [23, 32])
def test_a_wrong_gradient_under_autocast_is_found(number, factor, monkeypatch):
    compare = Case._compare_cast

    def wrong(case, epoch, loss, expected, mine, theirs):
        name = max(theirs, key=lambda name: theirs[name].norm())
        compare(case, epoch, loss, expected, mine | {name: factor * mine[name]}, theirs)

    monkeypatch.setattr(Case, "_compare_cast", wrong)
    assert "gradients are off by" in run_case(996000 + number).wrong
