"""Training passes whose work is captured, once it repeats, and given to the devices again as a whole.

The first epoch is looked at, the second is captured, and from the third on the host does of every pass what it does
around the batches, whatever their number. Where something that epochs could differ in has changed, it begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch

from hongtu.device.base import Device
from hongtu.device.capture import Asking, Captured, Recorder
from hongtu.engine.chunk import Partition
from hongtu.engine.host_store import HostStore
from hongtu.kernels.torch_private import matmul_precisions, parameter_hooks
from hongtu.metrics import Traffic
from hongtu.model.network import Network
from hongtu.nn.convolution import is_setting
from hongtu.plan.program.program import PassProgram, Program

FIRST = "the first epoch, and the first after a change of settings, addresses or torch's rules, is eager"
SECOND = "it was captured, and is done again from the next epoch on"


class Moved(Exception):
    """Memory that captured work uses lies elsewhere."""


class Known(NamedTuple):
    """What is known of one pass: its work, where its memory lay, and what it counted."""

    captured: Captured
    where: tuple[Any, ...]
    traffic: Traffic
    peaks: list[tuple[int, int]]


class Repeats:
    """How the batches of a pass run.

    Args:
        program: whose training passes may be captured.
        partitions: of the run, each with its device, network and loss.
        recorder: captures what the devices' streams are given; None: nothing is captured.

    Attributes:
        reason: why nothing is captured, or "".
        eager: why the last epoch was not done again as it had been captured, or "".
    """

    def __init__(
        self, program: Program, partitions: Sequence[Partition], host: HostStore, recorder: Recorder | None
    ) -> None:
        self._passes, self._partitions, self._host, self._recorder = program.train, partitions, host, recorder
        self._devices: list[Device] = [partition.device for partition in partitions]
        self._networks: list[Network] = list(dict.fromkeys(partition.network for partition in partitions))
        self.reason = program.eager or ("" if recorder is not None else "nothing captures on these devices")
        self.eager = self.reason
        self._asking = Asking()
        self._state: object = None
        self._known: dict[str, Known] = {}
        self._how: Literal["eager", "captured now", "again"] = "eager"

    def begin(self, passes: tuple[PassProgram, ...]) -> None:
        """Choose how the batches of these passes run now."""
        self._how = "eager"
        for partition in self._partitions:
            partition.asking = None
        if passes is not self._passes:
            return
        self.eager = self.reason or self._differs()
        if self.reason:
            return
        state = None if self.eager else self._found()
        if state is None or state != self._state:
            self.forget()
            self._state = state
            if state is not None:
                self.eager, self._asking = FIRST, Asking()
                for partition in self._partitions:
                    partition.asking = self._asking
        elif self._asking.found:
            self.reason = f"{', '.join(sorted(self._asking.found))}: the host asks the device for it"
            self.eager = self.reason
        elif len(self._known) == len(passes):
            self._how = "again"
        else:
            self._known.clear()
            self._how, self.eager = "captured now", SECOND

    def run(self, p: PassProgram, work: Callable[[], None], drain: Callable[[], None]) -> None:
        """Have the batches of a pass done, or on their way, by ``work`` or as they were captured."""
        if self._how == "again":
            self._again(p)
        elif self._how == "captured now":
            self._capture(p, work, drain)
        else:
            with self._recorder.beside() if self._known and self._recorder is not None else nullcontext():
                work()

    def forget(self, reason: str = "") -> None:
        """What is captured is of no use any more."""
        self._known.clear()
        self._state, self.reason = None, self.reason or reason
        if self._recorder is not None:
            self._recorder.forget()

    def _capture(self, p: PassProgram, work: Callable[[], None], drain: Callable[[], None]) -> None:
        assert self._recorder is not None
        traffic, where = self._devices[0].traffic, self._where()
        bytes_before, rows_before = dict(traffic.bytes), dict(traffic.rows)
        captured = self._recorder.capture(work, drain)
        counted = Traffic(
            bytes={link: count - bytes_before[link] for link, count in traffic.bytes.items()},
            rows={link: count - rows_before[link] for link, count in traffic.rows.items()},
        )
        peaks = [(device.arena_peak, device.peak) for device in self._devices]
        self._known[p.name] = Known(captured, where, counted, peaks)

    def _again(self, p: PassProgram) -> None:
        known = self._known[p.name]
        if known.where != self._where():
            raise Moved
        known.captured.replay()
        for link, nbytes in known.traffic.bytes.items():
            self._devices[0].traffic.add(link, nbytes, known.traffic.rows.get(link, 0))
        for device, (arena_peak, peak) in zip(self._devices, known.peaks, strict=True):
            device.arena_peak, device.peak = max(device.arena_peak, arena_peak), max(device.peak, peak)

    def _where(self) -> tuple[Any, ...]:
        """The addresses of all that batches use beside parameters."""
        return self._host.addresses, *(device.addresses for device in self._devices)

    def _differs(self) -> str:
        """What could make an epoch do other operations than the last, beside what is ``_found``; or ""."""
        if not getattr(self._partitions[0].loss, "repeats", False):
            return "the loss is not one of torch's alone"
        if not all(network.repeats for network in self._networks):
            return "a module draws from torch's generator, has hooks, or is of a class that is neither ours nor torch's"
        if torch.is_anomaly_enabled():
            return "torch looks at every backward function: its anomaly mode is on"
        parameters = (x for network in self._networks for x in network.modules.parameters())
        return "a parameter has hooks" if any(any(parameter_hooks(x)) for x in parameters) else ""

    def _found(self) -> tuple[Any, ...]:
        """All that an epoch's work may depend on beside numbers in memory."""
        found: list[Any] = [
            matmul_precisions(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_autocast_enabled() and torch.get_autocast_gpu_dtype(),
        ]
        for network in self._networks:
            found.append(network.context.training)
            for module in network.modules.modules():
                found.append(repr([item for item in vars(module).items() if is_setting(item[1])]))
            for parameter in network.modules.parameters():
                gradient = None if parameter.grad is None else parameter.grad.data_ptr()
                found.append((parameter.requires_grad, parameter.data_ptr(), gradient, parameter.dtype))
            found += [buffer.data_ptr() for buffer in network.modules.buffers()]
        return tuple(found)
