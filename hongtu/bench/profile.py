"""Measures this machine for a hardware profile: each rate alone, by one micro-benchmark; and the least time that a
model's epoch can take on it (Williams, Waterman and Patterson's roofline, 2009).

Every kernel is bound by its bytes or by its operations: a dense product reads and writes its rows in order, an
aggregate finds a row for every edge, forward and again for the gradient. What no exact system can leave out is counted:
everything stays in memory, nothing runs twice, the sum of the input's neighbours is known.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.nn.functional import embedding_bag

from hongtu.config import PreprocessConfig
from hongtu.engine.stores import DiskStore
from hongtu.graph.artifact import Artifact
from hongtu.hardware import CPU, Hardware
from hongtu.host import check_disk, in_large_pages
from hongtu.kernels.dense import substitutes
from hongtu.kernels.rows import copy_rows
from hongtu.model.named import build_layers
from hongtu.plan.cost.work import Extent, Work, missed_share, partition_work, pass_work
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import Pass
from hongtu.preprocess.entry import preprocess_directory
from hongtu.preprocess.generate import generate
from hongtu.train.trainer import Trainer

REPEATS = 7
ROWS, MOVED, COLUMNS = 2**18, 2**16, 128  # 128 MiB of rows of 512 bytes, more than a cache holds, and those that move
FAR_ROWS = 2**19  # 256 MiB: more than a cache holds
NEAR_ROWS = 2**9  # 256 KiB: what a core keeps beside it
FOUND = 2**18  # rows found by one call
BAG = 64  # of them summed to one
NUMBERS = 2**24  # 64 MiB
PRODUCT = 2**13, 256  # rows and columns of a product that operations bound
VERTICES, EDGES, CHUNKS, FEATURES, CLASSES = 2000, 8000, 64, 8, 4  # of a graph whose chunks hold next to nothing
OPERATIONS = 16  # more of a stage
BLOCK = 8 << 20  # bytes that are written or read at a time, as rows of a chunk are
BLOCKS = 128
SECONDS = 5.0  # that writing, and then reading, may take


def measure_cpu(name: str, directory: Path) -> Hardware:
    """A profile of the CPU device, whose memory is the host's; seconds.

    Args:
        directory: whose disk holds what host memory does not.

    Raises:
        InputError, OutputError: no file can be made there.
    """
    memory, disk = memory_rate(), disk_rate(directory)
    link = min(row_rate(), memory)
    chunk, call = starting_seconds()
    return Hardware(
        name=name,
        host_link=link,
        peer_link=link,
        disk_link=disk,
        memory_bandwidth=memory,
        flops=product_rate(),
        chunk_seconds=chunk,
        call_seconds=call,
        cache=_cache_bytes(),
        largest_reused=CPU.largest_reused,
    )


def best_seconds(call: Callable[[], object], device: str = "cpu") -> float:
    """Seconds of the fastest of some calls, to the end of what they queue, after one that compiles and warms up."""
    times = []
    for _ in range(1 + REPEATS):
        start = perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize(device)
        times.append(perf_counter() - start)
    return min(times[1:])


def memory_rate(device: str = "cpu") -> float:
    """Bytes per second that are read and written in order: the sum of two tensors that no cache holds."""
    a, b, out = (torch.ones(NUMBERS, device=device) for _ in range(3))
    return 3 * out.nbytes / best_seconds(lambda: torch.add(a, b, out=out), device)


def product_rate(device: str = "cpu") -> float:
    """Operations per second of a dense product of rows."""
    rows, columns = PRODUCT
    multiply = substitutes().get(torch.ops.aten.mm.default, torch.mm) if device == "cpu" else torch.mm
    left, right = torch.ones(rows, columns, device=device), torch.ones(columns, columns, device=device)
    return 2 * rows * columns * columns / best_seconds(lambda: multiply(left, right), device)


def row_rate() -> float:
    """Bytes per second of rows that are copied from sorted places of a table to any of a buffer, as loads are."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(ROWS)[:MOVED]).astype(np.int32)
    slots = rng.permutation(MOVED).astype(np.int32)
    host, cache = np.ones((ROWS, COLUMNS), np.float32), np.ones((MOVED, COLUMNS), np.float32)
    return cache.nbytes / best_seconds(lambda: copy_rows(host, rows, cache, slots))


def starting_seconds() -> tuple[float, float]:
    """Of a chunk, and of an operation of a stage: from epochs in chunks that hold next to nothing, of a model and of
    the same with more operations."""
    with tempfile.TemporaryDirectory(prefix="hongtu-doctor-") as folder:
        graph, path = Path(folder) / "graph", Path(folder) / "artifact"
        generate("rmat", graph, vertices=VERTICES, edges=EDGES, features=FEATURES, classes=CLASSES, seed=7)
        config = PreprocessConfig(partitions=1, chunks=CHUNKS, partitioner="range", order="input")
        with redirect_stderr(StringIO()):  # its notes are of no graph of the user's
            artifact = preprocess_directory(graph, path, config)
        few, seconds = _epoch(artifact, 0)
        many, longer = _epoch(artifact, OPERATIONS)
    call = max(longer - seconds, 0.01 * seconds) / (many.calls - few.calls)
    return max(seconds - few.calls * call, 0.01 * seconds) / few.chunks, call


def _epoch(artifact: Artifact, more: int) -> tuple[Work, float]:
    """What an epoch computes, with so many more operations of a stage, and its seconds."""
    first, last = build_layers("gcn", FEATURES, FEATURES, CLASSES, 2)
    layers = [first, nn.Sequential(*(nn.Tanh() for _ in range(more))), last] if more else [first, last]
    trainer = Trainer(artifact, layers, strategy="paper")  # which groups no chunks
    plan = trainer.plan
    work = sum((partition_work(plan, p, 0) for p in plan.passes.train), Work())
    trainer.train_epoch()
    return work, best_seconds(trainer.train_epoch)


def _cache_bytes() -> int | None:
    """Half of the largest cache: others use it, too."""
    found = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << 10 for size in found if size.endswith("K")), default=0) // 2 or CPU.cache


def disk_rate(directory: Path) -> float:
    """Bytes per second of rows that go to a file and come from it again, for some seconds at most.

    Raises:
        InputError, OutputError: no file of so many bytes can be made there.
    """
    check_disk(directory, BLOCK * BLOCKS)
    data = in_large_pages(BLOCK)
    data[:] = np.frombuffer(np.random.default_rng(0).bytes(BLOCK), np.uint8)  # a disk may compress zeros
    store, moved = DiskStore(str(directory), BLOCK * BLOCKS, ends=1), 0
    start = perf_counter()
    while moved < BLOCKS and (not moved or perf_counter() - start < SECONDS):
        store.write(moved * BLOCK, data)
        moved += 1
    written, done = (perf_counter() - start) / moved, 0
    start = perf_counter()
    while done < moved and (not done or perf_counter() - start < SECONDS):
        store.read_within(done * BLOCK, BLOCK, data)
        done += 1
    read = (perf_counter() - start) / done
    store.close()
    return 2 * BLOCK / (written + read)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What this machine does at most.

    Attributes:
        stream: bytes per second of rows read and written in order.
        far_rows, near_rows: bytes per second of rows found by an index, in memory and in a cache.
        products: float32 operations per second of torch's dense products.
    """

    stream: float
    far_rows: float
    near_rows: float
    products: float


@cache
def measured_rates(device: str = "cpu") -> Rates:
    """The rates of a torch device, each measured alone, once in a process; about a second."""
    far = torch.ones(FAR_ROWS, COLUMNS, device=device)
    return Rates(
        stream=memory_rate(device),
        far_rows=_found_rate(far),
        near_rows=_found_rate(far[:NEAR_ROWS].clone()),
        products=product_rate(device),
    )


def least_seconds(plan: ExecutionPlan, rates: Rates, cache_bytes: int | None) -> float:
    """Seconds of an epoch that a model's kernels need at least, one after the other on one device.

    Args:
        plan: of the model in memory.
        cache_bytes: of rows that the device finds in its cache; None: it finds none.
    """
    return sum(_least_of_pass(plan, p, rates, cache_bytes) for p in plan.passes.train)


def _least_of_pass(plan: ExecutionPlan, p: Pass, rates: Rates, cache_bytes: int | None) -> float:
    item, view, width, wanted = plan.shape.itemsize, plan.view(p), plan.passes.width, plan.passes.wanted
    edges = int(view.chunk_edges.sum())
    extent = Extent(int(view.num_dst.sum()), edges, int(view.num_sources.sum()))
    work = pass_work(plan, p, extent)
    products = max(work.product_bytes / rates.stream, work.flops / rates.products)
    row = item * sum(  # what depends on nothing that is trained is the same in every epoch
        width[name] for name in (p.exchange, p.flush) if name is not None and (name == p.flush or name in wanted)
    )
    if not row:
        return products
    far = 1.0 if cache_bytes is None else missed_share(view, extent.sources, edges, cache_bytes / row)
    return products + edges * row * (far / rates.far_rows + (1 - far) / rates.near_rows)


def _found_rate(rows: torch.Tensor) -> float:
    """Bytes per second of a table's rows, summed in bags: next to nothing is written."""
    generator = torch.Generator(rows.device).manual_seed(0)
    index = torch.randint(len(rows), (FOUND // BAG, BAG), generator=generator, device=rows.device)
    return (
        index.numel() * rows[0].nbytes / best_seconds(partial(embedding_bag, index, rows, mode="sum"), str(rows.device))
    )
