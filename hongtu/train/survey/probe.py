"""Bounds the memory that layers take inside a stage, by running them once on a block as large as any chunk.

What a layer allocates grows with the destinations, sources, edges and largest in-degree of its block; the probe's
block has the largest of each over all chunks, no source in common with its destinations but one, and every vertex in
the mask of every term of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from hongtu.device.cpu import CpuDevice
from hongtu.engine.executor import Executor
from hongtu.engine.host_store import HostStore
from hongtu.graph.sparse_rows import SparseRows
from hongtu.graph.topology import Topology, build_topology
from hongtu.kernels.dispatch import as_on_gpu
from hongtu.metrics import Traffic
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.network import Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.memory.disk import Kept
from hongtu.plan.passes.choice import Choice
from hongtu.plan.passes.definition import FEATURES
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.program.program import PassProgram
from hongtu.plan.search.build import make_plan

Correct = Callable[[str, int], int]


def probe_workspace(
    plan: ExecutionPlan,
    network: Network,
    loss: MeanLoss | EdgeLoss | None,
    vertices: int,
    dtype: torch.dtype,
    correct: Correct | None = None,
) -> dict[str, int]:
    """Bytes that layers take at most inside each pass, by pass name, in training and in evaluation; runs on a copy of
    the model.

    Args:
        vertices: of the whole graph, by which normalisations may choose their statistics.
        correct: what layers take in a pass, by its name and what is found here; None: that.
    """
    workspace: dict[str, int] = {}
    for key, view in plan.views.items():
        names = {p.name for p in plan.passes.every if plan.view_of(p) == key}
        found = _probe_view(plan, view, network, loss, vertices, dtype)
        # rows of a part of the graph are put into resident tensors by an int64 copy of their positions
        positions = 0 if view.active is None else 8 * int(view.num_dst.max())
        workspace |= {name: taken + positions for name, taken in found.items() if name in names}
    return workspace if correct is None else {name: correct(name, taken) for name, taken in workspace.items()}


def _probe_view(
    plan: ExecutionPlan,
    view: Topology,
    network: Network,
    loss: MeanLoss | EdgeLoss | None,
    vertices: int,
    dtype: torch.dtype,
) -> dict[str, int]:
    """The workspace of every pass on the largest block of one view."""
    topology = _largest_block(view, plan.shape)
    schedule = np.zeros((1, 1), dtype=np.int32)  # only the first chunk runs; the others exist to be sources
    shape = plan.shape
    if shape.sparse_input is not None:
        rows = _largest_rows(int(shape.sparse_input.numbers(view).max()), int(topology.chunk_start[1]), topology)
        shape = replace(shape, sparse_input=replace(rows, width=shape.features))
    small = make_plan(topology, schedule, shape, plan.strategy, choice=Choice(fuse=plan.choice.fuse, padded=plan.apart))
    host = _placeholder_rows(small, dtype)
    device = CpuDevice("probe", None, Traffic())
    with torch.random.fork_rng(devices=[]), as_on_gpu(plan.choice.staging > 0):
        twin = network.twin()
        for parameter in twin.modules.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        program = small.program
        scored = _Unscored() if isinstance(loss, EdgeLoss) else loss
        executor = Executor(program, [twin], host, [device], scored, topology.num_edges, vertices)

        def run(passes: Sequence[PassProgram], *, training: bool) -> dict[str, int]:
            twin.modules.train(training)
            found = {}
            for p in passes:
                device.reset_peaks()
                executor.run((p,))
                found[p.name] = device.workspace_peak
            return found

        try:
            workspace = run(program.setup, training=False) | run(program.train, training=True)
            evaluation = "evaluation", tuple(small.passes.evaluate), plan.choice.staging > 0
            if evaluation not in view.memo:  # plans that train in other passes evaluate in the same
                view.memo[evaluation] = run(program.evaluate, training=False)
            return workspace | view.memo[evaluation]
        finally:
            device.empty_out()


def _largest_block(topology: Topology, shape: NetworkShape) -> Topology:
    """A topology whose chunk 0 has one source and one edge more than the largest chunk, and as many destinations."""
    d, s, e = (int(x.max()) for x in (topology.num_dst, topology.num_sources, topology.chunk_edges))
    s = max(s, 1)
    source = np.empty(e + 1, dtype=np.int32)
    source[0] = 0  # a self-loop of destination 0
    source[1:] = d + np.arange(e) % s
    hub = min(e, int(np.diff(topology.in_edge_start).max(initial=0))) + 1  # destination 0 has the most in-edges
    in_edge_start = np.full(d + s + 1, e + 1, dtype=np.int64)
    in_edge_start[0] = 0
    in_edge_start[1 : d + 1] = np.linspace(hub, e + 1, d).astype(np.int64)
    in_edge_start[d] = e + 1
    weight = None if topology.edge_weight is None else np.ones(e + 1, dtype=np.float32)
    largest = build_topology(1, np.array([0, d, d + s]), in_edge_start, source, weight)
    features, types = np.ones((e + 1, shape.edges.features), np.float32), np.zeros(e + 1, np.int32)
    return replace(largest, edge_features=features, edge_type=types).keeping(
        edge_features=shape.edges.features > 0, edge_type=shape.edges.types > 0
    )


def _largest_rows(numbers: int, rows: int, topology: Topology) -> SparseRows:
    """Sparse features of which the first rows hold so many numbers."""
    start = np.full(topology.num_vertices + 1, numbers, dtype=np.int64)
    start[: rows + 1] = np.linspace(0, numbers, rows + 1).astype(np.int64)
    return SparseRows(start, np.zeros(numbers, dtype=np.int32), np.zeros(numbers, dtype=np.float32), 1)


class _Unscored:
    """A loss over edges takes nothing on a device."""

    def backward(self, *given: object) -> float:
        return 0.0


class _Zeros(HostStore):
    """Rows that the probe's one chunk reads and no chunk has written are zero, too: layers may look at them.

    numpy's zeros take no page before it is written, and most rows here are never written.
    """

    def create(self, name: str, columns: int, zero: bool | np.ndarray, kept: Kept | None = None) -> None:
        self.keep(name, self.zeros(columns))

    def zeros(self, columns: int) -> torch.Tensor:
        """Vertex rows of zeros."""
        numbers = np.zeros((self.num_vertices, columns), dtype=str(self.dtype).removeprefix("torch."))
        return torch.from_numpy(numbers)


def _placeholder_rows(plan: ExecutionPlan, dtype: torch.dtype) -> HostStore:
    v = plan.topology.num_vertices
    host = _Zeros(v, dtype)
    if plan.shape.sparse_input is not None:
        host.keep_sparse(plan.shape.sparse_input)
    else:
        host.keep(FEATURES, host.zeros(plan.shape.features))
    host.keep_pageable("labels", torch.zeros((v, plan.shape.label_bytes), dtype=torch.uint8))
    host.keep_pageable("loss_bits", torch.full((v,), 255, dtype=torch.uint8))
    host.keep_pageable("ids", torch.arange(v))
    host.keep_pageable("statistics", torch.ones((v, max(3, plan.shape.statistics_columns)), dtype=dtype))
    host.keep_pageable("factors", torch.ones((v, 2), dtype=dtype))
    host.keep_pageable("edge_id_start", torch.full((v,), -1))  # ids are below E: the block has one edge too many
    return host
