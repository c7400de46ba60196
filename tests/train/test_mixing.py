"""Models that mix rows are refused, and no others, whatever shapes they have inside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.model.network import Network
from hongtu.model.wiring import as_modules
from hongtu.nn.context import RowContext
from hongtu.plan.passes.shapes import NO_EDGE_DATA, EdgeData
from hongtu.train import network_plan
from hongtu.train.tracing import shape
from hongtu.train.tracing.mixing import EDGES, refuse_mixing
from hongtu.train.tracing.trace import GraphForm, trace
from tests import problems
from tests.train.mixing_models import ALONE, CLASSES, MIXING, F, Of, Traced, as_module, differs, judged


def look(layers: list[Any], features: int = F, edges: EdgeData = NO_EDGE_DATA, weights: bool = False) -> None:
    network = Network(as_modules(layers), RowContext())
    form = GraphForm(features, torch.float32, edges, weights)
    trace(network, form)
    refuse_mixing(network, form)


NUMBERED = {
    "fewer than columns": lambda h: torch.cat([h[:8] * 2, h[8:]]),
    "too many to look at": lambda h: torch.cat([h[:3000000] * 2, h[3000000:]]),
    "written": lambda h: zeroed(h, slice(None, 100)),
    "from behind": lambda h: zeroed(h, slice(-50, None)),
    "counted": lambda h: h * (torch.arange(len(h)) < 60).to(h.dtype).unsqueeze(1),
    "counted from": lambda h: h.where(torch.arange(len(h)).unsqueeze(1) >= 200, 0.0),
}


def zeroed(h, where):
    out = h.clone()
    out[where] = 0.0
    return out


@pytest.mark.parametrize("rows", NUMBERED)
def test_rows_by_their_number(rows):
    """Users before items, say: whatever the number, though the rows that are judged are fewer."""
    with pytest.raises(InputError, match="mixes the rows of its input"):
        look([hnn.GCNConv(F, F), Of(NUMBERED[rows]), hnn.GCNConv(F, CLASSES)])


FAR = [name for name in MIXING if {"far", "seasonal", "before", "period"} & {*name.split()}]


@pytest.mark.parametrize("name", [*FAR, "columns far away", "far and back", "many pieces"])
@pytest.mark.parametrize("lag", [7, 24, 97, 679, 5040])
def test_rows_that_are_far_away(name, lag, monkeypatch):
    """Whatever number of rows lies between, those that are judged have no period."""
    torch.manual_seed(lag)
    mixes = name in MIXING
    monkeypatch.setattr("tests.train.mixing_models.drawn_lag", lambda: lag)
    part = as_module((MIXING if mixes else ALONE)[name]())
    with pytest.raises(InputError, match="mixes the rows of its input") if mixes else nullcontext():
        look([hnn.GCNConv(F, F), part, hnn.GCNConv(F, CLASSES)])


@pytest.mark.parametrize("first", range(0, 40, 5))
def test_random_models(first: int) -> None:
    """All of 300: ``python -m tests.train.mixing_models``."""
    assert [wrong for number in range(first, first + 5) if (wrong := judged(number))] == []


@pytest.mark.filterwarnings("ignore:std:UserWarning")  # of one row
def test_it_is_known_which_parts_mix() -> None:
    torch.manual_seed(0)
    assert [name for name, make in MIXING.items() if not differs(make())] == []
    assert [name for name, make in ALONE.items() if name != "noise" and differs(make())] == []


@pytest.mark.parametrize("name", ["encoder over rows", "detached gate", "context in a module", "softmax over rows"])
def test_one_partition_and_one_chunk_are_no_exception(name: str) -> None:
    """Where nothing is refused, ``prune`` leaves out rows."""
    problem = problems.awkward()
    model = Traced([pyg.SAGEConv(problem.width, F), pyg.SAGEConv(F, F)], [[], [MIXING[name]()], []])
    with pytest.raises(InputError, match="mixes the rows"):
        hongtu.Trainer(problems.prepare(problem, 1, 1), hongtu.from_pyg(model))


@pytest.mark.parametrize(
    ("part", "title"),
    [
        (lambda h: h * torch.softmax(h.sum(1), 0).unsqueeze(1), r"layers\[\d\] \(function [a-z_]*softmax[a-z_]*\)"),
        (lambda h: torch.relu(h + h.mean(0)), r"layers\[\d\] \(function [a-z_]*mean[a-z_]*\)"),
        (lambda h: h.unsqueeze(0).flip(1).squeeze(0) * 2, r"layers\[\d\] \(function [a-z_]*flip[a-z_]*\)"),
        (nn.Sequential(nn.ReLU(), nn.Softmax(0)), r"layers\[1\] \(Softmax\)"),
        (nn.RNN, None),
    ],
)
def test_the_module_that_mixes_is_named(part: Any, title: str | None) -> None:
    if title is None:  # in the form of a list
        layers = [hnn.GCNConv(F, F), nn.Tanh(), Of(lambda h, of: of(h)[0], nn.RNN(F, F)), hnn.GCNConv(F, CLASSES)]
        title = r"layers\[2\] \(Of\)"
    elif isinstance(part, nn.Sequential):
        layers = [hnn.GCNConv(F, F), part[1], nn.Linear(F, CLASSES)]
    else:
        layers = hongtu.from_pyg(Traced([pyg.GCNConv(F, F)], [[], [part]]))
    with pytest.raises(InputError, match=rf"^{title} mixes the rows of its input"):
        look(layers)


@pytest.mark.parametrize(
    ("part", "title", "columns"),
    [
        (Of(lambda e: e - e.mean(0)), "Of", 3),
        (Of(lambda e: e.flip(0)), "Of", len(EDGES)),
        (nn.Softmax(0), "Softmax", 2),
        (Of(lambda e: e.cumsum(0).tanh()), "Of", 1),
    ],
)
def test_the_module_that_mixes_states_of_edges_is_named(part: Any, title: str, columns: int) -> None:
    """And not the layer that gives them, with which it is computed."""
    layers = [hnn.MeshBlock(F, columns), (part, "e -> e"), hnn.MeshBlock(F, columns), nn.Linear(F, CLASSES)]
    with pytest.raises(InputError, match=rf"^layers\[1\] \({title}\) mixes the rows of its input"):
        look(layers, edges=EdgeData(columns, 0))


class Own(hnn.Layer):
    """A layer of one's own: what it does with a block and its rows."""

    uses_edge_features = uses_edge_type = True

    def __init__(self, function: Callable[[hnn.Block, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.lin = function, nn.Linear(F, CLASSES)

    def forward(self, block: hnn.Block, h: Tensor) -> Tensor:
        return self.lin(self.function(block, h))


def over_uses(block: hnn.Block, h: Tensor) -> Tensor:
    """By how often a source is read in the chunk."""
    uses = torch.bincount(block.local_source.long(), minlength=len(h)).clamp(min=1)
    return block.sum(h / uses.unsqueeze(1))


def types(block: hnn.Block, h: Tensor) -> Tensor:
    assert block.edge_type is not None
    return block.sum_by_type(h, 3).sum(0)


def of_edges(change: Callable[[Tensor], Tensor]) -> Callable[[hnn.Block, Tensor], Tensor]:
    def call(block: hnn.Block, h: Tensor) -> Tensor:
        assert block.edge_features is not None
        return block.segment_sum(block.gather(h) * change(block.edge_features)[:, :1])

    return call


def weighted(change: Callable[[Tensor], Tensor]) -> Callable[[hnn.Block, Tensor], Tensor]:
    def call(block: hnn.Block, h: Tensor) -> Tensor:
        weight = torch.ones(block.num_edges) if block.edge_weight is None else block.edge_weight
        return block.segment_sum(block.gather(h) * change(weight).unsqueeze(1))

    return call


def by_degree(change: Callable[[Tensor], Tensor]) -> Callable[[hnn.Block, Tensor], Tensor]:
    return lambda block, h: block.sum(h) * change(block.in_degree.to(h.dtype)).unsqueeze(1)


@pytest.mark.parametrize(
    "function",
    [
        over_uses,
        by_degree(lambda d: d / d.max()),
        by_degree(lambda d: d - d.mean()),
        of_edges(lambda x: x - x.mean(0)),
        of_edges(lambda x: x.cumsum(0)),
        weighted(lambda w: w / w.sum()),
        weighted(lambda w: w.softmax(0)),
        lambda block, h: block.sum(h) / block.num_edges,
        lambda block, h: block.sum(h - h.mean(0)),
        lambda block, h: block.sum(h) + h[0],
        lambda block, h: block.sum(h) / block.num_src,
        lambda block, h: block.segment_sum(block.gather(h).softmax(0)),
    ],
)
def test_aggregates_that_depend_on_other_destinations_are_refused(function: Any) -> None:
    with pytest.raises(InputError, match=r"layers\[1\] \(Own\)\.aggregate mixes the rows"):
        look([nn.Tanh(), Own(function)], edges=EdgeData(2, 3), weights=True)


@pytest.mark.parametrize(
    "function",
    [
        types,
        by_degree(lambda d: d / (1 + d)),
        of_edges(torch.sin),
        weighted(lambda w: w + 1),
        lambda block, h: block.reduce(h, ["max", "std", "softmax"])[:, :F],
        lambda block, h: block.sum(h) + h[: block.num_dst],
        lambda block, h: block.attend(h, block.softmax(block.gather(h)[:, :2]), F),
    ],
)
def test_aggregates_of_ones_own_edges_are_taken(function: Any) -> None:
    look([nn.Tanh(), Own(function)], edges=EdgeData(2, 3), weights=True)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [hnn.GCNConv(F, F), nn.BatchNorm1d(F), hnn.GCNConv(F, F), hnn.PairNorm()],
        lambda: [hnn.GCNConv(F, F), hnn.GraphNorm(F), hnn.GENConv(F, F)],
        lambda: [hnn.GATConv(F, F), hnn.BatchNorm(F, track_running_stats=False), hnn.PNAConv(
            F, F, ["mean", "std"], ["identity", "amplification"], torch.tensor([1, 2, 1]))],
        lambda: [hnn.RGCNConv(F, F, 3), hnn.GMMConv(F, F, dim=2, kernel_size=2), hnn.SAGEConv(F, F)],
    ],
)  # fmt: skip
def test_statistics_of_the_whole_graph_and_built_in_layers_are_taken(layers: Any) -> None:
    look(layers(), edges=EdgeData(2, 3))


@pytest.mark.parametrize(
    "part",
    [
        lambda h: torch.where(h > h.mean() + 3 * h.std(), h * 0, h),
        lambda h: h * ((h - h.mean(0)).abs() <= 4 * h.std(0)),
        lambda h: h.masked_fill(h.abs() < 1e-3 * h.abs().max(), 0.0),
        lambda h: h * (h.norm(dim=1) <= 5 * h.norm(dim=1).mean()).unsqueeze(1),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_thresholds_of_all_rows_are_refused_however_few_rows_they_change(part: Any, seed: int) -> None:
    torch.manual_seed(seed)
    layers = hongtu.from_pyg(Traced([pyg.GCNConv(F, F), pyg.SAGEConv(F, F)], [[], [], [part]]))
    with pytest.raises(InputError, match="mixes the rows of its input"):
        look(layers)


@pytest.mark.parametrize(
    "part",
    [
        lambda h: torch.where(h > h.mean(1, keepdim=True), h, h * 0),
        lambda h: h * (h > 0.5) + (h <= 0.5),
        lambda h: h.masked_fill(h.abs() < 1e-3 * h.abs().amax(1, keepdim=True), 0.0),
        lambda h: torch.where(h.isnan(), 0.0, h) * (h.norm(dim=1) <= 5).unsqueeze(1),
    ],
)
def test_thresholds_of_rows_themselves_are_taken(part: Any) -> None:
    torch.manual_seed(0)
    look(hongtu.from_pyg(Traced([pyg.GCNConv(F, F), pyg.SAGEConv(F, F)], [[], [], [part]])))


def test_thousands_of_columns_are_no_mixing() -> None:
    """Sums of so many numbers are rounded by where rows lie."""
    for seed in range(3):
        torch.manual_seed(seed)
        look([hnn.RGCNConv(23_644, 16, 20, num_bases=3), hnn.RGCNConv(16, 4, 20)], 23_644, EdgeData(0, 20))


class Drawn(nn.Module):
    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, h: Tensor) -> Tensor:
        return h * self.draw(h)


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        lambda h: torch.poisson(h.abs() * 30),  # how many numbers it takes depends on rows
        lambda h: torch.bernoulli(h.sigmoid()),
        lambda h: nn.functional.dropout(h, 0.5),
        lambda h: torch.distributions.Gamma(h.exp(), 1.0).sample(),
    ],
)
def test_numbers_that_torch_draws_are_no_mixing(draw: Any) -> None:
    look([hnn.GCNConv(F, F), Drawn(draw), nn.Linear(F, CLASSES)])


@pytest.mark.parametrize(
    "draw",
    [
        lambda h: torch.rand(h.shape[1]),
        lambda h: (torch.rand(1) < 0.5).to(h.dtype),  # of a layer that is left out at times
        lambda h: nn.functional.dropout(torch.ones(1, F), 0.5),
        lambda h: torch.rand_like(h) * torch.randn(1, F),
        lambda h: nn.functional.linear(h, nn.functional.dropout(torch.eye(F), 0.5)),
    ],
)
def test_numbers_that_all_rows_share_are_refused(draw: Any) -> None:
    """Every chunk would draw others, where the whole graph has the same in all rows."""
    with pytest.raises(InputError, match="draws random numbers that are not those of one row"):
        look([hnn.GCNConv(F, F), Drawn(draw), nn.Linear(F, CLASSES)])


def test_numbers_that_others_draw_are_named() -> None:
    """Backward computes the rows of a chunk again, by other numbers."""
    noise = Drawn(lambda h: torch.from_numpy(np.random.default_rng().random(h.shape)).to(h.dtype))
    with pytest.raises(InputError, match=r"layers\[1\] \(Drawn\) gives other numbers when it is called again"):
        look([hnn.GCNConv(F, F), noise, nn.Linear(F, CLASSES)])


def test_rows_that_a_module_wants_in_some_range_are_given_so() -> None:
    """Numbers beyond would be no index, and no probability."""
    kinds = Of(lambda h, table: h + table((h[:, 0] * 2).long() + 2), nn.Embedding(5, F))
    look([kinds, hnn.GCNConv(F, F), nn.Sigmoid(), hnn.GCNConv(F, F)])
    with pytest.raises(InputError, match="mixes the rows"):
        look([Of(lambda h, table: table((h[:, 0] * 2).long() + 2).cumsum(0), nn.Embedding(5, F)), hnn.GCNConv(F, F)])


class Mean(torch.autograd.Function):
    """A linear map whose weight has the mean of gradients over rows."""

    @staticmethod
    def forward(ctx, h, weight):
        ctx.save_for_backward(h, weight)
        return h @ weight

    @staticmethod
    def backward(ctx, grad):
        h, weight = ctx.saved_tensors
        return grad @ weight.t(), h.t() @ grad / len(h)


def looked_up(function):
    """Of kinds that a row says."""
    return Of(lambda h, table: function((h[:, 0].sigmoid() * 4).long(), table), nn.Embedding(5, F))


COUNTED = {
    "function": lambda: looked_up(
        lambda kinds, table: functional.embedding(kinds, table.weight, scale_grad_by_freq=True)
    ),
    "bag": lambda: looked_up(
        lambda kinds, table: functional.embedding_bag(kinds[:, None], table.weight, mode="sum", scale_grad_by_freq=True)
    ),
    "mean": lambda: Of(lambda h, of: Mean.apply(h, of.weight), nn.Linear(F, F)),
    "hook": lambda: of_unit_gradient(nn.Identity()),
    "hook of a layer": lambda: of_unit_gradient(nn.Linear(F, F)),
}


def of_unit_gradient(module):
    module.register_full_backward_hook(lambda module, given, out: (given[0] / given[0].norm(),))
    return module


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("drops", [0.0, 0.5])
def test_gradients_of_parameters_that_count_rows_are_refused(name, drops):
    layers = [hnn.GCNConv(F, F), COUNTED[name](), nn.Dropout(drops), hnn.GCNConv(F, CLASSES)]
    with pytest.raises(InputError, match=r"weight is no sum over rows, as of an Embedding that counts .* hook's"):
        look(layers)
    plain = looked_up(lambda kinds, table: table(kinds))
    look([hnn.GCNConv(F, F), plain, hnn.BatchNorm(F), hnn.GCNConv(F, CLASSES)])


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("option", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}, {"sparse": True}])
def test_embeddings_that_are_others_in_chunks_are_refused(kind, option):
    problem, inside = problems.awkward(), Of(lambda h, table: h + table.weight[0], kind(5, F, **option))
    with pytest.raises(InputError, match=rf"layers\[1\] \(Of\): its {kind.__name__} has.*{next(iter(option))}"):
        hongtu.Trainer(problems.prepare(problem, 1, 1), [hnn.GCNConv(problem.width, F), inside, hnn.GCNConv(F, 3)])


def test_models_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many plans are tried; a module is called a few dozen times."""
    looks, calls = [], []

    def counted(*args: Any, **options: Any) -> None:
        before = len(calls)
        refuse_mixing(*args, **options)
        looks.append(len(calls) - before)

    monkeypatch.setattr(shape, "refuse_mixing", counted)
    part = Of(lambda h: calls.append(1) or h.relu())
    layers = [hnn.GCNConv(6, F), part, hnn.GCNConv(F, F), hnn.SAGEConv(F, 3)]
    hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers, device_memory="100KiB")
    assert len(looks) == 1 and looks[0] <= 30
    assert network_plan.MOST_SIDES > 1  # of which there are several to try
