"""Median epoch time and peak memory on the CPU without a limit, against torch_geometric's full-batch forms.

    python -m experiments.cpu_epoch ARTIFACT [--models gcn gat sage] [--epochs 5] [--rounds 2] [--out FILE.jsonl]

Every system trains in processes of its own, one after the other, in rounds, so that a busy moment of the machine hits
all of them. Memory is the highest resident set above that of the imports. "dense" is the model's dense matrix products
alone, forward and backward: the floor. torch-sparse takes part where it is installed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import hongtu
from experiments.records import append, machine

WIDTHS = {"gcn": (256, 2), "gat": (128, 2), "sage": (256, 3)}  # hidden columns, layers
FORMS = ("hongtu", "csr", "edge_index", "edge_index cached", "SparseTensor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--models", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--device-memory-share", type=float,
        help="also hongtu with budgets of this share of its own in-memory need, and of the fastest other system's",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "FORM", "BUDGET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(run_one(options.artifact, *options.one, options.epochs)))
        return
    for model in options.models:
        row = machine("cpu_epoch") | compare(options, model)
        print(table(row), flush=True)
        append(options.out, row)


def compare(options: argparse.Namespace, model: str) -> dict:
    """Seconds and bytes of every system, median over epochs and rounds, the first epoch of each process left out."""
    import torch

    jobs = [(form, "none") for form in FORMS if usable(model, form)] + [("dense", "none")]
    seconds: dict[str, list[float]] = {}
    peak: dict[str, int] = {}
    losses: dict[str, float] = {}
    needs: list[int] = []
    for round_ in range(options.rounds):
        for form, budget in jobs:
            found = spawn(options, model, form, budget)
            name = form if budget == "none" else f"{form}, {int(budget) / 2**20:.0f} MiB"
            seconds.setdefault(name, []).extend(found["seconds"][1:])
            peak[name] = max(peak.get(name, 0), found["peak"])
            losses[name] = found["loss"]
            if form == "hongtu" and budget == "none":
                needs = [found["need"]]
        if options.device_memory_share and round_ == 0:  # of what we need in memory, and of what torch_geometric needs
            fastest = min((name for name in seconds if name not in ("hongtu", "dense")), key=lambda n: min(seconds[n]))
            jobs += [("hongtu", str(int(need * options.device_memory_share))) for need in (*needs, peak[fastest])]
    return {
        "threads": torch.get_num_threads(),
        "model": model,
        "hidden": WIDTHS[model][0],
        "layers": WIDTHS[model][1],
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "spread": {name: [min(values), max(values)] for name, values in seconds.items()},
        "peak_bytes": peak,
        "last_loss": losses,
    }


def spawn(options: argparse.Namespace, model: str, form: str, budget: str) -> dict:
    arguments = [str(options.artifact), "--epochs", str(options.epochs), "--one", model, form, budget]
    command = [sys.executable, "-m", "experiments.cpu_epoch", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def usable(model: str, form: str) -> bool:
    if form == "SparseTensor":
        try:
            import torch_sparse  # noqa: F401
        except ImportError:
            return False
    return not (model == "gat" and form in ("csr", "SparseTensor")) and not (model != "gcn" and "cached" in form)


def run_one(path: Path, model: str, form: str, budget: str, epochs: int) -> dict:
    import torch
    import torch_geometric.nn  # noqa: F401 - imports are no part of what is measured

    import hongtu.trainer

    torch.manual_seed(0)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    artifact = hongtu.open_artifact(path)
    if form == "hongtu":
        step, need = ours(artifact, model, None if budget == "none" else int(budget))
    elif form == "dense":
        step, need = dense(artifact, model), None
    else:
        step, need = theirs(artifact, model, form), None
    seconds, loss = [], 0.0
    for _ in range(epochs):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) * 1024
    return {"seconds": seconds, "loss": loss, "peak": peak, "need": None if need is None else need()}


def ours(artifact: hongtu.Artifact, model: str, budget: int | None) -> tuple[Callable[[], float], Callable[[], int]]:
    from hongtu.models import build_layers

    hidden, layers = WIDTHS[model]
    modules = build_layers(model, artifact.feature_width, hidden, artifact.num_classes, layers)
    trainer = hongtu.Trainer(artifact, modules, device_memory=budget)

    def need() -> int:
        return sum(size for name, size in trainer.peak_bytes.items() if name.startswith("device"))

    return lambda: trainer.train_epoch().loss, need


def theirs(artifact: hongtu.Artifact, model: str, form: str) -> Callable[[], float]:
    """The same model of torch_geometric; ``form`` is how it gets the edges."""
    import torch
    from torch_geometric import nn, utils

    topology, v = artifact.topology, artifact.num_vertices
    target = np.repeat(np.arange(v), np.diff(topology.in_edge_start))
    edges = torch.from_numpy(np.stack([topology.global_sources().astype(np.int64), target]))
    features = torch.from_numpy(np.array(artifact.features))
    labels, mask = (torch.from_numpy(np.array(x)) for x in (artifact.labels, artifact.masks["train"]))
    hidden, count = WIDTHS[model]
    widths = [artifact.feature_width, *[hidden] * (count - 1), artifact.num_classes]
    kind = {"gcn": nn.GCNConv, "gat": nn.GATConv, "sage": nn.SAGEConv}[model]
    more: dict = {"cached": True} if "cached" in form else {}
    graph = edges
    if form in ("csr", "SparseTensor"):
        weight = None
        if model == "gcn":
            edges, weight = nn.conv.gcn_conv.gcn_norm(edges, None, v, False, True)
            more = {"normalize": False}
        if form == "csr":
            graph = utils.to_torch_csr_tensor(edges.flip(0), weight, size=(v, v))
        else:
            from torch_sparse import SparseTensor

            graph = SparseTensor(row=edges[1], col=edges[0], value=weight, sparse_sizes=(v, v))
    modules = torch.nn.ModuleList(kind(a, b, **more) for a, b in itertools.pairwise(widths))
    optimizer = torch.optim.Adam(modules.parameters(), lr=1e-2)

    def step() -> float:
        optimizer.zero_grad()
        h = features
        for index, layer in enumerate(modules):
            h = layer(h, graph)
            h = h.relu() if index + 1 < count else h
        loss = torch.nn.functional.cross_entropy(h[mask], labels[mask])
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def dense(artifact: hongtu.Artifact, model: str) -> Callable[[], float]:
    """The dense products of one epoch: per linear map forward and its weight's gradient, and its input's gradient
    except in the first layer."""
    import torch

    hidden, count = WIDTHS[model]
    widths = [artifact.feature_width, *[hidden] * (count - 1), artifact.num_classes]
    maps = 2 if model == "sage" else 1
    v = artifact.num_vertices
    inputs = [torch.rand(v, width) for width in widths]
    weights = [torch.rand(b, a) for a, b in itertools.pairwise(widths)]

    def step() -> float:
        for index, weight in enumerate(weights):
            for _ in range(maps):
                torch.mm(inputs[index], weight.t())
                torch.mm(inputs[index + 1].t(), inputs[index])
                if index > 0:
                    torch.mm(inputs[index + 1], weight)
        return 0.0

    return step


def table(row: dict) -> str:
    own, dense_seconds = row["seconds"]["hongtu"], row["seconds"]["dense"]
    lines = [f"{row['model']}, {row['layers']} layers, hidden {row['hidden']}: {own / dense_seconds:.2f}x its products"]
    for name, seconds in row["seconds"].items():
        low, high = row["spread"][name]
        lines.append(
            f"  {name:36s} {seconds:7.3f} s [{low:.3f}, {high:.3f}]  hongtu {own / seconds:5.2f}x  "
            f"peak {row['peak_bytes'][name] / 2**20:6.0f} MiB  hongtu {peak_ratio(row, name):5.2f}x"
        )
    return "\n".join(lines)


def peak_ratio(row: dict, name: str) -> float:
    return row["peak_bytes"]["hongtu"] / max(row["peak_bytes"][name], 1)


if __name__ == "__main__":
    main()
