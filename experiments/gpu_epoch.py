"""Epoch time and peak memory on one device, ours in several budgets and strategies against torch_geometric in memory.

    python -m experiments.gpu_epoch ARTIFACT --model gcn --layers 2 --hidden 128 [--device cuda|dry] [--epochs 5]

One JSON object. Both start from the same parameters; the losses of the first epochs are compared before anything is
timed. Budgets are shares of our own unlimited peak. "busy" is, per CUDA stream, the share of an epoch's time in which
it has work (`--timeline`).
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hongtu
from hongtu.bench.baselines import MODELS, make_baseline
from hongtu.bench.records import machine
from hongtu.bench.spec import Model
from hongtu.models import build_layers
from hongtu.plan.cost import predict_seconds

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
    row["pyg"] = attempt(lambda: torch_geometric_runs(artifact, layers, options))
    unlimited = attempt(lambda: our_run(artifact, layers, options, None, "full"))
    row["unlimited"] = unlimited
    if "peak" in unlimited:
        share = int(unlimited["peak"] * options.share)
        for strategy in ("full", "paper", "none"):
            row[f"{strategy} in {options.share:.0%}"] = attempt(
                lambda strategy=strategy: our_run(artifact, layers, options, share, strategy)
            )
    losses = [row[name]["losses"] for name in row if isinstance(row[name], dict) and "losses" in row[name]]
    row["losses_agree"] = all(np.allclose(found, losses[0], rtol=TOLERANCE) for found in losses)
    row["ran"] = "seconds" in unlimited
    print(json.dumps(row))
    sys.exit(not (row["ran"] and row["losses_agree"]))


def attempt(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a run says, or why there is none."""
    try:
        return run()
    except (RuntimeError, hongtu.errors.InputError) as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def timed(step: Callable[[], float], epochs: int) -> dict[str, Any]:
    losses, seconds = [], []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        losses.append(step())
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    spread = [min(seconds[1:]), max(seconds[1:])]
    return {"seconds": statistics.median(seconds[1:]), "spread": spread, "allocated": peak, "losses": losses[:3]}


def our_run(
    artifact: hongtu.Artifact, layers: list, options: argparse.Namespace, budget: int | None, strategy: str
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
    if options.timeline and budget is not None and device.startswith("cuda"):
        found["busy"] = busy(trainer)
    return found


def busy(trainer: hongtu.Trainer) -> dict[str, float]:
    """By CUDA stream, the share of an epoch in which it has work."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        trainer.train_epoch()
        torch.cuda.synchronize()
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in profile.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            spans[str(event.device_resource_id())].append((event.start_ns(), event.start_ns() + event.duration_ns()))
    every = [span for found in spans.values() for span in found]
    whole = max(end for _, end in every) - min(start for start, _ in every)
    return {stream: covered(found) / whole for stream, found in sorted(spans.items())}


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
