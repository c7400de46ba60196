"""A CUDA driver without a GPU, as unkind as real ones: threads have no context until they enter one, strings are padded
with what was in the buffer, registering may be refused, and so may giving up what is registered."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from hongtu.cuda_ext import driver

SUCCESS, NO_CONTEXT, NOT_PERMITTED, UNKNOWN = 0, 201, 800, 999
CONTEXT = 1000  # of GPU 0; GPU k's is k more


class FakeDriver:
    """What hongtu asks of ``cuda.bindings.driver``.

    Attributes:
        registered: bytes by address.
        entered: every context that a thread has entered, in order.
        register, unregister: the status that these end with.
        able: whether GPUs have any ability that is asked for.
    """

    CUresult = SimpleNamespace(CUDA_ERROR_INVALID_CONTEXT=NO_CONTEXT)
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM=91)
    CUdevice_P2PAttribute = SimpleNamespace(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED=3)

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.entered: list[int] = []
        self.register = self.unregister = SUCCESS
        self.able = True
        self._thread = threading.local()

    def status(self, wanted: int = SUCCESS) -> int:
        """What a call ends with that needs a context."""
        return wanted if getattr(self._thread, "context", None) is not None else NO_CONTEXT

    def cuDevicePrimaryCtxRetain(self, gpu):
        return SUCCESS, CONTEXT + gpu

    def cuCtxSetCurrent(self, context):
        self._thread.context = context
        self.entered.append(context)
        return (SUCCESS,)

    def cuMemHostRegister(self, start, nbytes, flags):
        status = self.status(self.register)
        if status == SUCCESS:
            self.registered[start] = nbytes
        return (status,)

    def cuMemHostUnregister(self, start):
        status = self.status(self.unregister)
        if status == SUCCESS:
            del self.registered[start]
        return (status,)

    def cuDeviceGetPCIBusId(self, length, gpu):
        return SUCCESS, f"0000:{0x3B + gpu:02X}:00.0".encode() + b"\0" + b" " * (length - 13)

    def cuDeviceGetAttribute(self, which, gpu):
        return SUCCESS, int(self.able)

    def cuDeviceGetP2PAttribute(self, which, gpu, peer):
        return SUCCESS, int(self.able)


@pytest.fixture
def fake(monkeypatch):
    """A driver in the place of the real one."""
    made = FakeDriver()
    monkeypatch.setattr(driver, "bindings", lambda: made)
    driver._primary_context.cache_clear()
    yield made
    driver._primary_context.cache_clear()
