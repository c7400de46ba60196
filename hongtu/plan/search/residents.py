"""What stays on the devices: that which saves the most bytes on the host link per byte it takes."""

from __future__ import annotations

from dataclasses import replace

from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import PassList, gradient
from hongtu.plan.passes.strategy import Choice

STRUCTURE: frozenset[str] = frozenset({"structure"})  # stands for the chunks' structure among units of tensors


def every_tensor(passes: PassList) -> frozenset[str]:
    """All that may stay on the devices: not what only passes through, nor results."""
    names: set[str] = set(passes.constant)
    for p in passes.every:
        names |= set(p.creates)
    return frozenset(names - passes.on_host)


def choose_residents(plan: ExecutionPlan, budget: int) -> list[Choice]:
    """The plan's choice with what fits beside the smallest caches, greedily by bytes saved per epoch and byte taken:
    vertex tensors, and the chunks' structure where devices have memory of their own; and, where that stays, with
    tensors alone: it may take the place of one that saves more.

    Args:
        plan: with planned transfers, the workspace probed, and nothing resident.
    """
    if not plan.strategy.resident:
        return []
    units = _units(plan.passes)
    saved = {unit: _saved(plan, unit) for unit in units}
    every = replace(plan, choice=replace(plan.choice, resident=frozenset().union(*units), structure=True), transfers={})
    taken = {unit: max(sum(every.resident_bytes(n, i) for n in unit) for i in plan.devices) for unit in units}
    if plan.choice.staging:
        saved[STRUCTURE] = (
            plan.bytes["topology"] - replace(plan, choice=replace(plan.choice, structure=True)).bytes["topology"]
        )
        taken[STRUCTURE] = max(every.structure_bytes(i) for i in plan.devices)
    wanted = [unit for unit, bytes_saved in saved.items() if bytes_saved > 0]
    wanted.sort(key=lambda unit: saved[unit] / max(taken[unit], 1), reverse=True)
    found = _those_that_fit(plan, wanted, budget)
    if not found.structure:
        return [found]
    return [found, _those_that_fit(plan, [unit for unit in wanted if unit != STRUCTURE], budget)]


def _those_that_fit(plan: ExecutionPlan, wanted: list[frozenset[str]], budget: int) -> Choice:
    """One after the other, each if it fits beside those before it."""
    chosen = plan.choice
    for unit in wanted:
        if unit == STRUCTURE:
            choice = replace(chosen, structure=True)
        else:
            choice = replace(chosen, resident=chosen.resident | unit)
        if max(replace(plan, choice=choice, transfers={}).device_bytes.values()) <= budget:
            chosen = choice
    return chosen


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
    total, row = 0, {name: plan.host_row(name) for name in plan.passes.width}
    for p in plan.passes.train:
        touched = (*p.inputs, *p.gradients, *p.written)
        total += sum(plan.count(p, name) * row[name] for name in touched if name in unit)
        loads = plan.transfers[p.name].rows_loaded if p.name in plan.transfers else 0
        total += loads * sum(row[name] for name in (p.exchange, p.flush) if name in unit)
    return total
