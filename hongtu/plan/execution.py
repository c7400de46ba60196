"""The execution plan: what runs, in which memory, and the traffic that this takes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from hongtu.config import size
from hongtu.metrics import Traffic
from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.passes.definition import FEATURES, Pass, gradient
from hongtu.plan.program.compile import compile_pass, compile_plan
from hongtu.plan.program.program import PassProgram, Program, device_traffic, host_peaks, kept_bytes


class ExecutionPlan(PlannedMemory):
    """Everything that is decided before the first epoch. Its program is what runs; predictions are sums over that."""

    def __repr__(self) -> str:
        peaks = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in self.peak_bytes.items())
        return (
            f"ExecutionPlan({self.topology.partitions} partitions x {self.topology.chunks} chunks, "
            f"{len(self.passes.train)} passes; peaks: {peaks}; moved per epoch: {size(sum(self.bytes.values()))})"
        )

    @cached_property
    def program(self) -> Program:
        """What runs, where transfers are planned."""
        return compile_plan(self)

    @property
    def traffic(self) -> Traffic:
        """Predicted traffic of one training epoch."""
        return sum((self.pass_traffic(p) for p in self.passes.train), Traffic())

    @property
    def setup_traffic(self) -> Traffic:
        """Predicted traffic of what runs once before the first epoch, resident features and structure included."""
        return sum((device_traffic(p, i) for p in self.program.setup for i in self.devices), Traffic())

    @property
    def bytes(self) -> dict[str, int]:
        """Predicted bytes per link of one training epoch (links: :mod:`hongtu.metrics`)."""
        return self.traffic.bytes

    @property
    def rows(self) -> dict[str, int]:
        """Predicted rows per sparse link of one training epoch."""
        return self.traffic.rows

    def pass_traffic(self, p: Pass) -> Traffic:
        """Predicted traffic of one pass over all devices."""
        return sum((self.device_traffic(p, i) for i in self.devices), Traffic())

    def device_traffic(self, p: Pass, device: int) -> Traffic:
        """Predicted traffic of one pass on one device; also where its transfers are only counted."""
        return device_traffic(self.pass_program(p), device)

    def pass_program(self, p: Pass) -> PassProgram:
        """What one pass runs; also where its transfers are only counted."""
        if p.name not in self._compiled:
            self._compiled[p.name] = compile_pass(self, p)
        return self._compiled[p.name]

    @property
    def repeats(self) -> bool:
        """Whether model, loss and buffers let a GPU capture an epoch, to do it again without the host."""
        return self.strategy.capture and self.shape.repeats and self.choice.slab and self.choice.staging > 0

    @cached_property
    def captured(self) -> bool:
        """Whether one GPU captures training passes, as far as the plan tells; also where transfers are only counted."""
        return self.repeats and not any(self.pass_program(p).needs_host for p in self.passes.train)

    @property
    def arena_bytes(self) -> dict[str, int]:
        """Planned peak bytes per memory in a training epoch: "device 0", ..., "pinned host", "pageable host"; exact."""
        passes = (*self.passes.train, *(self.passes.evaluate if self.slabs else ()))  # a slab is there in all of them
        peaks = {f"device {i}": max(self.pass_arena(p, i) for p in passes) for i in self.devices}
        peaks |= {"pinned host": self._pinned(self.program.train), "pageable host": self._pageable}
        return peaks | self.disk.nbytes

    @property
    def peak_bytes(self) -> dict[str, int]:
        """What a run in a budget stays under, evaluation included: planned buffers and, where it was probed, the
        workspace, which a run without a limit may exceed."""
        return self.device_bytes | self.host_bytes | self.disk.nbytes

    @property
    def host_bytes(self) -> dict[str, int]:
        """Planned peak bytes of the host: vertex rows, which are pinned where there is a GPU, and everything else."""
        groups = ((), self.program.train, self.program.evaluate)
        return {"pinned host": max(map(self._pinned, groups)), "pageable host": self._pageable}

    @property
    def held_together(self) -> dict[str, int]:
        """The same with the devices' memory, where that is the host's own: with rows on a disk, whose run keeps nothing
        from pass to pass for reuse, that of the pass that holds the most."""
        if not self.spilled:
            return self.host_bytes | self.device_bytes
        setup = self.program.setup  # first what brings the structure that stays
        arenas = {p.name: [prices[setup[0].name].peak(0) for prices in self.prices] for p in setup}
        arenas |= {p.name: [self.pass_arena(p, i) for i in self.devices] for p in self.passes.every}
        found = []
        for group in (self.program.train, self.program.evaluate):
            passes = (*setup, *group)
            for p, pinned in zip(passes, host_peaks(passes, self._lasting(group)), strict=True):
                found.append((pinned, *(nbytes + self.workspace.get(p.name, 0) for nbytes in arenas[p.name])))
        pinned, *placed = max(found, key=sum)
        return {"pinned host": pinned, "pageable host": self._pageable} | dict(
            zip(self.device_bytes, placed, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """What ``hongtu plan --json`` and run records show."""
        traffic = self.traffic
        return {"rows": traffic.rows, "bytes": traffic.bytes, "peak_bytes": self.peak_bytes}

    @cached_property
    def script_bytes(self) -> int:
        """Bytes of the host in which scripts stay from the first epoch on."""
        return kept_bytes(self.program.train)

    @cached_property
    def _compiled(self) -> dict[str, PassProgram]:
        return {}

    def _pinned(self, passes: tuple[PassProgram, ...]) -> int:
        """Peak bytes of the host's vertex rows in passes after those of set-up; without any, in those of set-up."""
        setup = self.program.setup
        peaks = list(host_peaks((*setup, *passes), self._lasting(passes)))
        return max(peaks[len(setup) :] if passes else peaks)

    def _lasting(self, passes: tuple[PassProgram, ...]) -> dict[str, int]:
        """Bytes of what the host has before the first of some passes: vertex rows, the gradient of learned ones, which
        stays until the next epoch, and scripts."""
        found = {"scripts": self.script_bytes if passes else 0}
        rows, shape = self.in_memory(FEATURES) * self.host_row(FEATURES), self.shape
        if shape.sparse_input is None:  # else pageable
            found[FEATURES] = rows
        if shape.learned_input and shape.trains and not shape.copies_learned and passes is self.program.evaluate:
            found[gradient(FEATURES)] = rows
        return found
