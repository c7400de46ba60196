"""Ranks that call different methods are told so, all of them, before anything is mixed."""

from __future__ import annotations

import pydoc
import re
import threading
from functools import partial

import pytest
import torch

import hongtu
from hongtu.errors import InputError
from tests import problems, training
from tests.faults.run import same_result
from tests.models import SIX
from tests.ranks.turns import run_ranks


def trainer_of(group, **options):
    return training.make_trainer(SIX[0], problems.awkward(), (4, 3), ranks=group, **options)


class Calls:
    """Calls a method on one rank."""

    def __init__(self, call):
        self.call = call

    def on_epoch_end(self, trainer, record):
        return self.call(trainer)


def nested(call):
    return lambda trainer: trainer.fit(2, callbacks=[Calls(call)])


DIFFERENT = {  # what rank 0 calls, the others, and what all are told
    "evaluate": (lambda t: t.evaluate(), lambda t: t.fit(1), "rank 0 is in evaluate (call 2), rank 1 in fit (call 2)"),
    "epochs": (lambda t: [t.train_epoch(), t.train_epoch()], lambda t: [t.train_epoch(), t.evaluate()],
               "rank 0 is in train_epoch (call 3), rank 1 in evaluate (call 3)"),
    "a callback": (nested(lambda t: t.evaluate() and None), nested(lambda t: None),
                   "rank 0 is in evaluate inside fit (call 2), rank 1 in fit (call 2)"),
    "a callback that trains": (nested(lambda t: t.predict() and None), nested(lambda t: t.train_epoch() and None),
                               "rank 0 is in predict inside fit (call 2), rank 1 in train_epoch inside fit (call 2)"),
    "load": (lambda t: t.load("nowhere.pt"), lambda t: t.predict(), "rank 0 is in load (call 2), rank 1 in predict"),
    "resume": (lambda t: t.resume("nowhere"), lambda t: t.evaluate(), "rank 0 is in resume (call 2), rank 1 in eval"),
    "weights": (lambda t: t.load_weights("nowhere"), lambda t: t.load("nowhere"), "rank 0 is in load_weights (call 2)"),
    "a Trainer": (lambda t: trainer_of(t.ranks), lambda t: t.train_epoch(),
                  "rank 0 is in Trainer of Trainer 2 (call 2), rank 1 in train_epoch (call 2)"),
    "layers": (lambda t: t.embed(0), lambda t: t.embed(1), "layer: rank 1 has 1, rank 0 has 0; give every rank"),
    "vertices": (lambda t: t.predict([1, 2]), lambda t: t.predict([3]), "vertices: rank 1 has [3], rank 0 has [1, 2]"),
    "many vertices": (lambda t: t.predict([0] * 30), lambda t: t.predict([1] * 30), "vertices: rank 1 has torch.int64"),
    "all vertices": (lambda t: t.predict(), lambda t: t.predict([3]), "vertices: rank 1 has [3], rank 0 has all"),
    "a vertex that is none": (lambda t: t.predict([0]), lambda t: t.predict([10**9]), "1000000000"),
    "options that are none": (lambda t: t.fit(1), lambda t: t.fit(0), "epochs is 0"),
    "another Trainer": (lambda t: [trainer_of(t.ranks), t.evaluate()], lambda t: trainer_of(t.ranks).evaluate(),
                        "rank 0 is in evaluate (call 3), rank 1 in evaluate of Trainer 2 (call 3)"),
    "a weight that is none": (lambda t: t.evaluate(), lambda t: setattr(t, "_torn", "x") or t.evaluate(), "half-way"),
}  # fmt: skip


@pytest.mark.parametrize("dependencies", ["cache", "comm"])
@pytest.mark.parametrize("name", DIFFERENT)
def test_different_calls_are_named_on_every_rank(name, dependencies, tmp_path):
    first, other, said = DIFFERENT[name]

    def work(group):
        trainer = trainer_of(group, dependencies=dependencies)
        with pytest.raises(InputError, match=re.escape(said)):
            (other if group.rank else first)(trainer)
        trainer._torn = None
        return trainer.train_epoch().loss  # they may go on, together

    losses = run_ranks(2, work)
    assert losses[0] == losses[1]


def test_of_several_ranks_each_is_named():
    def work(group):
        trainer = trainer_of(group)
        said = "ranks 0 and 2 are in evaluate (call 2), rank 1 in predict (call 2); every rank must call the same"
        with pytest.raises(InputError, match=re.escape(said)):
            trainer.predict() if group.rank == 1 else trainer.evaluate()

    run_ranks(3, work)


@pytest.mark.parametrize("format", ["snapshot", "safetensors"])
def test_the_first_rank_saves_alone(format, tmp_path):
    """As people write it, in a callback, too; the others may call it as well."""
    path = tmp_path / ("saved.pt" if format == "snapshot" else "saved.safetensors")

    def work(group):
        trainer = trainer_of(group)
        save = Calls(lambda t: t.save(path, format=format))
        trainer.fit(2, callbacks=[save] if group.rank == 0 else [])
        assert group.rank > 0 or path.exists()
        trainer.save(path, format=format)
        before = trainer.predict()
        trainer.train_epoch()
        trainer.load_weights(path)
        assert torch.equal(trainer.predict(), before)

    run_ranks(2, work)


def test_a_rank_alone_cannot_save_the_rows_of_others(tmp_path):
    artifact = learning(tmp_path / "a")

    def work(group):
        layers = [hongtu.nn.GCNConv(3, 3)]
        trainer = hongtu.Trainer(artifact, layers, ranks=group, dependencies="comm")
        trainer.train_epoch()
        for alone in (lambda: trainer.save(tmp_path / "s.pt"), trainer.gradients, trainer.state, trainer.weights):
            with pytest.raises(InputError, match=r"rank 0 is in (save|gradients|state) .*rank 1 in evaluate"):
                trainer.evaluate() if group.rank else alone()

    run_ranks(2, work)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_callback_that_stops_on_any_rank_stops_all(rank):
    def work(group):
        trainer = trainer_of(group)
        trainer.fit(5, callbacks=[Calls(lambda t: group.rank == rank and t.epoch == 2)])
        return trainer.epoch

    assert run_ranks(2, work) == [2, 2]


def learning(path):
    problem = problems.awkward()
    return hongtu.preprocess_graph(
        problem.edges, problem.num_vertices, path, features="embedding:3", labels=problem.labels, masks=problem.masks,
        partitions=2, chunks=2,
    )  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_with_learned_rows_go_on_from_the_last_regular_snapshot(rank, tmp_path):
    artifact = learning(tmp_path / "artifact")

    def work(group, directory, stop=0):
        def stopped(trainer):
            if group.rank == rank and trainer.epoch == stop:
                raise KeyboardInterrupt

        torch.manual_seed(0)
        trainer = hongtu.Trainer(artifact, [hongtu.nn.GCNConv(3, 3)], ranks=group, dependencies="comm")
        trainer.resume(tmp_path / directory)
        begun = trainer.epoch
        trainer.fit(6 - begun, run_dir=tmp_path / directory, save_every=2, callbacks=[Calls(stopped)])
        return begun

    run_ranks(2, partial(work, directory="whole"))
    with pytest.raises((KeyboardInterrupt, AssertionError, InputError)):
        run_ranks(2, partial(work, directory="run", stop=5))
    assert run_ranks(2, partial(work, directory="run")) == [4, 4]
    assert same_result(tmp_path / "whole", tmp_path / "run")


STOPS = {  # where a rank is stopped, and the epoch that is kept
    "hongtu.train.trainer.Trainer.evaluate": 2,  # of epoch 3, to whose scores it takes all ranks
    "hongtu.engine.engine.Engine.train": 3,
    "hongtu.train.loop.tell": 3,  # its fourth call: the first begins the fit
    "hongtu.train.trainer.Trainer._step": 3,
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", STOPS)
def test_ranks_of_which_one_is_stopped_lose_no_epoch_but_its_own(place, rank, tmp_path, monkeypatch):
    calls, this = [], threading.local()
    module, _, name = place.rpartition(".")
    real = getattr(pydoc.locate(module), name)

    def stopped(*arguments, **options):
        if this.rank == rank:
            calls.append(1)
        if this.rank == rank and len(calls) == {"evaluate": 1}.get(name, 4):
            raise KeyboardInterrupt
        return real(*arguments, **options)

    def work(group, directory):
        this.rank = group.rank
        trainer = trainer_of(group)
        trainer.resume(tmp_path / directory)
        begun = trainer.epoch
        trainer.fit(6 - begun, eval_every=3, run_dir=tmp_path / directory, save_every=6)
        return begun

    run_ranks(2, partial(work, directory="whole"))
    with monkeypatch.context() as patch:
        patch.setattr(place, stopped)
        with pytest.raises((KeyboardInterrupt, AssertionError, InputError)):
            run_ranks(2, partial(work, directory="run"))
    kept, of_other = run_ranks(2, partial(work, directory="run"))
    assert kept == of_other and kept in (STOPS[place], STOPS[place] + (name == "_step" and rank == 1))  # done on rank 0
    assert same_result(tmp_path / "whole", tmp_path / "run")
