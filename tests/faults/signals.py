"""One or two of SIGINT, SIGTERM and SIGHUP, each after each, at any line of `hongtu train` and `hongtu preprocess`.

What must come of it: the exit code of the first, one line on stderr, nothing lost but the epoch or the stage that ran,
and a command that goes on to the result of one that was left alone.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import hongtu
from hongtu.cli.main import main
from hongtu.errors import INTERRUPTS
from hongtu.files import LOCK
from hongtu.train.run_directory import RunDirectory
from tests.faults.outcome import Outcome
from tests.faults.processes import epochs
from tests.faults.run import prepare, same_result
from tests.neutral import contents

PACKAGE = Path(hongtu.__file__).parent
GAPS = (0.0, 0.001, 0.01, 0.05, 0.2)  # seconds from the first signal to the second
Line = tuple[CodeType, int]


@contextmanager
def tracing(local: Callable[[FrameType], Any], rooms: str = "") -> Iterator[None]:
    """``local`` gives the trace function of a frame of hongtu's own code, in some rooms or all, or None."""
    folders = tuple(f"{PACKAGE / room}/" for room in rooms.split()) or f"{PACKAGE}/"

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        return local(frame) if frame.f_code.co_filename.startswith(folders) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(work: Callable[[], Any], rooms: str = "") -> Counter[Line]:
    """Every line that this thread runs, in order, with how often it does."""
    found: Counter[Line] = Counter()

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            found[frame.f_code, frame.f_lineno] += 1
        return count

    with tracing(lambda frame: count, rooms):
        work()
    return found


class Sent:
    """Sends signals when a line is about to run for the n-th time.

    Args:
        to: the process that gets those after the first, where it is another one.

    Attributes:
        at: what ``look`` gave then; None until it is done.
        heard: the command had a handler for the first of them then.
    """

    def __init__(
        self, line: Line, times: int, numbers: list[int], gap: float, look: Callable[[], Any], to: int | None = None
    ) -> None:
        self.line, self.left, self.numbers, self.gap, self.look = line, times, numbers, gap, look
        self.to = os.getpid() if to is None else to
        self.at: Any = None
        self.heard = True
        self._timer: threading.Timer | None = None

    def trace(self, frame: FrameType) -> Any:
        return self._inside if frame.f_code is self.line[0] and self.left > 0 else None

    def _inside(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lineno == self.line[1]:
            self.left -= 1
            if self.left == 0:
                self._send()
        return self._inside

    def _send(self) -> None:
        self.at = self.look()
        first, *others = self.numbers
        self.heard = signal.getsignal(first) is not _pass_over
        try:
            os.kill(os.getpid(), first)
        finally:
            for other in others:
                if self.gap:
                    self._timer = threading.Timer(self.gap, os.kill, (self.to, other))
                    self._timer.start()
                else:
                    os.kill(self.to, other)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


def _pass_over(*_: Any) -> None:
    pass


@contextmanager
def heard() -> Iterator[None]:
    """Signals that come outside of a command, or too late, do nothing; none is ignored, as behind `&` in a script."""
    before = {number: signal.signal(number, _pass_over) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(arguments: list[str], sent: Sent | None = None) -> tuple[int, str]:
    """The exit code and stderr of a command."""
    with ExitStack() as stack, StringIO() as err:
        stack.enter_context(redirect_stdout(StringIO()))
        stack.enter_context(redirect_stderr(err))
        if sent is not None:
            stack.callback(sent.end)
            stack.enter_context(tracing(sent.trace))
        try:
            code = main(arguments)
        except BaseException as error:
            return -1, f"{type(error).__name__}: {error}"
        return code, err.getvalue()


class Training:
    """`hongtu train`, with learned rows, evaluations and the best snapshot; no regular snapshot before the last."""

    name = "`hongtu train`"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifact = prepare(folder / "artifact").path

    def command(self, place: Path) -> list[str]:
        return ["train", str(self.artifact), "--model", "gat", "--hidden", "4", "--dropout", "0.3", "--epochs", "6",
                "--eval-every", "2", "--keep-best", "--save-every", "100", "--run", str(place)]  # fmt: skip

    def look(self, place: Path) -> int:
        return epochs(place)

    def loss(self, place: Path, at: int, said: str) -> str:
        """What was lost, in words."""
        snapshots = RunDirectory(place).snapshots()
        kept = int(snapshots[-1].stem.partition("-")[2]) if snapshots else 0
        there = [file.name for file in place.iterdir()] if place.exists() else []
        left = {name for name in there if name.startswith(".")} - {LOCK}  # whose lock the process lets go of
        if kept < at:
            return f"{at} epochs were in the log, the snapshot is of {kept}: {said!r}"
        return f"left behind: {sorted(left)}" if left else ""

    def same(self, first: Path, second: Path) -> bool:
        return same_result(first, second)


class Preprocessing:
    """`hongtu preprocess`, of a graph on disk."""

    name = "`hongtu preprocess`"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        size = ["--vertices", "60", "--edges", "200", "--features", "4", "--classes", "3"]
        assert run(["generate", "citation", str(folder / "graph"), *size])[0] == 0

    def command(self, place: Path) -> list[str]:
        return ["preprocess", str(self.folder / "graph"), str(place), "--partitions", "2", "--chunks", "3",
                "--undirected"]  # fmt: skip

    def look(self, place: Path) -> int:
        """Stages that are finished."""
        logs = list(place.parent.glob(f".{place.name}.partial*/finished.jsonl"))
        return logs[0].read_bytes().count(b"\n") if logs else 0

    def loss(self, place: Path, at: int, said: str) -> str:
        if not place.exists() and self.look(place) < at:
            return f"{at} stages were finished, {self.look(place)} are left: {said!r}"
        return ""

    def same(self, first: Path, second: Path) -> bool:
        left = list(second.parent.glob(f".{second.name}.*"))
        return contents(first) == contents(second) and not left


def interrupt(kind: type[Training] | type[Preprocessing], tries: int, seed: int = 0) -> Outcome:
    """So many runs, each with one or two signals at a line that was drawn."""
    outcome = Outcome(
        f"one or two of SIGINT, SIGTERM and SIGHUP, 0 to 200 ms apart, at any line of {kind.name}",
        "exit code 128 and the first signal's number, one line; at most the epoch or stage that ran is lost; resumed: "
        "bit-identical",
    )
    rng = np.random.default_rng(seed)
    late, stopped = 0, set[Line]()
    with tempfile.TemporaryDirectory(prefix="hongtu-faults-") as name, heard():
        command = kind(Path(name))
        whole = Path(name) / "whole"
        run(command.command(Path(name) / "first"))  # what is done once a process
        counts = lines_of(lambda: run(command.command(whole)))
        lines = list(counts)
        for k in range(tries):
            place = Path(name) / f"out-{k}"
            line = lines[int(rng.integers(len(lines)))]
            times = int(rng.integers(counts[line])) + 1
            numbers = [int(n) for n in rng.choice(INTERRUPTS, size=1 if k % 4 == 0 else 2)]
            gap = float(rng.choice(GAPS))
            sent = Sent(line, times, numbers, gap, lambda place=place: command.look(place))
            code, said = run(command.command(place), sent)
            what = f"try {k} of seed {seed}, {Path(line[0].co_filename).name}:{line[1]}, {numbers}, {gap} s"
            if sent.at is None or code == 0:  # it was done, or never came there
                late += 1
            else:
                stopped.add(line)
            first = numbers[:1] if sent.heard and gap else numbers  # which of them may be the first that is heard
            allowed = {0} if sent.at is None else {0, *(128 + n for n in first)}
            loss = "" if sent.at is None else command.loss(place, sent.at, said)
            if code not in allowed or said.count("\n") > 1:
                loss = f"exit code {code}: {said!r}"
            if not loss and code:
                code, said = run([*command.command(place), "--resume"])
                loss = "" if code == 0 and command.same(whole, place) else f"resumed: exit code {code}: {said!r}"
            outcome.expect(not loss, f"{what}: {loss}")
    outcome.note = f"seed {seed}; {len(stopped)} of {len(lines)} lines, {late} commands were done before"
    return outcome
