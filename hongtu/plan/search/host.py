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
from hongtu.plan.passes.definition import FEATURES, OUTPUT

PROCESS = 512 << 20  # bytes of the host beside a plan: Python, libraries, compiled code, pages of files on their way
ON_THEIR_WAY = 64 << 20  # of these


@dataclass(frozen=True, kw_only=True)
class HostLimit:
    """What a run may keep on the host.

    Attributes:
        memory: bytes, those of PROCESS among them.
        spills: rows may lie on a disk.
        has_devices: the devices' memory is the host's own.
        tables: those of chunks count, however small these are.
    """

    memory: int
    spills: bool
    has_devices: bool
    tables: bool = True

    @property
    def left(self) -> int:
        """Bytes for a plan."""
        return self.memory - PROCESS


class HostTooSmall(InputError):
    """The host has less memory than a run needs.

    Args:
        memory: bytes that it has.
        held: bytes that a plan takes of "pinned host", "pageable host" and, where it is the host's, each device.
        tables: of these, those of the tables of chunks.
    """

    def __init__(self, memory: int, held: Mapping[str, int], tables: int, remedy: str) -> None:
        self.held, self.tables, self.remedy = held, tables, remedy
        pinned, pageable, *devices = held.values()
        smallest = PROCESS + sum(held.values())
        on_devices = f", {sum(devices)} on devices, whose memory is the host's" if devices else ""
        super().__init__(
            f"host_memory is {in_bytes(memory)}, the run needs {smallest} ({size(smallest, up=True)}): "
            f"{pinned} of vertex rows and staging memory, {pageable} of the graph's structure, "
            f"plan arrays and labels{on_devices}, {PROCESS} of Python, its libraries and pages of files on their way; "
            f"{remedy}"
        )


def fit_host(plan: ExecutionPlan, limit: HostLimit) -> ExecutionPlan:
    """The plan, with as much on the disk as has to be: first what moves there least for its bytes.

    Raises:
        HostTooSmall: says what takes how much, and the smallest that works.
    """

    def need(plan: ExecutionPlan) -> int:
        return needed(plan, has_devices=limit.has_devices) - (0 if limit.tables else plan.disk.tables)

    def refusal(plan: ExecutionPlan, remedy: str) -> HostTooSmall:
        held = plan.held_together if limit.has_devices else plan.host_bytes
        return HostTooSmall(limit.memory, held, plan.disk.tables, remedy)

    plan = without_scripts(plan, limit.left, has_devices=limit.has_devices)
    if need(plan) <= limit.left:
        return plan
    if not limit.spills:
        remedy = ", or a directory for vertex rows that do not fit: spill (--spill DIR)"
        try:
            fit_host(plan, replace(limit, spills=True))
        except HostTooSmall:
            remedy = " (a spill directory alone would not do)"
        raise refusal(plan, f"give more{remedy}")
    costs = {name: with_spilled(plan, {name: 0}).bytes["disk"] / plan.passes.width[name] for name in candidates(plan)}
    by_cost = sorted(costs, key=lambda name: (costs[name], name))
    counts = range(len(by_cost) + 1)
    tried = [with_spilled(plan, dict.fromkeys(by_cost[:k], 0), ahead=ahead) for k in counts for ahead in (True, False)]
    found = next((one for one in tried if need(one) <= limit.left), None)
    if found is None:
        also = ", or smaller chunks: a smaller device_memory" if limit.left > 0 else ""
        raise refusal(min(tried, key=need), f"give more{also}")
    for name in reversed(by_cost):  # what was not enough before may not be wanted beside what came later
        if name in found.choice.spilled:
            chunks = range(0, plan.topology.chunks + 1, plan.topology.chunks if name == OUTPUT else 1)
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
    found = created - plan.passes.on_host - {FEATURES} | ({OUTPUT} if not plan.shape.edge_loss else set())
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
