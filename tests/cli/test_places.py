"""Somebody hands over a directory with something else in the place of a file: it is refused in one line before any
work, or not needed; never waited for, never written through, and two runs never work beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

import hongtu
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.train.run_directory import RunDirectory
from tests import problems
from tests.faults.fuzz import time_limit, work_limit
from tests.faults.run import same_result
from tests.neutral import pieces, write
from tests.train.test_run_directory_lock import another_run


def folder(path):
    path.mkdir()
    (path / "inside").write_text("precious")


def sock(path):
    here = os.getcwd()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        os.chdir(path.parent)  # names of sockets are short
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


KINDS = {
    "directory": folder,
    "pipe": os.mkfifo,
    "socket": sock,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to a file": lambda path: path.symlink_to("../victim/file"),
    "link to a directory": lambda path: path.symlink_to("../victim"),
    "link to nothing": lambda path: path.symlink_to("../victim/new"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "other name": lambda path: os.link(path.parent.parent / "victim" / "file", path),
    "hole": lambda path: (path.touch(), os.truncate(path, 8 << 30)),
}
OF_RUN = ("options.json", "epochs.jsonl", "snapshot-3.pt", "snapshot-1.pt", "best.pt", ".running", ".x.partial-1")


@pytest.fixture(scope="module")
def artifact():
    return problems.prepare(problems.awkward(), 2, 3)


@pytest.fixture(scope="module")
def whole(artifact, tmp_path_factory):
    """Of three epochs, and of five."""
    found = tmp_path_factory.mktemp("runs")
    for epochs in (3, 5):
        assert main(train(artifact, found / str(epochs), epochs)) == 0
    return found


def train(artifact, run, epochs=5):
    return ["train", str(artifact.path), "--hidden", "4", "--epochs", str(epochs), "--eval-every", "1", "--keep-best",
            "--save-every", "1", "--run", str(run)]  # fmt: skip


@pytest.fixture
def put(tmp_path):
    """``put(directory, name, kind)`` puts it there; in the end nobody has written elsewhere."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("precious")

    def place(directory, name, kind):
        (directory / name).unlink(missing_ok=True)
        KINDS[kind](directory / name)

    yield place
    assert [file.read_text() for file in (tmp_path / "victim").iterdir()] == ["precious"]


def outcome(capsys, words):
    """The exit code, and what is said beside notes; within seconds and a gigabyte."""
    capsys.readouterr()
    with time_limit(60), work_limit():
        code = main(list(map(str, words)))
    said = [line for line in capsys.readouterr().err.splitlines() if "note:" not in line]
    assert code in (0, 2) and len(said) == bool(code), (code, said)
    return code, "".join(said)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what is lost
@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OF_RUN)
def test_in_a_run_directory(name, kind, artifact, whole, put, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole / "3", run)
    put(run, name, kind)
    before = sorted(os.listdir(run))
    for words in (
        ["embed", artifact.path, run, tmp_path / "out.npy", "--force"],
        ["report", run, "-o", tmp_path / "o"],
    ):
        outcome(capsys, words)
    for file in run.glob("*.damaged"):
        file.rename(run / file.name.removesuffix(".damaged"))
    code, said = outcome(capsys, [*train(artifact, run), "--resume"])
    if code:
        assert f"{run / name}: " in said and sorted(os.listdir(run)) == before
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            (run / name).unlink()
    else:
        assert same_result(whole / "5", run)


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket", "link to a file", "link to nothing", "other name"])
@pytest.mark.parametrize("name", ["epochs.jsonl", "best.pt", ".running", "snapshot-1.pt"])
def test_fit_and_resume_refuse_a_run_directory_before_any_work(name, kind, artifact, put, tmp_path):
    (tmp_path / "run").mkdir()
    put(tmp_path / "run", name, kind)
    trainer = hongtu.Trainer(artifact, [hnn.GCNConv(6, 5, activation="relu"), hnn.GCNConv(5, 3)])
    if name == "best.pt" and kind in ("link to a file", "other name"):  # which is replaced
        trainer.fit(1, run_dir=tmp_path / "run", save_every=1, eval_every=1, keep_best=True)
        return
    with pytest.raises(InputError, match=name):
        trainer.fit(1, run_dir=tmp_path / "run", save_every=1)
    assert trainer.epoch == 0
    if name not in ("snapshot-1.pt", ".running"):  # the first is set aside; the other may be gone with our own lock
        with pytest.raises(InputError, match=name):
            trainer.resume(tmp_path / "run")


@pytest.mark.parametrize("made", [os.mkfifo, lambda path: (path.touch(), path.chmod(0o444))])
def test_a_lock_that_cannot_be_written_holds_all_the_same(made):
    """A pipe, another user's file."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory(prefix="hongtu-tests-") as name:
        os.chmod(name, 0o777)
        made(Path(name) / ".running")
        with another_run(Path(name), '{"host": 1, "pid": PID}'):
            try:
                os.seteuid(65534 if before == 0 else before)
                with pytest.raises(InputError, match="another run is writing here"), RunDirectory(name).held():
                    pass
            finally:
                os.seteuid(before)


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["manifest.json", "origin.json", "stages.jsonl", "labels.npy", "sources.npy", "features.npy"]
)
def test_in_an_artifact(name, kind, artifact, put, tmp_path, capsys):
    given = tmp_path / "given"
    shutil.copytree(artifact.path, given)
    put(given, name, kind)
    write(tmp_path / "graph", pieces())
    again = ["preprocess", tmp_path / "graph", given, "--partitions", "2", "--chunks", "3"]
    for words in (
        ["info", given, "--verify"], ["train", given, "--hidden", "4", "--epochs", "1"], again, [*again, "--force"],
    ):  # fmt: skip
        outcome(capsys, words)


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "edges.npy", "features.npy", "labels.npy", "train_mask.npy", "meta.json", "ids.npy", "edge_weight.npy",
        "edge_features.npy", "edge_type.npy", "features.npz", "edges.csv", "edges.parquet", "edges.txt",
    ],
)  # fmt: skip
def test_in_a_graph(name, kind, put, tmp_path, capsys):
    write(tmp_path / "graph", pieces())
    put(tmp_path / "graph", name, kind)
    outcome(capsys, ["preprocess", tmp_path / "graph", tmp_path / "out", "--partitions", "2", "--chunks", "3"])


DATASETS = {  # the least that each is known by, and what else is read of it
    "planetoid": {"ind.x.graph": b"", "ind.x.x": None, "ind.x.test.index": None},
    "ogb": {"raw/edge.csv.gz": b"", "raw/num-node-list.csv.gz": None, "split/time/train.csv.gz": None},
    "ogb of types": {"raw/num-node-dict.csv.gz": b"", "raw/relations/a___b___a/edge.csv.gz": None},
    "papers": {"processed/paper__cites__paper/edge_index.npy": b"", "processed/paper/node_feat.npy": None},
}


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_in_a_dataset(dataset, kind, put, tmp_path, capsys):
    for name, content in DATASETS[dataset].items():
        file = tmp_path / "graph" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            file.write_bytes(content)
        else:
            nested = file.parent != tmp_path / "graph"  # links lead to what lies beside that
            put(file.parent, file.name, "pipe" if nested and ("link" in kind or kind == "other name") else kind)
    outcome(capsys, ["preprocess", tmp_path / "graph", tmp_path / "out", "--partitions", "2", "--chunks", "3"])


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["out.npy", "report.html", "out", ".out.partial"])
def test_in_the_place_of_an_output(name, kind, artifact, whole, put, tmp_path, capsys, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(tmp_path / "graph", pieces())
    put(tmp_path / "here", name, kind)
    preprocess = ["preprocess", tmp_path / "graph", "out", "--partitions", "2", "--chunks", "3"]
    words = {
        "out.npy": [["embed", artifact.path, whole / "3", "out.npy", "--force"]],
        "out": [preprocess, [*preprocess, "--force"]],
        ".out.partial": [preprocess, [*preprocess, "--force", "--resume"]],
    }.get(name, [])  # fmt: skip
    for one in words:
        outcome(capsys, one)
    if not words:
        with time_limit(60):
            assert main(["report", str(whole / "3")]) in (0, 1, 2)


@pytest.mark.parametrize(("command", "said"), [
    (["info", "FILE"], "not an artifact (a file, and an artifact is a directory)"),
    (["plan", "SNAPSHOT"], "not an artifact (a file, and an artifact is a directory)"),
    (["train", "RUN"], "not an artifact (no manifest.json); pass the directory that `hongtu preprocess"),
    (["bench", "FILE"], "not an artifact (a file, and an artifact is a directory)"),
    (["embed", "ARTIFACT", "FILE", "o.npy"], "FILE: not a snapshot; pass one, or a directory that `hongtu train"),
    (["embed", "ARTIFACT", "ARTIFACT", "o.npy"], "ARTIFACT: is an artifact, and holds no snapshot"),
    (["export", "ARTIFACT", "o.pt"], "ARTIFACT: is an artifact, and holds no snapshot"),
    (["export", "DIRECTORY", "o.pt"], "DIRECTORY: holds no snapshot; pass one"),
    (["export", "nothing", "o.pt"], "start one with `hongtu train ARTIFACT --run nothing`"),
    (["train", "gone.toml"], "gone.toml: not a run file (No such file or directory); `hongtu train --write-config`"),
    (["train", "DIRECTORY.toml"], "DIRECTORY.toml: not a run file (Is a directory)"),
])  # fmt: skip
def test_a_file_for_a_directory_and_the_like(command, said, artifact, whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("text")
    for name in ("DIRECTORY", "DIRECTORY.toml"):
        folder(tmp_path / name)
    (tmp_path / "RUN").symlink_to(whole / "3")
    (tmp_path / "ARTIFACT").symlink_to(artifact.path)
    (tmp_path / "SNAPSHOT").symlink_to(whole / "3" / "snapshot-3.pt")
    code, found = outcome(capsys, command)
    assert code == 2 and said in found, found
