"""Systems in a process of their own: each trains an epoch when it is told to.

``python -m hongtu.bench.worker`` reads JSON objects, one a line, and answers each with one: {"system": K, "order":
Order} makes a system, {"system": K, "do": "epoch" | "loss" | "scores" | "peak" | "drop"} makes it do so. An error that
the user can mend is answered as {"refused": ...}.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from hongtu.bench.host_load import OthersShare, forget_peak, peak_resident
from hongtu.bench.spec import OURS, Model, Run, named_strategy
from hongtu.errors import InputError

FIRST = 1  # number of a process's first system


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is to train.

    Attributes:
        device: "cpu", "cuda" or "simulated"; torch_geometric runs on the CPU or on CUDA.
        hardware: profile by which ours is planned, and its seconds predicted; None: that of the device.
    """

    artifact: str
    model: Model
    run: Run
    device: str = "cpu"
    hardware: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Order:
        return cls(**fields | {"model": Model(**fields["model"]), "run": Run(**fields["run"])})


class Ours:
    """hongtu as a :class:`~hongtu.bench.baselines.System`."""

    def __init__(self, order: Order, artifact: Any, layers: list) -> None:
        from hongtu.hardware import load_hardware
        from hongtu.train.trainer import Trainer

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
        from hongtu.plan.cost.seconds import predict_seconds

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
    from hongtu.bench.baselines import make_baseline
    from hongtu.graph.artifact import open_artifact
    from hongtu.model.named import build_layers
    from hongtu.train.random_state import seed_generators

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


def peak(system: Any, base: int | None, device: str) -> dict[str, Any]:
    """Bytes above those of the imports, where they are known of this system, and what ours knows of itself."""
    found: dict[str, Any] = {} if base is None else {"process_bytes": max(peak_resident() - base, 0)}
    if device.startswith("cuda"):
        import torch

        found["cuda_bytes"] = torch.cuda.max_memory_allocated()
    return found | (system.about() if isinstance(system, Ours) else {})


class Systems:
    """Those of this process, by number."""

    def __init__(self) -> None:
        self._systems: dict[int, tuple[Order, Any]] = {}
        self._base: int | None = None

    def answer(self, line: dict[str, Any]) -> dict[str, Any]:
        """Do what a line says."""
        number = line["system"]
        if "order" in line:
            order = Order.from_dict(line["order"])
            self._base = _memory_of_imports(order) if number == FIRST else None
            self._systems[number] = order, make_system(order)
            return {"ready": True}
        if line["do"] == "drop":  # one that was refused is not there
            self._systems.pop(number, None)
            return {}
        order, system = self._systems[number]
        if line["do"] == "epoch":
            return epoch(system, order.device)
        if line["do"] == "loss":
            return {"loss": system.loss()}
        if line["do"] == "scores":
            return {split: score if score == score else None for split, score in system.scores().items()}
        return peak(system, self._base, order.device)


def _memory_of_imports(order: Order) -> int:
    """Imports are no part of what is measured, those that wait for the first optimizer included."""
    import torch._dynamo  # noqa: F401

    import hongtu.bench.baselines
    import hongtu.train.trainer  # noqa: F401

    if order.run.system not in (OURS, "dense"):
        import torch_geometric.loader
        import torch_geometric.nn  # noqa: F401
    forget_peak()
    return peak_resident()


def serve(lines: TextIO, answers: TextIO) -> None:
    """Answer every line until there is none."""
    systems = Systems()
    for line in lines:
        try:
            found = systems.answer(json.loads(line))
        except InputError as error:
            found = {"refused": str(error), "smallest": getattr(error, "smallest", 0)}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def main() -> None:
    """Keep stdout for answers: what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
