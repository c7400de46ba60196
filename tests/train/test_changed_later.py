"""Changes between epochs that are easily overlooked: hooks, numbers that torch does not see, learned rows, refusals."""

import copy
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import BudgetError, InputError
from hongtu.model import parameter_hooks
from tests import problems, trainers
from tests.models import H
from tests.train.test_changed_models import behind, losses, make, sgd


class Times:
    """A hook whose number can change."""

    def __init__(self, number):
        self.number = number

    def __call__(self, module, given, out):
        return out * self.number


def hooked():
    front = nn.LeakyReLU(0.5)
    front.times = Times(2.0)
    front.handle = front.register_forward_hook(front.times)
    return front


def fixed():
    """A map whose weight is a buffer, the same each time."""
    torch.manual_seed(1)
    front = nn.Linear(6, 6, bias=False)
    weight = front.weight.detach().clone()
    del front.weight
    front.register_buffer("weight", weight)
    return front


def other_hook(front):
    front.handle.remove()
    front.register_forward_hook(Times(3.0))


class Louder(nn.LeakyReLU):
    def forward(self, x):
        return 3 * super().forward(x)


@pytest.mark.parametrize(
    "make_front, change",
    [
        (hooked, other_hook),
        (hooked, lambda front: front.register_forward_hook(Times(3.0))),
        (hooked, lambda front: setattr(front.times, "number", 3.0)),
        (fixed, lambda front: front.weight.mul_(2)),
        (lambda: nn.LeakyReLU(np.float32(0.9)), lambda front: setattr(front, "negative_slope", np.float32(0.1))),
        (lambda: nn.LeakyReLU(0.9), lambda front: setattr(front, "__class__", Louder)),
    ],
)
def test_a_changed_front_is_computed_again(make_front, change):
    found = [
        losses(make(behind(make_front()), strategy=strategy), lambda t: change(t.model[0]))
        for strategy in ("full", "none")
    ]
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert abs(found[0][1] - losses(make(behind(make_front())))[1]) > 1e-3, "the change does nothing"


@pytest.mark.parametrize("strategy", ["full", "none"])
@pytest.mark.parametrize("later", [False, True])
def test_a_hook_may_write_to_the_input_of_its_module(later, strategy):
    """``Identity`` gives the features themselves, which are read again."""

    found = []
    for hook, own in ((lambda module, given, out: out.mul_(2), strategy), (Times(2.0), "none")):
        trainer = make(behind(nn.Identity()), strategy=own)
        if not later:
            trainer.model[0].register_forward_hook(hook)
        change = (lambda t, hook=hook: t.model[0].register_forward_hook(hook)) if later else None
        found.append(losses(trainer, change))
    np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.parametrize("later", [False, True])
def test_a_hook_that_draws_draws_the_same_in_recomputation(later):
    torch.manual_seed(0)
    module = nn.Identity()

    def hook():
        module.register_forward_hook(lambda module, given, out: nn.functional.dropout(out, 0.5, module.training))

    if not later:
        hook()
    trainer = make([hnn.GCNConv(6, H), module, hnn.SAGEConv(H, H), hnn.SAGEConv(H, 3)])
    if later:
        hook()
    weights, weight, around = copy.deepcopy(trainer.weights()), trainer.model[0].lin.weight, []
    trainer.train_epoch()
    found = trainer.gradients()["0.lin.weight"][0, 0]
    for step in (1e-6, -1e-6):
        trainer.set_weights(weights)
        trainer.epoch = 0
        with torch.no_grad():
            weight[0, 0] += step
        around.append(trainer.train_epoch().loss)
    np.testing.assert_allclose(float(found), (around[0] - around[1]) / 2e-6, rtol=1e-6, atol=1e-8)


class Private(nn.Module):
    def __init__(self):
        super().__init__()
        self._by = 1.0

    def forward(self, x):
        return x * self._by


def test_another_hook_and_a_private_number_reach_every_device():
    def between(**options):
        torch.manual_seed(0)
        return make([hnn.GCNConv(6, H), hooked(), Private(), hnn.GCNConv(H, 3)], **options)

    def change(trainer):
        trainer.model[2]._by = 0.5
        other_hook(trainer.model[1])

    np.testing.assert_allclose(losses(between(device="simulated"), change), losses(between(), change), rtol=1e-9)


@pytest.mark.parametrize("write", [lambda w: w.data.mul_(3), lambda w: np.multiply(w.numpy(), 3, out=w.numpy())])
def test_class_weights_that_are_written_behind_torch_are_refused(write):
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    trainer = make(trainers.gcn(), loss=loss)
    trainer.train_epoch()
    write(loss.weight[1:])
    with pytest.raises(InputError, match="the loss has changed"):
        trainer.train_epoch()


def test_a_refused_plan_leaves_the_one_that_runs():
    def three(**options):
        torch.manual_seed(0)
        layers = [hnn.SAGEConv(6, 32), hnn.SAGEConv(32, 32), hnn.SAGEConv(32, 3)]
        layers[0].requires_grad_(False)
        layers[1].requires_grad_(False)
        return make(layers, **options)

    with pytest.raises(BudgetError) as refused:
        three(device_memory=1)
    trainer = three(device_memory=refused.value.smallest)
    found = [trainer.train_epoch().loss]
    trainer.model[1].requires_grad_(True)
    with pytest.raises(BudgetError):
        trainer.train_epoch()
    trainer.model[1].requires_grad_(False)
    np.testing.assert_allclose([*found, *losses(trainer, epochs=2)], losses(three()), rtol=1e-9)


@pytest.mark.long
def test_an_interrupt_between_hooks_loses_none():
    codes = {parameter_hooks.hooks_once.__wrapped__.__code__, parameter_hooks._put_back.__code__}
    lines = sorted({(code, line) for code in codes for *_, line in code.co_lines() if line}, key=lambda pair: pair[1])
    stops, trainer, called = 0, make(trainers.gcn()), []
    for name, parameter in trainer.model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: called.append(name))
    for code, line in lines:
        for left in (1, 2):  # the first time that it comes by, the second
            when = [left]

            def inside(frame, event, arg, line=line, when=when):
                when[0] -= event == "line" and frame.f_lineno == line
                if when[0] == 0:
                    raise KeyboardInterrupt
                return inside

            before = sys.gettrace()
            sys.settrace(lambda frame, event, arg, code=code, inside=inside: inside if frame.f_code is code else None)
            try:
                trainer.train_epoch()
            except KeyboardInterrupt:
                stops += 1
            finally:
                sys.settrace(before)
            called.clear()
            trainer.train_epoch()
            assert sorted(called) == sorted(dict(trainer.model.named_parameters())), (code.co_name, line)
    assert stops > 10


# ------------------------------------------------------------------------------------------------------- learned rows


@pytest.fixture(scope="module")
def embedded():
    problem = problems.awkward()
    return hongtu.preprocess_graph(
        problem.edges, problem.num_vertices, problems.new_path(), features="embedding:6", labels=problem.labels,
        masks=problem.masks, edge_weight=problem.weights, partitions=2, chunks=3,
    )  # fmt: skip


def learning(artifact):
    return hongtu.Trainer(artifact, trainers.gcn(), optimizer=sgd, dtype=torch.float64)


def test_hooks_of_learned_rows_run_once_on_the_epochs_gradient(embedded):
    trainer, plain, fired = learning(embedded), learning(embedded), []
    trainer.embedding.weight.register_hook(lambda gradient: 2 * gradient)
    trainer.embedding.weight.register_post_accumulate_grad_hook(lambda rows: fired.append(rows.grad.clone()))
    before = plain.embedding.weight.detach().clone()
    trainer.train_epoch(), plain.train_epoch()
    step = plain.embedding.weight - before
    torch.testing.assert_close(trainer.embedding.weight - before, 2 * step, rtol=1e-9, atol=1e-15)
    assert len(fired) == 1 and float(step.detach().abs().max()) > 0


def test_frozen_rows_stay_in_a_snapshot_too(embedded, tmp_path):
    trainer, other = learning(embedded), learning(embedded)
    trainer.embedding.weight.requires_grad_(False)
    before = trainer.embedding.weight.detach().clone()
    trainer.train_epoch()
    trainer.save(tmp_path / "snapshot.pt")
    other.load(tmp_path / "snapshot.pt")
    other.train_epoch()
    for rows in (trainer.embedding.weight, other.embedding.weight):
        assert torch.equal(rows, before)
    assert "embedding.weight" not in trainer.gradients()


def test_learned_rows_in_other_memory_are_taken(embedded):
    found = []
    for write in (lambda rows: setattr(rows, "data", 2 * rows.data), lambda rows: rows.data.mul_(2)):
        trainer = learning(embedded)
        trainer.train_epoch()
        write(trainer.embedding.weight)
        found.append([*losses(trainer, epochs=2), trainer.evaluate()["val"]])
        assert torch.isfinite(trainer.embedding.weight).all()
    assert found[0] == found[1]


WEIGHT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
EDGES = np.array([[0, 1, 2, 5], [3, 4, 6, 5]])
GIVEN = {
    "a function with its arguments": lambda w: partial(nn.functional.cross_entropy, weight=w),
    "one of a list": lambda w: ["cross_entropy", hongtu.LossTerm(partial(nn.functional.cross_entropy, weight=w), 0.5)],
    "targets of edges": lambda w: hongtu.LinkLoss(
        EDGES, targets=np.array([0, 1, 2, 0]), decoder=torch.mul, loss=nn.CrossEntropyLoss(weight=w)
    ),
    "targets of edges by a function": lambda w: hongtu.LinkLoss(
        EDGES, targets=np.array([0, 1, 2, 0]), decoder=torch.mul, loss=partial(nn.functional.cross_entropy, weight=w)
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_class_weights_are_looked_at_wherever_they_were_given(name):
    weight = WEIGHT.clone()
    trainer = make(trainers.gcn(), loss=GIVEN[name](weight))
    trainer.train_epoch()
    weight[1] = 9
    with pytest.raises(InputError, match="the loss has changed"):
        trainer.train_epoch()
