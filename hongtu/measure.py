"""Measures this machine for a hardware profile: copies alone, and what the passes of small models take.

What a pass computes is known (:class:`hongtu.plan.cost.Work`); the rates with which a machine does it are those that
explain the measured passes best, by non-negative least squares over their relative errors.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from scipy.optimize import nnls

from hongtu import row_copies
from hongtu.artifact import Artifact, open_artifact
from hongtu.config import PreprocessConfig
from hongtu.errors import BudgetError
from hongtu.host_load import BUSY, OthersShare
from hongtu.models import build_layers
from hongtu.plan.cost import is_near, partition_work, pass_seconds, product_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.hardware import CPU, Hardware
from hongtu.plan.passes import Pass
from hongtu.planning import plan_model
from hongtu.preprocess.generate import generate
from hongtu.preprocess.pipeline import preprocess_directory
from hongtu.products import substitutes
from hongtu.trainer import Trainer

COLUMNS, NARROW = 128, 16  # rows of 512 bytes, and of 64
HOST_ROWS = 2**18  # 128 MiB: more than a cache holds
MOVED = 2**16
FEW, MANY = 2**13, 2**16  # rows of a dense product: all in the cache, and not
MATRICES = ((32, 48), (64, 32), (48, 96), (64, 64), (96, 80), (128, 128), (128, 256), (256, 64), (256, 256), (512, 128))
REPEATS = 5
FEATURES = 48
GRAPHS = {  # kind, vertices, edges, partitions, chunks of each
    "large": ("citation", 100_000, 1_200_000, 1, 32),
    "mixed": ("rmat", 60_000, 900_000, 2, 32),
    "tiny": ("citation", 2_000, 8_000, 1, 40),
}
EPOCHS, MOST_EPOCHS = 5, 6
EPOCH_COUNTS = 3  # a whole epoch, in passes
NOTHING = 1e-15  # seconds
# graph, model, hidden columns, layers, strategy, share of the memory that it wants; what people train is different
RUNS = (
    ("large", "gcn", 32, 2, "full", None),
    ("large", "gcn", 160, 2, "full", None),
    ("large", "sage", 48, 2, "full", None),
    ("large", "commnet", 120, 3, "full", None),
    ("large", "gin", 88, 2, "full", None),
    ("large", "gcn", 80, 2, "paper", None),
    ("large", "gin", 40, 2, "paper", None),
    ("large", "gat", 64, 2, "full", None),
    ("large", "gat", 24, 2, "paper", None),
    ("large", "ggcn", 24, 2, "full", None),
    ("large", "ggcn", 60, 2, "full", None),
    ("mixed", "gat", 104, 2, "full", None),
    ("mixed", "gcn", 128, 3, "full", None),
    ("mixed", "sage", 72, 2, "paper", None),
    ("mixed", "gat", 32, 2, "full", None),
    ("large", "gcn", 72, 2, "full", 0.25),
    ("mixed", "sage", 40, 2, "full", 0.4),
    ("mixed", "gcn", 64, 2, "paper", None),
    ("tiny", "gcn", 16, 2, "paper", None),
    ("tiny", "sage", 16, 3, "paper", None),
    ("tiny", "gat", 16, 2, "paper", None),
)
RATES = (  # an amount, and the rate that it goes by: those with a True are seconds each, the others per second
    ("summed", "memory_bandwidth", False),
    ("transposed", "transpose_bandwidth", False),
    ("summed_edges", "edge_seconds", True),
    ("transposed_edges", "transpose_edge_seconds", True),
    ("fetched", "fetch_bandwidth", False),
    ("function", "function_bandwidth", False),
    ("function_edges", "function_edge_seconds", True),
    ("exponentials", "exponential_seconds", True),
    ("function_gradient", "function_gradient_bandwidth", False),
    ("function_fetched", "function_fetch_bandwidth", False),
    ("gated_fetched", "gated_fetch_bandwidth", False),
    ("exponential_gradients", "exponential_gradient_seconds", True),
    ("swept", "sweep_bandwidth", False),
    ("swept_near", "near_bandwidth", False),
    ("chunks", "stage_seconds", True),
    ("aggregate_chunks", "aggregate_stage_seconds", True),
    ("gradient_chunks", "gradient_stage_seconds", True),
    ("loss_chunks", "loss_stage_seconds", True),
    ("function_chunks", "function_stage_seconds", True),
    ("exchange_chunks", "exchange_stage_seconds", True),
    ("calls", "call_seconds", True),
    ("sources", "source_seconds", True),
)


def measure_cpu(name: str, beside: Callable[[], object] = lambda: None) -> Hardware:
    """A profile of the CPU device; host and device are the same memory.

    Args:
        beside: called once in every round of the models' epochs, for what is to be timed in turns with them.
    """
    nominal = Hardware(**CPU.to_dict() | _links() | {"name": name, "cache": _cache_bytes()})
    found = _rates(_passes(nominal, beside))
    same = {"peer_link": "host_link", "reuse_link": "host_link"}  # host and device are one memory
    rates = nominal.to_dict() | found
    return Hardware(**rates | {link: rates[other] for link, other in same.items()})


def _cache_bytes() -> int | None:
    """Half of the largest cache: others use it, too."""
    found = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << 10 for size in found if size.endswith("K")), default=0) // 2 or CPU.cache


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
    """A chunk's rows from the host to a buffer that is used again and again, and back."""
    host, buffer = torch.ones(2**24), torch.ones(2**20)
    parts = host.split(len(buffer))
    there = _best(lambda: [buffer.copy_(part) for part in parts])
    back = _best(lambda: [part.copy_(buffer) for part in parts])
    return 2 * host.nbytes / (there + back)


def _fresh_rate() -> float:
    """Rows read, and written to memory that is cleared first."""
    source = torch.ones(2**25)
    return 2 * source.nbytes / _best(source.clone)


def _product_rates() -> dict[str, float]:
    """Dense products of rows, and gradients of weights: operations, and bytes of rows, per second."""
    multiply = substitutes().get(torch.ops.aten.mm.default, torch.mm)
    amounts, of_rows, of_weights = [], [], []
    for rows, (inner, outer) in itertools.product((FEW, MANY), MATRICES):
        given, weight, gradient = torch.ones(rows, inner), torch.ones(outer, inner), torch.ones(rows, outer)
        nbytes = 4 * rows * (inner + outer)
        amounts.append((2 * rows * inner * outer, nbytes * (rows == MANY), nbytes * (rows == FEW)))
        there, back = _best(partial(multiply, given, weight.t())), _best(partial(multiply, gradient, weight))
        of_rows.append((there + back) / 2)
        of_weights.append(_best(partial(multiply, given.t(), gradient)))
    found: dict[str, float] = {}
    for rate, name, seconds in (("flops", "product", of_rows), ("weight_flops", "weight", of_weights)):
        each = _explained(np.array(amounts, dtype=np.float64), np.array(seconds))
        names = rate, f"{name}_bandwidth", f"near_{name}_bandwidth"
        found |= {one: 1 / max(cost, NOTHING) for one, cost in zip(names, each, strict=True)}
    return found


def _explained(amounts: np.ndarray, seconds: np.ndarray, unknown: np.ndarray | None = None) -> np.ndarray:
    """Seconds of one of each amount, at least 0, with the smallest errors relative to the seconds.

    Args:
        amounts: [N, K].
        seconds: [N], what was measured; unknown: what of it the amounts are to explain, None for all.
    """
    weighted = amounts / seconds[:, None]
    scale = np.maximum(weighted.max(axis=0), 1e-300)
    wanted = np.ones(len(seconds)) if unknown is None else np.maximum(unknown / seconds, 0)
    return nnls(weighted / scale, wanted)[0] / scale


def _links() -> dict[str, float]:
    """Rows copied to, and added to, random places: bytes per second, and seconds per row; contiguous ones; products."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(HOST_ROWS)[:MOVED]).astype(np.int32)  # a plan's loads are sorted by row
    slots = rng.permutation(MOVED).astype(np.int32)

    def seconds(move: Callable[..., None], columns: int, *, back: bool) -> float:
        host, cache = np.ones((HOST_ROWS, columns), np.float32), np.ones((MOVED, columns), np.float32)
        given = (cache, slots, host, rows) if back else (host, rows, cache, slots)
        return _best(lambda: move(*given)) / MOVED

    narrow, wide = (seconds(row_copies.copy_rows, columns, back=False) for columns in (NARROW, COLUMNS))
    per_byte = max(wide - narrow, wide / 10) / (4 * (COLUMNS - NARROW))
    per_row = max(narrow - 4 * NARROW * per_byte, 1e-12)
    # a flush adds where a load copies: the adding itself is what the copy's time leaves over
    added = seconds(row_copies.add_rows, COLUMNS, back=True)
    more = max(added - wide, wide / 100) / (4 * COLUMNS)
    return {
        "host_link": 1 / per_byte,
        "row_seconds": per_row,
        "host_add": 1 / more,
        "contiguous_link": _contiguous_rate(),
        "fresh_bandwidth": _fresh_rate(),
        **_product_rates(),
    }


@dataclass(frozen=True)
class Measured:
    """A pass, or an epoch.

    Attributes:
        amounts: what it does (:class:`hongtu.plan.cost.Work`), and "swept_near".
        seconds: that it takes; known: of these, what is measured alone.
        epoch: it is one.
    """

    amounts: dict[str, float]
    seconds: float
    known: float
    epoch: bool = False


def _passes(hardware: Hardware, beside: Callable[[], object]) -> list[Measured]:
    """What the passes of small models do, and how long they take: all models in turns, so that a machine that slows
    down slows all."""
    with tempfile.TemporaryDirectory(prefix="hongtu-doctor-") as folder:
        paths = [Path(folder) / name for name in GRAPHS]
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as others:  # whose threads do not stay here
            list(others.map(_prepare, paths, GRAPHS.values()))
        artifacts = {path.name: open_artifact(path / "artifact") for path in paths}
        trainers = [_trainer(artifacts[run[0]], hardware, *run[1:]) for run in RUNS]
        seconds = _pass_seconds(trainers, beside)
    return [found for trainer, one in zip(trainers, seconds, strict=True) for found in _epoch(trainer, hardware, one)]


def _trainer(
    artifact: Artifact, hardware: Hardware, model: str, hidden: int, layers: int, strategy: str, share: float | None
) -> Trainer:
    """One of ``RUNS``, after the epoch that compiles."""
    torch.manual_seed(0)
    modules = build_layers(model, artifact.feature_width, hidden, artifact.num_classes, layers)
    budget = None
    if share is not None:
        wanted = plan_model(artifact, modules, strategy=strategy, hardware=hardware).device_bytes
        budget = int(max(wanted.values()) * share)
    try:
        trainer = Trainer(artifact, modules, device_memory=budget, strategy=strategy, hardware=hardware)
    except BudgetError as refused:
        trainer = Trainer(artifact, modules, device_memory=refused.smallest, strategy=strategy, hardware=hardware)
    trainer.train_epoch()
    return trainer


def _epoch(trainer: Trainer, hardware: Hardware, seconds: dict[str, float]) -> list[Measured]:
    """Every pass of an epoch, and the epoch as a whole, which counts like several."""
    passes = [_known(trainer.plan, p, hardware, seconds[p.name]) for p in trainer.plan.passes.train]
    amounts = {name: sum(found.amounts[name] for found in passes) for name in passes[0].amounts}
    total, known = sum(found.seconds for found in passes), sum(found.known for found in passes)
    whole = Measured(amounts, total, known, epoch=True)
    return passes + [whole] * EPOCH_COUNTS


def _known(plan: ExecutionPlan, p: Pass, hardware: Hardware, seconds: float) -> Measured:
    """What all devices do in a pass, one after the other, and what their copies and products should take."""
    found = pass_seconds(plan, p, hardware)
    known = found.load + found.flush + found.peer + found.contiguous + found.accumulate
    amounts: Counter[str] = Counter()
    for i in range(plan.topology.partitions):
        work = partition_work(plan, p, i, hardware.cache)
        known += product_seconds(work, hardware)
        near = is_near(work.largest, hardware)
        amounts.update(asdict(work) | {"swept": work.swept * (not near), "swept_near": work.swept * near})
    return Measured(dict(amounts), seconds, known)


def _pass_seconds(trainers: list[Trainer], beside: Callable[[], object]) -> list[dict[str, float]]:
    """Of every pass the median of some epochs that nothing disturbed, or of as many as there may be."""
    epochs: list[list[tuple[float, dict[str, float]]]] = [[] for _ in trainers]
    for _ in range(MOST_EPOCHS):
        for trainer, found in zip(trainers, epochs, strict=True):
            if sum(share <= BUSY for share, _ in found) < EPOCHS:
                others = OthersShare()
                record = trainer.train_epoch()
                found.append((others.stop(record.seconds), record.pass_seconds))
        beside()
    return [_medians(found) for found in epochs]


def _medians(epochs: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    quiet = [seconds for share, seconds in epochs if share <= BUSY] or [seconds for _, seconds in epochs]
    return {name: statistics.median(seconds[name] for seconds in quiet) for name in quiet[0]}


def _rates(measured: list[Measured]) -> dict[str, float]:
    """The rates that explain the rest of what was measured. Small relative errors favour too few seconds: as many of
    the epochs should take less than predicted as take more."""
    amounts = np.array([[found.amounts[name] for name, _, _ in RATES] for found in measured], dtype=np.float64)
    seconds, known = np.array([(found.seconds, found.known) for found in measured]).T
    each = _explained(amounts, seconds, seconds - known)
    epochs = np.array([found.epoch for found in measured])
    each *= np.median((seconds - known)[epochs] / (amounts @ each)[epochs])
    costs = zip(RATES, np.maximum(each, NOTHING), strict=True)
    return {rate: float(cost if direct else 1 / cost) for (_, rate, direct), cost in costs}


def _prepare(path: Path, size: tuple[str, int, int, int, int]) -> None:
    """Make one of ``GRAPHS`` and its artifact."""
    kind, vertices, edges, partitions, chunks = size
    path.mkdir()
    generate(kind, path / "graph", vertices=vertices, edges=edges, features=FEATURES, classes=8, seed=7)
    config = PreprocessConfig(partitions=partitions, chunks=chunks, partitioner="range", order="input")
    preprocess_directory(path / "graph", path / "artifact", config)
