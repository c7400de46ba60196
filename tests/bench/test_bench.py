"""``hongtu bench``: every system trains the same model, what is timed was checked, and it goes on where it stopped."""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import signal
from contextlib import closing

import numpy as np
import pytest
import torch

import hongtu
from hongtu.bench import baselines, compare, process, profile
from hongtu.bench.records import OthersShare, forget_peak, peak_resident
from hongtu.bench.spec import SAMPLED, Model, Run
from hongtu.bench.worker import Order, make_system
from hongtu.cli import bench
from hongtu.cli.main import main as command
from hongtu.errors import BudgetError, InputError

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.usefixtures("forked_systems")
FORMS = ("pyg", "pyg-csr", "pyg-offload", "pyg-sparse", "dgl")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    sizes = ["--vertices", "900", "--edges", "6000", "--features", "12", "--classes", "4", "--seed", "1"]
    assert command(["generate", "rmat", str(folder / "graph"), *sizes]) == 0
    more = ["--partitions", "2", "--chunks", "8", "--order", "input"]
    assert command(["preprocess", str(folder / "graph"), str(folder / "artifact"), *more]) == 0
    return folder / "artifact"


@pytest.mark.long
@pytest.mark.parametrize("model", baselines.MODELS)
def test_every_form_trains_the_same_model(artifact, model):
    def losses(run):
        order = Order(artifact=str(artifact), model=Model(name=model, hidden=8, layers=3), run=run)
        system = make_system(order)
        return [system.step() for _ in range(3)], system.scores()

    own, scores = losses(Run(strategy="full"))
    assert own[2] < own[0] and 0 <= scores["val"] <= 1
    for form in FORMS:
        if baselines.missing(form, model) is None:
            found, other = losses(Run(system=form))
            assert found == pytest.approx(own, rel=1e-5), form
            assert other == pytest.approx(scores, abs=0.02), form


def test_a_baseline_gets_the_graph_as_it_was_given(tmp_path):
    """Numbers, rows and labels of the input, whatever order hongtu runs in; in the layout that torch is fast with."""
    generator = np.random.default_rng(0)
    edges, features = generator.integers(0, 200, (2, 1500)), generator.random((200, 4), dtype=np.float32)
    labels = generator.integers(0, 3, 200)
    train = generator.random(200) < 0.5
    hongtu.preprocess_graph(
        edges, 200, tmp_path / "artifact", features=features, labels=labels, masks={"train": train}, partitions=2,
        chunks=4, order="clusters",
    )  # fmt: skip
    order = Order(artifact=str(tmp_path / "artifact"), model=Model(name="sage", hidden=8), run=Run(system="pyg"))
    baseline = make_system(order)
    assert baseline.edges.is_contiguous()
    assert sorted(zip(*baseline.edges.tolist(), strict=True)) == sorted(zip(*edges.tolist(), strict=True))
    assert (baseline.edges[1].diff() >= 0).all()
    assert np.array_equal(baseline.features.numpy(), features)
    assert np.array_equal(baseline.labels.numpy(), labels)
    assert np.array_equal(baseline.masks["train"].numpy(), train)


def compared(artifact, model, runs, settings):
    return compare.compare([settings.order(artifact, model, run) for run in runs], settings)


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("model", ("gcn", "sage", "gat"))
def test_sar_trains_the_same_model(artifact, model):
    if baselines.missing("sar", model) is not None:
        pytest.skip(str(baselines.missing("sar", model)))
    runs = [Run(strategy="full"), Run(system="sar", ranks=2)]
    ours, theirs = compared(artifact, Model(name=model, hidden=8), runs, compare.Settings(epochs=1))
    assert ours["loss_agrees"] and theirs["loss_agrees"]
    assert (theirs["label"], theirs["ranks"]) == ("sar, 2 ranks", 2) and theirs["process_bytes"] > 0


@pytest.mark.long
@pytest.mark.parametrize("form", SAMPLED)
def test_sampled_mini_batches_learn(artifact, form):
    if baselines.missing(form, "sage") is not None:
        pytest.skip("neither pyg-lib nor torch-sparse is installed")
    order = Order(artifact=str(artifact), model=Model(name="sage", hidden=8), run=Run(system=form))
    assert "approximate" in order.run.label
    system, ours = make_system(order), make_system(Order(**order.__dict__ | {"run": Run(strategy="full")}))
    assert system.loss() == pytest.approx(ours.step(), rel=1e-5)
    assert system.step() > 0 and system.loss() < ours.record.loss


@pytest.mark.long
def test_bench_writes_checked_rows_and_resumes(artifact, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    arguments = ["bench", str(artifact), "--models", "gcn", "--hidden", "8"]
    arguments += ["--budgets", "none,60%", "--baselines", "pyg-csr,dense", "--epochs", "2", "--accuracy", "2"]
    assert command([*arguments, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["system"] for row in rows] == ["hongtu"] * 2 + ["pyg-csr", "dense"]
    assert [row["loss_agrees"] for row in rows] == [True] * 3 + [None]
    assert all(row["spread"][0] <= row["seconds"] <= row["spread"][1] for row in rows)
    assert all(row["reference"] == "pyg-csr" and row["process_bytes"] > 0 for row in rows)
    ours = rows[:2]
    assert all(row["counted_is_predicted"] and row["predicted_seconds"] > 0 for row in ours)
    assert all(math.isclose(sum(row["phases"].values()), row["seconds"], rel_tol=0.6) for row in ours)
    assert ours[1]["budget"] == int(0.6 * ours[0]["need"]) >= ours[1]["need"]
    assert [point["epoch"] for point in ours[0]["curve"]] == [1, 2] and "curve" not in rows[3]
    text = capsys.readouterr().out
    assert "pyg-csr" in text and "over the host link" in text
    assert command([*arguments, "--out", str(out)]) == 0
    assert out.read_text().count("\n") == len(rows), "what was there was measured again"
    rows[2]["loss_agrees"] = False
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command([*arguments, "--out", str(out)]) == 0
    again = [json.loads(line) for line in out.read_text().splitlines()][len(rows) :]
    assert [(row["system"], row["loss_agrees"]) for row in again] == [("pyg-csr", True)], "what had failed is not done"


@pytest.mark.long
def test_sampled_stands_beside_full(artifact, capsys):
    """Seconds of an epoch, and accuracy over time, of both; checked before it has learned."""
    arguments = ["bench", str(artifact), "--models", "sage", "--hidden", "8", "--baselines", "loader", "--together"]
    assert command([*arguments, "--epochs", "1", "--accuracy", "1s"]) == 0
    ours, sampled = capsys.readouterr().out.splitlines()[1:3]
    assert re.search(r"\d% of the roofline", ours)
    assert "hongtu full" in ours and "loader (sampled: approximate)" in sampled
    assert all(re.search(r"\d s \[.*x .*val 0\.\d+ after \d+\.\d s", line) for line in (ours, sampled))


@pytest.mark.long
def test_together_all_systems_share_a_process(artifact, tmp_path, capsys, monkeypatch):
    started = []
    monkeypatch.setattr(process.Process, "__init__", counting(process.Process.__init__, started))
    out = tmp_path / "rows.jsonl"
    arguments = ["--models", "gcn,sage", "--hidden", "8", "--budgets", "none,60%", "--epochs", "1", "--accuracy", "1"]
    command_line = ["bench", str(artifact), *arguments, "--baselines", "pyg,dense", "--together", "--out", str(out)]
    assert command(command_line) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 8 and len(started) == 1
    assert all(row["loss_agrees"] or row["system"] == "dense" for row in rows)
    assert all(row["seconds"] > 0 and "process_bytes" not in row for row in rows)
    assert all(row["counted_is_predicted"] and row["memory"] for row in rows if row["system"] == "hongtu")
    assert "MiB over the host link" in capsys.readouterr().out


@pytest.mark.long
def test_ranks_stand_beside_one_process(artifact, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    arguments = ["bench", str(artifact), "--hidden", "8", "--ranks", "1,2", "--dependencies", "comm", "--epochs", "1"]
    assert command([*arguments, "--baselines", "pyg", "--together", "--out", str(out)]) == 0
    alone, shared, _ = (json.loads(line) for line in out.read_text().splitlines())
    assert (alone["ranks"], shared["ranks"], shared["dependencies"]) == (1, 2, "comm")
    assert all(row["loss_agrees"] and row["counted_is_predicted"] for row in (alone, shared))
    assert alone["bytes"]["fetch"] == 0 < shared["bytes"]["fetch"] == shared["bytes"]["send"]
    assert any(name.startswith("rank 1, ") for name in shared["memory"])
    assert "hongtu full, 2 ranks, comm" in capsys.readouterr().out
    with closing(process.Worker(Order(artifact=str(artifact), model=Model(name="gcn"), run=Run(ranks=2)))) as ranks:
        os.kill(next(iter(ranks._processes[1]._pool._processes)), signal.SIGKILL)
        with pytest.raises(RuntimeError, match="hongtu None, 2 ranks, cache: its process was killed"):
            ranks.epoch()


def counting(function, calls):
    def call(*args, **options):
        calls.append(args)
        return function(*args, **options)

    return call


@pytest.mark.long
def test_another_loss_is_not_timed(artifact, monkeypatch):
    monkeypatch.setattr(compare, "reference_of", lambda model: Run(system="pyg"))
    model, settings = Model(name="gcn", hidden=8), compare.Settings(epochs=1)
    monkeypatch.setattr(compare, "TOLERANCE", -1.0)  # nothing agrees
    (row,) = compared(artifact, model, [Run(strategy="full")], settings)
    assert not row["loss_agrees"] and "seconds" not in row and row["losses"][0] > 0


@pytest.mark.parametrize(
    "more, message",
    [
        (["--models", "gpt"], "--models gpt: expected some of gcn"),
        (["--baselines", "tensorflow"], "expected one of pyg, "),
        (["--strategies", "best"], "strategy 'best': expected one of"),
        (["--budgets", "300%"], "expected a percentage"),
        (["--epochs", "0"], "--epochs 0: expected at least 1"),
        (["--ranks", "0"], "--ranks 0: expected numbers of processes"),
        (["--baselines", "sar"], "--baselines sar: runs on ranks alone; give --ranks 2 or more"),
        (["--ranks", "99"], "start at most"),
        (["--dependencies", "none"], "--dependencies none: expected one of cache, comm, hybrid"),
        (["--out", "/nowhere/rows.jsonl"], "expected a file in a directory that exists"),
        (["--hardware", "abacus"], "doctor --measure"),
        (["--budgets", "1KiB"], "hongtu full, 1.0 KiB: device_memory is 1024 bytes (1.0 KiB), the smallest"),
    ],
)
def test_bad_arguments_are_one_line(artifact, more, message, capsys):
    assert command(["bench", str(artifact), *more]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("hongtu: ") and message in error


def test_a_budget_that_does_not_fit_is_known_before_anything_starts(artifact):
    model, settings = Model(name="gcn", hidden=8), compare.Settings()
    opened = hongtu.open_artifact(artifact)
    refused = bench._refusal(opened, model, Run(strategy="full", budget=10), settings)
    assert refused.smallest > 10 and "smallest that works" in str(refused)
    for run in (Run(strategy="full"), Run(strategy="full", budget=refused.smallest), Run(system="pyg")):
        assert bench._refusal(opened, model, run, settings) is None


def test_a_budget_that_does_not_fit_is_a_line_and_the_others_go_on(artifact, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(compare, "in_memory_need", lambda *_: 1000)
    monkeypatch.setattr(compare, "compare", lambda orders, *_: ran.extend(order.run.label for order in orders) or [])
    monkeypatch.setattr(bench, "_least_seconds", lambda *_: None)
    monkeypatch.setattr("hongtu.bench.records.table", lambda *_: "the others")
    options = ["--models", "gcn", "--hidden", "8", "--budgets", "none,1%"]
    assert command(["bench", str(artifact), *options]) == 0
    first, others = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"gcn, hongtu full, [\d.]+ (K?i?B) = 1%: does not fit: the smallest is [\d.]+ KiB = [\d.]+%", first
    )
    assert ran == ["hongtu full"] and others == "the others"


def test_what_is_missing_comes_with_its_pip_line(monkeypatch):
    monkeypatch.setattr(baselines, "importable", lambda name: False)
    assert "pip install torch_geometric" in baselines.missing("pyg", "gcn")
    assert baselines.missing("dense", "gcn") is None
    assert compare.reference_of(Model(name="gcn")) == Run(strategy="none")
    monkeypatch.setattr(baselines, "importable", lambda name: name == "torch_geometric")
    assert "torch-sparse" in baselines.missing("pyg-loader", "gcn")


@pytest.mark.long
def test_a_worker_that_refuses_or_dies_says_so(artifact, tmp_path):
    model, settings = Model(name="gcn", hidden=8), compare.Settings()
    with pytest.raises(BudgetError, match="smallest that works") as refused:
        compared(artifact, model, [Run(strategy="full", budget=10)], settings)
    assert refused.value.smallest > 10
    with pytest.raises(InputError, match="absent"):
        compare.in_memory_need(tmp_path / "absent", model, settings)
    with closing(process.Process()) as shared:  # which goes on after it has refused something
        together = compare.Settings(epochs=1, process=shared)
        with pytest.raises(BudgetError, match="smallest that works"):
            compared(artifact, model, [Run(strategy="full", budget=size) for size in (10, 2**30)], together)
        assert compare.in_memory_need(artifact, model, together) > 10
        (row,) = compared(artifact, model, [Run(strategy="full")], together)
        assert row["loss_agrees"]


def test_ranks_are_one_system():
    """Time of the slowest, bytes of all; what each takes of the machine is nobody else's."""
    epochs = [
        {"loss": 1.0, "seconds": 2.0, "others": 0.5, "own": 0.25, "bytes": {"fetch": 3}},
        {"loss": 1.0, "seconds": 3.0, "others": 0.25, "own": 0.5, "bytes": {"fetch": 4}},
    ]
    found = process.of_ranks(epochs)
    assert found == {"loss": 1.0, "seconds": 3.0, "others": 0.0, "own": 0.75, "bytes": {"fetch": 7}}


def test_memory_and_other_processes_are_seen():
    forget_peak()
    before = peak_resident()
    with mmap.mmap(-1, 2**26) as held:  # not what malloc kept from before
        held.write(bytes(2**26))
        assert peak_resident() - before > 0.9 * 2**26
    assert 0 <= OthersShare().stop(0.5) <= 1
    assert hongtu.__version__


def test_the_roofline_counts_what_no_system_can_leave_out(artifact):
    """Two layers of GCN: every product and gradient once; the second sum, forward and back; the first never changes."""
    opened, fast = hongtu.open_artifact(artifact), 1e30
    layers = [hongtu.nn.GCNConv(12, 8, activation=torch.nn.ReLU()), hongtu.nn.GCNConv(8, 4)]
    plan = hongtu.plan_model(opened, layers)
    kinds = "stream", "far_rows", "near_rows", "products"

    def bound(kind, cache_bytes=None):
        return profile.least_seconds(plan, profile.Rates(**dict.fromkeys(kinds, fast) | {kind: 1.0}), cache_bytes)

    v, e = opened.num_vertices, opened.topology.num_edges
    assert bound("products") == pytest.approx(2 * v * (2 * (12 * 8 + 8 * 4) + 8 * 4))
    assert bound("far_rows") == pytest.approx(2 * e * 4 * 4)
    assert bound("far_rows", cache_bytes=1 << 30) < bound("far_rows"), "a cache finds some"
    assert bound("stream") >= 4 * v * (12 + 8 + 8 + 4), "what the products take and give"
    assert all(rate > 1e6 for rate in vars(profile.measured_rates()).values())
