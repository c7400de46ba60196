"""Freed blocks are used again: how malloc is set, and the restart that one setting needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hongtu import host
from hongtu.cli.main import main, program

GROWTH = """
import ctypes
from hongtu.host import reuse_freed_memory
reuse_freed_memory()
libc = ctypes.CDLL(None)
def aligned(size):
    block = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(block), 64, size) == 0
    return block
libc.free.argtypes = [ctypes.c_void_p]
libc.sbrk.restype = ctypes.c_void_p
before = libc.sbrk(0)
live = [aligned(1 << 20) for _ in range(3)]
for _ in range(30):
    libc.free(live.pop(0))
    live.append(aligned(1 << 20))
print((libc.sbrk(0) - before) >> 20)
"""


@pytest.fixture
def glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_glibc", lambda: True)


@pytest.mark.parametrize(
    "said,expected",
    [
        (None, "glibc.malloc.tcache_count=0"),
        ("glibc.malloc.hugetlb=1", "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0"),
        ("glibc.malloc.tcache_count=3", "glibc.malloc.tcache_count=3"),
    ],
)
def test_what_the_environment_says_itself_stays(glibc: None, said: str | None, expected: str) -> None:
    before = {"A": "b"} | ({} if said is None else {host.TUNABLES: said})
    assert host.without_caches(before) == {"A": "b", host.TUNABLES: expected}
    assert host.without_caches(host.without_caches(before)) == host.without_caches(before)


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_glibc", lambda: False)
    assert host.without_caches({"A": "b"}) == {"A": "b"}


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_commands_that_train_restart_once_and_no_others_do(
    glibc: None, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    calls: list[tuple[str, list[str]]] = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        calls.append((path, arguments))
        for name in (host.TUNABLES, host.RESTARTED):
            monkeypatch.setenv(name, environment[name])

    monkeypatch.delenv(host.TUNABLES, raising=False)
    monkeypatch.setattr(host.os, "execve", execve)
    for given in ("info", command, command):
        monkeypatch.setattr(sys, "argv", ["hongtu", given, "absent"])
        assert program() == 2
        assert len(calls) == (given == command)
    assert calls == [(sys.executable, sys.orig_argv)] and host.RESTARTED not in os.environ
    monkeypatch.delenv(host.TUNABLES)
    monkeypatch.setenv(host.RESTARTED, "1")  # a wrapper has dropped the setting
    assert program() == 2 and main([command, "absent"]) == 2 and len(calls) == 1
    assert host.RESTARTED not in os.environ


def test_a_program_read_from_the_input_goes_on(glibc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(host.TUNABLES, raising=False)
    monkeypatch.setattr(host.os, "execve", lambda *_: pytest.fail("the rest of the input is gone"))
    for given in ("-", ""):
        monkeypatch.setattr(sys, "argv", [given, "doctor"])
        host.restart_without_caches()


def test_a_restart_that_fails_is_done_without(glibc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(host.TUNABLES, raising=False)
    monkeypatch.setattr(sys, "executable", "/absent/python")
    host.restart_without_caches()
    monkeypatch.setattr(sys, "executable", "")
    host.restart_without_caches()


@pytest.mark.skipif(not host._glibc(), reason="this C library is not glibc")
def test_a_block_that_was_freed_is_used_for_the_next_as_large() -> None:
    environment = host.without_caches({k: v for k, v in os.environ.items() if k != host.TUNABLES})
    done = subprocess.run([sys.executable, "-c", GROWTH], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 4  # MiB, of which 3 are in use
