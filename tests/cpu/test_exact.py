"""Training is exact: losses and gradients equal those of torch_geometric, or a dense reference, on the whole graph."""

from __future__ import annotations

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
from hongtu.errors import InputError
from hongtu.plan.strategy import Strategy
from tests import training
from tests.training import DEEP, GRAINS, SIX, STRATEGIES, H, Model

EXACT = 1e-9  # of the largest gradient entry
SINGLE = 1e-4

six = pytest.mark.parametrize("model", SIX, ids=repr)
grains = pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


def check(model, problem, grain, *, epochs=5, tolerance=EXACT, **options):
    trainer = training.make_trainer(model, problem, grain, **options)
    found = training.train(trainer, epochs)
    training.assert_same(found, training.train_reference(model, problem).first(epochs), tolerance)
    return trainer


def epochs_for(grain, strategy):
    """Many chunks take long: all five epochs with one strategy, two with the others."""
    return 5 if grain[1] < 8 or strategy == "paper" else 2


@strategies
@grains
@six
def test_awkward_graph(model, grain, strategy):
    """Isolated vertices, a hub, duplicate edges and repeated loops."""
    epochs = epochs_for(grain, strategy)
    check(model, training.awkward(), grain, epochs=epochs, strategy=strategy, device_memory="smallest")
    if strategy == "full":  # the others' plans do not depend on the budget
        check(model, training.awkward(), grain, epochs=2, strategy=strategy)


@strategies
@grains
@six
def test_directed_weighted_graph(model, grain, strategy):
    problem = training.directed_weighted()
    check(model, problem, grain, epochs=5 if strategy == "paper" else 1, strategy=strategy, device_memory="smallest")


@strategies
@grains
@six
def test_cora(model, grain, strategy, data_graph):
    """The real graph with the first 64 columns of its features."""
    problem = training.planetoid(data_graph("planetoid-cora"), 64)
    check(model, problem, grain, strategy=strategy, epochs=epochs_for(grain, strategy))


@strategies
@six
def test_cora_in_the_smallest_budget(model, strategy, data_graph):
    problem = training.planetoid(data_graph("planetoid-cora"), 4)
    trainer = check(model, problem, (4, 8), strategy=strategy, device_memory="smallest", epochs=2)
    loaded = [sum(len(device.loads) for device in plan.devices) for plan in trainer.plan.transfers.values()]
    assert max(loaded) > problem.num_vertices, "no row was brought twice: nothing was ever evicted"


@six
def test_cora_with_all_features(model, data_graph):
    check(model, training.planetoid(data_graph("planetoid-cora")), (4, 8), epochs=2)


@strategies
@six
def test_single_precision(model, strategy):
    problem = training.directed_weighted() if strategy == "paper" else training.awkward()
    options = {"dtype": torch.float32, "strategy": strategy, "device_memory": "smallest"}
    check(model, problem, (2, 3), tolerance=SINGLE, **options)


def test_single_precision_on_cora(data_graph):
    for model in SIX:
        problem = training.planetoid(data_graph("planetoid-cora"), 64)
        check(model, problem, (2, 3), tolerance=SINGLE, dtype=torch.float32)


@strategies
def test_three_different_layers(strategy):
    check(DEEP, training.awkward(), (1, 7), strategy=strategy)
    check(DEEP, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest")


SWITCHES = (
    "group", "transform_first", "no_input_gradient", "cache_input_aggregate", "fuse_last_layer", "prune", "resident",
    "keep",
)  # fmt: skip
NOTHING = Strategy(**dict.fromkeys(SWITCHES, False))


def savings():
    """Each alone, all, all but one, and 30 random subsets, on top of any reuse."""
    yield from (replace(NOTHING, **{name: True}) for name in SWITCHES)
    yield from (replace(Strategy(), **{name: False}) for name in SWITCHES)
    rng = np.random.default_rng(0)
    for _ in range(30):
        chosen = {name: bool(rng.random() < 0.5) for name in SWITCHES}
        yield Strategy(reuse=str(rng.choice(["none", "paper", "lookahead"])), **chosen)
    for reuse in ("none", "paper", "lookahead"):
        yield Strategy(reuse=reuse)
        yield replace(NOTHING, reuse=reuse, schedule="paper")


@functools.cache
def few_train():
    """Two vertices carry a loss: most of the graph is outside their receptive fields."""
    problem = training.awkward()
    train = np.zeros(problem.num_vertices, dtype=bool)
    train[[2, 40]] = True
    masks = {"train": train, "val": ~train, "test": np.zeros_like(train)}
    return dataclasses.replace(problem, masks=masks)


LINEAR = Model(
    "gcn-sage",
    lambda f, c: [hnn.GCNConv(f, H, activation="relu"), hnn.SAGEConv(H, c)],
    lambda f, c: [pyg.GCNConv(f, H), pyg.SAGEConv(H, c)],
    torch.relu,
)


@pytest.mark.parametrize(
    "strategy", list(savings()), ids=lambda s: "+".join(n for n in SWITCHES if getattr(s, n)) or "none"
)
def test_every_subset_of_savings(strategy):
    for model, problem in ((DEEP, training.awkward()), (LINEAR, few_train()), (DEEP, few_train())):
        for budget in (None, "smallest"):
            trainer = check(model, problem, (2, 3), strategy=strategy, device_memory=budget, epochs=2)
            fields = trainer.plan.choice.fields
            assert bool(fields) == (strategy.prune and problem is few_train())


def test_savings_are_used():
    """What each switch is for happens: otherwise the tests above compare nothing."""
    plan = training.make_trainer(LINEAR, few_train(), (2, 3)).plan
    names = [p.name for p in plan.passes.every]
    assert names == ["setup stage 0", "setup 0", "forward 0", "fused 1", "backward 0", "evaluate 0", "evaluate 1"]
    assert plan.resident >= {"a0", "z1", "grad z1"} and any(p.keep for p in plan.passes.train)
    assert [p.hops for p in plan.passes.train] == [1, 0, 1]
    labels = plan.view(plan.passes.train[1]).active.size * 9
    assert plan.bytes["load"] == plan.bytes["flush"] == plan.bytes["write"] == plan.bytes["read"] - labels == 0
    budgeted = training.make_trainer(LINEAR, few_train(), (2, 3), device_memory="smallest").plan
    assert budgeted.bytes["read"] > labels and not any(p.keep for p in budgeted.passes.train)


# ------------------------------------------------------------------------------------------ losses and row-wise modules


def squared_distance(out, target):
    """A loss of one's own: per vertex, the squared distance to the one-hot target."""
    return (out.softmax(1) - nn.functional.one_hot(target, out.shape[1])).square().sum(1)


BCE = Model("bce", SIX[0].layers, SIX[0].reference, torch.relu, loss="bce_with_logits")
CALLABLE = Model("callable", SIX[0].layers, SIX[0].reference, torch.relu, loss=squared_distance)


@strategies
def test_multi_label(strategy):
    check(BCE, training.multi_label(), (2, 3), strategy=strategy, device_memory="smallest")


@strategies
def test_callable_loss(strategy):
    check(CALLABLE, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest")


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
    check(model, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest")


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
    check(model, training.awkward(), (2, 3), strategy=strategy)


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
    check(model, training.awkward(), (2, 3), strategy=strategy)


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
        hongtu.Trainer(training.prepare(training.awkward(), 1, 1), layers)


@strategies
def test_torch_geometric_layer_norm_by_row(strategy):
    def modules(convolution):
        return lambda f, c: [convolution(f, H), pyg.LayerNorm(H, mode="node"), convolution(H, c)]

    model = Model("pyg-layer-norm", modules(hnn.GCNConv), modules(pyg.GCNConv))
    check(model, training.awkward(), (2, 3), strategy=strategy)


def test_a_bare_torch_geometric_convolution_is_refused():
    layers = [pyg.GCNConv(6, H), hnn.GCNConv(H, 3)]
    with pytest.raises(InputError, match="PyGLayer"):
        hongtu.Trainer(training.prepare(training.awkward(), 1, 1), layers)


# ---------------------------------------------------------------------------------------------------------- user layers


def neighbour_sum(h, edge_index, edge_weight=None):
    messages = h[edge_index[0]]
    messages = messages if edge_weight is None else messages * edge_weight.unsqueeze(1)
    return torch.zeros_like(h[:, :1]).expand(-1, messages.shape[1]).clone().index_add(0, edge_index[1], messages)


class UserWhole(nn.Module):
    """The reference of all user layers: v(tanh(u h) over in-edges) gated by the destination, plus w h."""

    def __init__(self, f, c, weighted=False, gated=False, skip=True):
        super().__init__()
        self.u, self.v, self.w = nn.Linear(f, H), nn.Linear(H, c), nn.Linear(f, c)
        self.weighted, self.gated, self.skip = weighted, gated, skip

    def forward(self, h, edge_index, edge_weight=None):
        z = torch.tanh(self.u(h))
        a = self.v(neighbour_sum(z, edge_index, edge_weight if self.weighted else None))
        a = torch.sigmoid(self.w(h)) * a if self.gated else a
        return a + self.w(h) if self.skip else a + 0 * self.w(h)


class UserLayer(hnn.Layer):
    def __init__(self, f, c):
        super().__init__()
        self.u, self.v, self.w = nn.Linear(f, H), nn.Linear(H, c), nn.Linear(f, c)


class Reduced(UserLayer):
    """A declared reduction: the engine's own kernel runs it."""

    reduce = "sum"
    weighted = True

    def transform(self, h):
        return torch.tanh(self.u(h)), self.w(h)

    def update(self, a, s):
        return self.v(a) + s


class LinearByHand(UserLayer):
    """An aggregate of its own that says it is linear: cached, not recomputed."""

    linear_aggregate = True

    def transform(self, h):
        return torch.tanh(self.u(h)), self.w(h)

    def aggregate(self, block, z, s):
        return block.sum(z, weighted=True)

    def update(self, a, s):
        return self.v(a) + s


class NotLinear(UserLayer):
    """The same, recomputed in backward."""

    def transform(self, h):
        return torch.tanh(self.u(h)), self.w(h)

    def aggregate(self, block, z, s):
        return self.v(block.sum(z, weighted=True)) + s


class SkipIsTuple(UserLayer):
    """s = (a row of its own, the input h, z itself, another), of which only some are used."""

    def transform(self, h):
        z = torch.tanh(self.u(h))
        return z, (self.w(h), h, z, z + 1)

    def aggregate(self, block, z, s):
        own, h, own_z, unused = s
        assert own.shape[0] == h.shape[0] == own_z.shape[0] == unused.shape[0] == block.num_dst
        return self.v(block.sum(z, weighted=True)) * torch.sigmoid(self.w(h)) + 0 * own_z.sum(1, keepdim=True)

    def update(self, a, s):
        return a + s[0]


class SkipIsInput(UserLayer):
    """s is h: in the first layer the features, which are not z."""

    reduce = "sum"
    weighted = True

    def transform(self, h):
        return torch.tanh(self.u(h)), h

    def update(self, a, s):
        return self.v(a) + self.w(s)


class SkipIsList(SkipIsInput):
    def transform(self, h):
        return torch.tanh(self.u(h)), [h]

    def update(self, a, s):
        assert isinstance(s, list | tuple)
        return super().update(a, s[0])


class NoSkip(UserLayer):
    """s is None; w takes no part."""

    reduce = "sum"
    weighted = True

    def transform(self, h):
        return torch.tanh(self.u(h)), None

    def update(self, a, s):
        assert s is None
        return self.v(a)


class ForwardOnly(UserLayer):
    def forward(self, block, h):
        z = torch.tanh(self.u(h))
        return self.v(block.sum(z, weighted=True)) + self.w(h[: block.num_dst])


class ForwardByEdges(UserLayer):
    """Plain torch on ``edge_index``, as most code in the wild."""

    def forward(self, block, h):
        source, destination = block.edge_index
        messages = torch.tanh(self.u(h))[source]
        if block.edge_weight is not None:
            messages = messages * block.edge_weight.unsqueeze(1)
        a = messages.new_zeros(block.num_dst, H).index_add(0, destination, messages)
        return self.v(a) + self.w(h[: block.num_dst])


def user(layer, **flags):
    return Model(
        layer.__name__,
        lambda f, c: [layer(f, 4), nn.ReLU(), layer(4, c)],
        lambda f, c: [UserWhole(f, 4, weighted=True, **flags), nn.ReLU(), UserWhole(4, c, weighted=True, **flags)],
    )


USERS = (
    user(Reduced),
    user(LinearByHand),
    user(NotLinear),
    user(SkipIsTuple, gated=True),
    user(SkipIsInput),
    user(SkipIsList),
    user(NoSkip, skip=False),
    user(ForwardOnly),
    user(ForwardByEdges),
)


@strategies
@pytest.mark.parametrize("model", USERS, ids=repr)
def test_user_layers(model, strategy):
    check(model, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=3)


class ZItselfWhole(nn.Module):
    def __init__(self, f, c):
        super().__init__()
        self.u, self.v = nn.Linear(f, H), nn.Linear(H, c)

    def forward(self, h, edge_index):
        z = self.u(h)
        return self.v(neighbour_sum(z, edge_index) - 2 * z)


class ZItself(hnn.Layer):
    """s is z: stored once, with gradients from both ways."""

    reduce = "sum"

    def __init__(self, f, c):
        super().__init__()
        self.u, self.v = nn.Linear(f, H), nn.Linear(H, c)

    def transform(self, h):
        z = self.u(h)
        return z, z

    def update(self, a, s):
        return self.v(a - 2 * s)


class ZTwice(ZItself):
    """s holds z twice, and is used by a recomputed aggregate."""

    reduce = None

    def transform(self, h):
        z = self.u(h)
        return z, (z, z)

    def aggregate(self, block, z, s):
        return self.v(block.sum(z) - s[0])

    def update(self, a, s):
        return a - self.v(s[1]) + self.v.bias


@strategies
@pytest.mark.parametrize("layer", [ZItself, ZTwice])
def test_skip_that_is_z(layer, strategy):
    model = Model("z", lambda f, c: [layer(f, 4), layer(4, c)], lambda f, c: [ZItselfWhole(f, 4), ZItselfWhole(4, c)])
    check(model, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=3)


class Wrapped(nn.Module):
    """A torch_geometric convolution under the name that ``PyGLayer`` gives it."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, h, edge_index):
        return self.conv(h, edge_index)


def wrapped(name, first, second):
    return Model(
        name,
        lambda f, c: [hnn.PyGLayer(first(f)), nn.ReLU(), hnn.PyGLayer(second(c))],
        lambda f, c: [Wrapped(first(f)), nn.ReLU(), Wrapped(second(c))],
    )


PYG = (
    wrapped("SAGEConv", lambda f: pyg.SAGEConv(f, H), lambda c: pyg.SAGEConv(H, c, aggr="max")),
    wrapped(
        "GATConv",
        # its own loops tie source k to destination k: the same vertex, as the first sources are the destinations
        lambda f: pyg.GATConv(f, H, heads=2),
        lambda c: pyg.GATConv(2 * H, c, add_self_loops=False),
    ),
    wrapped("TransformerConv", lambda f: pyg.TransformerConv(f, H, 2), lambda c: pyg.TransformerConv(2 * H, c)),
)


@strategies
@pytest.mark.parametrize("model", PYG, ids=repr)
def test_torch_geometric_layers(model, strategy):
    check(model, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=3)


class WrappedWeighted(Wrapped):
    def forward(self, h, edge_index, edge_weight):
        return self.conv(h, edge_index, edge_weight)


@strategies
def test_torch_geometric_layer_with_edge_weights(strategy):
    model = Model(
        "GraphConv",
        lambda f, c: [hnn.PyGLayer(pyg.GraphConv(f, H)), hnn.PyGLayer(pyg.GraphConv(H, c))],
        lambda f, c: [WrappedWeighted(pyg.GraphConv(f, H)), WrappedWeighted(pyg.GraphConv(H, c))],
    )
    check(model, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=3)


@strategies
def test_torch_geometric_layer_that_learns_its_width(strategy):
    """Parameters of unknown shape until the first call."""
    layers = [hnn.PyGLayer(pyg.SAGEConv((-1, -1), H)), nn.ReLU(), hnn.PyGLayer(pyg.SAGEConv((-1, -1), 3))]
    problem = training.awkward()
    trainer = hongtu.Trainer(
        training.prepare(problem, 2, 3), layers, optimizer=training.sgd, dtype=torch.float64, strategy=strategy
    )
    model = wrapped("lazy", lambda f: pyg.SAGEConv(f, H), lambda c: pyg.SAGEConv(H, c))
    known = training.make_trainer(model, problem, (2, 3), strategy=strategy)
    known.model.load_state_dict(trainer.model.state_dict())
    training.assert_same(training.train(trainer, 2), training.train(known, 2), EXACT)


class Counting(nn.Module):
    """A row-wise module with running state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, h):
        self.runs += self.training
        return h * (1 + self.runs)


@pytest.mark.parametrize(
    ("module", "why"),
    [(nn.Softmax(dim=0), "mixes the rows"), (Counting(), "buffer '1.runs' changes")],
    ids=["softmax-over-rows", "running-state"],
)
def test_modules_that_depend_on_the_chunk_are_refused(module, why):
    with pytest.raises(InputError, match=why):
        hongtu.Trainer(training.prepare(training.awkward(), 1, 1), [hnn.GCNConv(6, H), module, hnn.GCNConv(H, 3)])


def test_spectral_norm_inside_a_layer_is_refused():
    layers = [hnn.GINConv(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)))]
    with pytest.raises(InputError, match=r"layers\[0\].*buffer"):
        hongtu.Trainer(training.prepare(training.awkward(), 1, 1), layers)


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
        artifact = training.prepare(training.awkward(), 2, 3)
        trainer = hongtu.Trainer(artifact, layers, strategy=strategy, dtype=torch.float64)
        return trainer.train_epoch().loss, trainer.gradients()

    loss, gradients = run(InPlace)
    expected_loss, expected = run(OutOfPlace)
    if reduce:  # in-place changes of s inside aggregate are its own
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-9, atol=1e-12)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@functools.cache
def few_labels():
    """Few vertices carry a loss, so that every layer computes a part of its own."""
    problem = training.awkward()
    train = np.zeros(problem.num_vertices, dtype=bool)
    train[np.flatnonzero(problem.masks["train"])[::25]] = True
    return dataclasses.replace(problem, masks=problem.masks | {"train": train})


@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATConv"])
def test_what_pruned_layers_keep_until_backward(name, group):
    """Three layers, each with a checkpoint or kept rows of its own part of the graph."""
    ours, theirs = getattr(hnn, name), getattr(pyg, name)
    model = Model(
        f"three-{name}",
        lambda f, c: [ours(f, H, activation="relu"), ours(H, H, activation="relu"), ours(H, c)],
        lambda f, c: [theirs(f, H), theirs(H, H), theirs(H, c)],
        torch.relu,
    )
    for grain in ((1, 7), (4, 8)):
        trainer = check(model, few_labels(), grain, epochs=2, strategy=Strategy(group=group))
        assert any(view.active is not None for view in trainer.plan.views.values()), "nothing was pruned"


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
        training.Rowwise(lambda h: 0.5 * h), Careful(f, H), training.Rowwise(lambda h: 0.5 * h), nn.SELU(),
        nn.Linear(H, H), Careful(H, H), Careful(H, c),
    ],
)  # fmt: skip


@strategies
@pytest.mark.parametrize("budget", [None, "smallest"])
def test_a_users_layer_may_change_its_inputs_in_place(strategy, budget):
    """They are kept for backward, read by other chunks, or the constant features."""
    trainer = check(CARELESS, training.awkward(), (2, 3), epochs=3, strategy=strategy, device_memory=budget)
    before = trainer.predict()
    np.testing.assert_array_equal(trainer.predict(), before)


SAGE_3 = Model(
    "sage-3",
    lambda f, c: [hnn.SAGEConv(f, H, activation="relu"), hnn.SAGEConv(H, H, activation="relu"), hnn.SAGEConv(H, c)],
    lambda f, c: [pyg.SAGEConv(f, H), pyg.SAGEConv(H, H), pyg.SAGEConv(H, c)],
    torch.relu,
)


@pytest.mark.parametrize("grain", [(1, 1), (1, 4), (3, 4)], ids=str)
def test_what_is_kept_may_lie_in_rows_that_are_exchanged(grain):
    """Without a limit, several chunks a device: saved activations are found in the resident tensor."""
    strategy = replace(Strategy(), group=False)
    trainer = check(SAGE_3, training.awkward(), grain, strategy=strategy)
    held = [p for p in trainer.plan.passes.train if p.holds]
    assert {name for p in held for name in p.holds} == {"z1"} and {p.direction for p in held} == {"forward", "backward"}
