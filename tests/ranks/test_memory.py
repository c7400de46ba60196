"""What a rank's process takes is what it counts: of features its rows and those beside them, once."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest

import hongtu
from hongtu.errors import InputError
from hongtu.plan.search.host import PROCESS
from hongtu.ranks.share import share_of
from hongtu.ranks.stages import ByLayer
from tests import problems, training
from tests.models import SIX
from tests.ranks.turns import run_ranks

TAKEN = """
import gc, json, sys, torch, hongtu
from hongtu.host import anonymous_bytes, trim_freed_memory
from hongtu.nn import GCNConv
from hongtu.preprocess.workspace.watch import Watch
from hongtu.ranks.launch import joined

def train(path, dependencies, device, dtype):
    artifact = hongtu.open_artifact(path)
    layers = [GCNConv(artifact.feature_width, 8), torch.nn.ReLU(), GCNConv(8, artifact.num_classes)]
    limits = {"device": device, "device_memory": "64MiB", "dtype": getattr(torch, dtype)}
    trainer = hongtu.Trainer(artifact, layers, dependencies=dependencies, **limits)
    trainer.train_epoch(), trainer.evaluate()
    if artifact.features is None:  # learned: a snapshot has everybody's rows
        trainer.save(path + "/snapshot.pt"), trainer.load(path + "/snapshot.pt"), trainer.train_epoch()
    counted = trainer.peak_bytes
    assert all(size <= trainer.plan.peak_bytes[name] for name, size in counted.items())
    return sum(counted.values())

small, large, *options = sys.argv[1:]
with joined(timeout=100) as ranks:
    train(small, *options)  # whatever a process needs once
    gc.collect(), trim_freed_memory()
    before = anonymous_bytes()
    with Watch() as watch:
        counted = train(large, *options)
        found = ranks.gather((counted, watch.peak - before))
    if ranks.rank == 0:
        print(json.dumps(found))
"""
VERTICES = 40_000


@pytest.mark.most(2)
@pytest.mark.long(sample=0)
@pytest.mark.parametrize(
    ("dependencies", "device", "dtype", "features"),
    [
        ("cache", "cpu", "float32", "random:256"),
        ("cache", "cpu", "float64", "random:256"),
        ("hybrid", "cpu", "float32", "random:256"),
        ("comm", "cpu", "float32", "embedding:256"),
        ("comm", "simulated", "float32", "embedding:256"),
    ],
)
def test_a_rank_takes_what_it_counts(tmp_path, dependencies, device, dtype, features):
    sizes = 2000, VERTICES * (4 if features.startswith("embedding") else 1)
    paths = [str(tmp_path / str(vertices)) for vertices in sizes]
    for path, vertices in zip(paths, sizes, strict=True):
        hongtu.preprocess_graph(
            np.random.default_rng(0).integers(0, vertices, (2, vertices)), vertices, path, features=features,
            labels=np.arange(vertices) % 4, random_split=(0.6, 0.2, 0.2), partitions=2, chunks=8, order="input",
            partitioner="range",
        )  # fmt: skip
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    shared |= {"HONGTU_COMPILE": "always"}  # by the small graph, before memory is looked at
    word = [sys.executable, "-c", TAKEN, *paths, dependencies, device, dtype]
    running = [
        subprocess.Popen(word, env=os.environ | shared | {"RANK": rank}, stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    said = [process.communicate(timeout=300)[0] for process in running]
    assert not any(process.returncode for process in running)
    for counted, taken in json.loads(said[0]):
        assert taken <= counted + counted // 10 + (64 << 20), said[0]  # freed blocks, as in one process


def test_a_share_keeps_no_features_of_its_own():
    """Who holds them, shares them; when nobody does, they are gone."""
    artifact = problems.prepare(problems.awkward(), 4, 3)
    share = share_of(artifact, 1, [0, 2, 4], ByLayer(2, 2))
    given = np.asarray(artifact.features)[share.rows]
    first = share.features
    assert share.features is first and np.array_equal(first, given)
    del first
    gc.collect()
    assert share._gathered() is None and not share.learns_features
    assert np.array_equal(share.feature_rows(3, 9), given[3:9])


@pytest.mark.most(2)
@pytest.mark.long
@pytest.mark.parametrize(
    ("dependencies", "device"), [("cache", "cpu"), ("comm", "simulated"), ("hybrid", "cpu"), ("comm", "cpu")]
)
def test_every_rank_has_the_limit_of_the_host_for_itself(dependencies, device):
    """The least that works gives the numbers of no limit; of less all ranks are refused, as the one that needs more."""
    problem, options = problems.awkward(), {"dependencies": dependencies, "device": device, "device_memory": "1MiB"}

    def made(group, host_memory=None):
        return training.make_trainer(SIX[0], problem, (4, 3), ranks=group, host_memory=host_memory, **options)

    def work(group):
        free, limit = training.train(made(group), 1).losses, PROCESS
        for _ in range(2):
            try:
                trainer = made(group, limit)
            except InputError as error:  # on all ranks: a rank's own, or another's
                words = r"host_memory is (\d+) bytes .*, the run needs (\d+) .*; give more"
                given, least = map(int, re.search(words, str(error)).groups())
                assert given == limit
                limit = max(group.gather(least))
        assert training.train(trainer, 1).losses == pytest.approx(free, rel=1e-12)  # by another plan
        needed = trainer.plan.held_together if device == "cpu" else trainer.plan.host_bytes
        return limit, PROCESS + sum(needed.values())

    (limit, first), (other, second) = run_ranks(2, work)
    assert limit == other >= max(first, second) > PROCESS
