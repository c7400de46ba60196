"""A loss of power: of what was not synced, any mixture of old and new is on the disk afterwards."""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from tests import problems
from tests.faults.run import make_trainer, prepare
from tests.neutral import pieces, write

MIXTURES = 8
EPOCHS = 5


@functools.cache
def artifact():
    return prepare(problems.new_path())


class Disk:
    """What happens in a folder, in order: contents of files, their names, and what is synced.

    Attributes:
        events: ("content", inode, bytes), ("names", {name: inode}), ("sync", inode) or ("sync names",).
    """

    def __init__(self, folder, monkeypatch):
        self.folder, self.events, self._contents, self._names = folder, [], {}, {}
        self._inode = folder.stat().st_ino
        self._kept = []  # inodes that are free are used again
        for call in ("fsync", "replace", "unlink", "rename"):
            monkeypatch.setattr(os, call, self._watched(getattr(os, call)))

    def _watched(self, call):
        def watched(*arguments, **options):
            self.look()
            if call.__name__ == "fsync":
                inode = os.fstat(arguments[0]).st_ino
                self.events.append(("sync names",) if inode == self._inode else ("sync", inode))
            result = call(*arguments, **options)
            self.look()
            return result

        return watched

    def look(self):
        names = {}
        for path in self.folder.iterdir():
            inode, content = path.stat().st_ino, path.read_bytes()
            names[path.name] = inode
            if inode not in self._contents:
                self._kept.append(open(path, "rb"))  # noqa: SIM115
            if self._contents.get(inode) != content:
                self._contents[inode] = content
                self.events.append(("content", inode, content))
        if names != self._names:
            self._names = names
            self.events.append(("names", names))

    def after_power_failure(self, at, rng):
        """{name: content} of what may be there when the power fails behind so many events."""
        past = self.events[:at]
        synced = max((k for k, event in enumerate(past) if event[0] == "sync names"), default=0)
        lists = [event[1] for event in past[:synced] if event[0] == "names"][-1:] or [{}]
        lists += [event[1] for event in past[synced:] if event[0] == "names"]
        names = dict(lists[0])
        for before, after in itertools.pairwise(lists):
            if rng.random() < 0.5:  # each change of names by itself
                for name in before.keys() | after.keys():
                    if before.get(name) != after.get(name):
                        names.pop(name, None)
                        if name in after:
                            names[name] = after[name]
        return {name: self._content(inode, past, rng) for name, inode in names.items()}

    def _content(self, inode, past, rng):
        synced = max((k for k, event in enumerate(past) if event == ("sync", inode)), default=-1)
        versions = [event[2] for event in past[: synced + 1] if event[:2] == ("content", inode)][-1:] or [b""]
        versions += [event[2] for event in past[synced + 1 :] if event[:2] == ("content", inode)]
        found = versions[rng.integers(len(versions))]
        if len(found) > len(versions[0]) and rng.random() < 0.5:  # part of what was written last
            found = found[: int(rng.integers(len(versions[0]), len(found)))]
        return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_every_mixture_of_old_and_new_files_goes_on(seed, tmp_path, monkeypatch):
    """To the undisturbed loss, from the last snapshot that was written, whose history is whole."""
    (tmp_path / "run").mkdir()
    rng, saved = np.random.default_rng(seed), {}
    with monkeypatch.context() as patched:
        disk = Disk(tmp_path / "run", patched)
        trainer = make_trainer(artifact())
        trainer.fit(
            EPOCHS, run_dir=tmp_path / "run", save_every=2, keep=2, eval_every=2, keep_best=True,
            on_epoch=lambda record: saved.setdefault(len(disk.events), record.epoch // 2 * 2),
        )  # fmt: skip
        disk.look()
    losses = [entry["loss"] for entry in trainer.history]
    wrong, resumed = [], 0
    for k in range(MIXTURES):
        at, place = int(rng.integers(1, len(disk.events) + 1)), tmp_path / f"after-{k}"
        place.mkdir()
        for name, content in disk.after_power_failure(at, rng).items():
            (place / name).write_bytes(content)
        again = make_trainer(artifact())
        try:
            again.resume(place)
        except InputError as error:
            wrong.append(f"{k}, at {at}: {error}")
            continue
        least = max((epoch for event, epoch in saved.items() if event <= at), default=0)
        resumed += again.epoch > 0
        if again.epoch < least:
            wrong.append(f"{k}, at {at}: epoch {again.epoch}, and {least} was saved")
        if [entry["epoch"] for entry in again.history] != [*range(1, again.epoch + 1)]:
            wrong.append(f"{k}, at {at}: history of {len(again.history)} of {again.epoch} epochs")
        if again.epoch < EPOCHS:
            again.fit(EPOCHS - again.epoch, run_dir=place, eval_every=2)
        if again.history[-1]["loss"] != losses[-1]:
            wrong.append(f"{k}, at {at}: another loss")
    assert not wrong, "\n".join(wrong)
    assert resumed > MIXTURES // 3


def test_the_first_files_of_a_run_go_on_or_are_refused(tmp_path, monkeypatch, capsys):
    """options.json is whole or absent; a run without a snapshot begins again."""
    (tmp_path / "run").mkdir()
    command = ["train", str(artifact().path), "--hidden", "4", "--epochs", "2", "--save-every", "1", "--run"]
    with monkeypatch.context() as patched:
        disk = Disk(tmp_path / "run", patched)
        assert main([*command, str(tmp_path / "run")]) == 0
        disk.look()
    rng = np.random.default_rng(0)
    for k in range(12):
        place = tmp_path / f"after-{k}"
        place.mkdir()
        files = disk.after_power_failure(int(rng.integers(1, len(disk.events) + 1)), rng)
        for name, content in files.items():
            (place / name).write_bytes(content)
        code = main([*command, str(place), "--resume"])
        assert code == 0, (sorted(files), capsys.readouterr().err)


def test_an_artifact_is_synced_before_it_takes_its_place(tmp_path, monkeypatch):
    source = write(tmp_path / "in", pieces())
    synced, renamed, real = {}, [], {name: getattr(os, name) for name in ("fsync", "rename")}

    def fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced[path.name if path.is_file() else path] = (
            path.read_bytes() if path.is_file() else sorted(os.listdir(path))
        )
        real["fsync"](descriptor)

    def rename(old, new, **options):
        if (Path(old) / "manifest.json").exists() and ".old-" not in str(new):
            renamed.append(old)
            files = {file.name: file.read_bytes() for file in Path(old).iterdir()}
            assert {name: synced[name] for name in files} == files
            assert synced[Path(old)] == sorted(files)
        real["rename"](old, new, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    options = {"partitions": 2, "chunks": 3}
    for force in ([], ["--force"]):
        assert main(["preprocess", str(source), str(tmp_path / "new" / "out"), "--partitions", "2", *force]) == 0
    hongtu.preprocess_graph(pieces()["edges"], 24, tmp_path / "memory", features="degree", labels="random:2",
                            random_split=(0.5, 0.2, 0.3), **options)  # fmt: skip
    assert len(renamed) >= 3
    for parent in (tmp_path, tmp_path / "new"):
        assert set(synced[parent]) >= ({"new"} if parent == tmp_path else {"out"})
