"""Rows told apart by their own numbers do not mix, however large these are; rows told by their places do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.data import HeteroData

import hongtu
from hongtu.model.rows_alone import ROWS, Function, Result, find_mixture

LARGE = 10**9
OWN: dict[str, Any] = {
    "before a number": lambda h, ids: h * (ids < LARGE).to(h.dtype).unsqueeze(1),
    "from a number on": lambda h, ids: h.where((ids >= LARGE).unsqueeze(1), 2 * h),
    "one of two": lambda h, ids: h + torch.isin(ids, torch.tensor([LARGE, LARGE + 1])).to(h.dtype).unsqueeze(1),
    "one alone": lambda h, ids: h + (ids == LARGE).to(h.dtype).unsqueeze(1),
    "in a range": lambda h, ids: h * ((ids - LARGE >= 0) & (ids - LARGE < LARGE)).to(h.dtype).unsqueeze(1),
}
PLACES: dict[str, Any] = {
    "counted": lambda h, ids: h * (torch.arange(len(h)) < LARGE).to(h.dtype).unsqueeze(1),
    "counted beside the own": lambda h, ids: h * (torch.arange(len(h)) + 0 * ids < LARGE).to(h.dtype).unsqueeze(1),
    "counted by columns": lambda h, ids: h * (torch.ones_like(h).long().cumsum(0) <= LARGE).to(h.dtype),
}


def mixture(of: Any) -> Any:
    given = (torch.randn(ROWS, 5), torch.arange(ROWS) * 2 * LARGE // ROWS)
    return find_mixture(Function(lambda x: Result([of(*x)]), given, leaves=1, near=1e-6, brief=True))


@pytest.mark.parametrize("of", OWN)
def test_what_a_rows_own_number_tells_is_no_mixing(of: str) -> None:
    assert mixture(OWN[of]) is None


@pytest.mark.parametrize("of", PLACES)
def test_what_its_place_tells_is_mixing(of: str) -> None:
    found = mixture(PLACES[of])
    assert found is not None and found.place


@pytest.mark.parametrize("make", [pyg.SAGEConv, pyg.GraphConv, pyg.GATConv])
def test_types_of_many_vertices(make: Any, tmp_path: Any) -> None:
    """A row's type is told by its number, which is larger than the number of rows that can be looked at."""
    torch.manual_seed(0)
    relations, counts, data = [("a", "to", "b"), ("b", "to", "a")], {"a": 3_000_000, "b": 200_000}, HeteroData()
    for kind, count in counts.items():
        data[kind].x = torch.randn(count, 2)
    for source, _, to in relations:
        ends = [torch.randint(counts[kind], (50,)) for kind in (source, to)]
        data[source, "to", to].edge_index = torch.stack(ends)
    data["b"].y, data["b"].train_mask = torch.randint(3, (counts["b"],)), torch.rand(counts["b"]) < 0.5
    own = {} if make is not pyg.GATConv else {"add_self_loops": False}
    model = pyg.HeteroConv({relation: make((2, 2), 3, **own) for relation in relations})
    hongtu.preprocess_graph(data=data, artifact=tmp_path / "graph", partitions=1, chunks=1, order="input")
    trainer = hongtu.Trainer(tmp_path / "graph", hongtu.from_pyg(model), loss="cross_entropy")
    out = model(data.x_dict, data.edge_index_dict)["b"]
    mask = data["b"].train_mask
    torch.testing.assert_close(
        torch.tensor(trainer.train_epoch().loss), torch.nn.functional.cross_entropy(out[mask], data["b"].y[mask])
    )
