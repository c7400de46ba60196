"""``make gpu-check`` without a GPU: its report, its limits, and that it goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from experiments import gpu_check, gpu_epoch

SMALL = ["--device", "simulated", "--vertices", "300", "--megabytes", "1"]
SMALL += ["--order", "input", "--chunks", "4", "--epochs", "1"]


def check(monkeypatch, out, *more):
    """Run it; returns its exit code and the rows it has written so far."""
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--out", str(out), *SMALL, *more])
    with pytest.raises(SystemExit) as stopped:
        gpu_check.main()
    return stopped.value.code, [json.loads(line) for line in (out / "gpu-check.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_report_and_resumption(monkeypatch, tmp_path):
    only = ("--only", "environment", "packages", "links", "sanitizer", "graph", "artifact", "gcn of 2 layers")
    code, rows = check(monkeypatch, tmp_path, *only)
    status = {row["part"]: row["status"] for row in rows}
    done = dict.fromkeys(("environment", "packages", "links", "graph", "artifact", "gcn of 2 layers"), "done")
    assert status == done | {"sanitizer": "left out"}
    assert code == 0
    (result,) = (row["result"] for row in rows if row["part"] == "gcn of 2 layers")
    assert result["losses_agree"]
    assert result["unlimited"]["counted_is_predicted"]
    assert len(result["pyg"]["losses"]) == 2
    text = (tmp_path / "gpu-check.txt").read_text()
    assert "losses agree" in text
    assert "zero-copy" in text
    log = (tmp_path / "gpu-check.log").read_text()
    assert "=== links: " in log and "torch==" in log
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gpu-check.jsonl", "gpu-check.log", "gpu-check.txt", "work"
    ]  # fmt: skip
    _, again = check(monkeypatch, tmp_path, *only)
    assert [row["part"] for row in again[len(rows) :]] == ["sanitizer"], "what is done was run again"


def test_limits(monkeypatch, tmp_path):
    sleep = ("sh", "-c", "sleep 77.25 & echo '{\"first\": 1}'; echo begun; wait")
    parts = [gpu_check.Part("slow", sleep, 1), gpu_check.Part("fails", (sys.executable, "-c", "1/0"), 20)]
    monkeypatch.setattr(gpu_check, "parts", lambda options: parts)
    code, rows = check(monkeypatch, tmp_path)
    assert [row["status"] for row in rows] == ["took too long", "failed"]
    assert rows[0]["seconds"] < 30
    assert rows[0]["result"] == {"first": 1}, "what an ended part had found was lost"
    assert subprocess.run(["pgrep", "-f", "sleep 77.25"], capture_output=True).stdout == b"", "a child was left behind"
    log = (tmp_path / "gpu-check.log").read_text()
    assert "begun" in log and "ZeroDivisionError" in log
    assert code == 1
    _, rows = check(monkeypatch, tmp_path, "--seconds", "0")
    assert [row["status"] for row in rows[2:]] == ["no time left"] * 2


def test_tests_that_were_all_skipped_are_not_done(monkeypatch, tmp_path):
    skipped = (sys.executable, "-c", "print('7 skipped in 1.0s')")
    monkeypatch.setattr(gpu_check, "parts", lambda options: [gpu_check.Part("tests", skipped, 20, shows=" passed")])
    code, rows = check(monkeypatch, tmp_path)
    assert rows[-1]["status"] == "done"
    assert code == 0  # on a simulated device there is nothing else to show
    code, rows = check(monkeypatch, tmp_path, "--device", "cuda")
    assert rows[-1]["status"] == "failed"
    assert code == 1


def test_every_part_is_bounded(tmp_path):
    class Options:
        work, device, vertices, megabytes, chunks, order, epochs = tmp_path, "cuda", 4, 1, 1, "input", 1

    parts = gpu_check.parts(Options)
    assert all(0 < part.limit <= 300 for part in parts)
    assert len({part.name for part in parts}) == len(parts)


def test_a_line_that_shows_tests_need_not_be_the_last():
    lines = ["3 passed in 2.1s", "========= ERROR SUMMARY: 0 errors"]
    assert gpu_check.result_of(lines, " passed") == {"said": "3 passed in 2.1s"}
    assert gpu_check.result_of(lines, "") == {"said": "========= ERROR SUMMARY: 0 errors"}
    assert gpu_check.result_of([], " passed") == {"said": ""}
    assert gpu_check.result_of(["7", '{"a": 1}', '{"a": 2}', "bye"], "") == {"result": {"a": 2}}


def test_timeline():
    """Two streams and a third: loads end at 8 ms, sums at 10, what leaves takes 1; nothing runs from 4 to 5."""
    ms = 1_000_000
    events = [
        ("copy_rows_f32x4", "7", 0, 2 * ms), ("Memcpy HtoD (Pinned -> Device)", "7", 5 * ms, 8 * ms),
        ("csc_aggregate_f32x4", "13", 2 * ms, 4 * ms), ("csc_aggregate_f32x4", "13", 7 * ms, 10 * ms),
        ("copy_rows_f32x4", "14", 8 * ms, 8 * ms + 1), ("Memcpy DtoH (Device -> Pinned)", "14", 9 * ms, 10 * ms),
    ]  # fmt: skip
    found = gpu_epoch.summary(events)
    assert found["ms"] == 10 and found["idle"] == pytest.approx(0.1)
    assert {name: round(stream["busy"], 3) for name, stream in found["streams"].items()} == {
        "7 load": 0.5, "13 compute": 0.5, "14 flush": 0.1
    }  # fmt: skip
    assert list(found["kernels"]) == [
        "csc_aggregate_f32x4", "Memcpy HtoD (Pinned -> Device)", "copy_rows_f32x4", "Memcpy DtoH (Device -> Pinned)"
    ]  # fmt: skip
    assert found["kernels"]["csc_aggregate_f32x4"] == 5
    assert gpu_epoch.summary([]) == {}


def test_an_attempt_that_fails_says_so():
    def fail():
        raise ValueError("two\nlines")

    assert gpu_epoch.attempt(fail) == {"error": "ValueError: two"}
    assert gpu_epoch.attempt(lambda: {"a": 1}) == {"a": 1}
