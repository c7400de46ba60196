"""Kernels are compiled when it is worth it, and kept where there is room; small graphs compile nothing at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import cold_start
from hongtu import compiled

ROOT = Path(__file__).resolve().parents[2]
only_plain = pytest.mark.skipif(compiled.ALWAYS, reason="HONGTU_COMPILE=always: nothing runs plainly")


def doubled(x):
    total = 0
    for k in range(len(x)):
        total += 2 * x[k]
    return total


twice = compiled.compiled(doubled, plain=True, until=20)


@compiled.compiled
def four_times(x):
    return 2 * twice(x)


@only_plain
def test_loops_run_plainly_until_they_were_given_as_much_as_compiling_costs():
    run = compiled.compiled(doubled, plain=True, until=20)
    for length in (0, 1, 9):
        assert run(np.arange(length)) == length * (length - 1)
    assert run._dispatcher is None
    assert run(np.arange(9)) == 72 and run._dispatcher is not None  # 30 elements in all
    assert run(np.arange(3)) == 6, "compiled once, compiled from then on"


def add_to(part, counts, out):
    out[part] += counts[part]


@only_plain
@pytest.mark.parametrize("plain", [True, lambda counts, out: np.add(out, counts, out=out)])
def test_each_part_is_done_once_in_either_form(plain):
    run, out = compiled.compiled(add_to, plain=plain, until=20), np.zeros(5)
    run.each(5, np.arange(5), out)
    assert run._dispatcher is None and out.tolist() == [0, 1, 2, 3, 4]
    run.each(5, np.arange(5), out)
    assert run._dispatcher is not None and out.tolist() == [0, 2, 4, 6, 8]


def test_a_large_first_call_is_compiled():
    run = compiled.compiled(doubled, plain=lambda x: pytest.fail("ran plainly"), until=20, cache=False)
    assert run(np.arange(21)) == 420
    assert run._dispatcher is not None


def test_compiled_code_calls_what_is_compiled():
    assert four_times(np.arange(4)) == 24


CALLS = """
from hongtu.compiled import compiled
from callee import FACTOR, twice
@compiled
def four_times(x):
    return FACTOR * twice(x)
from experiments.cold_start import count_compiling
seconds = count_compiling()
print(four_times(3), seconds.keys())
"""
CALLEE = """
from hongtu.compiled import compiled
FACTOR = {}
@compiled
def twice(x):
    return x + {}
"""


@pytest.mark.long
def test_what_is_kept_is_not_used_where_code_in_another_file_has_changed(tmp_path):
    """numba itself looks at the file of the kernel alone."""
    (tmp_path / "caller.py").write_text(CALLS)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    found = []
    for factor, added in ((2, "x"), (2, "x"), (2, "1"), (3, "1")):
        (tmp_path / "callee.py").write_text(CALLEE.format(factor, added))
        os.utime(tmp_path / "callee.py", (len(found), len(found)))  # of one length, in one second
        command = [sys.executable, "-B", "-c", "import caller"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        number, compiled_now = done.stdout.split(maxsplit=1)
        found.append((int(number), "four_times" in compiled_now))
    assert found == [(12, True), (12, False), (8, True), (12, True)]


CODE = """
import os, sys
import numba.core.caching as caching
if sys.argv[1] == "nowhere":
    provided = "UserProvidedCacheLocator"  # of older numba with an underscore
    locator = getattr(caching, provided, None) or getattr(caching, "_" + provided)
    caching.CacheImpl._locator_classes = [locator]  # no other place can be written
else:
    def full(self, name, overload):
        raise OSError(28, "No space left on device")
    caching.IndexDataCacheFile.save = full
import numpy as np
from hongtu import compiled
from hongtu.kernels import sums
for dtype in (np.int32, np.int64):
    assert sums.row_of(np.zeros(1, dtype), np.zeros(0, dtype), False, 0) == 0
print(compiled.kept_in(), os.environ["NUMBA_CACHE_DIR"], oct(os.stat(os.environ["NUMBA_CACHE_DIR"]).st_mode))
print(sum(len(files) for _, _, files in os.walk(os.environ["NUMBA_CACHE_DIR"])))
"""


@pytest.mark.long
@pytest.mark.parametrize("place", ["nowhere", "full"])
def test_without_a_place_for_compiled_code_everything_works_and_one_note_says_so(tmp_path, place):
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    if place == "full":
        environment["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run([sys.executable, "-c", CODE, place], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (kept, directory, mode), (files,) = map(str.split, done.stdout.splitlines())
    assert done.stderr.count("hongtu: note: ") == 1 and "NUMBA_CACHE_DIR" in done.stderr
    if place == "nowhere":
        assert kept == "None" and Path(directory).parent == tmp_path and mode == "0o40700" and int(files) > 0
        assert not list(tmp_path.iterdir()), "it is gone with the process"


@pytest.mark.long
@only_plain
@pytest.mark.parametrize(
    "options",
    ["--model gcn", "--model gat --device-memory 1MiB --save-every 1 --run RUN", "--model sage --dropout 0.5"],
)
def test_a_small_graph_compiles_nothing(tmp_path, options):
    from hongtu.cli.main import main

    sizes = ["--vertices", "900", "--edges", "3000", "--features", "8", "--classes", "3"]
    assert main(["generate", "citation", str(tmp_path / "graph"), *sizes]) == 0
    artifact, run = str(tmp_path / "artifact"), options.replace("RUN", str(tmp_path / "run")).split()
    commands = [["preprocess", str(tmp_path / "graph"), artifact], ["train", artifact, "--epochs", "2", *run]]
    for command in commands:
        found = cold_start.measure(command, tmp_path / "cache")
        assert found["kernels"] == {} and "numba" not in found["loaded"], json.dumps(found)
    assert not (tmp_path / "cache").exists()
