"""Breaks the CUDA kernels one small edit at a time and says which edits the parity tests miss.

    python -m tests.kernel_mutations [FILE ...]    # prints one line per edit; about 20 minutes for all files

Every mutant is compiled for the CPU and must fail the tests of its file. Those that pass are survivors: either the
tests have a hole or the edit changes nothing that can be seen (it only changes speed, or an order).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import tests.kernel_parity  # noqa: F401  # imported once, before the forks
from hongtu.cuda_ext import host_build
from hongtu.cuda_ext.compile import FOLDER, KernelError

EDITS = [
    (r" < ", " <= "),
    (r" < ", " + 1 < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" <= ", " < "),
    (r" \+ 1\b", ""),
    (r" - 1\b", ""),
    (r" \+ f\b", " + f + 1"),
    (r"\be \+ i\b", "e + i + 1"),
    (r" \+ i\b", ""),
    (r" \+= ", " = "),
    (r" \* (\w+_stride)\b", r" * (\1 + 1)"),
    (r" \* (\w+_stride)\b", " * width"),
    (r"\bwidth - (f|past)\b", r"width - \1 + 1"),
    (r"\b(left|whole)\)", r"\1 + 1)"),
    (r" \* heads\b", " * (heads + 1)"),
    (r"/ T\(range\.degree\)", "/ T(range.degree + 1)"),
    (r"\brange\.dst\b", "(range.dst + 1)"),
    (r" % 2\b", " % 3"),
    (r" / 2\b", " / 3"),
    (r"group_step\(\)", "2 * group_step()"),
    (r"first_group\(\)", "1 + first_group()"),
    (r"column<(\w)>\(\)", r"\1 + column<\1>()"),
    (r"threadIdx\.x", "(threadIdx.x + 1)"),
    (r"add<ATOMIC>\(", "add<PLAIN>(1 + "),
    (r"!hubs\b", "true"),
    (r"&& ", "|| "),
    (r"\|\| ", "&& "),
    (r"if \(([^()]*)\) (continue|return|end = begin|store|add|begin|end)", r"if (false && (\1)) \2"),
    (r"stage == (\d)", r"stage == \1 + 1"),
    (r" >> (\d+)", r" >> (\1 + 1)"),
    (r"total = own \+", "total ="),
]
TESTS = {
    "rows.cu": "TestRows",
    "csc.cu": "TestCsc",
    "softmax.cu": "TestAttention and softmax",
    "attention.cu": "TestAttention and attend",
    "gates.cu": "TestAttention and gated",
    "dropout.cu": "TestDropout",
    "shared.cuh": "Test",
}

QUICK = "past or blocks or far"  # see most mutants, in seconds
REFUSED = 77  # exit status


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line number, edited line, whole edited text), for every place of every edit in code."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        if code.startswith("#") or code.rstrip().endswith("\\") or "template" in code or "enum" in code:
            continue
        for pattern, replacement in EDITS:
            for match in re.finditer(pattern, code):
                edited = code[: match.start()] + match.expand(replacement) + code[match.end() :]
                yield number + 1, edited.strip(), "\n".join([*lines[:number], edited, *lines[number + 1 :]])


def outcome(file: str, text: str, cache: str) -> str:
    """What becomes of a mutant: "killed", "hangs", "does not compile" or "SURVIVES". Runs in a fork: it may crash."""
    with tempfile.TemporaryDirectory() as folder:
        for source in (*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")):
            shutil.copy(source, folder)
        Path(folder, file).write_text(text)
        for source in Path(folder).glob("*.cu"):  # without the instances for float64: half the time
            source.write_text(re.sub(r"(?m)^[A-Z_]+\(.*double.*\n", "", source.read_text()))
        child = multiprocessing.get_context("fork").Process(target=run_tests, args=(folder, file, cache))
        child.start()
        child.join(timeout=200)
        if child.is_alive():
            child.kill()
            child.join()
            return "hangs"
    return {0: "SURVIVES", REFUSED: "does not compile"}.get(child.exitcode, "killed")


def run_tests(folder: str, file: str, cache: str) -> None:
    os.environ.update(HONGTU_MUTANT=folder, XDG_CACHE_HOME=cache)
    try:
        host_build.library(Path(folder, "csc.cu" if file == "shared.cuh" else file))
    except KernelError:
        os._exit(REFUSED)
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=no"]
        for tests in (QUICK, TESTS[file]):
            status = pytest.main([*options, "tests/cuda_ext/test_cuda_kernels.py", "-k", f"({tests}) and not float64"])
            if status != 0:
                break
    os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*")
    files = parser.parse_args().files or TESTS
    with tempfile.TemporaryDirectory() as cache:
        for file in files:
            text = (FOLDER / file).read_text()
            assert outcome(file, text, cache) == "SURVIVES", f"{file} fails its tests as it is"
            for number, line, edited in mutants(text):
                print(f"{outcome(file, edited, cache)}\t{file}:{number}\t{line}", flush=True)


if __name__ == "__main__":
    main()
