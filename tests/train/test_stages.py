"""What stages are said to read and write is what their operations do."""

from __future__ import annotations

import pytest
import torch

from hongtu import nn as hnn
from hongtu.kernels.dispatch import as_on_gpu
from hongtu.model.network import Network
from hongtu.model.wiring import as_modules
from hongtu.nn.context import RowContext
from hongtu.plan.passes.shapes import EdgeSweeps, Sweeps
from hongtu.train.tracing.operations import Function, stage_sweeps
from hongtu.train.tracing.trace import GraphForm, trace


def all_of(*layers: object, features: int = 5) -> tuple[tuple[Sweeps, Sweeps, Function], ...]:
    """Of every stage, of what is combined before it, and of the function of edges before it."""
    network = Network(as_modules(layers), RowContext())
    network.modules.eval()
    form = GraphForm(features, torch.float32)
    found = stage_sweeps(network, trace(network, form), form)
    assert not network.modules.training
    return found


def sweeps(*layers: object) -> tuple[Sweeps, ...]:
    return tuple(stage for stage, _, _ in all_of(*layers))


def test_a_sum_over_neighbours_sweeps_nothing_by_itself() -> None:
    """Its linear maps are products, which are counted apart; adding the second to the first is one, too. The bias is
    put where the product is added to it, and its gradient is a sum over rows."""
    first, last = sweeps(hnn.SAGEConv(5, 3))
    assert first == Sweeps() and (last.forward, last.backward) == (2 * 3, 3)
    assert sweeps(hnn.SAGEConv(5, 3, bias=False))[1].forward == 0
    assert last.forward_calls >= 2 and last.backward_calls >= 3


def test_a_row_wise_module_sweeps_what_it_takes_and_gives() -> None:
    """relu reads 5 columns and writes 5; backward reads its output and a gradient, and writes a gradient."""
    first, last = sweeps(torch.nn.ReLU(), hnn.SAGEConv(5, 3))
    assert first == Sweeps(forward=10, forward_calls=1) and last.forward == 2 * 3  # the features get no gradient
    _, middle, _ = sweeps(hnn.SAGEConv(5, 4), torch.nn.ReLU(), hnn.SAGEConv(4, 3))
    assert middle.forward == 2 * 4 + 8 and middle.backward >= 12


@pytest.mark.parametrize("width", [3, 40])
def test_sweeps_grow_with_columns(width: int) -> None:
    layers = [hnn.SAGEConv(5, width), torch.nn.ReLU(), torch.nn.Tanh(), hnn.SAGEConv(width, 3)]
    assert sweeps(*layers)[1].forward == 2 * width + 4 * width  # SAGE's bias, then both functions


def test_randomness_and_parameters_stay_as_they_were() -> None:
    torch.manual_seed(3)
    layers = [hnn.SAGEConv(5, 4), torch.nn.Dropout(0.5), hnn.GCNConv(4, 3)]
    expected = torch.get_rng_state()
    assert sweeps(*layers)[1].forward > 0
    assert torch.equal(torch.get_rng_state(), expected)
    assert all(p.grad is None for layer in layers for p in layer.parameters())


def test_what_is_combined_with_a_sum_counts_beside_it() -> None:
    """GCN adds a self-loop (a, s and one number a row read, one written) and scales (the same); its gradient does so,
    too. A sum alone is the engine's."""
    _, (_, combine, _) = all_of(hnn.GCNConv(5, 3))
    assert combine.forward >= 2 * 5 + 4 * 5 and combine.backward >= 4 * 5
    assert combine.forward_calls >= 2 and combine.backward_calls >= 2
    nothing = Sweeps(), (EdgeSweeps(), EdgeSweeps())
    assert all(found[1:] == nothing for found in all_of(hnn.SAGEConv(5, 4), hnn.SAGEConv(4, 3)))


def function(layer: hnn.Layer, features: int = 5) -> Function:
    return all_of(layer, features=features)[1][2]


@pytest.mark.parametrize("width", [3, 40])
def test_gates_find_two_columns_for_every_one_they_give(width: int) -> None:
    """Query and value of every edge's source; backward finds both for the keys, and again to add to their gradients."""
    forward, backward = function(hnn.GGCNConv(5, width))
    assert (forward.walks, forward.rows) == (1, 2 * width)
    assert (backward.walks, backward.rows) == (2, (2 + 2 + 2 * 2) * width)
    assert forward.calls > 0 and backward.calls > 0
    assert forward.destinations >= 2 * width  # keys, and what it gives
    assert backward.sources >= 2 * width  # the gradient begins with nothing


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_finds_rows_and_goes_through_its_logits(heads: int) -> None:
    """Logits and rows of every edge's source; backward adds to both gradients, and finds rows for the shares'. One
    operation finds them together in backward."""
    forward, backward = function(hnn.GATConv(5, 4, heads=heads))
    width = 4 * heads
    assert (forward.walks, forward.rows) == (2, heads + width + heads)
    assert (backward.walks, backward.rows) == (1, 3 * (width + heads))
    with as_on_gpu():
        forward, backward = function(hnn.GATConv(5, 4, heads=heads))
    assert (forward.walks, forward.rows) == (2, width + heads + heads)
    assert backward.walks == 3
    assert backward.rows == 2 * (width + heads) + (width + heads) + 2 * heads + width - width
    assert forward.edges > 3 * heads and backward.edges > 3 * heads
    assert forward.calls > function(hnn.GGCNConv(5, 4))[0].calls


class PerEdge(hnn.Layer):
    """A user's function of edges, by torch's own operations."""

    linear_aggregate = False

    def aggregate(self, block, z, s):  # type: ignore[no-untyped-def]
        return block.segment_sum(block.gather(z).tanh())

    def update(self, a, s):  # type: ignore[no-untyped-def]
        return a


def test_functions_of_users_touch_rows_of_edges() -> None:
    forward, backward = function(PerEdge())
    assert (forward.walks, forward.rows, backward.walks, backward.rows) == (1, 5, 1, 2 * 5)
    assert 4 * 5 <= forward.edges < 5 * 5 and backward.edges >= 5 * 5  # gathered, tanh, summed: ids count, too


def test_what_backward_needs_is_saved_once() -> None:
    """The hidden rows, which are no output where the next layer maps them first; relu and the map save the same."""
    assert sweeps(torch.nn.Linear(5, 7), torch.nn.ReLU(), hnn.GCNConv(7, 3))[0].saved == 7 + 2  # and two factors a row
    assert sweeps(hnn.SAGEConv(5, 7), torch.nn.ReLU(), hnn.SAGEConv(7, 3))[1].saved == 0  # relu's rows are handed on
    assert sweeps(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.ReLU(), hnn.SAGEConv(7, 3))[0].saved == 7


class Gradient(torch.nn.Module):
    """Rows' own gradients of a function of theirs, by what refuses hooks for saved tensors."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: x.sin().sum())(h)


class Named(hnn.Layer):
    """Sums what an embedding has for every source's id: there are five."""

    linear_aggregate = False

    def __init__(self) -> None:
        super().__init__()
        self.names = torch.nn.Embedding(5, 5)

    def aggregate(self, block, z, s):  # type: ignore[no-untyped-def]
        return block.sum(z + self.names(block.sources.long()))

    def update(self, a, s):  # type: ignore[no-untyped-def]
        return a


class Guarded(PerEdge):
    """Refuses gradients that are as large as those of a sum."""

    def aggregate(self, block, z, s):  # type: ignore[no-untyped-def]
        def check(gradient: torch.Tensor) -> None:
            if gradient.norm() > 1:
                raise ValueError("the gradient is too large")

        rows = block.gather(z).tanh()
        if rows.requires_grad:
            rows.register_hook(check)
        return block.segment_sum(rows)


def test_an_estimate_refuses_no_model() -> None:
    assert sweeps(Gradient(), hnn.SAGEConv(5, 3))[0].forward > 0
    for layer in (Named(), Guarded()):
        assert function(layer) == (EdgeSweeps(walks=1, rows=5), EdgeSweeps(walks=1, rows=10))  # as a sum's
