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


@pytest.mark.every
@pytest.mark.long
@strategies
@pytest.mark.parametrize("model", ROW_WISE, ids=repr)
def test_row_wise_modules_between_layers(model, strategy):
    check(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest")


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(H, H), nn.BatchNorm1d(H)),
        nn.InstanceNorm1d(H, track_running_stats=True),
        nn.LazyBatchNorm1d(),
        pyg.InstanceNorm(H),
        pyg.DiffGroupNorm(H, 2),
        hnn.GINConv(pyg.MLP([H, H, H])),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_mix_rows_are_refused(module):
    layers = [hnn.GCNConv(6, H), module, hnn.GCNConv(H, 3)]
    with pytest.raises(InputError, match=r"layers\[1\].*(use |the modules around it|can stand there)"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers)


@pytest.mark.filterwarnings("ignore:input's size at dim=0 does not match num_features")
def test_normalisations_of_instances_are_of_rows():
    """torch takes [rows, columns] for one instance of so many channels, each normalised by itself."""

    def modules(convolution):
        return lambda f, c: [convolution(f, H), nn.InstanceNorm1d(H), convolution(H, c)]

    check(Model("instance-norm", modules(hnn.GCNConv), modules(pyg.GCNConv)), problems.awkward(), (2, 3))


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


@pytest.mark.parametrize(
    "function",
    [
        lambda h: h + h[0],
        lambda h: h.cumsum(0),
        lambda h: h / h.abs().max(),
        lambda h: h.cummax(0).values,
        lambda h: h + h[1],
        lambda h: h.where(h > h.mean(), 0),
        lambda h: h.clamp(min=h.min() / 2),
        lambda h: nn.functional.batch_norm(h, None, None, training=True),
    ],
    ids=["first", "cumsum", "largest", "cummax", "second", "threshold", "bound", "batch-norm"],
)
def test_rows_that_read_others_are_refused(function):
    class Reads(nn.Module):
        def forward(self, h):
            return function(h)

    with pytest.raises(InputError, match="mixes the rows"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), [hnn.GCNConv(6, H), Reads(), nn.Linear(H, 3)])


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


class Summed(nn.Module):
    """A row is the sum of those before it."""

    def forward(self, h):
        return h.cumsum(0)


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
        lambda: [hnn.GENConv(6, H), hnn.GENConv(H, 3, activation=over_rows)],
    ],
    ids=[
        "in-training",
        "inside-gin",
        "inside-gin-in-training",
        "activation",
        "activation-of-sage",
        "activation-of-gat",
        "behind-a-norm-inside-gen",
    ],
)
def test_rows_mixed_anywhere_are_refused(layers):
    with pytest.raises(InputError, match=r"layers\[[01]\].* mixes the rows"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers())


P = problems.EDGE_COLUMNS


class Plain(hnn.Layer):
    """A layer of one's own with a plain forward: a module on the rows of sources, another on those of destinations."""

    def __init__(self, of_sources, of_destinations):
        super().__init__()
        self.of_sources, self.of_destinations, self.lin = of_sources, of_destinations, nn.Linear(6, 3)

    def forward(self, block, h):
        return self.of_destinations(block.mean(self.lin(self.of_sources(h))))


class Added(hnn.aggr.Aggregation):
    """A sum of one's own, and a module on its rows."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, block, x, weighted=False):
        return self.module(block.sum(x))


def genconv(module):
    layer = hnn.GENConv(6, 3, norm=None, edge_dim=P)
    layer.lin_edge = nn.Sequential(nn.Linear(P, 3), module)
    return layer


AGGREGATES = {
    "nnconv": lambda module: hnn.NNConv(6, 3, nn.Sequential(nn.Linear(P, 18), module)),
    "genconv": genconv,
    "pna": lambda module: hnn.PNAConv(
        6, 3, ["mean", "std"], ["identity"], torch.tensor([1, 1, 1]), edge_dim=P, pre_layers=2, act=module
    ),
    "pyg-gin": lambda module: hnn.PyGLayer(pyg.GINConv(nn.Sequential(nn.Linear(6, 3), module))),
    "own-aggregation": lambda module: hnn.SAGEConv(6, 3, aggr=Added(module)),
    "plain-sources": lambda module: Plain(module, nn.Identity()),
    "plain-destinations": lambda module: Plain(nn.Identity(), module),
}
aggregates = pytest.mark.parametrize("make", AGGREGATES.values(), ids=AGGREGATES)


@aggregates
@pytest.mark.parametrize("module", [nn.Softmax(0), Centred(), Summed()], ids=["softmax", "in-training", "cumsum"])
def test_rows_mixed_in_an_aggregate_are_refused(make, module):
    with pytest.raises(InputError, match=r"layers\[1\] \(.* mixes the rows"):
        hongtu.Trainer(problems.prepare(problems.edge_data(), 1, 1), [nn.Linear(6, 6), make(module)])


@aggregates
@pytest.mark.parametrize("module", [nn.Softmax(1), nn.Dropout(0.5), Noisy()], ids=["softmax", "dropout", "noise"])
def test_rows_treated_alone_in_an_aggregate_are_taken(make, module):
    hongtu.Trainer(problems.prepare(problems.edge_data(), 1, 1), [nn.Linear(6, 6), make(module)])


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
