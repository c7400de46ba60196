"""Row-wise modules that torch.compile made: the numbers of the modules themselves, in every strategy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from tests import problems, training
from tests.models import H
from tests.training import STRATEGIES


def trained(wrap, strategy):
    """In a layer, and in the list: which has connections, too."""
    torch.manual_seed(0)
    mlp, stage = (nn.Sequential(nn.Linear(columns, 7), nn.GELU(), nn.Linear(7, H)) for columns in (6, H))
    layers = [(hnn.GINConv(wrap(mlp)), "x -> x1"), (wrap(stage), "x1 -> x2"), (hnn.SAGEConv(H, H), "x2 -> x3"),
              (wrap(hnn.JumpingKnowledge("max")), "x1, x2, x3 -> x"), nn.Linear(H, 3)]  # fmt: skip
    options = {"optimizer": training.sgd, "dtype": torch.float64, "strategy": strategy, "device_memory": "64KiB"}
    return training.train(hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers, **options), 2)


@pytest.mark.most(1)
@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compiled_modules_are_exact(strategy):
    """Without a compiler of C++, which inductor needs: what it makes of a module is torch's own affair."""
    torch.compiler.reset()  # what other tests compiled
    calls = 0

    def backend(graph, inputs):
        def run(*given):
            nonlocal calls
            calls += 1
            return graph(*given)

        return run

    found = trained(lambda module: torch.compile(module, backend=backend), strategy)
    assert calls > 0
    for gradients in found.gradients:
        renamed = {name.replace("_orig_mod.", ""): gradient for name, gradient in gradients.items()}
        gradients.clear()
        gradients.update(renamed)
    training.assert_same(found, trained(lambda module: module, strategy), 1e-9)


@pytest.mark.parametrize("module", [hnn.GCNConv(6, 6), nn.BatchNorm1d(6), hnn.GraphNorm(6)], ids=repr)
def test_layers_compiled_as_a_whole_are_refused(module):
    layers = [hnn.GCNConv(6, 6), torch.compile(module, backend="eager"), hnn.GCNConv(6, 3)]
    with pytest.raises(InputError, match=r"layers\[1\] .*torch.compile wraps as a whole.*compile the row-wise"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers)
