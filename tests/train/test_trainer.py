"""The Trainer around the engine: prediction, evaluation, fit, parameters and optimizers."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
import sys

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.train import network_plan
from tests import problems, training
from tests.models import DEEP, SIX
from tests.trainers import GAT, GCN, SCHEDULERS, artifact, gcn, losses_of
from tests.training import STRATEGIES

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


# ------------------------------------------------------------------------------------------- prediction and evaluation


@strategies
@pytest.mark.parametrize("model", [*SIX, DEEP], ids=repr)
def test_predictions_come_in_original_order(model, strategy):
    """They equal the reference's, and a graph with permuted ids gives permuted predictions."""
    problem = problems.awkward()
    reference = model.run_reference(model.build_reference(problem), problem).detach()
    found = training.make_trainer(model, problem, (2, 3), strategy=strategy).predict()
    torch.testing.assert_close(found, reference, rtol=1e-10, atol=1e-10)
    assert not found.requires_grad
    new_id = permutation()
    shuffled = training.make_trainer(model, shuffled_awkward(), (2, 3), strategy=strategy).predict()
    torch.testing.assert_close(shuffled[torch.from_numpy(new_id)], reference, rtol=1e-10, atol=1e-10)


@functools.cache
def permutation():
    return np.random.default_rng(23).permutation(problems.awkward().num_vertices)


@functools.cache
def shuffled_awkward():
    """Vertex v of ``awkward`` is vertex ``permutation()[v]`` here; the order of the edges is kept."""
    problem, new_id = problems.awkward(), permutation()

    def moved(rows):
        out = np.empty_like(rows)
        out[new_id] = rows
        return out

    return dataclasses.replace(
        problem, name="shuffled", edges=new_id[problem.edges], features=moved(problem.features),
        labels=moved(problem.labels), masks={split: moved(mask) for split, mask in problem.masks.items()},
    )  # fmt: skip


@strategies
def test_evaluate_is_the_accuracy_of_predict(strategy):
    problem = problems.awkward()
    trainer = training.make_trainer(GAT, problem, (2, 3), strategy=strategy)
    trainer.fit(3)
    chosen = trainer.predict().argmax(1).numpy()
    expected = {split: float((chosen == problem.labels)[mask].mean()) for split, mask in problem.masks.items()}
    assert trainer.evaluate() == expected


def test_evaluate_of_many_labels_is_micro_f1():
    problem = problems.multi_label()
    trainer = training.make_trainer(GCN, problem, (2, 3), loss="bce_with_logits")
    trainer.fit(3)
    chosen, true = trainer.predict().numpy() > 0, problem.labels > 0.5
    scores = trainer.evaluate()
    for split, mask in problem.masks.items():
        hits = (chosen & true)[mask].sum()
        misses = (chosen ^ true)[mask].sum()
        assert scores[split] == pytest.approx(2 * hits / (2 * hits + misses))


def test_a_split_without_vertices_scores_nan():
    scores = training.make_trainer(GCN, without_val(), (1, 1)).evaluate()
    assert np.isnan(scores["val"]) and 0 <= scores["train"] <= 1


@functools.cache
def without_val():
    problem = problems.awkward()
    masks = problem.masks | {"val": np.zeros(problem.num_vertices, dtype=bool)}
    return dataclasses.replace(problem, name="without-val", masks=masks)


@pytest.mark.long
@strategies
def test_evaluation_fits_the_smallest_budget(strategy):
    for model in (*SIX, DEEP):
        trainer = training.make_trainer(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest")
        trainer.evaluate()
        assert trainer.predict().shape == (64, 3)


# ----------------------------------------------------------------------------------------------------------------- fit


def test_fit_evaluates_now_and_then_and_after_the_last(tmp_path):
    trainer = hongtu.Trainer(artifact(), gcn())
    seen = []
    records = trainer.fit(7, eval_every=3, run_dir=tmp_path / "run", on_epoch=seen.append)
    assert seen == records
    assert [record.epoch for record in records] == list(range(1, 8))
    assert [bool(record.metrics) for record in records] == [False, False, True, False, False, True, True]
    assert all(record.metrics.keys() == {"train", "val", "test"} for record in records if record.metrics)
    lines = [json.loads(line) for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == losses_of(records)
    assert lines[2]["metrics"] == records[2].metrics
    assert lines[0].keys() >= {"epoch", "loss", "seconds", "bytes", "rows", "peak_bytes", "phases", "metrics"}
    trainer.fit(1, run_dir=tmp_path / "run")
    assert len((tmp_path / "run" / "epochs.jsonl").read_text().splitlines()) == 8  # appends


def test_the_run_directorys_lines_are_json(tmp_path):
    """Also where a split is empty: NaN is no JSON."""
    trainer = hongtu.Trainer(problems.prepare(without_val(), 1, 1), gcn())
    trainer.fit(1, eval_every=1, run_dir=tmp_path)

    def refuse(constant):
        raise AssertionError(f"{constant} in epochs.jsonl")

    json.loads((tmp_path / "epochs.jsonl").read_text(), parse_constant=refuse)


def test_records_add_up(tmp_path):
    record = hongtu.Trainer(artifact(), gcn(), strategy="paper").fit(1)[0]
    assert record.seconds > 0
    assert 0 < sum(record.phases.values()) <= record.seconds
    assert record.bytes["load"] > 0 and record.bytes["read"] > 0 and record.bytes["write"] > 0
    assert record.peak_bytes.keys() == {"device 0", "device 1", "pinned host", "pageable host"}


def test_fit_stops_early():
    frozen = lambda p: torch.optim.SGD(p, lr=0.0)  # noqa: E731 - the score never improves
    trainer = hongtu.Trainer(artifact(), gcn(), optimizer=frozen)
    records = trainer.fit(20, eval_every=2, patience=3)
    assert len(records) == 2 * (1 + 3)
    assert trainer.epoch == 8


def test_an_epoch_is_in_the_books_where_its_metric_fails():
    """Else the next ``fit`` would go on with a learning rate of one epoch less."""

    def metric(out, target):
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        return 1.0

    def make(**options):
        torch.manual_seed(0)
        decay = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)  # noqa: E731
        return hongtu.Trainer(artifact(), gcn(), scheduler=decay, **options)

    calls, trainer, expected = [], make(metric=metric), make()
    with pytest.raises(ZeroDivisionError):
        trainer.fit(3, eval_every=1)
    trainer.fit(2)
    expected.fit(len(trainer.history))
    assert [entry["loss"] for entry in trainer.history] == [entry["loss"] for entry in expected.history]
    assert trainer.epoch == len(trainer.history) == 3


def test_waiting_counts_only_where_patience_was_asked_for():
    """Epochs trained without early stopping do not use its patience up, and it stops after an evaluation only."""
    trainer = hongtu.Trainer(artifact(), gcn(), optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    assert len(trainer.fit(8, eval_every=2)) == 8
    first = trainer.fit(20, eval_every=2, patience=3)
    assert len(first) == 8  # one evaluation is the best so far, three are not better
    assert len(trainer.fit(5, eval_every=2, patience=3)) == 2


def test_early_stopping_needs_a_validation_score():
    trainer = hongtu.Trainer(artifact(), gcn())
    with pytest.raises(InputError, match="eval_every"):
        trainer.fit(3, patience=2)
    empty = hongtu.Trainer(problems.prepare(without_val(), 1, 1), gcn())
    with pytest.raises(InputError, match="val"):
        empty.fit(3, patience=2, eval_every=1)
    assert trainer.epoch == empty.epoch == 0


def test_fit_shows_progress_on_request(capfd, monkeypatch):
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, "200")  # where a bar has no terminal, it may take the size of another
    hongtu.Trainer(artifact(), gcn()).fit(2, progress=True, eval_every=1)
    shown = capfd.readouterr().err
    assert "epoch" in shown and "loss" in shown and "val" in shown
    hongtu.Trainer(artifact(), gcn()).fit(2)
    assert capfd.readouterr().err == ""  # not a terminal


@pytest.mark.parametrize("closed", [False, True])
def test_a_process_without_standard_error_preprocesses_and_trains(closed, monkeypatch, tmp_path, capsys):
    """As ``python script.py 2>&-`` and services, where Python has None for it, or a file that somebody closed."""
    stream = (tmp_path / "stream").open("w")
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if closed else None)
    graph = problems.prepare(without_val(), 2, 2)
    trainer = hongtu.Trainer(graph, gcn())
    for progress in (None, True, False):
        assert len(trainer.fit(1, progress=progress, eval_every=1)) == 1
    assert trainer.epoch == 3 and capsys.readouterr().out == ""


def test_fit_learns():
    trainer = hongtu.Trainer(artifact(), gcn(), optimizer=lambda p: torch.optim.Adam(p, lr=0.05))
    records = trainer.fit(60)
    assert records[-1].loss < 0.8 * records[0].loss


# ------------------------------------------------------------------------------------------- parameters and optimizers


def test_the_model_is_made_of_the_modules_passed_in():
    layers = [*gcn(), nn.LayerNorm(3)]
    before = copy.deepcopy([layer.state_dict() for layer in layers])
    trainer = hongtu.Trainer(artifact(), layers, seed=123)
    assert isinstance(trainer.model, nn.ModuleList)
    assert all(mine is given for mine, given in zip(trainer.model, layers, strict=True))
    for layer, state in zip(layers, before, strict=True):
        assert all(torch.equal(layer.state_dict()[name], value) for name, value in state.items())
    hongtu.Trainer(artifact(), layers, dtype=torch.float64)
    assert layers[0].lin.weight.dtype == torch.float64  # cast in place
    for layer, state in zip(layers, before, strict=True):
        assert all(torch.equal(layer.state_dict()[name], value.double()) for name, value in state.items())


def test_gradients_have_the_parameters_names():
    trainer = hongtu.Trainer(artifact(), [*gcn(), nn.LayerNorm(3), hnn.GATConv(3, 3)])
    assert trainer.gradients() == {}
    trainer.train_epoch()
    gradients = trainer.gradients()
    parameters = dict(trainer.model.named_parameters())
    assert gradients.keys() == parameters.keys()
    assert {"0.lin.weight", "0.bias", "2.weight", "3.att_src"} <= gradients.keys()
    assert all(gradients[name].shape == parameters[name].shape for name in parameters)


def test_gradients_are_those_before_clipping_and_weight_decay():
    def make(**options):
        return hongtu.Trainer(artifact(), gcn(), dtype=torch.float64, **options)

    plain = make(optimizer=training.sgd)
    clipped = make(optimizer=lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.1), clip_grad_norm=0.01)
    start = {name: p.detach().clone() for name, p in clipped.model.named_parameters()}
    plain.train_epoch()
    clipped.train_epoch()
    assert all(torch.equal(plain.gradients()[name], g) for name, g in clipped.gradients().items())
    norm = torch.cat([g.flatten() for g in plain.gradients().values()]).norm()
    assert norm > 0.01
    for name, p in clipped.model.named_parameters():
        step = start[name] - p.detach() - 0.1 * start[name]
        torch.testing.assert_close(step, plain.gradients()[name] * 0.01 / norm, rtol=1e-4, atol=1e-7)
    kept = clipped.gradients()["0.bias"].clone()
    first = clipped.gradients()
    clipped.train_epoch()
    assert torch.equal(first["0.bias"], kept)  # a new epoch does not write into the old one's


def test_frozen_parameters_stay():
    for strategy in STRATEGIES:
        layers = [*gcn(), nn.Linear(3, 3)]
        for parameter in layers[0].parameters():
            parameter.requires_grad_(False)
        layers[1].bias.requires_grad_(False)
        before = copy.deepcopy([layer.state_dict() for layer in layers])
        trainer = hongtu.Trainer(artifact(), layers, strategy=strategy, device_memory="1MiB")
        trainer.fit(2)
        assert trainer.gradients().keys() == {"1.lin.weight", "2.weight", "2.bias"}
        assert torch.equal(layers[0].lin.weight, before[0]["lin.weight"])
        assert torch.equal(layers[1].bias, before[1]["bias"])
        assert not torch.equal(layers[1].lin.weight, before[1]["lin.weight"])


def test_freezing_and_thawing_between_epochs():
    """A frozen parameter keeps its value, whatever gradient it had last; thawed, it learns on."""
    trainer = hongtu.Trainer(artifact(), gcn(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    weight = trainer.model[0].lin.weight
    trainer.train_epoch()
    weight.requires_grad_(False)
    before = weight.clone()
    trainer.train_epoch()
    assert "0.lin.weight" not in trainer.gradients()
    assert torch.equal(weight, before)
    weight.requires_grad_(True)
    trainer.train_epoch()
    assert "0.lin.weight" in trainer.gradients()
    assert not torch.equal(weight, before)


def test_frozen_first_layer_gives_the_same_gradients_to_the_others():
    expected = training.make_trainer(GAT, problems.awkward(), (2, 3))
    trainer = training.make_trainer(GAT, problems.awkward(), (2, 3))
    trainer.model[0].requires_grad_(False)
    expected.train_epoch()
    trainer.train_epoch()
    for name, gradient in trainer.gradients().items():
        torch.testing.assert_close(gradient, expected.gradients()[name], rtol=1e-12, atol=1e-14)
    assert {name.split(".")[0] for name in trainer.gradients()} == {"1"}


def test_an_unused_parameter_gets_a_zero_gradient():
    class Unused(hnn.GCNConv):
        def __init__(self, *args):
            super().__init__(*args)
            self.spare = nn.Parameter(torch.ones(2))

    trainer = hongtu.Trainer(artifact(), [Unused(6, 3)])
    trainer.train_epoch()
    assert torch.equal(trainer.gradients()["0.spare"], torch.zeros(2))


def test_an_optimizer_that_needs_a_closure_is_refused():
    with pytest.raises(InputError, match=r"LBFGS.*closure"):
        hongtu.Trainer(artifact(), gcn(), optimizer=torch.optim.LBFGS)


@pytest.mark.parametrize("used_before", [False, True])
def test_an_optimizer_with_groups_of_the_layers_own_parameters(used_before):
    """The usual way to decay one layer only names its parameters instead of those passed in."""
    layers = gcn()
    if used_before:
        hongtu.Trainer(artifact(), layers, optimizer=training.sgd).train_epoch()
    before = copy.deepcopy(nn.ModuleList(layers).state_dict())

    def optimizer(_):
        groups = [{"params": layers[0].parameters(), "weight_decay": 0.1}, {"params": layers[1].parameters()}]
        return torch.optim.Adam(groups, lr=0.01)

    trainer = hongtu.Trainer(artifact(), layers, optimizer=optimizer)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    same = hongtu.Trainer(artifact(), copy.deepcopy(layers), optimizer=torch.optim.Adam)
    assert trainer.plan.shape.model_bytes == same.plan.shape.model_bytes
    trainer.train_epoch()
    assert not torch.equal(trainer.model[1].lin.weight, before["1.lin.weight"])


@pytest.mark.parametrize("make", [torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.AdamW, training.sgd])
def test_any_optimizer_counts_its_state(make):
    """The plan's bytes of the model are those that parameters, gradients, optimizer and dropout really have."""
    trainer = hongtu.Trainer(artifact(), gcn(), optimizer=make, scheduler=SCHEDULERS["StepLR"])
    trainer.train_epoch()
    state = sum(t.nbytes for entry in trainer.optimizer.state.values() for t in entry.values() if torch.is_tensor(t))
    parameters = list(trainer.model.parameters())
    key = 8  # of dropout
    assert trainer.plan.shape.model_bytes == state + sum(p.nbytes + p.grad.nbytes for p in parameters) + key


@strategies
def test_two_trainers_of_the_same_layers_do_not_disturb_each_other(strategy):
    expected = hongtu.Trainer(artifact(), gcn(0.5), seed=1, strategy=strategy).train_epoch().loss
    layers = gcn(0.5)
    first = hongtu.Trainer(artifact(), layers, seed=1, strategy=strategy)
    second = hongtu.Trainer(problems.prepare(without_val(), 1, 7), layers, seed=2)
    second.predict()
    assert first.train_epoch().loss == expected


def test_a_budget_may_be_a_share_of_what_is_needed_without_a_limit():
    graph = artifact()

    def propagation(**options):
        return hongtu.Propagation(graph, 3, **options)

    def trainer(**options):  # whose optimizer has no state
        return hongtu.Trainer(graph, gcn(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), **options)

    for make in (trainer, propagation):
        whole = make().plan.likely_bytes
        assert make(device_memory="95%").plan.peak_bytes == make(device_memory=int(whole * 0.95)).plan.peak_bytes
        with pytest.raises(hongtu.errors.BudgetError, match=f"device_memory is {whole // 10} bytes, 10% of") as refused:
            make(device_memory="10%")
        least = float(re.search(r", ([0-9.]+)%\)", str(refused.value))[1])
        assert make(device_memory=f"{least}%").plan.peak_bytes
        with pytest.raises(hongtu.errors.BudgetError):
            make(device_memory=f"{least - 0.2}%")
    assert hongtu.Trainer(graph, gcn()).plan.likely_bytes > trainer().plan.likely_bytes
    with pytest.raises(hongtu.errors.InputError, match="device_memory '101%': expected a percentage"):
        trainer(device_memory="101%")


@pytest.mark.parametrize(
    "make", [lambda f, c: [hnn.GATConv(f, c)], lambda f, c: [hnn.GCNConv(f, 4), hnn.GCNConv(4, c)]]
)
def test_a_refusal_tries_no_plan_twice(make, monkeypatch):
    tried, plan = [], network_plan.plan_run

    def plan_run(graph, shape, strategy, *others):
        cached = strategy.cache_input_aggregate and shape.constant_layers > 0
        tried.append(repr((shape, dataclasses.replace(strategy, cache_input_aggregate=cached))))
        return plan(graph, shape, strategy, *others)

    monkeypatch.setattr(network_plan, "plan_run", plan_run)
    problem = problems.awkward()
    with pytest.raises(hongtu.errors.BudgetError):
        hongtu.Trainer(problems.prepare(problem, 2, 3), make(problem.width, problem.classes), device_memory=100)
    assert len(tried) > 1 and len(set(tried)) == len(tried)
