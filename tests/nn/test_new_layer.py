"""A layer of a kind that nobody thought of, written from docs/layers.md alone: it reads edge features, has parameters
of its own on edges and gives two outputs, all in ``forward(block, h)`` (``additions.Tides``; exact in the table)."""

from __future__ import annotations

import pytest

from tests import additions, problems, staged, training
from tests.training import STRATEGIES, check

[TIDES] = [model for model in additions.EDGES if repr(model) == "tides"]


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pruned_chunks_and_chunks_without_edges(strategy):
    problem = problems.with_edge_data(problems.few_train())
    check(TIDES, problem, (2, 3), epochs=2, strategy=strategy, device_memory="smallest")


@pytest.mark.long
def test_it_is_exact_on_devices_with_memory_of_their_own():
    staged.check(TIDES, problems.edge_data(), (4, 8), device=staged.simulated(seed=1), device_memory="smallest")


def test_its_parameters_on_edges_are_priced():
    problem = problems.edge_data()
    trainer = training.make_trainer(TIDES, problem, (2, 3), device_memory="smallest")
    each_with_its_gradient = 2 * 8 * problem.edges.shape[1]
    assert trainer.plan.shape.model_bytes > 2 * each_with_its_gradient
