"""Which chunks of a run are computed when, and where every tensor is meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.cache.buckets import Buckets
from hongtu.plan.cache.transfer import BatchLimits, TransferCounts, TransferPlan, batch_limits, plan_resident
from hongtu.plan.cache.writers import Writers
from hongtu.plan.memory.structure import Array, Needs, edge_order, pass_needs
from hongtu.plan.passes.definition import Pass, PassList
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import ONCE, Choice, Strategy, View


@dataclass(frozen=True)
class Placement:
    """Which chunks run when, and what stays where.

    Attributes:
        topology: the chunks that run (the artifact's, or groups of them).
        shape: the model as the planner sees it.
        strategy: the savings that may be on; ``choice``: those that are.
        passes: the passes of a training epoch, of an evaluation, and those that run once before.
        views: the topology of passes by their ``hops``, or by ONCE.
        schedules: int32 [m, B] for each of the views, chunk of each partition that runs in batch b.
        limits: likewise, per device the largest requests of a batch.
        transfers: the transfer plan of every pass that exchanges or flushes rows, by pass name.
        writers: who writes first, by gradient tensor on the host, where there may be several or none.
        workspace: bytes that layers take at most inside each pass, by pass name, where they were probed.
        known: the orders of rows on a disk that were found.
        probe: finds the same of a plan without a limit, with what all chunks keep until backward.
    """

    topology: Topology
    shape: NetworkShape
    strategy: Strategy
    choice: Choice
    passes: PassList
    views: dict[View, Topology]
    schedules: dict[View, np.ndarray]
    limits: dict[View, list[BatchLimits]]
    transfers: dict[str, TransferCounts] = field(default_factory=dict)
    writers: dict[str, Writers] = field(default_factory=dict)
    workspace: dict[str, int] = field(default_factory=dict)
    known: dict[tuple[Any, ...], Buckets] = field(default_factory=dict)
    probe: Callable[[Any], dict[str, int]] = lambda plan: plan.workspace

    @property
    def devices(self) -> range:
        """Their numbers, one for each partition."""
        return range(self.topology.partitions)

    @property
    def spilled(self) -> Mapping[str, int]:
        """Vertex tensors that lie on the disk, as ``Choice`` has them."""
        return self.choice.spilled

    @property
    def resident(self) -> frozenset[str]:
        return self.choice.resident

    @cached_property
    def pieces(self) -> frozenset[str]:
        """Of the resident tensors those that no buffer is planned for: layers' own memory, counted as they take it."""
        return self.passes.pieces & self.resident

    @cached_property
    def placed(self) -> frozenset[str]:
        """The other ones, with rows for all vertices of a partition."""
        return self.resident - self.pieces

    def view_of(self, p: Pass) -> View:
        """Which of the views a pass runs on."""
        return ONCE if p.when == "setup" and ONCE in self.views else p.hops

    def view(self, p: Pass) -> Topology:
        """The chunks with the destinations that a pass computes."""
        return self.views[self.view_of(p)]

    def schedule(self, p: Pass) -> np.ndarray:
        """int32 [m, B], the chunks that a pass computes, batch by batch."""
        return self.schedules[self.view_of(p)]

    def edges_of(self, p: Pass, name: str) -> Topology | None:
        """The chunks whose in-edges a tensor that a pass reads or writes has rows of; None: of vertices."""
        if (layer := self.passes.of_edges.get(name)) is None:
            return None
        makes = (q for q in self.passes.every if (q.layer, q.when) == (layer, p.when) and q.direction != "backward")
        return self.view(next(makes))

    def places(self, p: Pass, name: str) -> str | None:
        """The array that says which of the rows that a chunk has in a tensor a pass reads or writes; None: all."""
        edges, view = self.edges_of(p, name), self.view(p)
        if edges is None:
            return None if view.active is None else "row_in_chunk"
        return None if edges.active is view.active else f"edge_in_chunk {self.passes.of_edges[name]}"

    def count(self, p: Pass, name: str) -> int:
        """Rows of a tensor that a pass reads or writes, if it does."""
        return self.view(p).num_edges if name in self.passes.of_edges else int(self.view(p).num_dst.sum())

    def exchange_plan(self, p: Pass) -> TransferPlan | None:
        """What a pass exchanges, if it does."""
        found = self.transfers.get(p.name)
        assert found is None or isinstance(found, TransferPlan), "this plan was only counted"
        return found

    def structure_stays(self, p: Pass) -> bool:
        """Whether a pass finds its chunks' structure on the devices."""
        return self.choice.structure and self.view_of(p) != ONCE

    def structure_name(self, p: Pass, name: str) -> str:
        """What an array of a pass's structure is called where it stays: that of its view; slots are the pass's own."""
        own, view = name == "slot_of_source" and not {p.exchange, p.flush} & self.resident, self.structure_view(p)
        return f"{name} {p.name}" if own else name if view is None else f"{name} of {view} hops"

    def structure_view(self, p: Pass) -> int | None:
        """The hops of the view whose structure a pass finds; None: that of all chunks."""
        return None if self.views[p.hops].active is None else p.hops

    @cached_property
    def structure(self) -> dict[str, tuple[Pass, str, Array]]:
        """By that name, the arrays that stay, each with a pass that needs it and its name there."""
        found: dict[str, tuple[Pass, str, Array]] = {}
        for p in self.passes.every:
            if self.structure_stays(p):
                for name, array in self.needs(p).structure.items():
                    found.setdefault(self.structure_name(p, name), (p, name, array))
        return found

    def edge_order(self, p: Pass) -> dict[str, tuple[str, Array]]:
        """What a pass finds on the devices of the order of its chunks' edges by source: by register, what it is called
        there, and the array; {} where it adds nothing to sources' rows, or puts edges in order itself."""
        layer = None if p.layer is None else self.shape.layers[p.layer]
        if not self.choice.ordered or not self.structure_stays(p) or p.flush is None or layer is None:
            return {}
        if not layer.linear or layer.reduce is None:
            return {}
        mean, weighted = layer.reduce == "mean", "edge_weight" in self.needs(p).structure
        kind = f"{'mean ' if mean else ''}{'weighted ' if weighted else ''}"
        arrays = edge_order(mean=mean, weighted=weighted)
        return {name: (self.structure_name(p, f"{kind}{name}"), array) for name, array in arrays.items()}

    @cached_property
    def edge_orders(self) -> dict[tuple[str, ...], Pass]:
        """Those that stay, by their arrays' names there, each with a pass that needs it."""
        found: dict[tuple[str, ...], Pass] = {}
        for p in self.passes.every:
            if order := self.edge_order(p):
                found.setdefault(tuple(name for name, _ in order.values()), p)
        return found

    def needs(self, p: Pass) -> Needs:
        return self._needs[p.name]

    @cached_property
    def _needs(self) -> dict[str, Needs]:
        return {p.name: pass_needs(p, self.shape, self.view(p)) for p in self.passes.every}

    def resident_rows(self, name: str, device: int) -> int:
        """Rows that a resident tensor has on a device: its partition's, and slots for those of peers."""
        if name in self.passes.of_edges:
            ends = self.topology.partition_start[device : device + 2]
            return int(np.diff(self.topology.in_edge_start[ends])[0])
        passes = self.passes.every if name in self.resident else ()
        sharing = {self.view_of(p) for p in passes if name in (p.exchange, p.flush)}
        own = int(np.diff(self.topology.partition_start)[device])
        return max([own, *(self.resident_plans[view].devices[device].capacity for view in sharing)])

    @cached_property
    def resident_plans(self) -> dict[View, TransferPlan]:
        """By view, the transfers of passes whose rows stay on their devices."""
        wanted = {self.view_of(p) for p in self.passes.every if {p.exchange, p.flush} & self.resident}
        return {key: plan_resident(self.views[key], self.schedules[key], self.choice.prefetch) for key in wanted}

    def limits_of(self, p: Pass) -> list[BatchLimits]:
        """Per device, the largest requests of a batch in a pass."""
        return (self._resident_limits if {p.exchange, p.flush} & self.resident else self.limits)[self.view_of(p)]

    @cached_property
    def _resident_limits(self) -> dict[View, list[BatchLimits]]:
        shared = {key: batch_limits(view, self.schedules[key], "p2p") for key, view in self.views.items()}
        return {key: [replace(limit, loads=0) for limit in limits] for key, limits in shared.items()}

    @property
    def apart(self) -> bool:
        """Whether vertex rows are padded on the devices: where these have memory of their own."""
        return self.choice.staging > 0 or self.choice.padded

    @property
    def maps_sparse_input(self) -> bool:
        """Whether sparse features do not become dense on devices."""
        return self.shape.maps_input and not self.choice.staging

    def edge_places(self, p: Pass) -> dict[str, str]:
        """By the arrays that say which rows of edges a pass reads or writes, a tensor of each."""
        touched = (name for name in (*p.inputs, *p.gradients, *p.written) if name in self.passes.of_edges)
        return {places: name for name in touched if (places := self.places(p, name)) is not None}
