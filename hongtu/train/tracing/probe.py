"""Bounds the memory that layers take inside a stage, by running them once on a block as large as any chunk.

What a layer allocates grows with the destinations, sources, edges and largest in-degree of its block; the probe's
block has the largest of each over all chunks, no source in common with its destinations but one, and as many vertices
with a loss as any chunk, in the mask of every term.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from hongtu.device.cpu import CpuDevice
from hongtu.engine.executor import Executor
from hongtu.engine.host_store import HostStore
from hongtu.engine.instructions import Means
from hongtu.graph.sparse_rows import SparseRows
from hongtu.graph.topology import Topology, build_topology
from hongtu.kernels.dispatch import as_on_gpu, in_use, kernels_key
from hongtu.metrics import Traffic
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.network import Network
from hongtu.model.structure import Kind
from hongtu.model.vertex_loss import MeanLoss
from hongtu.nn.dropout import EdgeDropout
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.memory.host import Kept
from hongtu.plan.passes.definition import FEATURES, Pass
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import Choice
from hongtu.plan.program.program import PassProgram
from hongtu.plan.search.build import make_plan
from hongtu.train.tracing.guards import digest_of, remembered

Correct = Callable[[str, int], int]

SAMPLE = 1 << 15  # destinations, sources or edges of a block from which what larger ones take follows
CLOSE = 0.02  # of the most, how far a bound may be from what is likely


class Taken(NamedTuple):
    """Bytes that layers hold before a pass, behind it, and at most inside it."""

    before: int
    behind: int
    most: int


_probed: dict[Hashable, Any] = {}


def probe_workspace(
    plan: ExecutionPlan,
    network: Network,
    loss: MeanLoss | EdgeLoss | None,
    vertices: int,
    dtype: torch.dtype,
    correct: Correct | None = None,
    *,
    whole: bool = False,
) -> dict[str, int]:
    """Bytes that layers take at most inside each pass, by pass name, in training and in evaluation; runs on a copy of
    the model.

    Args:
        vertices: of the whole graph, by which normalisations may choose their statistics.
        correct: what layers take in a pass, by its name and what is found here; None: that.
        whole: with what all chunks of a device keep until a later pass, as without a limit; found on blocks of at most
            SAMPLE, from which it grows in proportion.
    """
    workspace: dict[str, int] = {}
    every: dict[str, tuple[int, int, int]] = {}  # by pass, what one chunk takes, and what it and all leave
    for key, view in plan.views.items():
        probe = _Probe(plan, view, network, loss, vertices, dtype)
        names = {p.name for p in plan.passes.every if plan.view_of(p) == key}
        # rows of a part of the graph are put into resident tensors by an int64 copy of their positions
        positions = 0 if view.active is None else 8 * int(view.num_dst.max())
        if whole:
            part = min(1.0, SAMPLE / max(1, *(int(x.max()) for x in _sizes(view))))
            large, small = (replace(probe, part=x, whole=True).taken() for x in (part, part / 2))
            for name in names & large.keys():
                one, left, left_by_all = _of_chunks(small[name], large[name], part, view)
                every[name] = one + positions, left, left_by_all
        else:
            most = probe.most()
            workspace |= {name: most[name] + positions for name in names & most.keys()}
    if whole:
        kept = _add_up(workspace, plan.passes.setup, every, 0)
        for passes in (plan.passes.train, plan.passes.evaluate):
            _add_up(workspace, passes, every, kept)
    return workspace if correct is None else {name: correct(name, taken) for name, taken in workspace.items()}


def _sizes(view: Topology) -> tuple[np.ndarray, ...]:
    """Of every chunk, what the memory that layers take for it grows with: its destinations, sources and edges."""
    return view.num_dst, view.num_sources, view.chunk_edges


def _of_chunks(small: Taken, large: Taken, part: float, view: Topology) -> tuple[int, int, int]:
    """Bytes that layers take for the largest chunk beyond what they held before, that it leaves behind it, and that all
    chunks of a device do, given those of blocks of half a part and of a part of it: a constant and a share."""

    def at(first: int, second: int, chunks: float, times: float) -> int:
        share = (second - first) / (part / 2)
        return int(chunks * (second - share * part) + times * share)

    per_device = (x.reshape(view.partitions, view.chunks) for x in _sizes(view))
    times = max(float(x.sum(axis=1).max()) / max(int(x.max()), 1) for x in per_device)
    left = small.behind - small.before, large.behind - large.before
    return (
        at(small.most - small.before, large.most - large.before, 1, 1),
        at(*left, 1, 1),
        at(*left, view.chunks, times),
    )


def _add_up(
    workspace: dict[str, int], passes: Sequence[Pass], every: dict[str, tuple[int, int, int]], kept: int
) -> int:
    """Fill in what layers take in passes that come after one another, of which the first finds so many bytes kept;
    returns those behind the last."""
    for p in passes:
        one, left, left_by_all = every.get(p.name, (0, 0, 0))
        workspace[p.name] = kept + max(left_by_all - left, 0) + one
        kept = max(kept + left_by_all, 0)
    return kept


@dataclass(frozen=True, eq=False)
class _Probe:
    """Runs layers on the largest block of one view of a plan, or on a part of it. Other attributes are those of
    ``probe_workspace``."""

    plan: ExecutionPlan
    view: Topology
    network: Network
    loss: MeanLoss | EdgeLoss | None
    vertices: int
    dtype: torch.dtype
    part: float = 1.0
    whole: bool = False

    def most(self) -> dict[str, int]:
        """Bytes that layers take at most in every pass. They are the most, over time, of a constant and a share that
        grows with the block, so that a part of the block gives a bound; which it takes to be of use, is tried."""
        part = SAMPLE / max(self.sizes)
        while part < 1:
            large, small = (replace(self, part=x).taken() for x in (part, part / 2))
            bound = {name: ceil(taken.most / part) for name, taken in large.items()}
            likely = {name: (large[name].most - small[name].most) / (part / 2) for name in large}
            near = CLOSE * max(bound.values())
            if all(bound[name] - large[name].most - likely[name] * (1 - part) <= near for name in bound):
                return bound
            part *= 4
        return {name: taken.most for name, taken in self.taken().items()}

    def taken(self) -> dict[str, Taken]:
        """What layers take in every pass. Models and losses of known classes are run once in a process for blocks of
        one size, others once for a Trainer. Of a graph with types, what counts is the most of blocks that have edges of
        one relation, and what the others take however few edges they have."""
        return remembered(*self._known("taken"), self._most_of_kinds)

    def _most_of_kinds(self) -> dict[str, Taken]:
        with torch.random.fork_rng(devices=[]):
            twin = self.network.twin()
        for module in twin.modules.modules():
            if isinstance(module, EdgeDropout):
                module.p = min(module.p, 2.0**-40)  # as if it drew that all edges are kept
        for parameter in twin.modules.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        kinds = self.network.kinds
        found = [self.run(twin, kind) for kind in kinds]
        most = {name: max((of[name] for of in found), key=lambda x: x.most - x.before) for name in found[0]}
        if self.whole or len(kinds) == 1:
            return most
        few = replace(self, part=self.part / max(self.sizes) / 2)  # one of each
        least = remembered(*few._known("least"), lambda: [few.run(twin, kind) for kind in kinds])
        beside = {name: sum(of[name].most for of in least) - min(of[name].most for of in least) for name in most}
        return {name: x._replace(most=x.most + beside[name]) for name, x in most.items()}

    def _known(self, what: str) -> tuple[dict[Hashable, Any] | None, Hashable]:
        """Where something is remembered, and under which key: all that the memory of layers depends on there."""
        plan, network, choice, sparse = self.plan, self.network, self.plan.choice, self.plan.shape.sparse_input
        scored = self.loss.known if isinstance(self.loss, MeanLoss) else [type(self.loss)]
        model = digest_of(network.modules), None if scored is None else digest_of(scored)
        numbers = None if sparse is None else (sparse.width, ceil(self.part * int(sparse.numbers(self.view).max())))
        with_loss = ceil(self.part * _most_with_loss(self.view, self.loss))
        return network.found if None in model else _probed, (
            what, model, network.transform_first, network.once_per_vertex, network.autocast, kernels_key(), self.dtype,
            self.vertices, self.sizes, with_loss, numbers, self.view.edge_weight is None,
            replace(plan.shape, sparse_input=None), plan.strategy, choice.fuse, choice.save, plan.resident,
            choice.structure, choice.ordered, choice.staging > 0, plan.apart, self.whole,
        )  # fmt: skip

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The most destinations, sources, and edges of a chunk, and in-edges of a destination; or a part of them."""
        counts = (*_sizes(self.view), self.view.longest)
        d, s, e, hub = (ceil(self.part * int(x.max(initial=0))) for x in counts)
        return d, max(s, 1), e, min(e, hub)

    def run(self, twin: Network, kind: Kind) -> dict[str, Taken]:
        """A copy of the layers on vertices and edges of one kind."""
        plan, view, part = self.plan, self.view, self.part
        topology = _largest_block(self.sizes, plan.shape, kind, weighted=view.edge_weight is not None)
        schedule = np.zeros((1, 1), dtype=np.int32)  # only the first chunk runs; the others exist to be sources
        shape = plan.shape
        if shape.sparse_input is not None:
            numbers = ceil(part * shape.sparse_input.numbers(view).max())
            rows = _largest_rows(numbers, int(topology.chunk_start[1]), topology)
            shape = replace(shape, sparse_input=replace(rows, width=shape.features))
        choice = Choice(fuse=plan.choice.fuse, padded=plan.apart)
        if self.whole:
            own = {name: getattr(plan.choice, name) for name in ("save", "structure", "ordered")}
            choice = replace(choice, resident=plan.resident, **own)
        small = make_plan(topology, schedule, shape, plan.strategy, choice=choice)
        host = _placeholder_rows(small, self.dtype, ceil(part * _most_with_loss(view, self.loss)), kind)
        device = (_Cleared if self.whole else CpuDevice)("probe", None, Traffic(), kernels=in_use())
        with torch.random.fork_rng(devices=[]), as_on_gpu(plan.choice.staging > 0):
            program = small.program
            takes_nothing = SimpleNamespace(backward=lambda *given: 0.0)  # a loss over edges, on a device
            scored = takes_nothing if isinstance(self.loss, EdgeLoss) else self.loss
            means = Means(
                networks=[twin], host=host, devices=[device], loss=scored,
                num_graph_edges=topology.num_edges, num_graph_vertices=self.vertices,
            )  # fmt: skip
            executor = Executor(program, means)

            def run(passes: Sequence[PassProgram], *, training: bool) -> dict[str, Taken]:
                twin.modules.train(training)
                found = {}
                for p in passes:
                    device.reset_peaks()
                    before = device.workspace.live
                    executor.run((p,))
                    found[p.name] = Taken(before, device.workspace.live, device.workspace.peak)
                return found

            try:
                workspace = run(program.setup, training=False) | run(program.train, training=True)
                evaluation = "evaluation", tuple(small.passes.evaluate), plan.choice.staging > 0, part, self.whole, kind
                if evaluation not in view.memo:  # plans that train in other passes evaluate in the same
                    view.memo[evaluation] = run(program.evaluate, training=False)
                return workspace | view.memo[evaluation]
            finally:
                device.empty_out()


def _largest_block(sizes: tuple[int, int, int, int], shape: NetworkShape, kind: Kind, *, weighted: bool) -> Topology:
    """A topology whose chunk 0 has one source and one edge more than these sizes say, and as many destinations, the
    first with the most in-edges and a self-loop; all edges are of one relation. Where they may be of any, an edge of
    each other one comes before them: a layer may keep what it makes of every relation that has some."""
    d, s, e, hub = sizes
    apart = kind.relation is None and any(layer.edge_type and layer.reduce is None for layer in shape.layers)
    others = min(e, max(shape.edges.types - 1, 0)) if apart else 0
    e += others
    source = np.empty(e + 1, dtype=np.int32)
    source[0] = 0
    source[1:] = d + np.arange(e) % s
    in_edge_start = np.full(d + s + 1, e + 1, dtype=np.int64)
    in_edge_start[0] = 0
    in_edge_start[1 : d + 1] = np.linspace(hub + 1, e + 1, d).astype(np.int64)
    in_edge_start[d] = e + 1
    weight = np.ones(e + 1, dtype=np.float32) if weighted else None
    largest = build_topology(1, np.array([0, d, d + s]), in_edge_start, source, weight)
    features, types = np.ones((e + 1, shape.edges.features), np.float32), np.full(e + 1, kind.relation or 0, np.int32)
    if others:
        types[:] = np.minimum(np.arange(e + 1), others)
    return replace(largest, edge_features=features, edge_type=types).keeping(
        edge_features=shape.edges.features > 0, edge_type=shape.edges.types > 0
    )


def _largest_rows(numbers: int, rows: int, topology: Topology) -> SparseRows:
    """Sparse features of which the first rows hold so many numbers."""
    start = np.full(topology.num_vertices + 1, numbers, dtype=np.int64)
    start[: rows + 1] = np.linspace(0, numbers, rows + 1).astype(np.int64)
    return SparseRows(start, np.zeros(numbers, dtype=np.int32), np.zeros(numbers, dtype=np.float32), 1)


class _Cleared(CpuDevice):
    """Rows that no chunk has written are zero here, too."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)


class _Zeros(HostStore):
    """Rows that the probe's one chunk reads and no chunk has written are zero, too: layers may look at them.

    numpy's zeros take no page before it is written, and most rows here are never written.
    """

    def create(
        self, name: str, shape: tuple[int, ...], zero: bool | np.ndarray, kept: Kept | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self.keep(name, self.zeros(*shape))

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(np.zeros(shape, dtype=str(self.dtype).removeprefix("torch.")))


def _most_with_loss(view: Topology, loss: MeanLoss | EdgeLoss | None) -> int:
    """Vertices of a chunk that have a loss, at most."""
    if not isinstance(loss, MeanLoss) or loss.loss_vertices is None:
        return 0
    first = np.minimum(view.chunk_start[:-1], view.num_vertices - 1)
    return int(np.add.reduceat(loss.loss_vertices, first, dtype=np.int64).max())


def _placeholder_rows(plan: ExecutionPlan, dtype: torch.dtype, with_loss: int, kind: Kind) -> HostStore:
    """What the host has for the probe, the first vertices with a loss."""
    v = plan.topology.num_vertices
    loss_bits = torch.zeros((v,), dtype=torch.uint8)
    loss_bits[:with_loss] = 255
    host = _Zeros(v, dtype)
    if plan.shape.sparse_input is not None:
        host.keep_sparse(plan.shape.sparse_input)
    else:
        host.keep(FEATURES, host.zeros(v, plan.shape.features))
    host.keep_pageable("labels", torch.zeros((v, plan.shape.label_bytes), dtype=torch.uint8))
    host.keep_pageable("loss_bits", loss_bits)
    host.keep_pageable("ids", kind.vertices(v))
    host.keep_pageable("statistics", torch.ones((v, max(3, plan.shape.statistics_columns)), dtype=dtype))
    host.keep_pageable("factors", torch.ones((v, 2), dtype=dtype))
    host.keep_pageable("edge_id_start", torch.full((v,), -1))  # ids are below E: the block has one edge too many
    return host
