"""Modules and layers that change their input in place, as torch allows on the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from tests import models, problems
from tests.models import H, Model
from tests.training import STRATEGIES, check

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


def in_place(convolution, wrap):
    """ReLU in place on the input features, right behind an aggregate, and on the output."""

    def modules(f, c):
        relu = nn.ReLU(inplace=wrap)
        return [relu, convolution(nn.Linear(f, H)), relu, convolution(nn.Linear(H, c)), nn.ReLU(inplace=wrap)]

    return modules


@strategies
def test_in_place_modules_on_features_and_aggregates(strategy):
    """GINConv hands its input on as z: the ReLU before it must not be lost."""
    model = Model("in-place", in_place(hnn.GINConv, True), in_place(pyg.GINConv, False))
    check(model, problems.awkward(), (2, 3), strategy=strategy)


class AggregateOnly(hnn.Layer):
    """z is the input and the aggregate is the output."""

    reduce = "sum"

    def transform(self, h):
        return h, None


class AggregateOnlyReference(nn.Module):
    def forward(self, h, edge_index):
        return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])


@strategies
def test_in_place_module_behind_a_bare_aggregate(strategy):
    def modules(layer, inplace):
        return lambda f, c: [layer(), nn.ReLU(inplace=inplace), nn.Linear(f, c), layer(), nn.ELU(inplace=inplace)]

    model = Model("bare", modules(AggregateOnly, True), modules(AggregateOnlyReference, False))
    check(model, problems.awkward(), (2, 3), strategy=strategy)


class InPlace(hnn.Layer):
    """Every method works in place on what it is given."""

    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce
        self.lin = nn.Linear(6, 6)

    def transform(self, h):
        h.mul_(2.0)
        return h, h.clone()

    def aggregate(self, block, z, s):
        if self.reduce:
            return super().aggregate(block, z, s)
        z.mul_(3.0)
        s.add_(1.0)
        return block.sum(z) + s

    def update(self, a, s):
        a += 1.0
        s.mul_(0.5)
        return self.lin(a.relu_() + s)


class OutOfPlace(InPlace):
    """The same, without touching its inputs."""

    def transform(self, h):
        return h * 2.0, h * 2.0

    def aggregate(self, block, z, s):
        if self.reduce:
            return hnn.Layer.aggregate(self, block, z, s)
        return block.sum(z * 3.0) + (s + 1.0)

    def update(self, a, s):
        s = s if self.reduce else s + 0.0
        return self.lin((a + 1.0).relu() + s * 0.5)


@strategies
@pytest.mark.parametrize("reduce", ["sum", None])
def test_layers_that_work_in_place(strategy, reduce):
    def run(kind):
        torch.manual_seed(0)
        layers = [kind(reduce), nn.Linear(6, 6), kind(reduce), hnn.GCNConv(6, 3)]
        artifact = problems.prepare(problems.awkward(), 2, 3)
        trainer = hongtu.Trainer(artifact, layers, strategy=strategy, dtype=torch.float64)
        return trainer.train_epoch().loss, trainer.gradients()

    loss, gradients = run(InPlace)
    expected_loss, expected = run(OutOfPlace)
    if reduce:  # in-place changes of s inside aggregate are its own
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-9, atol=1e-12)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


class Careless(hnn.Layer):
    """SAGE-like, of a user who changes every input in place, as torch allows on the whole graph."""

    reduce = "mean"

    def __init__(self, columns_in, columns_out):
        super().__init__()
        self.lin = nn.Linear(columns_in, columns_out)

    def transform(self, h):
        h.sub_(0.1)
        return h, h

    def update(self, a, s):
        return self.lin(a.mul_(0.5).add_(s.mul_(2.0)))


class Careful(nn.Module):
    """The same on the whole graph, and nothing in place."""

    def __init__(self, columns_in, columns_out):
        super().__init__()
        self.lin = nn.Linear(columns_in, columns_out)

    def forward(self, h, edge_index):
        h = h - 0.1
        source, destination = edge_index
        degree = torch.bincount(destination, minlength=len(h)).clamp(min=1).to(h.dtype)
        mean = torch.zeros_like(h).index_add(0, destination, h[source]) / degree.unsqueeze(1)
        return self.lin(0.5 * mean + 2.0 * h)


class Halve(nn.Module):
    def forward(self, h):
        return h.mul_(0.5)


CARELESS = Model(
    "careless",
    lambda f, c: [
        Halve(), Careless(f, H), Halve(), nn.SELU(inplace=True), nn.Linear(H, H), Careless(H, H), Careless(H, c),
    ],
    lambda f, c: [
        models.Rowwise(lambda h: 0.5 * h), Careful(f, H), models.Rowwise(lambda h: 0.5 * h), nn.SELU(),
        nn.Linear(H, H), Careful(H, H), Careful(H, c),
    ],
)  # fmt: skip


@strategies
@pytest.mark.parametrize("budget", [None, "smallest"])
def test_a_users_layer_may_change_its_inputs_in_place(strategy, budget):
    """They are kept for backward, read by other chunks, or the constant features."""
    trainer = check(CARELESS, problems.awkward(), (2, 3), epochs=3, strategy=strategy, device_memory=budget)
    before = trainer.predict()
    np.testing.assert_array_equal(trainer.predict(), before)


class Doubled(nn.Module):
    def forward(self, h):
        return h.mul_(2.0)


@strategies
@pytest.mark.parametrize("budget", [None, "smallest"])
def test_what_autograd_saved_is_left_alone(strategy, budget):
    """What the gradients of Tanh and ReLU need, whose change torch refuses on the whole graph: a copy is changed."""

    def modules(convolution, double, elu):
        return lambda f, c: [convolution(f, H), nn.Tanh(), double, nn.ReLU(), elu, convolution(H, c)]

    model = Model(
        "saved",
        modules(hnn.GCNConv, Doubled(), nn.ELU(inplace=True)),
        modules(pyg.GCNConv, models.Rowwise(lambda h: 2.0 * h), nn.ELU()),
    )
    check(model, problems.awkward(), (2, 3), epochs=2, strategy=strategy, device_memory=budget)


class ChangesWhatItSaved(hnn.Layer):
    reduce = "sum"

    def __init__(self, columns_in, columns_out):
        super().__init__()
        self.lin = nn.Linear(columns_in, columns_out)

    def update(self, a, s):
        return torch.tanh(self.lin(a)).mul_(2.0)


@strategies
def test_a_layer_that_changes_what_it_saved_is_refused_as_by_torch(strategy):
    """Also where what it saved is kept until backward, and torch itself looks away."""
    layers = [ChangesWhatItSaved(6, H), hnn.GCNConv(H, 3)]
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers, strategy=strategy)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trainer.train_epoch()
