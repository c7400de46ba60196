"""Runs that are stopped and go on: snapshots in a run directory, their history, and what is refused."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.bench import records
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.train.run_directory import RunDirectory
from hongtu.train.snapshot import read_snapshot, write_snapshot
from tests import problems
from tests.faults.fuzz import work_limit
from tests.faults.run import make_trainer, prepare, same_result
from tests.faults.signals import Sent, lines_of, tracing


@functools.cache
def artifact():
    return prepare(problems.new_path())


def names(directory):
    return sorted(file.name for file in directory.iterdir())


def lines(directory):
    return [json.loads(line) for line in (directory / "epochs.jsonl").read_text().splitlines()]


def test_the_last_snapshots_are_kept(tmp_path):
    make_trainer(artifact()).fit(7, run_dir=tmp_path, save_every=2, keep=2)
    assert names(tmp_path) == ["epochs.jsonl", "snapshot-6.pt", "snapshot-7.pt"]
    assert [line["epoch"] for line in lines(tmp_path)] == list(range(1, 8))


def test_a_resumed_run_equals_one_that_was_not_stopped(tmp_path):
    """Parameters, optimizers, embeddings, scheduler, metrics and generators: all that a snapshot holds."""
    whole, begun, again = (make_trainer(artifact()) for _ in range(3))
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    whole.fit(8, eval_every=3, run_dir=tmp_path / "whole", save_every=4)
    drawn = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    begun.fit(5, eval_every=3, run_dir=tmp_path / "run", save_every=4, keep=9)
    (tmp_path / "run" / "snapshot-5.pt").unlink()  # a kill after epoch 5 would have left no snapshot of it
    torch.rand(5), np.random.rand(5), random.random()
    assert again.resume(tmp_path / "run") and again.epoch == 4
    assert len(lines(tmp_path / "run")) == 4
    again.fit(4, eval_every=3, run_dir=tmp_path / "run", save_every=4)
    assert same_result(tmp_path / "whole", tmp_path / "run")
    assert [entry["epoch"] for entry in again.history] == list(range(1, 9))
    assert again.history[2]["metrics"] == whole.history[2]["metrics"] != {}
    assert drawn == (torch.rand(1), np.random.rand(), random.random())
    assert [line["loss"] for line in lines(tmp_path / "run")] == [line["loss"] for line in lines(tmp_path / "whole")]


def test_a_damaged_snapshot_is_set_aside(tmp_path):
    make_trainer(artifact()).fit(4, run_dir=tmp_path, save_every=2)
    (tmp_path / "snapshot-4.pt").write_bytes(b"damaged")
    (tmp_path / ".snapshot-5.pt.partial-x").write_bytes(b"left behind")
    trainer = make_trainer(artifact())
    with pytest.warns(UserWarning, match=r"snapshot-4.pt: not a snapshot, or damaged.*trying the one before"):
        assert trainer.resume(tmp_path)
    assert trainer.epoch == 2
    assert names(tmp_path) == ["epochs.jsonl", "snapshot-2.pt", "snapshot-4.pt.damaged"]
    trainer.fit(2, run_dir=tmp_path, save_every=2)
    (tmp_path / "snapshot-2.pt").write_bytes(b"damaged")
    (tmp_path / "snapshot-4.pt").write_bytes(b"damaged")
    with pytest.warns(UserWarning), pytest.raises(InputError, match=r"snapshot-4\.pt"):
        trainer.resume(tmp_path)


def test_a_snapshot_that_memory_has_no_room_for_is_not_set_aside(tmp_path, monkeypatch):
    make_trainer(artifact()).fit(2, run_dir=tmp_path, save_every=1)
    monkeypatch.setattr("hongtu.files.available_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match=r"snapshot-2\.pt has \d+ bytes, 1000 are available"):
        make_trainer(artifact()).resume(tmp_path)
    monkeypatch.undo()
    trainer = make_trainer(artifact())
    assert trainer.resume(tmp_path) and trainer.epoch == 2


def test_nothing_behind_a_line_without_an_end_is_looked_for(tmp_path):
    """Such as a hole of many GiB, which takes no time."""
    make_trainer(artifact()).fit(3, run_dir=tmp_path, save_every=3)
    os.truncate(tmp_path / "epochs.jsonl", 64 << 30)
    with work_limit():
        trainer = make_trainer(artifact())
        trainer.resume(tmp_path)
    assert len(lines(tmp_path)) == 3 == len(trainer.history)
    with open(tmp_path / "results.jsonl", "w") as stream:
        stream.write('{"name": "x"}\n')
    os.truncate(tmp_path / "results.jsonl", 64 << 30)
    with work_limit(), pytest.raises(InputError, match=r"results\.jsonl, line 2: not JSON"):
        records.read(tmp_path / "results.jsonl")


def test_a_line_that_is_not_whole_is_dropped(tmp_path):
    make_trainer(artifact()).fit(3, run_dir=tmp_path, save_every=3)
    with open(tmp_path / "epochs.jsonl", "a") as stream:
        stream.write('{"epoch": 4, "loss": 0.')
    make_trainer(artifact()).resume(tmp_path)
    assert [line["epoch"] for line in lines(tmp_path)] == [1, 2, 3]
    assert not make_trainer(artifact()).resume(tmp_path / "absent") and not (tmp_path / "absent").exists()


def saying(**other):
    """The last line says something else."""

    def change(log):
        *before, last = log.read_text().splitlines(True)
        log.write_text("".join(before) + json.dumps(json.loads(last) | other) + "\n")

    return change


DAMAGES = {  # the log of five epochs, what is left of it, and how many lines are lost
    "missing": (lambda log: log.unlink(), 5),
    "empty": (lambda log: log.write_bytes(b""), 5),
    "zeros": (lambda log: log.write_bytes(bytes(log.stat().st_size)), 5),
    "cut": (lambda log: log.write_bytes(log.read_bytes()[:-9]), 1),
    "cut at a line": (lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(True)[:2])), 3),
    "a hole": (lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(True)[::2])), 2),
    "no epoch": (saying(epoch=True), 1),
    "no number": (saying(loss="0.5"), 1),
    "no seconds": (saying(seconds=[1]), 1),
    "no scores": (saying(metrics={"val": {}}), 1),
    "scores of one number": (saying(metrics=1.0), 1),
    "scores in a list": (saying(metrics=[["val", 1]]), 1),
    "a number beyond all": (saying(loss=10**400), 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_that_lost_lines_is_said_to(damage, tmp_path):
    whole = make_trainer(artifact())
    whole.fit(7, run_dir=tmp_path / "whole", save_every=9)
    trainer = make_trainer(artifact())
    trainer.fit(5, run_dir=tmp_path / "run", save_every=9)
    change, lost = DAMAGES[damage]
    change(tmp_path / "run" / "epochs.jsonl")
    again = make_trainer(artifact())
    with pytest.warns(UserWarning, match=f"epochs.jsonl: {lost} of the 5 lines up to epoch 5 are missing or damaged"):
        assert again.resume(tmp_path / "run")
    assert again.epoch == 5 and again.history[-1]["loss"] == trainer.history[-1]["loss"]
    assert again.fit(2, run_dir=tmp_path / "run")[-1].loss == whole.history[-1]["loss"]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut at a line", "no number", "scores in a list"])
def test_the_command_tells_of_a_run_without_its_log(damage, tmp_path, capsys):
    assert train(tmp_path / "run", epochs=5) == 0
    loss = capsys.readouterr().out.splitlines()[-3]
    DAMAGES[damage][0](tmp_path / "run" / "epochs.jsonl")
    with pytest.warns(UserWarning, match="of the 5 lines"):
        assert train(tmp_path / "run", "--resume", epochs=5) == 0
    assert loss in capsys.readouterr().out and loss.startswith("loss ")


@pytest.mark.parametrize("other", [{"loss": {}}, {"epoch": 10**400}, {"metrics": {"val": "x"}}, {"seconds": "x"}])
def test_a_report_of_what_no_run_wrote_is_refused(other, tmp_path, capsys):
    assert train(tmp_path / "run", epochs=2) == 0
    saying(**other)(tmp_path / "run" / "epochs.jsonl")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html")]) == 2
    err = capsys.readouterr().err
    assert "epochs.jsonl: a line is no epoch's of a run" in err and err.count("\n") == 1


def test_snapshots_of_another_run_are_not_mixed_in(tmp_path):
    make_trainer(artifact()).fit(3, run_dir=tmp_path, save_every=3)
    with pytest.raises(InputError, match=r"snapshot-3.pt: is of a later epoch than this run's 0; .*resume"):
        make_trainer(artifact()).fit(1, run_dir=tmp_path, save_every=1)
    with pytest.raises(InputError, match="save_every needs run_dir"):
        make_trainer(artifact()).fit(1, save_every=1)
    with pytest.raises(InputError, match=r"save_every is -1, expected a whole number"):
        make_trainer(artifact()).fit(1, run_dir=tmp_path, save_every=-1, keep=0)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda: [hnn.GCNConv(6, 5, activation="relu")], "has 2 layers, this run has 1"),
        (lambda: [hnn.GCNConv(6, 5, activation="elu"), hnn.GCNConv(5, 3)], r"layers\[0\] .*relu.*elu"),
        (lambda: [hnn.GCNConv(6, 5, activation="relu"), hnn.SAGEConv(5, 3)], r"layers\[1\] .*GCNConv.*SAGEConv"),
        (
            lambda: [hnn.GCNConv(6, 5, activation="relu", input_dropout=0.5), hnn.GCNConv(5, 3)],
            r"layers\[0\] .*p=0.0.*p=0.5",
        ),
    ],
)
def test_a_refusal_names_the_layer_that_differs(layers, message, tmp_path):
    graph = problems.prepare(problems.awkward(), 2, 3)
    trainer = hongtu.Trainer(graph, [hnn.GCNConv(6, 5, activation="relu"), hnn.GCNConv(5, 3)])
    trainer.save(tmp_path / "snapshot")
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(graph, layers()).load(tmp_path / "snapshot")


def test_a_function_of_the_users_has_the_same_name_in_every_process(tmp_path):
    class Applies(nn.Module):
        def __init__(self):
            super().__init__()
            self.function = lambda x: x

        def forward(self, x):
            return self.function(x)

        def extra_repr(self):
            return f"function={self.function}"

    graph = problems.prepare(problems.awkward(), 2, 3)
    hongtu.Trainer(graph, [hnn.GCNConv(6, 3), Applies()]).save(tmp_path / "snapshot")
    hongtu.Trainer(graph, [hnn.GCNConv(6, 3), Applies()]).load(tmp_path / "snapshot")


def test_only_tensors_and_plain_values_are_written(tmp_path):
    with pytest.raises(InputError, match=r"scheduler\['f'\]\[1\] is of .*function"):
        write_snapshot(tmp_path / "snapshot", {"scheduler": {"f": [1, len]}})
    assert names(tmp_path) == []


def test_loading_never_executes_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save({"model": Evil()}, tmp_path / "evil")
    content = (tmp_path / "evil").read_bytes()
    write_snapshot(tmp_path / "good", {})
    from hongtu.train import snapshot

    digest = snapshot.hashlib.blake2b(content, digest_size=32).hexdigest()
    (tmp_path / "evil").write_bytes(content + snapshot._last_line(digest))  # whoever attacks knows the hash too
    with pytest.raises(InputError, match="not a readable snapshot"):
        read_snapshot(tmp_path / "evil")
    assert not (tmp_path / "executed").exists()
    with pytest.raises(InputError, match="not the state of a run"):
        read_snapshot(tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    (tmp_path / "old").write_bytes(good.replace(b"hongtu-snapshot 2", b"hongtu-snapshot 1"))
    with pytest.raises(InputError, match="snapshot version 1, this hongtu reads version 2"):
        read_snapshot(tmp_path / "old")


# -------------------------------------------------------------------------------------------------- the command line


def train(directory, *arguments, epochs=4):
    graph = problems.prepare(problems.awkward(), 2, 3)
    return main(["train", str(graph.path), "--hidden", "5", "--dropout", "0.5", "--epochs", str(epochs),
                 "--run", str(directory), "--save-every", "2", "--eval-every", "2", *arguments])  # fmt: skip


def test_the_command_resumes(tmp_path, capsys):
    assert train(tmp_path / "whole", epochs=6) == 0
    assert train(tmp_path / "run", "--keep", "1") == 0
    assert names(tmp_path / "run") == ["epochs.jsonl", "options.json", "snapshot-4.pt"]
    assert train(tmp_path / "run", "--resume", epochs=6) == 0
    assert same_result(tmp_path / "whole", tmp_path / "run")
    capsys.readouterr()
    assert train(tmp_path / "run", "--resume") == 0  # blindly, as schedulers do
    out, err = capsys.readouterr()
    assert "its 6 epochs are trained already" in err and out.startswith("6 epochs, ")
    for arguments, message in (
        (["--resume", "--lr", "0.5"], "--resume: --lr is 0.5, the run in * was begun with 0.01; pass --lr 0.01"),
        (["--resume", "--seed", "3"], "--resume: --seed is 3, the run in * was begun with 0; pass --seed 0"),
        ([], "already exists; choose another --run directory, or continue it with --resume"),
    ):
        assert train(tmp_path / "run", *arguments) == 2
        err = capsys.readouterr().err
        assert all(part in err for part in message.split("*")) and err.count("\n") == 1


def test_a_run_without_a_snapshot_begins_again(tmp_path, capsys):
    assert train(tmp_path / "run") == 0
    for file in (tmp_path / "run").glob("snapshot-*"):
        file.unlink()
    assert train(tmp_path / "run", "--resume") == 0
    assert len(lines(tmp_path / "run")) == 4
    assert "run: holds no snapshot; the run begins again" in capsys.readouterr().err
    for folder in ("absent", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert train(tmp_path / folder, "--resume") == 0
        assert f"{folder}: holds no run yet; this one begins" in capsys.readouterr().err
        assert len(lines(tmp_path / folder)) == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"model": 1}', "[" * 100_000])
def test_options_that_cannot_be_read(text, tmp_path, capsys):
    assert train(tmp_path / "run") == 0
    (tmp_path / "run" / "options.json").write_text(text)
    assert train(tmp_path / "run", "--resume") == 2
    assert "options.json: not the options of a run" in capsys.readouterr().err


def test_a_refused_run_leaves_no_directory(tmp_path, capsys):
    assert train(tmp_path / "run", "--device-memory", "1KB") == 2
    assert not (tmp_path / "run").exists()


def test_an_interrupt_at_any_line_leaves_no_lock(tmp_path):
    """In a notebook the process goes on, and would keep it."""

    def hold():
        with RunDirectory(tmp_path / "run").held():
            pass

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for line in lines_of(hold, "train"):
            sent = Sent(line, 1, [signal.SIGINT], 0.0, lambda: 0)
            with suppress(KeyboardInterrupt), tracing(sent.trace):
                hold()
            hold()
            assert not (tmp_path / "run").exists(), line
    finally:
        signal.signal(signal.SIGINT, before)
