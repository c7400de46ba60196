"""Plans of tiny models with every saving, residency and memory, for whatever is said of all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hongtu.graph.halo import receptive_field
from hongtu.graph.sparse_rows import SparseRows
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES, gradient
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import Choice, Strategy, get_strategy
from hongtu.plan.search.build import make_plan, sketch_plan
from hongtu.plan.search.host import candidates, with_spilled
from hongtu.plan.search.residents import every_tensor
from hongtu.ranks.share import share_of
from hongtu.ranks.stages import ByLayer
from tests import tiny
from tests.ledger.lower import Lowered, lower
from tests.plan.test_interpreter import random_plan
from tests.ranks.test_interpreted import artifact_of

Z = frozenset({"z1", gradient("z1")})
MIXED = tiny.network(tiny.layer(4), tiny.layer(3, linear=False))
NORM = tiny.network(
    tiny.layer(3, combined=False, s=(2,)),
    tiny.layer(3, combined=False, linear=True, norm=True, uses_statistics=False),
    tiny.layer(3, 2, linear=False),
)
RAW = replace(tiny.GAT, layers=(replace(tiny.GAT.layers[0], z_is_input=True), tiny.GAT.layers[1]))
SPARSE = replace(
    tiny.GAT,
    sparse_input=SparseRows(np.arange(0, 2 * tiny.V + 1, 2), np.tile([0, 2], tiny.V), np.ones(2 * tiny.V, "f4"), 4),
)


def plan(
    shape: NetworkShape, strategy: str | Strategy = "full", sizes: tuple[int, int] = (2, 4), *,
    more: int | None = None, spilled: int | None = None, but: str = "", pruned: bool = False, **choice: object,
) -> ExecutionPlan:  # fmt: skip
    """On the tiny graph.

    Args:
        sizes: partitions and chunks.
        more: bytes of the budget beyond the smallest that works.
        spilled: of how many chunks rows are in memory all the same, where tensors lie on a disk; ``but``: all but one.
        pruned: two vertices have a loss.
    """
    topology, whole = tiny.topology(*sizes), get_strategy(strategy)
    fields = tuple(receptive_field(topology, np.arange(tiny.V) == 3, len(shape.layers))) if pruned else ()
    chosen = Choice(fields=fields, **choice)  # type: ignore[arg-type]
    if chosen.save:
        passes = sketch_plan(topology, topology.input_order, shape, whole, chosen).passes
        chosen = replace(chosen, resident=every_tensor(passes))
    budget = None
    if more is not None:
        sketch = sketch_plan(topology, topology.input_order, shape, whole, chosen)
        budget = more + max(sketch.device_bytes.values())
    made = make_plan(topology, topology.input_order, shape, whole, budget, choice=chosen)
    return made if spilled is None else with_spilled(made, dict.fromkeys(set(candidates(made)) - {but}, spilled))


def of_a_rank(staging: int) -> ExecutionPlan:
    """The first of two ranks' share, with rows that they fetch of each other."""
    topology, shape = tiny.topology(2, 4), tiny.GAT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hongtu.graph.artifact._file_identity", lambda file: (0, 0, 0))
        everyone = np.ones(tiny.V, dtype=bool)
        artifact = artifact_of(topology, topology.input_order, shape, everyone, np.random.default_rng(0))
        share = share_of(artifact, 0, [0, 1, 2], ByLayer(len(shape.layers), 1))
    assert share.halo is not None
    choice = Choice(fields=share.halo.fields, halo=share.halo, staging=staging)
    strategy = Strategy(resident=False, prune=False)
    return make_plan(share.topology, share.schedule_paper, shape, strategy, None, choice=choice)


def drawn(seed: int) -> ExecutionPlan:
    """One of the random plans of the interpreter's test."""
    found = random_plan(np.random.default_rng(seed))
    assert found is not None
    made: ExecutionPlan = found[2]
    return made


PLANS: dict[str, Callable[[], ExecutionPlan]] = {
    "paper": lambda: plan(tiny.GCN, "paper"),
    "none, one device": lambda: plan(tiny.GAT, "none", (1, 8)),
    "paper, staged": lambda: plan(tiny.GAT, "paper", staging=1),
    "none, staged": lambda: plan(tiny.GCN, "none", (4, 2), staging=1),
    "full": lambda: plan(tiny.GAT),
    "full, four devices": lambda: plan(tiny.GAT, sizes=(4, 2), staging=2),
    "full, one set": lambda: plan(tiny.GAT, sizes=(2, 4), staging=1),
    "full, without scripts or slab": lambda: plan(tiny.GCN, staging=2, scripts=False, slab=False),
    "one device": lambda: plan(tiny.GAT, sizes=(1, 8), staging=2, scripts=False),
    "in a budget": lambda: plan(tiny.GAT, more=40),
    "in a budget, staged": lambda: plan(tiny.GCN, sizes=(4, 2), more=100, staging=2),
    "fused": lambda: plan(tiny.GAT, fuse=True, staging=1, scripts=False),
    "fused, in a budget": lambda: plan(tiny.GCN, sizes=(1, 8), fuse=True, more=40, staging=2),
    "resident": lambda: plan(tiny.GCN, resident=Z),
    "resident, edges in order": lambda: plan(tiny.GCN, resident=Z | {FEATURES}, structure=True, ordered=True),
    "resident, staged": lambda: plan(tiny.GAT, resident=Z | {FEATURES}, structure=True, staging=2),
    "saved": lambda: plan(MIXED, save=True),
    "saved, staged": lambda: plan(MIXED, save=True, structure=True, staging=1),
    "pruned": lambda: plan(tiny.GAT, pruned=True, more=60),
    "pruned, staged": lambda: plan(tiny.GAT, pruned=True, staging=1, resident=Z),
    "norm": lambda: plan(NORM),
    "norm, staged": lambda: plan(NORM, staging=2, pruned=True),
    "norm, saved": lambda: plan(NORM, save=True, staging=1),
    "sparse": lambda: plan(SPARSE, pruned=True),
    "sparse, staged": lambda: plan(SPARSE, sizes=(1, 8), staging=2, scripts=False),
    "edge loss": lambda: plan(replace(MIXED, edge_loss=True), staging=1),
    "learned features": lambda: plan(replace(MIXED, learned_input=True), staging=2),
    "spilled": lambda: plan(tiny.GAT, spilled=0),
    "spilled, pruned": lambda: plan(tiny.GAT, pruned=True, spilled=1, staging=1),
    "spilled, staged": lambda: plan(tiny.GAT, spilled=1, staging=2),
    "spilled, one set": lambda: plan(MIXED, "paper", spilled=0, staging=1, scripts=False),
    "spilled, four devices": lambda: plan(tiny.GCN, sizes=(4, 2), spilled=0, staging=2),
    "spilled, but the features": lambda: plan(tiny.GAT, sizes=(1, 8), spilled=0, but=FEATURES),
    "spilled, but the features, staged": lambda: plan(tiny.GAT, spilled=0, but=FEATURES, staging=1),
    "spilled, features that are exchanged": lambda: plan(RAW, spilled=0),
    "spilled, features that are exchanged, staged": lambda: plan(RAW, sizes=(1, 8), spilled=1, staging=2),
    "drawn, a slot is filled while a peer may pull": lambda: drawn(55),
    "a rank": lambda: of_a_rank(0),
    "a rank, staged": lambda: of_a_rank(2),
}


@functools.cache
def planned(name: str) -> ExecutionPlan:
    return PLANS[name]()


@functools.cache
def lowered(name: str) -> tuple[Lowered, ...]:
    made = planned(name)
    return tuple(lower(made.program, made.passes.width, made.shape.itemsize))
