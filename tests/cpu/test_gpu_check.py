"""``make gpu-check`` without a GPU: its report, its limits, and that it goes on where it stopped."""

from __future__ import annotations

import json
import sys

import pytest

from experiments import gpu_check

SMALL = ["--device", "dry", "--vertices", "300", "--megabytes", "1"]
SMALL += ["--order", "input", "--chunks", "4", "--epochs", "1"]


def check(monkeypatch, out, *more):
    """Run it; returns its exit code and the rows it has written so far."""
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--out", str(out), *SMALL, *more])
    with pytest.raises(SystemExit) as stopped:
        gpu_check.main()
    return stopped.value.code, [json.loads(line) for line in (out / "gpu-check.jsonl").read_text().splitlines()]


def test_report_and_resumption(monkeypatch, tmp_path):
    only = ("--only", "environment", "links", "sanitizer", "graph", "artifact", "gcn of 2 layers")
    code, rows = check(monkeypatch, tmp_path, *only)
    status = {row["part"]: row["status"] for row in rows}
    done = dict.fromkeys(("environment", "links", "graph", "artifact", "gcn of 2 layers"), "done")
    assert status == done | {"sanitizer": "left out"}
    assert code == 0
    result = rows[-1]["result"]
    assert result["losses_agree"]
    assert result["unlimited"]["counted_is_predicted"]
    assert len(result["pyg"]["losses"]) == 2
    text = (tmp_path / "gpu-check.txt").read_text()
    assert "losses agree" in text
    assert "zero-copy" in text
    assert (tmp_path / "links.log").exists()
    _, again = check(monkeypatch, tmp_path, *only)
    assert [row["part"] for row in again[len(rows) :]] == ["sanitizer"], "what is done was run again"


def test_limits(monkeypatch, tmp_path):
    sleep = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)")
    parts = [gpu_check.Part("slow", sleep, 1), gpu_check.Part("fails", (sys.executable, "-c", "1/0"), 20)]
    monkeypatch.setattr(gpu_check, "parts", lambda options: parts)
    code, rows = check(monkeypatch, tmp_path)
    assert [row["status"] for row in rows] == ["took too long", "failed"]
    assert rows[0]["seconds"] < 30
    assert "begun" in (tmp_path / "slow.log").read_text()
    assert "ZeroDivisionError" in (tmp_path / "fails.log").read_text()
    assert code == 1
    _, rows = check(monkeypatch, tmp_path, "--seconds", "0")
    assert [row["status"] for row in rows[2:]] == ["no time left"] * 2


def test_every_part_is_bounded(tmp_path):
    class Options:
        out, device, vertices, megabytes, chunks, order, epochs = tmp_path, "cuda", 4, 1, 1, "input", 1

    parts = gpu_check.parts(Options)
    assert all(0 < part.limit <= 200 for part in parts)
    assert len({part.name for part in parts}) == len(parts)
