"""torch_geometric's convolutions between types give the same with kernels in them, and make no row for each edge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hongtu.model.typed_kernels import HgtWithKernels, WithKernels, has_kernels

SOURCES, OWN, EDGES, F = 90, 40, 5000, 8
CONVS: dict[str, Any] = {
    "mean": lambda: pyg.SAGEConv((F, F), F),
    "sum": lambda: pyg.SAGEConv((F, F), F, aggr="sum", normalize=True),
    "projected": lambda: pyg.SAGEConv((F, F), F, project=True),
    "graph": lambda: pyg.GraphConv((F, F), F),
    "gin": lambda: pyg.GINConv(torch.nn.Linear(F, F), train_eps=True),
    "gat": lambda: pyg.GATConv((F, F), F // 2, heads=2, add_self_loops=False),
    "own loops": lambda: pyg.GATConv((F, F), F // 2, heads=2),
    "gcn": lambda: pyg.GCNConv(F, F, normalize=False),
}
RELATIONS = [("a", "to", "b"), ("a", "and", "b"), ("b", "to", "b"), ("b", "back", "a"), ("a", "self", "a")]


def edges(sources: int, destinations: int, *, ordered: bool, count: int = EDGES) -> Tensor:
    ends = torch.stack([torch.randint(sources, (count,)), torch.randint(1, destinations, (count,))])
    return ends[:, ends[1].argsort(stable=True)] if ordered else ends


def found(call: Any, given: list[Tensor], parameters: Any) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in given]
    out = call(*leaves)
    out = torch.cat([*out.values()]) if isinstance(out, dict) else out
    numbers = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    return [out, *torch.autograd.grad((out * numbers).sum(), [*leaves, *parameters], allow_unused=True)]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", CONVS)
def test_a_relation(name: str, weighted: bool, ordered: bool) -> None:
    torch.manual_seed(1)
    conv = CONVS[name]().double()
    assert has_kernels(conv)
    sources = OWN if name == "gcn" else SOURCES
    ends = edges(sources, OWN, ordered=ordered)
    beside = {"edge_weight": torch.rand(EDGES).double()} if weighted and name in ("graph", "gcn") else {}
    given = [torch.randn(count, F).double() for count in ((OWN,) if name == "gcn" else (SOURCES, OWN))]
    takes = (lambda x: x) if name == "gcn" else (lambda *x: x)
    results = [
        found(lambda *x, of=of: of(takes(*x), ends, **beside), given, conv.parameters())
        for of in (conv, WithKernels(conv))
    ]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("widths", [(F, F, F), (3, 5, F), (F, 3, 2 * F)])
def test_hgt(widths: tuple[int, int, int]) -> None:
    """With types of several widths, several relations to one type, one without edges, and one that nothing goes to."""
    torch.manual_seed(2)
    columns, counts = dict(zip("abc", (*widths[:2], 4), strict=True)), {"a": SOURCES, "b": OWN, "c": 6}
    relations = [*RELATIONS, ("c", "to", "a")]
    conv: Any = pyg.HGTConv(columns, widths[2], (list(counts), relations), heads=2).double()
    for p in conv.parameters():
        torch.nn.init.normal_(p)
    ends = {r: edges(counts[r[0]], counts[r[2]], ordered=False, count=0 if r[1] == "self" else 300) for r in relations}
    given = [torch.randn(counts[kind], columns[kind]).double() for kind in counts]

    def run(of: Any) -> Any:
        def call(*x: Tensor) -> Any:
            rows = dict(zip(counts, x, strict=True))
            return of(rows, ends, **({} if of is conv else {"own": rows}))

        return call

    results = [found(run(of), given, conv.parameters()) for of in (conv, HgtWithKernels(conv))]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


class Doubled(pyg.SAGEConv):
    def message(self, x_j: Tensor) -> Tensor:
        return 2 * x_j


def hooked() -> Any:
    conv = pyg.GraphConv(F, F)
    conv.register_message_forward_hook(lambda module, given, out: 2 * out)
    return conv


def replaced() -> Any:
    conv: Any = pyg.GINConv(torch.nn.Linear(F, F))
    conv.message = lambda x_j: 2 * x_j
    return conv


def hgt(change: Any) -> Any:
    conv: Any = pyg.HGTConv(F, F, (["a", "b"], [("a", "to", "b")]), heads=2)
    assert has_kernels(conv)
    change(conv)
    return conv


class Scaled(torch.nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hook(module: torch.nn.Module) -> None:
    module.register_forward_hook(lambda module, given, out: out)


OTHERS = {
    "a hook of HGT": lambda: hgt(hook),
    "a hook of its maps": lambda: hgt(lambda conv: hook(conv.kqv_lin.lins["a"])),
    "another map in it": lambda: hgt(lambda conv: conv.out_lin.lins.update({"b": Scaled(F, F)})),
    "its own message": lambda: Doubled((F, F), F),
    "a hook of messages": hooked,
    "another message": replaced,
    "another aggregate": lambda: pyg.SAGEConv((F, F), F, aggr="max"),
    "an aggregation": lambda: pyg.SAGEConv((F, F), F, aggr=pyg.aggr.MedianAggregation()),
    "columns apart": lambda: pyg.SAGEConv((F, F), F, decomposed_layers=2),
    "edge features": lambda: pyg.GINEConv(torch.nn.Linear(F, F)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_something_else_runs_as_it_is(name: str) -> None:
    assert not has_kernels(OTHERS[name]())


class _Largest(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("name", ["mean", "graph", "gat", "hgt"])
def test_no_edge_has_a_row_of_features(name: str) -> None:
    x, own, ends = torch.randn(SOURCES, F), torch.randn(OWN, F), edges(SOURCES, OWN, ordered=True)
    with _Largest() as largest:
        if name == "hgt":
            conv = pyg.HGTConv(F, F, (["a", "b"], [("a", "to", "b")]), heads=2)
            HgtWithKernels(conv)({"a": x, "b": own}, {("a", "to", "b"): ends}, {"a": x[:0], "b": own})
        else:
            WithKernels(CONVS[name]())((x, own), ends)
    assert largest.numbers < EDGES * F / 2
