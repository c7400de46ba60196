"""Breaks the planner and the engine one small edit at a time and says which edits `make test` does not notice.

    python -m tests.mutations [WORD ...]    # of files and edits with one of these words, or all

``--workers``: so many edits side by side, each in a copy of its own (default: one for a core).

``mutations.txt`` holds the edits: a file, then pairs of what stands there once and what takes its place. Each is made
in a copy of the repository, and tests run until one fails: first those of the part that was edited, then those of its
room, then, where nothing has noticed yet, whole trainings. What survives is a hole in the tests, or no fault.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".txt")
RANKS = "tests/ranks/test_posting.py tests/ranks/test_simulated.py"
ROUTES = "tests/ranks/test_routes.py"
MEMORY = "tests/plan/test_memory.py tests/plan/test_slab.py tests/plan/test_program.py"
FIRST = {  # the tests of a part
    "hongtu/graph/halo": "tests/plan/test_passes.py tests/ranks/test_receptive.py",
    "hongtu/plan/cache/writers": f"tests/plan/test_writers.py {RANKS}",
    "hongtu/plan/memory/planned": f"{MEMORY} {RANKS}",
    "hongtu/engine/messages": RANKS,
    "hongtu/ranks": ROUTES,
    "hongtu/plan/passes": "tests/plan/test_passes.py",
    "hongtu/plan/cache": "tests/plan/test_cache.py tests/plan/test_writers.py",
    "hongtu/plan/search": "tests/plan/test_search.py",
    "hongtu/plan/memory": MEMORY,
    "hongtu/plan/program": "tests/plan/test_program.py tests/plan/test_memory.py",
    "hongtu/engine": "tests/engine",
}
ROOMS = "tests/plan tests/engine"
REST = ("tests/exact tests/device", "tests/train tests/model tests/cli")
LONGEST = 1500  # seconds of one run of tests, then it hangs
LEFT = (".git", ".venv", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache", "site", ".demo", "*.egg-info")


class Edit(NamedTuple):
    """What stands once in a file, and what takes its place."""

    file: str
    old: str
    new: str


def edits(text: str) -> Iterator[Edit]:
    """Those of a list.

    >>> list(edits("a.py\\n- x < 1\\n+ x > 1\\n\\n"))
    [Edit(file='a.py', old='x < 1', new='x > 1')]
    """
    file = old = ""
    for line in text.splitlines():
        if line.startswith("- "):
            old = line[2:]
        elif line.startswith("+ "):
            yield Edit(file, old, line[2:])
        elif line:
            file = line


def edited(folder: Path, edit: Edit) -> str:
    """The text of a file with an edit; what it replaces must stand there exactly once."""
    text = (folder / edit.file).read_text()
    assert text.count(edit.old) == 1, f"{edit.file} has {edit.old!r} {text.count(edit.old)} times"
    return text.replace(edit.old, edit.new)


def that_see(edit: Edit) -> str:
    """Those of the file itself, if it has some, then those of the part that it is in."""
    _, room, *_, name = edit.file.split("/")
    own = f"tests/{room}/test_{name}"
    part = next(tests for folder, tests in FIRST.items() if edit.file.startswith(folder))
    return f"{own} {part}" if (REPOSITORY / own).exists() else part


def noticed_by(copy: Path, edit: Edit, stages: Sequence[str]) -> str:
    """The first test that fails with an edit in a copy of the repository, or "" if none of some stages does."""
    file, changed = copy / edit.file, edited(copy, edit)
    text, times = file.read_text(), file.stat()
    file.write_text(changed)
    try:
        return next(filter(None, (first_failure(copy, tests.split()) for tests in (that_see(edit), *stages))), "")
    finally:
        file.write_text(text)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled of it is known by its time


def first_failure(copy: Path, tests: list[str]) -> str:
    """What fails first, in a fork: libraries are loaded, the project is not."""
    note = copy / "first-failure"
    note.write_text("")
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(copy, tests, note))
    child.start()
    child.join(timeout=LONGEST)
    if child.is_alive():
        child.kill()
        child.join()
        return "hangs"
    return note.read_text() or (f"exit status {child.exitcode}" if child.exitcode else "")


def run_tests(copy: Path, tests: list[str], note: Path) -> None:
    os.chdir(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() != REPOSITORY)]
    for name in [name for name in sys.modules if name.split(".")[0] in ("hongtu", "tests")]:
        del sys.modules[name]
    options = [
        "-x",
        "-q",
        "-n",
        "0",
        "--sample",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        f"--rootdir={copy}",
    ]
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        os._exit(pytest.main([*options, "--capture=no", *tests], plugins=[First(note)]))


class First:
    """Writes down what fails."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.note.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.note.write_text(report.nodeid)


def load_libraries() -> None:
    """Once, before the forks; threads are set as for a worker of `make test`."""
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = "2"
    for name in ("tests.conftest", "numba", "scipy.sparse", "torch_geometric.nn"):
        importlib.import_module(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--parts", action="store_true", help="only tests of the part that was edited: minutes")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="edits that are tried side by side")
    words, parts, workers = vars(parser.parse_args()).values()
    found = [edit for edit in edits(LIST.read_text()) if not words or any(word in " ".join(edit) for word in words)]
    for edit in found:
        edited(REPOSITORY, edit)
    load_libraries()
    noticed = 0
    for by, edit in try_all(found, () if parts else (ROOMS, *REST), workers):
        noticed += bool(by)
        print(f"{by or 'SURVIVES'}\t{edit.file}\t{edit.old} -> {edit.new}", flush=True)
    print(f"{noticed} of {len(found)} edits were noticed")


def try_all(found: Sequence[Edit], stages: Sequence[str], workers: int) -> Iterator[tuple[str, Edit]]:
    """What notices each edit, as soon as that is known."""
    fork = multiprocessing.get_context("fork")
    left, done = fork.SimpleQueue(), fork.SimpleQueue()
    children = [fork.Process(target=take_edits, args=(left, done, stages)) for _ in range(min(workers, len(found)))]
    for child in children:
        child.start()
    for edit in (*found, *(None for _ in children)):
        left.put(edit)
    for _ in found:
        yield done.get()
    for child in children:
        child.join()


def take_edits(left: SimpleQueue[Edit | None], done: SimpleQueue[tuple[str, Edit]], stages: Sequence[str]) -> None:
    """Edits from a queue until there is None, one after the other in a copy of the repository."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "hongtu")
        shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT))
        while (edit := left.get()) is not None:
            done.put((noticed_by(copy, edit, stages), edit))


if __name__ == "__main__":
    main()
