"""hongtu in one file computes what the whole graph's matrix computes, and moves no more than it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.one_file import epoch, main, plan, problem, share


def dense(graph, weight, x, labels, weights):
    """Loss and gradients by torch, with the matrix of the whole graph."""
    matrix = torch.zeros((len(x), len(x)), dtype=torch.float64)
    matrix.index_put_((torch.tensor(graph[1]), torch.tensor(graph[0])), torch.tensor(weight), accumulate=True)
    first, second = (torch.tensor(w, requires_grad=True) for w in weights)
    out = matrix @ (torch.relu(matrix @ (torch.tensor(x) @ first)) @ second)
    loss = torch.nn.functional.cross_entropy(out, torch.tensor(labels))
    loss.backward()
    return loss.item(), [first.grad.numpy(), second.grad.numpy()]


@pytest.mark.parametrize("m, n, seed", [(1, 1, 0), (1, 7, 1), (2, 5, 2), (3, 4, 3)])
def test_the_cache_changes_no_number(m, n, seed):
    graph, weight, chunks, x, labels, weights = problem(m=m, n=n, seed=seed)
    loss, grads = dense(graph, weight, x, labels, weights)
    most = max(len(chunk.sources) for own in chunks for chunk in own)
    moved = []
    for capacity in (most, most + 5, len(x)):
        stays = share([plan(own, capacity) for own in chunks])
        found, own, count = epoch(chunks, stays, capacity, x, labels, weights)
        assert found == pytest.approx(loss, rel=1e-12)
        for mine, theirs in zip(own, grads, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-14)
        assert count["load"] == count["flush"] and count["pull"] == count["push"]
        moved.append(count["load"] + count["pull"])
    assert moved == sorted(moved, reverse=True)
    distinct = [len(set(np.concatenate([chunk.sources for chunk in own]))) for own in chunks]
    assert moved[-1] == 2 * sum(distinct)  # with room for all, a device gets a row once a layer


def test_a_cache_below_a_chunk_is_refused():
    _, _, chunks, *_ = problem()
    with pytest.raises(IndexError):
        plan(chunks[0], max(len(chunk.sources) for chunk in chunks[0]) - 1)


def test_it_prints_what_moves(capsys):
    main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and len({line.split("loss ")[1][:14] for line in lines[1:]}) == 1
