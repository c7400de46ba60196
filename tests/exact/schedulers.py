"""Schedulers of a random training (``harness.py``): torch's, with numbers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim import lr_scheduler as torchs
from torch.optim.swa_utils import SWALR

RATE = 0.03
Scheduler = Callable[[torch.optim.Optimizer], Any]


def draw_scheduler(rng: np.random.Generator) -> tuple[str, Scheduler]:
    """Its name, and what makes one of an optimizer."""
    factor, steps = float(rng.choice([0.3, 0.7])), int(rng.integers(1, 4))
    annealed = {"T_0": steps, "T_mult": int(rng.integers(1, 3)), "eta_min": 0.001}
    made: dict[str, Scheduler] = {
        "StepLR": lambda o: torchs.StepLR(o, steps, factor),
        "MultiStepLR": lambda o: torchs.MultiStepLR(o, [1, steps + 1], factor),
        "ExponentialLR": lambda o: torchs.ExponentialLR(o, factor),
        "ConstantLR": lambda o: torchs.ConstantLR(o, factor, steps),
        "LinearLR": lambda o: torchs.LinearLR(o, factor, total_iters=steps),
        "PolynomialLR": lambda o: torchs.PolynomialLR(o, 5, power=2.0),
        "CosineAnnealingLR": lambda o: torchs.CosineAnnealingLR(o, steps + 1),
        "CosineAnnealingWarmRestarts": lambda o: torchs.CosineAnnealingWarmRestarts(o, **annealed),
        "CyclicLR": lambda o: torchs.CyclicLR(o, 0.01, 0.05, step_size_up=steps, cycle_momentum=_has_momentum(o)),
        "OneCycleLR": lambda o: torchs.OneCycleLR(o, 0.06, total_steps=9, cycle_momentum=_has_momentum(o)),
        "LambdaLR": lambda o: torchs.LambdaLR(o, lambda epoch: factor**epoch / (1 + epoch)),
        "MultiplicativeLR": lambda o: torchs.MultiplicativeLR(o, lambda epoch: factor + 0.1 * epoch),
        "SWALR": lambda o: SWALR(o, swa_lr=0.01, anneal_epochs=steps),
        "SequentialLR": lambda o: torchs.SequentialLR(
            o, [torchs.LinearLR(o, factor, total_iters=2), torchs.CosineAnnealingLR(o, 4)], milestones=[steps]
        ),
        "ChainedScheduler": lambda o: torchs.ChainedScheduler(
            [torchs.ConstantLR(o, factor, steps), torchs.ExponentialLR(o, 0.9)]
        ),
    }
    plateaus = {
        f"ReduceLROnPlateau {mode}": lambda o, mode=mode: torchs.ReduceLROnPlateau(o, mode, factor, patience=0)
        for mode in ("min", "max")
    }
    if rng.random() < 0.4:
        made = plateaus
    name = str(rng.choice([*made]))
    return name, made[name]


def _has_momentum(optimizer: torch.optim.Optimizer) -> bool:
    return optimizer.param_groups[0].get("momentum", 0) > 0
