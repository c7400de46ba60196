"""What the CUDA driver is asked, without one."""

import threading

import pytest

from hongtu.cuda_ext import driver
from tests.fake_driver import CONTEXT, NO_CONTEXT, SUCCESS, fake

__all__ = ["fake"]


def test_the_driver_is_initialized_before_it_is_asked(monkeypatch):
    bindings = pytest.importorskip("cuda.bindings.driver")
    seen = []
    monkeypatch.setattr(bindings, "cuInit", lambda flags: seen.append(flags) or (0,))
    driver.bindings.cache_clear()
    try:
        assert driver.bindings() is driver.bindings() is bindings and seen == [0]
    finally:
        driver.bindings.cache_clear()


def test_every_thread_enters_the_context_once(fake):
    found = []

    def ask():
        found.extend(driver.answer(2, lambda: (fake.status(), "answer")) for _ in range(2))

    for thread in (threading.Thread(target=ask), threading.Thread(target=ask)):
        thread.start()
        thread.join()
    assert found == [(SUCCESS, "answer")] * 4 and fake.entered == [CONTEXT + 2] * 2


def test_a_gpu_without_a_context_is_a_status(fake, monkeypatch):
    monkeypatch.setattr(fake, "cuDevicePrimaryCtxRetain", lambda gpu: (2, None), raising=False)
    assert driver.answer(0, lambda: (fake.status(),)) == (NO_CONTEXT,)
    assert fake.entered == []


def test_what_the_driver_does_not_say_is_no(fake, monkeypatch):
    assert driver.attribute(0, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM") and driver.adds_at(0, 1)
    monkeypatch.setattr(fake, "cuDeviceGetAttribute", lambda which, gpu: (1, None), raising=False)
    monkeypatch.setattr(fake, "cuDeviceGetP2PAttribute", lambda which, gpu, peer: (1, None), raising=False)
    assert not driver.attribute(0, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM") and not driver.adds_at(0, 1)
