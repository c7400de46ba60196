"""From an artifact, a network and a budget to an execution plan: what a Trainer does before it trains.

Features and labels are not read; layers run on toy blocks only, to learn widths and to bound their memory.
"""

from __future__ import annotations

import gc
import itertools
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hongtu.config import HOST_DTYPES
from hongtu.errors import BudgetError, InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.paper_edges import PaperEdges, with_paper_edges
from hongtu.graph.sparse_rows import SparseRows
from hongtu.graph.topology import Topology
from hongtu.host import available_bytes, drop_pages, return_freed_memory, reuse_freed_memory
from hongtu.kernels.dispatch import as_on_gpu
from hongtu.model.checks import check_default_device
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.network import Forms, Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.cost.seconds import predict_seconds, sketch_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import Choice, Strategy
from hongtu.plan.search.build import sketch_plan
from hongtu.plan.search.host import HostLimit, fit_host, without_scripts
from hongtu.plan.search.planner import GraphShape, plan_run
from hongtu.train.settings import RunSpec
from hongtu.train.tracing.probe import Correct, probe_workspace
from hongtu.train.tracing.shape import check_edge_data, network_shape
from hongtu.train.tracing.stepping import learned_bytes, step_rows

LARGE = 1 << 20  # edges of a graph whose plans take tens of MiB
ABOUT = 1.02  # times the best: as fast, for what is saved is worth more than an estimate's error
MOST_SIDES = 3  # layers of which every combination is tried


@dataclass(frozen=True)
class Job:
    """What is planned and run: a loss on an artifact, or on a rank's share of it, and how.

    Attributes:
        loss: of the model's output; None where there is none, and nothing is trained.
        optimizer: whose steps take memory, too.
        spec: how the run goes.
    """

    artifact: Artifact
    loss: MeanLoss | EdgeLoss | None
    optimizer: torch.optim.Optimizer | None
    spec: RunSpec

    def plan(self, network: Network, budget: int | None, correct: Correct | None = None) -> ExecutionPlan:
        """Set ``transform_first`` and ``once_per_vertex`` of a network's layers and plan its run, with its modules on
        the CPU. Ranks that fetch rows of one another get the same sides and savings, or are refused.

        Args:
            budget: bytes per device, or None for no limit.
            correct: what layers take in a pass, by its name and what a probe finds; None: what the probe finds.

        Raises:
            InputError: for anything that cannot work.
            BudgetError: when the budget is too small; names the smallest that works.
        """
        check_default_device()
        with self.spec.backend.trial():
            return _NetworkPlanner(self, network, budget, correct).plan()

    def probe(
        self, network: Network, plan: ExecutionPlan, correct: Correct | None = None, *, whole: bool = False
    ) -> dict[str, int]:
        """As ``probe_workspace``."""
        vertices, dtype = self.artifact.whole.num_vertices, self.spec.dtype
        with self.spec.backend.trial():
            return probe_workspace(plan, network, self.loss, vertices, dtype, correct, whole=whole)

    def with_sparse_rows(self, network: Network) -> Job:
        """The same with dense features in CSR, where most of them are zeros and the network would multiply the others
        alone: on the CPU, in one process, with room for both."""
        artifact, spec = self.artifact, self.spec
        limited = spec.limit is not None or spec.spill is not None or spec.ranks.size > 1
        if limited or spec.hardware.staged or artifact.features is None or artifact.sparse_features is not None:
            return self
        network.set_transform_first(tuple(layer.may_transform_first for layer in network.layers))
        rows = SparseRows.of_dense(artifact.features) if network.maps_input else None
        if rows is None:
            return self
        sparse = replace(self, artifact=artifact.with_sparse_features(rows))
        with spec.backend.trial():
            return sparse if _NetworkPlanner(sparse, network, None, None).maps_input() else self

    def sketch(self, network: Network) -> ExecutionPlan:
        """What a network computes, without planned transfers, and linear maps behind the exchanges."""
        assert self.loss is not None and self.optimizer is not None
        network.modules.cpu()
        network.set_once_per_vertex([False] * len(network.layers))
        network.set_transform_first((False,) * len(network.layers))
        shape = network_shape(self.artifact, network, self.loss, self.optimizer, self.spec.dtype)
        return _sketch(self.artifact.topology, shape, self.spec.strategy)


class _NetworkPlanner:
    """Plans runs of one network, in forms that compute the same: linear maps before or behind the exchange, and some
    savings left out. Arguments as of ``Job.plan``."""

    def __init__(self, job: Job, network: Network, budget: int | None, correct: Correct | None) -> None:
        assert job.loss is not None and job.optimizer is not None
        self._artifact, self._loss, self._optimizer, self._spec = job.artifact, job.loss, job.optimizer, job.spec
        self._network, self._budget = network, budget
        network.modules.cpu()  # where plans are tried
        artifact, spec, dtype = job.artifact, job.spec, job.spec.dtype
        check_edge_data(artifact, network)
        self._stored = artifact.topology.keeping(
            edge_features=any(map(network.reads_edge_features, range(len(network.layers)))),
            edge_type=any(layer.uses_edge_type for layer in network.layers),
        )
        self._clips = spec.clips or spec.hardware.staged  # optimizers on GPUs may change gradients
        self._learned: dict[str, Any] = {}
        if artifact.learns_features:
            rows, columns = artifact.num_vertices, artifact.feature_width
            stepped = step_rows(spec.make_rows_optimizer, rows, columns, dtype)
            stepped = replace(stepped, changes=spec.clips or stepped.changes)
            taken = learned_bytes(stepped, artifact, rows * columns * dtype.itemsize)
            self._learned = {"learned_bytes": taken, "copies_learned": stepped.changes}
        self._probe = partial(job.probe, network, correct=correct)
        self._topologies: dict[PaperEdges, Topology] = {PaperEdges(): self._stored}
        self._traced: dict[tuple[tuple[bool, ...], ...], tuple[NetworkShape, Forms]] = {}

    def plan(self) -> ExecutionPlan:
        """With the sides that are predicted to be the fastest; where they do not fit, and ranks need not choose alike,
        in whatever form does.

        Raises:
            BudgetError: when none does; names the smallest budget that works.
        """
        artifact, network, strategy = self._artifact, self._network, self._spec.strategy
        never = (False,) * len(network.layers)
        self._choose_edges(strategy)
        self._loss.check_output(self._shape(never).output, self._spec.dtype)
        sides = self._choose_sides() if strategy.transform_first else never
        if not self._loss.trains:
            strategy = replace(strategy, cache_input_aggregate=False)  # a sweep reads what it would be kept for once
        if artifact.halo is not None:
            return self._plan(sides, strategy)
        try:
            return self._plan(sides, strategy)
        except BudgetError as refused:  # what saves time may cost memory
            least = refused.with_traceback(None)  # which has the plans that were tried
        uncached = replace(strategy, cache_input_aggregate=False)
        others = _other_sides(network, sides) if strategy.transform_first else (never,)
        tried = list(itertools.product(others, dict.fromkeys((strategy, uncached))))[1:]
        if any(layer.paper_edges is not None for layer in network.layers):
            tried.append((never, replace(uncached, once_per_vertex=False)))
        for other, used in tried:
            if used == uncached != strategy and not self._shape(other).constant_layers:
                continue  # nothing is cached in the plan that was tried before
            try:
                return self._plan(other, used)
            except BudgetError as refused:
                least = min(least, refused.with_traceback(None), key=lambda error: error.smallest)
        raise least

    def maps_input(self) -> bool:
        """Whether sparse features are multiplied as they are."""
        strategy, network = self._spec.strategy, self._network
        self._choose_edges(strategy)
        never = (False,) * len(network.layers)
        return self._shape(self._choose_sides() if strategy.transform_first else never).maps_input

    def _shape(self, transform_first: tuple[bool, ...]) -> NetworkShape:
        """Of the network with these sides, which it has from then on."""
        network = self._network
        network.set_transform_first(transform_first)
        choices = network.transform_first, network.once_per_vertex
        if choices not in self._traced:
            with as_on_gpu() if self._spec.hardware.staged else nullcontext():  # what layers do there is counted
                shape = network_shape(
                    self._artifact, network, self._loss, self._optimizer, self._spec.dtype,
                    checks_rows=not self._traced, clips=self._clips,
                )  # fmt: skip
            beside = {name: getattr(self._spec, name) for name in HOST_DTYPES}
            shape = replace(shape, **beside, **(self._learned if shape.learned_input else {}))
            self._traced[choices] = shape, network.forms
        shape, network.forms = self._traced[choices]
        return shape

    def _choose_edges(self, used: Strategy) -> PaperEdges:
        return self._network.set_once_per_vertex([used.once_per_vertex] * len(self._network.layers))

    def _topology(self, edges: PaperEdges) -> Topology:
        if edges not in self._topologies:
            named = str(self._spec.dtype).removeprefix("torch.")
            statistics = self._artifact.degree_statistics(columns=3 if edges.weighted else 6)
            self._topologies[edges] = with_paper_edges(self._stored, edges, statistics, named)
        return self._topologies[edges]

    def _choose_sides(self) -> tuple[bool, ...]:
        """Per layer, whether its linear map comes before the exchange: layer by layer the predicted cheaper side. Where
        what stages compute is saved, and it costs about the same, it does: the aggregate need not be kept then."""
        artifact, layers, spec = self._artifact, self._network.layers, self._spec
        chosen, linked = [False] * len(layers), self._budget is not None
        topology = artifact.topology if artifact.halo is None else artifact.whole.topology  # the same on every rank
        saves = not linked and spec.strategy.resident and spec.strategy.save

        def seconds(sides: list[bool]) -> float:
            shape = replace(self._shape(tuple(sides)), trains=True)  # or else what is only run would have other bits
            if artifact.halo is not None:
                sparse: Any = artifact.whole.sparse_features
                shape = replace(shape, sparse_input=sparse)
            return sketch_seconds(_sketch(topology, shape, spec.strategy), spec.hardware, linked=linked)

        best = seconds(chosen)
        for index, layer in enumerate(layers):
            if layer.may_transform_first:
                trial = [*chosen[:index], True, *chosen[index + 1 :]]
                found = seconds(trial)
                if found < best or (saves and found < best * ABOUT):
                    chosen, best = trial, found
        return tuple(chosen)

    # ------------------------------------------------------------------------------------------------ within the host

    def _plan(self, sides: tuple[bool, ...], used: Strategy) -> ExecutionPlan:
        limit, staged, spills = self._spec.limit, self._spec.hardware.staged, False
        return_freed_memory()  # of one plan that is tried, and its layers, before another is
        try:
            if limit is None:
                found = without_scripts(self._planned(sides, used, None), available_bytes(), has_devices=not staged)
                found.forget()  # what its program was made from
                return found
            found = self._fitting(sides, used, limit)
            spills = bool(found.spilled)
            return found
        finally:
            if limit is not None:
                self._forget()
            if not spills:  # else until its engine ends
                reuse_freed_memory()

    def _fitting(self, sides: tuple[bool, ...], used: Strategy, limit: HostLimit) -> ExecutionPlan:
        """Where plan arrays are little beside the limit, and the rest of it is not enough for other things, passes
        share them all the same: so whatever more than the least that works works, too."""
        try:
            return self._in_groups(sides, used, limit, limit.left)
        except BudgetError:
            raise
        except InputError:  # whose frames have the plans that were tried
            pass
        return self._in_groups(sides, used, limit, 0)

    def _in_groups(self, sides: tuple[bool, ...], used: Strategy, limit: HostLimit, host_memory: int) -> ExecutionPlan:
        """Where groups of chunks are too much, whose structure may come beside the artifact's: groups of half as many,
        or none, whichever is predicted to be faster.

        Args:
            host_memory: passes share plan arrays that could take most of it.
        """
        plans = [self._afresh(sides, used, host_memory)]  # one at a time
        size = -(-self._stored.chunks // plans[0].topology.chunks)
        try:
            return fit_host(plans.pop(), limit)
        except InputError:
            if size == 1:
                raise
        plans = [fit_host(self._afresh(sides, used, host_memory, 1), limit)]
        if size < 4:
            return plans[0]
        seconds = predict_seconds(plans.pop(), self._spec.hardware).total
        with suppress(InputError):
            found = fit_host(self._afresh(sides, used, host_memory, size // 2), limit)
            if predict_seconds(found, self._spec.hardware).total < seconds:
                return found
            del found
        return fit_host(self._afresh(sides, used, host_memory, 1), limit)

    def _afresh(
        self, sides: tuple[bool, ...], used: Strategy, host_memory: int, largest: int | None = None
    ) -> ExecutionPlan:
        """Without the memory of plans that were tried before."""
        self._forget()
        return self._planned(sides, used, host_memory, largest)

    def _forget(self) -> None:
        """Give back what plans that were tried have left."""
        if self._stored.num_edges >= LARGE:  # else there is room for them in what every process takes
            gc.collect()
        return_freed_memory()

    def _planned(
        self, sides: tuple[bool, ...], used: Strategy, host_memory: int | None, largest: int | None = None
    ) -> ExecutionPlan:
        artifact, topology = self._artifact, self._topology(self._choose_edges(used))
        give_up = partial(drop_pages, topology.local_source, cached=True)
        grouped = (lambda: None) if host_memory is None else give_up
        graph = GraphShape(
            topology, artifact.schedule_paper, artifact.original_id, self._loss.loss_vertices, artifact.halo
        )
        return plan_run(
            graph, self._shape(sides), used, self._budget, self._probe, self._spec.hardware, host_memory, grouped,
            largest,
        )  # fmt: skip


def _sketch(topology: Topology, shape: NetworkShape, strategy: Strategy) -> ExecutionPlan:
    schedule = np.zeros((topology.partitions, 0), dtype=np.int32)  # nothing is planned that depends on it
    return sketch_plan(topology, schedule, shape, strategy, Choice(fuse=strategy.fuse_last_layer))


def _other_sides(network: Network, chosen: tuple[bool, ...]) -> list[tuple[bool, ...]]:
    """Sides to try where the chosen ones do not fit, those first: every combination, or, of many layers, all on one
    side and each alone on its other one."""
    free = [k for k, layer in enumerate(network.layers) if layer.may_transform_first]
    if len(free) <= MOST_SIDES:
        combinations = [dict(zip(free, picked)) for picked in itertools.product((False, True), repeat=len(free))]
    else:
        combinations = [dict.fromkeys(free, side) for side in (False, True)] + [{k: not chosen[k]} for k in free]
    sides = (tuple(c.get(k, side) for k, side in enumerate(chosen)) for c in combinations)
    return list(dict.fromkeys((chosen, *sides)))
