"""Systems of this process, which another tells what to do: each trains an epoch when it is told to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from hongtu.bench.records import OthersShare, forget_peak, peak_resident
from hongtu.bench.spec import OURS, Model, Run, named_strategy
from hongtu.ranks.parent import end_with_parent

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


class Ours:
    """hongtu, with the methods of a baseline (:func:`~hongtu.bench.baselines.make_baseline`)."""

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
            dependencies=order.run.dependencies,
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
    from hongtu.model.random_state import seed_generators

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
    found |= {"own": others.own}
    return found | (system.details() if isinstance(system, Ours) else {})


def peak(system: Any, base: int | None, device: str) -> dict[str, Any]:
    """Bytes above those of the imports, where they are known of this system, and what ours knows of itself."""
    found: dict[str, Any] = {} if base is None else {"process_bytes": max(peak_resident() - base, 0)}
    if device.startswith("cuda"):
        import torch

        found["cuda_bytes"] = torch.cuda.max_memory_allocated()
    return found | (system.about() if isinstance(system, Ours) else {})


_systems: dict[int, tuple[Order, Any]] = {}  # those of this process, by number
_base: int | None = None  # memory of the imports, where there has been only one system


def make(number: int, order: Order, rank: int = 0, meeting: str = "") -> dict[str, Any]:
    """Make a system of this process, or a rank's part of one, whose processes meet in a file."""
    global _base
    if order.run.ranks > 1:
        import torch.distributed as dist

        from hongtu.ranks.launch import take_threads

        os.environ["LOCAL_WORLD_SIZE"] = str(order.run.ranks)
        take_threads()
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=order.run.ranks)
    _base = _memory_of_imports(order) if number == FIRST else None
    _systems[number] = order, make_system(order)
    return {}


def do(number: int, what: str) -> dict[str, Any]:
    """Have a system do something: "epoch", "loss", "scores", "peak" or "drop"."""
    if what == "drop":  # one that was refused is not there
        _systems.pop(number, None)
        return {}
    order, system = _systems[number]
    if what == "epoch":
        return epoch(system, order.device)
    if what == "loss":
        return {"loss": system.loss()}
    if what == "scores":
        return {split: score if score == score else None for split, score in system.scores().items()}
    return peak(system, _base, order.device)


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


def begin() -> None:
    """Keep stdout for results, what libraries print goes to stderr; and end with whoever started this process."""
    os.dup2(2, 1)
    end_with_parent()
