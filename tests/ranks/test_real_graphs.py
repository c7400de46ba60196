"""Ranks on real graphs: one process's loss, gradients, scores and predictions."""

from __future__ import annotations

import pytest
import torch

from tests import problems, training
from tests.additions import NORMS
from tests.models import SIX
from tests.ranks.test_dependencies import DROPPED, JUMPING, check_ranks


def small_steps(parameters):
    """After which hubs of 100,000 in-edges leave the next loss well-conditioned."""
    return torch.optim.SGD(parameters, lr=1e-3)


GRAIN = (4, 4)
MODELS = (*SIX, NORMS[0], JUMPING, DROPPED)


def over_all(*budgets):
    """Models, numbers of ranks, what they depend on, strategies and budgets of device memory."""
    values = {"model": MODELS, "ranks": (2, 3, 4), "dependencies": ("cache", "comm", "hybrid"),
              "strategy": ("none", "paper", "full"), "budget": budgets}  # fmt: skip

    def mark(test):
        for name, of_name in reversed(values.items()):
            test = pytest.mark.parametrize(name, of_name, ids=repr if name == "model" else None)(test)
        return pytest.mark.every(test)

    return mark


def check(model, ranks, problem, budget, **options):
    """``budget`` is in the smallest one that works for one process; ranks that fetch prune nothing, as ``paper``."""
    if budget is not None:
        numbers = {"dtype": torch.float64, "loss": model.loss} | options
        numbers |= {"strategy": "paper"} if options["dependencies"] == "comm" else {}
        options["device_memory"] = int(budget * training.smallest_of(model, problem, GRAIN, **numbers))
    check_ranks(ranks, model, problem, GRAIN, **options)


@pytest.mark.long
@over_all(None, 1.5)
def test_cora(model, ranks, dependencies, strategy, budget, data_graph):
    problem = problems.planetoid(data_graph("planetoid-cora"), 4)
    check(model, ranks, problem, budget, dependencies=dependencies, strategy=strategy)


@pytest.mark.most(3)
@pytest.mark.long(sample=0)
@pytest.mark.parametrize("graph", ("ogbn-arxiv", "web-cnr-2000"))
@over_all(None, 1.5)
def test_large_graphs(graph, model, ranks, dependencies, strategy, budget, data_graph):
    problem, options = problems.real(data_graph(graph)), {"dependencies": dependencies, "strategy": strategy}
    check(model, ranks, problem, budget, optimizer=small_steps, **options)
