"""Ranks on simulated devices: streams and messages take their time, and no order of them changes a number."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hongtu.device.simulated import SimulatedBackend
from hongtu.engine import messages
from hongtu.engine.executor import Executor
from hongtu.plan.passes.strategy import Strategy
from tests import problems, training
from tests.models import SIX
from tests.ranks.turns import TurnRanks, run_ranks
from tests.staged import EXACT

ARRIVED, REACHED = "end: what was sent has left", "post: the rows are on the host"
RANKS, GRAIN, SEEDS = 2, (4, 6), 3


class SlowRanks(TurnRanks):
    """What is sent leaves by one more stream of the rank's devices."""

    net = None

    def begin(self, out, into):
        for rank, tensor in out:
            self.net.run(partial(super().begin, [(rank, tensor)], ()))
        return super().begin((), into)

    def end(self, begun):
        self.net.record().synchronize(ARRIVED)
        super().end(begun)


def gradients(seed, model, ignored=frozenset(), ranks=RANKS):
    """Those of two epochs on ranks."""

    def work(group):
        device = SimulatedBackend(seed=10 * seed + group.rank, ignored=ignored)
        group.net = device.scheduler.queue()
        trainer = training.make_trainer(
            model, problems.awkward(), GRAIN, ranks=group, dependencies="comm", device=device,
            strategy=Strategy(resident=False, group=False), detect_anomaly=False,
        )  # fmt: skip
        for _ in range(2):
            trainer.train_epoch()
        return torch.cat([g.flatten() for g in trainer.gradients().values()])

    return run_ranks(ranks, work, SlowRanks)[0]


def expected(model):
    trainer = training.make_trainer(model, problems.awkward())
    for _ in range(2):
        trainer.train_epoch()
    return torch.cat([g.flatten() for g in trainer.gradients().values()])


def is_exact(found, model):
    return torch.allclose(found, expected(model), rtol=0, atol=EXACT * float(expected(model).abs().max()))


@pytest.mark.most(4)
@pytest.mark.parametrize("ranks", (2, 3))
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_no_order_of_work_and_messages_changes_a_number(model, ranks, monkeypatch):
    monkeypatch.setattr(messages, "LEAST", 1)
    for seed in range(SEEDS):
        assert is_exact(gradients(seed, model, ranks=ranks), model)


def survives(**options):
    """Whether something changes nothing."""
    for seed in range(SEEDS):
        try:
            found = gradients(seed, SIX[0], **options)
        except Exception:  # nothing has come
            return False
        if not is_exact(found, SIX[0]):
            return False
    return True


@pytest.mark.parametrize("why", (ARRIVED, REACHED))
def test_every_wait_for_messages_is_needed(why, monkeypatch):
    monkeypatch.setattr(messages, "LEAST", 1)
    assert not survives(ignored=frozenset({why}))


def test_rows_are_posted_by_the_hosts_stream(monkeypatch):
    def at_once(self, x):
        self.messages.post(x, self._current.order.index(self._batch))

    monkeypatch.setattr(messages, "LEAST", 1)
    monkeypatch.setattr(Executor, "post", at_once)
    assert not survives()
