"""What ``fit`` keeps: the best weights, what was trained before an interrupt, and a history beside the snapshots."""

from __future__ import annotations

import copy
import pydoc

import pytest
import torch

import hongtu
from hongtu.errors import InputError
from tests.faults.run import same_result
from tests.trainers import artifact, gcn


def scripted(scores, **options):
    """A trainer whose regular evaluations give these validation scores; the parameters move in every epoch."""
    trainer = hongtu.Trainer(artifact(), gcn(), **options)
    left = iter(scores)
    trainer.evaluate = lambda: {"train": 0.0, "val": next(left), "test": 0.0}
    return trainer


def test_the_best_weights_are_kept_and_restored(tmp_path):
    other, weights = hongtu.Trainer(artifact(), gcn()), []
    other.fit(8, on_epoch=lambda record: weights.append(copy.deepcopy(other.model.state_dict())))
    for options in ({}, {"run_dir": tmp_path / "run", "save_every": 2}):
        trainer = scripted([0.1, 0.5, 0.4, 0.3])
        trainer.fit(8, eval_every=2, restore_best=True, **options)
        assert trainer.epoch == 8
        assert all(torch.equal(value, weights[3][name]) for name, value in trainer.model.state_dict().items())
    again = hongtu.Trainer(artifact(), gcn())
    again.load(tmp_path / "run" / "best.pt")
    assert again.epoch == 4 and [entry["epoch"] for entry in again.history] == [1, 2, 3, 4]
    assert again.resume(tmp_path / "run") and again.epoch == 8  # the last one is not the best one
    assert all(torch.equal(value, weights[7][name]) for name, value in again.model.state_dict().items())


def test_a_resumed_run_knows_what_was_best(tmp_path):
    options = {"eval_every": 1, "run_dir": tmp_path, "save_every": 1}
    scripted([0.1, 0.5, 0.3]).fit(3, restore_best=True, **options)
    again = scripted([0.4, 0.2])
    again.resume(tmp_path)
    again.fit(2, restore_best=True, **options)
    best = hongtu.Trainer(artifact(), gcn())
    best.load(tmp_path / "best.pt")
    assert best.epoch == 2 and again.epoch == 5
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in best.model.state_dict().items())
    with pytest.raises(InputError, match="keep_best needs run_dir"):
        again.fit(1, eval_every=1, keep_best=True)


def test_snapshots_of_a_run_do_not_grow_with_its_history(tmp_path):
    trainer = hongtu.Trainer(artifact(), gcn())
    trainer.fit(2, run_dir=tmp_path, save_every=1)
    trainer.history *= 1000
    trainer.fit(1, run_dir=tmp_path, save_every=1)
    small, large = ((tmp_path / f"snapshot-{k}.pt").stat().st_size for k in (2, 3))
    assert abs(large - small) < 1000


@pytest.mark.parametrize("place", ["hongtu.train.trainer.Trainer.evaluate", "hongtu.engine.engine.Engine.train"])
def test_an_interrupt_writes_what_was_trained(place, tmp_path, monkeypatch):
    """During the evaluation of epoch 3, which is then finished, and during epoch 4, which is as if it had not begun."""
    whole = hongtu.Trainer(artifact(), gcn())
    whole.fit(6, eval_every=3, run_dir=tmp_path / "whole", save_every=6)
    trainer, begun = hongtu.Trainer(artifact(), gcn()), []
    module, _, name = place.rpartition(".")
    real = getattr(pydoc.locate(module), name)

    def interrupted(*arguments):
        begun.append(1)
        if len(begun) == (1 if name == "evaluate" else 4):
            real(*arguments)
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(6, eval_every=3, run_dir=tmp_path / "run", save_every=6)
    again = hongtu.Trainer(artifact(), gcn())
    assert again.resume(tmp_path / "run") and again.epoch == 3
    assert again.history[2]["metrics"] == whole.history[2]["metrics"]
    again.fit(3, eval_every=3, run_dir=tmp_path / "run", save_every=6)
    assert same_result(tmp_path / "whole", tmp_path / "run")
