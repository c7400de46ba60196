"""Measures this machine for a hardware profile: copies alone, and what the passes of small models take.

What a pass computes is known (``Work`` of ``plan.cost``); the rates with which a machine does it are those that
explain the measured passes best, by bounded least squares over their relative errors; the cache is as large as explains
most.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, replace
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from hongtu.bench.host_load import BUSY, OthersShare
from hongtu.bench.profile.fitting import explained
from hongtu.bench.profile.rates import NOTHING, rates_alone
from hongtu.config import PreprocessConfig
from hongtu.errors import BudgetError
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.hardware import CPU, Hardware
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import arithmetic_seconds, is_near, pass_seconds
from hongtu.plan.cost.work import Work, partition_work
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import Pass
from hongtu.preprocess.entry import preprocess_directory
from hongtu.preprocess.generate import generate
from hongtu.train.planning import plan_model
from hongtu.train.trainer import Trainer

FEATURES = 48
GRAPHS = {  # kind, vertices, edges, partitions, chunks, order of each
    "large": ("citation", 100_000, 1_200_000, 1, 32, "clusters"),
    "mixed": ("rmat", 60_000, 900_000, 2, 32, "input"),
    "fine": ("citation", 40_000, 600_000, 1, 64, "input"),
    "pairs": ("rmat", 40_000, 600_000, 2, 64, "clusters"),
    "skewed": ("rmat", 40_000, 600_000, 1, 64, "input"),
}
EPOCHS = 6  # of every model, in turns; those that others disturb do not count
SECONDS = 240.0  # that measuring may take: on a busy machine fewer models are looked at, and fewer epochs
MAKING = 0.6  # of these, for making trainers
TURNS = 5  # models are made in so many rounds over ``RUNS``, so that the first ones are of every kind
WARM_UP = 3  # epochs of what trains in memory
EPOCH_COUNTS = 20  # a whole epoch, in passes
LEAST_CACHE = 1 << 20  # bytes; no cache is taken for smaller
# graph, model, hidden columns, layers, strategy, share of the memory that it wants; what people train is different
RUNS = (
    ("large", "gcn", 32, 2, "full", None),
    ("large", "gcn", 120, 2, "full", None),
    ("large", "sage", 48, 2, "full", None),
    ("large", "commnet", 80, 3, "full", None),
    ("large", "gin", 88, 2, "full", None),
    ("large", "gcn", 80, 2, "paper", None),
    ("large", "gin", 40, 2, "paper", None),
    ("large", "gat", 64, 2, "full", None),
    ("large", "gat", 24, 2, "paper", None),
    ("large", "ggcn", 24, 2, "full", None),
    ("large", "gcn", 72, 2, "full", 0.25),
    ("large", "sage", 56, 2, "full", 0.35),
    ("large", "gat", 40, 2, "full", 0.9),
    ("mixed", "gat", 104, 2, "full", None),
    ("mixed", "gat", 32, 2, "full", None),
    ("mixed", "gcn", 128, 3, "full", None),
    ("mixed", "commnet", 72, 2, "full", None),
    ("mixed", "ggcn", 32, 2, "full", None),
    ("mixed", "sage", 72, 2, "paper", None),
    ("mixed", "sage", 40, 2, "full", 0.4),
    ("mixed", "gcn", 64, 2, "paper", None),
    ("mixed", "gat", 40, 2, "none", None),
    ("fine", "gcn", 96, 2, "full", None),
    ("fine", "gcn", 64, 3, "full", 0.5),
    ("fine", "gcn", 256, 2, "full", None),
    ("fine", "sage", 80, 2, "full", 0.3),
    ("fine", "sage", 52, 2, "paper", None),
    ("fine", "gin", 72, 2, "none", None),
    ("fine", "gin", 120, 3, "full", None),
    ("fine", "commnet", 112, 2, "paper", None),
    ("fine", "gat", 72, 2, "full", 0.5),
    ("fine", "ggcn", 44, 2, "full", None),
    ("fine", "ggcn", 28, 2, "paper", None),
    ("fine", "ggcn", 36, 2, "none", None),
    ("fine", "ggcn", 36, 3, "full", 0.7),
    ("pairs", "gcn", 112, 2, "full", 0.4),
    ("pairs", "gcn", 88, 2, "paper", None),
    ("pairs", "gcn", 48, 2, "none", None),
    ("pairs", "gin", 64, 2, "none", None),
    ("pairs", "gat", 48, 2, "full", None),
    ("pairs", "gat", 56, 3, "paper", None),
    ("pairs", "ggcn", 64, 2, "full", None),
    ("pairs", "commnet", 48, 3, "full", 0.4),
    ("skewed", "sage", 96, 3, "full", None),
    ("skewed", "gat", 64, 2, "full", None),
    ("skewed", "ggcn", 40, 2, "full", None),
    ("skewed", "gcn", 56, 2, "paper", None),
    ("skewed", "gin", 64, 2, "full", None),
    ("skewed", "gcn", 88, 2, "full", 0.4),
    ("skewed", "sage", 192, 2, "full", 0.3),
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
    ("function_fetched", "function_fetch_bandwidth", False),
    ("product_bytes", "product_bandwidth", False),
    ("weight_bytes", "weight_bandwidth", False),
    ("swept", "sweep_bandwidth", False),
    ("swept_near", "near_bandwidth", False),
    ("loss_rows", "loss_row_seconds", True),
    ("chunks", "stage_seconds", True),
    ("aggregate_chunks", "aggregate_stage_seconds", True),
    ("gradient_chunks", "gradient_stage_seconds", True),
    ("transpose_chunks", "transpose_stage_seconds", True),
    ("loss_chunks", "loss_stage_seconds", True),
    ("exchange_chunks", "exchange_stage_seconds", True),
    ("peer_chunks", "peer_stage_seconds", True),
    ("calls", "call_seconds", True),
)
ALONE = {  # what was measured alone: the rates, and how many times as long it takes in a pass, at least and at most
    "sparse": (("host_link", "row_seconds", "host_add"), 0.5, 1.25),
    "contiguous": (("contiguous_link",), 0.5, 4.0),
    "structure": (("structure_link",), 0.5, 8.0),  # many small arrays
    "arithmetic": (("flops", "weight_flops"), 0.8, 1.25),
}


class Epoch(NamedTuple):
    """How many seconds it took, the share of the cores that others had, and the seconds of its passes."""

    seconds: float
    others: float
    passes: dict[str, float]


def measure_cpu(name: str, beside: Callable[[], object] = lambda: None, limit: float = SECONDS) -> Hardware:
    """A profile of the CPU device; host and device are the same memory.

    Args:
        beside: called once in every round of the models' epochs, for what is to be timed in turns with them.
        limit: seconds after which no model and no further round is begun; one round there is always.
    """
    start = perf_counter()
    nominal = Hardware(**CPU.to_dict() | rates_alone() | {"name": name, "cache": _cache_bytes()})
    with _trainers(nominal, start + MAKING * limit) as trainers:
        seconds = _pass_seconds(trainers, beside, start + limit)
        sizes = _sizes(LEAST_CACHE, nominal.cache or LEAST_CACHE)
        fits = [_fitted(trainers, seconds, replace(nominal, cache=size)) for size in sizes]
    _, best = min(fits, key=lambda found: found[0])
    return replace(best, peer_link=best.host_link, reuse_link=best.host_link)  # host and device are one memory


def _sizes(least: int, most: int) -> list[int]:
    """From one to the other, each larger by the square root of two."""
    return [int(least * 2 ** (k / 2)) for k in range(int(2 * np.log2(max(most, least) / least)) + 1)]


def _cache_bytes() -> int | None:
    """Half of the largest cache: others use it, too."""
    found = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << 10 for size in found if size.endswith("K")), default=0) // 2 or CPU.cache


@contextmanager
def _trainers(hardware: Hardware, until: float = np.inf) -> Iterator[list[Trainer]]:
    """Those of ``RUNS``, or as many as are made in time, on graphs that are there as long as they are."""
    runs = [run for turn in range(TURNS) for run in RUNS[turn::TURNS]]
    with tempfile.TemporaryDirectory(prefix="hongtu-doctor-") as folder:
        paths = [Path(folder) / name for name in GRAPHS]
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as others:  # whose threads do not stay here
            list(others.map(_prepare, paths, GRAPHS.values()))
        artifacts = {path.name: open_artifact(path / "artifact") for path in paths}
        made: list[Trainer] = []
        for run in tqdm(runs, desc="models", unit="model", leave=False, disable=None):
            if made and perf_counter() > until:
                break
            made.append(_trainer(artifacts[run[0]], hardware, *run[1:]))
        yield made


def _trainer(
    artifact: Artifact, hardware: Hardware, model: str, hidden: int, layers: int, strategy: str, share: float | None
) -> Trainer:
    """One of ``RUNS``, after the epoch that compiles, and those in which large tensors find their places in memory."""
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
    for _ in range(WARM_UP if budget is None and strategy == "full" else 1):
        trainer.train_epoch()
    return trainer


def _amounts(plan: ExecutionPlan, p: Pass, hardware: Hardware) -> dict[str, float]:
    """What all devices do in a pass, one after the other, and the seconds that it should take of what is measured
    alone."""
    found = pass_seconds(plan, p, hardware)
    structure = plan.pass_traffic(p).bytes["topology"] / hardware.structure_link
    amounts = {
        "structure": structure,
        "sparse": found.load + found.flush + found.peer + found.accumulate,
        "contiguous": found.contiguous - structure,
    }
    amounts |= dict.fromkeys(("arithmetic", "swept_near", *asdict(Work())), 0.0)
    for i in range(plan.topology.partitions):
        work = partition_work(plan, p, i, hardware.cache, hardware.largest_reused)
        near = is_near(work.largest, hardware)
        done = asdict(work) | {"swept": work.swept * (not near), "swept_near": work.swept * near}
        for name, amount in (done | {"arithmetic": arithmetic_seconds(work, hardware)}).items():
            amounts[name] += amount
    return amounts


def _pass_seconds(
    trainers: list[Trainer], beside: Callable[[], object], until: float = np.inf
) -> list[dict[str, float]]:
    """Of every pass the median of the settled ones of some epochs."""
    epochs: list[list[Epoch]] = [[] for _ in trainers]
    for k in tqdm(range(EPOCHS), desc="epochs", unit="round", leave=False, disable=None):
        if k and perf_counter() > until:
            break
        for trainer, found in zip(trainers, epochs, strict=True):
            others = OthersShare()
            record = trainer.train_epoch()
            found.append(Epoch(record.seconds, others.stop(record.seconds), record.pass_seconds))
        beside()
    return [_medians([epoch.passes for epoch in settled(found)]) for found in epochs]


def settled(epochs: Sequence[Epoch]) -> list[Epoch]:
    """The faster half of those that nothing else on the machine disturbed: models that train in turns take one
    another's places in memory, and in some epochs fresh pages have to be found."""
    quiet = [epoch for epoch in epochs if epoch.others <= BUSY] or list(epochs)
    return sorted(quiet, key=lambda epoch: epoch.seconds)[: (len(quiet) + 1) // 2]


def _medians(passes: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(seconds[name] for seconds in passes) for name in passes[0]}


def _fitted(
    trainers: Sequence[Trainer], seconds: Sequence[dict[str, float]], hardware: Hardware
) -> tuple[float, Hardware]:
    """The rates that explain best what passes and whole epochs took, and how badly.

    Small relative errors favour too few seconds: as many of the epochs should take less than predicted as take more.
    """
    names = [*(name for name, _, _ in RATES), *ALONE]
    done, taken = [], []  # by pass, and by epoch
    for trainer, found in zip(trainers, seconds, strict=True):
        passes = [_amounts(trainer.plan, p, hardware) for p in trainer.plan.passes.train]
        done.append(np.array([[amounts[name] for name in names] for amounts in passes], dtype=np.float64))
        taken.append(np.array([found[p.name] for p in trainer.plan.passes.train]))
    epochs, whole = np.array([own.sum(axis=0) for own in done]), np.array([own.sum() for own in taken])
    seen = epochs.any(axis=0)  # what nobody did keeps its rate
    least = np.array([0.0] * len(RATES) + [least for _, least, _ in ALONE.values()])
    most = np.array([np.inf] * len(RATES) + [most for _, _, most in ALONE.values()])
    each, error = explained(
        np.concatenate([*done, *[epochs] * EPOCH_COUNTS])[:, seen],
        np.concatenate([*taken, *[whole] * EPOCH_COUNTS]),
        least[seen],
        most[seen],
    )
    each = np.maximum(each * np.median(whole / (epochs[:, seen] @ each)), NOTHING)
    return error, _with_rates(hardware, dict(zip(np.array(names)[seen].tolist(), each.tolist(), strict=True)))


def _with_rates(hardware: Hardware, cost: dict[str, float]) -> Hardware:
    """A profile with the seconds that one of each amount takes."""
    rates = {rate: cost[name] if direct else 1 / cost[name] for name, rate, direct in RATES if name in cost}
    for name, (changed, _, _) in ALONE.items():
        times = cost.get(name, 1.0)
        for rate in changed:
            rates[rate] = getattr(hardware, rate) * (times if rate.endswith("_seconds") else 1 / times)
    return Hardware(**hardware.to_dict() | rates)


def _prepare(path: Path, size: tuple[str, int, int, int, int, str]) -> None:
    """Make one of ``GRAPHS`` and its artifact."""
    kind, vertices, edges, partitions, chunks, order = size
    path.mkdir()
    generate(kind, path / "graph", vertices=vertices, edges=edges, features=FEATURES, classes=8, seed=7)
    config = PreprocessConfig(partitions=partitions, chunks=chunks, partitioner="range", order=order)
    with redirect_stderr(StringIO()):  # its notes are of no graph of the user's
        preprocess_directory(path / "graph", path / "artifact", config)
