"""``torchrun ... -m hongtu train``: real processes over gloo give one process's numbers, resume, and stop together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

import hongtu
from hongtu.cli.train_config import TrainConfig
from hongtu.errors import InputError, RankLost
from hongtu.graph.artifact import open_artifact
from hongtu.ranks import launch, words
from tests import problems
from tests.faults.processes import finish, start_command
from tests.faults.ranks import ranks_of

OPTIONS = ("--model", "gat", "--hidden", "8", "--heads", "2", "--dropout", "0.4", "--eval-every", "2")


@pytest.fixture(scope="module")
def artifact():
    return str(problems.prepare(problems.awkward(), 4, 3).path)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def torchrun(*arguments, **options):
    """``hongtu`` in two processes."""
    words = [*TORCHRUN, "-m", "--", "hongtu", *arguments]  # -- for --run, which torchrun takes for --run-path
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **options)


def hongtu_on(ranks, folder, *arguments):
    """What ``hongtu`` ends with on so many ranks, what the first prints, and what all say."""
    out, err = ([folder / f"{name}-{rank}" for rank in range(ranks)] for name in ("out", "err"))

    def begin(rank, environment):
        given = environment if ranks > 1 else {}
        return start_command(list(arguments), err[rank], out[rank], environment=given)

    with ranks_of(ranks, begin) as group:
        codes = [finish(process) for process in group]
    assert not any(path.read_text() for path in out[1:]), "only the first rank prints"
    return codes, out[0].read_text(), "".join(path.read_text() for path in err)


def result_on(ranks, folder, *arguments):
    codes, printed, said = hongtu_on(ranks, folder, *arguments, "--json")
    assert not any(codes), said
    return json.loads(printed)


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "epochs.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_torchrun_trains_resumes_and_stops_together(artifact, tmp_path):
    """Killed at some moment and resumed, a run ends with the bits of one that was not; one process resumes it, too."""
    alone = result_on(1, tmp_path, "train", artifact, *OPTIONS, "--epochs", "12")
    run = ("train", artifact, *OPTIONS, "--save-every", "2", "--keep", "1000000")
    whole = torchrun(*run, "--epochs", "12", "--run", str(tmp_path / "whole"), "--json", stdout=subprocess.PIPE)
    printed = json.loads(whole.communicate(timeout=300)[0])  # the first rank's, and nobody else's
    assert whole.returncode == 0
    assert printed["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert printed["test"] == pytest.approx(alone["test"], rel=1e-6)

    killed = tmp_path / "killed"
    words = *run, "--epochs", "1000000", "--run", str(killed)
    begun = torchrun(*words, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 200
    while not list(killed.glob("snapshot-4.pt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = subprocess.run(["pgrep", "-P", str(begun.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(worker[-1]), signal.SIGKILL)
    _, said = begun.communicate(timeout=100)
    assert begun.returncode != 0
    assert re.search(rf"^hongtu: rank \d \(.*, pid {worker[-1]}\) does not answer.*; this rank .* pass", said, re.M), (
        said
    )
    for path in killed.glob("snapshot-*.pt"):  # forget what came after epoch 4
        if path.name not in ("snapshot-2.pt", "snapshot-4.pt"):
            path.unlink()
    result_on(2, tmp_path, *run, "--epochs", "12", "--run", str(killed), "--resume")
    assert losses(killed) == losses(tmp_path / "whole")

    fetched = result_on(2, tmp_path, *run, "--epochs", "12", "--dependencies", "comm")
    assert fetched["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert fetched["bytes"]["fetch"] == fetched["bytes"]["send"] > 0 == printed["bytes"]["fetch"]

    codes, _, said = hongtu_on(2, tmp_path, "train", artifact, "--device-memory", "1B")
    assert codes == [2, 2] and "the smallest that works is" in said
    assert "torchrun started 2" in hongtu_on(2, tmp_path, "info", artifact)[2]


@pytest.mark.long
def test_a_rank_that_ends_before_it_joins_is_heard(artifact):
    """Another machine's torchrun would not stop this one."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    shared |= {"LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    words = ([sys.executable, "-m", "hongtu", "train", path] for path in (artifact, "missing.toml"))
    waits, wrong = (
        subprocess.Popen(word, env=os.environ | shared | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank, word in enumerate(words)
    )
    _, said = wrong.communicate(timeout=100)
    assert wrong.returncode == 2 and "missing.toml: not a run file" in said
    _, heard = waits.communicate(timeout=20)
    assert waits.returncode == 1
    assert re.search(r"hongtu: rank 1 \(.*\) stopped before the first pass: missing.toml: not a run file", heard)


SLOW = (
    "import sys; from hongtu.ranks import words; from hongtu.cli.main import program; words.BEAT = 4.0; "
    "sys.argv[0] = 'hongtu'; sys.exit(program())"
)


@pytest.mark.long
@pytest.mark.parametrize("when", ["the other has not come", "the other goes on"])
def test_a_rank_that_is_interrupted_as_it_joins_leaves_nobody_waiting(when, artifact):
    """Another machine's torchrun would not stop the other, and torch's own code hears nothing."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    shared |= {"LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def start(rank, *begin):
        words = [sys.executable, *begin, "train", artifact, "--epochs", "1000", "--rank-timeout", "100"]
        return subprocess.Popen(words, env=os.environ | shared | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)

    def come(rank):
        while not store.check([words.BEGUN.format(rank, 0)]):
            time.sleep(0.02)

    stopped = start(1, "-c", SLOW)  # it looks for the other now and then
    come(1)
    other = None
    if when == "the other goes on":
        other = start(0, "-m", "hongtu")
        come(0)
    stopped.terminate()
    _, said = stopped.communicate(timeout=60)
    other = other or start(0, "-m", "hongtu")
    _, heard = other.communicate(timeout=60)
    assert (stopped.returncode, other.returncode) == (143, 1), (said, heard)
    assert said == "hongtu: stopped by SIGTERM\n"
    assert re.search(r"^hongtu: rank 1 \(.*\) stopped before the first pass: stopped by SIGTERM", heard, re.M), heard


def test_the_first_rank_says_for_whom_it_waits(monkeypatch):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setattr(words, "QUIET", 0.1)
    said = []
    with pytest.raises(RankLost, match="rank 1 and rank 2 did not come within 1 seconds"):
        words.begins(0, 3, 1.0, said.append)
    assert said == ["waiting for rank 1 and rank 2 of 3"]


def test_a_rank_has_its_part_of_the_cores(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(launch, "usable_cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it
    try:
        for ranks, threads in ((1, 6), (2, 3), (4, 1), (9, 1)):
            monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
            launch.take_threads()
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_rank_waits_half_an_hour():
    """As the documentation says, and in both places where it is said."""
    assert TrainConfig.rank_timeout == launch.TIMEOUT == 1800


FAILING = """
import sys, time
import torch
import hongtu
from hongtu.ranks.launch import joined

class Fails(torch.nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 100 and ranks.rank == 1:
            {what}
        return x * 1

with joined(timeout=5) as ranks:
    layers = [hongtu.nn.GCNConv(6, 4), Fails(), {norm}hongtu.nn.GCNConv(4, 3)]
    hongtu.Trainer(sys.argv[1], layers, dependencies="comm").fit(1000000)
"""


@pytest.mark.long(sample=0)
@pytest.mark.parametrize(
    ("what", "norm", "said", "layer"),
    [("raise MemoryError('no more')", "", r"rank 1 \(.*, pid \d+\) stopped in pass 'f\w+ \d': no more", r"\d"),
     ("time.sleep(100)", "", r"rank 1 \(.+\) does not answer, or its network", 1),
     ("time.sleep(100)", "torch.nn.BatchNorm1d(4), ", r"rank 1 \(.+\) does not answer, or its network", 0)],
    ids=["stops", "hangs", "hangs-in-statistics"],
)  # fmt: skip
def test_a_rank_that_is_lost_is_named_by_the_others(artifact, tmp_path, what, norm, said, layer):
    (tmp_path / "script.py").write_text(FAILING.format(what=what, norm=norm))
    done = subprocess.run([*TORCHRUN, tmp_path / "script.py", artifact], capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert re.search(rf"RankLost: {said}.*; this rank waited for it in pass 'f\w+ {layer}'", done.stderr), done.stderr


def test_a_trainer_without_a_process_group_is_alone(artifact):
    with pytest.raises(hongtu.errors.InputError, match="no process group"):
        hongtu.Ranks()
    layers = [hongtu.nn.GCNConv(6, 3)]
    assert hongtu.Trainer(open_artifact(artifact), layers).ranks.size == 1


def test_a_process_that_has_destroyed_its_group_is_told():
    """Not that another group was not initialised, and not by exchanging in the default one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        whole, own = hongtu.Ranks(), dist.new_group([0], backend="gloo")
        part = hongtu.Ranks(own)
        assert whole.gather({"a": 1}) == part.gather({"a": 1}) == [{"a": 1}]
        dist.destroy_process_group(own)
        del own
        assert whole.told(2) == 2
        with pytest.raises(InputError, match="this process has destroyed its process group"):
            part.gather(1)
    finally:
        dist.destroy_process_group()
    with pytest.raises(InputError, match="this process has destroyed its process group"):
        whole.told(1)


HELD = """
import atexit, os, sys, torch.distributed as dist, hongtu
from pathlib import Path

def gloo():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]

atexit.register(lambda: gloo() and os._exit(7))  # the last to be called
dist.init_process_group("gloo")
held = [hongtu.Ranks(), hongtu.Ranks(dist.new_group([0, 1], backend="gloo"))]
assert [ranks.gather(3) for ranks in held] == [[3, 3], [3, 3]] and gloo()
import torch.distributed.nn.functional  # as torch does, sooner or later
if sys.argv[1] == "destroyed":
    dist.destroy_process_group()
    assert not gloo()
"""


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("how", ["destroyed", "left"])
def test_the_threads_of_a_group_end_before_python_does(how, tmp_path):
    """Else one that lets go of a tensor ends the process with SIGABRT."""
    (tmp_path / "held.py").write_text(HELD)
    done = subprocess.run([*TORCHRUN, str(tmp_path / "held.py"), how], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_script_that_joins_nobody_is_refused(artifact, monkeypatch):
    """Each process would train a model of its own."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="torchrun started 2 processes, and this one has not joined the others"):
        hongtu.Trainer(artifact, [hongtu.nn.GCNConv(6, 3)])
