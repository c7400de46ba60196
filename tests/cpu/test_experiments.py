"""The experiments run, on graphs of a few hundred vertices."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import pytest

from experiments import ladder, preprocess_rates, prune
from hongtu.cli.main import main as hongtu_main


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "citation"
    sizes = ["--vertices", "1600", "--edges", "9000", "--features", "12", "--classes", "4", "--seed", "1"]
    assert hongtu_main(["generate", "citation", str(path), *sizes]) == 0
    return path


def run(monkeypatch, experiment, *arguments):
    monkeypatch.setattr(sys, "argv", [experiment.__name__, *map(str, arguments)])
    experiment.main()


def test_ladder(graph, tmp_path, monkeypatch, capsys):
    out, plot = tmp_path / "ladder.jsonl", tmp_path / "ladder.svg"
    options = ["--partitions", 2, "--hidden", 8, "--measure", 1, "--out", out, "--plot", plot]
    run(monkeypatch, ladder, graph, *options)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["rung"] for row in rows][:4] == ["none", "+ p2p", "+ reuse (paper)", "lookahead"]
    assert len(rows) == 3 + len(ladder.SAVINGS)
    host = [row["host_bytes"] for row in rows]
    assert host[0] >= host[1] >= host[2] > host[-1], "the paper's steps never add bytes, and the savings remove most"
    assert len({round(row["loss"], 4) for row in rows}) == 1, "every rung computes the same"
    bars = ElementTree.parse(plot).getroot()
    assert len([e for e in bars.iter() if e.tag.endswith("rect")]) == 1 + len(rows) * len(ladder.PARTS) + len(
        ladder.PARTS
    )
    assert "x paper" in capsys.readouterr().out


def test_prune(graph, monkeypatch, capsys):
    options = ["--share", 0.05, "--features", "random:8", "--hidden", 8, "--epochs", 2]
    run(monkeypatch, prune, graph, *options)
    assert "5.0% labelled" in capsys.readouterr().out


def test_preprocess_rates(graph, tmp_path, monkeypatch, capsys):
    out = tmp_path / "rates.jsonl"
    run(monkeypatch, preprocess_rates, graph, "--kernels", "--order", "input", "--scratch", tmp_path, "--out", out)
    kernels, command = (json.loads(line) for line in out.read_text().splitlines())
    assert kernels["csc_per_second"] > 0 and kernels["plain_sort_seconds"] >= 0
    assert 0 < command["seconds_apart"] < command["seconds"] and command["peak_bytes"] < command["predicted_bytes"]
    assert list(tmp_path.iterdir()) == [out]
