"""torch_geometric's GraphSAGE, trained on sampled batches, classifies as well as after training on the whole graph, and
as on batches of torch_geometric's own loader."""

from __future__ import annotations

import pytest

import hongtu
from experiments.sampled_accuracy import RECIPES, prepared, sampled, whole
from hongtu.bench.baselines import missing

MARGIN = 0.02  # of test accuracy


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("name, epochs, least", [("planetoid-citeseer", 100, 0.6), ("coauthor-physics", 60, 0.9)])
def test_accuracy(name, epochs, least, data_graph, tmp_path):
    artifact, recipe = prepared(data_graph(name), tmp_path / "artifact"), RECIPES[name]
    data, model = whole(artifact), recipe.model(artifact, 0)
    trainer = hongtu.Trainer(artifact, hongtu.from_pyg(model), optimizer=recipe.optimizer)
    trainer.fit(epochs)
    exact = trainer.evaluate()["test"]
    ours = sampled(artifact, data, recipe, "hongtu", 0)
    assert ours >= exact - MARGIN >= least
    if missing("pyg-loader", "sage") is None:
        assert abs(ours - sampled(artifact, data, recipe, "torch_geometric", 0)) <= MARGIN
