"""GPUs: CUDA streams and events, pinned host memory of exact size, the thread that adds gradients on the host."""

from __future__ import annotations

import contextlib
import mmap
import queue
import threading
import warnings
import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hongtu.device import Device
from hongtu.dispatch import Kernels, kernels_for
from hongtu.errors import DeviceOutOfMemory, InputError
from hongtu.metrics import Traffic
from hongtu.plan.hardware import H200, MARGIN
from hongtu.staged_device import StagedDevice
from hongtu.streams import Event, Streams

_QUEUED = 64  # pieces of work that the host's stream may be behind


class CudaEvent:
    """A moment of a CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event()
        self.event.record(stream)

    def synchronize(self, why: str) -> None:
        self.event.synchronize()


class CudaStream:
    """A CUDA stream of one GPU."""

    def __init__(self, where: torch.device, priority: int = 0) -> None:
        self.stream = torch.cuda.Stream(where, priority=priority)

    def run(self, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self.stream):
            work()

    def record(self) -> CudaEvent:
        return CudaEvent(self.stream)

    def wait(self, event: Event, why: str) -> None:
        if isinstance(event, CudaEvent):
            self.stream.wait_event(event.event)
        else:
            event.synchronize(why)


class HostEvent:
    """A moment of the host's thread."""

    def __init__(self, thread: HostThread) -> None:
        self._thread, self._passed = thread, threading.Event()

    def synchronize(self, why: str) -> None:
        self._passed.wait()
        self._thread.check()

    def come(self) -> None:
        self._passed.set()


class HostThread:
    """A stream on a thread of the host: gradient rows are added up beside the main thread."""

    def __init__(self) -> None:
        self._work: queue.Queue[Callable[[], object] | None] = queue.Queue(_QUEUED)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=_work_off, args=(self._work, weakref.ref(self)), daemon=True)
        self._thread.start()
        weakref.finalize(self, self._work.put, None)

    def run(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def record(self) -> HostEvent:
        event = HostEvent(self)
        self._work.put(event.come)
        return event

    def wait(self, event: Event, why: str) -> None:
        if isinstance(event, CudaEvent):
            self._work.put(lambda: event.synchronize(why))

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error

    def check(self) -> None:
        """Raise what has gone wrong on the thread."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _work_off(work: queue.Queue[Callable[[], object] | None], owner: weakref.ref[HostThread]) -> None:
    while (piece := work.get()) is not None:
        try:
            piece()
        except BaseException as error:  # raised where the host waits for it
            thread = owner()
            if thread is not None:
                thread.fail(error)


class CudaDevice(StagedDevice):
    """A partition's share of a GPU.

    Args:
        reachable: which tensors of peers the GPU can read and write itself.
    """

    def __init__(
        self,
        name: str,
        budget: int | None,
        traffic: Traffic,
        streams: Streams,
        kernels: Kernels,
        where: torch.device,
        reachable: Callable[[Tensor], bool],
    ) -> None:
        super().__init__(name, budget, traffic, streams, kernels, where, pinned)
        self._reachable = reachable

    def pull_rows(self, peer_cache: Tensor, peer_slots: Tensor, cache: Tensor, slots: Tensor) -> None:
        if self._reachable(peer_cache):
            super().pull_rows(peer_cache, peer_slots, cache, slots)
            return

        def through_the_host() -> None:
            rows = peer_cache.index_select(0, peer_slots.to(peer_cache.device)).to(self.where)
            cache.index_copy_(0, slots.long(), rows)
            self.traffic.add("pull", rows.nbytes, len(slots))

        self.streams.load.run(through_the_host)

    def _add_to_peer(self, cache: Tensor, slots: Tensor, peer_cache: Tensor, peer_slots: Tensor) -> None:
        if self._reachable(peer_cache):
            super()._add_to_peer(cache, slots, peer_cache, peer_slots)
        else:
            rows = cache.index_select(0, slots).to(peer_cache.device)
            peer_cache.index_add_(0, peer_slots.to(peer_cache.device), rows)

    def abandon(self) -> None:
        torch.cuda.synchronize(self.where)
        with contextlib.suppress(Exception):  # there is an error already
            self.streams.host.record().synchronize("abandon: nothing is under way")

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        try:
            return super()._empty(shape, dtype)
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceOutOfMemory(f"{self.name}: {self.where} has no room for a planned buffer: {error}") from error


class CudaBackend:
    """The GPUs of this machine; partitions are dealt to them in turn.

    Args:
        name: "cuda" for all that are visible, or "cuda:K" for one.

    Raises:
        InputError: there is no such GPU.
    """

    hardware = H200

    def __init__(self, name: str = "cuda") -> None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = torch.device(name).index
        if count == 0:
            raise InputError(f"device {name!r}: no CUDA GPU is visible to torch; use device='cpu', see `hongtu doctor`")
        if index is not None and index >= count:
            raise InputError(f"device {name!r}: there are {count} GPUs, from cuda:0 on")
        self._gpus = list(range(count)) if index is None else [index]
        self._streams: dict[int, tuple[CudaStream, CudaStream, CudaStream]] = {}
        self._warned: set[tuple[int, int]] = set()

    @staticmethod
    def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory that every GPU reads at its own address."""
        return pinned(shape, dtype)

    def gpu_of(self, partition: int) -> int:
        """The GPU that runs a partition."""
        return self._gpus[partition % len(self._gpus)]

    def where(self, gpu: int) -> torch.device:
        """The torch device of a GPU's tensors."""
        return torch.device("cuda", gpu)

    def memory(self, partitions: int) -> int | None:
        """What is free on the GPU that has the least, less a margin, for each partition on it."""
        sharing = -(-partitions // len(self._gpus))
        free = min(torch.cuda.mem_get_info(gpu)[0] for gpu in self._gpus)
        return int(free - free // MARGIN) // sharing

    def devices(self, partitions: int, budget: int | None, traffic: Traffic) -> list[Device]:
        """One device for each partition; those on one GPU share its streams."""
        host = HostThread()
        made: list[Device] = []
        for i in range(partitions):
            gpu = self.gpu_of(i)
            where = self.where(gpu)
            if gpu not in self._streams:
                self._streams[gpu] = (CudaStream(where), CudaStream(where, priority=-1), CudaStream(where))
            kernels = kernels_for(torch.empty(0, device=where))
            streams = Streams(*self._streams[gpu], host)
            made.append(CudaDevice(f"device {i}", budget, traffic, streams, kernels, where, self._reach(gpu)))
        return made

    def _reach(self, gpu: int) -> Callable[[Tensor], bool]:
        """Whether a GPU reaches a tensor itself; peer access is enabled where the hardware has it."""
        reached = {gpu} | {peer for peer in self._gpus if peer != gpu and enable_peer(gpu, peer)}
        for peer in set(self._gpus) - reached:
            if (gpu, peer) not in self._warned:
                warnings.warn(
                    f"cuda:{gpu} cannot reach cuda:{peer}: rows between them go through the host", stacklevel=4
                )
            self._warned.add((gpu, peer))
        return lambda tensor: tensor.get_device() in reached


def enable_peer(gpu: int, peer: int) -> bool:
    """Let a GPU read and write a peer's memory; False where the hardware cannot."""
    if not torch.cuda.can_device_access_peer(gpu, peer):
        return False
    from cuda.bindings import runtime

    with torch.cuda.device(gpu):
        (status,) = runtime.cudaDeviceEnablePeerAccess(peer, 0)
    return status in (runtime.cudaError_t.cudaSuccess, runtime.cudaError_t.cudaErrorPeerAccessAlreadyEnabled)


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Page-aligned host memory of exact size, registered with the driver until the tensor's memory is dropped.

    torch's own pinned allocator rounds up to powers of two, which would not do for what fills most of a machine.

    Raises:
        InputError: the driver refuses, mostly because the system limits locked memory.
    """
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    pages = mmap.mmap(-1, nbytes)
    array = np.frombuffer(pages, dtype=np.uint8)
    address = array.ctypes.data
    runtime = torch.cuda.cudart()
    status = int(runtime.cudaHostRegister(address, nbytes, 3))  # portable, mapped
    if status != 0:
        raise InputError(
            f"pinned host memory: the driver refused {nbytes} bytes (CUDA error {status}); raise the limit of locked "
            "memory (`ulimit -l unlimited`), or use a machine with more memory"
        )
    weakref.finalize(array, runtime.cudaHostUnregister, address)
    return torch.from_numpy(array).view(dtype).view(shape)
