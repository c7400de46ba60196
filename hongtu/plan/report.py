"""What people ask of a plan: rows and bytes per pass, the ladder of savings, traffic against cache size.

Legend: V vertices, B batches, m devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.hardware import Hardware
from hongtu.plan.cache.lookahead import count_lookahead, lookahead_intervals
from hongtu.plan.cache.reuse import uses_of
from hongtu.plan.cost.seconds import pass_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import Pass
from hongtu.plan.plot import traffic

CURVE_POINTS = 17


class LoadCounter:
    """Counts the rows that a pass loads from the host without planning it: all capacities from one look at the graph.

    Args:
        schedule: int32 [m, B].

    Attributes:
        smallest: slots per device that the largest batch needs; all that the paper's plan takes.
        largest: slots per device with which nothing is loaded twice.
        paper_rows: rows that the paper's reuse loads (V_+ru).
        floor: rows that are read at all: every plan loads each of them.
    """

    def __init__(self, topology: Topology, schedule: np.ndarray) -> None:
        self._topology, self._schedule = topology, schedule
        self.paper_rows = self.floor = 0
        smallest, largest = [], []
        for uses in uses_of(topology, schedule):
            following = uses.own.next_use
            once = int(np.count_nonzero(following < 0))
            self.paper_rows += len(following) - int(np.count_nonzero(following == uses.own.batch + 1))
            self.floor += once
            smallest.append(int(uses.window_rows(0).max(initial=0)))
            largest.append(once + int(np.diff(uses.mirror.start).max(initial=0)))
        self.smallest, self.largest = tuple(smallest), tuple(largest)

    def lookahead_rows(self, capacity: Sequence[int]) -> int:
        """Rows that lookahead loads with so many slots on every device (at least ``smallest``)."""
        return sum(loads for loads, _ in count_lookahead(self._topology, self._schedule, capacity))

    def curve(self) -> list[tuple[int, int]]:
        """(slots of all devices, rows loaded) from the smallest cache to one for every row."""
        points = []
        for fraction in np.linspace(0, 1, CURVE_POINTS) ** 2:  # more points where the curve is steep
            slots = [int(a + fraction * (b - a)) for a, b in zip(self.smallest, self.largest, strict=True)]
            points.append((sum(slots), self.lookahead_rows(slots)))
        return points


def lookahead_summary(topology: Topology) -> dict[str, Any]:
    """Rows that one pass loads and pulls under lookahead in input order, with the slots that the paper's plan has."""
    schedule = topology.input_order
    counter = LoadCounter(topology, schedule)
    owners, mirrors = lookahead_intervals(topology, schedule, counter.smallest)
    rows, pulled = (sum(len(row) for row, _, _ in columns) for columns in (owners, mirrors))
    return {"rows": rows, "pulled": pulled, "floor": counter.floor, "capacity": list(counter.smallest)}


def ladder(
    plan: ExecutionPlan, volume: dict[str, int], lookahead_rows: int, hardware: Hardware
) -> list[dict[str, Any]]:
    """From every chunk's own loads to lookahead: the "name" of each policy; the "rows" that one pass loads from the
    host; the "bytes" over the host link in all passes of an epoch that load or flush, at the plan's widths; and the
    "seconds" of these passes by Equation 4, of a device.

    Args:
        volume: ``v_ori``, ``v_p2p`` and ``v_ru`` of the artifact's chunks.
        lookahead_rows: rows that one pass loads under lookahead in the paper's buffer.
    """
    ori, p2p, ru = volume["v_ori"], volume["v_p2p"], volume["v_ru"]
    names = (name for p in plan.passes.train for name in (p.exchange, p.flush) if name is not None)
    row, m = sum(plan.passes.width[name] for name in names) * plan.shape.itemsize, plan.topology.partitions
    steps = {
        "none": (ori, ori, ori),
        "+ p2p": (ori, p2p, p2p),
        "+ reuse (paper)": (ori, p2p, ru),
        "lookahead": (ori, p2p, lookahead_rows),
    }
    return [
        {"name": name, "rows": rows[-1], "bytes": rows[-1] * row, "seconds": hardware.equation4(*rows, row, m)}
        for name, rows in steps.items()
    ]


def pass_report(plan: ExecutionPlan, p: Pass, hardware: Hardware) -> dict[str, Any]:
    """Everything known of one pass before it runs: traffic, memory, time, and the host tensors it touches.

    Tensors are given as name -> columns; those under "resident" stay on the devices and move over no link.
    """
    traffic, width = plan.pass_traffic(p), plan.passes.width
    transfers = plan.transfers.get(p.name)

    def tensors(*names: str | None) -> dict[str, int]:
        return {name: width[name] for name in names if name is not None}

    touched = {*p.inputs, *p.gradients, *p.written, p.exchange, p.flush, *p.creates, *p.frees}
    return {
        "name": p.name,
        "rows": traffic.rows,
        "bytes": traffic.bytes,
        "slots": [] if transfers is None else [device.capacity for device in transfers.devices],
        "arena_bytes": {f"device {i}": plan.pass_arena(p, i) for i in plan.devices},
        "workspace_bytes": plan.workspace.get(p.name),
        "seconds": pass_seconds(plan, p, hardware).total,
        "aggregate": p.layer,
        "normalises": p.layer is not None and plan.shape.layers[p.layer].norm,
        "gathers": tensors(p.moments if p.direction == "forward" else None),
        "stage": p.stage,
        "exchanges": tensors(p.exchange),
        "flushes": tensors(p.flush),
        "direction": p.direction,
        "when": p.when,
        "saves": p.saves,
        "hops": p.hops,
        "vertices": int(plan.view(p).num_dst.sum()),
        "reads": tensors(*p.inputs, *p.gradients),
        "writes": tensors(*(name for name in (*p.outputs, *p.direct) if name != p.flush)),
        "adds": tensors(*(name for name in p.direct if name is not None and name == p.flush)),
        "checkpoint": tensors(p.checkpoint),
        "resident": sorted(name for name in touched if name in plan.resident),
        "creates": tensors(*p.creates),
        "frees": tensors(*p.frees),
    }


def traffic_chart(topology: Topology, title: str, plan: ExecutionPlan | None = None) -> str:
    """SVG: rows loaded per pass against cache size, at the artifact's grain and a coarser one.

    Args:
        plan: instead the grain and the vertices of its passes, with their cache sizes and rows, where any load some.
    """
    v, points = topology.num_vertices, set()
    grains = (topology, topology.grouped(4)) if topology.chunks >= 4 else (topology,)
    drawn = [(grain, grain.input_order) for grain in grains]
    if plan is not None:
        loading = [
            p for p in plan.passes.every if p.name in plan.transfers and not {p.exchange, p.flush} & plan.resident
        ]
        keys = dict.fromkeys(plan.view_of(p) for p in loading)
        drawn = [(plan.views[key], plan.schedules[key]) for key in keys] or drawn
        title += "" if loading else "; this plan's stay on the devices"
        for transfers in (plan.transfers[p.name] for p in loading):
            points.add((sum(device.capacity for device in transfers.devices) / v, transfers.rows_loaded / v))
    curves = []
    for grain, schedule in drawn:
        counter = LoadCounter(grain, schedule)
        some = "" if grain.active is None else f" of {len(grain.active):,} vertices"
        curves.append(
            {
                "label": f"{topology.partitions} x {grain.chunks} chunks{some}",
                "curve": [(slots / v, rows / v) for slots, rows in counter.curve()],
                "paper": (sum(counter.smallest) / v, counter.paper_rows / v),
                "floor": counter.floor / v,
            }
        )
    return traffic(curves, title, sorted(points))
