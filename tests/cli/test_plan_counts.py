"""``hongtu plan`` from counts alone: near the plan of a graph that has them, of each kind of generated graph."""

from __future__ import annotations

import json
import re

import pytest

import hongtu
from hongtu.cli import plan_counts
from hongtu.cli.main import main
from hongtu.config import PreprocessConfig
from hongtu.plan.search.host import PROCESS
from hongtu.preprocess.entry import preprocess_directory
from hongtu.preprocess.generate import KINDS, generate

VERTICES, EDGES, FEATURES, CLASSES = 3_000, 30_000, 64, 8
COUNTS = ["--vertices", VERTICES, "--edges", EDGES, "--features", FEATURES, "--classes", CLASSES, "--partitions", 1]
MODEL = ["--model", "gcn", "--hidden", 64, "--json"]


def planned(capsys, *argv):
    assert main(["plan", *map(str, argv)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """An artifact of each kind, of another seed than the small graphs."""
    folder = tmp_path_factory.mktemp("graphs")
    found = {}
    for kind in KINDS:
        sizes = {"vertices": VERTICES, "edges": EDGES, "features": FEATURES, "classes": CLASSES}
        generate(kind, folder / kind, seed=7, **sizes)
        config = PreprocessConfig(partitions=1, chunks="auto")
        found[kind] = preprocess_directory(folder / kind, folder / f"{kind} artifact", config).path
    return found


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("budget", [None, "1MiB"])
def test_bytes_are_those_of_a_graph_with_these_counts(budget, graphs, capsys, monkeypatch):
    """Within 15%, from graphs of two fifths of the size."""
    monkeypatch.setattr(plan_counts, "EDGES", EDGES * 2 // 5)
    options = [*MODEL, *([] if budget is None else ["--device-memory", budget])]
    kinds = planned(capsys, *COUNTS, *options)["kinds"]
    for kind, path in graphs.items():
        true, found = planned(capsys, path, *options), kinds[kind]
        assert sum(found["bytes"].values()) == pytest.approx(sum(true["bytes"].values()), rel=0.15), kind
        assert found["seconds_per_epoch"] == pytest.approx(true["seconds_per_epoch"], rel=0.15), kind
        for memory in true["peak_bytes"] if budget is None else ():
            assert found["peak_bytes"][memory] == pytest.approx(true["peak_bytes"][memory], rel=0.15), (kind, memory)


@pytest.mark.long
def test_what_a_host_has_beside_the_process_is_as_much_smaller(capsys, monkeypatch, tmp_path):
    """Of the process there is one, whatever the graph."""
    monkeypatch.setattr(plan_counts, "EDGES", EDGES * 2 // 5)
    limits = ["--device-memory", "1MiB", "--host-memory", "530MiB", "--spill", tmp_path]
    for found in planned(capsys, *COUNTS, *MODEL, *limits)["kinds"].values():
        assert sum(found["peak_bytes"].values()) <= 18 << 20 and not found["bytes"]["disk"]


def test_a_host_that_is_too_small_for_the_graph_itself(graphs, capsys, monkeypatch, tmp_path):
    """Tables of chunks, of which a smaller graph has as many, do not grow with it; what a run needs does."""
    monkeypatch.setattr(plan_counts, "EDGES", EDGES * 2 // 5)
    limits = [*MODEL, "--device-memory", "1MiB", "--host-memory", PROCESS + (1 << 20), "--spill", tmp_path]
    needs = []
    for given in (COUNTS, [graphs["citation"]]):
        assert main(["plan", *map(str, given), *map(str, limits)]) == 2
        err = capsys.readouterr().err
        assert f"host_memory is {PROCESS + (1 << 20)}" in err
        needs.append(int(re.search(r"the run needs (\d+)", err)[1]) - PROCESS)
    assert needs[0] == pytest.approx(needs[1], rel=0.3)


@pytest.mark.parametrize("options, expected", [
    (["--vertices", 10], "--edges, --features, --classes: missing"), (["--like", "ogbn-paper100M"], "ogbn-papers100M"),
    (["artifact", "--like", "ogbn-arxiv"], "leave --like and its counts out"),
    (["a", "--partitions", 2], "leave them out"),
    (["--like", "ogbn-arxiv", "--train-share", 2], "a share up to 1"),
    (["--like", "igb-tiny", "--explain"], "--explain"),
    (["--like", "ogbn-arxiv", "--edges", 0], "positive numbers"), (["--like", "ogbn-arxiv", "--ranks", 2], "--ranks"),
])  # fmt: skip
def test_refusals(options, expected, capsys):
    assert main(["plan", *map(str, options)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and expected in err and err.count("\n") == 1


LIKE_ARXIV = ["--like", "ogbn-arxiv", "--model", "gcn", "--hidden", "16", "--layers", "2"]


def test_a_table_for_people(capsys, monkeypatch):
    monkeypatch.setattr(plan_counts, "EDGES", 4_000)
    assert main(["plan", *LIKE_ARXIV]) == 0
    out = capsys.readouterr().out
    for part in (
        "169,343 vertices, 1,166,243 edges",
        "citation",
        "web",
        "rmat",
        "replication factor",
        "device 0, peak",
    ):
        assert part in out


@pytest.mark.long
def test_the_least_memory(capsys, monkeypatch):
    monkeypatch.setattr(plan_counts, "EDGES", 8_000)
    assert main(["plan", *LIKE_ARXIV, "--device-memory", "100KiB"]) == 2
    error = capsys.readouterr().err
    assert "device_memory is 100KiB: a graph of these counts that is like citation takes about" in error


def test_hubs_are_spread_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_counts, "EDGES", 20_000)
    counts = plan_counts.GraphCounts(100_000, 1_000_000, 8, 4)
    made = [plan_counts.small_graph("rmat", counts, 1, tmp_path / str(hubs), hubs=hubs) for hubs in (True, False)]
    most = [artifact.manifest["statistics"]["max_in_degree"] for artifact in made]
    assert most[1] < most[0] / 2 and {artifact.num_edges for artifact in made} == {20_000}
    assert {artifact.feature_width for artifact in map(hongtu.open_artifact, (a.path for a in made))} == {1}
