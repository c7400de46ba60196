"""Ranks exchange what an epoch of a GCN with ``comm`` exchanges, and compute nothing; torchrun starts them.

    torchrun --nproc-per-node K -m experiments.crossing ARTIFACT --hidden 256 --layers 2 [--epochs 5]

Prints a line of JSON for every epoch: its seconds, and those of what crosses beside each pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

import hongtu
from experiments.options import make_parser
from hongtu.graph.halo import Crossing
from hongtu.hardware import CPU
from hongtu.model.loss_terms import DEFAULT
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.program import moves
from hongtu.train.planning import plan_ranks

FREE = replace(CPU, network_link=1.0, host_link=1e30)  # so that seconds of the network are bytes on it


def plans_of(artifact: hongtu.Artifact, hidden: int, layers: int) -> list[ExecutionPlan]:
    """Of the ranks that train it with ``comm``."""
    gcn = build_layers("gcn", artifact.feature_width, hidden, artifact.num_classes, layers)
    ranks = artifact.topology.partitions
    found = plan_ranks(
        artifact, gcn, ranks, "comm", loss=DEFAULT[artifact.task], device_memory=None, strategy="full", hardware=FREE
    )
    return [plan for _, plan in found]


def crossing_bytes(plans: list[ExecutionPlan]) -> float:
    """Of an epoch, on the link of the rank that has most, in the direction that has more."""
    return max(predict_seconds(plan, FREE).network for plan in plans)


def exchanges(plan: ExecutionPlan) -> Iterator[tuple[str, Crossing, str, int]]:
    """Those of an epoch: beside which pass, who gives what, which way, in how many columns."""
    beside: dict[str, str] = {}
    for p in plan.program.train:
        beside |= {x.tensor: p.name for x in p.body if isinstance(x, moves.Post)}
        for x in (*p.before, *p.after):
            if isinstance(x, moves.Cross):
                yield beside.get(x.tensor, p.name), x.crossing, x.link, plan.passes.width[x.tensor]


def main() -> None:
    parser = make_parser(__doc__, out=False, hidden=256, layers=2, epochs=5)
    parser.add_argument("artifact", type=Path)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    ranks = hongtu.Ranks()
    plan = plans_of(hongtu.open_artifact(options.artifact), options.hidden, options.layers)[ranks.rank]
    rows = [
        (name, [torch.zeros(len(part), columns) for part in crossing.leaving(link)],
         [torch.zeros(len(part), columns) for part in crossing.arriving(link)])
        for name, crossing, link, columns in exchanges(plan)
    ]  # fmt: skip
    for _ in range(options.epochs):
        ranks.gather(None)
        seconds: dict[str, float] = {}
        for name, out, into in rows:
            start = perf_counter()
            ranks.exchange(out, into)
            ranks.gather(None)
            seconds[name] = seconds.get(name, 0.0) + perf_counter() - start
        if ranks.rank == 0:
            print(json.dumps({"seconds": sum(seconds.values()), "pass_seconds": seconds, "loss": None}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
