"""As ``tests.faults.signals``, on two ranks: one of them gets one or two signals, or each gets one.

Both processes stay from run to run, for starting one takes longer than a run.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import INTERRUPTS
from tests.faults.outcome import Outcome
from tests.faults.processes import start
from tests.faults.run import prepare
from tests.faults.signals import GAPS, Line, Sent, Training, heard, lines_of, run

SECONDS = 120.0  # that a rank may take for a run, on a crowded machine


class RankTraining(Training):
    """`hongtu train` on two ranks, with evaluations and the best snapshot; no regular snapshot before the last."""

    name = "`hongtu train` on two ranks"

    def __init__(self, folder: Path, dependencies: str) -> None:
        self.artifact, self.dependencies = prepare(folder / "artifact", features=np.ones((60, 4))).path, dependencies

    def command(self, place: Path) -> list[str]:
        return [*super().command(place), "--dependencies", self.dependencies, "--rank-timeout", "60"]


@dataclass(frozen=True)
class Drawn:
    """Where a rank is to be stopped, and how.

    Attributes:
        line, times: the index of a line among those of the rank's own run, and how often it has run then.
        numbers: of the signals.
        gap: seconds between two.
        to: the process that gets the second.
    """

    line: int
    times: int
    numbers: tuple[int, ...]
    gap: float
    to: int


@dataclass(frozen=True)
class Told:
    """What a rank says of a run: as ``run`` and ``Sent``."""

    code: int
    said: str
    at: int | None = None
    heard: bool = True


class Rank:
    """One of the processes."""

    def __init__(self) -> None:
        self._connection, there = Pipe()
        self._process = start(_serve, there)
        there.close()
        self.pid: int = self._process.pid  # type: ignore[assignment]

    def begin(self, *request: Any) -> None:
        self._connection.send(request)

    def end(self) -> Any:
        """The answer; None where there is none."""
        with suppress(EOFError, OSError):
            return self._connection.recv() if self._connection.poll(SECONDS) else None
        return None

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(connection: Connection) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    from hongtu.ranks import words as pulses

    lines: list[Line] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    with heard(), suppress(EOFError):
        while True:
            words, environment, place, drawn = connection.recv()
            os.environ.update(environment)
            pulses._own, c10d._world.group_count = None, 0  # each run is a process's first
            if drawn == "count":
                counts = lines_of(partial(run, words))
                lines = list(counts)
                connection.send([(f"{Path(code.co_filename).name}:{n}", counts[code, n]) for code, n in lines])
                continue
            sent = None
            if drawn is not None:
                look = partial(Training.look, None, place)  # type: ignore[arg-type]
                sent = Sent(lines[drawn.line], drawn.times, list(drawn.numbers), drawn.gap, look, drawn.to)
            code, said = run(words, sent)
            if dist.is_initialized():  # a process's end closes what the other may be waiting at
                dist.destroy_process_group()
            connection.send(Told(code, said) if sent is None else Told(code, said, sent.at, sent.heard))


class Pair:
    """The two ranks of one run after another, made anew where one does not answer.

    Attributes:
        lines: of each rank, as text, with how often it runs.
    """

    def __init__(self, count: Callable[[Pair], list[Any]]) -> None:
        self._count, self.ranks = count, list[Rank]()
        self.lines: list[list[tuple[str, int]]] = []

    def run(self, words: list[str], place: Path, drawn: tuple[Any, Any] = (None, None)) -> list[Any]:
        """What each says; None for one that does not answer."""
        import torch.distributed as dist

        if not self.ranks:
            self.ranks = [Rank(), Rank()]
            self.lines = self._count(self)
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
        shared |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        for k, rank in enumerate(self.ranks):
            rank.begin(words, shared | {"RANK": str(k)}, place, drawn[k])
        found = [rank.end() for rank in self.ranks]
        if None in found:
            self.close()
        del store
        return found

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.ranks = []


def interrupt_ranks(dependencies: str, tries: int, seed: int = 0) -> Outcome:
    """So many runs; every third gives the second signal to the other rank."""
    outcome = Outcome(
        f"one or two of SIGINT, SIGTERM and SIGHUP, 0 to 200 ms apart, at any line of one of two ranks, or of both "
        f"({dependencies})",
        "exit code 128 and the first signal's number, or 1 on a rank without one, one line; at most the epoch that ran "
        "is lost; resumed: bit-identical",
    )
    rng, late, stopped = np.random.default_rng(seed), 0, set[str]()
    with tempfile.TemporaryDirectory(prefix="hongtu-faults-") as name:
        folder = Path(name)
        command, whole = RankTraining(folder, dependencies), folder / "whole"

        def count(pair: Pair) -> list[Any]:
            first = Path(tempfile.mkdtemp(dir=folder))
            pair.run(command.command(first / "once"), first)  # what is done once a process
            return pair.run(command.command(first / "again"), first, ("count", "count"))

        pair = Pair(count)
        try:
            assert [told.code for told in pair.run(command.command(whole), whole)] == [0, 0], "left alone"
            for k in range(tries):
                place, own, both = folder / f"out-{k}", int(rng.integers(2)), k % 3 == 2
                line = int(rng.integers(len(pair.lines[own])))
                where, often = pair.lines[own][line]
                numbers = tuple(int(n) for n in rng.choice(INTERRUPTS, size=1 if k % 3 == 0 else 2))
                gap, times = float(rng.choice(GAPS)), int(rng.integers(often)) + 1
                drawn = Drawn(line, times, numbers, gap, pair.ranks[1 - own if both else own].pid)
                told = pair.run(command.command(place), place, (drawn, None) if own == 0 else (None, drawn))
                loss = _loss(command, place, told, own, drawn, both)
                late += loss is None
                if loss is not None:
                    stopped.add(where)
                if not loss and any(one.code for one in told):
                    again = pair.run([*command.command(place), "--resume"], place)
                    if any(one is None or one.code for one in again) or not command.same(whole, place):
                        loss = f"resumed: {again}"
                outcome.expect(not loss, f"try {k} of seed {seed}, rank {own}, {where}, {drawn}: {loss}")
                if not pair.ranks:
                    pair.run(command.command(folder / f"new-{k}"), folder)
        finally:
            pair.close()
    outcome.note = f"seed {seed}; stopped at {len(stopped)} lines, {late} commands were done before"
    return outcome


def _loss(command: Training, place: Path, told: list[Any], own: int, drawn: Drawn, both: bool) -> str | None:
    """What was lost, in words, if anything; None where the run was done before."""
    if None in told:
        return f"no answer: {told}"
    mine, other = told[own], told[1 - own]
    if mine.at is None:
        return None if mine.code == other.code == 0 else f"of themselves: {told}"
    to_mine, to_other = (drawn.numbers[:1], drawn.numbers[1:]) if both else (drawn.numbers, ())
    first = to_mine[:1] if mine.heard and drawn.gap else to_mine  # which of them may be the first that is heard
    mine_may = {0, *(128 + n for n in first), *(() if mine.heard else (1,))}
    if mine.code not in mine_may or other.code not in {0, 1, *(128 + n for n in to_other)}:
        return f"exit codes: {told}"
    if any(one.said.count("\n") > 1 for one in told):
        return f"lines: {told}"
    return command.loss(place, mine.at, f"{told}")
