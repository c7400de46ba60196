"""Epoch time and peak memory on one device, ours in several budgets and strategies against torch_geometric in memory.

    python -m experiments.gpu_epoch ARTIFACT --model gcn --layers 2 --hidden 128 [--device cuda|simulated] [--epochs 5]

One JSON object, printed anew after every run, so that the last line holds whatever is known. All runs start from the
same parameters; losses of the first epochs are compared. "eager" captures no pass. Budgets are shares of our own
unlimited peak; torch_geometric is tried in as much memory as ours took in the budget, too. `--timeline` adds, for one
epoch, the share of its time in which each CUDA stream has work and none has ("idle"), and the kernels that took
longest.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hongtu
from hongtu.bench.baselines import MODELS, make_baseline
from hongtu.bench.records import machine
from hongtu.bench.spec import Model
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.plan.passes.strategy import Strategy, get_strategy

TOLERANCE = 1e-4  # of the loss, relative


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.25, help="of our unlimited peak, as a budget")
    parser.add_argument("--timeline", action="store_true", help="how busy each stream is, in the budget")
    options = parser.parse_args()
    artifact = hongtu.open_artifact(options.artifact)
    torch.manual_seed(0)
    layers = build_layers(options.model, artifact.feature_width, options.hidden, artifact.num_classes, options.layers)
    row = machine("gpu_epoch") | {
        "gpu": torch.cuda.get_device_name() if options.device.startswith("cuda") else None,
        "graph": options.artifact.name, "vertices": artifact.num_vertices, "edges": artifact.topology.num_edges,
        "model": options.model, "layers": options.layers, "hidden": options.hidden,
    }  # fmt: skip

    def note(name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        row[name] = attempt(run)
        losses = [found["losses"] for found in row.values() if isinstance(found, dict) and "losses" in found]
        row["losses_agree"] = all(np.allclose(found, losses[0], rtol=TOLERANCE) for found in losses)
        row["ran"] = "seconds" in row.get("unlimited", {})
        print(json.dumps(row), flush=True)
        return dict(row[name])

    note("pyg", lambda: torch_geometric_runs(artifact, layers, options))
    eager = replace(get_strategy("full"), capture=False)
    unlimited = note("unlimited", lambda: our_run(artifact, layers, options, None, "full"))
    note("unlimited, eager", lambda: our_run(artifact, layers, options, None, eager))
    if "peak" in unlimited:
        budget, share = int(unlimited["peak"] * options.share), f"{options.share:.0%}"
        for name, strategy in (("full", "full"), ("eager", eager), ("paper", "paper"), ("none", "none")):
            ours = note(
                f"{name} in {share}", lambda strategy=strategy: our_run(artifact, layers, options, budget, strategy)
            )
            if name == "full" and options.device.startswith("cuda") and "reserved" in ours:
                capped = partial(in_as_much, ours["reserved"], lambda: torch_geometric_runs(artifact, layers, options))
                note(f"pyg in {share}", capped)
    sys.exit(not (row["ran"] and row["losses_agree"]))


def attempt(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a run says, or why there is none."""
    try:
        return run()
    except Exception as error:  # what the others say is not lost for it
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}
    finally:
        gc.collect()  # devices and what counts for them refer to each other
        if torch.cuda.is_available():
            with contextlib.suppress(Exception):  # after some errors nothing works any more
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


def in_as_much(most: int, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A run for which the GPU has no more memory than so many bytes."""
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    try:
        return run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def timed(step: Callable[[], float], epochs: int) -> dict[str, Any]:
    losses, seconds = [], []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        losses.append(step())
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak, reserved = (
        (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if torch.cuda.is_available() else (0, 0)
    )
    return {
        "seconds": statistics.median(seconds[1:]), "spread": [min(seconds[1:]), max(seconds[1:])], "allocated": peak,
        "reserved": reserved, "losses": losses[:5],
    }  # fmt: skip


def our_run(
    artifact: hongtu.Artifact, layers: list, options: argparse.Namespace, budget: int | None, strategy: str | Strategy
) -> dict[str, Any]:
    device = options.device
    trainer = hongtu.Trainer(artifact, copy.deepcopy(layers), device=device, device_memory=budget, strategy=strategy)
    found = timed(lambda: trainer.train_epoch().loss, options.epochs)
    record = trainer.train_epoch()
    plan = trainer.plan
    found |= {
        "peak": max(size for name, size in trainer.peak_bytes.items() if name.startswith("device")),
        "bytes": record.bytes, "counted_is_predicted": record.bytes == plan.bytes and record.rows == plan.rows,
        "chunks": plan.topology.chunks, "staging": plan.choice.staging, "resident": sorted(plan.resident),
        "predicted_seconds": predict_seconds(plan, trainer.hardware).to_dict(),
    }  # fmt: skip
    if options.timeline and device.startswith("cuda"):
        found["timeline"] = timeline(trainer)
    return found


def timeline(trainer: hongtu.Trainer) -> dict[str, Any]:
    """Where an epoch goes on the GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        trainer.train_epoch()
        torch.cuda.synchronize()
    return summary([
        (event.name(), str(event.device_resource_id()), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ])  # fmt: skip


def summary(events: list[tuple[str, str, int, int]]) -> dict[str, Any]:
    """Of events (name, stream, start, end in ns): by stream, called after what only it does, the share of the time in
    which it has work and its longest kernels (ms); the share in which none has; the longest kernels of all (ms)."""
    if not events:
        return {}
    start, end = min(event[2] for event in events), max(event[3] for event in events)
    of_stream: dict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
    for event in events:
        of_stream[event[1]].append(event)
    streams = {
        f"{stream} {role(found)}": {"busy": covered([e[2:] for e in found]) / (end - start), "ms": longest(found, 5)}
        for stream, found in sorted(of_stream.items())
    }
    idle = 1 - covered([event[2:] for event in events]) / (end - start)
    return {"ms": (end - start) / 1e6, "idle": idle, "streams": streams, "kernels": longest(events, 15)}


def role(events: list[tuple[str, str, int, int]]) -> str:
    """load, flush or compute: what comes from the host, what goes there, or neither."""
    amounts = dict.fromkeys(("load", "flush", "compute"), 0)
    for name, _, start, end in events:
        to = "load" if "HtoD" in name else "flush" if "DtoH" in name else None
        amounts[to or ("load" if "copy_rows" in name else "compute")] += end - start
    return max(amounts, key=lambda what: amounts[what])


def longest(events: list[tuple[str, str, int, int]], count: int) -> dict[str, float]:
    """Milliseconds of the kernels that took longest in all, by name."""
    total: dict[str, float] = defaultdict(float)
    for name, _, start, end in events:
        total[name[:80]] += (end - start) / 1e6
    return dict(sorted(total.items(), key=lambda found: -found[1])[:count])


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of a union of intervals."""
    total, reached = 0.0, -float("inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def torch_geometric_runs(artifact: hongtu.Artifact, layers: list, options: argparse.Namespace) -> dict[str, Any]:
    """The fastest of torch_geometric's full-batch forms."""
    model = Model(name=options.model, hidden=options.hidden, layers=options.layers)
    where = options.device if options.device.startswith("cuda") else "cpu"
    forms = [form for form in ("pyg-csr", "pyg") if form in MODELS[options.model]]

    def run(form: str) -> dict[str, Any]:
        return timed(make_baseline(form, artifact, model, layers, where).step, options.epochs)

    runs = {form: attempt(lambda form=form: run(form)) for form in forms}
    done = {form: found for form, found in runs.items() if "seconds" in found}
    if not done:
        raise RuntimeError("; ".join(f"{form}: {found['error']}" for form, found in runs.items()))
    best = min(done, key=lambda form: done[form]["seconds"])
    return done[best] | {
        "form": best,
        "forms": {form: found.get("seconds", found.get("error")) for form, found in runs.items()},
    }


if __name__ == "__main__":
    main()
