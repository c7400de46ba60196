"""Gradients are asked for after an epoch: those of its loss, whatever the step did, without a copy meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hongtu
from hongtu import nn as hnn
from hongtu.model import embedding
from hongtu.ranks.share import Share
from hongtu.ranks.stages import ByLayer
from hongtu.train.tracing.stepping import taken_inside
from tests import problems
from tests.trainers import artifact, gcn

WIDTH = 6


class WritesGradients(torch.optim.SGD):
    """Decays weights where its gradients lie, as some optimizers outside of torch do."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.add_(p, alpha=0.1)
        return super().step()


class Lookahead(torch.optim.SGD):
    """Every other step goes half of the way back, as some do that wrap another."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.count = 0
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        self.count += 1
        every = [p for group in self.param_groups for p in group["params"]]
        for p, slow in zip(every, self.slow, strict=True):
            if self.count % 2 == 0:
                p.copy_(slow.lerp_(p, 0.5))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "foreach nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "in place": lambda p: WritesGradients(p, lr=0.1),
    "own attributes": lambda p: Lookahead(p, lr=0.1),
}


def embedded():
    problem = problems.awkward()
    return hongtu.preprocess_graph(
        problem.edges, problem.num_vertices, problems.new_path(), features=f"embedding:{WIDTH}", labels=problem.labels,
        masks=problem.masks, partitions=2, chunks=3,
    )  # fmt: skip


def learning(graph, **options):
    torch.manual_seed(0)
    return hongtu.Trainer(graph, [hnn.GCNConv(WIDTH, 4, activation="relu"), hnn.GCNConv(4, 3)], **options)


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_are_those_before_the_step(name, clip):
    graph = embedded()
    expected = learning(graph, optimizer=OPTIMIZERS["sgd"])
    trainer = learning(graph, optimizer=OPTIMIZERS[name], clip_grad_norm=clip)
    expected.train_epoch(), trainer.train_epoch()
    first = trainer.gradients()
    assert first.keys() == expected.gradients().keys() > {"embedding.weight"}
    assert all(torch.equal(found, expected.gradients()[name]) for name, found in first.items())
    trainer.evaluate()
    before = {name: found.clone() for name, found in first.items()}
    assert all(torch.equal(found, before[name]) for name, found in trainer.gradients().items())
    trainer.train_epoch()
    assert all(torch.equal(found, before[name]) for name, found in first.items())
    assert not torch.equal(trainer.gradients()["embedding.weight"], before["embedding.weight"])


def test_are_copied_only_where_the_step_changes_them():
    for options, copied in (
        ({}, False),
        ({"clip_grad_norm": 1.0}, True),
        ({"optimizer": OPTIMIZERS["in place"]}, True),
    ):
        trainer = hongtu.Trainer(artifact(), gcn(), **options)
        trainer.train_epoch()
        lies_there = {p.grad.data_ptr() for p in trainer.model.parameters()}
        assert all((g.data_ptr() not in lies_there) is copied for g in trainer._gradients.values())


def test_what_was_written_to_since_is_refused():
    trainer, expected = (hongtu.Trainer(artifact(), gcn()) for _ in range(2))
    for p, q in zip(trainer.model.parameters(), expected.model.parameters(), strict=True):
        q.data.copy_(p.data)

    def halve(optimizer, *_):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)

    expected.train_epoch()
    hook = trainer.optimizer.register_step_pre_hook(halve)
    trainer.train_epoch()
    with pytest.raises(hongtu.errors.InputError, match=r"0.lin.weight.grad was written to|0.bias.grad was written to"):
        trainer.gradients()
    hook.remove()
    trainer.train_epoch()
    trainer.optimizer.zero_grad(set_to_none=False)
    assert all(float(g.abs().sum()) > 0 for g in trainer.gradients().values())  # they are copied now


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop])
def test_what_learned_rows_take_is_counted_as_planned(kind, clip):
    graph = embedded()
    trainer = learning(graph, optimizer=lambda p: kind(p, lr=0.1), clip_grad_norm=clip)
    record = trainer.train_epoch()
    assert record.peak_bytes["pageable host"] == trainer.plan.host_bytes["pageable host"]
    rows = graph.num_vertices * WIDTH * 4
    beside = {torch.optim.SGD: 1, torch.optim.Adam: 5, torch.optim.Adagrad: 3, torch.optim.RMSprop: 3}[kind]
    plain = hongtu.Trainer(graph, [hnn.GCNConv(WIDTH, 4)], optimizer=lambda p: torch.optim.SGD(p, lr=1), seed=1)
    learned = trainer.plan.shape.learned_bytes - plain.plan.shape.learned_bytes
    assert learned // rows == beside - 1 + (clip is not None)


def test_rows_that_do_not_fit_are_not_made(monkeypatch):
    made = []
    monkeypatch.setattr("hongtu.train.trainer.Embedding", lambda *given: made.append(given))
    monkeypatch.setenv("HONGTU_HOST_MEMORY", "16KiB")
    with pytest.raises(hongtu.errors.InputError, match="host memory: the run needs"):
        learning(embedded())
    assert not made


@pytest.mark.parametrize("rows, width", [(1, 1), (3, 5), (15, 1), (17, 1), (32, 3), (1000, 7), (48, 40)])
def test_first_rows_are_torchs_own_in_blocks(rows, width, monkeypatch):
    monkeypatch.setattr(embedding, "BLOCK", 64)
    found = dict(embedding.first_rows(rows, width, seed=3))
    assert torch.equal(torch.cat(list(found.values())), torch.randn((rows, width), generator=torch.manual_seed(3)))
    assert max(map(len, found.values())) <= max(64 // width, 16) + 16


def test_a_share_draws_its_own_rows_alone(tmp_path, monkeypatch):
    """Those of one process, in the memory of its own and a few blocks."""
    monkeypatch.setattr(embedding, "BLOCK", 64)
    count, width = 2000, 32
    edges = np.stack([np.arange(count), np.arange(count)])
    graph = hongtu.preprocess_graph(edges, count, tmp_path / "a", features=f"embedding:{width}", partitions=4, chunks=1)
    make = lambda artifact: embedding.Embedding(artifact, torch.optim.SGD, 5, torch.float32, lambda x: iter([x]))  # noqa: E731
    share, found = Share(graph, 1, 2, ByLayer(1, 0)), []
    taken = taken_inside(lambda: found.append(make(share)))
    whole = make(graph).weight.detach()
    assert torch.equal(found[0].weight, whole[torch.from_numpy(share.rows)])
    assert taken < 0.1 * whole.nbytes
