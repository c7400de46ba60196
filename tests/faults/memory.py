"""Layers that take more device memory than when they were probed, within budgets of every size."""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

import hongtu
from hongtu import nn as hnn
from hongtu.errors import BudgetError, DeviceOutOfMemory
from hongtu.graph.artifact import Artifact
from tests.faults.outcome import Outcome
from tests.faults.run import prepare

EPOCHS = 4


class Hungry(hnn.GCNConv):
    """Takes so many extra bytes per row and per call, as its data want it: nothing of it on the zeros of a probe."""

    per_row, per_call = 0, 0

    def update(self, a, s):
        if a.any():
            torch.empty(Hungry.per_row * len(a) + Hungry.per_call, dtype=torch.uint8)
        return super().update(a, s)


def replan_many(tries: int, seed: int = 0) -> Outcome:
    """Each try becomes hungry after an epoch, under a random budget; one that is too small must name one that does."""
    outcome = Outcome(
        "a layer takes more device memory than when it was planned, `on_oom='replan'`",
        "the losses of an undisturbed run within 1e-10, in the budget; or a message that names a budget that does",
    )
    rng = np.random.default_rng(seed)
    again = refused = 0
    with tempfile.TemporaryDirectory(prefix="hongtu-faults-") as folder:
        artifact = prepare(Path(folder) / "artifact", vertices=200, edges=1200)
        try:
            _make(artifact, 1)
        except BudgetError as error:
            least = error.smallest
        expected = _losses(_make(artifact, None), hungry=(0, 0))
        for k in range(tries):
            hungry = int(rng.choice([0, 200, 1000])), int(rng.choice([0, 5_000, 50_000]))
            budget = int(least * rng.uniform(1, 4))
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    try:
                        found = _losses(_make(artifact, budget), hungry)
                    except DeviceOutOfMemory as error:
                        refused += 1
                        budget = int(re.search(r"device-memory\) of (\d+) bytes", str(error))[1])
                        found = _losses(_make(artifact, budget), hungry)
                    good = np.allclose(found, expected, rtol=1e-10, atol=0)
                    loss = f"losses {found}"
                except Exception as error:
                    good, loss = False, f"{type(error).__name__}: {error}"
            again += any("planned again" in str(warning.message) for warning in warned)
            outcome.expect(good, f"try {k} of seed {seed}, budget {budget}, hunger {hungry}: {loss}")
    outcome.note = f"seed {seed}; {again} planned again, {refused} budgets were too small and named another"
    return outcome


def _make(artifact: Artifact, budget: int | None) -> hongtu.Trainer:
    torch.manual_seed(0)
    layers = [Hungry(6, 5, activation="relu", input_dropout=0.3), hnn.SAGEConv(5, 3)]
    return hongtu.Trainer(artifact, layers, dtype=torch.float64, device_memory=budget, on_oom="replan")


def _losses(trainer: hongtu.Trainer, hungry: tuple[int, int]) -> list[float]:
    Hungry.per_row = Hungry.per_call = 0
    losses = [trainer.train_epoch().loss]
    Hungry.per_row, Hungry.per_call = hungry
    try:
        return losses + [record.loss for record in trainer.fit(EPOCHS - 1)]
    finally:
        Hungry.per_row = Hungry.per_call = 0
