"""What a forward asks, does and draws while it is traced, which happens once: as in every call, or refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch_geometric.utils
from torch_geometric.data import Data

import hongtu
from hongtu.errors import InputError
from tests.model.test_written_forwards import Written, WrittenOfData, trains_as_in_torch


def either(question):
    """A forward that gives other numbers where the answer is no."""

    def forward(self, x, edge_index):
        rows = x.x if isinstance(self, WrittenOfData) else x
        h = self.last(self.first(rows, edge_index), edge_index)
        return h if question(x, edge_index) else 3 * h

    return forward


YES = {
    "tensor": lambda x, e: isinstance(e, torch.Tensor),
    "one of several": lambda x, e: isinstance(x, tuple | torch.Tensor),
    "is_tensor": lambda x, e: torch.is_tensor(x),
    "no parameter": lambda x, e: not isinstance(x, torch.nn.Parameter),
    "no pair": lambda x, e: not isinstance(x, tuple | list),
    "dense": lambda x, e: not torch_geometric.utils.is_torch_sparse_tensor(e),
    "data": lambda data, e: isinstance(data, Data),
}


@pytest.mark.parametrize("question", YES)
def test_what_rows_and_edges_are(question):
    trains_as_in_torch(either(YES[question]), of_data=question == "data")


def as_it_is(change):
    return lambda self, x, e: self.last(self.first(x, e.to(x.device)), change(e))


CHANGES = {
    "long": lambda e: e.long(),
    "contiguous": lambda e: e.contiguous(),
    "several": lambda e: e.clone().detach().to(torch.int64),
    "dropped before": lambda e: torch_geometric.utils.dropout_edge(e, 0.0)[0].cpu(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_edges_as_they_are(change):
    trains_as_in_torch(as_it_is(CHANGES[change]))


class EdgesFirst(Written):
    def forward(self, edge_index, x):
        return self.write(self, x, edge_index)


class EdgesByName(Written):
    def forward(self, x, *, edge_index):
        return self.write(self, x, edge_index)


@pytest.mark.parametrize("kind", [EdgesFirst, EdgesByName])
def test_arguments_are_known_by_their_names(kind):
    trains_as_in_torch(either(lambda x, e: True), kind=kind)


class Between(Written):
    def forward(self, x, pos, edge_index):
        return self.write(self, x, edge_index)


def test_an_argument_between_rows_and_edges_is_no_edges():
    with pytest.raises(
        InputError, match=r"asks for .pos., expected rows, edges and some of .*; put what else vertices have into x"
    ):
        hongtu.from_pyg(Between(either(lambda x, e: True)))


def test_a_field_that_a_data_may_have_is_not_decided_about():
    for question in (lambda data, e: hasattr(data, "pos"), lambda data, e: getattr(data, "y", None) is None):
        with pytest.raises(InputError, match=r"it asks for '(pos|y)'\); there are x, edge_index"):
            hongtu.from_pyg(WrittenOfData(either(question)))


DRAWS = {
    "python": random.random,
    "numpy": np.random.rand,
    "torch": lambda: torch.rand(1).item(),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_a_forward_that_draws_is_refused_whatever_it_draws(draw):
    for most in (-1, 2):  # in no trace, or in every one
        with pytest.raises(InputError, match="draws random numbers that are not made of rows"):
            hongtu.from_pyg(Written(either(lambda x, e, most=most: DRAWS[draw]() < most)))


def test_a_model_by_hand_of_a_heterodata_is_told_how_to_take_it():
    with pytest.raises(
        InputError, match=r"asks for 'x_dict'\); of a HeteroData .*forward\(self, x_dict, edge_index_dict"
    ):
        hongtu.from_pyg(WrittenOfData(lambda self, data, e: self.first(data.x_dict["paper"], e)))


class FrozenNorm(Written):
    def train(self, mode=True):
        super().train(mode)
        self.part.eval()
        return self


def test_a_way_of_its_own_to_train_is_gone():
    def forward(self, x, edge_index):
        return self.last(self.part(self.first(x, edge_index)), edge_index)

    trains_as_in_torch(forward, lambda model: setattr(model, "part", torch.nn.BatchNorm1d(8).double()), kind=FrozenNorm)


def does(change):
    def forward(self, x, edge_index):
        change(self)
        return self.last(self.first(x, edge_index), edge_index)

    return forward


WRITES = {
    "frozen": (lambda self: self.first.requires_grad_(False), "a parameter of its own, first.lin_l.weight"),
    "a buffer's data": (lambda self: self.columns.data.add_(1), "a buffer of its own, columns"),
    "evaluates": (lambda self: self.first.eval(), r"calls train\(\) or eval\(\) of a SAGEConv, .* before from_pyg"),
}  # fmt: skip


@pytest.mark.parametrize("change", WRITES)
def test_a_forward_that_changes_its_model_is_refused(change):
    change, message = WRITES[change]
    with pytest.raises(InputError, match=message):
        hongtu.from_pyg(Written(does(change)))
