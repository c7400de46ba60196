"""Layers of the user's own in every form that the protocol allows, and torch_geometric's, are exact."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from tests import problems, training
from tests.models import H, Model, Wrapped
from tests.training import EXACT, STRATEGIES, check

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


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


@pytest.mark.every
@strategies
@pytest.mark.parametrize("model", USERS, ids=repr)
def test_user_layers(model, strategy):
    check(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=2)


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
    check(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=2)


def wrapped(name, first, second, **options):
    return Model(
        name,
        lambda f, c: [hnn.PyGLayer(first(f), **options), nn.ReLU(), hnn.PyGLayer(second(c), **options)],
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
    wrapped("ClusterGCNConv", lambda f: pyg.ClusterGCNConv(f, H), lambda c: pyg.ClusterGCNConv(H, c), square=True),
)


@pytest.mark.every
@pytest.mark.long
@strategies
@pytest.mark.parametrize("model", PYG, ids=repr)
def test_torch_geometric_layers(model, strategy):
    check(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=2)


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
    check(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=2)


@strategies
def test_torch_geometric_layer_that_learns_its_width(strategy):
    """Parameters of unknown shape until the first call."""
    layers = [hnn.PyGLayer(pyg.SAGEConv((-1, -1), H)), nn.ReLU(), hnn.PyGLayer(pyg.SAGEConv((-1, -1), 3))]
    problem = problems.awkward()
    trainer = hongtu.Trainer(
        problems.prepare(problem, 2, 3), layers, optimizer=training.sgd, dtype=torch.float64, strategy=strategy
    )
    model = wrapped("lazy", lambda f: pyg.SAGEConv(f, H), lambda c: pyg.SAGEConv(H, c))
    known = training.make_trainer(model, problem, (2, 3), strategy=strategy)
    known.model.load_state_dict(trainer.model.state_dict())
    training.assert_same(training.train(trainer, 2), training.train(known, 2), EXACT)
