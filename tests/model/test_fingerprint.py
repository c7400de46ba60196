"""What a look at modules sees of what people change in them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hongtu
from hongtu.model.own_state import Fingerprint


def _model() -> nn.ModuleList:
    conv = hongtu.nn.GCNConv(3, 4, activation="relu")
    return nn.ModuleList([conv, nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))])


CHANGES = {
    "an attribute": lambda model: setattr(model[0], "activation", None),
    "an attribute more": lambda model: setattr(model[0], "mine", 1.0),
    "an attribute less": lambda model: delattr(model[1][0], "eps"),
    "a parameter": lambda model: setattr(model[1][1], "weight", nn.Parameter(torch.ones(2, 4))),
    "a parameter's numbers of another kind": lambda model: model[1][1].double(),
    "a frozen parameter": lambda model: model[1][1].weight.requires_grad_(False),
    "a buffer": lambda model: setattr(model[1][0], "running_mean", torch.zeros(4)),
    "a part": lambda model: model[1].__setitem__(1, nn.Linear(4, 2)),
    "a part more": lambda model: model[1].append(nn.ReLU()),
    "a hook": lambda model: model[1].register_forward_hook(lambda *_: None),
    "a class": lambda model: setattr(model[1][1], "__class__", nn.Bilinear),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(change):
    model = _model()
    fingerprint = Fingerprint([model])
    assert not fingerprint.is_same()
    fingerprint.see()
    assert fingerprint.is_same()
    change(model)
    assert not fingerprint.is_same()
    fingerprint.see()
    assert fingerprint.is_same()


@pytest.mark.parametrize(
    "keep",
    [
        lambda model: model.eval(),
        lambda model: model[1][0].eval(),
        lambda model: model[1][1].weight.data.zero_(),
        lambda model: model[1][0].running_mean.add_(1),
    ],
    ids=["evaluating", "a part that evaluates", "numbers of a parameter", "numbers of a buffer"],
)
def test_what_is_no_change_is_not_seen(keep):
    model = _model()
    fingerprint = Fingerprint([model])
    fingerprint.see()
    keep(model)
    assert fingerprint.is_same()
