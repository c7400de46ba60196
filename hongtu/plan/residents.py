"""Which vertex tensors stay on the devices: those that save the most bytes on the host link per byte they take."""

from __future__ import annotations

from dataclasses import replace

from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes import PassList, gradient


def every_tensor(passes: PassList) -> frozenset[str]:
    """All that may stay on the devices: not what only passes through, nor results."""
    names: set[str] = set(passes.constant)
    for p in passes.every:
        names |= set(p.creates)
    return frozenset(names - passes.on_host)


def choose_residents(plan: ExecutionPlan, budget: int) -> frozenset[str]:
    """Tensors that fit beside the smallest caches, greedily by bytes saved per epoch and byte taken.

    Args:
        plan: with planned transfers, the workspace probed, and nothing resident.
    """
    units = _units(plan.passes)
    saved = {unit: _saved(plan, unit) for unit in units}
    every = frozenset().union(*units)
    bare = replace(plan, choice=replace(plan.choice, resident=every), transfers={})
    taken = {unit: max(sum(bare.resident_bytes(n, i) for n in unit) for i in _devices(plan)) for unit in units}
    chosen: frozenset[str] = frozenset()
    for unit in sorted(units, key=lambda unit: saved[unit] / max(taken[unit], 1), reverse=True):
        if saved[unit] == 0:
            break
        trial = replace(plan, choice=replace(plan.choice, resident=chosen | unit), transfers={})
        if max(trial.device_bytes.values()) <= budget:
            chosen |= unit
    return chosen


def _devices(plan: ExecutionPlan) -> range:
    return range(plan.topology.partitions)


def _units(passes: PassList) -> list[frozenset[str]]:
    """Tensors that stay together: rows and their gradient share slots where one pass needs both."""
    names = every_tensor(passes)
    units = []
    for name in sorted(names):
        exchanged = any(p.exchange == name or p.flush == gradient(name) for p in passes.every)
        if exchanged and gradient(name) in names:
            units.append(frozenset({name, gradient(name)}))
        elif not (name.startswith("grad ") and any(p.flush == name for p in passes.every)):
            units.append(frozenset({name}))
    return units


def _saved(plan: ExecutionPlan, unit: frozenset[str]) -> int:
    """Bytes that the unit moves over the host link in an epoch."""
    total = 0
    for p in plan.passes.train:
        columns = plan.passes.width
        rows = int(plan.view(p).num_dst.sum())
        touched = (*p.inputs, *p.gradients, *p.written)
        total += rows * sum(columns[name] for name in touched if name in unit)
        loads = plan.transfers[p.name].rows_loaded if p.name in plan.transfers else 0
        total += loads * sum(columns[name] for name in (p.exchange, p.flush) if name is not None and name in unit)
    return total * plan.shape.itemsize
