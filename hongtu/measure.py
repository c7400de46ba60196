"""Measures this machine for a hardware profile: a few seconds of copies, sums, products and tiny chunks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from hongtu import kernels, row_copies
from hongtu.artifact import Artifact
from hongtu.models import build_layers
from hongtu.plan.hardware import Hardware
from hongtu.preprocess.pipeline import preprocess_graph
from hongtu.trainer import Trainer

COLUMNS = 128  # rows of 512 bytes
HOST_ROWS = 2**18  # 128 MiB: more than a cache holds
MOVED = 2**16
REPEATS = 5


def measure_cpu(name: str) -> Hardware:
    """A profile of the CPU device; host and device are the same memory."""
    copy_rate, add_rate = _row_rates()
    # a flush adds where a load copies: the adding itself is what the copy's time leaves over
    extra = 1 / add_rate - 1 / copy_rate
    return Hardware(
        name=name,
        host_link=copy_rate,
        peer_link=copy_rate,
        reuse_link=copy_rate,
        contiguous_link=_contiguous_rate(),
        host_add=1 / max(extra, 0.01 / copy_rate),
        memory_bandwidth=_aggregate_rate(),
        flops=_product_rate(),
        stage_seconds=_stage_seconds(),
    )


def _best(call: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, after one that compiles and warms up."""
    call()
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def _contiguous_rate() -> float:
    """Half of what a run copies goes to memory that is warm, half to tensors it has just made."""
    source, target = torch.ones(2**24), torch.zeros(2**24)
    return 2 * source.nbytes / (_best(lambda: target.copy_(source)) + _best(source.clone))


def _row_rates() -> tuple[float, float]:
    """Bytes per second of rows copied to, and added to, random places."""
    rng = np.random.default_rng(0)
    host, cache = np.ones((HOST_ROWS, COLUMNS), np.float32), np.ones((MOVED, COLUMNS), np.float32)
    rows = np.sort(rng.permutation(HOST_ROWS)[:MOVED]).astype(np.int32)  # a plan's loads are sorted by row
    slots = rng.permutation(MOVED).astype(np.int32)
    copied = _best(lambda: row_copies.copy_rows(host, rows, cache, slots))
    added = _best(lambda: row_copies.add_rows(cache, slots, host, rows))
    return cache.nbytes / copied, cache.nbytes / added


def _aggregate_rate() -> float:
    rng = np.random.default_rng(0)
    destinations, degree = 2**14, 16
    cache, out = np.ones((MOVED, COLUMNS), np.float32), np.empty((destinations, COLUMNS), np.float32)
    indptr = np.arange(destinations + 1, dtype=np.int64) * degree
    source = rng.integers(0, MOVED, destinations * degree).astype(np.int32)
    slots, none = np.arange(MOVED, dtype=np.int32), np.empty(0, np.float32)
    seconds = _best(lambda: kernels.csc_aggregate(indptr, source, slots, none, False, cache, out))
    return len(source) * COLUMNS * 4 / seconds


def _product_rate() -> float:
    rows, columns = 2**14, 256
    a, b = torch.ones(rows, columns), torch.ones(columns, columns)
    return 2 * rows * columns * columns / _best(lambda: a @ b)


def _stage_seconds() -> float:
    """Seconds that a chunk of a pass costs when there is next to nothing in it."""
    with tempfile.TemporaryDirectory(prefix="hongtu-doctor-") as directory:
        artifact = _tiny_artifact(Path(directory) / "tiny")
        trainer = Trainer(artifact, build_layers("gcn", 4, 4, 2, 2), strategy="paper")
        seconds = _best(trainer.train_epoch)
        return seconds / (len(trainer.plan.passes.train) * trainer.plan.schedule.size)


def _tiny_artifact(path: Path) -> Artifact:
    rng = np.random.default_rng(0)
    vertices = 512
    masks = {"train": np.ones(vertices, bool), "val": np.zeros(vertices, bool), "test": np.zeros(vertices, bool)}
    return preprocess_graph(
        rng.integers(0, vertices, (2, 2 * vertices)), vertices, path, features="random:4", labels="random:2",
        masks=masks, partitions=1, chunks=32, partitioner="range", order="input",
    )  # fmt: skip
