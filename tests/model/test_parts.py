"""Modules that give several things, of which a forward goes on with some, and outputs that a forward has squeezed."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu.errors import InputError
from tests import problems, training

H = 6


class Hops(nn.Module):
    """What ``part`` makes of two hops, [R, 2, H]."""

    def __init__(self, part, use, classes=3):
        super().__init__()
        self.first, self.second, self.last = pyg.SAGEConv(6, H), pyg.SAGEConv(H, H), pyg.SAGEConv(H, classes)
        self.part, self.use = part, use

    def forward(self, x, edge_index):
        near = self.first(x, edge_index).relu()
        far = self.second(near, edge_index).relu()
        return self.last(self.use(self.part, torch.stack([near, far], dim=1)), edge_index)


class Heads(nn.Module):
    """Of one's own: a pair, or several by name."""

    def __init__(self, named):
        super().__init__()
        self.mean, self.spread, self.named = nn.Linear(H, H), nn.Linear(H, H), named

    def forward(self, h, scale, of_last=True):
        h = h[:, -1] if of_last else h[:, 0]
        found = self.mean(h) * scale, self.spread(h)
        return dict(zip(("mean", "spread"), found, strict=True)) if self.named else found


def of_pair(part, h):
    mean, spread = part(h, 2.0)
    return mean * spread.sigmoid()


def of_cells(part, h):
    _, (state, cell) = part(h)
    return state[-1] + cell[0]


def attended(part, h):
    out, weights = part(h, h, h)
    return out.mean(1) * weights[:, :, 0].sum(1, keepdim=True)


SEQUENCES = {"batch_first": True}
PARTS = {
    "all of a GRU": (lambda: nn.GRU(H, H, **SEQUENCES), lambda part, h: part(h)[0][:, -1]),
    "the state of a GRU": (lambda: nn.GRU(H, H, 2, **SEQUENCES), lambda part, h: part(h)[1][-1]),
    "state and cell of an LSTM": (lambda: nn.LSTM(H, H, 2, **SEQUENCES), of_cells),
    "sequences first": (lambda: nn.RNN(H, H), lambda part, h: part(h.transpose(0, 1))[0][-1]),
    "attention": (lambda: nn.MultiheadAttention(H, 2, **SEQUENCES), lambda part, h: part(h, h, h)[0].sum(1)),
    "attention without weights": (
        lambda: nn.MultiheadAttention(H, 2, **SEQUENCES), lambda part, h: part(h, h, h, need_weights=False)[0].sum(1)
    ),
    "attention and its weights": (lambda: nn.MultiheadAttention(H, 2, **SEQUENCES), attended),
    "a pair": (lambda: Heads(named=False), of_pair),
    "one by name": (lambda: Heads(named=True), lambda part, h: part(h, 0.5, of_last=False)["spread"]),
}  # fmt: skip


def assert_alike(model, problem, grain=(2, 3), loss="cross_entropy", whole=nn.functional.cross_entropy, **options):
    """Two epochs on the whole graph and by chunks, and what is predicted; returns the trainer."""
    model = model.double()
    other = copy.deepcopy(model)
    trainer = hongtu.Trainer(
        problems.prepare(problem, *grain), hongtu.from_pyg(model), dtype=torch.float64, loss=loss,
        optimizer=training.sgd, **options,
    )  # fmt: skip
    x, mask = torch.from_numpy(problem.features).double(), torch.from_numpy(problem.masks["train"])
    target, optimizer = torch.from_numpy(problem.labels)[mask], training.sgd(other.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        expected = whole(other(x, problem.edge_index)[mask], target)
        expected.backward()
        optimizer.step()
        record = trainer.train_epoch()
        training.assert_counted(trainer, record)
        assert record.loss == pytest.approx(float(expected.detach()), rel=1e-9)
    out = other(x, problem.edge_index).detach()
    torch.testing.assert_close(trainer.predict(), out.reshape(len(out), -1), rtol=1e-9, atol=1e-9)
    return trainer


@pytest.mark.parametrize("name", PARTS)
def test_what_a_module_gives_is_taken_apart(name):
    make, use = PARTS[name]
    torch.manual_seed(0)
    model = Hops(make(), use)
    weights = copy.deepcopy(model.state_dict())
    trainer = assert_alike(model, problems.awkward())
    back = hongtu.to_pyg(trainer.model, Hops(make(), use).double())
    assert back.state_dict().keys() == weights.keys()
    assert any(not torch.equal(back.state_dict()[name], p) for name, p in weights.items() if name.startswith("part"))


def test_what_drops_inside_drops_the_same_again():
    """Where an epoch is computed once, or again for the gradient; several things of one call are refused."""
    torch.manual_seed(0)
    model = Hops(nn.GRU(H, H, 2, dropout=0.5, **SEQUENCES), lambda part, h: part(h)[0][:, -1]).double()
    options = {"dtype": torch.float64, "optimizer": training.sgd}
    losses = []
    for strategy in training.STRATEGIES:
        layers = hongtu.from_pyg(copy.deepcopy(model))
        trainer = hongtu.Trainer(problems.prepare(problems.awkward()), layers, strategy=strategy, **options)
        losses.append([trainer.train_epoch().loss for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-12) and losses[0] == pytest.approx(losses[2], rel=1e-12)
    model.use = lambda part, h: part(h)[0][:, -1] + part(h)[1][0]
    hongtu.from_pyg(model)  # two calls
    model.use = both
    with pytest.raises(InputError, match=r"several of the things that part gives, and it drops"):
        hongtu.from_pyg(model)


def both(part, h):
    out, state = part(h)
    return out[:, -1] + state[0]


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (lambda: nn.MultiheadAttention(H, 2), lambda part, h: part(h[:, 0], h[:, 0], h[:, 0])[0]),
        (lambda: nn.LSTM(H, H), lambda part, h: part(h)[0][:, 0]),
        (lambda: nn.GRU(H, H), lambda part, h: part(h[:, 1])[0]),
    ],
)
def test_those_that_mix_rows_are_refused(make, use):
    with pytest.raises(InputError, match=r"layers\[\d\] \((MultiheadAttention|LSTM|GRU)\) mixes the rows"):
        hongtu.Trainer(problems.prepare(problems.awkward()), hongtu.from_pyg(Hops(make(), use)))


class Squeezed(nn.Module):
    def __init__(self, squeeze, columns=1):
        super().__init__()
        self.conv, self.last, self.squeeze = pyg.SAGEConv(6, H), pyg.SAGEConv(H, columns), squeeze

    def forward(self, x, edge_index):
        return self.squeeze(self.last(self.conv(x, edge_index).relu(), edge_index))


SQUEEZES = {
    "squeeze()": (torch.squeeze, 1), "squeeze(-1)": (lambda out: out.squeeze(-1), 1), "[:, 0]": (lambda o: o[:, 0], 1),
    "view(-1)": (lambda out: out.view(-1), 1), "a difference": (lambda out: out[:, 1] - out[:, 0], 2),
    "a probability": (lambda out: torch.sigmoid(out).flatten(), 1),
}  # fmt: skip


def of_two_classes():
    problem = problems.problem_of(problems.awkward_graph(), classes=2)
    return replace(problem, columns=1)


@pytest.mark.parametrize("grain", [(1, 1), (2, 32)])  # chunks of one vertex, too
@pytest.mark.parametrize("name", SQUEEZES)
def test_an_output_without_columns_is_one_column(name, grain):
    squeeze, columns = SQUEEZES[name]
    torch.manual_seed(0)
    of_logits = nn.BCELoss() if name == "a probability" else nn.BCEWithLogitsLoss()
    assert_alike(
        Squeezed(squeeze, columns),
        of_two_classes(),
        grain,
        loss=of_logits,
        whole=lambda out, y: of_logits(out, y.double()),
    )


def test_numbers_are_predicted_by_an_output_without_columns():
    torch.manual_seed(0)
    problem = problems.problem_of(problems.awkward_graph(), classes=1, regression=True)
    whole = lambda out, y: nn.functional.huber_loss(out, y[:, 0].double())  # noqa: E731
    assert_alike(Squeezed(lambda out: out.squeeze(1)), problem, (2, 32), loss="huber", whole=whole)


def test_squeezing_several_columns_changes_nothing():
    """Though torch takes the row away where a chunk has one."""
    torch.manual_seed(0)
    assert_alike(Squeezed(torch.squeeze, 3), problems.awkward(), (2, 32))


@pytest.mark.parametrize("wrong", [torch.flatten, torch.sum, lambda out: out.T, lambda out: out.unsqueeze(0)])
def test_outputs_that_have_no_row_for_each_vertex_are_refused(wrong):
    with pytest.raises(InputError, match=r"a row for each vertex|mixes the rows|rows"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), hongtu.from_pyg(Squeezed(wrong, 3)))
