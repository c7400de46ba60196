"""One process writes into a run directory at a time; whoever was killed holds nothing any more."""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.files import LOCK
from hongtu.train.run_directory import RunDirectory
from tests import problems
from tests.faults.fuzz import time_limit
from tests.faults.run import make_trainer, prepare

HOLDS = """
import fcntl, json, os, sys, time
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.write(lock, sys.argv[2].replace("PID", str(os.getpid())).encode())
print("held", flush=True)
time.sleep(float(sys.argv[3]))
"""


@functools.cache
def artifact():
    return prepare(problems.new_path())


@contextmanager
def another_run(directory, said=None, seconds=60.0):
    """A process that writes into a directory."""
    host = json.dumps(socket.gethostname())
    said = f'{{"host": {host}, "pid": PID, "parent": null}}' if said is None else said
    words = [sys.executable, "-c", HOLDS, str(directory / LOCK), said, str(seconds)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def command(directory, *more):
    return main(["train", str(artifact().path), "--hidden", "4", "--epochs", "2", "--run", str(directory), *more])


USES = {
    "fit": lambda run: make_trainer(artifact()).fit(1, run_dir=run),
    "resume": lambda run: make_trainer(artifact()).resume(run),
    "the command": lambda run: command(run),
    "the command resumes": lambda run: command(run, "--resume"),
}


@pytest.mark.parametrize("use", USES)
def test_a_second_run_is_refused_at_once(use, tmp_path, capsys):
    """And goes on as soon as the first is killed, however it is."""
    with another_run(tmp_path) as other:
        said = f"{tmp_path}: another run is writing here (pid {other.pid} on {socket.gethostname()}); wait for its end"
        if use.startswith("the command"):
            assert USES[use](tmp_path) == 2
            out, err = capsys.readouterr()
            assert said in err and err.count("\n") == 1 and out == ""
        else:
            with pytest.raises(InputError) as refused:
                USES[use](tmp_path)
            assert said in str(refused.value)
        assert os.listdir(tmp_path) == [LOCK]
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert USES[use](tmp_path) != 2
    assert LOCK not in os.listdir(tmp_path)


@pytest.mark.parametrize("said", ["", "[]", "{", '{"host": 1}', "[" * 3000, '"\\u001b[2J"'])
def test_a_holder_that_says_nothing_holds_all_the_same(said, tmp_path):
    with another_run(tmp_path, said), pytest.raises(InputError, match="another run is writing here"):
        RunDirectory(tmp_path).held().__enter__()


def test_a_holder_leads_to_no_file_of_its_own(tmp_path):
    """Whose reading would never end."""
    os.mkfifo(tmp_path / "stat")
    said = json.dumps({"host": socket.gethostname(), "pid": os.path.relpath(tmp_path, "/proc"), "parent": 1})
    with another_run(tmp_path, said), time_limit(30), pytest.raises(InputError, match="another run is writing here"):
        RunDirectory(tmp_path).held().__enter__()


def test_a_holder_whose_torchrun_was_killed_is_waited_for(tmp_path):
    """It ends by itself soon."""
    said = json.dumps({"host": socket.gethostname(), "pid": 0, "parent": 1})
    with another_run(tmp_path, said.replace(": 0", ": PID"), 1.0), RunDirectory(tmp_path).held():
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    host = json.dumps({"host": "elsewhere", "pid": 1, "parent": 2})
    with another_run(tmp_path, host), pytest.raises(InputError, match="pid 1 on elsewhere"):
        RunDirectory(tmp_path).held().__enter__()


def test_a_process_may_ask_again(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with run.held(make=False):
        assert not run.path.exists()
    with run.held(), RunDirectory(tmp_path / "other" / ".." / "run").held(), run.held():
        lock = os.open(run.path / LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)
    assert not run.path.exists()  # nothing was written
    with pytest.raises(ZeroDivisionError), run.held():
        (run.path / "kept").touch()
        raise ZeroDivisionError
    assert os.listdir(run.path) == ["kept"]


def test_where_nothing_can_be_locked_there_is_a_note(tmp_path, monkeypatch, capsys):
    def refuses(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    make_trainer(artifact()).fit(1, run_dir=tmp_path)
    assert "cannot be locked here (No locks available); start no other run" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["epochs.jsonl"]
