"""Batches on ranks: together those of one process, features fetched once a window, and an end where one is killed."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import hongtu
from hongtu.errors import InputError
from hongtu.graph.artifact import open_artifact
from hongtu.pyg import NeighborLoader
from tests import problems
from tests.ranks.turns import run_ranks

FANOUTS = [3, 3]
SEEDS = {"split": np.arange(60), "batch_size": 15, "shuffle": True}


def on_ranks(size, artifact, epochs=1, fanouts=FANOUTS, **options):
    """Every rank's batches and what it counted."""

    def work(ranks):
        loader = NeighborLoader(artifact, fanouts, ranks=ranks, **SEEDS | options)
        found = [batch for _ in range(epochs) for batch in loader]
        return found, len(loader), loader.windows

    return run_ranks(size, work)


def outputs(model, batch):
    with torch.no_grad():
        found = model(batch.x, batch.edge_index)[: batch.batch_size]
    return dict(zip(batch.input_id.tolist(), found, strict=True))


@pytest.mark.parametrize(
    ("size", "window", "fanouts"),
    [(2, 1, FANOUTS), (4, 3, FANOUTS), (4, 1, [15, 10]), (2, 3, [2, 3]), (4, 3, [4, 2]), (2, 1, [-1, 1])],
)
def test_ranks_have_the_batches_of_one_process(size, window, fanouts):
    """Step by step: the same seeds, each with the same output, so the same gradient; all own features are right."""
    problem = problems.awkward()
    artifact = problems.prepare(problem, 4, 3)
    model = GraphSAGE(problem.width, 5, 2, 3)
    loader = NeighborLoader(artifact, fanouts, **SEEDS)
    alone = [batch for _ in range(2) for batch in loader]
    found = on_ranks(size, artifact, epochs=2, window=window, fanouts=fanouts)
    assert {len(batches) for batches, _, _ in found} == {len(alone)} == {2 * len(loader)}
    for step, whole in enumerate(alone):
        parts = [batches[step] for batches, _, _ in found]
        wanted, joined = outputs(model, whole), {}
        for part in parts:
            assert np.array_equal(part.x, problem.features[part.n_id.numpy()])
            assert part.loss_weight == size * part.batch_size / whole.batch_size
            joined |= outputs(model, part)
        assert joined.keys() == wanted.keys() and sum(part.batch_size for part in parts) == whole.batch_size
        assert all(torch.allclose(joined[v], wanted[v], atol=1e-6) for v in wanted)
        edges = np.unique(torch.cat([part.e_id for part in parts]))
        assert np.array_equal(edges, whole.e_id.sort().values)


def test_no_step_is_no_step():
    artifact = problems.prepare(problems.awkward(), 4, 3)
    found = on_ranks(2, artifact, batch_size=100, drop_last=True)
    assert [(batches, length) for batches, length, _ in found] == [([], 0), ([], 0)]


def test_what_is_fetched_is_counted_and_comes_once():
    problem = problems.awkward()
    artifact = problems.prepare(problem, 4, 3)
    starts = artifact.topology.partition_start
    size_of = problem.width * 4
    new_id = np.argsort(artifact.original_id)
    for rank, (batches, _, windows) in enumerate(on_ranks(4, artifact, window=2, cache_memory=1)):
        others = []
        for batch in batches:
            new = new_id[batch.n_id.numpy()]
            others.append(new[(new < starts[rank]) | (new >= starts[rank + 1])])
        sets = [np.unique(np.concatenate(others[k : k + 2])) for k in range(0, len(others), 2)]
        wanted = len(sets[0]) + sum(len(np.setdiff1d(b, a)) for a, b in itertools.pairwise(sets))
        assert windows.bytes_fetched == wanted * size_of
        assert windows.bytes_alone == sum(map(len, others)) * size_of
    for rank, (batches, _, windows) in enumerate(on_ranks(4, artifact, epochs=3, window=1)):
        new = np.unique(new_id[torch.cat([batch.n_id for batch in batches]).numpy()])
        assert windows.bytes_fetched == sum((new < starts[rank]) | (new >= starts[rank + 1])) * size_of


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_workers": 2}, "num_workers: on ranks"),
        ({"batch_size": 16, "split": np.arange(33)}, "owns none of the 1 seeds of step 3"),
        ({"window": 0}, "window 0"),
    ],
)
def test_what_ranks_cannot_do_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        on_ranks(4, problems.prepare(problems.awkward(), 4, 3), **options)


def test_ranks_are_given_the_same_and_have_partitions():
    with pytest.raises(InputError, match="2 partitions for 4 ranks"):
        on_ranks(4, problems.prepare(problems.awkward(), 2, 3))
    artifact = problems.prepare(problems.awkward(), 4, 3)
    with pytest.raises(InputError, match="seed: rank 1 has 1, rank 0 has 0"):
        run_ranks(2, lambda ranks: NeighborLoader(artifact, FANOUTS, ranks=ranks, seed=ranks.rank))


@pytest.mark.long
def test_a_window_moves_at_most_half(data_graph):
    """Of what each step alone would move, on a real graph cut in four, within the first epoch."""
    path = data_graph("ogbn-arxiv")
    masks = {split: np.load(path / f"{split}_mask.npy") for split in ("train", "val", "test")}
    artifact = hongtu.preprocess_graph(
        np.load(path / "edges.npy"), len(masks["train"]), problems.new_path(), features="random:4", masks=masks,
        labels=np.load(path / "labels.npy").reshape(-1), partitions=4, chunks=8, undirected=True,
    )  # fmt: skip

    def work(ranks):
        loader = NeighborLoader(artifact, [15, 10], ranks=ranks)
        return sum(1 for _ in loader), loader.windows.bytes_fetched, loader.windows.bytes_alone

    found = run_ranks(4, work)
    assert {steps for steps, _, _ in found} == {-(-int(masks["train"].sum()) // 1024)}
    assert all(0 < fetched <= alone / 2 for _, fetched, alone in found), found


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """20,000 vertices in 4 partitions, of which a half trains."""
    from hongtu.config import PreprocessConfig
    from hongtu.preprocess.entry import preprocess_directory
    from hongtu.preprocess.generate import generate

    path = tmp_path_factory.mktemp("generated")
    generate("citation", path / "graph", vertices=20_000, edges=200_000, features=32, classes=8, seed=1)
    preprocess_directory(path / "graph", path / "artifact", PreprocessConfig(partitions=4, chunks=4))
    return str(path / "artifact")


OPTIONS = ["--fanouts", "10,10", "--batch-size", "512", "--hidden", "8"]
SCRIPT = "experiments.sampled_ranks"


@pytest.mark.most(1)
@pytest.mark.long(sample=0)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_trains_as_one_process(ranks, generated, tmp_path):
    """Equal steps, the same weights at the end, and at most half of what fetching each step alone moves."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", SCRIPT]
    files = ["--weights", str(tmp_path / "model.pt"), "--out", str(tmp_path / "row.jsonl")]
    command = [*start, generated, *OPTIONS, "--epochs", "3", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    counted = json.loads((tmp_path / "row.jsonl").read_text())["of_ranks"]
    artifact = open_artifact(generated)
    loader = NeighborLoader(artifact, [10, 10], batch_size=512)
    assert {counts["steps"] for counts in counted} == {3 * len(loader)}
    assert all(0 < counts["bytes_fetched"] <= counts["bytes_alone"] / 2 for counts in counted), counted

    torch.manual_seed(0)
    model = GraphSAGE(artifact.feature_width, 8, 2, artifact.num_classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in itertools.chain(loader, loader, loader):
        optimizer.zero_grad()
        size = batch.batch_size
        cross_entropy(model(batch.x, batch.edge_index)[:size], batch.y[:size]).backward()
        optimizer.step()
    for name, theirs in torch.load(tmp_path / "model.pt", weights_only=True).items():
        assert torch.allclose(model.state_dict()[name], theirs, atol=1e-5), name


@pytest.mark.long
def test_a_killed_rank_ends_the_others(generated):
    """By themselves: nobody is there to stop them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    there = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", SCRIPT, generated, *OPTIONS, "--epochs", "100000"]
    first, second = (
        subprocess.Popen(
            command, env=there | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    )
    assert first.stdout.readline().startswith("epoch 1: "), first.communicate()[1]
    assert first.poll() is None and second.poll() is None
    second.kill()
    killed = time.monotonic()
    _, said = first.communicate(timeout=120)
    second.communicate()
    assert first.returncode == 1 and time.monotonic() - killed < 30
    assert "RankLost" in said or "Connection closed by peer" in said, said
