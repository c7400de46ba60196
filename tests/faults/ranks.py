"""kill -9 and SIGSTOP of one of several ranks at a random moment: the others end soon and name it, and the run goes on.

The ranks are started as torchrun starts them, but nobody stops those that are left: on several machines nobody would.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

import hongtu
from tests.faults.outcome import Outcome
from tests.faults.processes import Process, finish, start_command, wait_for_a_moment
from tests.faults.run import same_result

EPOCHS = 60
RUNS = ((3, "comm"), (2, "cache"), (3, "cache"), (2, "comm"), (3, "hybrid"))  # ranks, dependencies
TIMEOUT = 5  # seconds that a rank waits for a stopped one
MOST = {"SIGKILL": 5.0, "SIGSTOP": TIMEOUT + 2.0}  # seconds until all others have ended


@dataclass
class Group:
    """The processes of a run, and where each writes its stderr."""

    processes: list[Process]
    said: list[Path]

    def finish(self) -> list[int | None]:
        return [finish(process) for process in self.processes]


def disturb_ranks(name: Literal["SIGKILL", "SIGSTOP"], tries: int, seed: int = 0, total: int = EPOCHS) -> Outcome:
    """Each try is a run in which one rank gets the signal; then the same command goes on with ``--resume``."""
    outcome = Outcome(
        f"{name} of one of several ranks, at a random moment of `hongtu train`",
        f"the others end within {MOST[name]:g} s in one line that names rank, host and pass; resumed: bit-identical",
    )
    rng, slowest = np.random.default_rng(seed), 0.0
    with tempfile.TemporaryDirectory(prefix="hongtu-faults-") as text:
        folder = Path(text)
        artifact = _prepare(folder / "artifact")
        whole: dict[tuple[int, str], Path] = {}  # runs that were left alone
        for k in range(tries):
            run = RUNS[k % len(RUNS)]
            if run not in whole:
                whole[run] = folder / f"whole-{k}"
                with started(artifact, *run, whole[run], total) as group:
                    assert not any(group.finish()), "the undisturbed run failed"
            lines = (whole[run] / "epochs.jsonl").read_text().splitlines()
            pause = median(json.loads(line)["seconds"] for line in lines)
            directory, victim, found = folder / f"run-{k}", int(rng.integers(run[0])), None
            while found is None:  # a run may have ended before it was disturbed
                shutil.rmtree(directory, ignore_errors=True)
                with started(artifact, *run, directory, total) as group:
                    while group.processes[0].is_alive() and not (directory / "options.json").exists():
                        time.sleep(0.01)  # until then nothing has begun
                    wait_for_a_moment(group.processes[0], directory, total // 2, pause, rng)
                    found = _lose(group, victim, name)
            seconds, loss = found
            slowest = max(slowest, seconds)
            with started(artifact, *run, directory, total, "--resume") as group:
                codes = group.finish()
            if loss is None and (any(codes) or not same_result(whole[run], directory)):
                loss = f"resumed: exit codes {codes}, {[path.read_text() for path in group.said]}, or another result"
            outcome.expect(loss is None, f"try {k} of seed {seed}, {run[0]} ranks, {run[1]}: {loss}")
    outcome.note = f"seed {seed}; the last of the others ended after {slowest:.1f} s at most"
    return outcome


def _lose(group: Group, victim: int, name: str) -> tuple[float, str | None] | None:
    """Send a rank the signal: how long the last of the others lived, and what was wrong with their end, if anything;
    None where the run had ended.
    """
    lost = group.processes[victim]
    assert lost.pid is not None
    host, began = re.escape(socket.gethostname()), time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(lost.pid, getattr(signal, name))
    others = [k for k in range(len(group.processes)) if k != victim]
    for k in others:
        group.processes[k].join(max(began + MOST[name] + 5 - time.monotonic(), 0))
    seconds = time.monotonic() - began
    if all(group.processes[k].exitcode == 0 for k in others):
        return None
    if seconds > MOST[name]:
        return seconds, f"the others ended after {seconds:.1f} s"
    for k in others:
        code, said = group.processes[k].exitcode, group.said[k].read_text()
        named = rf"rank {victim} \({host}, pid {lost.pid}\) .*pass.*"
        if code != 1 or not re.fullmatch(rf"hongtu: {named}\n", said):
            return seconds, f"rank {k}: exit code {code}, stderr {said!r}; expected it to name rank {victim}"
    return seconds, None


@contextmanager
def started(artifact: Path, ranks: int, dependencies: str, run: Path, total: int, *more: str) -> Iterator[Group]:
    """The ranks of a run."""
    words = ["train", str(artifact), "--model", "gat", "--hidden", "8", "--dropout", "0.3", "--epochs", str(total)]
    words += ["--eval-every", "4", "--save-every", "3", "--run", str(run), "--dependencies", dependencies]
    words += ["--rank-timeout", str(TIMEOUT), *more]
    said = [run.parent / f"said-{rank}" for rank in range(ranks)]
    with ranks_of(ranks, lambda rank, environment: start_command(words, said[rank], environment=environment)) as group:
        yield Group(group, said)


@contextmanager
def ranks_of(ranks: int, begin: Callable[[int, dict[str, str]], Process]) -> Iterator[list[Process]]:
    """Processes that ``begin`` makes of their numbers and the environment that torchrun would give them; whatever is
    left is killed."""
    import torch.distributed as dist

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost"}
    shared |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    processes = [begin(rank, shared | {"RANK": str(rank)}) for rank in range(ranks)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()
        del store


def _prepare(path: Path) -> Path:
    """A random graph of several partitions."""
    rng, vertices = np.random.default_rng(0), 1500
    masks = {name: np.arange(vertices) % 3 == k for k, name in enumerate(("train", "val", "test"))}
    return hongtu.preprocess_graph(
        rng.integers(0, vertices, (2, 9000)), vertices, path, features=rng.normal(size=(vertices, 6)),
        labels=rng.integers(0, 3, vertices), masks=masks, partitions=4, chunks=3,
    ).path  # fmt: skip
