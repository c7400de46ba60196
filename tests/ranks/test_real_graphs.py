"""Ranks on real graphs: one process's loss, gradients, scores and predictions."""

from __future__ import annotations

import pytest
import torch

from tests import problems
from tests.additions import CONNECTIONS, NORMS
from tests.models import SIX
from tests.ranks.test_dependencies import DROPPED, JUMPING, check_ranks


def small_steps(parameters):
    """After which hubs of 100,000 in-edges leave the next loss well-conditioned."""
    return torch.optim.SGD(parameters, lr=1e-3)


DEPENDENCIES = ("cache", "comm", "hybrid")
MODELS = (*SIX, NORMS[0], CONNECTIONS[0], DROPPED)


@pytest.mark.long
@pytest.mark.pairs
@pytest.mark.parametrize("strategy", ("none", "paper", "full"))
@pytest.mark.parametrize("dependencies", DEPENDENCIES)
@pytest.mark.parametrize("ranks", (2, 3, 4))
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_cora(model, ranks, dependencies, strategy, data_graph):
    problem = problems.planetoid(data_graph("planetoid-cora"), 4)
    check_ranks(ranks, model, problem, (4, 4), dependencies=dependencies, strategy=strategy)


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("graph", ("ogbn-arxiv", "web-cnr-2000"))
@pytest.mark.parametrize(
    ("model", "ranks", "dependencies", "strategy", "budget"),
    [
        (SIX[0], 4, "hybrid", "full", "30%"), (SIX[1], 3, "comm", "paper", None), (SIX[2], 2, "cache", "none", None),
        (SIX[3], 3, "hybrid", "paper", None), (SIX[4], 4, "comm", "full", "60%"), (SIX[5], 2, "comm", "none", None),
        (NORMS[0], 3, "hybrid", "full", None), (JUMPING, 4, "cache", "full", None), (DROPPED, 2, "comm", "full", None),
    ],
    ids=repr,
)  # fmt: skip
def test_large_graphs(graph, model, ranks, dependencies, strategy, budget, data_graph):
    problem = problems.real(data_graph(graph))
    options = {"optimizer": small_steps, "dependencies": dependencies, "strategy": strategy, "device_memory": budget}
    check_ranks(ranks, model, problem, (4, 4), **options)
