"""CUDA graphs: what the streams of one GPU are given in a pass, captured once and launched as a whole."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol, cast

import torch

from hongtu.cuda_ext import driver
from hongtu.device.capture import CaptureError
from hongtu.device.host_work import Put
from hongtu.device.streams import Event, Stream, ThreadStream


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
    """A CUDA graph, and what its functions of the host use."""

    def __init__(self, compute: GpuStream) -> None:
        self.graph, self._compute = torch.cuda.CUDAGraph(), compute
        self.held: list[object] = []

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
        self._pool = torch.cuda.MemPool()

    def capture(self, work: Callable[[], None], drain: Callable[[], None]) -> CudaGraph:
        made, pool = CudaGraph(self._compute), cast(Any, self._pool.id)  # a token, like any graph's
        torch.cuda.synchronize(self._where)
        gc.collect()  # nothing of a GPU may be freed while a graph is captured
        torch.cuda.empty_cache()  # what layers took before is not what they take in the graph
        try:
            with torch.cuda.stream(self._compute.stream), self._host.captured(self._calls, made.held):
                # other threads may do with the GPU what they like: autograd's work for streams that are captured
                made.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    self._forked(work)
                except BaseException:
                    with suppress(Exception):  # the error that led here is the one to show
                        made.graph.capture_end()
                    raise
                made.graph.capture_end()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "captur" in str(error).lower():
                raise CaptureError(str(error).partition("\n")[0]) from error
            raise
        made.replay()
        return made

    def _forked(self, work: Callable[[], None]) -> None:
        """Let all streams begin after ``compute``, and it go on after all: so they are one graph."""
        begun = self._compute.record()
        for stream in self._others:
            stream.wait(begun, "capture: it has begun")
        work()
        for stream in self._others:
            self._compute.wait(stream.record(), "capture: it ends")

    def beside(self) -> AbstractContextManager[None]:
        return torch.cuda.use_mem_pool(self._pool, self._where)
