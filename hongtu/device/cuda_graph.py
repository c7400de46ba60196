"""CUDA graphs: what the streams of one GPU are given in a pass, captured once and launched as a whole."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol, cast

import torch

from hongtu.cuda_ext import driver
from hongtu.device.capture import CaptureError
from hongtu.device.host_work import Put
from hongtu.device.streams import Event, Stream, ThreadStream
from hongtu.errors import DeviceOutOfMemory
from hongtu.kernels.torch_private import end_capture_of_memory


class GpuStream(Stream, Protocol):
    """A stream of a GPU.

    Attributes:
        stream: torch's.
    """

    stream: torch.cuda.Stream


class HostStream(ThreadStream):
    """The host's stream: a thread, or, while a graph is captured, nodes of that graph by which the driver calls C
    functions: these need no Python, and no thread of ours."""

    _calls: GpuStream | None = None
    _held: list[object]

    @contextmanager
    def captured(self, calls: GpuStream, held: list[object]) -> Iterator[None]:
        """Inside, work goes to a stream that is captured; ``held`` gets what must live as long as its graph."""
        self._calls, self._held = calls, held
        try:
            yield
        finally:
            self._calls = None

    def run(self, work: Callable[[], object]) -> None:
        if self._calls is None:
            super().run(work)
        elif isinstance(work, Put):
            function, given, held = work.native()
            self._held.append(held)
            status = driver.call_on_host(self._calls.stream.cuda_stream, function, given)
            if status:
                raise CaptureError(f"a function of the host: status {status} of the driver")
        else:
            raise CaptureError(f"{work} is no function that a graph can call")

    def record(self) -> Event:
        return super().record() if self._calls is None else self._calls.record()

    def wait(self, event: Event, why: str) -> None:
        if self._calls is None:
            super().wait(event, why)
        else:
            self._calls.wait(event, why)


class CudaGraph:
    """A CUDA graph, and what its functions of the host use.

    Args:
        pool: of its memory, which must go after the graph.
    """

    def __init__(self, compute: GpuStream, pool: object) -> None:
        self.graph, self._compute = torch.cuda.CUDAGraph(), compute
        self.held = [pool]

    def replay(self) -> None:
        with torch.cuda.stream(self._compute.stream):
            self.graph.replay()


class GraphRecorder:
    """Captures what one GPU's streams are given. What layers take in its graphs comes from one pool: graphs run one
    after the other, and what one leaves for the next is held.

    Args:
        where: the GPU.
        load, compute, flush, host: its streams.
        calls: a stream of the GPU that nobody else uses, for the host's functions.
    """

    def __init__(
        self,
        where: torch.device,
        load: GpuStream,
        compute: GpuStream,
        flush: GpuStream,
        host: HostStream,
        calls: GpuStream,
    ) -> None:
        self._where, self._compute, self._others = where, compute, (load, flush, calls)
        self._host, self._calls = host, calls
        self._pool: torch.cuda.MemPool | None = None

    def capture(self, work: Callable[[], None], drain: Callable[[], None]) -> CudaGraph:
        self._pool = self._pool or torch.cuda.MemPool()
        made = CudaGraph(self._compute, self._pool)
        torch.cuda.synchronize(self._where)
        torch.cuda.empty_cache()  # what layers took before is not what they take in the graph
        try:
            with _nothing_freed(), self._host.captured(self._calls, made.held):
                self._capture(made, self._pool, work)
            made.replay()
        except (DeviceOutOfMemory, CaptureError):
            raise
        except (RuntimeError, OSError) as error:  # memory that a pool of its own has no room for is one
            raise CaptureError(str(error).partition("\n")[0]) from error
        return made

    def _capture(self, made: CudaGraph, pool: torch.cuda.MemPool, work: Callable[[], None]) -> None:
        users, ended = pool.use_count(), False
        with torch.cuda.stream(self._compute.stream):
            try:
                # other threads may do with the GPU what they like: autograd's work for streams that are captured
                token = cast(Any, pool.id)  # like any graph's
                made.graph.capture_begin(pool=token, capture_error_mode="thread_local")
                try:
                    self._forked(work)
                except BaseException:
                    with suppress(Exception):  # the error that led here is the one to show
                        made.graph.capture_end()
                        ended = True
                    raise
                made.graph.capture_end()
            except BaseException:
                if not ended:
                    self._recover(made, pool, users)
                raise

    def _recover(self, made: CudaGraph, pool: torch.cuda.MemPool, users: int) -> None:
        """Torch's allocator and generator go on as if they were captured where the end of a capture fails: memory
        comes from the pool, which stays, and every random number is an error. The generator is right again after a
        capture that ends well."""
        _failed.append(made.graph)  # the allocator of host memory may ask it for ever
        with suppress(Exception):
            made.graph.reset()  # all there is to do, in a newer torch
            end_capture_of_memory(self._where.index, pool, users)
        with suppress(Exception):
            number, again = torch.zeros(1, device=self._where), torch.cuda.CUDAGraph()
            again.capture_begin(capture_error_mode="thread_local")
            number.zero_()
            again.capture_end()

    def _forked(self, work: Callable[[], None]) -> None:
        """Let all streams begin after ``compute``, and it go on after all, whatever goes wrong: so they are one graph,
        and its capture can end."""
        begun = self._compute.record()
        for stream in self._others:
            stream.wait(begun, "capture: it has begun")
        try:
            work()
        except BaseException:
            with suppress(Exception):
                self._join()
            raise
        self._join()

    def _join(self) -> None:
        for stream in self._others:
            self._compute.wait(stream.record(), "capture: it ends")

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext() if self._pool is None else torch.cuda.use_mem_pool(self._pool, self._where)

    def forget(self) -> None:
        self._pool = None


_failed: list[torch.cuda.CUDAGraph] = []


@contextmanager
def _nothing_freed() -> Iterator[None]:
    """Inside, Python frees no circles of references: what of a GPU is in them must not go while a graph is captured."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
