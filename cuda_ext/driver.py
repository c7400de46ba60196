"""What the CUDA driver is asked, by way of cuda-bindings: contexts, and what a GPU and a link between two can do.

A thread that has not used a GPU has no context, and the driver refuses it; ``answer`` asks again in the GPU's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any


@cache
def bindings() -> ModuleType:
    """The driver's functions, which it refuses until it is initialized; torch does that late.

    Raises:
        ImportError: cuda-bindings is missing.
        RuntimeError: there is no driver.
    """
    from cuda.bindings import driver

    driver.cuInit(0)
    return driver


def answer(gpu: int, ask: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """What the driver answers, its status first, in a context: that of a GPU where the thread has none."""
    given = ask()
    if given[0] == bindings().CUresult.CUDA_ERROR_INVALID_CONTEXT and enter(gpu):
        given = ask()
    return given


def enter(gpu: int) -> bool:
    """Make the context of a GPU that torch uses, the primary one, this thread's: whether the driver did."""
    driver = bindings()
    status, context = _primary_context(gpu)
    return int(status) == 0 and int(driver.cuCtxSetCurrent(context)[0]) == 0


@cache
def _primary_context(gpu: int) -> tuple[Any, Any]:
    """Status and handle; held for the life of the process, as torch does."""
    driver = bindings()
    status, context = driver.cuDevicePrimaryCtxRetain(gpu)
    return status, context


def attribute(gpu: int, name: str) -> bool:
    """Whether a GPU has an ability, by what follows ``CU_DEVICE_ATTRIBUTE_``; False where the driver does not say."""
    driver = bindings()
    key = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    status, value = driver.cuDeviceGetAttribute(key, gpu)
    return int(status) == 0 and bool(value)


def adds_at(gpu: int, peer: int) -> bool:
    """Whether a GPU's atomics work in a peer's memory; False where the driver does not say."""
    driver = bindings()
    key = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    status, value = driver.cuDeviceGetP2PAttribute(key, gpu, peer)
    return int(status) == 0 and bool(value)


def bus_id(gpu: int) -> str:
    """Where a GPU is on the PCI bus, "0000:3b:00.0", or "" where the driver does not say."""
    try:
        status, buffer = bindings().cuDeviceGetPCIBusId(32, gpu)
    except RuntimeError:  # a driver without the function
        return ""
    return buffer.partition(b"\0")[0].decode().lower() if int(status) == 0 else ""  # not zeroed behind the end


def call_on_host(stream: int, function: int, given: int) -> int:
    """Have a CUDA stream call a C function with a pointer, when what it was given before is done: the driver's status.

    Straight from the driver's library: what cuda-bindings gives it takes Python's lock for every call.
    """
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    return int(launch(*map(ctypes.c_void_p, (stream, function, given))))
