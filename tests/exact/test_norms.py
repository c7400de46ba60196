"""Whole-graph normalisations and their running statistics: exact against torch's and torch_geometric's."""

from __future__ import annotations

import copy
import dataclasses
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.device.simulated import SimulatedBackend
from hongtu.errors import InputError
from hongtu.model.embedding import NAME
from hongtu.nn.whole_graph import Moments
from hongtu.plan.passes.strategy import Strategy
from tests import additions, graphs, problems, staged, training
from tests.models import H, Model
from tests.training import GRAINS, NOTHING, SINGLE, STRATEGIES, SWITCHES, check

grains = pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


MODELS = additions.NORMS


@pytest.mark.long
def test_modules_of_torch_geometric_stand_for_themselves():
    """The lists hold the same kinds of modules but for the convolutions; state_dict keys are theirs."""

    def everywhere(lib, f, c):
        return [
            pyg.GraphNorm(f), lib.GCNConv(f, 4), pyg.PairNorm(), pyg.BatchNorm(4), nn.ELU(), lib.SAGEConv(4, c),
            pyg.LayerNorm(c),
        ]  # fmt: skip

    model = additions.of(everywhere, "theirs")
    trainer = check(model, problems.directed_weighted(), (2, 3), device_memory="smallest", epochs=2)
    assert isinstance(trainer.model[0], pyg.GraphNorm)


SEVERAL = {  # values of several dimensions in a row, by the norm
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), lambda norm, h: norm(h.view(-1, 4, 2)).flatten(1)),
    "transposed": (lambda: nn.BatchNorm1d(2), lambda norm, h: norm(h.view(-1, 4, 2).transpose(1, 2)).flatten(1)),
    "one column": (lambda: nn.BatchNorm1d(8), lambda norm, h: norm(h.unsqueeze(2)).squeeze(2)),
    "one channel": (lambda: nn.BatchNorm1d(1), lambda norm, h: norm(h.unsqueeze(1)).squeeze(1)),
    "no running": (
        lambda: nn.BatchNorm1d(4, track_running_stats=False), lambda norm, h: norm(h.view(-1, 4, 2)).flatten(1)
    ),
    "mean of epochs": (
        lambda: nn.BatchNorm1d(2, momentum=None, affine=False), lambda norm, h: norm(h.view(-1, 2, 4)).flatten(1)
    ),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), lambda norm, h: norm(h.view(-1, 2, 2, 2)).flatten(1)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), lambda norm, h: norm(h.view(-1, 2, 2, 1, 2)).flatten(1)),
    "torch_geometric's": (lambda: pyg.BatchNorm(4), lambda norm, h: norm(h.view(-1, 4, 2)).flatten(1)),
}  # fmt: skip


class Several(nn.Module):
    def __init__(self, features, classes, norm, call):
        super().__init__()
        self.first, self.last, self.norm, self.call = pyg.SAGEConv(features, 8), pyg.SAGEConv(8, classes), norm, call

    def forward(self, x, edge_index):
        return self.last(self.call(self.norm, self.first(x, edge_index)).relu(), edge_index)


@pytest.mark.parametrize("name", SEVERAL)
def test_channels_of_values_of_several_dimensions(name):
    make, call = SEVERAL[name]
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    model = Several(problem.width, problem.classes, make(), call).double()
    trainer = hongtu.Trainer(
        problems.prepare(problem, 2, 3), hongtu.from_pyg(copy.deepcopy(model)), optimizer=training.sgd,
        dtype=torch.float64,
    )  # fmt: skip
    for loss in training.plain_losses(model, problem):
        assert trainer.train_epoch().loss == pytest.approx(loss, rel=1e-9)
    x = torch.from_numpy(problem.features).double()
    with torch.no_grad():
        expected = model.eval()(x, problem.edge_index)
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "norm", [pyg.GraphNorm(2), pyg.PairNorm(), pyg.LayerNorm(2)], ids=lambda norm: type(norm).__name__
)
def test_other_norms_name_what_takes_several_dimensions(norm):
    problem = problems.awkward()
    model = Several(problem.width, problem.classes, norm, lambda norm, h: norm(h.view(-1, 4, 2)).flatten(1))
    with pytest.raises(
        InputError, match=r"Norm is called with values \[rows, ...\] of shape .* takes \[rows, channels"
    ):
        hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model))


def test_rows_of_several_channels_are_one_row_each():
    problem = problems.awkward()
    model = Several(
        problem.width, problem.classes, nn.BatchNorm1d(4), lambda norm, h: norm(h.view(-1, 4)).view(-1, 8)
    )  # fmt: skip
    with pytest.raises(InputError, match=r"a row for each, as \[rows, channels, columns\] where a row holds several"):
        hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model))


OPTIONS = (
    {"momentum": None},
    {"momentum": 0.7, "eps": 0.1},
    {"affine": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_batch_norm(options):
    def modules(first, second):
        return lambda f, c: [first(f, H), nn.BatchNorm1d(H, **options), nn.Tanh(), second(H, c)]

    model = Model("options", modules(hnn.GATConv, hnn.GCNConv), modules(pyg.GATConv, pyg.GCNConv))
    trainer = check(model, problems.awkward(), (2, 3), epochs=3)
    check_evaluation(model, trainer, problems.awkward(), 4)


def check_evaluation(model, trainer, problem, epochs):
    """Predictions after so many epochs are the reference's in evaluation mode, and change nothing."""
    trainer.fit(epochs - trainer.epoch, eval_every=1)
    reference = model.build_reference(problem)
    optimizer = training.sgd(reference.parameters())
    mask = torch.from_numpy(problem.masks["train"])
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model.run_reference(reference, problem)[mask]
        nn.functional.cross_entropy(out, torch.from_numpy(problem.labels)[mask]).backward()
        optimizer.step()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(before[name], value, rtol=1e-9, atol=1e-9)
    expected = model.run_reference(reference.eval(), problem)
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def frozen(modules):
    """The first normalisation evaluates while the rest trains; the parameters of the second do not train."""
    norms = [module for module in modules if "Norm" in type(module).__name__]
    norms[0].eval()
    for parameter in norms[1].parameters():
        parameter.requires_grad_(False)
    return modules


@pytest.mark.long
def test_frozen_normalisations():
    model = Model("frozen", *(lambda f, c, of=of: frozen(of(f, c)) for of in (MODELS[0].layers, MODELS[0].reference)))
    for strategy in STRATEGIES:
        trainer = check(model, problems.awkward(), (1, 7), strategy=strategy, epochs=3)
        trainer.evaluate()
        assert [module.training for module in trainer.model] == [True, False, True, True, True, True, True]
        check_evaluation(model, trainer, problems.awkward(), 4)


def test_normalisation_that_is_frozen_later():
    """Nothing of the statistics of the epochs before is left."""
    problem, model = problems.awkward(), MODELS[0]
    trainer = training.make_trainer(model, problem, (2, 3))
    reference = model.build_reference(problem)
    optimizer = training.sgd(reference.parameters())
    mask = torch.from_numpy(problem.masks["train"])
    for epoch in range(4):
        for modules in (trainer.model, reference):
            modules[1].train(epoch not in (1, 2))
        optimizer.zero_grad()
        out = model.run_reference(reference, problem)[mask]
        nn.functional.cross_entropy(out, torch.from_numpy(problem.labels)[mask]).backward()
        gradients = {name: p.grad.clone() for name, p in reference.named_parameters()}
        optimizer.step()
        trainer.train_epoch()
        for name, gradient in gradients.items():
            torch.testing.assert_close(trainer.gradients()[name], gradient, rtol=1e-9, atol=1e-9)
    assert trainer.model[1].num_batches_tracked == reference[1].num_batches_tracked == 2


def test_a_model_that_evaluates_as_a_whole_trains():
    problem = problems.awkward()
    layers = [layer.eval() for layer in MODELS[0].build(problem)]
    trainer = hongtu.Trainer(problems.prepare(problem, 1, 7), layers, dtype=torch.float64)
    trainer.train_epoch()
    trainer.model.eval()
    trainer.train_epoch()
    assert trainer.model[1].num_batches_tracked == 2


@pytest.mark.most(3)
@pytest.mark.long
@pytest.mark.parametrize("name", SWITCHES)
def test_savings(name):
    """Each alone, and all but one; what follows the last normalisation is pruned."""
    for strategy in (replace(NOTHING, **{name: True}), replace(Strategy(), **{name: False})):
        trainer = check(MODELS[0], problems.few_train(), (2, 3), strategy=strategy, device_memory="64KiB", epochs=2)
        hops = {p.layer: p.hops for p in trainer.plan.passes.train}
        above = {3: 1, 4: 0} if strategy.prune else {}
        assert hops == dict.fromkeys(hops) | above
    check(MODELS[1], problems.few_train(), (2, 3), strategy=strategy, epochs=2)


@pytest.mark.long
def test_chunks_of_one_vertex():
    problem = problems.problem_of(graphs.Graph("twelve", np.random.default_rng(3).integers(0, 12, (2, 40)), None, 12))
    for grain, model in zip(((1, 12), (4, 3), (2, 6)), MODELS, strict=True):
        check(model, problem, grain, epochs=2, device_memory="smallest")


def test_one_vertex_is_refused_as_torch_does():
    artifact = hongtu.preprocess_graph(
        np.zeros((2, 1), dtype=np.int64), 1, problems.new_path(), features=np.ones((1, 3), np.float32),
        labels=np.zeros(1, np.int64), masks={"train": np.ones(1, bool)}, partitions=1, chunks=1,
    )  # fmt: skip
    for norm in (nn.BatchNorm1d(3), pyg.BatchNorm(3)):
        with pytest.raises(InputError, match=r"layers\[0\] \(BatchNorm.*more than 1 vertex"):
            hongtu.Trainer(artifact, [norm, hnn.GCNConv(3, 2)])
    layers = [hnn.BatchNorm(3, allow_single_element=True), hnn.GraphNorm(3), hnn.GCNConv(3, 2)]
    trainer = hongtu.Trainer(artifact, layers)
    trainer.fit(2, eval_every=1)
    assert trainer.model[0].module.num_batches_tracked == 0


@functools.cache
def large_means():
    problem = problems.awkward()
    return dataclasses.replace(problem, features=problem.features + np.float32(1e4))


@pytest.mark.long
def test_single_precision():
    """Also where the mean is 10,000 times the deviation: as exact as what float32 holds of the rows."""
    check(MODELS[0], problems.awkward(), (2, 3), tolerance=SINGLE, dtype=torch.float32, device_memory="smallest")
    model = Model(
        "large",
        lambda f, c: [nn.BatchNorm1d(f), hnn.SAGEConv(f, c)],
        lambda f, c: [nn.BatchNorm1d(f), pyg.SAGEConv(f, c)],
    )
    for grain in ((1, 1), (4, 8)):
        check(model, large_means(), grain, tolerance=SINGLE, dtype=torch.float32, epochs=2)


def test_moments_of_uneven_parts():
    rows = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e-3, 0.0]) + 3e3
    parts = [Moments(torch.zeros(2, 3, dtype=torch.float64)) for _ in range(4)]
    for part, chunk in zip(np.random.default_rng(0).integers(0, 3, 50), rows.tensor_split(50), strict=True):
        parts[part].add(chunk)
    mean, var = Moments.combine(parts).statistics
    torch.testing.assert_close(mean, rows.double().mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(var, rows.double().var(0, correction=0), rtol=1e-6, atol=1e-12)


def test_learned_features_are_normalised():
    """What comes back to embeddings by way of the statistics."""
    problem = problems.awkward()
    artifact = hongtu.preprocess_graph(
        problem.edges, problem.num_vertices, problems.new_path(), features="embedding:4", labels=problem.labels,
        masks=problem.masks, partitions=2, chunks=3,
    )  # fmt: skip
    for budget in (None, "1MiB"):
        torch.manual_seed(0)
        norm, conv = nn.BatchNorm1d(4), hnn.SAGEConv(4, 3)
        trainer = hongtu.Trainer(
            artifact, [norm, conv], optimizer=training.sgd, dtype=torch.float64, device_memory=budget
        )
        rows = trainer.embedding.ordered(trainer.embedding.weight).detach().clone().requires_grad_()
        twin = pyg.SAGEConv(4, 3).double()
        twin.load_state_dict(conv.state_dict())
        out = twin(nn.functional.batch_norm(rows, None, None, norm.weight, norm.bias, True), problem.edge_index)
        mask = torch.from_numpy(problem.masks["train"])
        nn.functional.cross_entropy(out[mask], torch.from_numpy(problem.labels)[mask]).backward()
        trainer.train_epoch()
        torch.testing.assert_close(trainer.gradients()[NAME], rows.grad, rtol=1e-9, atol=1e-12)


def test_multi_label_and_dropout_around():
    """Masks are the rows' own, so any chunks give what one chunk gives."""

    def layers():
        torch.manual_seed(0)
        return [
            hnn.Dropout(0.3), hnn.SAGEConv(6, H), hnn.Dropout(0.2), nn.BatchNorm1d(H), nn.ReLU(), hnn.Dropout(0.4),
            hnn.GCNConv(H, 4), hnn.GraphNorm(4),
        ]  # fmt: skip

    options = {"loss": "bce_with_logits", "optimizer": training.sgd, "dtype": torch.float64}
    whole, *others = (
        training.train(hongtu.Trainer(problems.prepare(problems.multi_label(), *grain), layers(), **options), 3)
        for grain in ((1, 1), (1, 7), (4, 8))
    )
    for other in others:
        training.assert_same(other, whole, 1e-9)


def test_a_resumed_run_has_the_same_statistics(tmp_path):
    problem = problems.awkward()
    through = training.make_trainer(MODELS[0], problem, (2, 3))
    through.fit(4, eval_every=1)
    first = training.make_trainer(MODELS[0], problem, (2, 3))
    first.fit(2, eval_every=1)
    first.save(tmp_path / "snapshot")
    second = training.make_trainer(MODELS[0], problem, (2, 3))
    second.load(tmp_path / "snapshot")
    second.fit(2, eval_every=1)
    for name, value in through.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


@pytest.mark.long
def test_staged_devices():
    """CUDA's engine on the CPU, several GPUs with a network each."""
    for gpus, model in ((1, MODELS[1]), (3, MODELS[0]), (2, MODELS[2])):
        staged.check(
            model, problems.awkward(), (3, 2), device=SimulatedBackend(gpus, seed=gpus), device_memory="smallest"
        )


def test_a_normalisation_of_ones_own_by_itself():
    x = torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(additions.Standardised()(x), additions.StandardisedWhole()(x))


class ResidualBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        return x + super().forward(x)


class ResidualGraphNorm(hnn.GraphNorm):
    def forward(self, x):
        return x + super().forward(x)


class TheirGraphNorm(pyg.GraphNorm):
    """As it is, by another name."""


def hooked(module):
    module.register_forward_hook(lambda module, given, out: 2 * out)
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (ResidualBatchNorm(H), "its own forward would not run"),
        (ResidualGraphNorm(H), "its own forward would not run"),
        (TheirGraphNorm(H), "use hongtu.nn.BatchNorm, GraphNorm"),
        (hooked(nn.BatchNorm1d(H)), "it has hooks"),
        (hooked(hnn.SAGEConv(H, H)), "it has hooks"),
    ],
    ids=["batch", "graph", "theirs", "hook", "layer-hook"],
)
def test_what_would_not_run_is_refused(module, message):
    problem = problems.awkward()
    layers = [hnn.SAGEConv(problem.width, H), module, hnn.SAGEConv(H, problem.classes)]
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(problems.prepare(problem), layers)


class Renamed(nn.BatchNorm1d):
    """A subclass that computes the same."""


def test_a_subclass_that_changes_nothing_is_taken():
    problem = problems.awkward()
    layers = [hnn.SAGEConv(problem.width, H), Renamed(H), hnn.LayerNorm(H), hnn.SAGEConv(H, problem.classes)]
    hongtu.Trainer(problems.prepare(problem), layers).train_epoch()
