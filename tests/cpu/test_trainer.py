"""The Trainer around the engine: prediction, evaluation, fit, snapshots, refusals, budgets and odd models."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import random
import re

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import BudgetError, DeviceOutOfMemory, InputError
from tests import models, problems, training
from tests.models import DEEP, SIX, H
from tests.training import STRATEGIES

strategies = pytest.mark.parametrize("strategy", STRATEGIES)
GCN, GAT = SIX[0], SIX[4]


def artifact(m=2, n=3):
    return problems.prepare(problems.awkward(), m, n)


def gcn(dropout=0.0):
    torch.manual_seed(0)
    return [hnn.GCNConv(6, H, activation="relu", input_dropout=dropout), hnn.GCNConv(H, 3)]


# -------------------------------------------------------------------------------------------- prediction and evaluation


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


@strategies
def test_evaluation_fits_the_smallest_budget(strategy):
    for model in (*SIX, DEEP):
        trainer = training.make_trainer(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest")
        trainer.evaluate()
        assert trainer.predict().shape == (64, 3)


# --------------------------------------------------------------------------------------------------------- snapshots


def adam_and_step(p):
    return torch.optim.Adam(p, lr=0.05, weight_decay=1e-3)


SCHEDULERS = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o, 0.5, 2), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[2],
    ),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
}


def dropout_trainer(**options):
    torch.manual_seed(0)
    layers = [
        hnn.GATConv(6, H, heads=2, dropout=0.5, activation="elu", input_dropout=0.5),
        hnn.Dropout(0.5),
        hnn.SAGEConv(2 * H, 3),
    ]
    defaults = {"optimizer": adam_and_step, "scheduler": SCHEDULERS["StepLR"], "seed": 4, "dtype": torch.float64}
    return hongtu.Trainer(artifact(), layers, **(defaults | options))


def losses_of(records):
    return [record.loss for record in records]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_run_that_is_saved_and_loaded_equals_one_that_was_not(name, tmp_path):
    """Bit for bit: Adam, a scheduler, dropout."""
    options = {"scheduler": SCHEDULERS[name], "dtype": torch.float32}
    whole = losses_of(dropout_trainer(**options).fit(8))
    first = dropout_trainer(**options)
    begun = losses_of(first.fit(3))
    first.save(tmp_path / "snapshot")
    second = dropout_trainer(**options, seed=99)  # the snapshot's seed counts
    second.load(tmp_path / "snapshot")
    assert second.epoch == 3
    assert begun + losses_of(second.fit(5)) == whole
    assert begun + losses_of(first.fit(5)) == whole  # saving changes nothing


def test_a_snapshot_goes_on_under_another_budget_and_strategy(tmp_path):
    whole = losses_of(dropout_trainer().fit(6))
    first = dropout_trainer(strategy="paper", device_memory="1MiB")
    begun = losses_of(first.fit(3))
    first.save(tmp_path / "snapshot")
    small = training.smallest_budget(artifact(), lambda: list(dropout_trainer().model), optimizer=adam_and_step)
    for options in ({"strategy": "none"}, {"strategy": "full"}, {"strategy": "paper", "device_memory": 2 * small}):
        second = dropout_trainer(**options)
        second.load(tmp_path / "snapshot")
        np.testing.assert_allclose(begun + losses_of(second.fit(3)), whole, rtol=1e-10)


def test_loading_goes_back(tmp_path):
    trainer = dropout_trainer()
    trainer.fit(2)
    trainer.save(tmp_path / "snapshot")
    expected = losses_of(trainer.fit(3))
    trainer.load(tmp_path / "snapshot")
    assert losses_of(trainer.fit(3)) == expected


def test_saving_in_the_middle_of_fit_with_plateaus_of_the_validation_score(tmp_path):
    """ReduceLROnPlateau sees the last validation score, whether or not this epoch took one."""

    def make():
        return dropout_trainer(
            scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, mode="max", patience=1, factor=0.5),
            dtype=torch.float32,
        )

    whole = losses_of(make().fit(8, eval_every=2))
    first = make()
    begun = losses_of(first.fit(4, eval_every=2))
    first.save(tmp_path / "snapshot")
    second = make()
    second.load(tmp_path / "snapshot")
    assert begun + losses_of(second.fit(4, eval_every=2)) == whole


def test_plateaus_are_those_of_one_quantity():
    """With evaluations only now and then, scores and losses must not be mixed."""
    seen = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics, epoch=None):
            seen.append(metrics)
            super().step(metrics, epoch)

    records = dropout_trainer(scheduler=lambda o: Plateau(o, mode="max")).fit(6, eval_every=3)
    scores = [record.metrics["val"] for record in records if record.metrics]
    assert len(scores) == 2
    assert set(seen) <= set(scores), f"stepped with {seen}, the scores were {scores}"


def test_plateaus_of_the_loss_where_nothing_is_evaluated():
    trainer = dropout_trainer(
        scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(
            o, patience=0, threshold=10.0, threshold_mode="abs", factor=0.5
        )
    )
    rates = []
    trainer.fit(4, on_epoch=lambda record: rates.append(trainer.optimizer.param_groups[0]["lr"]))
    assert rates == [0.05, 0.025, 0.0125, 0.00625]


def test_a_snapshot_holds_parameters_and_is_written_whole(tmp_path):
    trainer = dropout_trainer()
    trainer.fit(1)
    trainer.save(tmp_path / "deep" / "snapshot.pt")
    trainer.fit(1)
    trainer.save(tmp_path / "deep" / "snapshot.pt")  # replaces
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["snapshot.pt"]
    state = torch.load(tmp_path / "deep" / "snapshot.pt", weights_only=True)
    assert state["epoch"] == 2
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(state["model"][name], value)


def state_of(trainer):
    return copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.epoch))


def assert_state_is(trainer, before):
    after = state_of(trainer)
    assert after[2] == before[2] and str(after[1]) == str(before[1])
    assert all(torch.equal(after[0][name], value) for name, value in before[0].items())


def test_damaged_snapshots_are_refused(tmp_path):
    """Cut short, with bytes changed, or no snapshot at all: a message, and the trainer as it was."""
    trainer = dropout_trainer()
    trainer.fit(2)
    good = tmp_path / "good"
    trainer.save(good)
    trainer.fit(1)
    content = good.read_bytes()
    rng = random.Random(0)
    damaged = [content[:k] for k in (0, 1, 100, len(content) // 2, len(content) - 1)]
    damaged += [b"not a snapshot", b"\x80\x04]\x94.", b"\x00" * 1000, rng.randbytes(2000)]
    damaged += [b"PK\x03\x04" + rng.randbytes(500)]
    for _ in range(60):
        at = rng.randrange(len(content))
        damaged.append(content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :])
    before = state_of(trainer)
    path = tmp_path / "damaged"
    for k, bad in enumerate(damaged):
        path.write_bytes(bad)
        try:
            trainer.load(path)
        except InputError as error:
            assert str(path) in str(error)
            assert_state_is(trainer, before)
        else:  # a byte that means nothing: padding, a time stamp
            assert k >= 10 and trainer.epoch == 2
            trainer.load(good)
            trainer.fit(1)
            before = state_of(trainer)
    with pytest.raises(InputError, match="no such snapshot"):
        trainer.load(tmp_path / "absent")


def test_other_files_of_torch_are_refused(tmp_path):
    trainer = dropout_trainer()
    for other in ({"model": {}}, [1, 2], torch.ones(3), {"format": "hongtu-snapshot", "version": 0},
                  {"format": "hongtu-snapshot", "version": 1}):  # fmt: skip
        torch.save(other, tmp_path / "other")
        with pytest.raises(InputError, match="other"):
            trainer.load(tmp_path / "other")


def snapshot_of(trainer, tmp_path):
    trainer.fit(1)
    trainer.save(tmp_path / "snapshot")
    return tmp_path / "snapshot"


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("artifact", lambda: hongtu.Trainer(artifact(1, 7), gcn())),
        ("layers", lambda: hongtu.Trainer(artifact(), [hnn.GCNConv(6, 4), hnn.GCNConv(4, 3)])),
        ("layers", lambda: hongtu.Trainer(artifact(), [hnn.GCNConv(6, H), nn.ReLU(), hnn.GCNConv(H, 3)])),
        ("layers", lambda: hongtu.Trainer(artifact(), [hnn.GCNConv(6, H, bias=False), hnn.GCNConv(H, 3)])),
        ("optimizer", lambda: hongtu.Trainer(artifact(), gcn(), optimizer=training.sgd)),
        ("scheduler", lambda: hongtu.Trainer(artifact(), gcn(), scheduler=SCHEDULERS["StepLR"])),
        ("dtype", lambda: hongtu.Trainer(artifact(), gcn(), dtype=torch.float64)),
    ],
    ids=["other-artifact", "other-widths", "more-modules", "no-bias", "other-optimizer", "scheduler", "other-dtype"],
)
def test_snapshots_of_another_run_are_refused(what, make, tmp_path):
    path = snapshot_of(hongtu.Trainer(artifact(), gcn()), tmp_path)
    other = make()
    before = state_of(other)
    with pytest.raises(InputError, match=what):
        other.load(path)
    assert_state_is(other, before)


# ------------------------------------------------------------------------------------------------------------- fit


def test_fit_evaluates_now_and_then_and_after_the_last(tmp_path):
    trainer = hongtu.Trainer(artifact(), gcn())
    seen = []
    records = trainer.fit(7, eval_every=3, run_dir=tmp_path / "run", on_epoch=seen.append)
    assert seen == records
    assert [record.epoch for record in records] == list(range(7))
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


def test_fit_shows_progress_on_request(capfd):
    hongtu.Trainer(artifact(), gcn()).fit(2, progress=True, eval_every=1)
    shown = capfd.readouterr().err
    assert "epoch" in shown and "loss" in shown and "val" in shown
    hongtu.Trainer(artifact(), gcn()).fit(2)
    assert capfd.readouterr().err == ""  # not a terminal


def test_fit_learns():
    trainer = hongtu.Trainer(artifact(), gcn(), optimizer=lambda p: torch.optim.Adam(p, lr=0.05))
    records = trainer.fit(60)
    assert records[-1].loss < 0.8 * records[0].loss


# ---------------------------------------------------------------------------------------- parameters and optimizers


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
    """The plan's bytes of the model are those that parameters, gradients and optimizer really have."""
    trainer = hongtu.Trainer(artifact(), gcn(), optimizer=make, scheduler=SCHEDULERS["StepLR"])
    trainer.train_epoch()
    state = sum(t.nbytes for entry in trainer.optimizer.state.values() for t in entry.values() if torch.is_tensor(t))
    parameters = list(trainer.model.parameters())
    assert trainer.plan.shape.model_bytes == state + sum(p.nbytes + p.grad.nbytes for p in parameters)


@strategies
def test_two_trainers_of_the_same_layers_do_not_disturb_each_other(strategy):
    expected = hongtu.Trainer(artifact(), gcn(0.5), seed=1, strategy=strategy).train_epoch().loss
    layers = gcn(0.5)
    first = hongtu.Trainer(artifact(), layers, seed=1, strategy=strategy)
    second = hongtu.Trainer(problems.prepare(without_val(), 1, 7), layers, seed=2)
    second.predict()
    assert first.train_epoch().loss == expected


# ------------------------------------------------------------------------------------------------------ refused input


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda: [hnn.GCNConv(7, H), hnn.GCNConv(H, 3)], r"layers\[0\] \(GCNConv\)"),
        (lambda: [hnn.GCNConv(6, H), hnn.GCNConv(4, 3)], r"layers\[1\] \(GCNConv\)"),
        (lambda: [hnn.GCNConv(6, H), nn.Linear(4, 4), hnn.GCNConv(4, 3)], r"layers\[1\] \(Linear\)"),
        (lambda: [hnn.GATConv(6, H, heads=2), hnn.GATConv(H, 3)], r"layers\[1\] \(GATConv\)"),
        (lambda: [hnn.GCNConv(6, 2)], "2 columns.*3 classes"),
        (lambda: [nn.Linear(6, 3)], "no graph layer"),
        (lambda: [], "no graph layer"),
    ],
)
def test_wrong_widths_are_refused_by_name(layers, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(artifact(), layers())


class ReturnsNoPair(hnn.Layer):
    def transform(self, h):
        return h


class Flat(hnn.Layer):
    def forward(self, block, h):
        return h[: block.num_dst].sum(1)


class ThreeDimensional(hnn.Layer):
    def transform(self, h):
        return h, h.unsqueeze(1)


class ForgetsToCut(hnn.Layer):
    """Returns a row per source instead of one per destination."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 3)

    def forward(self, block, h):
        return self.lin(torch.cat([h, h]))


class Nothing(hnn.Layer):
    pass


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ReturnsNoPair, r"transform must return the pair \(z, s\)"),
        (Flat, "aggregate must return"),
        (ThreeDimensional, "rows"),
        (ForgetsToCut, "aggregate must return"),
        (Nothing, "forward"),
    ],
)
def test_layers_that_break_the_contract_are_refused_by_name(layer, message):
    with pytest.raises(InputError, match=rf"layers\[0\] \({layer.__name__}\).*{message}"):
        hongtu.Trainer(artifact(), [layer(), nn.Linear(6, 3)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fast"}, "none, paper, full"),
        ({"device": "tpu"}, "cpu"),
        ({"dtype": torch.float16}, "float32"),
        ({"loss": "mse"}, "cross_entropy"),
        ({"loss": "bce_with_logits"}, "cross_entropy"),
        ({"device_memory": "a lot"}, "a lot"),
        ({"device_memory": 0}, "device_memory|size"),
        ({"device_memory": -1}, "device_memory|size"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(artifact(), gcn(), **options)


def test_a_loss_of_the_wrong_shape_is_refused():
    trainer = hongtu.Trainer(artifact(), gcn(), loss=nn.functional.cross_entropy)  # the mean, one number
    with pytest.raises(InputError, match="one loss per vertex"):
        trainer.train_epoch()
    assert trainer.epoch == 0


# --------------------------------------------------------------------------------------------------------- budgets


@strategies
@pytest.mark.parametrize("model", [GCN, SIX[2], GAT, DEEP], ids=repr)
def test_the_smallest_budget_works_and_one_byte_less_is_refused(model, strategy):
    options = {"strategy": strategy, "optimizer": adam_and_step}
    trainer = training.make_trainer(model, problems.awkward(), (2, 3), device_memory="smallest", **options)
    trainer.fit(1, eval_every=1)
    with pytest.raises(BudgetError) as caught:
        training.make_trainer(model, problems.awkward(), (2, 3), device_memory=trainer._budget - 1, **options)
    message = str(caught.value)
    assert f"device_memory is {trainer._budget - 1} bytes, the smallest that works is {trainer._budget}" in message
    assert re.search(r"chunk \(\d, \d\)", message) and "--chunks" in message


def test_budgets_have_units():
    budget = training.smallest_budget(artifact(), gcn)
    kilobytes = -(-budget // 1000)
    hongtu.Trainer(artifact(), gcn(), device_memory=f"{kilobytes}KB").train_epoch()
    with pytest.raises(BudgetError):
        hongtu.Trainer(artifact(), gcn(), device_memory=f"{budget // 1000}KB")


def test_a_larger_budget_never_moves_more():
    smallest = training.smallest_budget(artifact(2, 3), gcn)
    moved = []
    for budget in (*range(smallest, 4 * smallest, smallest // 3), None):
        plan = hongtu.Trainer(artifact(2, 3), gcn(), device_memory=budget).plan
        moved.append(plan.bytes["load"] + plan.bytes["flush"])
    assert moved == sorted(moved, reverse=True)


class Greedy(hnn.GCNConv):
    """Takes more memory in a run than it did when it was probed."""

    greedy = False

    def update(self, a, s):
        if Greedy.greedy:
            torch.zeros(1_000_000)
        return super().update(a, s)


@strategies
def test_a_layer_that_takes_more_than_when_probed_is_stopped(strategy, monkeypatch):
    """As a GPU would, with an error; and the trainer is as good as before."""

    def make(layer):
        torch.manual_seed(0)
        return hongtu.Trainer(
            artifact(), [layer(6, H), hnn.GCNConv(H, 3)], device_memory="200KB", strategy=strategy, dtype=torch.float64
        )

    expected = losses_of(make(hnn.GCNConv).fit(2))
    trainer = make(Greedy)
    monkeypatch.setattr(Greedy, "greedy", True)
    for call in (trainer.train_epoch, trainer.predict, trainer.evaluate):
        with pytest.raises(DeviceOutOfMemory, match=r"device 0.*200000.*chunks"):
            call()
    monkeypatch.setattr(Greedy, "greedy", False)
    assert trainer.epoch == 0
    records = trainer.fit(2)
    assert losses_of(records) == expected
    assert records[1].rows == trainer.plan.rows
    assert records[1].arena_bytes == trainer.plan.arena_bytes
    assert max(size for name, size in records[1].peak_bytes.items() if name.startswith("device")) <= 200_000


class GreedyInEvaluation(hnn.GCNConv):
    """Takes more memory in evaluation than in training."""

    def update(self, a, s):
        out = super().update(a, s)
        return out if self.training else out + torch.zeros(50, *out.shape, dtype=out.dtype).sum(0)


@strategies
def test_a_budget_covers_evaluation_too(strategy):
    def layers():
        return [GreedyInEvaluation(6, H), hnn.GCNConv(H, 3)]

    budget = training.smallest_budget(artifact(), layers, strategy=strategy)
    assert budget > training.smallest_budget(artifact(), gcn, strategy=strategy)
    hongtu.Trainer(artifact(), layers(), strategy=strategy, device_memory=budget).fit(1, eval_every=1)


def test_any_failure_in_a_layer_leaves_the_trainer_usable():
    class Fails(hnn.GATConv):
        fails_at = None

        def aggregate(self, block, z, s):
            if Fails.fails_at == (torch.is_grad_enabled(), block.first > 0):
                raise KeyError("on purpose")
            return super().aggregate(block, z, s)

    def make(layer):
        torch.manual_seed(0)
        layers = [layer(6, H), hnn.GATConv(H, 3)]
        return hongtu.Trainer(artifact(), layers, strategy="paper", device_memory="1MiB")

    expected = losses_of(make(hnn.GATConv).fit(2))
    trainer = make(Fails)
    for backward in (False, True):
        Fails.fails_at = (backward, True)
        with pytest.raises(KeyError, match="on purpose"):
            trainer.train_epoch()
    Fails.fails_at = None
    records = trainer.fit(2)
    assert losses_of(records) == expected
    assert trainer.plan.host_bytes.items() <= records[0].peak_bytes.items()


# ------------------------------------------------------------------------------------------------------- odd models


class NoParameters(hnn.Layer):
    reduce = "mean"

    def transform(self, h):
        return h, None


@strategies
def test_a_first_layer_without_parameters(strategy):
    """[mean, mean, GCN] equals a GCN on features averaged twice; no gradient needs to go below the last layer."""
    problem = problems.awkward()
    h = torch.from_numpy(problem.features).double()
    source, destination = problem.edge_index
    degree = torch.bincount(destination, minlength=len(h)).clamp(min=1).unsqueeze(1)
    for _ in range(2):
        h = torch.zeros_like(h).index_add(0, destination, h[source]) / degree
    averaged = dataclasses.replace(problem, features=h.float().numpy())
    last = hnn.GCNConv(6, 3)
    options = {"strategy": strategy, "dtype": torch.float64, "optimizer": training.sgd}
    expected = hongtu.Trainer(problems.prepare(averaged, 1, 1), [copy.deepcopy(last)], **options)
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), [NoParameters(), NoParameters(), last], **options)
    assert trainer.train_epoch().loss == pytest.approx(expected.train_epoch().loss, rel=1e-6)  # features are float32
    assert trainer.gradients().keys() == {"2.lin.weight", "2.bias"}
    for name, gradient in expected.gradients().items():
        torch.testing.assert_close(trainer.gradients()[f"2{name[1:]}"], gradient, rtol=1e-5, atol=1e-6)


@strategies
@pytest.mark.parametrize("index", range(6), ids=[model.name for model in SIX])
def test_a_model_of_one_layer(index, strategy):
    make = [
        lambda: hnn.GCNConv(6, 3), lambda: hnn.SAGEConv(6, 3), lambda: hnn.GINConv(nn.Linear(6, 3)),
        lambda: hnn.CommNetConv(6, 3), lambda: hnn.GATConv(6, 3), lambda: hnn.GGCNConv(6, 3),
    ][index]  # fmt: skip
    import torch_geometric.nn as pyg

    reference = [
        lambda: pyg.GCNConv(6, 3), lambda: pyg.SAGEConv(6, 3), lambda: pyg.GINConv(nn.Linear(6, 3)),
        lambda: models.CommNetReference(6, 3), lambda: pyg.GATConv(6, 3), lambda: pyg.ResGatedGraphConv(6, 3),
    ][index]  # fmt: skip
    model = models.Model("one", lambda f, c: [make()], lambda f, c: [reference()])
    trainer = training.make_trainer(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest")
    training.assert_same(training.train(trainer), training.train_reference(model, problems.awkward()), 1e-9)


@pytest.mark.parametrize("loops", [0, 1, 3])
def test_a_graph_of_one_vertex(loops):
    arrays = {
        "features": np.ones((1, 4), dtype=np.float32), "labels": np.zeros(1, dtype=np.int64),
        "masks": {"train": np.ones(1, dtype=bool)},
    }  # fmt: skip
    found = hongtu.preprocess_graph(
        np.zeros((2, loops), dtype=np.int64), 1, problems.new_path(), **arrays, partitions=1, chunks=1
    )
    for strategy in STRATEGIES:
        for layers in (
            [hnn.GCNConv(4, 3), nn.ReLU(), hnn.GATConv(3, 2)],
            [hnn.SAGEConv(4, 2), hnn.GGCNConv(2, 2)],
            [hnn.CommNetConv(4, 2), hnn.GINConv(nn.Linear(2, 1))],
        ):
            trainer = hongtu.Trainer(found, layers, strategy=strategy, device_memory="1MiB")
            records = trainer.fit(2, eval_every=1)
            assert all(np.isfinite(record.loss) for record in records)
            assert trainer.predict().shape[0] == 1


def test_a_graph_without_edges():
    problem = dataclasses.replace(problems.awkward(), edges=np.empty((2, 0), dtype=np.int64), weights=None, name="bare")
    for model in SIX:
        for strategy in STRATEGIES:
            trainer = training.make_trainer(model, problem, (2, 3), strategy=strategy, device_memory="smallest")
            expected = training.train_reference(model, problem, 2)
            training.assert_same(training.train(trainer, 2), expected, 1e-9)
            assert trainer.plan.rows == dict.fromkeys(trainer.plan.rows, 0)


def test_empty_chunks():
    """A partition smaller than n has empty chunks."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, 12, 60), np.r_[np.zeros(45, dtype=int), rng.integers(1, 12, 15)]])
    problem = problems.Problem(
        "lopsided", edges, None, rng.normal(size=(12, 6)).astype(np.float32), np.arange(12) % 3,
        dict.fromkeys(("train",), np.ones(12, dtype=bool)),
    )  # fmt: skip
    found = problems.prepare(problem, 3, 4, partitioner="range")
    assert (found.topology.num_dst == 0).any()
    for model in SIX:
        expected = training.train_reference(model, problem, 3)
        for strategy in STRATEGIES:
            options = {"optimizer": training.sgd, "dtype": torch.float64, "strategy": strategy}
            trainer = hongtu.Trainer(found, model.build(problem), **options, device_memory="1MiB")
            training.assert_same(training.train(trainer, 3), expected, 1e-9)


def test_an_artifact_path_will_do():
    trainer = hongtu.Trainer(str(artifact().path), gcn())
    assert trainer.predict().shape == (64, 3)


def test_more_columns_than_classes_are_fine():
    trainer = hongtu.Trainer(artifact(), [hnn.GCNConv(6, 5)])
    trainer.train_epoch()
    assert trainer.predict().shape == (64, 5)


def test_a_layer_object_used_twice_shares_its_parameters():
    """[in, shared, shared, out] equals the same model with two copies whose gradients are added."""

    def layers(copies):
        torch.manual_seed(0)
        first, shared, last = hnn.GCNConv(6, H), hnn.GATConv(H, H), hnn.SAGEConv(H, 3)
        return [first, shared, nn.Tanh(), copy.deepcopy(shared) if copies else shared, last]

    for strategy in STRATEGIES:
        options = {"strategy": strategy, "dtype": torch.float64, "optimizer": training.sgd}
        once, twice = (hongtu.Trainer(artifact(), layers(copies), **options) for copies in (False, True))
        assert once.train_epoch().loss == pytest.approx(twice.train_epoch().loss, rel=1e-12)
        both = twice.gradients()["1.lin.weight"] + twice.gradients()["3.lin.weight"]
        torch.testing.assert_close(once.gradients()["1.lin.weight"], both, rtol=1e-10, atol=1e-12)


def test_the_callers_default_dtype_does_not_matter():
    expected = losses_of(dropout_trainer().fit(2))
    states = dropout_trainer().model.state_dict()
    torch.set_default_dtype(torch.float16)
    try:
        trainer = dropout_trainer(device_memory="1MiB")
        trainer.model.load_state_dict(states)
        assert losses_of(trainer.fit(2)) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_same_seed_gives_the_same_run_bit_for_bit():
    first, second = (losses_of(dropout_trainer(dtype=torch.float32).fit(4)) for _ in range(2))
    assert first == second
