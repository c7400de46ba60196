"""Training on devices with memory of their own: exact, and what the plan predicted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hongtu.cuda_ext.compile import KernelError
from hongtu.device.simulated import SimulatedBackend
from hongtu.plan.search import host
from hongtu.train import network_plan
from tests import training

EXACT = 1e-9  # of the largest gradient entry, in float64
SINGLE = 1e-4  # in float32


def simulated(gpus: int | None = None, seed: int = 0) -> SimulatedBackend:
    """CUDA's engine on the CPU; skips the test where there is no compiler for its kernels."""
    try:
        return SimulatedBackend(gpus, seed=seed)
    except KernelError as error:
        pytest.skip(str(error))


def everything(plan: Any, limit: Any, but: Any = (), kept: int = 0) -> Any:
    """As if nothing fitted into host memory, but so many chunks of every partition."""
    return host.with_spilled(plan, dict.fromkeys(set(host.candidates(plan)) - set(but), kept))


@contextmanager
def on_disk(folder: Any = None, fit: Any = everything) -> Iterator[dict[str, Any]]:
    """A trainer made inside with these options has on a disk what ``fit`` says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_plan, "fit_host", fit)
        yield {"host_memory": "1TiB", "spill": folder or tempfile.gettempdir()}


def budget(model: Any, problem: Any, grain: tuple[int, int], times: float, **options: Any) -> int:
    """So many times the smallest budget."""
    options = {"loss": model.loss, "dtype": torch.float64, "optimizer": training.sgd} | options
    return int(times * training.smallest_of(model, problem, grain, **options))


def check(
    model: Any, problem: Any, grain: tuple[int, int], epochs: int = 2, tolerance: float = EXACT, **options: Any
) -> Any:
    """Losses and gradients are the reference's, and the counters the plan's; returns the trainer."""
    trainer = training.make_trainer(model, problem, grain, **options)
    found = training.train(trainer, epochs)
    for kind in (found.gradients, found.buffers):
        kind[:] = [{name: x.cpu() for name, x in tensors.items()} for tensors in kind]
    training.assert_same(found, training.train_reference(model, problem).first(epochs), tolerance)
    return trainer
