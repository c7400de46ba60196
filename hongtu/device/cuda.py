"""GPUs: CUDA streams and events, peers, and the thread that adds gradients up on the host."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from hongtu.cuda_ext import driver
from hongtu.device.base import Device
from hongtu.device.capture import Recorder
from hongtu.device.cpu import Backend
from hongtu.device.cuda_graph import GraphRecorder, HostStream
from hongtu.device.pinned import REGISTERED, pinned, processors_near
from hongtu.device.pool import Make
from hongtu.device.staged import StagedDevice
from hongtu.device.streams import Event, Streams
from hongtu.errors import DeviceOutOfMemory, InputError
from hongtu.hardware import H200, MARGIN
from hongtu.kernels.dispatch import kernels_for
from hongtu.metrics import Traffic

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # environment variables: how torch takes GPUs' memory
GROWING = "expandable_segments:True"
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
LIBRARIES = 4 * (32 << 20)  # bytes: workspaces of cuBLAS and cuBLASLt on the thread that dispatches and on autograd's


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


def host_thread(gpu: int) -> HostStream:
    """Waiting for an event would make a context on the first GPU, were another one not current on the thread."""
    return HostStream(partial(torch.cuda.set_device, gpu))


class CudaDevice(StagedDevice):
    """A partition's share of a GPU."""

    def begin(self) -> None:
        torch.cuda.synchronize(self.where)

    def abandon(self) -> None:
        streams = self.streams.host, self.streams.disk
        threads = [lambda stream=stream: stream.record().synchronize("abandon: it is done") for stream in streams]
        for wait in (self.begin, *threads):
            with contextlib.suppress(Exception):  # the error that led here is the one to show
                wait()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """From the memory that layers take theirs from: torch's allocator gives no stream what another has freed.
        Nothing is under way there when a pass asks for its buffers, so other streams may write to them at once."""
        made: list[Tensor] = []
        try:
            self.streams.compute.run(lambda: made.append(super(CudaDevice, self).empty(shape, dtype)))
            return made[0]
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceOutOfMemory(f"{self.name}: {self.where} has no room for a planned buffer: {error}") from error


class CudaBackend(Backend):
    """The GPUs of this machine; partitions are dealt to them in turn.

    Args:
        name: "cuda" for all that are visible, or "cuda:K" for one.

    Raises:
        InputError: there is no such GPU, or cuda-bindings is missing.
    """

    hardware = H200

    def __init__(self, name: str = "cuda") -> None:
        if not any(variable in os.environ for variable in ALLOCATOR):
            # else chunks, which all differ a little, leave gaps of use to none
            os.environ[ALLOCATOR[0]] = GROWING
            if torch.cuda.is_initialized():  # it was read when a GPU was first used
                warnings.warn(
                    f"this process used a GPU before {ALLOCATOR[0]} was set, so torch's allocator may take up to half "
                    f"more memory than layers need; start Python with {ALLOCATOR[0]}={GROWING}",
                    stacklevel=2,
                )
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = int(name[5:]) if name[5:] else None
        if count == 0:
            raise InputError(f"device {name!r}: no CUDA GPU is visible to torch; use device='cpu', see `hongtu doctor`")
        if index is not None and index >= count:
            raise InputError(f"device {name!r}: there are {count} GPUs, from cuda:0 on")
        try:
            import cuda.bindings  # noqa: F401
        except ImportError as error:
            raise InputError(f"device {name!r}: {error}; run `pip install 'hongtu[cuda]'`") from error
        self._gpus = list(range(count)) if index is None else [index]
        self._near: list[str] = []

    @property
    def pinned(self) -> Make:
        """Of memory that every GPU reads at its own address; a partition's rows are near its GPU."""
        return lambda shape, dtype: pinned(shape, dtype, self._near, self._gpus[0])

    def gpu_of(self, partition: int) -> int:
        return self._gpus[partition % len(self._gpus)]

    def where(self, gpu: int) -> torch.device:
        return torch.device("cuda", gpu)

    def memory(self, partitions: int) -> int | None:
        """What is free on the GPU that has the least, less what libraries take and a margin for what operations take
        inside, for each partition on it. Blocks that torch holds for the next who asks are free."""
        gc.collect()  # a run that is over may refer to itself
        used = self._gpus[:partitions]
        free = min(_free_bytes(gpu) for gpu in used) - LIBRARIES
        return max(0, free - free // MARGIN) // -(-partitions // len(used))

    def devices(self, partitions: int, budget: int | None, traffic: Traffic) -> list[Device]:
        used = self._gpus[:partitions]
        host, disk = host_thread(used[0]), host_thread(used[0])
        self._near = [processors_near(self.gpu_of(i)) for i in range(partitions)]
        reach = {gpu: _reach(gpu, used) for gpu in used}
        made: list[Device] = []
        for i in range(partitions):
            gpu = self.gpu_of(i)
            where = self.where(gpu)
            kernels = kernels_for(torch.empty(0, device=where))
            streams = Streams(*_streams(gpu)[:3], host, disk)
            name, pin = f"device {i}", self.pinned
            made.append(CudaDevice(name, budget, traffic, streams, kernels, where, pin, *reach[gpu]))
        return made

    def recorder(self, devices: list[Device]) -> Recorder | None:
        """Of one GPU: a graph for several would take memory of torch's allocator on the first only. And of that
        allocator: without its pools memory would be taken and freed while a graph is captured."""
        gpus = {self.gpu_of(i) for i in range(len(devices))}
        pools = hasattr(torch.cuda, "use_mem_pool") and torch.cuda.get_allocator_backend() == "native"
        if len(gpus) > 1 or not pools or UNCACHED in os.environ:
            return None
        (gpu,), host = gpus, devices[0].streams.host
        assert isinstance(host, HostStream)
        load, compute, flush, calls = _streams(gpu)
        return GraphRecorder(self.where(gpu), load, compute, flush, host, calls)


def _free_bytes(gpu: int) -> int:
    return torch.cuda.mem_get_info(gpu)[0] + torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)


@cache
def _streams(gpu: int) -> tuple[CudaStream, CudaStream, CudaStream, CudaStream]:
    """``load``, ``compute`` and ``flush`` of a GPU, and the stream of functions that a graph calls; the same for all
    runs: memory goes from one to the next, and torch has 32 streams of a priority, which it deals out in turn."""
    first = -1  # what moves rows needs few multiprocessors, but at once: else the link waits for arithmetic
    load, compute, flush, calls = (CudaStream(torch.device("cuda", gpu), p) for p in (first, 0, first, first))
    return load, compute, flush, calls


def _reach(gpu: int, used: Sequence[int]) -> tuple[Callable[[Tensor], bool], Callable[[Tensor], bool]]:
    """Which tensors a GPU reads and writes itself, and to which it adds while peers do; peer access is enabled where
    the hardware has it."""
    reads, adds = {gpu}, {gpu}
    for peer in used:
        if peer != gpu:
            reachable, atomic = enable_peer(gpu, peer)
            reads |= {peer} if reachable else set()
            adds |= {peer} if reachable and atomic else set()
            if not (reachable and atomic):
                what = "add to" if reachable else "reach"
                warnings.warn(
                    f"cuda:{gpu} cannot {what} cuda:{peer}: torch copies those rows, which is slower", stacklevel=5
                )
    reads_host = driver.attribute(gpu, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM")
    if not reads_host:
        warnings.warn(
            f"cuda:{gpu} cannot read host memory at the host's address: the host gathers rows and copies them",
            stacklevel=5,
        )

    def reaches(tensor: Tensor) -> bool:
        return tensor.get_device() in reads if tensor.is_cuda else reads_host and tensor in REGISTERED

    return reaches, lambda tensor: tensor.get_device() in adds


def enable_peer(gpu: int, peer: int) -> tuple[bool, bool]:
    """Let a GPU read and write a peer's memory: whether it can, and whether its atomics work there.

    torch does it when it copies between them, for what its allocator has and will have, expandable segments included.
    """
    if not torch.cuda.can_device_access_peer(gpu, peer):
        return False, False
    torch.empty(1, device=f"cuda:{peer}").copy_(torch.empty(1, device=f"cuda:{gpu}"))
    return True, driver.adds_at(gpu, peer)
