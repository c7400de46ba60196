"""The HongTu paper's strategies move what its Algorithm 1 moves, written again here from the paper with numpy sets.

Algorithm 1 (forward) brings, for chunk j of every device i and for every layer, h of the neighbour set N_ij, aggregates
and updates, and writes the new h of the chunk V_ij. Backward brings the gradient of that, brings h of N_ij again (or
the aggregate's output, which section 4.2 keeps where its gradient needs nothing else), and adds the gradient of h of
N_ij to what the host has. Section 5 has a batch bring every row once, for the device that owns it, and keep what the
next batch needs, too. Weights of GCN are D^-1/2 (A + I) D^-1/2, and GCN and GAT aggregate over self-loops as well: both
are in the graph before the first epoch. A layer that needs a vertex's own h beside its neighbours' reads it in place.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hongtu import nn as hnn
from tests import graphs, problems, training
from tests.models import DEEP, SIX, H
from tests.training import GRAINS

WIDTHS = {"gat": (3 * H,)}  # between the two layers; the others have H
LOOPED = ("gcn", "gat")  # the rest reads its own rows in place
RECOMPUTED = ("gat", "ggcn")  # the gradient needs h of the neighbours; the rest keeps the aggregate's output
ITEM = 8  # bytes of a float64


def neighbours(problem, artifact, looped):
    """N_ij by batch, then by device, in the artifact's order of batches; and the device of every vertex."""
    m, n = artifact.schedule_paper.shape
    chunk = np.empty(problem.num_vertices, dtype=int)
    start = artifact.topology.chunk_start
    chunk[artifact.original_id] = np.repeat(np.arange(m * n), np.diff(start))
    source, destination = problem.edges
    if looped:
        every = np.arange(problem.num_vertices)
        source, destination = np.append(source, every), np.append(destination, every)
    by_chunk = [np.unique(source[chunk[destination] == c]) for c in range(m * n)]
    batches = [[by_chunk[i * n + artifact.schedule_paper[i, j]] for i in range(m)] for j in range(n)]
    return batches, chunk // n


def volumes(batches, device, strategy):
    """Rows that one pass brings from the host, and from peers."""
    if strategy == "none":
        return sum(len(rows) for batch in batches for rows in batch), 0
    transition = [np.unique(np.concatenate(batch)) for batch in batches]
    mirrors = [[rows[device[rows] != i] for i, rows in enumerate(batch)] for batch in batches]
    if strategy == "p2p":
        return sum(map(len, transition)), sum(len(rows) for batch in mirrors for rows in batch)
    loaded, pulled = len(transition[0]), sum(map(len, mirrors[0]))
    for j in range(1, len(batches)):
        loaded += len(np.setdiff1d(transition[j], transition[j - 1]))
        pulled += sum(len(np.setdiff1d(now, before)) for now, before in zip(mirrors[j], mirrors[j - 1], strict=True))
    return loaded, pulled


def algorithm_1(name, widths, vertices, loaded, pulled):
    """Bytes of rows over every link in an epoch."""
    found = dict.fromkeys(("load", "pull", "push", "flush", "read", "write"), 0)
    for before, after in itertools.pairwise(widths):
        own, brings = name not in LOOPED, 1 + (name in RECOMPUTED)
        kept = name not in RECOMPUTED
        found["load"] += brings * loaded * before
        found["pull"] += brings * pulled * before
        found["push"] += pulled * before
        found["flush"] += loaded * before
        # forward: own h; backward: the gradient, own h again, what was kept
        found["read"] += vertices * (own * before + after + own * before + kept * before)
        # forward: the new h (of the last layer its gradient, for the loss follows at once), what is kept; then own
        # gradient
        found["write"] += vertices * (after + kept * before + own * before)
    return {link: ITEM * columns for link, columns in found.items()}


def check_volumes(model, problem, grain, strategy):
    """Counted = written down above, link by link, and the numbers are those of the whole graph."""
    artifact = problems.prepare(problem, *grain)
    trainer = training.check(model, problem, grain, epochs=1, strategy=strategy)
    batches, device = neighbours(problem, artifact, model.name in LOOPED)
    widths = (problem.width, *WIDTHS.get(model.name, (H,)), problem.classes)
    expected = algorithm_1(model.name, widths, problem.num_vertices, *volumes(batches, device, strategy))
    expected["read"] += problem.num_vertices * (trainer.plan.shape.label_bytes + 1)  # and whether it has a loss
    assert {link: trainer.plan.bytes[link] for link in expected} == expected  # equal to what was counted


@pytest.mark.every
@pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
@pytest.mark.parametrize("strategy", ["none", "p2p", "paper"])
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_algorithm_1_on_an_awkward_graph(model, strategy, grain):
    check_volumes(model, problems.awkward(), grain, strategy)


@pytest.mark.most(4)
@pytest.mark.long
@pytest.mark.parametrize("graph", ["planetoid-citeseer", "web-cnr-2000"])
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_algorithm_1_on_a_real_graph(model, graph, data_graph):
    check_volumes(model, problems.real(data_graph(graph)), (4, 8), "paper")


def test_layers_that_would_need_different_edges_stay_once_per_vertex():
    trainer = training.make_trainer(DEEP, problems.awkward(), (2, 3), strategy="paper")
    assert all(layer.once_per_vertex for layer in trainer.model)
    assert trainer.plan.topology.num_edges == problems.awkward().edges.shape[1]
    trainer = training.make_trainer(SIX[0], problems.awkward(), (2, 3), strategy="paper")
    assert not any(layer.once_per_vertex for layer in trainer.model)


@pytest.mark.parametrize("change", ["dropout", "map", "subclass"])
def test_a_layer_whose_map_may_not_be_repeated_stays_once_per_vertex(change):
    layer = {"subclass": OwnGAT}.get(change, hnn.GATConv)(6, 3)
    assert hnn.GATConv(6, 3).paper_edges is not None
    if change == "dropout":
        layer.attention_dropout.p = 0.5
    elif change == "map":
        layer.lin.register_forward_hook(lambda *_: None)
    assert layer.paper_edges is None


class OwnGAT(hnn.GATConv):
    def transform(self, h):
        return super().transform(2 * h)


@pytest.mark.parametrize("model", [SIX[0], SIX[4], SIX[5]], ids=repr)
def test_a_budget_that_is_too_small_in_every_form_is_refused(model):
    """The last that is tried is the paper's form, of a model that was traced in the other."""
    problem = problems.awkward()
    assert training.smallest_budget(problems.prepare(problem, 2, 3), lambda: model.build(problem)) > 1000


def test_a_graph_without_edges_gets_loops():
    problem = problems.problem_of(graphs.Graph("no edges", np.zeros((2, 0), dtype=int), None, 9))
    training.check(SIX[0], problem, (1, 2), epochs=2, strategy="paper")
