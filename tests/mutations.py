"""Breaks the planner and the engine one small edit at a time and says which edits `make test` does not notice.

    python -m tests.mutations [WORD ...]    # of files and edits with one of these words, or all; about an hour for all

``mutations.txt`` holds the edits: a file, then pairs of what stands there once and what takes its place. Each is made
in a copy of the repository, and tests run until one fails: first those of the part that was edited, then those of its
room, then, where nothing has noticed yet, whole trainings. What survives is a hole in the tests, or no fault.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".txt")
FIRST = {  # the tests of a part
    "hongtu/plan/passes": "tests/plan/test_passes.py",
    "hongtu/plan/cache": "tests/plan/test_cache.py tests/plan/test_writers.py",
    "hongtu/plan/search": "tests/plan/test_search.py",
    "hongtu/plan/memory": "tests/plan/test_memory.py tests/plan/test_program.py",
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


def noticed_by(edit: Edit) -> str:
    """The first test that fails with an edit, or "" if none does."""
    part = next(tests for folder, tests in FIRST.items() if edit.file.startswith(folder))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "hongtu")
        shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT))
        (copy / edit.file).write_text(edited(copy, edit))
        for tests in (part, ROOMS, *REST):
            found = first_failure(copy, tests.split())
            if found:
                return found
    return ""


def first_failure(folder: Path, tests: list[str]) -> str:
    options = ["-x", "-q", "-n", "0", "--sample", "--tb=no", "-p", "no:cacheprovider", "-p", "no:warnings"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = os.environ | {"PYTEST_XDIST_WORKER_COUNT": "2"}  # as many threads as a worker has
    try:
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return "hangs"
    if run.returncode == 0:
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return named[1] if named else (run.stdout + run.stderr).strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    found = [edit for edit in edits(LIST.read_text()) if not words or any(word in " ".join(edit) for word in words)]
    survivors = 0
    for edit in found:
        by = noticed_by(edit)
        survivors += not by
        print(f"{by or 'SURVIVES'}\t{edit.file}\t{edit.old} -> {edit.new}", flush=True)
    print(f"{len(found) - survivors} of {len(found)} edits were noticed")


if __name__ == "__main__":
    main()
