"""Layers made with an input width of -1: a Trainer fills it in, and goes on as if it had been given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from tests import problems

LISTS = {  # w(width) is that width, or -1
    "in the middle": lambda w: [
        hnn.GCNConv(w(6), 5, activation="relu"), nn.ReLU(), hnn.GATConv(w(5), 3, heads=2), hnn.SAGEConv(w(6), 3, "max"),
    ],
    "behind rows": lambda w: [nn.Linear(6, 5), hnn.SAGEConv(in_channels=w(5), out_channels=4), hnn.SGConv(w(4), 3)],
    "by name": lambda w: [
        (hnn.GraphConv(w(6), 5), "x -> a"), (hnn.GATv2Conv(w(6), 5), "x -> b"), (lambda a, b: a + b, "a, b -> c"),
        (hnn.GENConv(w(5), 3, norm=None), "c -> c"),
    ],
}  # fmt: skip


def artifact():
    return problems.prepare(problems.awkward(), 2, 3)


@pytest.mark.parametrize("name", LISTS)
def test_unknown_widths_are_filled_in(name):
    layers = LISTS[name](lambda width: -1)
    torch.manual_seed(3)
    trainer = hongtu.Trainer(artifact(), layers)
    given = [entry[0] if isinstance(entry, tuple) else entry for entry in layers]
    assert all(made is one for made, one in zip(trainer.model, given) if isinstance(one, nn.Module))
    torch.manual_seed(3)
    known = hongtu.Trainer(artifact(), LISTS[name](lambda width: width))
    assert str(trainer.model) == str(known.model)
    if name == "in the middle":  # all are made by the Trainer, in the same order
        assert all(torch.equal(*pair) for pair in zip(trainer.model.parameters(), known.model.parameters()))
    known.model.load_state_dict(trainer.model.state_dict())
    losses = [[record.loss for record in one.fit(2, progress=False)] for one in (trainer, known)]
    assert losses[0] == losses[1]
    plan = hongtu.plan_model(artifact(), LISTS[name](lambda width: -1))
    assert plan.peak_bytes == hongtu.plan_model(artifact(), LISTS[name](lambda width: width)).peak_bytes


def test_layers_that_are_not_filled_in_yet():
    layer = hnn.GCNConv(-1, 5).eval()
    assert repr(layer) == "LazyLayer(GCNConv(-1, ...))" and not list(layer.parameters())
    hongtu.Trainer(artifact(), [layer, nn.BatchNorm1d(5), hnn.GCNConv(5, 3)])
    assert type(layer) is hnn.GCNConv and not layer.training
    assert isinstance(hnn.APPNP(1, 0.1), hnn.APPNP)
    with pytest.raises(InputError, match="failed on a small graph, given rows of 6 columns"):
        hongtu.Trainer(artifact(), [nn.Linear(7, 5), hnn.GCNConv(-1, 3)])
