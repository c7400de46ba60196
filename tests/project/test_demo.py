"""``make demo``: on a generated graph and on the user's own, which it leaves alone."""

from __future__ import annotations

import re
import sys

import pytest

from experiments import demo
from tests.neutral import contents, pieces, write


def run(monkeypatch, capsys, *arguments):
    """The demo's output, after it has exited with 0."""
    monkeypatch.setattr(sys, "argv", ["demo", *arguments])
    assert demo.main() == 0
    return capsys.readouterr().out


def check_report(out, epochs):
    """What is printed keeps the budget, and every epoch was compared."""
    budget = float(re.search(r"the budget was ([\d.]+) MiB per device", out)[1])
    peaks = [float(peak) for peak in re.findall(r"peak device \d+ +([\d.]+) MiB", out)]
    assert len(peaks) == demo.DEVICES and 0 < max(peaks) <= budget
    assert len(re.findall(r"epoch +\d+  loss", out)) == 2 * epochs
    assert f"losses of all {epochs} epochs differ" in out


@pytest.mark.long
def test_generated_graph_and_then_the_same_as_the_users(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out = run(monkeypatch, capsys, "--vertices", "3000", "--edges", "20000")
    check_report(out, epochs=6)
    assert "has no" not in out
    before = contents(tmp_path / ".demo" / "graph")
    check_report(run(monkeypatch, capsys, "--graph", ".demo/graph", "--epochs", "2"), epochs=2)
    assert contents(tmp_path / ".demo" / "graph") == before


@pytest.mark.long
def test_users_graph_that_lacks_pieces_and_has_a_space_in_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arrays = {"edges": pieces(600, 3000)["edges"]}
    graph = write(tmp_path / "my graph", arrays)
    before = contents(graph)
    out = run(monkeypatch, capsys, "--graph", "my graph", "--epochs", "2")
    check_report(out, epochs=2)
    assert contents(graph) == before
    for piece, option in (
        ("features", "--features random:64"),
        ("labels", "--labels random:8"),
        ("masks", "--random-split 0.6,0.2,0.2"),
    ):
        assert f"my graph has no {piece}: the demo uses {option}" in out
    assert "too small for the demo's budget" in out and "smallest budget that works" in out


@pytest.mark.long
def test_ranks_beside_one_process(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    out = run(monkeypatch, capfd, "--vertices", "2000", "--edges", "9000", "--epochs", "3", "--ranks", "2")
    pairs = re.findall(r"^ +\d+ +(\d+\.\d+) +(\d+\.\d+)$", out, re.MULTILINE)
    assert len(pairs) == 3 and all(float(a) == pytest.approx(float(b), rel=1e-4) for a, b in pairs)
    assert len({a for a, _ in pairs}) == 3 and "losses differ by at most" in out


def test_bad_graph(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo", "--graph", "absent"])
    with pytest.raises(SystemExit, match="2"):
        demo.main()
    assert "absent: not a directory" in capsys.readouterr().err
    assert not (tmp_path / ".demo").exists()
