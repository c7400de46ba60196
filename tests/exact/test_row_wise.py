"""Row-wise modules in the layer list and losses of one's own: exact, or refused where they mix rows."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from tests import problems
from tests.models import SIX, H, Model
from tests.training import STRATEGIES, check

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


def squared_distance(out, target):
    """A loss of one's own: per vertex, the squared distance to the one-hot target."""
    return (out.softmax(1) - nn.functional.one_hot(target, out.shape[1])).square().sum(1)


BCE = Model("bce", SIX[0].layers, SIX[0].reference, torch.relu, loss="bce_with_logits")
CALLABLE = Model("callable", SIX[0].layers, SIX[0].reference, torch.relu, loss=squared_distance)


@strategies
def test_multi_label(strategy):
    check(BCE, problems.multi_label(), (2, 3), strategy=strategy, device_memory="smallest")


@strategies
def test_callable_loss(strategy):
    check(CALLABLE, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest")


def rows_between(first, second):
    """[Linear, first, LayerNorm, ReLU in place, Linear, Sequential, second, LayerNorm, Linear]."""

    def modules(f, c):
        return [
            nn.Linear(f, 7), first(7, H), nn.LayerNorm(H), nn.ReLU(inplace=True), nn.Linear(H, 6),
            nn.Sequential(nn.LayerNorm(6), nn.Tanh()), second(6, H), nn.LayerNorm(H), nn.Linear(H, c),
        ]  # fmt: skip

    return modules


ROW_WISE = (
    Model("gcn", rows_between(hnn.GCNConv, hnn.GCNConv), rows_between(pyg.GCNConv, pyg.GCNConv)),
    Model("sage-gat", rows_between(hnn.SAGEConv, hnn.GATConv), rows_between(pyg.SAGEConv, pyg.GATConv)),
    Model("ggcn-sage", rows_between(hnn.GGCNConv, hnn.SAGEConv), rows_between(pyg.ResGatedGraphConv, pyg.SAGEConv)),
)


@strategies
@pytest.mark.parametrize("model", ROW_WISE, ids=repr)
def test_row_wise_modules_between_layers(model, strategy):
    check(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest")


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(H, H), nn.BatchNorm1d(H)),
        nn.InstanceNorm1d(H),
        nn.LazyBatchNorm1d(),
        pyg.InstanceNorm(H),
        pyg.DiffGroupNorm(H, 2),
        hnn.GINConv(pyg.MLP([H, H, H])),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_mix_rows_are_refused(module):
    layers = [hnn.GCNConv(6, H), module, hnn.GCNConv(H, 3)]
    with pytest.raises(InputError, match=r"layers\[1\].*(use |the modules around it)"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers)


@strategies
def test_torch_geometric_layer_norm_by_row(strategy):
    def modules(convolution):
        return lambda f, c: [convolution(f, H), pyg.LayerNorm(H, mode="node"), convolution(H, c)]

    model = Model("pyg-layer-norm", modules(hnn.GCNConv), modules(pyg.GCNConv))
    check(model, problems.awkward(), (2, 3), strategy=strategy)


def test_a_bare_torch_geometric_convolution_is_refused():
    layers = [pyg.GCNConv(6, H), hnn.GCNConv(H, 3)]
    with pytest.raises(InputError, match="PyGLayer"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers)


class Counting(nn.Module):
    """A row-wise module with running state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, h):
        self.runs += self.training
        return h * (1 + self.runs)


class Centred(nn.Module):
    """Mixes rows in training alone."""

    def forward(self, h):
        return h - h.mean(0) if self.training else h


class Noisy(nn.Module):
    """Row by row, with random numbers of torch's."""

    def forward(self, h):
        return h + 0.1 * torch.randn_like(h) if self.training else h


over_rows = partial(torch.softmax, dim=0)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [hnn.GCNConv(6, H), Centred(), hnn.GCNConv(H, 3)],
        lambda: [hnn.GINConv(nn.Sequential(nn.Linear(6, H), nn.Softmax(dim=0))), hnn.GCNConv(H, 3)],
        lambda: [hnn.GINConv(nn.Sequential(nn.Linear(6, H), Centred())), hnn.GCNConv(H, 3)],
        lambda: [hnn.GCNConv(6, H, activation=over_rows), hnn.GCNConv(H, 3)],
        lambda: [hnn.SAGEConv(6, H, activation=over_rows), hnn.GCNConv(H, 3)],
        lambda: [hnn.GATConv(6, H), hnn.GATConv(H, 3, activation=over_rows)],
    ],
    ids=[
        "in-training",
        "inside-gin",
        "inside-gin-in-training",
        "activation",
        "activation-of-sage",
        "activation-of-gat",
    ],
)
def test_rows_mixed_anywhere_are_refused(layers):
    with pytest.raises(InputError, match=r"layers\[[01]\].* mixes the rows"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers())


def test_random_numbers_of_a_module_are_no_mixing_of_rows():
    layers = [hnn.GINConv(nn.Sequential(nn.Linear(6, H), nn.Dropout(0.5), Noisy())), Noisy(), hnn.GCNConv(H, 3)]
    hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers)


@pytest.mark.parametrize(
    ("module", "why"),
    [(nn.Softmax(dim=0), "mixes the rows"), (Counting(), "buffer '1.runs' changes")],
    ids=["softmax-over-rows", "running-state"],
)
def test_modules_that_depend_on_the_chunk_are_refused(module, why):
    with pytest.raises(InputError, match=why):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), [hnn.GCNConv(6, H), module, hnn.GCNConv(H, 3)])


def test_spectral_norm_inside_a_layer_is_refused():
    layers = [hnn.GINConv(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)))]
    with pytest.raises(InputError, match=r"layers\[0\].*buffer"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers)
