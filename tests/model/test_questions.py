"""Forwards that ask of what they compute: answered as in a real call where every graph answers alike, refused else."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data

import hongtu
from hongtu.errors import InputError
from tests import graphs, problems, training
from tests.model.test_written_forwards import Written, trains_as_in_torch


def rest(self, x, e):
    return self.last(self.first(x, e).relu(), e)


class Asking(Written):
    """Has parts that a forward may ask for."""

    def __init__(self, write, features=4, classes=3):
        super().__init__(write, features, classes)
        self.lin, self.gru, self.part = torch.nn.Linear(features, features), torch.nn.GRU(8, 8, batch_first=True), None
        self.in_channels = features
        self.by_width = torch.nn.ModuleDict({str(features): torch.nn.Linear(features, features)})
        self.part = Doubles()


class Doubles(torch.nn.Module):
    """Changes what it is given, on a way that torch.fx does not find."""

    def forward(self, x):
        if x.dim() == 2:
            x *= 2
        return x + 1


def of_kinds(self, x, e):
    x = x * 2 if type(x) == torch.Tensor else x  # noqa: E721
    x = x + 1 if type(x).__name__ == "Tensor" and issubclass(type(x), torch.Tensor) else x
    x = x(3) if callable(x) else self.lin(x) if callable(self.lin) else x
    h = self.first(x, e)
    return self.last(h * 3 if type(h) not in (tuple, list) else h[0], e)


@functools.singledispatch
def scaled(x):
    return x


@scaled.register
def _(x: torch.Tensor):
    return x * 2


def of_classes(self, x, e):
    x = x * 2 if x.__class__ is torch.Tensor and issubclass(x.__class__, torch.Tensor) else x
    x = x * 3 if x.shape.__class__ is torch.Size and x.size(1).__class__ is int else x
    match x:
        case torch.Tensor():
            x = x + 1
    return rest(self, scaled(x), e)


def of_attributes(self, x, e):
    x = x * 2 if hasattr(x, "batch") else x * 3 if hasattr(x, "relu") else x
    x = x + 1 if isinstance(x.T, torch.Tensor) and isinstance(x.shape, tuple) and isinstance(x.size(1), int) else x
    return rest(self, x if getattr(x, "batch", None) is None else -x, e)


def of_ranks(self, x, e):
    assert x.ndim == 2 and len(x.shape) == 2 and len(x.size()) == 2 and e.dim() == 2
    return rest(self, x.unsqueeze(1) if x.dim() == 1 else x + 1, e)


def of_columns(self, x, e):
    assert x.shape[-1] == self.in_channels, "another width"
    h = self.first(x, e)
    h = h[:, :4].repeat(1, 2) if h.size(-1) > 7 and any(n == 8 for n in h.shape[1:]) else h
    return self.last(h / math.sqrt(h.size(1)) + x.shape[1] / np.sqrt(h.shape[-1]), e)


def of_equal_shapes(self, x, e):
    h = self.first(x, e)
    again = self.first(x.tanh(), e)
    return self.last(h + again if h.shape == again.shape and h.size(0) == x.size(0) else h, e)


def of_dtypes(self, x, e):
    x = x.float() if not x.is_floating_point() else x * 2
    x = x * 3 if x.dtype == torch.float64 else x
    x = x + 1 if x.dtype is torch.float64 and x.dtype in (torch.float16, torch.float64) else x
    return rest(self, x + 2 if str(x.dtype) == "torch.float64" else x, e)


def of_devices(self, x, e):
    x = x * 2 if x.device.type == "cpu" and not x.is_cuda else x
    return rest(self, x.to(self.lin.weight.device).to(next(self.parameters()).device).cpu(), e)


def of_weights(self, x, e):
    x = self.lin(x.to(self.lin.weight.dtype)) if self.lin.weight.requires_grad else x
    return rest(self, x / self.lin.weight.shape[0], e)


def of_parts(self, x, e):
    x = torch.cat([part.relu() for part in x.chunk(2, dim=1)], dim=1)
    *lead, columns = x.shape
    total = sum(x[:, k : k + 1] for k in range(x.size(1)))
    return rest(self, self.by_width[str(x.size(1))](x.reshape(*lead, 2, columns // 2).flatten(1)) + total, e)


def of_results(self, x, e):
    out = self.gru(self.first(x, e).unsqueeze(1))
    return self.last((out[0] if isinstance(out, tuple) else out).squeeze(1), e)


def of_made_tensors(self, x, e):
    x = x + torch.zeros(x.size(0), 1) + torch.full((x.shape[0], 1), 0.5) - torch.ones(x.size(0), 1, dtype=x.dtype)
    return rest(self, x @ torch.eye(x.size(1), dtype=x.dtype) * torch.arange(x.size(1)), e)


def of_numpy(self, x, e):
    return rest(self, np.sqrt(2.0) * x - x * np.float32(0.5) + np.int64(3), e)


def changes_columns(self, x, e):
    h = self.first(x, e).clone()
    h[:, 3] += 1
    h[:, :2] *= 3
    return self.last(h, e)


def changes_by_a_part(self, x, e):
    h = self.first(x, e)
    return self.last(self.part(h) * h, e)


@pytest.mark.parametrize(
    "write",
    [
        of_kinds, of_classes, of_attributes, of_ranks, of_columns, of_equal_shapes, of_dtypes, of_devices, of_weights,
        of_parts, of_results, of_made_tensors, of_numpy, changes_columns,
    ],
)  # fmt: skip
def test_questions_are_answered_as_in_torch(write):
    trains_as_in_torch(write, kind=Asking)


class OfData(Asking):
    def forward(self, data):
        data = data.to("cpu")
        x = data.x * 2 if data.num_features == 4 and data.num_node_features == 4 and "x" in data else data.x
        return rest(self, x, data.edge_index)


def test_a_data_is_asked():
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    model = OfData(None, problem.width, problem.classes).double()
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64)
    data = Data(x=torch.from_numpy(problem.features).double(), edge_index=problem.edge_index)
    with torch.no_grad():
        torch.testing.assert_close(trainer.predict(), model.eval()(data), rtol=1e-9, atol=1e-9)


REFUSED = {
    (lambda self, x, e: rest(self, x * 2 if x.size(0) > 100 else x, e)): "depends on how many vertices",
    (lambda self, x, e: rest(self, x * 2 if len(x) < 100 else x, e)): "depends on how many vertices",
    (lambda self, x, e: rest(self, x * 2 if x.shape == (64, 4) else x, e)): "depends on how many vertices",
    (lambda self, x, e: rest(self, x * 2 if x.numel() > 9 else x, e)): "depends on how many vertices",
    (lambda self, x, e: rest(self, x * 2 if e.size(1) == x.size(0) else x, e)): "depends on how many vertices",
    (lambda self, x, e: rest(self, x / int(x.size(0)), e)): "depends on how many vertices",
    (lambda self, x, e: rest(self, torch.cat([p / 2 for p in x.split(5)]), e)): "depends on how many vertices",
    (lambda self, x, e: rest(self, x / 2 if x.abs().max() > 1 else x, e)): r"depends on numbers; in line \d+: ",
    (lambda self, x, e: rest(self, x / 2 if x.max().item() > 1e9 else x, e)): "depends on numbers",
    (lambda self, x, e: rest(self, x / 2 if torch.isnan(x).any() else x, e)): "depends on numbers",
    (lambda self, x, e: rest(self, x / 2 if self.lin.bias.sum() > 0 else x, e)): "depends on numbers",
    changes_by_a_part: r"changes rows in place \(Doubles\) that it uses by another name",
}


@pytest.mark.parametrize("write", REFUSED)
def test_what_graphs_would_answer_otherwise_is_refused(write):
    with pytest.raises(InputError, match=REFUSED[write]):
        hongtu.from_pyg(Asking(write))


def test_an_error_that_a_forward_catches_is_none_the_less_one():
    def catches(self, x, e):
        try:
            x = x * 2 if x.sum() > 0 else x
        except ValueError:
            x = x * 3
        return rest(self, x, e)

    with pytest.raises(InputError, match="depends on numbers"):
        hongtu.from_pyg(Asking(catches))


class Keeps(Asking):
    def __init__(self, write):
        super().__init__(write)
        self.kept, self.held, self.listed = None, {}, []


def keeps_rows(self, x, e):
    if self.kept is None:
        self.kept = self.lin(x).detach()
    return rest(self, self.kept + x, e)


def keeps_a_dictionary(self, x, e):
    if "rows" not in self.held:
        self.held["rows"] = self.lin(x).detach()
    return rest(self, self.held["rows"] + x, e)


def keeps_a_list(self, x, e):
    self.listed.append(self.lin(x))
    return rest(self, self.listed[0].detach() + x, e)


@pytest.mark.parametrize(
    ("write", "name"), [(keeps_rows, "kept"), (keeps_a_dictionary, "held"), (keeps_a_list, "listed")]
)
def test_what_a_forward_keeps_for_its_next_call_is_named(write, name):
    with pytest.raises(InputError, match=f"keeps {name} of one call for the next"):
        hongtu.from_pyg(Keeps(write))


def twice_as_much_of_single(self, x, e):
    return rest(self, x * 2 if x.dtype == torch.float32 else x, e)


def test_a_run_is_as_it_was_asked_for():
    """Other columns or another dtype, for which the forward would go another way, are refused before any work."""
    artifact = problems.prepare(problems.awkward())
    single = Asking(twice_as_much_of_single, artifact.feature_width, 3)
    hongtu.Trainer(artifact, hongtu.from_pyg(single))
    with pytest.raises(InputError, match=r"the dtype of x, which was torch.float32 .*, and is torch.float64 in"):
        hongtu.Trainer(artifact, hongtu.from_pyg(single), dtype=torch.float64)
    hongtu.Trainer(artifact, hongtu.from_pyg(single.double()), dtype=torch.float64)

    class Any(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SimpleConv("mean")

        def forward(self, x, edge_index):
            return self.conv(x * 2 if x.size(1) > 1000 else x, edge_index)

    with pytest.raises(InputError, match="asks for the number of columns of x, which was 5, 9 when"):
        hongtu.Trainer(artifact, hongtu.from_pyg(Any()), optimizer=training.sgd)


class OfEdges(torch.nn.Module):
    """Asks for the form of edge features, with one column or more."""

    def __init__(self, columns):
        super().__init__()
        self.first = pyg.NNConv(4, 8, torch.nn.Linear(columns, 32))

    def forward(self, x, edge_index, edge_attr):
        if edge_attr.dim() == 1:
            edge_attr = edge_attr.unsqueeze(-1)
        return self.first(x, edge_index, edge_attr)


def test_the_form_of_edge_features_is_asked():
    assert len(hongtu.from_pyg(OfEdges(3))) == 1
    with pytest.raises(InputError, match=r"form of edge_attr, \[E\] or \[E, columns\]; .* as edge_attr.view"):
        hongtu.from_pyg(OfEdges(1))


def test_questions_leave_the_model_as_it_is():
    """Small graphs run through copies."""
    model = Asking(of_columns)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hongtu.from_pyg(model)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert type(torch.ones(1)) is torch.Tensor and isinstance(int, type) and type is type(int)
