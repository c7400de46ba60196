"""What came after the first six layers is exact on the same grid: every strategy, several m, n and budgets.

Each training epoch also counts what the plan predicts, and stays within the budget (``training.train``).
"""

from __future__ import annotations

import pytest
from torch import nn

from hongtu import nn as hnn
from tests import additions
from tests.models import SIX, modules_of
from tests.training import check, over_grid

BASES = {"Aggregation", "Layer", "Normalization"}  # rows have classes made from them
NO_MODULES = {"degree_histogram"}
ELSEWHERE = {
    "Dropout": "tests/exact/test_dropout_training.py",  # random: the same for every grain, but nobody else's
    "EdgeDropout": "tests/exact/test_dropped_edges.py",
    "GatedGCNConv": "tests/exact/test_edge_states.py",  # edges have values of their own
    "MeshBlock": "tests/exact/test_edge_states.py",
}


@pytest.mark.every
@pytest.mark.long
@over_grid
@pytest.mark.parametrize(("model", "problem"), additions.ROWS, ids=[repr(model) for model, _ in additions.ROWS])
def test_exact_and_counted(model, problem, grain, strategy):
    """Isolated vertices, a hub, duplicate edges and repeated loops; in the smallest budget, on one device and on four,
    and, where plans depend on budgets, without any."""
    smallest = ["smallest"] if grain in ((1, 7), (4, 8)) else []
    epochs = 1 if grain == (4, 8) and strategy != "full" else 2
    for budget in (*smallest, None) if strategy == "full" or not smallest else smallest:
        check(model, problem(), grain, epochs=epochs, strategy=strategy, device_memory=budget, seed=additions.SEED)


def test_the_table_holds_every_public_class():
    """No class of hongtu.nn without a row of its own."""
    models = [(model, problem()) for model, problem in additions.ROWS]
    used = {part for model, problem in models for part in modules_of(model.build(problem)).modules()}
    used |= {part for model in SIX for part in modules_of(model.layers(6, 3)).modules()}
    names = {base.__name__ for part in used for base in type(part).__mro__ if base.__module__.startswith("hongtu")}
    public = set(hnn.__all__) - NO_MODULES - ELSEWHERE.keys()
    assert BASES <= public <= names, public - names
    assert all(issubclass(getattr(hnn, name), nn.Module) for name in public)
