"""What steps of optimizers take beside the parameters, found by steps on copies and on a few rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hongtu.device.layer_memory import WorkspaceTracker
from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.kernels.torch_private import times_written
from hongtu.model.embedding import state_bytes
from hongtu.train.settings import OptimizerFactory

STEPS = 8  # of a few rows: some optimizers do other things in their first ones


@dataclass(frozen=True)
class Stepped:
    """What steps of an optimizer take.

    Attributes:
        state: bytes of its state.
        changes: it writes to gradients, so that what they were has to be copied before.
        beside: bytes of what else is there inside a step, at most, where that was looked at.
    """

    state: int
    changes: bool
    beside: int = 0


def taken_inside(step: Callable[[], object]) -> int:
    """Bytes that a step takes at most and gives back."""
    tracker = WorkspaceTracker(lambda live: None)
    with tracker:
        step()
    return tracker.peak - tracker.live


def step_model(optimizer: torch.optim.Optimizer) -> Stepped:
    """Of a step of a copy on copies of the parameters, where the optimizer has not made its state yet.

    Raises:
        InputError: for one that cannot step.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if optimizer.state and all(p in optimizer.state for p in parameters if p.requires_grad):
        return Stepped(state_bytes(optimizer), changes=False)
    trial = _copied(optimizer)
    stepped = [p for group in trial.param_groups for p in group["params"]]
    for parameter in stepped:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    try:
        changes = _changes(trial, stepped)
    except (TypeError, RuntimeError, AssertionError) as error:
        name, text = type(optimizer).__name__, str(error) or type(error).__name__
        raise InputError(
            f"optimizer {name}: {text}; use torch.optim.Adam, or another that steps without a closure, once for each "
            "gradient, and by dense ones"
        ) from error
    return Stepped(state_bytes(trial), changes)


def _copied(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """With copies of parameters; torch's own copy leaves out what a class adds to itself."""
    memo: dict[int, Any] = {}
    trial = copy.deepcopy(optimizer, memo)
    for name in vars(optimizer).keys() - vars(trial).keys() - {"step"}:  # which a scheduler has bound to the original
        setattr(trial, name, copy.deepcopy(vars(optimizer)[name], memo))
    return trial


def step_rows(make_optimizer: OptimizerFactory, num_vertices: int, width: int, dtype: torch.dtype) -> Stepped:
    """Of steps on [V, width], learned from those on two rows and on three."""
    found = []
    for rows in (2, 3):
        trial = nn.Parameter(torch.zeros((rows, width), dtype=dtype))
        optimizer, beside = make_optimizer([trial]), 0
        for _ in range(STEPS):
            trial.grad = torch.zeros_like(trial)
            beside = max(beside, taken_inside(optimizer.step))
        found.append(Stepped(state_bytes(optimizer), _changes(optimizer, [trial]), beside))
    two, three = found
    state, beside = (
        a + (b - a) * (num_vertices - 2) for a, b in ((two.state, three.state), (two.beside, three.beside))
    )
    return Stepped(state, two.changes, beside)


def _changes(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> bool:
    """Whether a step writes to gradients."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    before = [times_written(gradient) for gradient in gradients]
    optimizer.step()
    return before != [times_written(gradient) for gradient in gradients]


def learned_bytes(stepped: Stepped, artifact: Artifact, rows: int) -> int:
    """Bytes of the host beside learned rows and their gradient: the optimizer's state, a copy of a gradient that is
    changed, and the most of what a step takes and a snapshot, which has rows and state in the original order; of ranks
    those of all, and once more on their way.

    Args:
        artifact: or a rank's share, whose rows are learned.
        rows: bytes of the rows.
    """
    snapshot = rows + stepped.state
    if artifact.whole is not artifact:
        snapshot = 2 * snapshot * artifact.whole.num_vertices // max(1, artifact.num_vertices)
    return stepped.state + stepped.changes * rows + max(stepped.beside, snapshot)
