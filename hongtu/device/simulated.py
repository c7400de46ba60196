"""The CUDA engine without a GPU: streams are queues, and the kernels' own sources run on the CPU.

A scheduler does the queues' work in a random order that the events allow, with some queues much slower than others; so
a wait that is missing shows as a wrong number.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.device.base import Device
from hongtu.device.cpu import Backend
from hongtu.device.pool import Make, Pool
from hongtu.device.staged import StagedDevice
from hongtu.device.streams import Event, Streams
from hongtu.hardware import H200
from hongtu.host import available_bytes
from hongtu.kernels.dispatch import CudaKernels, Kernels
from hongtu.metrics import Traffic

SLOWEST = 1e-5  # a queue's share of the turns, beside that of the quickest


class Scheduler:
    """Does the work of queues, one piece after the other.

    Args:
        seed: of the order.
        ignored: reasons of waits that are left out, to see what they are for.

    Attributes:
        waits: the reasons of all waits that there were.
    """

    def __init__(self, seed: int = 0, ignored: frozenset[str] = frozenset()) -> None:
        self._random = random.Random(seed)
        self._queues: list[Queue] = []
        self.ignored = ignored
        self.waits: set[str] = set()

    def queue(self) -> Queue:
        """A new stream."""
        queue = Queue(self, SLOWEST ** self._random.random())
        self._queues.append(queue)
        return queue

    def until(self, moment: QueueEvent) -> None:
        """Work until a moment has come."""
        while not moment.passed:
            ready = [queue for queue in self._queues if queue.ready]
            assert ready, "the streams wait for each other"
            chosen = ready[0] if len(ready) == 1 else self._random.choices(ready, [queue.speed for queue in ready])[0]
            chosen.step()

    def drop_all(self) -> None:
        """Forget all work, after an error."""
        for queue in self._queues:
            queue.clear()


class QueueEvent:
    """An event of a queue."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.passed = False

    def synchronize(self, why: str) -> None:
        self._scheduler.waits.add(why)
        if why not in self._scheduler.ignored:
            self._scheduler.until(self)


class Queue:
    """A stream whose work is done when the scheduler says so, the more often the higher its speed."""

    def __init__(self, scheduler: Scheduler, speed: float) -> None:
        self._scheduler, self.speed = scheduler, speed
        self._work: deque[Callable[[], object] | QueueEvent | tuple[QueueEvent]] = deque()

    def run(self, work: Callable[[], object]) -> None:
        self._work.append(work)

    def record(self) -> QueueEvent:
        moment = QueueEvent(self._scheduler)
        self._work.append(moment)
        return moment

    def wait(self, event: Event, why: str) -> None:
        self._scheduler.waits.add(why)
        if isinstance(event, QueueEvent) and why not in self._scheduler.ignored:
            self._work.append((event,))

    def clear(self) -> None:
        self._work.clear()

    @property
    def ready(self) -> bool:
        """Whether there is work that need not wait."""
        if not self._work:
            return False
        head = self._work[0]
        return head[0].passed if isinstance(head, tuple) else True

    def step(self) -> None:
        head = self._work.popleft()
        if isinstance(head, QueueEvent):
            head.passed = True
        elif not isinstance(head, tuple):
            head()


def poison(tensor: Tensor) -> Tensor:
    """Memory whose undefined content shows in results (NaN), or at least does no harm (indices of 0)."""
    return tensor.fill_(torch.nan if tensor.is_floating_point() else 0)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """New memory that is."""
    return poison(torch.empty(shape, dtype=dtype))


class Poisonous(Pool):
    """Poisons what it gives out, every time."""

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return poison(super().take(shape, dtype))


class SimulatedDevice(StagedDevice):
    """A GPU played by the CPU."""

    def __init__(
        self,
        name: str,
        budget: int | None,
        traffic: Traffic,
        streams: Streams,
        kernels: Kernels,
        scheduler: Scheduler,
        detours: bool,
    ) -> None:
        where = torch.device("cpu")
        super().__init__(name, budget, traffic, streams, kernels, where, poisoned, lambda tensor: not detours)
        self._scheduler, self.cpu_kernels = scheduler, kernels
        self._staging_pool = Poisonous(poisoned, room=available_bytes)

    def _fresh(self, tensor: Tensor) -> Tensor:
        return poison(tensor)

    def abandon(self) -> None:
        self._scheduler.drop_all()


class SimulatedBackend(Backend):
    """GPUs played by the CPU.

    Args:
        gpus: how many there are; partitions are dealt to them in turn. None: one for each partition.
        seed, ignored: as for ``Scheduler``.
        detours: GPUs reach neither the host's memory nor each other's themselves.

    Raises:
        KernelError: no C++ compiler is installed.
    """

    hardware = dataclasses.replace(H200, name="simulated")

    def __init__(
        self,
        gpus: int | None = None,
        seed: int = 0,
        ignored: frozenset[str] = frozenset(),
        detours: bool = False,
    ) -> None:
        self.gpus, self.detours = gpus, detours
        self.scheduler = Scheduler(seed, ignored)
        self.kernels: Kernels = CudaKernels(HostLauncher())

    @property
    def pinned(self) -> Make:
        return poisoned

    def gpu_of(self, partition: int) -> int:
        return partition if self.gpus is None else partition % self.gpus

    def devices(self, partitions: int, budget: int | None, traffic: Traffic) -> list[Device]:
        queue = self.scheduler.queue
        host, disk = queue(), queue()
        gpus = {gpu: (queue(), queue(), queue()) for gpu in {self.gpu_of(i) for i in range(partitions)}}
        made: list[Device] = []
        for i in range(partitions):
            streams = Streams(*gpus[self.gpu_of(i)], host, disk)
            made.append(
                SimulatedDevice(f"device {i}", budget, traffic, streams, self.kernels, self.scheduler, self.detours)
            )
        return made
