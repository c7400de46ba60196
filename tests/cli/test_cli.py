from __future__ import annotations

import errno
import gzip
import importlib
import io
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import hongtu
from hongtu.cli.main import COMMANDS, build_parser, main
from hongtu.cli.settings import descriptions
from hongtu.cli.train_config import ModelConfig, TrainConfig
from hongtu.config import PreprocessConfig
from hongtu.errors import DeviceOutOfMemory, InputError
from hongtu.preprocess.read.formats import ogb_tables as ogb
from tests.neutral import pieces, write

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--partitions", "2", "--chunks", "3"]


def test_every_field_is_an_option_with_its_description(capsys):
    for command, config in (("preprocess", PreprocessConfig), ("plan", ModelConfig), ("train", TrainConfig)):
        assert main([command, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        for name, text in descriptions(config).items():
            assert f"--{name.replace('_', '-')} " in shown and text.split(";")[0][:30] in shown, name
        assert descriptions(config).keys() == {field.name for field in fields(config)}
    typed = vars(build_parser().parse_args(["preprocess", "IN", "OUT", "--chunks", "auto", "--no-relabel"]))
    assert typed.items() >= {"chunks": "auto", "relabel": False}.items() and "partitions" not in typed


@pytest.mark.parametrize(
    "argv, message",
    [
        (["fly"], "invalid choice: 'fly'"),
        (["preprocess"], "required: INPUT, ARTIFACT"),
        (["preprocess", "a", "b", "--bogus"], "unrecognized arguments: --bogus (see `hongtu preprocess --help`)"),
        (["train", "a", "--hiden=3"], "--hiden=3; did you mean --hidden? (see `hongtu train --help`)"),
        (["train", "a", "--modle", "gcn"], "--modle gcn; did you mean --model? (see `hongtu train --help`)"),
        (["preprocess", "a", "b", "--partitions", "two"], "invalid int value: 'two'"),
        (["preprocess", "a", "b", "--partitions", "0"], "partitions: 0, expected an integer from 1"),
        (
            ["preprocess", "a", "b", "--chunks", "some"],
            "chunks: 'some', expected an integer from 1 to 2147483647; or 'auto'",
        ),
        (["preprocess", "a", "b", "--partitioner", "best"], "partitioner: 'best', expected one of auto, metis"),
        (["generate", "tree", "out", "--vertices", "3", "--edges", "3"], "invalid choice: 'tree'"),
        (["generate", "rmat", "out", "--edges", "3"], "required: --vertices"),
        (["info", "/nonexistent"], "/nonexistent: not an artifact"),
    ],
)
def test_bad_arguments_are_one_line_and_code_2(argv, message, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hongtu: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("argv", [[], ["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)])
def test_help(argv, capsys):
    assert main(argv) == 0
    assert "hongtu" in capsys.readouterr().out


@pytest.mark.parametrize(
    "error, code, message",
    [
        (InputError("bad\n  input"), 2, "hongtu: bad input\n"),
        (RuntimeError("broken"), 1, "hongtu: RuntimeError: broken\n"),
        (KeyboardInterrupt(), 130, "hongtu: interrupted\n"),
        (DeviceOutOfMemory("device 0: no more"), 1, "hongtu: device 0: no more\n"),
    ],
)
def test_exit_codes(error, code, message, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("hongtu.graph.artifact.open_artifact", fail)
    assert main(["info", "anything"]) == code
    assert capsys.readouterr().err == message


def test_json_is_one_object_and_nothing_else(tmp_path, capsys):
    source = write(tmp_path / "in", pieces())
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL, "--json"]) == 0
    first = capsys.readouterr()
    assert main(["info", str(tmp_path / "out"), "--json", "--verify"]) == 0
    second = capsys.readouterr()
    assert first == second and first.err == "" and first.out.count("\n") == 1
    info = json.loads(first.out)
    assert {key: info[key] for key in ("vertices", "edges", "partitions", "chunks")} == {
        "vertices": 24, "edges": 60, "partitions": 2, "chunks": 3,
    }  # fmt: skip
    assert info["v_ori"] >= info["v_p2p"] >= info["v_ru"] > 0 and info["alpha"] == pytest.approx(info["v_ori"] / 24)
    assert info["bytes"] == sum(file.stat().st_size for file in (tmp_path / "out").glob("*.npy"))


def test_info_for_people(tmp_path, capsys):
    assert main(["preprocess", str(write(tmp_path / "in", pieces())), str(tmp_path / "out"), *SMALL]) == 0
    first = capsys.readouterr().out
    assert "24 vertices, 60 edges" in first and f"`hongtu train {tmp_path / 'out'}`" in first and "V_ori" not in first
    assert main(["info", str(tmp_path / "out")]) == 0
    first = capsys.readouterr().out
    for part in ("24 vertices, 60 edges", "2 partitions x 3 chunks", "V_ori", "V_+p2p", "V_+ru", "|V|", "Algorithm 4"):
        assert part in first, first


def test_module_entry_point(tmp_path):
    source, output = write(tmp_path / "in", pieces()), tmp_path / "out"
    command = [sys.executable, "-m", "hongtu", "preprocess", str(source), str(output), *SMALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "24 vertices" in done.stdout
    assert hongtu.open_artifact(output).num_vertices == 24


def test_a_graph_whose_edges_go_one_way_is_noted(tmp_path, capsys):
    ring = np.array([np.arange(2000), np.roll(np.arange(2000), 1)])
    options = {"features": "degree", "labels": "random:2", "random_split": (1, 0, 0), "partitions": 1, "chunks": 1}
    hongtu.preprocess_graph(ring, 2000, tmp_path / "one", **options)
    assert "edges go one way" in (err := capsys.readouterr().err) and "undirected=True (--undirected)" in err
    hongtu.preprocess_graph(ring, 2000, tmp_path / "both", **options, undirected=True)
    assert capsys.readouterr().err == ""


def test_preprocess_shows_its_stages_on_a_terminal(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(["preprocess", str(write(tmp_path / "in", pieces())), str(tmp_path / "out"), *SMALL]) == 0
    assert "partition" in sys.stderr.getvalue() and "left" in sys.stderr.getvalue()


def test_a_reader_that_has_enough_ends_the_command_without_a_word():
    """As in `hongtu --help | head -0`; with the pipe's buffer full, or at the flush."""
    command = f"{sys.executable} -m hongtu train --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout in ("141\n", "0\n") and done.stderr == ""


@pytest.mark.long
def test_a_reader_that_has_enough_of_a_training_is_told_what_is_lost(tmp_path):
    assert main(["preprocess", str(write(tmp_path / "in", pieces())), str(tmp_path / "out"), *SMALL]) == 0
    train = f"{sys.executable} -m hongtu train {tmp_path / 'out'} --epochs 2000 --eval-every 1"
    done = subprocess.run(["bash", "-c", f"{train} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
    assert done.returncode == 141 and done.stderr.count("\n") == 1
    assert "nobody reads the output any more; " in done.stderr and "epochs were trained and are lost" in done.stderr


def test_a_full_disk_is_named(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = write(tmp_path / "in", pieces())
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 1
    err = capsys.readouterr().err
    assert f"{tmp_path / 'out'}: cannot be written (No space left on device); free some space there" in err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("form", ["{} {}", "v{} v{}", "{}000 {}000"])
def test_a_disk_that_fills_while_text_is_read_is_named(tmp_path, monkeypatch, capsys, form):
    """It would be a bus error where the file is mapped before it has its blocks."""
    files = []

    def refuse(descriptor, *_):
        files.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    edges = np.random.default_rng(0).integers(0, 20, (100, 2))
    (tmp_path / "edges.txt").write_text("\n".join(form.format(*edge) for edge in edges.tolist()))
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    given = ["--features", "degree", "--labels", "random:2", "--random-split", "0.6,0.2,0.2", "--relabel"]
    command = ["preprocess", str(tmp_path / "edges.txt"), str(tmp_path / "out"), *given, "--partitions", "2"]
    assert main([*command, "--chunks", "2"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert files == ["edges.npy"] and not (tmp_path / "out").exists()


def test_a_disk_that_fills_while_ogbs_text_is_read_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with gzip.open(tmp_path / "node-feat.csv.gz", "wt") as stream:
        stream.write("1.0,2.0\n3.0,4.0\n")
    given = tmp_path / "node-feat.csv.gz", 2, tmp_path / "out.npy", lambda share: None
    assert ogb.read_features(*given).tolist() == [[1, 2], [3, 4]]
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        ogb.read_features(*given)


def test_what_is_printed_in_a_notebook_is_short(tmp_path):
    assert main(["preprocess", str(write(tmp_path / "in", pieces())), str(tmp_path / "out"), *SMALL]) == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    trainer = hongtu.Trainer(artifact, [hongtu.nn.GCNConv(artifact.feature_width, 3)], device_memory="1MiB")
    assert "24 vertices, 60 edges" in repr(artifact) and "2 partitions x 3 chunks" in repr(artifact)
    assert "GCNConv" in repr(trainer) and "1.0 MiB per device, 0 epochs" in repr(trainer)
    assert repr(hongtu.Propagation(artifact, 3)) == f"Propagation({artifact!r}, 3 columns)"
    assert "device 0" in repr(trainer.plan) and "moved per epoch" in repr(trainer.plan)
    shown = trainer.train_epoch()._repr_html_()
    assert "<tr><th>epoch</th><td>1</td></tr>" in shown and "peak of device 1" in shown
    assert all(len(repr(thing)) < 700 for thing in (artifact, trainer, trainer.plan))


def test_import_is_light():
    heavy = "{'torch', 'numba', 'numpy'}"
    code = f"import sys, hongtu, hongtu.cli.main as c; c.build_parser(); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_lazy_attributes():
    assert hongtu.preprocess_graph is importlib.import_module("hongtu.preprocess.entry").preprocess_graph
    assert hongtu.errors.InputError is InputError
    assert {"Trainer", "nn", "open_artifact"} <= set(dir(hongtu))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hongtu.nonsense  # noqa: B018
