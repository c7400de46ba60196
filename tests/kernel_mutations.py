"""Breaks the CUDA kernels one small edit at a time and says which edits the parity tests miss.

    python -m tests.kernel_mutations [FILE ...]    # an hour for all files; prints one line per edit

Every mutant is compiled for the CPU and must fail the tests of its file. Those that pass are survivors: either the
tests have a hole or the edit changes nothing that can be seen (it only changes speed, or an order).
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

from hongtu.cuda_ext.sources import FOLDER

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
    (r" \* width\b", " * (width + 1)"),
    (r" \* stride\b", " * width"),
    (r" \* heads\b", " * (heads + 1)"),
    (r"/ T\(range\.degree\)", "/ T(range.degree + 1)"),
    (r"\brange\.dst\b", "(range.dst + 1)"),
    (r" % 2\b", " % 3"),
    (r" / 2\b", " / 3"),
    (r"column_step<", "2 * column_step<"),
    (r"group_step\(\)", "2 * group_step()"),
    (r"first_group\(\)", "1 + first_group()"),
    (r"first_column<(\w)>\(\)", r"\1 + first_column<\1>()"),
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


def outcome(file: str, text: str) -> str:
    """What becomes of a mutant: "killed", "does not compile", "hangs" or "SURVIVES"."""
    with tempfile.TemporaryDirectory() as folder:
        for source in (*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")):
            shutil.copy(source, folder)
        Path(folder, file).write_text(text)
        environment = {**os.environ, "HONGTU_MUTANT": folder, "XDG_CACHE_HOME": folder}
        tests = [sys.executable, "-m", "pytest", "-x", "-q", "tests/cpu/test_cuda_kernels.py", "-k", TESTS[file]]
        try:
            done = subprocess.run([*tests, "-p", "no:cacheprovider"], capture_output=True, env=environment, timeout=120)
        except subprocess.TimeoutExpired:
            return "hangs"
    if b"does not compile" in done.stdout:
        return "does not compile"
    return "SURVIVES" if done.returncode == 0 else "killed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=list(TESTS))
    for file in parser.parse_args().files:
        for number, line, text in mutants((FOLDER / file).read_text()):
            print(f"{outcome(file, text)}\t{file}:{number}\t{line}", flush=True)


if __name__ == "__main__":
    main()
