"""Where ranks have the rows of others from: the choice that is predicted to be the fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from math import inf
from typing import Any, NamedTuple

from hongtu.errors import InputError
from hongtu.hardware import Hardware
from hongtu.plan.cost.seconds import aggregate_seconds, predict_seconds, rowwise_seconds
from hongtu.plan.cost.work import Extent, pass_work
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import Pass
from hongtu.ranks.stages import ByLayer, ByVertex, Stages

DEPENDENCIES = ("cache", "comm", "hybrid")
ROWS = 1000  # whose seconds those of one are taken from


class Tried(NamedTuple):
    """What is predicted of one rank's plan: inf and None where device or host memory is too small."""

    seconds: float
    choice: ByVertex | None


def to_tell(tried: Tried) -> Any:
    """It, as plain values; ``told`` makes it again."""
    return tried.seconds, None if tried.choice is None else astuple(tried.choice)


def told(tried: Any) -> Tried:
    """What ``to_tell`` was given."""
    seconds, choice = tried
    return Tried(seconds, None if choice is None else ByVertex(*choice))


def try_plan(make_plan: Callable[[], ExecutionPlan], hardware: Hardware) -> Tried:
    """What an epoch is predicted to take, and what its parts would choose."""
    try:
        plan = make_plan()
    except InputError:  # where no choice fits, the last plan is refused for all to see
        return Tried(inf, None)
    return Tried(predict_seconds(plan, hardware).total, by_vertex(plan, hardware))


def choose_stages(layers: int, dependencies: str, tried: Callable[[Stages], Sequence[Tried]]) -> Stages:
    """What ranks compute of one another's vertices.

    Args:
        layers: of the model that exchange rows.
        dependencies: one of ``DEPENDENCIES``.
        tried: what is predicted of every rank under a choice; asked for "hybrid" only.

    >>> choose_stages(3, "hybrid", lambda chosen: [Tried(s, None) for s in ((), (4, 5), (3, 3), (2, 9))[chosen.first]])
    ByLayer(layers=3, first=2)
    """
    if dependencies != "hybrid":
        return ByLayer(layers, layers if dependencies == "cache" else 1)
    found: dict[Stages, Sequence[Tried]] = {}
    for chosen in (ByLayer(layers, first) for first in range(layers, 0, -1)):
        found[chosen] = tried(chosen)
    choices = [one.choice for of_ranks in found.values() for one in of_ranks if one.choice is not None]
    if choices and layers > 2:  # else what one layer exchanges costs the same for every vertex
        found[choices[0]] = tried(choices[0])
    return min(found, key=lambda chosen: max(one.seconds for one in found[chosen]))


def by_vertex(plan: ExecutionPlan, hardware: Hardware) -> ByVertex:
    """The choice by the seconds that single vertices, in-edges and rows take in an epoch."""
    layers, topology = plan.shape.graph_layers, plan.topology
    row, edge = [0.0] * (len(layers) + 1), [0.0] * (len(layers) + 1)
    fetch = [0.0] * len(layers)
    sources = int(topology.num_sources.sum()) / max(topology.num_edges, 1)
    for p in plan.passes.train:
        stage = sum(p.layer is not None and k <= p.layer for k in layers)
        alone, read = (_seconds(plan, p, Extent(ROWS, n, int(n * sources)), hardware) for n in (0, ROWS))
        row[stage] += alone / ROWS
        edge[stage] += (read - alone) / ROWS
        if p.layer in layers:
            names = (p.exchange if p.direction != "backward" else None, p.flush)
            columns = sum(plan.passes.width[name] for name in names if name is not None)
            taken = columns * plan.shape.itemsize * (1 / hardware.network_link + 2 / hardware.host_link)
            fetch[layers.index(p.layer)] += taken
    return ByVertex(len(layers), tuple(row), tuple(edge), tuple(fetch))


def _seconds(plan: ExecutionPlan, p: Pass, extent: Extent, hardware: Hardware) -> float:
    work = pass_work(plan, p, extent, hardware.cache)
    return aggregate_seconds(work, hardware) + rowwise_seconds(work, hardware)
