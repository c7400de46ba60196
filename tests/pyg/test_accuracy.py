"""torch_geometric's GraphSAGE, trained on sampled batches, classifies as well as after training on the whole graph."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import hongtu
from hongtu.pyg import NeighborLoader
from tests import problems

MARGIN = 0.02  # of test accuracy


ADAM = functools.partial(torch.optim.Adam, lr=0.01, weight_decay=5e-4)


def model_for(problem):
    torch.manual_seed(0)
    return GraphSAGE(problem.width, 32, 2, problem.classes, dropout=0.5)


def whole(problem, epochs):
    """Test accuracy after training on the whole graph."""
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 4), hongtu.from_pyg(model_for(problem)), optimizer=ADAM)
    trainer.fit(epochs)
    return trainer.evaluate()["test"]


def sampled(problem, epochs, batch_size):
    """Test accuracy after as many sweeps over sampled batches."""
    model = model_for(problem)
    optimizer = ADAM(model.parameters())
    loader = NeighborLoader(problems.prepare(problem, 2, 4), [10, 10], batch_size=batch_size)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            size = batch.batch_size
            cross_entropy(model(batch.x, batch.edge_index)[:size], batch.y[:size]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        chosen = model(torch.from_numpy(problem.features), problem.edge_index).argmax(1).numpy()
    return float((chosen == problem.labels)[problem.masks["test"]].mean())


@functools.cache
def physics(directory):
    """A twentieth of the vertices trains; of the columns those that most vertices have."""
    columns = scipy.sparse.load_npz(directory / "features.npz").tocsc()
    often = np.sort(np.argsort(-columns.getnnz(axis=0), kind="stable")[:300])
    labels = np.load(directory / "labels.npy")
    split = np.random.default_rng(0).choice(3, size=len(labels), p=(0.05, 0.05, 0.9))
    return problems.Problem(
        name=directory.name, edges=np.load(directory / "edges.npy").astype(np.int64), weights=None, labels=labels,
        features=np.ascontiguousarray(columns[:, often].toarray(), dtype=np.float32),
        masks={name: split == k for k, name in enumerate(("train", "val", "test"))},
    )  # fmt: skip


@pytest.mark.long
def test_citeseer(data_graph):
    problem = problems.planetoid(data_graph("planetoid-citeseer"))
    assert sampled(problem, 30, 32) >= whole(problem, 100) - MARGIN >= 0.6


@pytest.mark.long
def test_coauthor_physics(data_graph):
    problem = physics(data_graph("coauthor-physics"))
    assert sampled(problem, 10, 256) >= whole(problem, 60) - MARGIN >= 0.9
