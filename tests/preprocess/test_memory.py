"""Preprocessing takes no more memory than it predicts, and says when that is too much."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hongtu.cli.main import main
from hongtu.preprocess import edge_rows
from tests.neutral import pieces, write

ROOT = Path(__file__).resolve().parents[2]
VERTICES, EDGES, COLUMNS, BESIDE = 200_000, 3_000_000, 256, 16


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Features take 195 MiB, those of edges 183 MiB: reading them whole would show."""
    path = tmp_path_factory.mktemp("memory") / "in"
    size = ["--vertices", str(VERTICES), "--edges", str(EDGES), "--features", str(COLUMNS), "--classes", "4"]
    assert main(["generate", "citation", str(path), *size]) == 0
    rows = np.lib.format.open_memmap(path / "edge_features.npy", "w+", np.float32, (EDGES, BESIDE))
    rows[:] = 1
    return path


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("flags", [
    ["--order", "input"],
    ["--order", "clusters", "--undirected"],
    ["--order", "clusters", "--features", "random:256", "--self-loops"],
])  # fmt: skip
def test_peak_memory(flags, graph, tmp_path):
    """In a process of its own, compiled code loaded, beyond what it holds after a tiny graph."""
    tiny = write(tmp_path / "tiny", pieces())
    code = """
import sys
from hongtu.cli.main import main
from hongtu.host import anonymous_bytes
tiny, graph, out, *flags = sys.argv[1:]
assert main(["preprocess", tiny, out, "--partitions", "2", "--chunks", "2", *flags]) == 0
print(anonymous_bytes(), file=sys.stderr)
assert main(["preprocess", graph, out, "--force", *flags]) == 0
"""
    command = [sys.executable, "-c", code, str(tiny), str(graph), str(tmp_path / "out"), "--partitioner", "streaming"]
    environment = os.environ | {"HONGTU_COMPILE": "always"}  # for the tiny graph, too
    done = subprocess.run([*command, *flags], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    before = int(done.stderr.splitlines()[0])
    log = [json.loads(line) for line in (tmp_path / "out" / "stages.jsonl").read_text().splitlines()]
    stored = EDGES * (2 if "--undirected" in flags else 1)
    buffers = 64 << 20  # of features on the way, and arenas of malloc
    assert max(line["peak_bytes"] for line in log) < before + 24 * stored + 64 * VERTICES + buffers
    assert log[1]["predicted_bytes"] >= 24 * stored + 64 * VERTICES


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("flags", [["--order", "input", "--partitions", "1"], ["--order", "clusters"]])
def test_a_limit_holds(flags, graph, tmp_path, capsys):
    """The smallest that is not refused."""
    (tmp_path / "in").mkdir()
    for file in graph.iterdir():
        if flags[-1] == "clusters" or file.name != "edge_features.npy":
            (tmp_path / "in" / file.name).symlink_to(file)
    words = ["preprocess", str(tmp_path / "in"), str(tmp_path / "out"), "--partitioner", "streaming", *flags]
    assert main([*words, "--memory", "100MiB"]) == 2
    refused = re.search(r"memory is 100MiB, preprocessing takes up to (\d+) bytes; give more", capsys.readouterr().err)
    least, command = int(refused[1]), [sys.executable, "-m", "hongtu", *words, "--memory"]
    assert subprocess.run([*command, f"{least - 1}B"], cwd=ROOT, capture_output=True).returncode == 2
    assert not (tmp_path / "out").exists()
    subprocess.run([*command, f"{least}B"], cwd=ROOT, capture_output=True, check=True)
    log = [json.loads(line) for line in (tmp_path / "out" / "stages.jsonl").read_text().splitlines()]
    assert max(line["peak_bytes"] for line in log) <= least == log[-1]["predicted_bytes"]


def test_blocks_of_rows_are_no_larger_than_a_limit(monkeypatch):
    monkeypatch.setattr(edge_rows, "available_bytes", lambda: 64 << 30)
    large = 1 << 36
    assert edge_rows.block_rows(large, 4) * 16 == 8 << 30  # an eighth of what there is
    assert edge_rows.block_rows(large, 4, 4 << 30) * 16 == 512 << 20
    assert edge_rows.block_rows(large, 4, 0) == edge_rows.BUFFER // 4


def test_too_little_memory_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hongtu.preprocess.pipeline.available_bytes", lambda: 1 << 20)
    source = write(tmp_path / "in", pieces())
    assert main(["preprocess", str(source), str(tmp_path / "out"), "--partitions", "2", "--chunks", "2"]) == 0
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "hongtu: note: the run may take 0.3 GiB of memory, 0.0 GiB are available" in err
