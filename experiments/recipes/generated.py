"""Meshes with edge states and graphs with types, generated, in a share of their memory and beside torch_geometric.

    python -m experiments.recipes.generated mesh                     # 1M vertices, 6M edges, 15 steps of MeshGraphNet
    python -m experiments.recipes.generated hgt --out FILE.jsonl     # 4 types, 4 relations, 2M vertices, 21M edges
    python -m experiments.recipes.generated sage --scale 0.1 --epochs 3

Every side is a process of its own: hongtu without a limit, hongtu in a quarter and in ``--share`` of the device memory
that that takes, and the same model in plain torch (torch_geometric), which may take the memory that there is and says
where that does not do. In each of hongtu's epochs what is counted must be what was predicted.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import hongtu
from experiments.options import make_parser
from experiments.recipes.generated_models import CLASSES, MeshWhole, Typed, mesh_layers
from hongtu.bench.records import append, machine
from hongtu.host import available_bytes

COUNTS = {"author": 1_134_649, "field_of_study": 59_965, "institution": 8_740, "paper": 736_389}  # as ogbn-mag
RELATIONS = {
    ("author", "affiliated_with", "institution"): 1_043_998, ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271, ("paper", "has_topic", "field_of_study"): 7_505_078,
}  # fmt: skip
MESH = 1_000_000
TYPED = ("hgt", "sage", "rgcn")


def main() -> int:
    parser = make_parser(__doc__, chunks=64)
    parser.add_argument("model", choices=["mesh", *TYPED])
    parser.add_argument("--scale", type=float, default=1.0, help="of vertices and edges")
    parser.add_argument("--share", type=float, default=0.1, help="of the memory without a limit")
    parser.add_argument("--hidden", type=int, help="columns of rows and states; default 16, of types 32")
    parser.add_argument("--steps", type=int, default=15, help="of the mesh")
    parser.add_argument("--features", type=int, default=64, help="columns of each type's features")
    parser.add_argument("--epochs", type=int, default=3, help="of which the first is not timed")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[*SIDES])
    parser.add_argument("--work", type=Path, help="keep the graph here")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--budget", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.hidden = options.hidden or (16 if options.model == "mesh" else 32)
    if options.side:
        available = available_bytes()
        if options.side == "plain" and available is not None:  # it is refused memory before the machine has none
            resource.setrlimit(resource.RLIMIT_DATA, (available, available))
        print(json.dumps(SIDES[options.side](options)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        options.work = options.work or Path(folder)
        prepare(options)
        found = {side: run(side, options) for side in (*SIDES,) if side in options.sides}
    for side, row in found.items():
        print(f"{side}: {', '.join(f'{name} {shown(value)}' for name, value in row.items())}")
    given = {name: getattr(options, name) for name in ("model", "scale", "share", "hidden", "steps", "features")}
    append(options.out, machine("recipes.generated") | given | {"sides": found})
    return 0


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run(side: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a process of its own says of one side; the budget of a share is that of the need found before."""
    command = [sys.executable, "-m", "experiments.recipes.generated", options.model, "--side", side]
    for name in ("scale", "share", "hidden", "steps", "features", "chunks", "epochs", "work"):
        command += [f"--{name}", str(getattr(options, name))]
    budgets = {"quarter": "25%", "share": f"{100 * options.share:g}%"}
    if side in budgets:
        command += ["--budget", budgets[side]]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"failed": f"exit code {done.returncode}; memory of this machine {available_bytes()}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --------------------------------------------------------------------------------------------------------------- graphs


def prepare(options: argparse.Namespace) -> None:
    """The graph as the plain side takes it, and as an artifact."""
    given, artifact = options.work / "graph.pt", options.work / "artifact"
    if artifact.exists():
        return
    cut = {"partitions": 1, "chunks": options.chunks, "order": "input"}
    if options.model == "mesh":
        graph = mesh(int(MESH * options.scale))
        torch.save(graph, given)
        edges, place, target, of_edges = (x.numpy() for x in graph)
        hongtu.preprocess_graph(
            edges, len(place), artifact, features=place, labels=target, task="regression", edge_features=of_edges,
            masks={"train": np.ones(len(place), dtype=bool)}, **cut,
        )  # fmt: skip
    else:
        data = academic(options.scale, options.features)
        torch.save(data, given)
        hongtu.preprocess_graph(data=data, artifact=artifact, **cut)


def mesh(vertices: int) -> tuple[Tensor, ...]:
    """Edges to the right, down and along a diagonal, both ways; places, what to predict of them, and differences."""
    side = int(vertices**0.5)
    v = np.arange(side * side).reshape(side, side)
    ends = [(v[:, :-1], v[:, 1:]), (v[:-1], v[1:]), (v[:-1, :-1], v[1:, 1:])]
    one_way = np.concatenate([np.stack(pair).reshape(2, -1) for pair in ends], axis=1)
    edges = np.concatenate([one_way, one_way[::-1]], axis=1)
    place = np.stack(np.divmod(v.ravel(), side), axis=1).astype(np.float32) / side
    return tuple(map(torch.from_numpy, (edges, place, np.sin(6 * place), place[edges[1]] - place[edges[0]])))


def academic(scale: float, columns: int) -> HeteroData:
    """Types and relations of ogbn-mag, edges at random with some ends far more often than others."""
    rng, data = np.random.default_rng(1), HeteroData()
    counts = {kind: max(8, int(count * scale)) for kind, count in COUNTS.items()}
    for kind, count in counts.items():
        data[kind].x = torch.from_numpy(rng.standard_normal((count, columns), dtype=np.float32))
    for relation, count in RELATIONS.items():
        size = max(8, int(count * scale))
        source, to = ((rng.random(size) ** 2 * counts[kind]).astype(np.int64) for kind in (relation[0], relation[2]))
        data[relation].edge_index = torch.from_numpy(np.stack([source, to]))
    papers = counts["paper"]
    data["paper"].y = torch.from_numpy(rng.integers(0, CLASSES, papers))
    data["paper"].train_mask = torch.from_numpy(rng.random(papers) < 0.85)
    return data


# ---------------------------------------------------------------------------------------------------------------- sides


def ours(options: argparse.Namespace) -> dict[str, Any]:
    """hongtu, in a budget or without."""
    artifact = hongtu.open_artifact(options.work / "artifact")
    torch.manual_seed(0)
    if options.model == "mesh":
        layers, loss = mesh_layers(hongtu.nn.MeshBlock, options.steps, options.hidden), "mse"
    else:
        layers, loss = hongtu.from_pyg(typed(options, [*COUNTS], [*RELATIONS])), "cross_entropy"
    trainer = hongtu.Trainer(artifact, layers, loss=loss, device_memory=options.budget)
    plan, records = trainer.plan, [trainer.train_epoch() for _ in range(options.epochs)]
    for record in records:
        assert (record.rows, record.bytes, record.arena_bytes) == (plan.rows, plan.bytes, plan.arena_bytes)
    peak = records[-1].peak_bytes
    if options.budget is not None:
        assert all(peak[name] <= plan.peak_bytes[name] for name in plan.device_bytes)
    return timed([record.seconds for record in records], [record.loss for record in records]) | {
        "device": max(peak[name] for name in plan.device_bytes),
        "budget": options.budget,
        "predicted": dict(plan.bytes),
        "counted": dict(records[-1].bytes),
        "predicted_peaks": dict(plan.peak_bytes),
        "counted_peaks": dict(peak),
    }


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """The same model on the whole graph."""
    graph = torch.load(options.work / "graph.pt", weights_only=False)
    torch.manual_seed(0)
    if options.model == "mesh":
        edges, place, target, of_edges = graph
        model: nn.Module = MeshWhole(mesh_layers(hongtu.nn.MeshBlock, options.steps, options.hidden))

        def loss_of() -> Tensor:
            return nn.functional.mse_loss(model(place, of_edges, edges), target)
    else:
        model = typed(options, *graph.metadata())
        mask, y = graph["paper"].train_mask, graph["paper"].y

        def loss_of() -> Tensor:
            return nn.functional.cross_entropy(model(graph.x_dict, graph.edge_index_dict)[mask], y[mask])

    with torch.no_grad():
        lazy = any(isinstance(p, nn.UninitializedParameter) for p in model.parameters())
        _ = loss_of() if lazy else None
    optimizer, seconds, losses = torch.optim.Adam(model.parameters(), lr=0.01), [], []
    for _ in range(options.epochs):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss.detach()))
    return timed(seconds, losses)


def typed(options: argparse.Namespace, kinds: list[str], relations: list[tuple[str, str, str]]) -> nn.Module:
    if options.model == "hgt":
        return Typed(lambda: pyg.HGTConv(options.hidden, options.hidden, (kinds, relations), heads=4), options, kinds)
    make = {"sage": pyg.SAGEConv, "rgcn": pyg.GraphConv}[options.model]  # a map for each relation, and one's own
    width = options.hidden
    return Typed(lambda: pyg.HeteroConv({r: make(width, width, aggr="mean") for r in relations}), options, kinds)


def timed(seconds: list[float], losses: list[float]) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "seconds": statistics.median(seconds[1:] or seconds),
        "first": seconds[0],
        "process": peak,
        "losses": losses,
    }


SIDES = {"whole": ours, "quarter": ours, "share": ours, "plain": plain}

if __name__ == "__main__":
    raise SystemExit(main())
