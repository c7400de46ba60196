"""A model's numbers in the dtype of a run: complex buffers keep both parts, and what is rounded is said."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu.errors import InputError
from hongtu.train.planning import plan_model
from tests import problems, training

TURNS = torch.tensor([1j, 0.6 - 0.8j, -1.0, 0.8 + 0.6j], dtype=torch.complex128)


class Turns(nn.Module):
    """Rows as complex numbers, turned by fixed or learned ones."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.second, self.kind = pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 3), kind
        if kind in ("parameter", "pairs"):
            self.by = nn.Parameter(torch.view_as_real(TURNS).clone() if kind == "pairs" else TURNS.clone())
        else:
            self.register_buffer("by", TURNS.conj() if kind == "conjugate" else TURNS.clone())

    def forward(self, x, edge_index):
        h = torch.view_as_complex(self.first(x, edge_index).view(-1, 4, 2).contiguous())
        by = torch.view_as_complex(self.by) if self.kind == "pairs" else self.by
        return self.second(torch.view_as_real(h * by).reshape(-1, 8), edge_index)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["buffer", "conjugate", "pairs"])
def test_both_parts_count(kind, dtype):
    torch.manual_seed(0)
    problem, model = replace(problems.awkward(), weights=None), Turns(kind).double()
    options = {"optimizer": training.sgd, "dtype": dtype}
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(copy.deepcopy(model)), **options)
    for loss in training.plain_losses(model, problem):
        near = 1e-9 if dtype == torch.float64 else 1e-4
        assert trainer.train_epoch().loss == pytest.approx(loss, rel=near)


def test_complex_parameters_are_refused_with_what_trains():
    artifact = problems.prepare(replace(problems.awkward(), weights=None), 2, 3)
    layers = hongtu.from_pyg(Turns("parameter").double())
    for uses in (hongtu.Trainer, plan_model):
        with pytest.raises(InputError, match=r"own_0 is complex, .*view_as_real of it as the parameter"):
            uses(artifact, copy.deepcopy(layers))


def test_a_note_says_that_weights_are_rounded(capsys):
    artifact = problems.prepare(problems.awkward(), 2, 3)
    for made, dtype in ((torch.float64, torch.float32), (torch.float64, torch.float64), (torch.float32, torch.float64)):
        hongtu.Trainer(artifact, [hongtu.nn.GCNConv(6, 3).to(made)], dtype=dtype)
        said = "layers: float64, rounded to the float32 of the run; dtype=torch.float64" in capsys.readouterr().err
        assert said == (made == torch.float64 != dtype)
