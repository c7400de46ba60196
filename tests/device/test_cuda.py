"""GPUs without one: what is free, whose pool memory comes from, threads, peers, and what is shown of errors."""

from __future__ import annotations

import os
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch

from hongtu.device import cuda as module
from hongtu.device.cuda import LIBRARIES, CudaBackend, CudaDevice, host_thread
from hongtu.device.pinned import pinned
from hongtu.device.pool import plain
from hongtu.device.streams import Inline, Streams
from hongtu.kernels.dispatch import NUMBA
from hongtu.metrics import Traffic
from tests.fake_driver import fake

__all__ = ["fake"]

GIB = 1 << 30


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs of 64 GiB, of which torch has 40 and uses 8."""
    pytest.importorskip("cuda.bindings")
    for name in module.ALLOCATOR:
        monkeypatch.setenv(name, "")  # what was there comes back
        monkeypatch.delenv(name)
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "mem_get_info": lambda gpu: (20 * GIB, 64 * GIB),
        "memory_reserved": lambda gpu: 40 * GIB,
        "memory_allocated": lambda gpu: 8 * GIB,
        "set_device": lambda gpu: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


def test_blocks_that_torch_holds_for_the_next_are_free(gpus):
    free = 20 * GIB + 32 * GIB - LIBRARIES
    assert CudaBackend("cuda:1").memory(1) == free - free // 16
    assert CudaBackend("cuda").memory(4) == (free - free // 16) // 2


def test_torch_is_told_to_let_its_segments_grow_unless_the_user_says_something(gpus, monkeypatch):
    for variable in module.ALLOCATOR:
        monkeypatch.setenv(variable, "max_split_size_mb:64")
        CudaBackend("cuda")
        assert [os.environ.get(name) for name in module.ALLOCATOR if name != variable] == [None]
        monkeypatch.delenv(variable)
    CudaBackend("cuda")
    assert os.environ[module.ALLOCATOR[0]] == "expandable_segments:True"


@pytest.mark.parametrize("said", [{}, {module.ALLOCATOR[0]: ""}, {module.ALLOCATOR[1]: "backend:native"}], ids=repr)
@pytest.mark.parametrize("began", [False, True])
def test_a_gpu_that_was_used_too_early_is_said(gpus, monkeypatch, began, said):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: began)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        CudaBackend("cuda")
    assert len(seen) == (began and not said)
    assert all("start Python with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in str(x.message) for x in seen)


@pytest.mark.parametrize("trainers", [1, 2, 40])
def test_streams_of_a_gpu_are_the_same_for_every_trainer(fake, gpus, monkeypatch, trainers):
    """torch deals 32 out in turn: one more for every trainer would be another's."""
    made: list = []
    stream = lambda where, priority: made.append(priority) or SimpleNamespace(cuda_stream=len(made))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(module, "kernels_for", lambda tensor: NUMBA)
    monkeypatch.setattr(torch, "empty", lambda *shape, device: None)
    module._streams.cache_clear()
    try:
        backend, seen = CudaBackend("cuda:0"), set()
        for _ in range(trainers):
            devices = backend.devices(2, None, Traffic())
            recorder = backend.recorder(devices)
            assert recorder is not None
            seen.add(
                (recorder._compute, *recorder._others, *(getattr(devices[0].streams, n) for n in ("load", "flush")))
            )
    finally:
        module._streams.cache_clear()
    assert len(seen) == 1 and made == [-1, 0, -1, -1]


def device(streams):
    return CudaDevice("device 0", None, Traffic(), streams, NUMBA, torch.device("cpu"), plain)


def test_buffers_come_from_the_pool_of_the_stream_that_layers_run_on():
    class Compute(Inline):
        running = False

        def run(self, work):
            Compute.running = True
            work()
            Compute.running = False

    streams = Streams(Inline(), Compute(), Inline(), Inline())
    seen = []
    made, empty = device(streams), torch.empty
    try:
        torch.empty = lambda *args, **options: seen.append(Compute.running) or empty(*args, **options)
        made.place("stays", (4,), torch.int64)
        made.hold(512)
        made.allocate("rows", 2, (5, 3), torch.float32)
    finally:
        torch.empty = empty
    assert seen == [True, True] and made.slab.most == 256
    assert made.buffer("rows").shape == (5, 3)


def test_a_failed_wait_does_not_hide_the_error_before_it(monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: None)
    made = device(Streams(Inline(), Inline(), Inline(), host_thread(0)))
    with pytest.raises(ValueError, match="first"):
        try:
            raise ValueError("first")
        except ValueError:
            made.abandon()
            raise


def test_the_host_thread_waits_on_a_gpu_in_use(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: seen.append((gpu, threading.current_thread())))
    thread = host_thread(1)
    thread.run(lambda: None)
    thread.record().synchronize("it has begun")
    assert seen == [(1, thread._thread)]


def test_host_memory_is_reached_where_it_is_registered_at_its_own_address(fake):
    rows, other = pinned((4, 2), torch.float32), torch.zeros(4, 2)
    reaches, _ = module._reach(0, [0])
    assert reaches(rows) and reaches(rows[2:]) and not reaches(other)
    fake.able = False
    with pytest.warns(UserWarning, match="cuda:0 cannot read host memory at the host's address"):
        reaches, _ = module._reach(0, [0])
    assert not reaches(rows)


@pytest.mark.parametrize("atomic", [True, False])
def test_torch_enables_peer_access_for_all_that_it_allocates(fake, monkeypatch, atomic):
    """Enabled by hand it does not reach memory of expandable segments, and enabled twice it is an error."""
    copies, fake.able = [], atomic

    def empty(count, device):
        return SimpleNamespace(copy_=lambda other: copies.append((other.device, device)), device=device)

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda gpu, peer: peer != 2)
    monkeypatch.setattr(torch, "empty", empty)
    assert module.enable_peer(0, 1) == (True, atomic)
    assert copies == [("cuda:0", "cuda:1")]
    assert module.enable_peer(0, 2) == (False, False) and len(copies) == 1


def test_peers_that_cannot_be_reached_or_added_to_are_named(fake, monkeypatch):
    answers = {1: (True, True), 2: (True, False), 3: (False, False)}
    monkeypatch.setattr(module, "enable_peer", lambda gpu, peer: answers[peer])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reaches, adds = module._reach(0, [0, 1, 2, 3])
    assert [str(one.message).split(":", 3)[:3] for one in said] == [
        ["cuda", "0 cannot add to cuda", "2"], ["cuda", "0 cannot reach cuda", "3"]
    ]  # fmt: skip
    there = [SimpleNamespace(is_cuda=True, get_device=lambda gpu=gpu: gpu) for gpu in range(4)]
    assert [reaches(tensor) for tensor in there] == [True, True, True, False]
    assert [adds(tensor) for tensor in there] == [True, True, False, False]
