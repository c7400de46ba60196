"""This checkout beside another one: planning, set-up and epochs of the same trainings, in turns.

    python -m experiments.beside OTHER ARTIFACT [--models gcn sage gat] [--shares none 0.25] [--rounds 9] [--out FILE]

OTHER is a checkout of another commit (`git worktree add OTHER COMMIT`); both run under this Python. One process for
each side holds every training; in every round each side makes its Trainer anew (planning), then both train one epoch
after the other; who goes first alternates. A ratio is the median, over rounds and epochs, of this checkout's seconds
over those of the other right beside it; losses must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

from experiments.options import make_parser
from hongtu.bench.records import append, machine
from hongtu.threads import OUR_POLICY

HERE = Path(__file__).resolve().parents[1]
AGREE = 1e-4  # of a loss
EPOCHS = 4  # in every round; the first also sets up
PAUSE = 0.6  # seconds, until the other side's threads sleep and this one has seen that nobody uses the cores

SIDE = """
import json, sys, time
import torch, hongtu
try:
    from hongtu.model.named import build_layers
except ImportError:
    from hongtu.models import build_layers
artifact = hongtu.open_artifact(sys.argv[1])
trainer = None
for line in sys.stdin:
    order = json.loads(line)
    start = time.perf_counter()
    if "model" in order:
        torch.manual_seed(0)
        widths = artifact.feature_width, order["hidden"], artifact.num_classes
        layers = build_layers(order["model"], *widths, order["layers"])
        trainer = None
        start = time.perf_counter()
        trainer = hongtu.Trainer(artifact, layers, device_memory=order["budget"])
        peak = max(trainer.plan.device_bytes.values())
        answer = {"planning": time.perf_counter() - start, "device": peak}
    else:
        loss = trainer.train_epoch().loss
        answer = {"epoch": time.perf_counter() - start, "loss": loss}
    print(json.dumps(answer), flush=True)
"""


class Side:
    """A process that answers orders with the hongtu of one checkout, in the environment that people start it in."""

    def __init__(self, checkout: Path, program: str, *arguments: str) -> None:
        command = [sys.executable, "-c", program, *arguments]
        environment = {name: value for name, value in os.environ.items() if name not in OUR_POLICY}
        environment["PYTHONPATH"] = str(checkout)
        self._process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """One order, and what came of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        time.sleep(PAUSE)
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = make_parser(__doc__, models=["gcn", "sage", "gat"], hidden=64, layers=2, rounds=9)
    parser.add_argument("other", type=Path)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--shares", nargs="+", default=["none", "0.25"], help="of what is needed in memory")
    options = parser.parse_args()
    sides = [Side(checkout, SIDE, str(options.artifact.resolve())) for checkout in (HERE, options.other.resolve())]
    for model in options.models:
        for share in options.shares:
            row = {"artifact": options.artifact.name, "model": model, "hidden": options.hidden, "share": share}
            row |= compare(sides, options, model, share)
            print(
                ", ".join(
                    f"{name} {value:.3f}" if isinstance(value, float) else f"{value}" for name, value in row.items()
                )
            )
            append(options.out, machine("beside") | row)


def compare(sides: list[Side], options: argparse.Namespace, model: str, share: str) -> dict[str, Any]:
    """Medians of this checkout, and their ratios to the other's."""
    order = {"model": model, "hidden": options.hidden, "layers": options.layers}
    need = sides[1].ask(**order, budget=None)["device"]
    budget = None if share == "none" else int(need * float(share))
    found: list[dict[str, list[float]]] = [{"planning": [], "first": [], "epoch": []} for _ in sides]
    for side in sides:  # compiles
        side.ask(**order, budget=budget)
        side.ask()
    for round_ in range(options.rounds):
        for side in _in_turns(round_):
            found[side]["planning"].append(sides[side].ask(**order, budget=budget)["planning"])
        for epoch in range(EPOCHS):
            answers = {side: sides[side].ask() for side in _in_turns(round_ + epoch)}
            assert abs(answers[0]["loss"] - answers[1]["loss"]) <= AGREE * abs(answers[1]["loss"]), answers
            for side, answer in answers.items():
                found[side]["epoch" if epoch else "first"].append(answer["epoch"])
    ours, theirs = found
    ratios = {f"{name} ratio": median(map(truediv, ours[name], theirs[name])) for name in ours}
    return {name: median(values) for name, values in ours.items()} | ratios


def _in_turns(turn: int) -> tuple[int, int]:
    """Both sides; which is first alternates."""
    return (0, 1) if turn % 2 == 0 else (1, 0)


if __name__ == "__main__":
    main()
