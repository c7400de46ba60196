"""Accuracy on Cora and Citeseer with the published recipes.

The suite trains one seed. ``python -m tests.train.test_accuracy`` prints the means of five, and of the same recipes
written with torch_geometric alone.
"""

from __future__ import annotations

import functools
import statistics
from pathlib import Path

import pytest
import torch

import hongtu
from hongtu.nn import GATConv, GCNConv
from tests import problems

EPOCHS = 200


def gcn(features, classes):
    return [
        GCNConv(features, 16, activation="relu", input_dropout=0.5),
        GCNConv(16, classes, input_dropout=0.5),
    ]


def gat(features, classes):
    return [
        GATConv(features, 8, heads=8, dropout=0.6, activation="elu", input_dropout=0.6),
        GATConv(64, classes, dropout=0.6, input_dropout=0.6),
    ]


# layers, learning rate
RECIPES = {"gcn": (gcn, 0.01), "gat": (gat, 0.005)}


def accuracy(problem, recipe, seed, grain=(1, 1), epochs=EPOCHS):
    """Test accuracy after the last of ``epochs``."""
    make, rate = RECIPES[recipe]
    torch.manual_seed(seed)
    trainer = hongtu.Trainer(
        problems.prepare(problem, *grain),
        make(problem.width, problem.classes),
        optimizer=functools.partial(torch.optim.Adam, lr=rate, weight_decay=5e-4),
        seed=seed,
    )
    trainer.fit(epochs)
    return trainer.evaluate()["test"]


@pytest.mark.long
def test_gcn_on_cora(data_graph):
    assert accuracy(problems.planetoid(data_graph("planetoid-cora")), "gcn", 0) >= 0.78


@pytest.mark.long
def test_gat_on_cora(data_graph):
    """Fewer epochs than the recipe's: GAT is slow."""
    assert accuracy(problems.planetoid(data_graph("planetoid-cora")), "gat", 0, epochs=60) >= 0.76


def torch_geometric_accuracy(problem, recipe, seed):
    """The same recipe on the whole graph in torch_geometric."""
    import torch_geometric.nn as pyg
    from torch.nn.functional import cross_entropy, dropout, elu, relu

    torch.manual_seed(seed)
    p, function, rate = {"gcn": (0.5, relu, 0.01), "gat": (0.6, elu, 0.005)}[recipe]
    if recipe == "gcn":
        first, second = pyg.GCNConv(problem.width, 16), pyg.GCNConv(16, problem.classes)
    else:
        first = pyg.GATConv(problem.width, 8, heads=8, dropout=p)
        second = pyg.GATConv(64, problem.classes, dropout=p)
    model = torch.nn.ModuleList([first, second])
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=5e-4)
    x, labels = torch.from_numpy(problem.features), torch.from_numpy(problem.labels)
    masks = {split: torch.from_numpy(mask) for split, mask in problem.masks.items()}

    def forward(training_now):
        h = function(first(dropout(x, p, training_now), problem.edge_index))
        return second(dropout(h, p, training_now), problem.edge_index)

    for _ in range(EPOCHS):
        model.train()
        optimizer.zero_grad()
        cross_entropy(forward(True)[masks["train"]], labels[masks["train"]]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        chosen = forward(False).argmax(1)
    return float((chosen == labels)[masks["test"]].double().mean())


def main(seeds: int = 5) -> None:
    """Print the mean of the seeds for every recipe, ours and torch_geometric's."""
    data = Path(__file__).resolve().parents[3] / "shared" / "data"
    for name, recipe in (("planetoid-cora", "gcn"), ("planetoid-citeseer", "gcn"), ("planetoid-cora", "gat")):
        problem = problems.planetoid(data / name)
        for title, run in (("hongtu", accuracy), ("torch_geometric", torch_geometric_accuracy)):
            found = [run(problem, recipe, seed) for seed in range(seeds)]
            seen = [round(x, 3) for x in found]
            print(f"{name} {recipe} {title}: mean {statistics.mean(found):.4f} of {seen}", flush=True)


if __name__ == "__main__":
    main()
