"""Frozen samples of every format that hongtu has written: read, converted, or refused with what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.graph.format import VERSION as ARTIFACT
from hongtu.hardware import CPU, load_hardware
from hongtu.nn import GCNConv
from hongtu.train.snapshot import VERSION as SNAPSHOT

SAMPLES = Path(__file__).with_name("samples")


@pytest.fixture
def trainer():
    layers = [GCNConv(3, 2, activation="relu"), GCNConv(2, 2)]
    return hongtu.Trainer(hongtu.open_artifact(SAMPLES / "artifact-1"), layers)


def migrate(capsys, *words):
    """Exit code, and what is printed."""
    code = main(["migrate", *map(str, words)])
    found = capsys.readouterr()
    return code, found.out + found.err


def test_every_format_has_a_sample():
    assert {path.name for path in SAMPLES.iterdir()} >= {
        *(f"artifact-{k}" for k in range(1, ARTIFACT + 1)),
        *(f"snapshot-{k}.pt" for k in range(1, SNAPSHOT + 1)),
    }


def test_an_artifact_of_0_1_is_read_as_it_is(capsys, trainer):
    assert hongtu.open_artifact(SAMPLES / "artifact-1", verify=True).num_vertices == 12
    assert migrate(capsys, SAMPLES / "artifact-1") == (
        0, f"{SAMPLES / 'artifact-1'}: an artifact of format 1, which this hongtu reads as it is\n"
    )  # fmt: skip
    assert torch.isfinite(torch.tensor(trainer.train_epoch().loss))


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_an_artifact_of_another_version_is_refused(capsys, tmp_path, version):
    shutil.copytree(SAMPLES / "artifact-1", tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest | {"version": version}))
    code, said = migrate(capsys, tmp_path / "a")
    assert code == 2 and f"artifact version {version!r}" in said and "run `hongtu preprocess` again" in said


def test_a_snapshot_of_this_format_is_read_as_it_is(capsys):
    code, said = migrate(capsys, SAMPLES / "snapshot-2.pt")
    assert code == 0 and "a snapshot of format 2, which this hongtu reads as it is" in said


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_weights_of_a_snapshot_of_format_1(capsys, tmp_path, trainer, ending):
    run = tmp_path / "run"  # as 0.1 kept it
    run.mkdir()
    shutil.copy(SAMPLES / "snapshot-1.pt", run / "snapshot.pt")
    code, said = migrate(capsys, run)
    assert code == 2 and f"`hongtu migrate {run} weights.safetensors`" in said
    out = tmp_path / f"weights.{ending}"
    code, said = migrate(capsys, run, out)
    assert code == 0 and f"{out}: 4 tensors" in said
    weights = torch.load(SAMPLES / "snapshot-1.pt", weights_only=True)["model"]
    if ending == "pt":
        trainer.model.load_state_dict(torch.load(out, weights_only=True))
    else:
        trainer.load_weights(out)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert migrate(capsys, run, out)[0] == 2 and migrate(capsys, run, out, "--force")[0] == 0


def test_a_snapshot_of_format_1_names_the_command(trainer):
    for method in (trainer.load, trainer.load_weights):
        with pytest.raises(InputError, match="snapshot version 1, this hongtu reads version 2; `hongtu migrate"):
            method(SAMPLES / "snapshot-1.pt")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda text: text[:100] + bytes([text[100] ^ 1]) + text[101:], "its hash differs"),
        (lambda text: text.replace(b"hongtu-snapshot 1 ", b"hongtu-snapshot 3 "), "use the hongtu that wrote it"),
        (lambda text: text[:-1], "not a snapshot"),
        (lambda text: b"", "not a snapshot"),
        (lambda text: b"\nhongtu-snapshot 1\n", "not a snapshot"),
    ],
)
def test_a_file_that_is_no_snapshot(capsys, tmp_path, change, said):
    (tmp_path / "s.pt").write_bytes(change((SAMPLES / "snapshot-1.pt").read_bytes()))
    code, found = migrate(capsys, tmp_path / "s.pt", tmp_path / "out.pt")
    assert code == 2 and said in found and not (tmp_path / "out.pt").exists()


def test_hardware_profiles(capsys, tmp_path):
    today = tmp_path / "today.json"
    today.write_text(json.dumps(CPU.to_dict()))
    assert migrate(capsys, today)[0] == 0
    older = SAMPLES / "profile-2.json"  # of before 0.2.0, with more rates
    assert migrate(capsys, older)[0] == 0
    found, entries = load_hardware(older), json.loads(older.read_text())
    assert (found.name, found.host_link, found.cache) == tuple(entries[name] for name in ("name", "host_link", "cache"))
    assert (found.memory_bandwidth, found.chunk_seconds, found.disk_link) == tuple(
        entries[name] for name in ("sweep_bandwidth", "stage_seconds", "recall_link")
    )
    code, said = migrate(capsys, SAMPLES / "profile-1.json")
    assert code == 2 and "missing" in said and "`hongtu doctor --measure" in said


def test_what_is_not_there(capsys, tmp_path):
    code, said = migrate(capsys, tmp_path / "none")
    assert code == 2 and "no such" in said
    assert migrate(capsys, tmp_path)[0] == 2
