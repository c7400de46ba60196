"""`hongtu plan`, `doctor` and what `info` adds: predicted is counted, refusals, shapes of the output."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

import hongtu
import hongtu.bench.profile
from hongtu.cli import doctor
from hongtu.cli.main import main
from hongtu.cli.plan_text import PAPERS
from hongtu.hardware import CPU, load_hardware
from hongtu.model.named import build_layers
from hongtu.plan.cache.transfer import plan_transfers
from hongtu.plan.passes.shapes import Products, StageWork, Sweeps
from hongtu.train.planning import plan_model
from tests import problems, training
from tests.models import SIX

MODELS = (["--model", "gcn", "--hidden", "8", "--layers", "3"], ["--model", "gat", "--hidden", "8", "--heads", "2"])


@pytest.fixture(scope="module")
def artifact():
    return problems.prepare(problems.awkward(), 2, 6)


def output(capsys, *argv):
    """Exit code 0, nothing on stderr; what went to stdout."""
    assert main([str(word) for word in argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refusal(capsys, *argv):
    """Exit code 2, one line on stderr, nothing on stdout."""
    assert main([str(word) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hongtu: ") and err.count("\n") == 1
    return err


@pytest.mark.long
@pytest.mark.parametrize("model", ["gatv2", "transformer", "pna", "sgc", "appnp"])
def test_predicted_is_counted_for_every_named_model(artifact, model, capsys):
    options = [artifact.path, "--model", model, "--hidden", "8", "--heads", "2", "--dropout", "0.1", "--json"]
    plan = json.loads(output(capsys, "plan", *options))
    run = json.loads(output(capsys, "train", *options, "--epochs", 2))
    assert plan["bytes"] == run["bytes"] and np.isfinite(run["loss"])


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model[1])
@pytest.mark.parametrize("budget", ([], ["--device-memory", "40KiB"]), ids=("no-limit", "budget"))
@pytest.mark.parametrize("strategy", training.STRATEGIES)
def test_predicted_is_counted(artifact, model, budget, strategy, capsys):
    options = [artifact.path, *model, *budget, "--strategy", strategy, "--json"]
    plan = json.loads(output(capsys, "plan", *options))
    run = json.loads(output(capsys, "train", *options, "--epochs", 1))
    assert plan["bytes"] == run["bytes"] and plan["rows"] == run["rows"]
    assert plan["peak_bytes"].keys() == run["peak_bytes"].keys()
    hosts = ("pinned host", "pageable host")
    assert all(0 < run["peak_bytes"][name] <= plan["peak_bytes"][name] for name in hosts)
    if budget:
        assert plan["device_memory"] == 40 * 1024
        for name in plan["peak_bytes"].keys() - set(hosts):
            assert run["peak_bytes"][name] <= plan["peak_bytes"][name] <= plan["device_memory"]


def test_plan_json(artifact, capsys):
    plan = json.loads(output(capsys, "plan", artifact.path, "--device-memory", "80KiB", "--json"))
    keys = {"rows", "bytes", "peak_bytes", "seconds_per_epoch", "grain", "capacities", "ladder", "passes", "hardware"}
    assert keys <= plan.keys()
    for link, total in plan["bytes"].items():
        assert total == sum(p["bytes"][link] for p in plan["passes"])
    assert plan["seconds_per_epoch"] == pytest.approx(sum(plan["seconds"].values()))
    assert plan["seconds_per_epoch"] == pytest.approx(sum(p["seconds"] for p in plan["passes"]))
    assert 1 <= plan["grain"] <= plan["chunks"] == 6
    assert all(len(slots) == 2 for slots in plan["capacities"].values()) and plan["capacities"]
    assert max(p["arena_bytes"]["device 0"] for p in plan["passes"]) == plan["arena_bytes"]["device 0"]


def test_ladder_equals_info(artifact, capsys):
    info = json.loads(output(capsys, "info", artifact.path, "--json"))
    plan = json.loads(output(capsys, "plan", artifact.path, "--device-memory", "64KiB", "--json"))
    volume = info["volume"][plan["ladder_order"]]
    assert volume["v_ru"] == min(v["v_ru"] for v in info["volume"].values())
    rows = [volume["v_ori"], volume["v_p2p"], volume["v_ru"], info["lookahead"]["rows"]]
    assert [rung["rows"] for rung in plan["ladder"]] == rows
    assert plan["floor"] == info["lookahead"]["floor"] <= rows[-1] <= info["volume"]["input"]["v_ru"]
    assert len({rung["bytes"] / rung["rows"] for rung in plan["ladder"]}) == 1


def test_info_has_equation_4_of_a_device(artifact, capsys):
    info = json.loads(output(capsys, "info", artifact.path, "--json"))
    rows, found, a100 = info["volume"]["paper"], info["equation4"], load_hardware("a100x4")
    over_links = rows["v_ru"] / a100.host_link + 2 * (rows["v_p2p"] - rows["v_ru"]) / a100.memory_bandwidth
    over_links += (rows["v_ori"] - rows["v_p2p"]) / a100.peer_link
    assert found["row_bytes"] == 4 * artifact.feature_width
    assert found["seconds"]["paper"] == pytest.approx(found["row_bytes"] * over_links / info["partitions"])
    assert "Equation 4, features, a100x4" in output(capsys, "info", artifact.path)


def test_info_plans_lookahead_in_the_papers_buffer(artifact, capsys):
    found = json.loads(output(capsys, "info", artifact.path, "--json"))["lookahead"]
    schedule = np.int32([range(6)] * 2)
    paper = plan_transfers(artifact.topology, schedule, "paper")
    assert found["capacity"] == [device.capacity for device in paper.devices]
    planned = plan_transfers(artifact.topology, schedule, "lookahead", found["capacity"])
    assert found["pulled"] == planned.rows_pulled
    assert found["rows"] == planned.rows_loaded
    text = output(capsys, "info", artifact.path)
    assert f"{found['rows']:,} (" in text and f"{found['floor']:,} (" in text and "lookahead" in text


def test_strategy_paper_loads_what_info_says(artifact, capsys):
    """Three ways to the paper's V_+ru: counted by preprocessing, planned, and in the ladder."""
    info = json.loads(output(capsys, "info", artifact.path, "--json"))
    plan = json.loads(output(capsys, "plan", artifact.path, "--model", "sage", "--strategy", "paper", "--json"))
    loads = {p["rows"]["load"] for p in plan["passes"] if p["exchanges"]}
    assert loads == {info["volume"]["paper"]["v_ru"]}


def test_tables_for_people(artifact, capsys, tmp_path):
    svg = tmp_path / "traffic.svg"
    text = output(capsys, "plan", artifact.path, "--device-memory", "1MiB", "--explain", "--plot", svg)
    parts = (
        "forward 0",
        "backward 0",
        "setup 0",
        "+ reuse (paper)",
        "lookahead",
        "floor",
        "device 1",
        "1.0 MiB",
        "s per epoch",
    )
    for part in (*parts, "exchanges", "checkpoints", "a0 [6", "flushes", "frees"):
        assert part in text, part
    assert "no limit" in output(capsys, "plan", artifact.path, "--model", "gat")
    root = ElementTree.parse(svg).getroot()
    assert any("this plan" in (element.text or "") for element in root.iter())
    output(capsys, "info", artifact.path, "--plot", tmp_path / "info.svg")
    ElementTree.parse(tmp_path / "info.svg")


@pytest.mark.long
def test_ranks_are_planned_without_starting_any(artifact, capsys):
    found = json.loads(output(capsys, "plan", artifact.path, "--ranks", "2", "--layers", "3", "--json"))
    assert found["first_fetched"] is None and all(rank["bytes"]["fetch"] == 0 for rank in found["ranks"])
    options = ("--ranks", "2", "--layers", "3", "--dependencies", "comm")
    found = json.loads(output(capsys, "plan", artifact.path, *options, "--json"))
    assert found["first_fetched"] == 1 and len(found["ranks"]) == 2
    for rank in found["ranks"]:
        assert rank["replicas"] == 0 < rank["halo"] == rank["held"] - rank["own"]
        assert rank["rows"]["fetch"] == rank["rows"]["send"] == 2 * rank["halo"]
    text = output(capsys, "plan", artifact.path, *options)
    assert "from layer 1 on" in text and f"{found['ranks'][1]['held']:,}" in text
    assert "leave --ranks out" in refusal(capsys, "plan", artifact.path, *options, "--explain")
    assert "expected at least 2" in refusal(capsys, "plan", artifact.path, "--ranks", "1")
    limits = ("--ranks", "2", "--host-memory", "1GiB", "--device-memory", "1MiB")
    found = json.loads(output(capsys, "plan", artifact.path, *limits, "--json"))
    assert found["host_memory"] == 1 << 30 and len(found["ranks"]) == 2
    assert "the run needs" in refusal(capsys, "plan", artifact.path, *limits, "--host-memory", "512MiB")
    found = json.loads(output(capsys, "plan", artifact.path, *limits, "--spill", ".", "--host-dtype", "bf16", "--json"))
    assert found["host_dtype"] == "bfloat16" and not any(rank["spilled"] for rank in found["ranks"])
    assert "partitions for 9 ranks" in refusal(capsys, "plan", artifact.path, "--ranks", "9")


def test_ranks_that_share_a_host(capsys, tmp_path):
    artifact = problems.prepare(problems.awkward(), 4, 3)
    hosts = tmp_path / "hosts.json"
    hosts.write_text('{"hosts": ["a", "a", "b", "b"]}')
    options = ("plan", artifact.path, "--ranks", "4", "--dependencies", "comm")
    direct, routed = (json.loads(output(capsys, *options, *more, "--json")) for more in ((), ("--topology", hosts)))
    assert (direct["rounds"], routed["rounds"]) == (1, 2)
    assert [rank["bytes"] for rank in direct["ranks"]] == [rank["bytes"] for rank in routed["ranks"]]
    assert "in 2 rounds by way of ranks" in output(capsys, *options, "--topology", hosts)
    assert "give --ranks, too" in refusal(capsys, "plan", artifact.path, "--topology", hosts)
    assert "one for each of 2 ranks" in refusal(capsys, "plan", artifact.path, "--ranks", "2", "--topology", hosts)


def test_what_stays_is_marked_wherever_it_is_named(artifact, capsys):
    passes = json.loads(output(capsys, "plan", artifact.path, "--json"))["passes"]
    named = [{*p["creates"], *p["frees"], *p["reads"], *p["writes"]} for p in passes]
    stays = set().union(*(p["resident"] for p in passes))
    assert {"a0", "z1", "grad z1"} <= stays
    assert [set(p["resident"]) & names for p, names in zip(passes, named, strict=True)] == [stays & n for n in named]


def test_a_plot_without_matplotlib_names_the_extra(artifact, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for command in ("plan", "info"):
        assert "hongtu[report]" in refusal(capsys, command, artifact.path, "--plot", tmp_path / "chart.svg")


def test_refusals(artifact, capsys, tmp_path):
    smallest = refusal(capsys, "plan", artifact.path, "--device-memory", "100")
    assert "device_memory is 100 bytes, the smallest that works is" in smallest
    assert smallest == refusal(capsys, "train", artifact.path, "--device-memory", "100")
    assert "expected cpu, a100x4, a5000, h200" in refusal(capsys, "plan", artifact.path, "--hardware", "abacus")
    assert "not an artifact" in refusal(capsys, "plan", tmp_path / "nothing")
    assert "not a multiple of heads" in refusal(capsys, "plan", artifact.path, "--model", "gat", "--heads", "3")
    for command in ("plan", "info"):
        assert "ending in .svg" in refusal(capsys, command, artifact.path, "--plot", tmp_path / "chart.png")
        assert "directory that exists" in refusal(
            capsys, command, artifact.path, "--plot", tmp_path / "no" / "chart.svg"
        )
    assert "directory that exists" in refusal(capsys, "doctor", "--measure", tmp_path / "no" / "profile.json")
    assert "is for --measure" in refusal(capsys, "doctor", "--spill", tmp_path)


def test_a_profile_decides_memory_and_seconds(artifact, capsys, tmp_path):
    server = json.loads(output(capsys, "plan", artifact.path, "--hardware", "a100x4", "--json"))
    assert server["hardware"] == "a100x4" and server["device_memory"] == load_hardware("a100x4").usable_memory
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps(replace(CPU, name="mine", host_link=1.0).to_dict()))
    plan = json.loads(output(capsys, "plan", artifact.path, "--hardware", mine, "--json"))
    assert plan["seconds"]["load"] == plan["bytes"]["load"] and plan["device_memory"] is None


def test_plan_model_is_the_trainers_plan(artifact):
    """From Python too, and training afterwards with the same layers is possible."""
    layers = build_layers("sage", artifact.feature_width, 8, artifact.num_classes, 2)
    plan = plan_model(artifact, layers, device_memory="30KiB")
    assert plan_model(artifact.path, layers, device_memory="30KiB").bytes == plan.bytes
    trainer = hongtu.Trainer(artifact, layers, device_memory="30KiB")
    assert plan.bytes == trainer.plan.bytes == trainer.train_epoch().bytes
    assert plan.peak_bytes == trainer.plan.peak_bytes
    first, last = Products(2 * 6 * 8, 2 * (6 + 8)), Products(2 * 8 * 3, 2 * (8 + 3))
    work = StageWork(products=first + last, entry=first, mapped=last, widest=8)
    found = [replace(stage, sweeps=Sweeps()) for stage in plan.shape.stage_work]
    assert found == [StageWork(), work, StageWork()]  # layer 0's sum is kept, layer 1 narrows first


def test_doctor(capsys, monkeypatch):
    found = json.loads(output(capsys, "doctor", "--json"))
    assert found["torch"] and found["cores"] >= 1 and found["memory"] > 0
    assert found["packages"]["torch_geometric"] is not None
    text = output(capsys, "doctor")
    can, _, cannot = text.partition("It cannot")
    assert f"train on the CPU: {found['cores']} cores" in can and "convert and wrap torch_geometric's models" in can
    monkeypatch.setattr(
        "hongtu.bench.records.version_of", lambda name: None if name in ("kaminpar", "cuda-bindings") else "1.0"
    )
    cannot = output(capsys, "doctor").partition("It cannot")[2]
    assert "KaMinPar, faster than METIS\n      pip install 'hongtu[kaminpar]'\n" in cannot and "ogb" not in cannot


@pytest.mark.parametrize(("gpus", "torch_cuda", "missing", "message", "remedy"), [
    ([{"name": "H200", "memory": 139 << 30}], "13.0", (), "train on H200 (139.0 GiB): `--device cuda`", None),
    ([{"name": "H200", "memory": 139 << 30}], "13.0", ("cuda-bindings",), "cuda-bindings not", "hongtu[cuda]"),
    ([], "13.0", (), "torch sees none", "nvidia-smi"), ([], None, (), "built without CUDA", "CUDA build"),
])  # fmt: skip
def test_doctor_on_other_machines(gpus, torch_cuda, missing, message, remedy):
    packages = {name: None if name in missing else "1.0" for name in doctor.examine()["packages"]}
    text = doctor.report(doctor.examine() | {"gpus": gpus, "torch_cuda": torch_cuda, "packages": packages})
    can, _, cannot = text.partition("It cannot")
    assert message in (can if remedy is None else cannot) and (remedy is None or remedy in cannot)


@pytest.mark.long
def test_doctor_measures_a_profile(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("hongtu.bench.profile.REPEATS", 1)
    monkeypatch.setattr("hongtu.bench.profile.BLOCKS", 1)
    file = tmp_path / "hardware.json"
    monkeypatch.setattr("hongtu.bench.records.OthersShare.stop", lambda self, seconds: 0.0)
    text = output(capsys, "doctor", "--measure", file)
    profile = load_hardware(file)
    assert "  files  " in text and profile.disk_link not in (CPU.disk_link, 0)
    assert f"--hardware {file}" in text and "GFLOP/s" in text and "Other processes" not in text
    assert profile.devices == 1 and profile.device_memory is None and profile.cache > 0
    assert 1e7 < profile.host_link == profile.peer_link <= profile.memory_bandwidth and profile.flops > 1e8
    assert 0 < profile.call_seconds < profile.chunk_seconds < 1  # of one try, which others may disturb
    monkeypatch.setattr("hongtu.bench.profile.measure_cpu", lambda name, path: profile)
    monkeypatch.setattr("hongtu.bench.records.OthersShare.stop", lambda self, seconds: 0.4)
    assert "Other processes took 40% of the processors" in output(capsys, "doctor", "--measure", file)
    assert json.loads(output(capsys, "doctor", "--measure", file, "--json"))["others_share"] == 0.4


@pytest.mark.parametrize("hardware, overlapped", [("cpu", "nothing overlapped"), ("h200", "s of the parts overlapped")])
def test_it_says_what_runs_at_the_same_time(artifact, capsys, hardware, overlapped, monkeypatch):
    """In chunks that are not grouped, with nothing that stays: of a single batch nothing would overlap."""
    monkeypatch.setattr("hongtu.plan.search.grains.LITTLE", float("inf"))
    monkeypatch.setattr("hongtu.plan.search.planner.choose_residents", lambda plan, budget: [])
    command = ["plan", artifact.path, "--hardware", hardware, "--device-memory", "20KB", "--hidden", "4"]
    line = next(line for line in output(capsys, *command).splitlines() if "s per epoch predicted" in line)
    seconds = json.loads(output(capsys, *command, "--json"))["seconds"]
    assert overlapped in line and " -" not in line
    assert (seconds["hidden"] < 0) == (hardware == "h200")


def test_explain_says_which_artifact_makes_the_published_system(artifact, capsys):
    text = output(capsys, "plan", artifact.path, "--strategy", "paper", "--explain")
    assert "`hongtu preprocess --as-paper`" in text
    found = json.loads(output(capsys, "plan", artifact.path, "--strategy", "p2p", "--json"))
    assert found["preprocessed"].keys() == {"partitioner", "order"}
    text = output(capsys, "plan", artifact.path, "--strategy", "paper", "--model", "gatv2", "--explain")
    assert "gatv2 runs in hongtu's own form" in text and "--as-paper" not in text


def test_the_models_with_the_papers_forms_are_those_whose_volumes_are_tested():
    assert set(PAPERS) == {model.name for model in SIX}
