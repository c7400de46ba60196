"""Training a model with hongtu, and its reference on the whole graph at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hongtu
from hongtu.device.simulated import SimulatedBackend
from hongtu.errors import BudgetError
from hongtu.graph.artifact import Artifact
from hongtu.plan.passes.strategy import Strategy
from tests.checker.check import check_program
from tests.models import Model
from tests.problems import Problem, prepare

GRAINS = ((1, 1), (1, 7), (2, 3), (4, 8))  # (m, n)
STRATEGIES = ("none", "paper", "full")
# Every grain with all savings; those without differ from one another in what chunks and devices share only.
GRID = (*((grain, "full") for grain in GRAINS), ((1, 7), "paper"), ((4, 8), "paper"), ((2, 3), "none"))
over_grid = pytest.mark.parametrize(
    ("grain", "strategy"), GRID, ids=lambda x: x if isinstance(x, str) else f"m{x[0]}n{x[1]}"
)
EXACT = 1e-9  # of the largest gradient entry, in float64
SINGLE = 1e-4  # in float32
SWITCHES = (
    "group", "once_per_vertex", "transform_first", "no_input_gradient", "cache_input_aggregate", "fuse_last_layer",
    "prune", "resident", "save",
)  # fmt: skip
NOTHING = Strategy(**dict.fromkeys(SWITCHES, False))


@dataclass(frozen=True)
class Outcome:
    """Losses and gradients (before each step) of some epochs, and the buffers (running statistics) after each."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    buffers: list[dict[str, Tensor]] = field(default_factory=list)

    def first(self, epochs: int) -> Outcome:
        return Outcome(self.losses[:epochs], self.gradients[:epochs], self.buffers[:epochs])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)


@functools.cache
def train_reference(model: Model, problem: Problem, epochs: int = 5) -> Outcome:
    """Train the reference on the whole graph in float64."""
    modules = model.build_reference(problem)
    optimizer = sgd(modules.parameters())
    outcome = Outcome()
    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = model.reference_loss(modules, problem, epoch)
        loss.backward()
        outcome.losses.append(float(loss.detach()))
        outcome.gradients.append({name: p.grad.clone() for name, p in modules.named_parameters() if p.grad is not None})
        outcome.buffers.append({name: b.clone() for name, b in modules.named_buffers()})
        optimizer.step()
    return outcome


def make_trainer(model: Model, problem: Problem, grain: tuple[int, int] = (1, 1), **options: Any) -> hongtu.Trainer:
    """A float64 trainer with SGD of the model's layers, freshly built, whose program is checked;
    ``device_memory="smallest"`` finds it."""
    options = {"optimizer": sgd, "dtype": torch.float64, "loss": model.loss} | options
    artifact = prepare(problem, *grain)
    if options.get("device_memory") == "smallest":
        options["device_memory"] = smallest_of(model, problem, grain, **options)
    trainer = hongtu.Trainer(artifact, model.build(problem), **options)
    check_program(trainer.plan.program)
    return trainer


def train(trainer: hongtu.Trainer, epochs: int = 2) -> Outcome:
    """Some epochs, each of which counts what the plan predicts."""
    outcome = Outcome()
    for _ in range(epochs):
        record = trainer.train_epoch()
        assert_counted(trainer, record)
        outcome.losses.append(record.loss)
        outcome.gradients.append({name: g.detach().clone() for name, g in trainer.gradients().items()})
        outcome.buffers.append({name: b.clone() for name, b in trainer.model.named_buffers()})
    return outcome


def assert_counted(trainer: hongtu.Trainer, record: hongtu.EpochRecord) -> None:
    """Rows, bytes and arena equal the plan's; peaks stay under the plan's bound and that under the budget."""
    plan, budget = trainer.plan, trainer._budget
    assert (record.rows, record.bytes, record.arena_bytes) == (plan.rows, plan.bytes, plan.arena_bytes)
    assert record.peak_bytes.keys() == plan.peak_bytes.keys()
    for name in ("pinned host", "pageable host"):
        assert record.peak_bytes[name] == plan.arena_bytes[name] <= plan.peak_bytes[name]
    if budget is not None:
        assert all(record.peak_bytes[name] <= plan.peak_bytes[name] <= budget for name in plan.device_bytes)


def check(
    model: Model, problem: Problem, grain: tuple[int, int], *, epochs: int = 2, tolerance: float = EXACT, **options: Any
) -> hongtu.Trainer:
    """Train and compare with the reference and the plan; returns the trainer."""
    trainer = make_trainer(model, problem, grain, **options)
    assert_same(train(trainer, epochs), train_reference(model, problem).first(epochs), tolerance)
    return trainer


def assert_same(found: Outcome, expected: Outcome, tolerance: float) -> None:
    """Every loss and gradient within ``tolerance`` of the largest gradient entry of its epoch."""
    assert len(found.losses) == len(expected.losses)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=tolerance, atol=tolerance)
    for epoch, (mine, reference) in enumerate(zip(found.gradients, expected.gradients, strict=True)):
        assert mine.keys() == reference.keys()
        largest = max(float(g.abs().max()) for g in reference.values())
        assert largest > 0
        for name, gradient in reference.items():
            difference = float((mine[name].double() - gradient).abs().max())
            assert difference <= tolerance * largest, f"epoch {epoch}: gradient of {name} is off by {difference}"
    for epoch, reference in enumerate(expected.buffers):  # where the other side kept any
        mine = found.buffers[epoch]
        assert mine.keys() == reference.keys()
        for name, buffer in reference.items():
            difference = float((mine[name].double() - buffer).abs().max())
            assert difference <= tolerance * max(1.0, float(buffer.abs().max())), f"epoch {epoch}: {name}, {difference}"


_smallest: dict[tuple[Any, ...], tuple[int, Any]] = {}


def smallest_of(model: Model, problem: Problem, grain: tuple[int, int], **options: Any) -> int:
    """``smallest_budget`` of a model on a problem, looked for once in a process."""
    known = {name: _alike(option) for name, option in options.items()}
    key = (id(model), id(problem), grain, *sorted(known.items(), key=lambda item: item[0]))
    if key not in _smallest:
        found = smallest_budget(prepare(problem, *grain), lambda: model.build(problem), **options)
        _smallest[key] = found, (model, problem, options)  # their ids must stay taken
    return _smallest[key][0]


def _alike(option: Any) -> Any:
    """The same of two options with which plans are the same."""
    if isinstance(option, SimulatedBackend):  # whatever the order of work
        return "simulated", option.gpus, option.detours
    return option if isinstance(option, str | Strategy) else id(option)


def smallest_budget(artifact: Artifact, layers: Callable[[], list[nn.Module]], **options: Any) -> int:
    """The smallest device budget that works, as the error of a hopeless one names it."""
    with pytest.raises(BudgetError) as caught:
        hongtu.Trainer(artifact, layers(), **(options | {"device_memory": 1}))
    named = re.search(r"smallest that works is (\d+)", str(caught.value))
    assert named, str(caught.value)
    return int(named[1])


def plain_losses(model, problem, epochs=3):
    """Those of a float64 model of torch_geometric that trains on the whole graph by plain torch, epoch by epoch."""
    x, mask = torch.from_numpy(problem.features).double(), torch.from_numpy(problem.masks["train"])
    optimizer, labels = sgd(model.parameters()), torch.from_numpy(problem.labels)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, problem.edge_index)[mask], labels[mask])
        loss.backward()
        optimizer.step()
        yield loss.item()
