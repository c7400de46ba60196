"""Epochs beside busy processes, and on one core, against torch_geometric and DGL: how much slower does each become?

    python -m experiments.busy ARTIFACT [--models gcn sage gat] [--systems hongtu pyg pyg-csr dgl] [--out FILE.jsonl]

Every system has a process of its own, in which torch is imported first, as people do. Systems take turns, epoch by
epoch, and none works while another is timed. Losses must agree. A busy process computes all the time; the machine
should do nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from experiments.beside import HERE, Side
from hongtu.bench.baselines import missing
from hongtu.bench.records import append, machine
from hongtu.bench.spec import OURS, Model, Run

CONDITIONS = {"quiet": 0, "1 busy": 1, "2 busy": 2, "one core": 0}
AGREE = 1e-3  # of a loss, after some epochs

SYSTEM = """
import json, os, sys, time
if json.loads(sys.argv[2]):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
from hongtu.bench.spec import Model, Run
from hongtu.bench.worker import Order, make_system
system = None
for line in sys.stdin:
    order = json.loads(line)
    if order:
        model, run = Model(**order["model"]), Run(**order["run"])
        system = make_system(Order(artifact=sys.argv[1], model=model, run=run))
        system.step()
    start = time.perf_counter()
    loss = system.step()
    print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--models", nargs="+", default=["gcn", "sage", "gat"])
    parser.add_argument("--systems", nargs="+", default=[OURS, "pyg", "pyg-csr", "dgl"])
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS))
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    for name in options.models:
        model = Model(name=name, hidden=options.hidden, layers=options.layers)
        systems = [system for system in options.systems if system == OURS or missing(system, name) is None]
        quiet: dict[str, float] = {}
        for condition in options.conditions:
            seconds = measure(options.artifact, model, systems, condition, options.rounds)
            quiet = quiet or seconds
            fastest = min(seconds[system] for system in systems if system != OURS)
            for system in systems:
                row = {"artifact": options.artifact.name, "condition": condition, "system": system}
                row |= model.to_dict() | {"seconds": seconds[system], "slowdown": seconds[system] / quiet[system]}
                row |= {"of_fastest_peer": seconds[system] / fastest}
                print(
                    ", ".join(f"{key} {x:.3f}" if isinstance(x, float) else f"{x}" for key, x in row.items()),
                    flush=True,
                )
                append(options.out, machine("busy") | row)


def measure(artifact: Path, model: Model, systems: list[str], condition: str, rounds: int) -> dict[str, float]:
    """Median seconds of an epoch of every system."""
    arguments = str(artifact.resolve()), str(condition == "one core").lower()
    sides = {system: Side(HERE, SYSTEM, *arguments) for system in systems}
    try:
        for system, side in sides.items():
            run = Run(strategy="full") if system == OURS else Run(system=system)
            side.ask(model=asdict(model), run=run.to_dict())
        found: dict[str, list[float]] = {system: [] for system in systems}
        with busy(CONDITIONS[condition]):
            for _ in range(rounds):
                answers = {system: side.ask() for system, side in sides.items()}
                losses = [answer["loss"] for answer in answers.values()]
                assert max(losses) - min(losses) <= AGREE * abs(losses[0]), answers
                for system, answer in answers.items():
                    found[system].append(answer["seconds"])
    finally:
        for side in sides.values():
            side.close()
    return {system: median(values) for system, values in found.items()}


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Inside, so many other processes compute."""
    others: list[Any] = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
