"""A device that runs out of memory inside a layer: what was needed, which budget would do, and planning again.

Layers are probed when a run is planned. One that takes more in the run than it did then (its memory depends on the
data, or the device has less than it said) is measured where it fails, and the planner learns the factor.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import nn

from hongtu.engine.engine import Engine
from hongtu.errors import BudgetError, DeviceOutOfMemory, InputError
from hongtu.host import available_bytes
from hongtu.model.network import Network
from hongtu.nn.context import RowContext
from hongtu.plan.execution import ExecutionPlan
from hongtu.train.survey.witness import Witness

T = TypeVar("T")
Correct = Callable[[str, int], int]
SHARES = (1.0, 0.5, 0.25, 0.1, 0.0)
ON_OOM = ("raise", "replan")
GROWTH = 1.25  # of what is expected of layers, where they cannot be measured


class MakePlan(Protocol):
    """The planner, for one run."""

    def __call__(self, *, network: Network, budget: int | None, correct: Correct | None) -> ExecutionPlan: ...


@dataclass(frozen=True)
class Excess:
    """By pass, what layers take beyond what a probe finds: how many times as much, and how many bytes more at most."""

    factor: dict[str, float] = field(default_factory=dict)
    more: dict[str, int] = field(default_factory=dict)

    def likely(self, name: str, probed: int) -> int:
        """Where it shrinks with the chunks."""
        return int(self.factor.get(name, 1.0) * probed)

    def part(self, share: float) -> Correct:
        """Only so much of what is likely."""
        return lambda name, probed: probed + int(share * (self.likely(name, probed) - probed))

    def surely(self, name: str, probed: int) -> int:
        """Where it does not."""
        return max(self.likely(name, probed), probed + self.more.get(name, 0))


class Relief:
    """Holds the engine of a run, and a leaner one from each time on that a device ran out of memory.

    Args:
        network: the model; planning decides how its layers are run.
        make_plan: plans the run.
        make_engine: sets a plan to work.
        probe: what layers, on the CPU, take in the passes of a plan when they run on placeholder rows.
        budget: bytes per device, or None.
        on_oom: "raise", or "replan": run again with smaller groups of chunks.
        losses: modules of the loss that must stay as they are.

    Raises:
        InputError: for another ``on_oom``.
    """

    def __init__(
        self,
        network: Network,
        make_plan: MakePlan,
        make_engine: Callable[[ExecutionPlan], Engine],
        probe: Callable[[ExecutionPlan, nn.ModuleList], dict[str, int]],
        budget: int | None,
        on_oom: str,
        losses: list[nn.Module],
    ) -> None:
        if on_oom not in ON_OOM:
            raise InputError(f"on_oom {on_oom!r}: expected {' or '.join(map(repr, ON_OOM))}")
        self._network, self._make_plan, self._make_engine, self._probe = network, make_plan, make_engine, probe
        self._budget, self._on_oom = budget, on_oom
        self._excess = Excess()
        self._plan = make_plan(network=network, budget=budget, correct=None)
        self._engine: Engine | None = make_engine(self._plan)
        self._whole = True  # else something stopped a run, which may have left anything behind
        self._frozen = self._untrained()
        self._witness = Witness(network.modules, losses)

    @property
    def engine(self) -> Engine:
        """The one in use, made anew after whatever stopped a run."""
        if self._engine is None:
            gc.collect()  # devices and what counts for them refer to each other
            self._engine = self._make_engine(self._plan)
        return self._engine

    def run(self, work: Callable[[Engine], T]) -> T:
        """Do some work, from its start again where a device ran out of memory and the run can be planned again.

        Raises:
            DeviceOutOfMemory: when it cannot, or may not; names the budget that would do.
        """
        if not self._whole:
            self._replace_engine(self._plan)
        thawed = any(parameter.requires_grad for parameter in self._frozen)
        if self._witness.changed() or thawed:  # since it was planned
            plan = self._plan_changed()
            self._frozen = self._untrained()
            self._replace_engine(plan)
        while True:
            self._whole = False
            try:
                self.engine.set_up()
                found = work(self.engine)
                self._whole = True
                return found
            except (DeviceOutOfMemory, torch.cuda.OutOfMemoryError) as error:
                if self._budget is None or not self.engine.began:
                    raise
                reason, taken = str(error), getattr(error, "taken", 0)
            finally:
                self._witness.look()  # now: what people change after an error is a change, too
            self._relieve(reason, taken, self._budget)  # out here: the error held the tensors that were too many

    def _relieve(self, reason: str, taken: int, budget: int) -> None:
        name, module, chunk = self.engine.place
        excess = self._learn(name, taken)
        found = (
            f"{reason}, in {module} on chunk {chunk} of pass {name!r}; layers take more than when they were probed: "
        )
        enough = self._try_plan(1, excess.surely)
        if self._on_oom == "raise":
            raise DeviceOutOfMemory(
                f"{found}on_oom='replan' (--on-oom replan) runs the epoch again, planned for that; a device_memory "
                f"(--device-memory) of {enough} bytes is enough for it, or less where preprocess makes more chunks"
            )
        before = self.engine.plan.topology.chunks
        correct = self._leaner(budget, excess)
        if correct is None:
            raise DeviceOutOfMemory(
                f"{found}no groups of chunks are small enough; pass device_memory (--device-memory) of {enough} bytes, "
                "or preprocess with more chunks"
            )
        plan = self._make_plan(network=self._network, budget=budget, correct=correct)
        warnings.warn(
            f"{found}planned again, with {plan.topology.chunks} instead of {before} groups of chunks", stacklevel=4
        )
        self._excess = excess
        self._replace_engine(plan)

    def _plan_changed(self) -> ExecutionPlan:
        """A plan for what is trained now; where there is none, the layers are again as the plan that runs has them."""
        sides = self._network.transform_first
        try:
            return self._make_plan(network=self._network, budget=self._budget, correct=self._excess.part(1))
        except BaseException:
            self._network.set_transform_first(sides)
            raise

    def _replace_engine(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._engine = None  # before the next takes its memory
        self._whole = True

    def _untrained(self) -> list[nn.Parameter]:
        """Those for which no gradient is planned."""
        return [parameter for parameter in self._network.modules.parameters() if not parameter.requires_grad]

    def _learn(self, name: str, taken: int) -> Excess:
        """What is known of the run's layers, with what they took in the passes around one."""
        plan = self.engine.plan
        model = copy.deepcopy(self._network.modules).cpu()
        probed, found = self._probe(plan, model), self._measure(name) or {name: int(GROWTH * taken)}
        factor, more = dict(self._excess.factor), dict(self._excess.more)
        for key, size in found.items():
            factor[key] = max(1.0, size / max(probed[key], 1))
            more[key] = size  # of which the own part shrinks with the chunks, and may not be the peak
        learned = Excess(factor, more)
        if all(learned.likely(key, probed[key]) <= plan.workspace.get(key, 0) for key in found):  # nothing new
            factor[name] = GROWTH * max(factor[name], self._excess.factor.get(name, 1.0))
        return learned

    def _measure(self, name: str) -> dict[str, int] | None:
        """What layers take in the passes around one, where the host has room to find out."""
        free = available_bytes()
        if free is None:
            return None
        self._replace_engine(self._plan)  # an error stopped the one in use
        try:
            with self.engine.budget_of(free // 2 // self._plan.topology.partitions):
                return self.engine.measure(name)
        except (DeviceOutOfMemory, torch.cuda.OutOfMemoryError):
            return None
        finally:
            self._whole = False

    def _leaner(self, budget: int, excess: Excess) -> Correct | None:
        """A correction with which a plan fits the budget: what is likely, or the part of it that gives smaller groups
        than now, for they may take less than is likely; None where there are none."""
        for share in SHARES:
            correct = excess.part(share)
            plan = self._try_plan(budget, correct)
            if isinstance(plan, ExecutionPlan) and (
                share == 1 or plan.topology.chunks > self.engine.plan.topology.chunks
            ):
                return correct
        return None

    def _try_plan(self, budget: int, correct: Correct) -> ExecutionPlan | int:
        """A plan of a copy of the model, for the run may go on with its own; or the smallest budget that works."""
        trial = Network(copy.deepcopy(self._network.modules), RowContext(), self._network.autocast)
        try:
            return self._make_plan(network=trial, budget=budget, correct=correct)
        except BudgetError as error:
            return error.smallest
