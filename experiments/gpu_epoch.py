"""One way of training an artifact's graph on one device: seconds of an epoch, peak memory, and what its plan predicted.

    python -m experiments.gpu_epoch ARTIFACT --model gcn [--memory 25%] [--eager] [--pyg] [--device cuda|simulated]

One JSON object, printed when there is a plan and anew after every epoch, so that the last line holds whatever is known.
All runs start from the same parameters, so that their losses can be compared. `--pyg`: torch_geometric in memory, with
CSR matrices where it has them for a model, for edge by edge a message takes a row. `--timeline` adds, for one more
epoch, the share of its time in which each CUDA stream has work and none has ("idle"), and the kernels that took
longest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hongtu
from experiments.options import make_parser
from hongtu.bench.baselines import MODELS, make_baseline
from hongtu.bench.records import machine
from hongtu.bench.spec import Model
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds


def main() -> None:
    parser = make_parser(__doc__, out=False, model="gcn", layers=2, hidden=128, device="cuda")
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--epochs", type=int, default=6, help="the first and the second are not timed")
    parser.add_argument("--memory", help="budget of the device (default: none)")
    parser.add_argument("--eager", action="store_true", help="capture no pass")
    parser.add_argument("--pyg", action="store_true", help="torch_geometric instead")
    parser.add_argument("--timeline", action="store_true", help="how busy each stream is")
    options = parser.parse_args()
    artifact = hongtu.open_artifact(options.artifact)
    torch.manual_seed(0)
    layers = build_layers(options.model, artifact.feature_width, options.hidden, artifact.num_classes, options.layers)
    row = machine("gpu_epoch") | {
        "graph": options.artifact.name, "vertices": artifact.num_vertices, "edges": artifact.topology.num_edges,
        "model": options.model, "layers": options.layers, "hidden": options.hidden,
    }  # fmt: skip
    if options.pyg:
        model = Model(name=options.model, hidden=options.hidden, layers=options.layers)
        row["form"] = "pyg-csr" if "pyg-csr" in MODELS[options.model] else "pyg"
        where = options.device if options.device.startswith("cuda") else "cpu"
        run_epochs(make_baseline(row["form"], artifact, model, layers, where).step, options, row)
        return
    start, strategy = time.perf_counter(), hongtu.Strategy(capture=not options.eager)
    trainer = hongtu.Trainer(
        artifact, layers, device=options.device, device_memory=options.memory, strategy=strategy
    )  # fmt: skip
    plan = trainer.plan
    row |= {
        "planning_seconds": time.perf_counter() - start, "budget": options.memory, "predicted": plan.to_dict(),
        "slab": bool(plan.slabs), "scripts": plan.choice.scripts, "staging": plan.choice.staging,
        "chunks": plan.topology.chunks, "resident": sorted(plan.resident),
        "predicted_seconds": predict_seconds(plan, trainer.hardware).to_dict(),
    }  # fmt: skip
    print(json.dumps(row), flush=True)  # where an epoch hangs, and shows that planning did not

    def step() -> float:
        record = trainer.train_epoch()
        peaks = {name: size for name, size in trainer.peak_bytes.items() if name.startswith("device")}
        row.update(captured=record.eager or True, bytes=record.bytes, peak=max(peaks.values()))
        row["counted_is_predicted"] = record.bytes == plan.bytes and record.rows == plan.rows
        return record.loss

    run_epochs(step, options, row)
    assert row["counted_is_predicted"], "counted is not predicted"
    if options.timeline and options.device.startswith("cuda"):
        print(json.dumps(row | {"timeline": timeline(trainer)}), flush=True)


def run_epochs(step: Callable[[], float], options: argparse.Namespace, row: dict[str, Any]) -> None:
    """Epochs, each timed until the GPU is done; what is known of them is printed after every one."""
    on_gpu, losses, seconds = torch.cuda.is_available() and options.device.startswith("cuda"), [], []
    row["gpu"] = torch.cuda.get_device_name() if on_gpu else None
    for _ in range(max(options.epochs, 3)):
        start = time.perf_counter()
        losses.append(step())
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        row |= {
            "losses": losses, "every": seconds, "seconds": statistics.median(seconds[2:] or seconds),
            "allocated": torch.cuda.max_memory_allocated() if on_gpu else 0,
            "reserved": torch.cuda.max_memory_reserved() if on_gpu else 0,
        }  # fmt: skip
        print(json.dumps(row), flush=True)


def timeline(trainer: hongtu.Trainer) -> dict[str, Any]:
    """Where an epoch goes on the GPU."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:  # else torch warns that it drops others
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


if __name__ == "__main__":
    main()
