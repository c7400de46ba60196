"""What a process takes of the host's memory is what its budget says, whatever it keeps on a disk."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest

import hongtu
from hongtu.device.cpu import CpuDevice
from hongtu.engine.executor import Executor
from hongtu.train.tracing import probe
from tests import problems, training
from tests.models import SIX

VERTICES, WIDTH, DEVICE = 120_000, 128, 8 << 20
ALLOWED = 24 << 20  # bytes beside the plan's: what Python and torch allocate

TRAINED = """
import gc, json, sys, torch, hongtu
from hongtu.nn import SAGEConv
from hongtu.plan.search.host import PROCESS
from hongtu.host import anonymous_bytes, trim_freed_memory
from hongtu.preprocess.workspace.watch import Watch

def train(path, **limits):
    artifact = hongtu.open_artifact(path)
    layers = [SAGEConv(artifact.feature_width, 64, activation="relu"), SAGEConv(64, artifact.num_classes)]
    trainer = hongtu.Trainer(artifact, layers, device_memory=DEVICE, **limits)
    trainer.train_epoch(), trainer.train_epoch()
    assert sum(trainer.peak_bytes.values()) <= sum(trainer.plan.peak_bytes.values())
    return sum(trainer.plan.held_together.values())  # no more than this at once

small, large, spill = sys.argv[1:4]
DEVICE = int(sys.argv[4])
counted = train(small)  # whatever a process needs once
if sys.argv[5:]:
    train(small, host_memory=PROCESS + counted // 2, spill=spill)  # what compiles takes memory, too
gc.collect(), trim_freed_memory()
before = anonymous_bytes()
with Watch() as watch:
    counted = train(large, **({"host_memory": PROCESS + int(sys.argv[5]), "spill": spill} if sys.argv[5:] else {}))
    print(json.dumps({"counted": counted, "taken": watch.peak - before}))
"""


def make(path, vertices):
    rng = np.random.default_rng(0)
    source = rng.integers(0, vertices, 6 * vertices)
    edges = np.stack([source, np.clip(source + rng.integers(-200, 200, len(source)), 0, vertices - 1)])
    features = rng.standard_normal((vertices, WIDTH), dtype=np.float32)
    hongtu.preprocess_graph(
        edges, vertices, path, features=features, labels="random:8", random_split=(0.6, 0.2, 0.2), partitions=1,
        chunks=32, order="input",
    )  # fmt: skip
    return str(path)


def taken(*arguments):
    done = subprocess.run([sys.executable, "-c", TRAINED, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_anonymous_memory_grows_by_the_budget_at_most(tmp_path):
    common = make(tmp_path / "small", VERTICES // 3), make(tmp_path / "large", VERTICES), tmp_path, DEVICE
    free = taken(*common)
    limit = free["counted"] * 2 // 5
    spilling = taken(*common, limit)
    assert spilling["counted"] <= limit and spilling["taken"] <= limit + ALLOWED, (spilling, limit)
    assert free["taken"] > limit + ALLOWED, (free, limit)


LEARNED = """
import gc, json, sys, torch, hongtu
from hongtu.nn import SAGEConv
from hongtu.host import anonymous_bytes, trim_freed_memory
from hongtu.preprocess.workspace.watch import Watch

def train(path, kind, directory, **options):
    artifact = hongtu.open_artifact(path)
    layers = [SAGEConv(artifact.feature_width, 8, activation="relu"), SAGEConv(8, artifact.num_classes)]
    make = lambda p: getattr(torch.optim, kind)(p, lr=0.01)
    trainer = hongtu.Trainer(artifact, layers, optimizer=make, device_memory=32 << 20, **options)
    for _ in range(2):
        trainer.train_epoch()
        trainer.evaluate()
    trainer.save(directory + "/snapshot.pt")
    counted = sum(trainer.peak_bytes.values())
    assert counted <= sum(trainer.plan.peak_bytes.values())
    return counted

small, large, directory, kind, clip = sys.argv[1:6]
options = {"clip_grad_norm": 1.0} if clip == "clip" else {}
train(small, kind, directory, **options)
gc.collect(), trim_freed_memory()
before = anonymous_bytes()
with Watch() as watch:
    counted = train(large, kind, directory, **options)
    print(json.dumps({"counted": counted, "taken": watch.peak - before}))
"""


@pytest.mark.long(sample=0)
@pytest.mark.parametrize(
    ("kind", "clip", "features"),
    [
        ("Adam", "plain", "embedding:256"),
        ("Adagrad", "clip", "embedding:256"),
        ("Adam", "plain", "random:256"),
    ],
)
def test_a_process_takes_what_is_counted(tmp_path, kind, clip, features):
    paths = []
    for vertices in (2000, 40_000):
        rng = np.random.default_rng(0)
        hongtu.preprocess_graph(
            rng.integers(0, vertices, (2, 4 * vertices)), vertices, tmp_path / str(vertices), features=features,
            labels=np.arange(vertices) % 4, random_split=(0.6, 0.2, 0.2), partitions=1, chunks=8, order="input",
            partitioner="range",
        )  # fmt: skip
        paths.append(str(tmp_path / str(vertices)))
    arguments = [*paths, str(tmp_path), kind, clip]
    environment = os.environ | {"HONGTU_COMPILE": "always"}  # by the small graph, before memory is looked at
    command = [sys.executable, "-c", LEARNED, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    allowed = found["counted"] // 10 + (64 << 20)  # freed blocks of what was tried as the run was planned, too
    least = 0.6 if features.startswith("embedding") else 0  # others stay in the artifact's file
    assert found["counted"] * least <= found["taken"] <= found["counted"] + allowed, found


GAPS = """
import numpy as np
from hongtu.host import KEPT_BESIDE_DISK, anonymous_bytes, reuse_freed_memory, trim_beyond

reuse_freed_memory(KEPT_BESIDE_DISK)
blocks = [np.ones(1 << 20, np.uint8) for _ in range(96)]
del blocks[::2]
before = anonymous_bytes()
assert trim_beyond(before + (8 << 20)) == before + (8 << 20) and anonymous_bytes() > before - (8 << 20)
again = trim_beyond(before - (8 << 20))
after = anonymous_bytes()
assert after < before - (32 << 20), (before, after)
assert again == before - (8 << 20)
assert trim_beyond(1) > after + KEPT_BESIDE_DISK // 2
"""


def test_gaps_between_blocks_are_given_back_where_the_process_has_too_much():
    done = subprocess.run([sys.executable, "-c", GAPS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_probe_took_is_free_at_once(monkeypatch):
    """Though devices are parts of cycles, which stay until they are collected."""
    probed, executors = [], []

    class Device(CpuDevice):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            probed.append(self)

    class Watched(Executor):
        def __init__(self, *given):
            super().__init__(*given)
            executors.append(weakref.ref(self))

    monkeypatch.setattr(probe, "CpuDevice", Device)
    monkeypatch.setattr(probe, "Executor", Watched)
    gc.disable()
    try:
        training.make_trainer(SIX[4], problems.awkward(), (2, 3), device_memory="smallest")
        assert executors and not any(executor() for executor in executors)
    finally:
        gc.enable()
    assert probed and all(device.arena == device._pool.idle == 0 and not device.placed() for device in probed)
