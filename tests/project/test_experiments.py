"""The experiments run, on graphs of a few hundred vertices."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from experiments import (
    choices,
    estimator,
    first_hour,
    growth,
    ladder,
    larger_than_memory,
    mg_gcn,
    narrow_rows,
    paper,
    preprocess_rates,
    prune,
    published,
    ranks,
    readme,
    releases,
    sampled_accuracy,
    sampling,
)
from hongtu.bench import profile as measure
from hongtu.cli.main import main as hongtu_main
from hongtu.hardware import A100X4, load_hardware


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "citation"
    sizes = ["--vertices", "1600", "--edges", "9000", "--features", "12", "--classes", "4", "--seed", "1"]
    assert hongtu_main(["generate", "citation", str(path), *sizes]) == 0
    return path


def run(monkeypatch, experiment, *arguments):
    monkeypatch.setattr(sys, "argv", [experiment.__name__, *map(str, arguments)])
    experiment.main()


@pytest.mark.long
def test_ladder(graph, tmp_path, monkeypatch, capsys):
    out = tmp_path / "ladder.jsonl"
    options = ["--partitions", 2, "--hidden", 8, "--measure", 1, "--out", out]
    monkeypatch.setattr(ladder, "PAPER_CHUNKS", 8)
    monkeypatch.setattr(ladder, "FINER", 4)
    run(monkeypatch, ladder, graph, *options)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["rung"] for row in rows][:4] == ["none", "+ p2p", "+ reuse (paper)", "lookahead"]
    assert len(rows) == 3 + len(ladder.SAVINGS)
    host = [row["host_bytes"] for row in rows]
    assert host[0] >= host[1] >= host[2] > host[-1], "the paper's steps never add bytes, and the savings remove most"
    assert len({round(row["loss"], 4) for row in rows}) == 1, "every rung computes the same"
    assert all(row["parts"].keys() == ladder.PARTS.keys() for row in rows)
    assert "x paper" in capsys.readouterr().out


@pytest.mark.long
def test_ranks(graph, tmp_path, monkeypatch, capsys):
    out, artifact = tmp_path / "ranks.jsonl", tmp_path / "artifact"
    assert hongtu_main(["preprocess", str(graph), str(artifact), "--partitions", "3", "--chunks", "4"]) == 0
    run(monkeypatch, ranks, artifact, "--ranks", 3, "--hidden", 8, "--out", out)
    rows = {(row["layers"], row["dependencies"]): row for row in map(json.loads, out.read_text().splitlines())}
    assert len(rows) == 6 and rows[2, "cache"]["bytes"] == 0 < rows[2, "comm"]["bytes"]
    for layers in (2, 3):
        slowest = {name: max(rows[layers, name]["seconds"]) for name in ("cache", "comm", "hybrid")}
        assert slowest["hybrid"] == min(slowest.values())
        assert 0 < rows[layers, "comm"]["of_sar"] < 1 and 0 < rows[layers, "comm"]["halo_of_all_gather"] < 1
    assert "of SAR's rounds" in capsys.readouterr().out


def test_prune(graph, monkeypatch, capsys):
    options = ["--share", 0.05, "--features", "random:8", "--hidden", 8, "--epochs", 2]
    run(monkeypatch, prune, graph, *options)
    assert "5.0% labelled" in capsys.readouterr().out


def test_sampling(graph, tmp_path, monkeypatch, capsys):
    assert hongtu_main(["preprocess", str(graph), str(tmp_path / "artifact"), "--chunks", "4"]) == 0
    out = tmp_path / "sampling.jsonl"
    run(monkeypatch, sampling, tmp_path / "artifact", "--rounds", 2, "--batch-size", 100, "--out", out)
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["edges_drawn"]["hongtu"] > 0 and row["uniform"]["hongtu"] > 0.01
    for found in row["seeds_per_second"].values():
        assert all(len(found[kind]) == 2 and min(found[kind]) > 0 for kind in ("clock", "processor"))
    assert "seeds/s" in capsys.readouterr().out


def test_sampled_accuracy(graph, tmp_path, monkeypatch, capsys):
    """Structural features alone tell more than chance."""
    (tmp_path / "ogbn-arxiv").symlink_to(graph)
    monkeypatch.setenv("HONGTU_DATA", str(tmp_path))
    out = tmp_path / "accuracy.jsonl"
    run(monkeypatch, sampled_accuracy, "--graphs", "ogbn-arxiv", "--seeds", 2, "--out", out)
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(len(found) == 2 and min(found) > 0.4 for found in row["accuracy"].values()), row["accuracy"]
    assert "of 2 seeds" in capsys.readouterr().out


@pytest.mark.long
def test_growth(tmp_path, monkeypatch, capsys):
    """Every size against a reference of its own, though all are timed in turns."""
    sizes, out = (400, 1600), tmp_path / "growth.jsonl"
    run(monkeypatch, growth, "--work", tmp_path, "--sizes", *sizes, "--hidden", 8, "--epochs", 1, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["vertices"] for row in rows] == list(sizes)
    assert all(row["loss_agrees"] and row["counted_is_predicted"] for row in rows)
    assert len({row["reference_losses"][0] for row in rows}) == len(sizes)
    assert rows[0]["counted_bytes"] < rows[1]["counted_bytes"]
    assert "counted_bytes: exponent" in capsys.readouterr().out


@pytest.mark.long
def test_larger_than_memory(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    sizes = ["--vertices", 20_000, "--edges", 200_000, "--features", 32, "--chunks", 16]
    limits = ["--device-memory", "2MiB", "--host-memory", "520MiB"]
    run(monkeypatch, larger_than_memory, "--work", tmp_path, *sizes, *limits, "--models", "sage", "--out", out)
    (row,) = (json.loads(line) for line in out.read_text().splitlines())
    assert row["counted_is_predicted"] and row["disk_bytes"]["epoch"] > 0 and row["spilled"]
    assert sum(size for name, size in row["planned_bytes"].items() if name != "disk") <= 8 << 20
    assert row["peak_parts"]["planning"]["anonymous"] > 0 and "predicted" in capsys.readouterr().out
    papers = ["--form", "papers", "--memory", "1GiB", "--dtypes", "float32", "bfloat16", "--out", out]
    limits = ["--device-memory", "8MiB", "--host-memory", "1GiB"]
    run(monkeypatch, larger_than_memory, "--work", tmp_path, *sizes, *limits, *papers, "--models", "sage")
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    assert all(row["counted_is_predicted"] for row in rows)


@pytest.mark.long
def test_narrow_rows(graph, tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(narrow_rows, "GRAPHS", {"cora": narrow_rows.Graph(graph.name, 8, 3, 0.5)})
    for _ in range(2):  # nothing is trained twice
        run(monkeypatch, narrow_rows, "--data", graph.parent, "--graphs", "cora", "--seeds", 2, "--out", out)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert [row["form"] for row in rows] == 2 * [*narrow_rows.FORMS]
    assert all("bfloat16" in row["rows"].values() for row in rows if row["form"] != "float32")
    assert "0.00x" not in capsys.readouterr().out


@pytest.mark.long
def test_estimator(tmp_path, monkeypatch, capsys):
    held_out = (
        ("citation", "input", 1, "gcn", 8, 2, ("full", None)),
        ("citation", "clusters", 1, "gcn", 8, 2, ("full", 0.7)),
        ("rmat", "input", 2, "sage", 8, 2, ("paper", None)),
    )
    monkeypatch.setattr(estimator, "HELD_OUT", held_out)
    out = tmp_path / "estimator.jsonl"
    profile = tmp_path / "cpu.json"
    monkeypatch.setattr(measure, "REPEATS", 1)
    options = ["--profile", profile, "--vertices", 2000, "--epochs", 1, "--out", out]
    run(monkeypatch, estimator, "--work", tmp_path, *options)
    assert load_hardware(profile).flops > 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["model"], row["strategy"], row["share"]) for row in rows] == [
        ("gcn", "full", None), ("gcn", "full", 0.7), ("sage", "paper", None)
    ]  # fmt: skip
    assert all(row["error"] == row["predicted_seconds"] / row["seconds"] - 1 for row in rows)
    assert "of 3 within 15%" in capsys.readouterr().out


@pytest.mark.long
def test_choices(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(choices, "grid", lambda: [(1, "gcn", 8, None), (2, "gat", 8, "1%")])
    out, other = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    options = ["--work", tmp_path, "--vertices", 400]
    run(monkeypatch, choices, *options, "--out", other)
    kept, refused = (json.loads(line) for line in other.read_text().splitlines())
    assert kept["choice"]["chunks"] >= 1 and kept["seconds"] > 0 and refused["choice"] == "refused"
    other.write_text(json.dumps(kept | {"choice": kept["choice"] | {"fuse": "no"}}) + "\n" + json.dumps(refused))
    run(monkeypatch, choices, *options, "--out", out, "--against", other)
    said = capsys.readouterr().out
    assert "gcn 8, no limit: fuse no -> True" in said and "1 of 2 choose the same" in said


@pytest.mark.long
def test_preprocess_rates(graph, tmp_path, monkeypatch, capsys):
    out = tmp_path / "rates.jsonl"
    run(monkeypatch, preprocess_rates, graph, "--order", "input", "--scratch", tmp_path, "--out", out)
    (command,) = (json.loads(line) for line in out.read_text().splitlines())
    assert 0 < command["seconds_apart"] < command["seconds"] and command["peak_bytes"] < command["predicted_bytes"]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.long
def test_releases(tmp_path, monkeypatch, capsys):
    out = tmp_path / "releases.jsonl"
    monkeypatch.setattr(releases, "BUDGETS", (None,))
    monkeypatch.setattr(releases, "SLOWER", 1000)
    run(monkeypatch, releases, "HEAD", "--vertices", 300, "--epochs", 1, "--rounds", 1, "--models", "gcn", "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["what"] for row in rows] == ["preprocess", "gcn no limit"]
    assert all(row["ratio"] == row["now"] / row["before"] > 0 for row in rows)
    slower = {"what": "gcn"} | {
        f"{kind}{name}": value
        for kind in ("", "processor_")
        for name, value in (("before", 1.0), ("now", 2000.0), ("ratio", 2000.0))
    }
    monkeypatch.setattr(releases, "measured", lambda *_: [slower])
    with pytest.raises(SystemExit, match="slower than HEAD: gcn"):
        run(monkeypatch, releases, "HEAD")


def test_the_readme_says_what_the_results_say(tmp_path):
    text = readme.README.read_text()
    assert readme.written(text, readme.RESULTS) == text, "run python -m experiments.readme"
    row = {"experiment": "growth", "others": 0.0}
    rows = [row | {"vertices": v, "seconds": v / 1e5, "counted_bytes": v * 1000} for v in (10**5, 10**6)]
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "growth.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (line,) = readme.lines(tmp_path)
    assert "From 100,000 to 1,000,000 vertices" in line and "to the power of 1.00, memory to the power of 1.00" in line


@pytest.fixture
def published_tables():
    if not published.tables():
        pytest.skip(f"{published.PART} is not in the data directory (set HONGTU_DATA)")


@pytest.mark.long
def test_the_profile_of_the_papers_machine_predicts_the_held_out_times(published_tables):
    """The rates were fitted on half of the published times; what two tables have is in one half."""
    found = published.errors(A100X4, of_held_out=True)
    assert len(found) == 12
    fields = [(epoch.graph, epoch.model, epoch.layers, epoch.strategy) for epoch in published.epochs()]
    halves = {(field, published.held_out(epoch)) for field, epoch in zip(fields, published.epochs(), strict=True)}
    assert len(halves) == len(set(fields)) == 21
    assert np.median(found) <= 0.1 and found[-1] <= 0.37
    fitted = published.fit(A100X4)
    for name in published.FITTED:
        assert getattr(A100X4, name) == pytest.approx(getattr(fitted, name), rel=0.02)


@pytest.mark.long
def test_every_table_has_rows_and_says_what_they_are(published_tables):
    rows = list(paper.at_published_sizes())
    assert {row["table"] for row in rows} == set(paper.TABLES)
    for row in rows:
        kind, _, why = row["remark"].partition("; ")
        assert kind.startswith((paper.SYSTEM, paper.FULL, paper.HERE, "published"))
        assert (row["ours"] and row["published"]) or why, row
    full = [row for row in rows if row["table"] == "Table 6" and row["remark"].startswith(paper.FULL)]
    assert {row["graph"] for row in full} == set(published.LARGE)


def test_l_plus_3_buffers_fit_where_mg_gcn_ran(published_tables):
    """Its Table 3 has a time for every graph and number of GPUs whose buffers, features and edges fit, for no other."""
    known = published.tables()["mg-gcn"]
    ran = known["table_3_epoch_seconds"]
    for k, m in enumerate(ran["gpus"]):
        for graph, sizes in known["graphs"].items():
            nbytes = mg_gcn.shared_buffers(sizes["vertices"] / m, known["models"][graph]) + mg_gcn.input_bytes(graph, m)
            assert (nbytes <= A100X4.usable_memory) == (ran[graph][k] is not None), (graph, m)


@pytest.mark.long
def test_copies_beside_arithmetic_take_no_longer_than_in_turn(published_tables):
    rows = {(row["graph"], row["what"]): row for row in mg_gcn.at_published_sizes()}
    in_turn, beside = mg_gcn.OVERLAP.values()
    found = [(rows[graph, what.replace(beside, in_turn)], row) for (graph, what), row in rows.items() if beside in what]
    seconds = [[float(row["ours"].split()[0]) for row in pair] for pair in found]
    assert len(seconds) == 4 * 3 and all(0 < both <= turn for turn, both in seconds)
    assert all(both < turn for turn, both in seconds if turn > 0.02), "pulled rows arrive beside the last batch's sums"


def test_a_permutation_evens_out_the_blocks(tmp_path, monkeypatch):
    """A graph whose edges stay inside of eighths: every broadcast is used by one device, in the order of the input."""
    source, group = np.arange(1600), 200
    rng = np.random.default_rng(0)
    edges = np.stack((np.tile(source, 10), np.tile(source // group * group, 10) + rng.integers(0, group, 16000)))
    (tmp_path / "web-cnr-2000").mkdir()
    np.save(tmp_path / "web-cnr-2000" / "edges.npy", edges)
    monkeypatch.setenv("HONGTU_DATA", str(tmp_path))
    rows = {row["what"]: row for row in mg_gcn.here()}
    assert len(rows) == 2 * (1 + 1 + len(mg_gcn.OVERLAP)) and {row["graph"] for row in rows.values()} == {
        "web-cnr-2000"
    }
    part = np.arange(1600) * 8 // 1600
    assert mg_gcn.imbalance(part, edges, 8) == pytest.approx((1, 8), rel=0.1)
    device, steps = mg_gcn.imbalance(rng.permutation(part), edges, 8)
    assert 1 <= device <= steps < 1.3
    for m in (4, 8):
        turn, both = (float(rows[f"epoch, {m} GPUs, {how}"]["ours"].split()[0]) for how in mg_gcn.OVERLAP.values())
        assert 0 < both <= turn


def test_one_table_alone(tmp_path, monkeypatch):
    row = {"experiment": "preprocess", "others": 0.0, "graph": "g", "stages": {"read": 0.25}}
    (tmp_path / "preprocess.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(paper, "tables", dict)
    arguments = ["paper", "--work", str(tmp_path / "work"), "--results", str(tmp_path), "--only", "Table 9"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--out", str(tmp_path / "out.jsonl")])
    paper.main()
    (found,) = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert (found["table"], found["ours"], found["remark"]) == ("Table 9", "read 0.2 s", "measured here")
    assert not (tmp_path / "work").exists(), "what was not asked for was generated"


@pytest.mark.long
@pytest.mark.parametrize("graph", first_hour.GRAPHS)
def test_first_hour(graph, tmp_path, monkeypatch, capsys):
    """Without dropout both sides train the same numbers."""
    monkeypatch.setattr(first_hour, "EPOCHS", 3)
    out = tmp_path / "rows.jsonl"
    run(monkeypatch, first_hour, "--graphs", graph, "--models", "TransformerConv", "--seeds", 1, "--out", out)
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["test"]["hongtu"] == pytest.approx(row["test"]["torch_geometric"], abs=0.002) and row["graph"] == graph
    assert "0 of 1 further apart" in capsys.readouterr().out or row["test"]["hongtu"] != row["test"]["torch_geometric"]
