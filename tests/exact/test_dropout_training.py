"""Dropout in training: one mask for every cut of the graph, and the same in recomputation as in forward."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.utils import add_self_loops

import hongtu
from hongtu import nn as hnn
from hongtu.nn.message_dropout import Edges
from hongtu.plan.passes.strategy import Strategy
from tests import problems, training
from tests.models import H, Model
from tests.ranks.turns import run_ranks
from tests.training import GRID, STRATEGIES

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


class Sends(pyg.MessagePassing):
    """Somebody's own, which drops numbers of messages by a function and by a module."""

    def __init__(self, f, c):
        super().__init__(aggr="add")
        self.lin, self.dropout = nn.Linear(f, c), nn.Dropout(0.3)

    def forward(self, x: tuple[torch.Tensor, torch.Tensor], edge_index):
        size = len(x[0]), len(x[1])
        return self.propagate(edge_index, x=(self.lin(x[0]), None), size=size) + self.lin(x[1])

    def message(self, x_j):
        return self.dropout(torch.tanh(nn.functional.dropout(x_j, 0.4, self.training)))


class Loops(pyg.MessagePassing):
    """As the GCN of torch_geometric's tutorial, which adds self-loops beside those that there are; drops in place, and
    rows of destinations, and keeps how many messages there were."""

    def __init__(self, f, c):
        super().__init__(aggr="add")
        self.lin, self.dropout = nn.Linear(f, c), nn.Dropout(0.3, inplace=True)

    def forward(self, x, edge_index):
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j):
        self.messages = len(x_j)
        return self.dropout(2 * x_j)


class Updates(Sends):
    def message(self, x_j):
        return x_j

    def update(self, out):
        return self.dropout(out)


def some_dropped(f, c):
    return nn.Sequential(nn.Linear(f, c), nn.Dropout(0.4), nn.Tanh())


# Dropout at the input of a layer, as a module of its own, inside a layer's module and on attention.
MODELS = (
    Model(
        "gcn",
        lambda f, c: [hnn.GCNConv(f, H, activation="relu", input_dropout=0.5), hnn.Dropout(0.5), hnn.GCNConv(H, c)],
        lambda f, c: [],
    ),
    Model(
        "sage",
        lambda f, c: [hnn.SAGEConv(f, H, activation="relu", input_dropout=0.5), hnn.SAGEConv(H, c, input_dropout=0.5)],
        lambda f, c: [],
    ),
    Model(
        "gin",
        lambda f, c: [
            hnn.Dropout(0.5),
            hnn.GINConv(nn.Sequential(nn.Linear(f, H), hnn.Dropout(0.5), nn.ReLU())),
            hnn.GINConv(nn.Linear(H, c), input_dropout=0.5),
        ],
        lambda f, c: [],
    ),
    Model(
        "commnet",
        lambda f, c: [hnn.CommNetConv(f, H, activation="relu", input_dropout=0.5), hnn.CommNetConv(H, c)],
        lambda f, c: [],
    ),
    Model(
        "gat",
        lambda f, c: [
            hnn.GATConv(f, H, heads=2, dropout=0.5, activation="elu", input_dropout=0.5),
            hnn.GATConv(2 * H, c, heads=2, concat=False, dropout=0.5, input_dropout=0.5),
        ],
        lambda f, c: [],
    ),
    Model(
        "ggcn",
        lambda f, c: [hnn.GGCNConv(f, H, activation="relu", input_dropout=0.5), hnn.Dropout(0.5), hnn.GGCNConv(H, c)],
        lambda f, c: [],
    ),
    Model(  # torch_geometric's, unchanged: the first adds self-loops
        "messages",
        lambda f, c: [
            hnn.PyGLayer(pyg.GATv2Conv(f, H, heads=2, dropout=0.5)), nn.Tanh(),
            hnn.PyGLayer(pyg.SuperGATConv(2 * H, H, dropout=0.3)), nn.Tanh(),
            hnn.PyGLayer(Sends(H, c)),
        ],
        lambda f, c: [],
    ),
    Model(  # in parts of theirs, which are called with messages, or with destinations
        "parts",
        lambda f, c: [
            hnn.PyGLayer(pyg.EdgeConv(some_dropped(2 * f, H))), hnn.PyGLayer(pyg.GINConv(some_dropped(H, H))),
            hnn.PyGLayer(Loops(H, H)), hnn.PyGLayer(Updates(H, c)),
        ],
        lambda f, c: [],
    ),
)  # fmt: skip
models = pytest.mark.parametrize("model", MODELS, ids=repr)


@functools.cache
def losses(model, grain, strategy, budget, seed=3, epochs=4):
    trainer = training.make_trainer(
        model, problems.awkward(), grain, strategy=strategy, device_memory=budget, seed=seed
    )
    return [trainer.train_epoch().loss for _ in range(epochs)]


@pytest.mark.most(2)
@pytest.mark.long
@models
def test_the_losses_of_every_cut_are_the_same(model):
    """For every (m, n), strategy and budget, to float64 rounding."""
    expected = losses(model, (1, 1), "none", None)
    for grain, strategy in GRID:
        epochs = 2 if grain == (4, 8) else 3
        found = losses(model, grain, strategy, "smallest", epochs=epochs)
        message = f"{grain} {strategy} smallest budget"
        np.testing.assert_allclose(found, expected[:epochs], rtol=1e-10, err_msg=message)
    np.testing.assert_allclose(losses(model, (2, 3), "full", None), expected, rtol=1e-10)


@pytest.mark.parametrize("model", [model for model in MODELS if model.name in ("messages", "parts")], ids=repr)
@pytest.mark.parametrize("dependencies", ["comm", "hybrid"])
def test_ranks_drop_the_same(model, dependencies):
    expected = losses(model, (1, 1), "none", None)

    def work(group):
        options = {"ranks": group, "dependencies": dependencies, "seed": 3}
        trainer = training.make_trainer(model, problems.awkward(), (4, 3), **options)
        np.testing.assert_allclose([trainer.train_epoch().loss for _ in range(4)], expected, rtol=1e-10)

    run_ranks(2, work)


def test_edges_that_a_convolution_has_made():
    """Ids of what it was given, without self-loops, with others, and both; a self-loop last is no edge more."""
    ends = torch.tensor([[1, 2, 0, 0, 3, 1], [0, 1, 1, 2, 2, 1]])
    edges = Edges(ends, torch.arange(6) + 10, torch.tensor([50, 51, 52]))
    kept, loops = ends[:, :5], torch.arange(4).expand(2, -1)
    of_loop = lambda k, number=0: 50 + k + (number << 40)  # noqa: E731
    assert edges.ids_of(ends).tolist() == [10, 11, 12, 13, 14, 15]
    assert edges.ids_of(ends.clone()).tolist() == [10, 11, 12, 13, 14, of_loop(1)]
    assert edges.ids_of(kept).tolist() == [10, 11, 12, 13, 14]
    assert edges.ids_of(torch.cat([kept, loops], 1)).tolist()[:8] == [10, 11, 12, 13, 14, 50, 51, 52]
    of_both = edges.ids_of(torch.cat([ends, loops], 1)).tolist()
    assert of_both[:9] == [10, 11, 12, 13, 14, of_loop(1), 50, of_loop(1, 1), 52]
    assert edges.ids_of(kept[:, 1:]) is None and edges.ids_of(ends.flip(1)) is None
    between = edges._replace(alike=False)
    assert between.ids_of(ends.clone()).tolist() == [10, 11, 12, 13, 14, 15] and between.ids_of(kept) is None


def test_a_convolution_that_drops_keeps_what_it_sets():
    layer = hnn.PyGLayer(Loops(6, 3))
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), [layer])
    before = {*vars(layer.conv)} - {"messages"}
    vars(layer.conv).pop("messages", None)
    trainer.train_epoch()
    assert layer.conv.messages > 0 and {*vars(layer.conv)} - before == {"messages"}


class Remembers(Sends):
    """It keeps a tensor, and the graph behind."""

    def message(self, x_j):
        self.sent = super().message(x_j)
        return self.sent


@pytest.mark.parametrize("conv", [pyg.SuperGATConv, functools.partial(pyg.SuperGATConv, dropout=0.3), Remembers])
def test_what_a_convolution_keeps_takes_no_memory(conv):
    """SuperGATConv keeps what a loss of its own takes."""
    model = Model(
        "keeps", lambda f, c: [nn.Linear(f, H), *(hnn.PyGLayer(conv(H, k)) for k in (H, H, c))], lambda f, c: []
    )
    for grain in ((1, 1), (2, 3)):
        trainer = training.make_trainer(model, problems.awkward(), grain, strategy="paper", device_memory="smallest")
        training.assert_counted(trainer, trainer.train_epoch())
        kept = [x for part in trainer.model.modules() for x in vars(part).values() if isinstance(x, torch.Tensor)]
        assert not kept if conv is not Remembers else all(x.grad_fn is None for x in kept)


@models
def test_masks_change_with_the_epoch_and_with_the_seed(model):
    trainer = training.make_trainer(model, problems.awkward(), optimizer=lambda p: torch.optim.SGD(p, lr=0.0), seed=3)
    first, second = (trainer.train_epoch().loss for _ in range(2))
    assert first != second
    assert losses(model, (1, 1), "none", None, seed=4)[0] != losses(model, (1, 1), "none", None)[0]


@models
def test_no_dropout_in_evaluation(model):
    trainer = training.make_trainer(model, problems.awkward(), (2, 3))
    before = trainer.predict()
    assert torch.equal(before, trainer.predict())
    plain = training.make_trainer(model, problems.awkward(), (2, 3))
    for module in plain.model.modules():
        if isinstance(module, hnn.Dropout | nn.Dropout):
            module.p = 0.0
    torch.testing.assert_close(plain.predict(), before, rtol=1e-12, atol=1e-12)  # its maps may come first
    trainer.train_epoch()
    assert not torch.equal(before, trainer.predict())


def test_evaluation_between_epochs_changes_nothing():
    expected = losses(MODELS[0], (2, 3), "full", None)
    trainer = training.make_trainer(MODELS[0], problems.awkward(), (2, 3), seed=3)
    found = []
    for _ in range(4):
        trainer.evaluate()
        found.append(trainer.train_epoch().loss)
    assert found == expected


FIRST = {
    "gcn": lambda f, c, p: [hnn.GCNConv(f, c, input_dropout=p)],
    "sage": lambda f, c, p: [hnn.SAGEConv(f, c, input_dropout=p)],
    "gin": lambda f, c, p: [hnn.GINConv(nn.Linear(f, c), input_dropout=p)],
    "commnet": lambda f, c, p: [hnn.CommNetConv(f, c, input_dropout=p)],
    "gat": lambda f, c, p: [hnn.GATConv(f, c, input_dropout=p)],
    "ggcn": lambda f, c, p: [hnn.GGCNConv(f, c, input_dropout=p)],
    "dropout-gin": lambda f, c, p: [hnn.Dropout(p), hnn.GINConv(nn.Linear(f, c))],
    "torch-dropout-gin": lambda f, c, p: [nn.Dropout(p), hnn.GINConv(nn.Linear(f, c))],
}


@pytest.mark.every
@strategies
@pytest.mark.parametrize("name", FIRST)
def test_dropout_of_the_features_takes_place(name, strategy):
    """In evaluation such a dropout hands the features on as they are; in training it must not be left out."""
    problem = problems.awkward()
    artifact = problems.prepare(problem, 2, 3)
    blank = problems.prepare(blank_awkward(), 2, 3)
    torch.manual_seed(0)
    state = nn.ModuleList(FIRST[name](problem.width, problem.classes, 0.0)).state_dict()
    found = []
    for p, source in ((1.0, artifact), (0.0, blank), (0.5, artifact), (0.0, artifact)):
        layers = FIRST[name](problem.width, problem.classes, p)
        nn.ModuleList(layers).load_state_dict(state)
        trainer = hongtu.Trainer(source, layers, dtype=torch.float64, optimizer=training.sgd, strategy=strategy)
        found.append(trainer.train_epoch().loss)
    all_dropped, no_features, half_dropped, none_dropped = found
    assert all_dropped == pytest.approx(no_features, rel=1e-12)
    assert len({round(loss, 6) for loss in (all_dropped, half_dropped, none_dropped)}) == 3


@functools.cache
def blank_awkward():
    problem = problems.awkward()
    return dataclasses.replace(problem, features=np.zeros_like(problem.features))


# --------------------------------------------------------------------------- gradients against finite differences
#
# A fresh trainer of the same seed draws the same masks in its first epoch, so its loss is a function of the
# parameters alone.


def first_loss(make, state, grain, strategy):
    layers = make()
    nn.ModuleList(layers).double().load_state_dict(state)
    artifact = problems.prepare(problems.awkward(), *grain)
    trainer = hongtu.Trainer(artifact, layers, optimizer=training.sgd, dtype=torch.float64, strategy=strategy, seed=5)
    return trainer.train_epoch().loss, trainer.gradients()


def check_against_finite_differences(make, grain, strategy, step=1e-5):
    """The derivative along a random direction of all parameters."""
    torch.manual_seed(1)
    state = nn.ModuleList(make()).double().state_dict()
    state = {name: value + 0.1 * torch.randn_like(value) for name, value in state.items()}  # no kink at a zero bias
    _, gradients = first_loss(make, state, grain, strategy)
    largest = max(float(g.abs().max()) for g in gradients.values())
    assert largest > 1e-4
    direction = {name: torch.randn_like(gradient) for name, gradient in gradients.items()}
    shifted = [
        {name: value + sign * step * direction.get(name, 0.0) for name, value in state.items()} for sign in (1, -1)
    ]
    ahead, behind = (first_loss(make, moved, grain, strategy)[0] for moved in shifted)
    slope = sum(float((gradients[name] * direction[name]).sum()) for name in direction)
    assert abs((ahead - behind) / (2 * step) - slope) < 1e-6 * max(1.0, abs(slope))


class Gated(hnn.Layer):
    """Torch's dropout, by module and by function, in all three methods; the aggregate is recomputed in backward."""

    def __init__(self, f, c, aggregate_dropout=0.5):
        super().__init__()
        self.u, self.v, self.w = nn.Linear(f, H), nn.Linear(H, c), nn.Linear(f, c)
        self.aggregate_dropout = aggregate_dropout
        self.dropout = nn.Dropout(0.5)

    def transform(self, h):
        return torch.tanh(self.u(self.dropout(h))), self.w(nn.functional.dropout(h, 0.3, self.training))

    def aggregate(self, block, z, s):
        messages = nn.functional.dropout(block.gather(z), self.aggregate_dropout, self.training)
        return self.v(block.segment_sum(messages)) * torch.sigmoid(block.num_dst * 0 + s)

    def update(self, a, s):
        return self.dropout(torch.tanh(a)) + s


class LinearGated(Gated):
    """The same with a cached aggregate."""

    reduce = "sum"
    aggregate = hnn.Layer.aggregate

    def update(self, a, s):
        return self.dropout(torch.tanh(self.v(a))) + s


class PlainForward(Gated):
    def transform(self, h):
        return h, h

    def update(self, a, s):
        return a

    aggregate = hnn.Layer.aggregate

    def forward(self, block, h):
        h = self.dropout(torch.tanh(self.u(h)))
        return self.dropout(self.v(block.sum(h)))


class DropsWhatItSends(hnn.Layer):
    """transform hands on (dropped h, h): in evaluation both are the same tensor, in training they are not."""

    reduce = "sum"

    def __init__(self, f, c):
        super().__init__()
        self.v, self.w = nn.Linear(f, c), nn.Linear(f, c)
        self.dropout = nn.Dropout(0.5)

    def transform(self, h):
        return self.dropout(h), h

    def update(self, a, s):
        return self.v(a) + self.w(s)


def two(layer):
    def make():
        return [layer(6, 4), nn.Tanh(), nn.Dropout(0.5), layer(4, 3)]

    make.__name__ = layer.__name__
    return make


def pyg_attention():
    return [hnn.PyGLayer(pyg.GATConv(6, H, heads=2, dropout=0.5)), nn.Tanh(), hnn.PyGLayer(pyg.GATConv(2 * H, 3))]


def row_modules_only():
    return [nn.Dropout(0.5), nn.Linear(6, 5), nn.Dropout(0.5), hnn.GINConv(nn.Linear(5, 3)), nn.Dropout(0.3)]


def activation_by_function():
    def dropped(h):
        return nn.functional.dropout(torch.tanh(h), 0.5)

    return [hnn.GCNConv(6, H, activation=dropped), hnn.GATConv(H, 3)]


def hongtu_dropout():
    return [
        hnn.Dropout(0.5), hnn.GINConv(nn.Linear(6, H), input_dropout=0.3), nn.Tanh(),
        hnn.GATConv(H, 4, heads=2, dropout=0.5), hnn.SAGEConv(8, 3, input_dropout=0.5),
    ]  # fmt: skip


MAKERS = (
    two(Gated), two(LinearGated), two(PlainForward), two(DropsWhatItSends), pyg_attention, row_modules_only,
    activation_by_function, hongtu_dropout,
)  # fmt: skip


@pytest.mark.every
@pytest.mark.long
@strategies
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_gradients_match_finite_differences(make, strategy):
    check_against_finite_differences(make, (2, 2), strategy)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_model_with_dropout_can_be_evaluated(make):
    layers = make()
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 2), layers, strategy="paper")
    first = trainer.predict()
    trainer.train_epoch()
    assert first.shape == trainer.predict().shape == (problems.awkward().num_vertices, 3)


class Recorder(hnn.Layer):
    """Not linear; keeps the dropped messages of each call of its aggregate, by first destination."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def transform(self, h):
        return h, None

    def aggregate(self, block, z, s):
        messages = nn.functional.dropout(torch.ones(block.num_edges, z.shape[1], dtype=z.dtype), 0.5, self.training)
        self.seen.append((int(block.first), messages.detach().clone()))
        return block.segment_sum(messages * block.gather(z))


@strategies
def test_forward_and_recomputation_draw_the_same_numbers(strategy):
    layer = Recorder()
    layers = [nn.Linear(6, 3), layer]
    strategy = Strategy(fuse_last_layer=False, save=False) if strategy == "full" else strategy
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers, strategy=strategy)
    layer.seen.clear()
    trainer.train_epoch()
    calls = {}
    for first, mask in layer.seen:
        calls.setdefault(first, []).append(mask)
    assert len(calls) == trainer.plan.schedules[None].size
    for forward, recomputed in calls.values():
        assert torch.equal(forward, recomputed)
    masks = [forward for forward, _ in calls.values() if len(forward) > 8]
    assert not any(torch.equal(a[:8], b[:8]) for k, a in enumerate(masks) for b in masks[:k])  # chunks differ
    layer.seen.clear()
    trainer.train_epoch()
    assert not any(torch.equal(mask, calls[first][0]) for first, mask in layer.seen if len(mask) > 8)  # epochs differ


def test_the_callers_random_numbers_are_left_alone():
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), two(Gated)(), device_memory="1MiB")
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    trainer.train_epoch()
    trainer.predict()
    assert torch.equal(torch.rand(3), expected)


def test_one_dropout_module_used_twice_drops_different_elements():
    """The same module at two depths is two call sites."""
    dropout = hnn.Dropout(0.5)
    kept = []

    class Watch(nn.Module):
        def forward(self, h):
            kept.append(h != 0)
            return h

    layers = [dropout, Watch(), nn.Linear(6, 6), hnn.GINConv(nn.Linear(6, 6)), nn.Softplus(), dropout, Watch(),
              hnn.GINConv(nn.Linear(6, 3))]  # fmt: skip
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers, dtype=torch.float64)
    kept.clear()
    trainer.train_epoch()
    assert 0.3 < float((kept[0] == kept[1]).double().mean()) < 0.7
