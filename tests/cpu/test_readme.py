"""The README's Python and shell blocks do what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import torch

import hongtu
from hongtu.cli.main import main as command

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_readme_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (quickstart,) = [block for block in blocks("sh") if "hongtu generate" in block]
    lines = [shlex.split(line) for line in quickstart.splitlines() if line.startswith("hongtu ")]
    assert len(lines) == 3
    for line in lines:
        line = ["2" if word == "20" else word for word in line]  # fewer epochs
        assert command(line[1:]) == 0, line
    assert "peak bytes" in capsys.readouterr().out
    training, named, layer = blocks("python")
    exec(training.replace("epochs=10, eval_every=5", "epochs=2, eval_every=1"), {})
    assert (tmp_path / "snapshot.pt").exists()
    check_named_values(named, tmp_path / "artifact")
    names: dict = {}
    exec(layer, names)
    check_user_layer(names["MaxPool"], tmp_path / "artifact")


def check_named_values(block, path):
    artifact = hongtu.open_artifact(path)
    names = vars(hongtu.nn) | {"torch": torch, "features": artifact.feature_width, "classes": artifact.num_classes}
    exec(block, names)
    trainer = hongtu.Trainer(artifact, names["layers"], device_memory="24MiB")
    first, *_, last = trainer.fit(5, progress=False)
    assert last.loss < first.loss


def check_user_layer(layer, path):
    """The user layer trains inside a budget as it does without one."""
    artifact = hongtu.open_artifact(path)

    def losses(budget):
        torch.manual_seed(0)
        layers = [layer(artifact.feature_width, 16), torch.nn.ReLU(), layer(16, artifact.num_classes)]
        trainer = hongtu.Trainer(artifact, layers, device_memory=budget, dtype=torch.float64)
        return [record.loss for record in trainer.fit(2, progress=False)]

    torch.testing.assert_close(losses("24MiB"), losses(None), rtol=1e-12, atol=0)
