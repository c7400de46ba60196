"""CUDA graphs without a GPU: the order of what torch and the driver are asked, and functions that a graph calls."""

from __future__ import annotations

import ctypes
import gc
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hongtu.cuda_ext import driver
from hongtu.device.capture import CaptureError
from hongtu.device.cuda import CudaStream
from hongtu.device.cuda_graph import GraphRecorder, HostStream
from hongtu.device.host_work import Put
from hongtu.device.memory import as_numpy
from hongtu.errors import DeviceOutOfMemory, InputError

WHERE = torch.device("cuda", 0)


class Torch:
    """What hongtu asks of ``torch.cuda``, written down."""

    def __init__(self, monkeypatch):
        self.asked, self.streams, self.calls = [], 0, []
        for name in ("CUDAGraph", "Stream", "Event"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        self.users, self.ends = 1, True
        pool = SimpleNamespace(id=(0, 7), use_count=lambda: self.users)
        monkeypatch.setattr(torch.cuda, "MemPool", lambda: pool, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *of: self.asked.append(("route", *of)))
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *of: self.asked.append(("release", *of)))
        monkeypatch.setattr(torch, "zeros", lambda *shape, device: torch.ones(*shape))
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: self.asked.append(name))
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(driver, "call_on_host", self.call)
        self.current, self.status = None, 0

    @contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def call(self, stream, function, given):
        self.asked.append(f"call on {stream}")
        self.calls.append((function, given))
        return self.status

    def Stream(self, where, priority=0):
        number, self.streams = self.streams, self.streams + 1
        wait = lambda event: self.asked.append(f"{number} waits for {event.of}")  # noqa: E731
        return SimpleNamespace(number=number, cuda_stream=number, wait_event=wait)

    def Event(self):
        event = SimpleNamespace(of=None)
        event.record = lambda stream: setattr(event, "of", stream.number)
        return event

    def CUDAGraph(self):
        note = lambda what: lambda **options: self.asked.append((what, self.current.number, *options.values()))  # noqa: E731
        begun = note("begin")

        def begin(**options):
            begun(**options)
            self.users += 1

        def end():
            self.asked.append(("end", self.current.number))
            if not self.ends:
                self.ends = True
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

        reset = lambda: self.asked.append("reset")  # noqa: E731
        return SimpleNamespace(capture_begin=begin, capture_end=end, replay=note("replay"), reset=reset)


@pytest.fixture
def cuda(monkeypatch):
    return Torch(monkeypatch)


def made(cuda):
    load, compute, flush, calls = (CudaStream(WHERE) for _ in range(4))
    host = HostStream()
    return GraphRecorder(WHERE, load, compute, flush, host, calls), load, compute, flush, host


def test_streams_fork_from_compute_and_join_it(cuda):
    recorder, load, compute, flush, host = made(cuda)
    rows, there = np.ones((2, 3), dtype=np.float32), np.zeros((4, 3), dtype=np.float32)

    def work():
        load.run(lambda: cuda.asked.append(f"work on {cuda.current.number}"))
        compute.wait(load.record(), "")
        host.wait(flush.record(), "")
        host.run(Put(rows, there, np.int32([3, 1]), np.array([True, False])))
        flush.wait(host.record(), "")

    graph = recorder.capture(work, lambda: pytest.fail("a captured stream cannot be waited for"))
    assert cuda.asked == [
        "synchronize", "empty_cache", ("begin", 1, (0, 7), "thread_local"),
        "0 waits for 1", "2 waits for 1", "3 waits for 1",
        "work on 0", "1 waits for 0", "3 waits for 2", "call on 3", "2 waits for 3",
        "1 waits for 0", "1 waits for 2", "1 waits for 3", ("end", 1), ("replay", 1),
    ]  # fmt: skip
    (function, given), again = cuda.calls[0], ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    for times in (1, 2):
        graph.replay()
        again(function)(given)
        assert there[3].tolist() == [1] * 3 and there[1].tolist() == [times] * 3 and not there[[0, 2]].any()


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (
            RuntimeError("CUDA error: operation not permitted when stream is capturing\nhint"),
            CaptureError,
            "capturing$",
        ),
        (RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED"), CaptureError, "CUBLAS"),
        (torch.cuda.OutOfMemoryError("full, in a pool of its own"), CaptureError, "full"),
        (DeviceOutOfMemory("over the budget"), DeviceOutOfMemory, "budget"),
        (InputError("shapes"), InputError, "shapes"),
    ],
)
def test_what_cannot_be_captured_is_told_from_other_errors(cuda, error, raised, message):
    recorder, *_, host = made(cuda)

    def work():
        raise error

    with pytest.raises(raised, match=message) as found:
        recorder.capture(work, lambda: None)
    assert type(found.value) is raised and gc.isenabled()
    joined = ["1 waits for 0", "1 waits for 2", "1 waits for 3"]  # or a capture does not end
    assert cuda.asked[-4:] == [*joined, ("end", 1)], "or nothing runs on these streams any more"
    seen = []
    host.run(lambda: seen.append(1))
    host.record().synchronize("it is a thread again")
    assert seen


@pytest.mark.parametrize("patched", [False, True])
def test_a_capture_that_does_not_end_leaves_torch_as_it_was(cuda, patched):
    """Its allocator would go on to take memory from the pool, and its generator to draw as for a graph."""
    recorder, *_ = made(cuda)
    cuda.ends = False

    def work():
        assert not gc.isenabled(), "what is freed then may be a graph, or pinned memory"
        cuda.users -= patched

    with pytest.raises(CaptureError, match="previous error"):
        recorder.capture(work, lambda: None)
    released = [] if patched else [("release", 0, (0, 7))]
    assert cuda.asked[-6 + patched :] == [
        ("end", 1), "reset", ("route", 0, (0, 7)), *released, ("begin", 1, "thread_local"), ("end", 1)
    ]  # fmt: skip


def test_other_work_of_the_host_and_a_driver_that_refuses_end_a_capture(cuda):
    recorder, *_, host = made(cuda)
    with pytest.raises(CaptureError, match="no function that a graph can call"):
        recorder.capture(lambda: host.run(lambda: None), lambda: None)
    cuda.status, rows = 801, np.ones((1, 1))
    with pytest.raises(CaptureError, match="status 801"):
        recorder.capture(lambda: host.run(Put(rows, rows.copy(), None, False)), lambda: None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("index", [None, [5, 0, 3]])
@pytest.mark.parametrize("stores", [True, False, [True, False, True]])
def test_a_function_of_a_graph_does_what_the_thread_does(dtype, index, stores):
    rows, there = np.random.default_rng(0).normal(size=(3, 5)), np.arange(35.0).reshape(7, 5)
    rows[1, :3] = np.nan, np.inf, 1 + 2.0**-7  # of which a sum lies half-way
    if dtype == np.int16:  # bits of bfloat16
        rows, there = (as_numpy(torch.from_numpy(x).bfloat16()) for x in (rows, there))
    rows, expected, found = rows.astype(dtype), there.astype(dtype), there.astype(dtype)
    index = None if index is None else np.int32(index)
    stores = np.array(stores) if isinstance(stores, list) else stores
    Put(rows, expected, index, stores)()
    function, given, held = Put(rows, found, index, stores).native()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(given)
    found, expected = (torch.from_numpy(x) for x in (found, expected))
    if dtype == np.int16:
        found, expected = found.view(torch.bfloat16), expected.view(torch.bfloat16)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert held
