"""One system in a process of its own: it trains an epoch when it is told to.

``python -m hongtu.bench.worker`` reads JSON objects, one a line, and answers each with one: first ``Order`` (what to
train), then {"do": "epoch" | "loss" | "scores" | "peak"}. An error that the user can mend is answered as {"refused":
...}.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from hongtu.bench.spec import OURS, Model, Run, named_strategy
from hongtu.errors import InputError
from hongtu.host_load import OthersShare, forget_peak, peak_resident


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is to train.

    Attributes:
        device: "cpu", "cuda" or "dry"; torch_geometric runs on the CPU or on CUDA.
        hardware: profile by which ours is planned, and its seconds predicted; None: that of the device.
    """

    artifact: str
    model: Model
    run: Run
    device: str = "cpu"
    hardware: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Order:
        fields = json.loads(line)
        return cls(**fields | {"model": Model(**fields["model"]), "run": Run(**fields["run"])})


class Ours:
    """hongtu as a :class:`~hongtu.bench.baselines.System`."""

    def __init__(self, order: Order, artifact: Any, layers: list) -> None:
        from hongtu.plan.hardware import load_hardware
        from hongtu.trainer import Trainer

        self.trainer = Trainer(
            artifact,
            layers,
            device=order.device,
            device_memory=order.run.budget,
            strategy=named_strategy(order.run.strategy or "full"),
            hardware=None if order.hardware is None else load_hardware(order.hardware),
        )
        self.record: Any = None

    def step(self) -> float:
        self.record = self.trainer.train_epoch()
        return self.record.loss

    def scores(self) -> dict[str, float]:
        return self.trainer.evaluate()

    def details(self) -> dict[str, Any]:
        """Of the last epoch: seconds per phase and pass, bytes per link."""
        record = self.record
        idle = max(record.seconds - sum(record.phases.values()), 0.0)
        phases = {name: record.phases.get(name, 0.0) for name in (*record.bytes, "compute")} | {"idle": idle}
        return {"phases": phases, "passes": record.pass_seconds, "bytes": record.bytes}

    def about(self) -> dict[str, Any]:
        """What was planned, and what it took."""
        from hongtu.plan.cost import predict_seconds

        plan, peaks = self.trainer.plan, self.trainer.peak_bytes
        return {
            "need": max(size for name, size in peaks.items() if name.startswith("device")),
            "memory": peaks,
            "counted_is_predicted": self.record.bytes == plan.bytes and self.record.rows == plan.rows,
            "grain": plan.topology.chunks,
            "fused": plan.choice.fuse,
            "resident": sorted(plan.resident),
            "setup_seconds": 0.0 if self.trainer.setup is None else self.trainer.setup.seconds,
            "predicted_seconds": predict_seconds(plan, self.trainer.hardware).total,
        }


def make_system(order: Order) -> Any:
    """The system that an order asks for; its parameters depend on the model's seed alone."""
    from hongtu.artifact import open_artifact
    from hongtu.bench.baselines import make_baseline
    from hongtu.models import build_layers
    from hongtu.random_state import seed_generators

    artifact, model = open_artifact(order.artifact), order.model
    seed_generators(model.seed)
    layers = build_layers(model.name, artifact.feature_width, model.hidden, artifact.num_classes, model.layers)
    if order.run.system == OURS:
        return Ours(order, artifact, layers)
    where = order.device if order.device.startswith("cuda") else "cpu"
    return make_baseline(order.run.system, artifact, model, layers, where)


def epoch(system: Any, device: str) -> dict[str, Any]:
    """Train one epoch; its loss, its seconds, and the share of the machine that others took meanwhile."""
    from time import perf_counter

    others, start = OthersShare(), perf_counter()
    loss = system.step()
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()
    seconds = perf_counter() - start
    found = {"loss": loss if loss == loss else None, "seconds": seconds, "others": others.stop(seconds)}
    return found | (system.details() if isinstance(system, Ours) else {})


def peak(system: Any, base: int, device: str) -> dict[str, Any]:
    """Bytes above those of the imports, and what ours knows of itself."""
    found: dict[str, Any] = {"process_bytes": max(peak_resident() - base, 0)}
    if device.startswith("cuda"):
        import torch

        found["cuda_bytes"] = torch.cuda.max_memory_allocated()
    return found | (system.about() if isinstance(system, Ours) else {})


def serve(orders: TextIO, answers: TextIO) -> None:
    """Answer every line until there is none."""
    # Imports are no part of what is measured, those that wait for the first optimizer included.
    import torch._dynamo  # noqa: F401

    import hongtu.bench.baselines
    import hongtu.trainer  # noqa: F401

    def answer(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    order = Order.from_json(next(orders))
    if order.run.system not in (OURS, "dense"):
        import torch_geometric.loader
        import torch_geometric.nn  # noqa: F401
    forget_peak()
    base = peak_resident()
    try:
        system = make_system(order)
        answer({"ready": True})
        for line in orders:
            do = json.loads(line)["do"]
            if do == "epoch":
                answer(epoch(system, order.device))
            elif do == "loss":
                answer({"loss": system.loss()})
            elif do == "scores":
                scores = system.scores()
                answer({split: score if score == score else None for split, score in scores.items()})
            else:
                answer(peak(system, base, order.device))
    except InputError as error:
        answer({"refused": str(error), "smallest": getattr(error, "smallest", 0)})


def main() -> None:
    """Keep stdout for answers: what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
