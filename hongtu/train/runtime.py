"""The engine of a run: planned, planned again where it has to be, run, and freed. Nobody else makes one.

A layer whose memory depends on the data, or a device that has less than it said, shows only where a run fails; there
layers are measured, and the planner learns by what factor they take more than a probe of them found.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from hongtu.engine.engine import Engine
from hongtu.errors import BudgetError, DeviceOutOfMemory
from hongtu.host import available_bytes, check_host
from hongtu.model.checks import check_default_device
from hongtu.model.embedding import VertexRows
from hongtu.model.network import Network
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.search.host import needed
from hongtu.threads import shared_cores
from hongtu.train.network_plan import Job
from hongtu.train.tracing.guards import Guards
from hongtu.train.tracing.probe import Correct

SHARES = (1.0, 0.5, 0.25, 0.1, 0.0)
GROWTH = 1.25  # of what is expected of layers, where they cannot be measured


@dataclass(frozen=True)
class WorkspaceCorrection:
    """By pass, how many times as much as a probe finds layers take, and how many bytes at most."""

    factor: dict[str, float] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def likely(self, name: str, probed: int) -> int:
        """Where it shrinks with the chunks."""
        return int(self.factor.get(name, 1.0) * probed)

    def part(self, share: float) -> Correct:
        """Only so much of what is likely."""
        return lambda name, probed: probed + int(share * (self.likely(name, probed) - probed))

    def surely(self, name: str, probed: int) -> int:
        """Where it does not."""
        return max(self.likely(name, probed), probed + self.most.get(name, 0))

    def learned(
        self,
        name: str,
        taken: int,
        probed: Mapping[str, int],
        measured: Mapping[str, int] | None,
        planned: Mapping[str, int],
    ) -> WorkspaceCorrection:
        """What is known after a pass failed.

        Args:
            name: of the pass; taken: bytes that its layers had then.
            probed, planned: what a probe finds in every pass, and what the plan that failed gave layers there.
            measured: what layers took in some passes; None: it could not be measured.
        """
        found = measured or {name: int(GROWTH * taken)}
        factor = self.factor | {key: max(1.0, size / max(probed[key], 1)) for key, size in found.items()}
        # of which the own part shrinks with the chunks, and may not be the peak
        learned = WorkspaceCorrection(factor, self.most | dict(found))
        if all(learned.likely(key, probed[key]) <= planned.get(key, 0) for key in found):  # nothing new
            factor[name] = GROWTH * max(factor[name], self.factor.get(name, 1.0))
        return learned


T = TypeVar("T")


class Runtime:
    """Holds the engine of a run, and a leaner one from each time on that a device ran out of memory.

    Args:
        job: what is run, which plans it.
        network: the model; planning decides how its layers are run.
        rows: makes or gives features that are on the host and change, where there is room: embeddings, propagated rows.
        budget: bytes per device, or None for what the devices have free.

    Raises:
        InputError: for whatever cannot be planned.
        BudgetError: when the budget is too small.
    """

    def __init__(
        self,
        job: Job,
        network: Network,
        *,
        rows: Callable[[], VertexRows] | None,
        budget: int | None,
    ) -> None:
        artifact, loss, spec = job.artifact, job.loss, job.spec
        self._job, self._network, self._budget = job, network, budget
        self._correction = WorkspaceCorrection()
        self._plan = self._plan_first()
        if rows is not None:
            check_host(needed(self._plan, has_devices=spec.backend.on_host))
        self._make_engine = partial(
            Engine, artifact, network, loss, embedding=None if rows is None else rows(), budget=budget,
            dtype=spec.dtype, backend=spec.backend, ranks=spec.ranks, spill=spec.spill,
        )  # fmt: skip
        self._engine: Engine | None = self._make_engine(self._plan)
        self._whole = True  # else something stopped a run, which may have left anything behind
        self._frozen = self._untrained()
        self._guards = Guards(network.modules, getattr(loss, "modules", []))

    @property
    def plan(self) -> ExecutionPlan:
        """What runs."""
        return self._plan

    @property
    def engine(self) -> Engine:
        """The one in use, made anew after whatever stopped a run."""
        if self._engine is None:
            gc.collect()  # devices and what counts for them refer to each other
            self._engine = self._make_engine(self._plan)
        return self._engine

    def close(self) -> None:
        """Free what the engine holds; whoever needs one makes it anew."""
        self._replace_engine(self._plan)
        gc.collect()  # devices and what counts for them refer to each other

    def run(self, work: Callable[[Engine], T]) -> T:
        """Do some work, from its start again where a device ran out of memory and the run can be planned again.

        Raises:
            DeviceOutOfMemory: when it cannot, or may not; names the budget that would do.
        """
        check_default_device()
        with shared_cores:
            return self._run(work)

    def _run(self, work: Callable[[Engine], T]) -> T:
        self._job.artifact.check_files()
        if not self._whole:
            self._replace_engine(self._plan)
        thawed = any(parameter.requires_grad for parameter in self._frozen)
        if self._guards.changed() or thawed:  # since it was planned
            self._replace_engine(self._plan_changed())
            self._frozen = self._untrained()  # last: what is stopped before is planned again
        while True:
            self._whole = False
            try:
                self.engine.set_up()
                found = work(self.engine)
                self._whole = True
                return found
            except (DeviceOutOfMemory, torch.cuda.OutOfMemoryError) as error:
                if self._budget is None or self.engine.spot is None:
                    raise
                reason, taken = str(error), getattr(error, "taken", 0)
            finally:
                self._guards.renew()  # now: what people change after an error is a change, too
            self._relieve(reason, taken, self._budget)  # out here: the error held the tensors that were too many

    # ------------------------------------------------------------------------------------------------------- planning

    def _plan_first(self) -> ExecutionPlan:
        """Within the budget; where there is none, without a limit if the devices have so much free."""
        plan = self._plan_with(None)
        memory = self._job.spec.backend.memory(plan.topology.partitions)
        if self._budget is None and memory is not None and plan.likely_bytes > memory:
            self._budget = memory
            plan = self._plan_with(None)
        return plan

    def _plan_with(self, correct: Correct | None) -> ExecutionPlan:
        """A plan for the model itself, on the CPU; the engine takes it where it runs."""
        with shared_cores:
            return self._job.plan(self._network, self._budget, correct)

    def _plan_changed(self) -> ExecutionPlan:
        """A plan for what is trained now; where there is none, the model is again as the engine that runs has it."""
        sides, once, forms = self._network.transform_first, self._network.once_per_vertex, self._network.forms
        try:
            return self._plan_with(self._correction.part(1))
        except BaseException:
            self._network.set_transform_first(sides)
            self._network.set_once_per_vertex(once)
            self._network.forms = forms
            self._network.modules.to(self._job.spec.backend.where(0))
            raise

    def _try_plan(self, budget: int, correct: Correct) -> ExecutionPlan | int:
        """A plan of a copy of the model, for the run may go on with its own; or the smallest budget that works."""
        try:
            return self._job.plan(self._network.twin(), budget, correct)
        except BudgetError as error:
            return error.smallest

    def _replace_engine(self, plan: ExecutionPlan) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None  # first: an engine is of the plan beside it, and the next one needs its memory
        self._plan = plan
        self._whole = True

    def _untrained(self) -> list[nn.Parameter]:
        """Those for which no gradient is planned."""
        return [parameter for parameter in self._network.modules.parameters() if not parameter.requires_grad]

    # -------------------------------------------------------------------------------------- a device ran out of memory

    def _relieve(self, reason: str, taken: int, budget: int) -> None:
        """Plan again for what layers took; or say which budget would do."""
        spot = self.engine.spot
        assert spot is not None
        name = spot.pass_name
        probed, workspace = self._job.probe(self._network, self._plan), self._plan.workspace
        correction = self._correction.learned(name, taken, probed, self._measure(name), workspace)
        if self._job.spec.on_oom == "replan":  # a plan is made in the memory that the engine had
            self._replace_engine(self._plan)
            self._whole = False
            gc.collect()
        found = (
            f"{reason}, in {spot.module} on chunk {spot.chunk} of pass {name!r}; layers take more than when they were "
            "probed: "
        )
        enough = self._try_plan(1, correction.surely)
        if self._job.spec.on_oom == "raise":
            raise DeviceOutOfMemory(
                f"{found}on_oom='replan' (--on-oom replan) runs the epoch again, planned for that; a device_memory "
                f"(--device-memory) of {enough} bytes is enough for it, or less where preprocess makes more chunks"
            )
        before = self._plan.topology.chunks
        correct = self._leaner(budget, correction)
        if correct is None:
            raise DeviceOutOfMemory(
                f"{found}no groups of chunks are small enough; pass device_memory (--device-memory) of {enough} bytes, "
                "or preprocess with more chunks"
            )
        plan = self._plan_with(correct)
        warnings.warn(
            f"{found}planned again, with {plan.topology.chunks} instead of {before} groups of chunks", stacklevel=4
        )
        self._correction = correction
        self._replace_engine(plan)

    def _measure(self, name: str) -> dict[str, int] | None:
        """What layers take in the passes around one, where the host has room to find out."""
        free = available_bytes()
        meets = self._plan.choice.halo is not None or self._network.norms or self._plan.shape.edge_loss
        if free is None or (self._job.spec.ranks.size > 1 and meets):  # other ranks do not run these passes now
            return None
        self._replace_engine(self._plan)  # an error stopped the one in use
        try:
            with self.engine.budget_of(free // 2 // self._plan.topology.partitions):
                return self.engine.measure(name)
        except (DeviceOutOfMemory, torch.cuda.OutOfMemoryError):
            return None
        finally:
            self._whole = False

    def _leaner(self, budget: int, correction: WorkspaceCorrection) -> Correct | None:
        """A correction with which a plan fits the budget: what is likely, or the part of it that gives smaller groups
        than now, for they may take less than is likely; None where there are none."""
        for share in SHARES:
            correct = correction.part(share)
            plan = self._try_plan(budget, correct)
            if isinstance(plan, ExecutionPlan) and (share == 1 or plan.topology.chunks > self._plan.topology.chunks):
                return correct
        return None
