"""What torchrun or a benchmark has started ends when that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from hongtu.cli.main import main
from hongtu.ranks import parent

CHILDREN = {
    "waits": "time.sleep(100)",
    "hears no SIGTERM": "parent.GRACE = 0.3; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)",
    "is busy": "[None for _ in iter(int, 1)]",
    "lost it before": "time.sleep(100)",
}
CHILD = "import os, signal, sys, time; from hongtu.ranks import parent; {}parent.end_with_torchrun(); print(0); {}"
STARTS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(child.pid, flush=True)
time.sleep(100)
"""
BENCH = """
import os, time
from multiprocessing import get_context
from hongtu.bench import process
process.get_context = lambda _: get_context("KIND")
if __name__ == "__main__":
    held = process.Process()
    print(held.submit(os.getpid).result(), flush=True)
    time.sleep(100)
"""


def is_there(pid):
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ends_with(words, environment, ready=None):
    """Whether a process's child is gone soon after it was killed."""
    above = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
    child = int(above.stdout.readline())
    try:
        if ready is not None:
            above.stdout.readline()
            time.sleep(0.3)
        assert is_there(child)
        above.kill()
        above.wait()
        until = time.monotonic() + 20
        while is_there(child) and time.monotonic() < until:
            time.sleep(0.05)
        return not is_there(child)
    finally:
        above.kill()
        if is_there(child):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "MASTER_PORT"])
def test_what_torchrun_does_not_set_is_refused(name, monkeypatch, capsys):
    for key, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv(name, "abc")
    assert main(["train", "artifact"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"hongtu: {name} is 'abc', expected a number, which torchrun sets") and err.count("\n") == 1


@pytest.mark.parametrize("name", CHILDREN)
def test_a_rank_ends_with_its_torchrun(name):
    first = "os.kill(os.getppid(), 9); time.sleep(0.2); " if name == "lost it before" else ""
    child = CHILD.format(first, CHILDREN[name]).replace("print(0)", "print(0, flush=True)")
    environment = {parent.TORCHRUN: "none", "PYTHONUNBUFFERED": "1"}
    assert ends_with([sys.executable, "-c", STARTS, child], environment, None if first else "ready")


def test_a_process_that_torchrun_has_not_started_goes_on(monkeypatch):
    monkeypatch.delenv(parent.TORCHRUN, raising=False)
    parent.end_with_torchrun()
    assert parent.watched_parent() is None


@pytest.mark.parametrize(
    ("init", "found"), [(b"/sbin/init\0", 0), (b"/usr/bin/python3\0/bin/torchrun\0", 1), (None, 1)]
)
def test_a_torchrun_may_be_a_containers_init(init, found, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(parent, "INIT", tmp_path / "cmdline")
    if init is not None:
        (tmp_path / "cmdline").write_bytes(init)
    assert parent._parent() == found


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_a_process_of_a_benchmark_ends_with_it(kind, tmp_path):
    (tmp_path / "bench.py").write_text(BENCH.replace("KIND", kind))
    assert ends_with([sys.executable, str(tmp_path / "bench.py")], {})


@pytest.mark.parametrize(("changed", "said"), [
    ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE 2, expected ranks below it"),
    ({"WORLD_SIZE": "0"}, "RANK is 0 and WORLD_SIZE 0, expected"),
    ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set, expected rank 0's host"),
    ({"RANK": "7", "MASTER_ADDR": ""}, "RANK is 7 and WORLD_SIZE 2"),
], ids=range(4))  # fmt: skip
def test_ranks_that_no_torchrun_starts_are_refused_at_once(changed, said, monkeypatch, capsys):
    given = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"} | changed
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    assert main(["train", "artifact"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"hongtu: {said}") and err.count("\n") == 1
