"""How OpenMP's threads wait: the machine is looked at, a team is held while it is crowded, and goes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time

import pytest

from hongtu import compiled, parallel, threads
from hongtu.threads import Crowd, SharedCores


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({}, False),
        (threads.OUR_POLICY, False),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, True),
        ({"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "30000"}, True),
        ({"GOMP_SPINCOUNT": "7"}, True),
    ],
)
def test_what_the_user_has_said_is_known(monkeypatch, environment, chosen):
    for name in threads.OUR_POLICY:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert threads.chosen_by_user() is chosen


@pytest.mark.parametrize(
    ("environment", "after"),
    [
        ({}, threads.OUR_POLICY),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"}),
    ],
)
def test_the_policy_fills_what_is_free(monkeypatch, environment, after):
    for name in threads.OUR_POLICY:
        monkeypatch.setenv(name, "")  # undone afterwards
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    threads.set_wait_policy()
    assert {name: os.environ[name] for name in threads.OUR_POLICY if name in os.environ} == after


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """``machine(seconds of cpu0, of cpu1, own seconds)``: what the system tells from now on."""
    told = {"now": 0.0, "own": 0.0}
    ticks = os.sysconf("SC_CLK_TCK")

    def tell(first, second, own, *, after=1.0):
        lines = [f"cpu{k} {int(s * ticks)} 0 0 77 7 0 0 0 0 0" for k, s in enumerate((first, second, 500))]
        (tmp_path / "stat").write_text("\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *lines, "intr 1 2 3"]))
        told["own"], told["now"] = own, told["now"] + after

    monkeypatch.setattr(threads, "STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "times", lambda: (told["own"], 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: told["now"])
    monkeypatch.setattr(threads, "num_threads", lambda: 2)
    return tell


def test_others_are_what_the_processors_did_beside_us(machine, monkeypatch):
    machine(10, 10, 5)
    crowd = Crowd()
    machine(11, 10.5, 6.5)
    assert crowd.others() == pytest.approx(0)
    machine(13, 12.5, 8, after=2)
    assert crowd.others() == pytest.approx(1.25)
    monkeypatch.setattr(threads, "num_threads", lambda: 1)
    machine(14, 12.5, 8)
    assert crowd.others() == pytest.approx(0), "one of two cores is free for them"


def test_cores_follow_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(threads, "CGROUP", tmp_path)
    monkeypatch.setattr(threads, "OWN_CGROUP", tmp_path / "own")
    assert threads.usable_cores() == 8, "nobody tells"
    group = tmp_path / "outer" / "inner"
    group.mkdir(parents=True)
    (tmp_path / "own").write_text("1:cpu:/elsewhere\n0::/outer/inner\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert threads.usable_cores() == 8
    (tmp_path / "outer" / "cpu.max").write_text("250000 100000\n")
    assert threads.usable_cores() == 3
    (group / "cpu.max").write_text("50000 100000\n")
    assert threads.usable_cores() == 1


def test_threads_follow_the_quota(monkeypatch):
    import torch

    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 1)
    try:
        threads.follow_quota()
        assert torch.get_num_threads() == threads.num_threads() == 1
        monkeypatch.setattr(threads, "usable_cores", lambda: 64)
        threads.follow_quota()
        assert torch.get_num_threads() == 1, "nothing becomes more"
    finally:
        torch.set_num_threads(before)


def test_a_library_that_is_being_imported_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_without_torch", threads._without_torch.__wrapped__)
    threads.follow_quota()
    assert threads.num_threads() == threads.usable_cores()


CROWDED_AND_CALM = """
import os, threading, time, torch, hongtu
from hongtu import compiled, parallel, threads
threads.PERIOD, threads.LINGER, threads.LIBRARIES_EVERY = 0.01, 0.1, 10**9
crowd = [0.0]
threads.Crowd.others = lambda self: crowd[0]
count = lambda: len(os.listdir("/proc/self/task"))
ready = lambda wanted: any(time.sleep(0.01) or wanted() for _ in range(3000))
torch.ones(1 << 20).sin()  # torch's own team
cores, libraries = len(os.sched_getaffinity(0)), len(threads.openmp())
assert libraries
before = count()
with threads.shared_cores, threads.shared_cores:
    assert ready(lambda: count() == before + 1), "the watch alone"
    for _ in range(3):
        crowd[0] = 1.0
        assert ready(lambda: count() == before + 2 + cores * libraries), (count(), before)
        crowd[0] = 0.2  # neither
        time.sleep(0.1)
        assert count() == before + 2 + cores * libraries
        crowd[0] = 0.0
        assert ready(lambda: count() == before + 1), (count(), before)
    crowd[0] = 1.0
assert ready(lambda: count() == before), "all gone"
with threads.shared_cores:
    assert ready(lambda: count() > before + 2), "and there again"
print("done")
"""


def test_a_team_is_held_while_the_machine_is_crowded(tmp_path):
    """With torch imported first, as people do."""
    environment = {name: value for name, value in os.environ.items() if name not in threads.OUR_POLICY}
    run = subprocess.run(
        [sys.executable, "-c", CROWDED_AND_CALM], env=environment, capture_output=True, text=True, timeout=300
    )
    if "assert libraries" in run.stderr:
        pytest.skip("torch has no GNU OpenMP here")
    assert run.stdout == "done\n", run.stderr


LAST = """
import atexit, threading
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
import hongtu
from hongtu import compiled, parallel, threads
threads.LINGER = 100.0
with threads.shared_cores:
    pass
assert threads.shared_cores._watch.is_alive()
"""


def test_the_watch_ends_before_python():
    environment = {name: value for name, value in os.environ.items() if name not in threads.OUR_POLICY}
    run = subprocess.run([sys.executable, "-c", LAST], env=environment, capture_output=True, text=True, timeout=60)
    assert run.stdout == "['MainThread']\n", run.stderr


def test_nobody_watches_where_the_user_has_chosen(monkeypatch):
    monkeypatch.setattr(threads, "chosen_by_user", lambda: True)
    before = threading.active_count()
    with SharedCores():
        assert threading.active_count() == before


def enter_shared_cores():
    cores = SharedCores()

    def enter():
        with cores:
            pass

    return enter


def compile_a_kernel():
    kernels = iter([compiled.Compiled(lambda x: x + 1, None, None, {"cache": False}) for _ in range(3)])
    return lambda: next(kernels).dispatcher


def work_in_parts():
    crew, helpers = parallel._Crew(), itertools.count(1)

    def work():
        job = parallel._Job(lambda part: None, 4, ())
        crew.help(job, next(helpers))
        job.work()

    return work


@pytest.mark.parametrize("make", [enter_shared_cores, compile_a_kernel, work_in_parts])
def test_an_interrupt_at_any_line_locks_no_thread_out(make, monkeypatch):
    monkeypatch.setattr(threads, "chosen_by_user", lambda: True)
    files = [module.__file__ for module in (threads, compiled, parallel)]
    make()()  # imports what is imported once
    for line in itertools.count(1):
        work, left = make(), line

        def trace(frame, event, arg):
            nonlocal left
            if frame.f_code.co_filename not in files:
                return None
            left -= event == "line"
            if left == 0:
                raise KeyboardInterrupt
            return trace

        before, stopped = sys.gettrace(), False
        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            stopped = True
        finally:
            sys.settrace(before)
        for again in (work, work):
            other = threading.Thread(target=again, daemon=True)
            other.start()
            other.join(20)
            assert not other.is_alive(), f"after an interrupt at line event {line}"
        if not stopped:
            return


KEPT = """
import sys, warnings
warnings.simplefilter("ignore")
said, by = sys.argv[1:3]
if by != "torch last":
    import torch
import hongtu, numpy as np
if by == "torch":
    torch.set_num_threads(int(said))
rng = np.random.default_rng(0)
artifact = hongtu.preprocess_graph(
    rng.integers(0, 300, (2, 3000)), 300, "artifact", features=rng.normal(size=(300, 8)).astype("f"),
    labels=np.arange(300) % 3, masks={"train": np.arange(300) < 100}, force=True,
)
import torch
hongtu.Trainer(artifact, [hongtu.nn.GATConv(8, 3)]).fit(1)
print(torch.get_num_threads(), hongtu.threads.num_threads())
"""


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("by", ["environment", "torch", "torch last"])
def test_the_number_of_threads_that_was_said_stays(by, tmp_path):
    there = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}  # MKL has one, too
    there |= {"OMP_NUM_THREADS": "1"} if by in ("environment", "torch last") else {}
    command = [sys.executable, "-c", KEPT, "1", by]
    done = subprocess.run(command, env=there, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1"]


FORKED = """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")
import hongtu, numpy as np
rng = np.random.default_rng(0)
artifact = hongtu.preprocess_graph(
    rng.integers(0, 300, (2, 3000)), 300, "artifact", features=rng.normal(size=(300, 8)).astype("f"),
    labels=np.arange(300) % 3, masks={"train": np.arange(300) < 100}, force=True,
)
trainer = hongtu.Trainer(artifact, [hongtu.nn.GCNConv(8, 3)])
trainer.fit(1)

def child(pipe):
    for work in (lambda: trainer.fit(1), trainer.predict, lambda: hongtu.Trainer(artifact, [hongtu.nn.GCNConv(8, 3)])):
        try:
            work()
        except hongtu.errors.InputError as error:
            pipe.send(str(error))

here, there = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=child, args=(there,))
process.start()
found = [here.recv() if here.poll(60) else "hangs" for _ in range(3)]
process.kill()
assert all("get_context('spawn')" in message for message in found), found
trainer.fit(1)
"""


@pytest.mark.long
def test_a_fork_of_a_process_that_trained_is_refused(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORKED], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
