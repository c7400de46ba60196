"""Fits a plan into the memory of the host: which of its vertex tensors have their rows on a disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hongtu.config import in_bytes, size
from hongtu.errors import InputError
from hongtu.host import is_mapped
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES

PROCESS = 512 << 20  # bytes of the host beside a plan: Python, libraries, compiled code, pages of files on their way
ON_THEIR_WAY = 64 << 20  # of these


@dataclass(frozen=True, kw_only=True)
class HostLimit:
    """What a run may keep on the host.

    Attributes:
        memory: bytes, those of PROCESS among them.
        spills: rows may lie on a disk.
        has_devices: the devices' memory is the host's own.
    """

    memory: int
    spills: bool
    has_devices: bool

    @property
    def left(self) -> int:
        """Bytes for a plan."""
        return self.memory - PROCESS


def fit_host(plan: ExecutionPlan, limit: HostLimit) -> ExecutionPlan:
    """The plan, with as much on the disk as has to be: first what moves there least for its bytes.

    Raises:
        InputError: when it does not fit; says what takes how much, and the smallest that works.
    """

    def need(plan: ExecutionPlan) -> int:
        return needed(plan, has_devices=limit.has_devices)

    plan = without_scripts(plan, limit.left, has_devices=limit.has_devices)
    if need(plan) <= limit.left:
        return plan
    if not limit.spills:
        raise _refusal(plan, limit, "give more, or a directory for vertex rows that do not fit: spill (--spill DIR)")
    costs = {name: with_spilled(plan, {name: 0}).bytes["disk"] / plan.passes.width[name] for name in candidates(plan)}
    by_cost = sorted(costs, key=lambda name: (costs[name], name))
    counts = range(len(by_cost) + 1)
    tried = [with_spilled(plan, dict.fromkeys(by_cost[:k], 0), ahead=ahead) for k in counts for ahead in (True, False)]
    found = next((one for one in tried if need(one) <= limit.left), None)
    if found is None:
        raise _refusal(min(tried, key=need), limit, "give more, or smaller chunks: a smaller device_memory")
    chunks = range(plan.topology.chunks + 1)
    for name in reversed(by_cost):  # what was not enough before may not be wanted beside what came later
        if name in found.choice.spilled:
            kept = [_keeping(plan, found, name, count) for count in chunks]  # lazily planned
            most = bisect_right(kept, limit.left, lo=1, hi=len(kept) - 1, key=need)
            last = kept[-1]
            found = last if need(last) <= limit.left else kept[most - 1]
    plan.known.clear()  # those of what was tried
    return found


def _keeping(plan: ExecutionPlan, found: ExecutionPlan, name: str, chunks: int) -> ExecutionPlan:
    """With so many chunks of a tensor in memory, too."""
    spilled = {other: kept for other, kept in found.choice.spilled.items() if other != name}
    some = spilled if chunks == plan.topology.chunks else spilled | {name: chunks}
    return with_spilled(plan, some, ahead=found.choice.ahead)


def needed(plan: ExecutionPlan, *, has_devices: bool) -> int:
    """Bytes that a run keeps on the host beside PROCESS."""
    return sum((plan.held_together if has_devices else plan.host_bytes).values())


def between_batches(plan: ExecutionPlan, *, has_devices: bool) -> int:
    """Bytes of memory that no file backs which a process may have where none of its layers runs."""
    mapped = sum(array.nbytes for array in plan.arrays() if is_mapped(array))
    layers = max(plan.workspace.values(), default=0)
    return PROCESS - ON_THEIR_WAY + needed(plan, has_devices=has_devices) - mapped - layers


def without_scripts(plan: ExecutionPlan, memory: int | None, *, has_devices: bool) -> ExecutionPlan:
    """The plan; where it does not fit so many bytes of the host, without scripts that stay there."""
    if memory is None or not plan.script_bytes or needed(plan, has_devices=has_devices) <= memory:
        return plan
    return _with(plan, scripts=False)


# what a plan has found out that depends on it
OF_CHOICE = ("kept", "disk", "crossings", "program", "script_bytes", "captured", "_compiled")


def candidates(plan: ExecutionPlan) -> list[str]:
    """The tensors whose rows may lie on a disk: all on the host that it does not itself work on, that no device loads
    for itself from others' partitions, and that do not cross to other ranks."""
    created = {name for p in plan.passes.every for name in p.creates}
    found = created - plan.passes.on_host - {FEATURES}
    if plan.choice.fields or plan.choice.halo is not None:  # passes have edges of their own
        found -= plan.passes.of_edges.keys()
    if plan.shape.sparse_input is None and not plan.shape.learned_input:
        found |= {FEATURES}
    start, crossings = plan.topology.partition_start, plan.crossings
    for p in plan.passes.every:
        found -= {
            name for name, rounds in ((p.exchange, crossings.fetched(p)), (p.flush, crossings.sent_back(p))) if rounds
        }
        transfers = plan.exchange_plan(p)
        for i, device in enumerate(() if transfers is None else transfers.devices):
            row = device.loads.row
            if len(row) and (row.min() < start[i] or row.max() >= start[i + 1]):
                found -= {p.exchange, p.flush}
    return sorted(found - plan.resident)


def with_spilled(plan: ExecutionPlan, spilled: Mapping[str, int], *, ahead: bool = True, **below: str) -> ExecutionPlan:
    """The same plan with the rows of these tensors on the disk, or in another memory ``below`` the host, but those of
    so many chunks of each partition."""
    return _with(plan, spilled=spilled, ahead=ahead, below=below)


def _with(plan: ExecutionPlan, **choices: Any) -> ExecutionPlan:
    found = replace(plan, choice=replace(plan.choice, **choices))
    lasting = {name: value for name, value in vars(plan).items() if name not in (*vars(found), *OF_CHOICE)}
    vars(found).update(lasting)
    return found


def _refusal(plan: ExecutionPlan, limit: HostLimit, remedy: str) -> InputError:
    held = plan.held_together if limit.has_devices else plan.host_bytes
    smallest, on_devices = PROCESS + sum(held.values()), sum(held[name] for name in held if name in plan.device_bytes)
    devices = f", {on_devices} on devices, whose memory is the host's" if limit.has_devices else ""
    return InputError(
        f"host_memory is {in_bytes(limit.memory)}, the run needs {smallest} ({size(smallest, up=True)}): "
        f"{held['pinned host']} of vertex rows and staging memory, {held['pageable host']} of the graph's structure, "
        f"plan arrays and labels{devices}, {PROCESS} of Python, its libraries and pages of files on their way; {remedy}"
    )
