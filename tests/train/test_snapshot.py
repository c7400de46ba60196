"""Snapshots: a run that is saved and loaded goes on as if it had not been; others and damaged ones are refused."""

from __future__ import annotations

import copy
import io
import os
import random
import warnings
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.train.snapshot import describe_layer, write_snapshot
from tests import training
from tests.faults.run import hashed
from tests.models import H
from tests.preprocess.test_claims import overlapping
from tests.trainers import SCHEDULERS, adam_and_step, artifact, dropout_trainer, gcn, losses_of
from tests.training import STRATEGIES

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_run_that_is_saved_and_loaded_equals_one_that_was_not(name, tmp_path):
    """Bit for bit: Adam, a scheduler, dropout."""
    options = {"scheduler": SCHEDULERS[name], "dtype": torch.float32}
    whole = losses_of(dropout_trainer(**options).fit(8))
    first = dropout_trainer(**options)
    begun = losses_of(first.fit(3))
    first.save(tmp_path / "snapshot")
    second = dropout_trainer(**options, seed=99)  # the snapshot's seed counts
    second.load(tmp_path / "snapshot")
    assert second.epoch == 3
    assert begun + losses_of(second.fit(5)) == whole
    assert begun + losses_of(first.fit(5)) == whole  # saving changes nothing


def test_a_snapshot_goes_on_under_another_budget_and_strategy(tmp_path):
    whole = losses_of(dropout_trainer().fit(6))
    first = dropout_trainer(strategy="paper", device_memory="1MiB")
    begun = losses_of(first.fit(3))
    first.save(tmp_path / "snapshot")
    small = training.smallest_budget(artifact(), lambda: list(dropout_trainer().model), optimizer=adam_and_step)
    for options in ({"strategy": "none"}, {"strategy": "full"}, {"strategy": "paper", "device_memory": 2 * small}):
        second = dropout_trainer(**options)
        second.load(tmp_path / "snapshot")
        np.testing.assert_allclose(begun + losses_of(second.fit(3)), whole, rtol=1e-10)


def test_loading_goes_back(tmp_path):
    trainer = dropout_trainer()
    trainer.fit(2)
    trainer.save(tmp_path / "snapshot")
    expected = losses_of(trainer.fit(3))
    trainer.load(tmp_path / "snapshot")
    assert losses_of(trainer.fit(3)) == expected


def test_saving_in_the_middle_of_fit_with_plateaus_of_the_validation_score(tmp_path):
    """ReduceLROnPlateau sees the last validation score, whether or not this epoch took one."""

    def make():
        return dropout_trainer(
            scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, mode="max", patience=1, factor=0.5),
            dtype=torch.float32,
        )

    whole = losses_of(make().fit(8, eval_every=2))
    first = make()
    begun = losses_of(first.fit(4, eval_every=2))
    first.save(tmp_path / "snapshot")
    second = make()
    second.load(tmp_path / "snapshot")
    assert begun + losses_of(second.fit(4, eval_every=2)) == whole


def test_plateaus_are_those_of_one_quantity():
    """With evaluations only now and then, scores and losses must not be mixed."""
    seen = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics, epoch=None):
            seen.append(metrics)
            super().step(metrics, epoch)

    records = dropout_trainer(scheduler=lambda o: Plateau(o, mode="max")).fit(6, eval_every=3)
    scores = [record.metrics["val"] for record in records if record.metrics]
    assert len(scores) == 2
    assert set(seen) <= set(scores), f"stepped with {seen}, the scores were {scores}"


def test_plateaus_of_the_loss_where_nothing_is_evaluated():
    trainer = dropout_trainer(
        scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(
            o, patience=0, threshold=10.0, threshold_mode="abs", factor=0.5
        )
    )
    rates = []
    trainer.fit(4, on_epoch=lambda record: rates.append(trainer.optimizer.param_groups[0]["lr"]))
    assert rates == [0.05, 0.025, 0.0125, 0.00625]


def test_a_snapshot_holds_parameters_and_is_written_whole(tmp_path):
    trainer = dropout_trainer()
    trainer.fit(1)
    trainer.save(tmp_path / "deep" / "snapshot.pt")
    trainer.fit(1)
    trainer.save(tmp_path / "deep" / "snapshot.pt")  # replaces
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["snapshot.pt"]
    state = torch.load(tmp_path / "deep" / "snapshot.pt", weights_only=True)
    assert state["epoch"] == 2
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(state["model"][name], value)


def state_of(trainer):
    return copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.epoch))


def assert_state_is(trainer, before):
    after = state_of(trainer)
    assert after[2] == before[2] and str(after[1]) == str(before[1])
    assert all(torch.equal(after[0][name], value) for name, value in before[0].items())


def test_damaged_snapshots_are_refused(tmp_path):
    """Cut short, with bytes changed, or no snapshot at all: a message, and the trainer as it was."""
    trainer = dropout_trainer()
    trainer.fit(2)
    good = tmp_path / "good"
    trainer.save(good)
    trainer.fit(1)
    content = good.read_bytes()
    rng = random.Random(0)
    damaged = [content[:k] for k in (0, 1, 100, len(content) // 2, len(content) - 1)]
    damaged += [b"not a snapshot", b"\x80\x04]\x94.", b"\x00" * 1000, rng.randbytes(2000)]
    damaged += [b"PK\x03\x04" + rng.randbytes(500)]
    for _ in range(60):
        at = rng.randrange(len(content))
        damaged.append(content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :])
    before = state_of(trainer)
    path = tmp_path / "damaged"
    for k, bad in enumerate(damaged):
        path.write_bytes(bad)
        try:
            trainer.load(path)
        except InputError as error:
            assert str(path) in str(error)
            assert_state_is(trainer, before)
        else:  # a byte that means nothing: padding, a time stamp
            assert k >= 10 and trainer.epoch == 2
            trainer.load(good)
            trainer.fit(1)
            before = state_of(trainer)
    with pytest.raises(InputError, match="no such snapshot"):
        trainer.load(tmp_path / "absent")


def test_other_files_of_torch_are_refused(tmp_path):
    trainer = dropout_trainer()
    for other in ({"model": {}}, [1, 2], torch.ones(3), {"format": "hongtu-snapshot", "version": 0},
                  {"format": "hongtu-snapshot", "version": 1}):  # fmt: skip
        torch.save(other, tmp_path / "other")
        with pytest.raises(InputError, match="other"):
            trainer.load(tmp_path / "other")


FORGED = {  # sections of a file whose hash is right
    "identity": ([], {"layers": {}}), "model": (None, {}, {"0.bias": 7}, {3: torch.ones(1)}), "epoch": ("1", 1.5, None),
    "optimizer": (7, {}, {"state": 1, "param_groups": {}}, {"state": {}, "param_groups": [{}]}), "scheduler": ([], 3),
    "stopping": ([1, 2, 3], {}), "seed": ("x",), "rng": ([], {}, {"torch": 7}), "history": (7, "x"),
    "embedding": ("x",), "training": (7, []), "trained": ([1], "x"),
}  # fmt: skip


@pytest.mark.parametrize("section", FORGED)
def test_sections_of_other_things_are_refused(section, tmp_path):
    trainer = dropout_trainer()
    trainer.train_epoch()
    state = trainer.state()
    for value in FORGED[section]:
        write_snapshot(tmp_path / "forged.pt", state | {section: value})
        with pytest.raises(InputError, match=r"forged.pt: (not the state|the snapshot)"):
            trainer.load(tmp_path / "forged.pt")


def _changed(state, path, value):
    """A copy with another value at a place of it; ... takes it away."""
    if not path:
        return value
    changed = copy.copy(state)
    if value is ... and len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = _changed(state[path[0]], path[1:], value)
    return changed


FIRST = "optimizer", "state", 0
RESTLESS = {  # what nothing looks at before the first step, or the first score
    "a moment that is gone": ((*FIRST, "exp_avg"), ...),
    "a moment of text": ((*FIRST, "exp_avg_sq"), "x"),
    "a moment of another shape": ((*FIRST, "exp_avg"), torch.ones(3, 1, 1)),
    "a step without a number": ((*FIRST, "step"), torch.empty((), device="meta")),
    "steps below none": ((*FIRST, "step"), torch.tensor(-1.0)),
    "a list of moments": (FIRST, []),
    "a rate of text": (("optimizer", "param_groups", 0, "lr"), "x"),
    "betas of text": (("optimizer", "param_groups", 0, "betas"), ["a", "b"]),
    "a period of text": (("scheduler", "step_size"), "x"),
    "a best score of text": (("stopping", 0), "x"),
    "a patience of a list": (("stopping", 1), []),
    "a seed beyond all": (("seed",), 2**70),
    "an epoch below none": (("epoch",), -1),
    "a history of text": (("history",), ["x"]),
}


@pytest.mark.parametrize("what", RESTLESS)
def test_what_cannot_step_is_the_snapshots(what, tmp_path):
    trainer, again = dropout_trainer(), dropout_trainer()
    trainer.fit(2)
    write_snapshot(tmp_path / "snapshot.pt", _changed(trainer.state(), *RESTLESS[what]))
    with pytest.raises(InputError, match=r"snapshot\.pt: not the state of such a run"):
        again.load(tmp_path / "snapshot.pt")
        again.fit(1, eval_every=1, patience=3)
    trainer.save(tmp_path / "snapshot.pt")
    again.load(tmp_path / "snapshot.pt")  # and goes on
    assert losses_of(again.fit(2)) == losses_of(trainer.fit(2))


def test_snapshots_that_claim_more_than_they_hold_are_refused(tmp_path):
    """Their hashes are right."""
    trainer, file, many = dropout_trainer(), tmp_path / "forged.pt", []
    state = trainer.state()
    for _ in range(40):
        many = [many, many]
    for section, value, words in (
        ("model", {"0.bias": torch.zeros(1).expand(10**9)}, "repeats its rows"),
        ("identity", {"dtype": many}, "holds more values than bytes"),
        ("rng", {"x": [many] * 10**4}, "holds more values than bytes"),
    ):
        body = io.BytesIO()
        torch.save(state | {section: value}, body)
        file.write_bytes(hashed(body.getvalue()))
        with pytest.raises(InputError, match=words):
            trainer.load(file)
    os.truncate(file, 0)
    os.truncate(file, 64 << 30)  # a hole, which nobody reads
    with pytest.raises(InputError, match="its hash differs"):
        trainer.load(file)
    with zipfile.ZipFile(body) as whole, zipfile.ZipFile(squeezed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    file.write_bytes(hashed(squeezed.getvalue()))
    with pytest.raises(InputError, match="is compressed"):
        trainer.load(file)
    torch.save(state | {"rng": {str(k): torch.full((10**5,), 1.0) for k in range(20)}}, whole := io.BytesIO())
    file.write_bytes(hashed(overlapping(whole.getvalue())))
    with pytest.raises(InputError, match="its members lie over each other"):
        trainer.load(file)


def snapshot_of(trainer, tmp_path):
    trainer.fit(1)
    trainer.save(tmp_path / "snapshot")
    return tmp_path / "snapshot"


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("artifact", lambda: hongtu.Trainer(artifact(1, 7), gcn())),
        ("layers", lambda: hongtu.Trainer(artifact(), [hnn.GCNConv(6, 4), hnn.GCNConv(4, 3)])),
        ("layers", lambda: hongtu.Trainer(artifact(), [hnn.GCNConv(6, H), nn.ReLU(), hnn.GCNConv(H, 3)])),
        ("layers", lambda: hongtu.Trainer(artifact(), [hnn.GCNConv(6, H, bias=False), hnn.GCNConv(H, 3)])),
        ("optimizer", lambda: hongtu.Trainer(artifact(), gcn(), optimizer=training.sgd)),
        ("scheduler", lambda: hongtu.Trainer(artifact(), gcn(), scheduler=SCHEDULERS["StepLR"])),
        ("dtype", lambda: hongtu.Trainer(artifact(), gcn(), dtype=torch.float64)),
    ],
    ids=["other-artifact", "other-widths", "more-modules", "no-bias", "other-optimizer", "scheduler", "other-dtype"],
)
def test_snapshots_of_another_run_are_refused(what, make, tmp_path):
    path = snapshot_of(hongtu.Trainer(artifact(), gcn()), tmp_path)
    other = make()
    before = state_of(other)
    with pytest.raises(InputError, match=what):
        other.load(path)
    assert_state_is(other, before)


def test_a_layers_lists_say_what_it_is():
    degrees = torch.tensor([0, 2, 3])
    mean, largest = (hnn.PNAConv(4, 4, [name], ["identity"], degrees) for name in ("mean", "max"))
    assert describe_layer(mean) != describe_layer(largest)


def test_another_number_of_threads_than_the_snapshots_is_said(tmp_path):
    before = torch.get_num_threads()
    trainer = hongtu.Trainer(artifact(), gcn())
    try:
        torch.set_num_threads(1)
        trainer.train_epoch()
        trainer.save(tmp_path / "snapshot.pt")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.load(tmp_path / "snapshot.pt")
        torch.set_num_threads(2)
        with pytest.warns(UserWarning, match=r"a run with 1 threads, and this one has 2.*torch.set_num_threads\(1\)"):
            trainer.load(tmp_path / "snapshot.pt")
    finally:
        torch.set_num_threads(before)
