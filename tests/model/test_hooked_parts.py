"""Hooks of the parts of a model: called as in torch, also where something else stands for the part, or refused."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg

import hongtu
from hongtu.errors import InputError
from tests import graphs, problems
from tests.model.test_typed_advice import CITES, WRITES, check, graph
from tests.model.test_written_forwards import Written, trains_as_in_torch


def through(self, x, edge_index):
    return self.last(self.part(self.first(x, edge_index)), edge_index)


def with_part(make, hooked=lambda part: part):
    def prepare(model):
        model.part = make().double()
        hooked(model.part).register_forward_hook(lambda module, given, out: out * 1.5)

    return prepare


PARTS = {
    "dropout": lambda: torch.nn.Dropout(0.0),
    "nothing": torch.nn.Identity,
    "linear": lambda: pyg.Linear(8, 8),
    "a weight that a hook makes": lambda: torch.nn.utils.weight_norm(torch.nn.Linear(8, 8)),
    "norm of rows": lambda: pyg.LayerNorm(8, mode="node"),
    "behind a norm": lambda: torch.nn.Sequential(pyg.BatchNorm(8), torch.nn.Identity()),
}


@pytest.mark.parametrize("part", PARTS)
def test_hooks_of_parts(part):
    """What stands for a dropout has its hooks, and a part that does nothing but for its hooks stays."""
    trains_as_in_torch(through, with_part(PARTS[part], lambda x: x[1] if part == "behind a norm" else x))


NETWORKS = {
    "linear": (lambda: torch.nn.Sequential(pyg.Linear(8, 8), torch.nn.ReLU()), lambda network: network[0]),
    "dropout": (lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.0)), lambda network: network[1]),
    "network": (lambda: pyg.MLP([8, 8, 8], norm=None), lambda network: network),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_hooks_of_what_is_inside_a_convolution(network):
    make, hooked = NETWORKS[network]

    def forward(self, x, edge_index):
        return self.last(self.part(self.first(x, edge_index), edge_index), edge_index)

    trains_as_in_torch(forward, with_part(lambda: pyg.GINConv(make()), lambda part: hooked(part.nn)))


CONVOLUTIONS = {
    "attention": lambda: pyg.GATv2Conv(8, 8),
    "sum": lambda: pyg.GraphConv(8, 8),
    "network": lambda: pyg.GINConv(torch.nn.Linear(8, 8)),
    "greatest": lambda: pyg.SAGEConv(8, 8, aggr="max"),
}


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_hooks_of_convolutions_get_the_rows(convolution):
    """Those before and after it, as in torch_geometric, where it is called with a tensor."""

    def forward(self, x, edge_index):
        return self.last(self.part(self.first(x, edge_index), edge_index), edge_index)

    def hooked(model):
        model.part = CONVOLUTIONS[convolution]().double()
        model.part.register_forward_pre_hook(lambda module, given: (given[0] * 0.5, given[1]))
        model.part.register_forward_hook(lambda module, given, out: out + given[0].tanh())

    trains_as_in_torch(forward, hooked)


@pytest.mark.parametrize("hook", ["forward_pre_hook", "forward_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_hooks_of_convolutions_that_need_the_graph_are_those_of_identities(hook):
    """As the message advises: the rows before and behind are the convolution's."""
    hooks = {
        "forward_pre_hook": lambda module, given: (given[0] * 0.5, *given[1:]),
        "forward_hook": lambda module, given, out: out + given[0].tanh(),
        "full_backward_hook": lambda module, given, out: (given[0] * 0.5, *given[1:]),
        "full_backward_pre_hook": lambda module, out: (out[0] * 0.5,),
    }

    def forward(self, x, edge_index):
        return self.last(self.around(self.part(self.first(x, edge_index), edge_index)), edge_index)

    def hooked(model, part):
        model.part, model.around = pyg.GCNConv(8, 8).double(), torch.nn.Identity()
        getattr(getattr(model, part), f"register_{hook}")(hooks[hook])

    with pytest.raises(InputError, match=r"has .* hooks, which .* does not have; hook a torch.nn.Identity\(\) before"):
        trains_as_in_torch(forward, lambda model: hooked(model, "part"))
    trains_as_in_torch(forward, lambda model: hooked(model, "around"))


def test_hooks_of_convolutions_of_one_type_get_the_rows():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = pyg.HeteroConv({WRITES: pyg.SAGEConv((4, 6), 5), CITES: pyg.GATConv(6, 5)}, aggr="sum")
            self.last = pyg.GraphConv(5, 3)
            for part in (self.first.convs[CITES], self.last):
                part.register_forward_pre_hook(lambda module, given: (given[0] * 0.5, given[1]))
                part.register_forward_hook(lambda module, given, out: out + given[0].sum(1, keepdim=True))

        def forward(self, x_dict, edge_index_dict):
            return self.last(self.first(x_dict, edge_index_dict)["paper"], edge_index_dict[CITES])

    check(Net(), graph())


def test_hooks_of_convolutions_that_look_at_other_rows_are_named():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 3)
            self.conv.register_forward_hook(lambda module, given, out: out + given[0].mean())

        def forward(self, x_dict, edge_index_dict):
            return self.conv(x_dict["paper"], edge_index_dict[CITES])

    with pytest.raises(InputError, match="leave out what its hooks make of other rows"):
        check(Net(), graph())


NORMS = {
    "whole": (lambda: pyg.GraphNorm(8), lambda norm: norm),
    "batch": (lambda: pyg.BatchNorm(8), lambda norm: norm),
    "inside": (lambda: pyg.BatchNorm(8), lambda norm: norm.module),
    "torch's": (lambda: torch.nn.BatchNorm1d(8), lambda norm: norm),
}


@pytest.mark.parametrize("norm", NORMS)
def test_hooks_of_norms_are_refused(norm):
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    model = Written(through, problem.width, problem.classes)
    with_part(*NORMS[norm])(model)
    with pytest.raises(InputError, match=r"it has hooks, .*; remove them, or hook a torch.nn.Identity\(\) before or"):
        hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model.float()))


@pytest.mark.parametrize("register, hook", [
    ("register_forward_pre_hook", lambda module, given: (given[0] * 3, *given[1:])),
    ("register_forward_hook", lambda module, given, out: out * given[0][:, :1]),
    ("register_forward_hook", lambda module, given, out: out * len(given)),
], ids=["changes rows", "takes rows", "counts"])  # fmt: skip
def test_hooks_of_a_model_get_its_arguments_in_order(register, hook):
    """As where somebody calls it, ``model(x, edge_index)``."""

    def hooked(model):
        model.part = torch.nn.Identity()
        getattr(model, register)(hook)

    trains_as_in_torch(through, hooked, by_name=False)
