"""Runs that are stopped from outside: a full disk, a directory that may not be written to, files that go, signals.

Every one: a clear message, the exit code as documented, the last snapshot as it was.
"""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import hongtu
from hongtu import files
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.cli.stopping import Signals
from hongtu.engine.executor import Executor
from hongtu.errors import INTERRUPTS, InputError, OutputError
from hongtu.model.random_state import seed_generators
from hongtu.pyg import NeighborLoader
from hongtu.train import snapshot
from tests import problems
from tests.faults.run import same_result

NOBODY = 65534


def artifact():
    return problems.prepare(problems.awkward(), 2, 3)


def make(graph=None):
    hongtu_layers = [hnn.GCNConv(6, 5, activation="relu"), hnn.GCNConv(5, 3)]
    return hongtu.Trainer(graph or artifact(), hongtu_layers)


def command(directory, *arguments, epochs=9, graph=None):
    return ["train", str((graph or artifact()).path), "--hidden", "5", "--epochs", str(epochs), "--eval-every", "1",
            "--run", str(directory), "--save-every", "2", *arguments]  # fmt: skip


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.glob("snapshot-*")}


@pytest.fixture
def full_disk(monkeypatch):
    """``full_disk()``: from now on, every temporary file is on a disk that is full."""
    real = files.new_file

    def make(folder, name):
        path = real(folder, name)
        path.unlink()
        path.symlink_to("/dev/full")
        return path

    return lambda: monkeypatch.setattr("hongtu.files.new_file", make)


@pytest.fixture
def powerless():
    """``powerless()``: root may write everywhere, so be someone else until the end of the test."""
    before = os.geteuid()
    yield lambda: os.seteuid(NOBODY) if os.getuid() == 0 else None
    os.seteuid(before)


# ---------------------------------------------------------------------------------------------------------- writing


def test_a_full_disk(tmp_path, full_disk, monkeypatch):
    trainer = make()
    trainer.fit(2, run_dir=tmp_path, save_every=2)
    before = contents(tmp_path)
    full_disk()
    pattern = r"snapshot-4\.pt: cannot be written \(No space left on device\); free some space there"
    with pytest.raises(OutputError, match=pattern):
        trainer.fit(2, run_dir=tmp_path, save_every=2)
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob(".snapshot*"))
    monkeypatch.undo()
    again = make()
    assert again.resume(tmp_path) and again.epoch == 2


def test_the_command_on_a_full_disk(tmp_path, full_disk, capsys):
    assert main(command(tmp_path / "run", epochs=4)) == 0
    before = contents(tmp_path / "run")
    capsys.readouterr()
    full_disk()
    assert main(command(tmp_path / "run", "--resume", epochs=7)) == 1
    err = capsys.readouterr().err
    assert "cannot be written (No space left on device); free some space there, or choose another directory; " in err
    assert f"6 epochs were trained; --resume continues from {tmp_path / 'run' / 'snapshot-4.pt'}" in err
    assert err.count("\n") == 1 and contents(tmp_path / "run") == before


def test_a_limit_of_the_log(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer = make()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        with pytest.raises(OutputError, match=r"epochs\.jsonl: cannot be written \(File too large\)"):
            trainer.fit(1, run_dir=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "name", ["epochs.jsonl", "snapshot-1.pt", "best.pt", ".options.json", "options.json", ".running"]
)
def test_nothing_is_written_through_a_link(name, tmp_path, capsys):
    """Somebody hands over a run directory."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to("../victim")
    try:
        make().fit(1, run_dir=tmp_path / "run", save_every=1, eval_every=1, keep_best=True)
    except InputError as error:
        assert name == "snapshot-1.pt" or "is a link, which hongtu does not write through" in str(error)
        assert name in ("snapshot-1.pt", "epochs.jsonl", ".running")
    main(command(tmp_path / "run", "--resume", epochs=2))
    main(command(tmp_path / "run", epochs=2))
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.fixture
def run():
    """A directory for runs below directories that anyone may pass."""
    with tempfile.TemporaryDirectory(prefix="hongtu-tests-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder) / "run"


def test_a_directory_that_may_not_be_written_to(run, powerless):
    trainer = make()
    trainer.fit(2, run_dir=run, save_every=2)
    before = contents(run)
    run.chmod(0o555)
    powerless()
    trainer.fit(1, eval_every=1)
    with pytest.raises(OutputError, match=r"epochs\.jsonl: cannot be written \(Permission denied\)"):
        trainer.fit(1, run_dir=run)
    with pytest.raises(
        OutputError, match=r"new\.pt: cannot be written \(Permission denied\); choose a directory that may"
    ):
        trainer.save(run / "new.pt")
    with pytest.raises(OutputError, match=r"deeper/snapshot\.pt: cannot be written \(Permission denied\)"):
        trainer.save(run / "deeper" / "snapshot.pt")
    os.seteuid(os.getuid())
    assert contents(run) == before
    run.chmod(0o700)
    powerless()
    with pytest.raises(InputError, match=r"run: cannot be read \(Permission denied\)"):
        trainer.resume(run)


def test_the_command_refuses_a_directory_that_may_not_be_written_to(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main(command(tmp_path / "run")) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path} is not a writable directory; choose another --run directory" in err and err.count("\n") == 1
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    assert main(command(tmp_path / "file" / "run")) == 2
    assert "file is not a writable directory" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- signals


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGTERM, 143, "stopped by SIGTERM"),
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGHUP, 129, "stopped by SIGHUP"),
    ],
)
def test_a_signal_ends_the_command_and_resuming_loses_nothing(number, code, words, tmp_path, monkeypatch, capsys):
    assert main(command(tmp_path / "whole")) == 0
    before = signal.getsignal(signal.SIGTERM)

    def send(record):
        if record.epoch == 7:
            os.kill(os.getpid(), number)

    monkeypatch.setattr("hongtu.cli.train._print_epoch", send)
    capsys.readouterr()
    assert main(command(tmp_path / "run")) == code
    last = tmp_path / "run" / "snapshot-7.pt"
    err = capsys.readouterr().err
    assert err == f"hongtu: {words}; 7 epochs were trained; --resume continues from {last}\n"
    assert signal.getsignal(signal.SIGTERM) == before
    monkeypatch.undo()
    assert main(command(tmp_path / "run", "--resume")) == 0
    assert same_result(tmp_path / "whole", tmp_path / "run")


def test_a_signal_without_a_run_directory_says_what_is_lost(monkeypatch, capsys):
    monkeypatch.setattr("hongtu.cli.train._print_epoch", lambda record: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["train", str(artifact().path), "--hidden", "5"]) == 143
    assert "1 epochs were trained and are lost: --run DIR keeps snapshots" in capsys.readouterr().err


def test_signals_wait_for_the_step_and_the_snapshot(tmp_path, monkeypatch, capsys):
    """The first inside the optimizer's step; the others while the snapshot is written."""
    assert main(command(tmp_path / "whole")) == 0
    step, write = torch.optim.Adam.step, snapshot.torch.save
    steps = []

    def interrupted_step(self, *arguments):
        steps.append(1)
        if len(steps) == 8:
            os.kill(os.getpid(), signal.SIGHUP)
        return step(self, *arguments)

    def interrupted_save(*arguments):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.Adam, "step", interrupted_step)
        patched.setattr(snapshot.torch, "save", interrupted_save)
        assert main([*command(tmp_path / "run"), "--save-every", "100"]) == 129
    assert re.search(r"([3-8]) epochs were trained; --resume .*snapshot-\1.pt\n$", capsys.readouterr().err)
    assert main(command(tmp_path / "run", "--resume")) == 0
    assert same_result(tmp_path / "whole", tmp_path / "run")


def test_a_signal_that_is_ignored_stays_so(tmp_path, monkeypatch):
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr("hongtu.cli.train._print_epoch", lambda record: os.kill(os.getpid(), signal.SIGHUP))
    try:
        assert main(command(tmp_path / "run", epochs=2)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_signal_before_a_command_has_begun_ends_it(number, monkeypatch, capsys):
    """Its handler is there, and the block that makes a line and an exit code of it is not yet."""
    install = Signals.install

    def installed(self):
        before = install(self)
        os.kill(os.getpid(), number)
        return before

    monkeypatch.setattr(Signals, "install", installed)
    assert main(["--version"]) == 128 + number
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_a_signal_that_a_finalizer_loses_comes_again(tmp_path, monkeypatch, capsys):
    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def finalize(record):
        if record.epoch == 2:
            Finalized()
            time.sleep(5)

    monkeypatch.setattr("hongtu.cli.train._print_epoch", finalize)
    assert main(command(tmp_path / "run")) == 143
    assert "2 epochs were trained; --resume continues" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (ValueError("I/O operation on closed file"), 1),
        (RuntimeError("a callback's"), 1),
    ],
)
def test_an_epoch_is_not_lost_to_a_print(error, code, tmp_path, monkeypatch, capsys):
    def fail(record):
        if record.epoch == 5:
            raise error

    monkeypatch.setattr("hongtu.cli.train._print_epoch", fail)
    assert main([*command(tmp_path / "run"), "--save-every", "100"]) == code
    last = tmp_path / "run" / "snapshot-5.pt"
    assert f"5 epochs were trained; --resume continues from {last}" in capsys.readouterr().err


class Noisy:
    """A loss of the user's that draws numbers of its own."""

    calls = stop = 0

    def __call__(self, out, target):
        self.calls += 1
        noise = torch.rand(len(out)) + torch.from_numpy(np.random.rand(len(out)))
        noise += torch.tensor([random.random() for _ in range(len(out))])
        if self.calls == self.stop:
            raise KeyboardInterrupt
        return torch.nn.functional.cross_entropy(out, target, reduction="none") * noise


def test_the_exit_of_a_persons_code_is_its_own(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text("def layers(artifact): raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="3"):
        main(["train", str(artifact().path), "--model", "leaving:layers"])


def test_random_numbers_of_an_epoch_that_was_stopped_are_drawn_again(tmp_path):
    def made():
        seed_generators(0)
        noisy = Noisy()
        layers = [hnn.GCNConv(6, 5, activation="relu"), hnn.GCNConv(5, 3)]
        return hongtu.Trainer(artifact(), layers, loss=noisy, device_memory="64KiB"), noisy

    def stop(record):
        if record.epoch == 2:
            noisy.stop = noisy.calls + 2

    whole, _ = made()
    whole.fit(4, run_dir=tmp_path / "whole", save_every=9)
    stopped, noisy = made()
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(4, run_dir=tmp_path / "run", save_every=9, on_epoch=stop)
    again, _ = made()
    assert again.resume(tmp_path / "run") and again.epoch == 2
    again.fit(2, run_dir=tmp_path / "run", save_every=9)
    assert same_result(tmp_path / "whole", tmp_path / "run")


# --------------------------------------------------------------------------------------------------------- artifacts


@pytest.fixture
def copy(tmp_path):
    """An artifact of one's own."""
    shutil.copytree(artifact().path, tmp_path / "artifact")
    return hongtu.open_artifact(tmp_path / "artifact")


def test_an_artifact_that_vanishes_during_a_run_is_still_there_for_it(copy):
    trainer, other = make(copy), make()
    other.model.load_state_dict(trainer.model.state_dict())
    losses = [trainer.train_epoch().loss]
    shutil.rmtree(copy.path)
    losses += [record.loss for record in trainer.fit(3, eval_every=1)]
    assert losses == [record.loss for record in other.fit(4)]


@pytest.mark.parametrize("name", ["features", "sources", "labels"])
def test_a_file_that_is_replaced_during_a_run_is_still_there_for_it(copy, name):
    trainer, other = make(copy), make()
    other.model.load_state_dict(trainer.model.state_dict())
    (copy.path / "another").write_bytes(b"another file")
    os.replace(copy.path / "another", copy.path / f"{name}.npy")
    assert [record.loss for record in trainer.fit(2)] == [record.loss for record in other.fit(2)]


def test_a_vanished_file_is_named_when_the_run_resumes(copy, tmp_path, capsys):
    assert main(command(tmp_path / "run", graph=copy, epochs=2)) == 0
    before = contents(tmp_path / "run")
    (copy.path / "sources.npy").unlink()
    assert main(command(tmp_path / "run", "--resume", graph=copy)) == 2
    err = capsys.readouterr().err
    assert "sources.npy: missing; run `hongtu preprocess` again" in err and err.count("\n") == 1
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["features", "sources", "labels"])
def test_a_file_that_is_cut_short_during_a_run_stops_it(copy, name):
    """Reading on would be a bus error, which no program survives."""
    trainer = make(copy)
    trainer.fit(1, eval_every=1)
    os.truncate(copy.path / f"{name}.npy", 100)
    for call in (trainer.train_epoch, trainer.evaluate):
        with pytest.raises(InputError, match=rf"{name}\.npy: cut from \d+ to 100 bytes while it was in use"):
            call()


@pytest.mark.parametrize("name", ["features", "sources", "labels"])
def test_no_epoch_of_batches_is_drawn_from_a_file_that_is_overwritten_or_cut_short(copy, name):
    loader = NeighborLoader(copy, [2, 2])
    assert len(list(loader)) == len(list(loader)) > 0
    file = copy.path / f"{name}.npy"
    changed = bytes(byte ^ 1 for byte in file.read_bytes())
    with open(file, "r+b") as stream:
        stream.write(changed)
    with pytest.raises(InputError, match=rf"{name}\.npy: overwritten while it was in use"):
        list(loader)
    os.truncate(file, 100)
    with pytest.raises(InputError, match=rf"{name}\.npy: cut from \d+ to 100 bytes while it was in use"):
        list(loader)


@pytest.mark.parametrize("name", ["features", "in_edge_start", "labels", "original_id"])
def test_a_file_that_is_overwritten_during_a_run_stops_it(copy, name):
    """Though it has the size that it had: epochs would go on with other numbers."""
    trainer = make(copy)
    trainer.fit(1, eval_every=1)
    file = copy.path / f"{name}.npy"
    os.utime(file)
    trainer.fit(1, eval_every=1)  # the same content
    with open(file, "r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        last = stream.read()
        stream.seek(-4, os.SEEK_END)
        stream.write(bytes(255 - byte for byte in last))
    for call in (trainer.train_epoch, trainer.evaluate):
        with pytest.raises(InputError, match=rf"{name}\.npy: overwritten while it was in use"):
            call()


def test_no_step_is_made_on_a_file_that_is_overwritten_in_an_epoch(copy, monkeypatch):
    trainer = make(copy)
    trainer.train_epoch()
    before = [p.detach().clone() for p in trainer.model.parameters()]
    run = Executor.run

    def overwrite(self, passes):
        with open(copy.path / "features.npy", "r+b") as stream:
            stream.seek(-4, os.SEEK_END)
            stream.write(b"abcd")
        return run(self, passes)

    monkeypatch.setattr(Executor, "run", overwrite)
    with pytest.raises(InputError, match="no step is made"):
        trainer.train_epoch()
    assert all(map(torch.equal, before, trainer.model.parameters()))
