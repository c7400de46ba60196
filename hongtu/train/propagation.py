"""Propagation without parameters: P y over rows [V, C] on the host, K times, through the engine that trains.

Legend: V vertices, C columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn
from tqdm import tqdm

from hongtu.device.backends import Backend, get_backend
from hongtu.engine.engine import Engine
from hongtu.errors import InputError, names_known
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.hardware import Hardware
from hongtu.metrics import EpochRecord
from hongtu.model.embedding import VertexRows
from hongtu.model.network import Network
from hongtu.nn.context import RowContext
from hongtu.nn.layer import Layer, Skip
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import Strategy, get_strategy
from hongtu.plan.search.planner import GraphShape, plan_run
from hongtu.ranks.group import current
from hongtu.train.network_plan import Job
from hongtu.train.ranked import ALONE
from hongtu.train.runtime import Runtime
from hongtu.train.settings import RunSpec, budget_bytes, check_precision
from hongtu.train.tracing.probe import Correct
from hongtu.train.tracing.trace import GraphForm, trace

# exponents of the weighted in-degree D: of the source, of the destination
NORMALIZE = {"symmetric": (0.5, 0.5), "source": (1.0, 0.0), "destination": (0.0, 1.0), "none": (0.0, 0.0)}

RowStep = Callable[[Tensor], Tensor]


class _Neighbours(Layer):
    """D^-b A D^-a h; a vertex without in-edges has D^-a = 0."""

    reduce = "sum"
    weighted = True

    def __init__(self, normalize: str) -> None:
        super().__init__()
        self.source, self.destination = NORMALIZE[normalize]
        self.uses_statistics = normalize != "none"

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        return self._scaled(h, self.source), None

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self._scaled(a, self.destination)

    def _scaled(self, x: Tensor, exponent: float) -> Tensor:
        if not exponent:
            return x
        statistics_R3 = self.rows.statistics
        assert statistics_R3 is not None
        scale_R = statistics_R3[:, 0].pow(-exponent)
        return x * scale_R.masked_fill(scale_R == torch.inf, 0).unsqueeze(1)


@dataclass(frozen=True)
class _Steps(Job):
    """Steps over rows of so many columns, and the bytes that each takes beside P y."""

    columns: int
    beside: int

    def plan(self, network: Network, budget: int | None, correct: Correct | None = None) -> ExecutionPlan:
        artifact, spec = self.artifact, self.spec
        traced = trace(network, GraphForm(self.columns, spec.dtype))
        shape = NetworkShape(
            features=self.columns, layers=traced.layers, output=traced.output, itemsize=spec.dtype.itemsize,
            model_bytes=0, label_bytes=0, learned_input=True, learned_bytes=self.beside, trains=False,
        )  # fmt: skip
        probe = partial(self.probe, network, correct=correct)
        graph = GraphShape(artifact.topology, artifact.schedule_paper, artifact.original_id)
        return plan_run(graph, shape, spec.strategy, budget, probe, spec.hardware)


@names_known
class Propagation:
    """Steps y <- f(P y) over the whole graph of an artifact, in a device-memory budget.

    P is the adjacency matrix (row: destination) with the graph's edge weights, if it has any, scaled by the weighted
    in-degree D, stored self-loops included; none are added.

    Args:
        artifact: an opened artifact or its path.
        columns: C.
        normalize: "symmetric" (D^-1/2 A D^-1/2), "source" (A D^-1), "destination" (D^-1 A) or "none" (A).
        device, device_memory, strategy, dtype, hardware: as for :class:`hongtu.Trainer`.

    Attributes:
        record: of the last step: seconds, bytes per link, peak bytes per memory; or None before it.

    Raises:
        InputError: for anything that cannot work, before any work.
        BudgetError: when the budget is too small; names the smallest that works.
    """

    def __init__(
        self,
        artifact: Artifact | str | os.PathLike[str],
        columns: int,
        *,
        normalize: str = "symmetric",
        device: str | Backend = "cpu",
        device_memory: int | str | None = None,
        strategy: str | Strategy = "full",
        dtype: torch.dtype = torch.float32,
        hardware: Hardware | None = None,
    ) -> None:
        if (ranks := current()).size > 1:
            raise InputError(f"Propagation: runs in one process, and the process group has {ranks.size}; {ALONE}")
        self.artifact = artifact if isinstance(artifact, Artifact) else open_artifact(artifact)
        self.artifact.check_bounds()
        if normalize not in NORMALIZE:
            raise InputError(f"normalize {normalize!r}: expected {', '.join(map(repr, NORMALIZE))}")
        if not hasattr(columns, "__index__") or columns < 1:
            raise InputError(f"columns {columns!r}: expected a whole number of at least 1")
        check_precision(dtype)
        self.columns, self.dtype = columns, dtype
        backend = get_backend(device, self.artifact.size)
        spec = RunSpec(
            strategy=get_strategy(strategy), dtype=dtype, hardware=hardware or backend.hardware, backend=backend
        )
        self._beside = self.artifact.num_vertices * columns * dtype.itemsize  # what a step adds to P y
        self._rows = VertexRows(
            self.artifact.original_id, torch.zeros((self.artifact.num_vertices, columns), dtype=dtype)
        )
        network = Network(nn.ModuleList([_Neighbours(normalize)]), RowContext())
        job = _Steps(self.artifact, None, None, spec, columns, self._beside)
        budget = budget_bytes(device_memory, partial(job.plan, network))
        self._runtime = Runtime(job, network, rows=lambda: self._rows, budget=budget)
        self._runtime.engine.count_once(self._beside)
        self.record: EpochRecord | None = None

    def __repr__(self) -> str:
        return f"Propagation({self.artifact}, {self.columns} columns)"

    @property
    def plan(self) -> ExecutionPlan:
        """What a step runs: predicted rows, bytes per link, peak bytes."""
        return self._runtime.plan

    def run(
        self, rows: Tensor, steps: int, alpha: float, then: RowStep, *, progress: bool | None = None, title: str = ""
    ) -> Tensor:
        """``steps`` times y <- then(alpha P y + (1 - alpha) rows), from y = ``rows``.

        Args:
            rows: [V, C] in the artifact's order (``renumbered``).
            then: given the new y, in the artifact's order; may change it in place.
            progress: show a progress bar; None: only on a terminal.

        Returns:
            [V, C] in the artifact's order; the next run changes it.
        """
        beside = rows * (1 - alpha)
        self._rows.weight.copy_(rows)

        def propagate(step: int, engine: Engine) -> EpochRecord:
            engine.count_once(self._beside)
            engine.reset_counters()
            start = perf_counter()
            with engine.inferred() as out:
                engine.host[FEATURES].copy_(then(out.mul_(alpha).add_(beside)))
            return engine.record(step, 0.0, perf_counter() - start)

        hidden = None if progress is None else not progress
        for step in tqdm(range(steps), unit="step", desc=title or None, disable=hidden):
            self.record = self._runtime.run(partial(propagate, step))
        return self._rows.weight

    def renumbered(self, rows: Tensor) -> Tensor:
        """[N, ...] in the original order -> in the artifact's."""
        return self._rows.renumbered(rows)

    def ordered(self, rows: Tensor) -> Tensor:
        """[V, ...] in the artifact's order -> in the original."""
        return self._rows.ordered(rows)
