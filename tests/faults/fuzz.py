"""Fuzzing readers: damaged files are read as what they mean, or refused; never a crash, never a hang.

``python -m tests.faults.fuzz READER SEED`` does one input again.
"""

from __future__ import annotations

import contextlib
import io
import resource
import signal
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.host import STATUS, proc_bytes
from tests.faults.mutate import mutate
from tests.faults.outcome import Outcome
from tests.faults.reader import Reader
from tests.faults.readers import READERS
from tests.faults.structures import make

SECONDS = 300  # a reader that takes longer hangs, even where others use the machine
WORK = 5  # seconds of the processor that it may take
MEMORY = 1 << 30  # bytes that it may take, beside what is there
BY_COMMAND = 100  # every so many inputs also go through `hongtu preprocess`


class OutOfTime(BaseException):
    """Raised in what takes too long. No reader takes it for an error of its file's, as it would a TimeoutError, which
    is an OSError."""


def fuzz_reader(name: str, tries: int, seed: int = 0, readers: Mapping[str, Reader] = READERS) -> Outcome:
    """Try damaged inputs number ``seed`` to ``seed + tries``."""
    outcome = Outcome(f"damaged {name}", "read as what its bytes mean, or refused with exit code 2")
    reader, taken = readers[name], 0
    with graph_directory(reader) as directory:
        for content in reader.samples:
            loss, _ = _try(reader, directory, content)
            assert loss is None, f"a valid {name}: {loss}"
        for number in range(seed, seed + tries):
            content = damaged(name, reader, number)
            loss, opened = _try(reader, directory, content)
            if loss is None and number % BY_COMMAND == 0 and reader.arguments is not None:
                loss = _preprocess(directory, reader)
            taken += opened
            outcome.expect(loss is None, f"input {number}: {loss}")
    outcome.note = f"seeds {seed} to {seed + tries - 1}; {taken} were read, {tries - taken} refused"
    return outcome


def damaged(name: str, reader: Reader, number: int) -> bytes:
    """Input ``number`` of a reader: a valid file with other bytes, or one in four made up by its structure."""
    rng = np.random.default_rng((zlib.crc32(name.encode()), number))
    sample = reader.samples[int(rng.integers(len(reader.samples)))]
    return make(sample, rng) if number % 4 == 3 else mutate(sample, rng)


@contextlib.contextmanager
def graph_directory(reader: Reader) -> Iterator[Path]:
    """A valid graph, less what must not be there beside the reader's file."""
    with tempfile.TemporaryDirectory(prefix="hongtu-fuzz-") as folder:
        directory = Path(folder) / "in"
        reader.graph(directory)
        for file in reader.remove:
            (directory / file).unlink()
        yield directory


def _try(reader: Reader, directory: Path, content: bytes) -> tuple[str | None, bool]:
    """What was lost, if anything, and whether the input was taken."""
    (directory / reader.file).write_bytes(reader.pack(content))
    try:
        with time_limit(), work_limit(), warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning is a second line on stderr
            found = reader.read(directory / reader.file)
    except InputError:
        return None, False
    except BaseException as error:
        return f"{type(error).__name__}: {error}", False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = reader.meaning(content)
    except Exception as error:
        return f"was read, though it means nothing ({type(error).__name__}: {error})", True
    return (None if same(found, expected) else "was read as something else"), True


def _preprocess(directory: Path, reader: Reader) -> str | None:
    out, alone = directory.parent / "out", "--relabel" in reader.arguments
    chunks = ("--partitions", "1", "--chunks", "1") if alone else ("--partitions", "2", "--chunks", "3")
    given = str(directory / reader.file if alone else directory)
    code, err = command(["preprocess", given, str(out), "--force", *chunks, *reader.arguments])
    lines = err.count("\n")
    if (directory.parent / ".out.partial").exists():
        return "hongtu preprocess: left .out.partial behind"
    if code == 0 or (code == 2 and lines == 1):
        return None
    return f"hongtu preprocess: exit code {code}, {lines} lines on stderr: {err[:200]}"


def command(arguments: list[str]) -> tuple[int, str]:
    """Exit code and stderr of a command, in this process."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()), time_limit():
        return main(arguments), err.getvalue()


@contextlib.contextmanager
def time_limit(seconds: float = SECONDS) -> Iterator[None]:
    """``OutOfTime`` inside, after some seconds."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def work_limit() -> Iterator[None]:
    """``OutOfTime`` inside after some seconds of the processor's time, ``MemoryError`` beyond some memory."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"more than {WORK} s of the processor")

    before, limits = signal.signal(signal.SIGPROF, stop), resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, ((proc_bytes(STATUS, "VmData") or 0) + MEMORY, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, WORK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def same(a: Any, b: Any) -> bool:
    """Equal values; NaN equals NaN, and arrays may differ in width of their type."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        return (
            a.shape == b.shape and a.dtype.kind == b.dtype.kind and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        )
    return bool(a == b)


def _once(name: str, number: int, show: Callable[[object], None] = print) -> None:
    content = damaged(name, READERS[name], number)
    show(content)
    with graph_directory(READERS[name]) as directory:
        (directory / READERS[name].file).write_bytes(READERS[name].pack(content))
        show(READERS[name].read(directory / READERS[name].file))


if __name__ == "__main__":
    _once(sys.argv[1], int(sys.argv[2]))
