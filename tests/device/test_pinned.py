"""Host memory for GPUs, without one: its size and place, how long it is registered, and what is said on refusals."""

from __future__ import annotations

import gc
import mmap
import threading
import warnings

import pytest
import torch

from hongtu.device import pinned as module
from hongtu.device.pinned import pinned, processors_near
from tests.fake_driver import CONTEXT, NOT_PERMITTED, UNKNOWN, fake

__all__ = ["fake"]


@pytest.mark.parametrize("near", [(), ("0", "0"), ("0", "0-1")], ids=["one", "same", "two"])
def test_pages_of_its_own(near, fake):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = pinned((1000, 3), torch.float64, near)
    assert rows.shape == (1000, 3) and rows.dtype == torch.float64
    assert rows.data_ptr() % mmap.PAGESIZE == 0 and fake.registered == {rows.data_ptr(): 24_000}
    rows.fill_(2)
    assert float(rows.sum()) == 6000
    assert pinned((0, 3), torch.float32).shape == (0, 3) and len(fake.registered) == 1


def test_a_refusal_is_a_warning_and_the_memory_works(fake):
    fake.register = NOT_PERMITTED
    with pytest.warns(UserWarning, match="refused to pin 12000 bytes.*ulimit -l unlimited"):
        rows = pinned((1000, 3), torch.float32)
    assert float(rows.fill_(1).sum()) == 3000
    assert rows not in module.REGISTERED and not fake.registered


def test_it_is_registered_until_its_last_view_is_dropped(fake):
    rows = pinned((1000, 3), torch.float32)
    view = rows[500:, :1]
    del rows
    gc.collect()
    assert view in module.REGISTERED and len(fake.registered) == 1
    del view
    gc.collect()
    assert not fake.registered


def test_threads_without_a_context_enter_that_of_a_gpu_in_use(fake):
    rows = [pinned((10,), torch.float32, gpu=1)]
    assert fake.entered == [CONTEXT + 1], "a context on another GPU takes its memory"
    thread = threading.Thread(target=rows.clear)  # and so its finalizer runs there
    thread.start()
    thread.join()
    assert fake.entered == [CONTEXT + 1] * 2 and not fake.registered


def test_what_the_driver_does_not_give_up_stays_mapped(fake):
    rows = pinned((10,), torch.float32)
    address = rows.data_ptr()
    fake.unregister = UNKNOWN
    with pytest.warns(UserWarning, match="failed to unpin 40 bytes of host memory: 999"):
        del rows
        gc.collect()
    kept = module.REGISTERED._stuck.pop()
    assert torch.frombuffer(kept, dtype=torch.float32).data_ptr() == address


def test_a_bus_id_ends_where_it_ends(fake, monkeypatch):
    """The buffer behind it is not zeroed: a path with a NUL in it is a ValueError."""
    seen = []
    monkeypatch.setattr(module.Path, "read_text", lambda path: seen.append(str(path)) or "0-3\n")
    assert processors_near(1) == "0-3\n"
    assert seen == ["/sys/bus/pci/devices/0000:3c:00.0/local_cpulist"]


@pytest.mark.parametrize("refusal", ["status", "missing"])
def test_where_the_driver_does_not_say_all_processors_are_near(fake, refusal, monkeypatch):
    def ask(length, gpu):
        if refusal == "missing":
            raise RuntimeError('Function "cuDeviceGetPCIBusId" not found')
        return UNKNOWN, None

    monkeypatch.setattr(fake, "cuDeviceGetPCIBusId", ask, raising=False)
    assert processors_near(0).startswith("0-")
