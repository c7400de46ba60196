"""Small arrays of a batch lie behind one another, and one copy brings them all."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import hongtu
from hongtu.cuda_ext.arguments import HUB
from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.device.script import Script, scripts_of, typed
from hongtu.device.simulated import QueueEvent
from hongtu.engine.executor import Executor
from hongtu.kernels.torch_private import Operations
from hongtu.metrics import Traffic
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.search import host
from hongtu.train import network_plan
from tests import graphs, problems, staged, training
from tests.models import SIX
from tests.plan.test_compile import same
from tests.staged import simulated

DTYPES = {"pointers": torch.int64, "weights": torch.float32, "flags": torch.uint8}


def made(stays=False, nbytes=61):
    """A script, and where it goes."""
    device = torch.zeros(61, dtype=torch.uint8)
    script = Script(torch.zeros(nbytes, dtype=torch.uint8), DTYPES, stays=stays)
    script.goes_to(typed(device, DTYPES.values()))
    return script, device


def given(array):
    return lambda: array


def test_arrays_arrive_where_they_were_promised():
    script, _ = made()
    pointers, weights = np.arange(3), np.float64([[1, 2], [3, 4], [5, 6]])
    found = [
        script.pack("pointers", given(pointers), "topology"),
        script.pack("weights", given(weights), "topology", np.int32([2, 0])),
        script.pack("flags", given(torch.tensor([[1], [0], [1]], dtype=torch.uint8)), "read"),
    ]
    assert not any(part.any() for part in found)
    host, device, nbytes = script.take()
    assert nbytes == {"topology": 24 + 16, "read": 3} and host.nbytes == device.nbytes == 43
    device.copy_(host)
    expected = ([0, 1, 2], [[5.0, 6.0], [1.0, 2.0]], [[1], [0], [1]])
    for part, name, values in zip(found, DTYPES, expected, strict=True):
        assert part.dtype == DTYPES[name] and part.is_contiguous() and part.tolist() == values
        assert script.parts[name] is part


def test_the_next_batch_begins_anew():
    script, _ = made()
    script.pack("pointers", given(np.arange(7)), "topology")
    script.take()
    assert script.pack("pointers", given(np.arange(2)), "topology").storage_offset() == 0
    assert script.pack("flags", given(np.zeros(0, dtype=np.uint8)), "read").shape == (0,)
    assert script.take()[2].total() == 16


def test_what_stays_is_asked_for_once():
    """And goes wherever the next epoch wants it."""
    script, _ = made(stays=True, nbytes=20)
    script.pack("pointers", given(np.arange(2)), "topology")
    with pytest.raises(AssertionError, match="16, 20"):
        script.take()
    script.pack("weights", given(np.float32([5])), "read")
    script.take()
    other = torch.zeros(24, dtype=torch.uint8)
    script.goes_to(typed(other, DTYPES.values()))
    parts = [script.pack(name, lambda: pytest.fail("asked again"), "read") for name in ("pointers", "weights")]
    host, device, nbytes = script.take()
    device.copy_(host)
    assert [part.tolist() for part in parts] == [[0, 1], [5.0]] and device.data_ptr() == other.data_ptr()
    assert nbytes == {"topology": 16, "read": 4} and not other[20:].any()


def test_scripts_that_stay_lie_apart():
    first, second = scripts_of(torch.zeros(512, dtype=torch.uint8), [8, 8], DTYPES)
    device = typed(torch.zeros(8, dtype=torch.uint8), DTYPES.values())
    for k, script in enumerate((first, second)):
        script.goes_to(device)
        script.pack("pointers", given(np.array([k + 1])), "topology")
    assert [script.take()[0].tolist()[0] for script in (first, second)] == [1, 2]
    assert second.take()[0].data_ptr() - first.take()[0].data_ptr() == 256


def test_what_does_not_fit_or_lies_askew_is_refused():
    script, _ = made()
    with pytest.raises(AssertionError, match="pointers"):
        script.pack("pointers", given(np.arange(8)), "topology")
    script.pack("flags", given(np.zeros(3, dtype=np.uint8)), "read")
    with pytest.raises(AssertionError, match="weights"):
        script.pack("weights", given(np.zeros(1, dtype=np.float32)), "topology")


@pytest.mark.pairs
@pytest.mark.parametrize("problem", [problems.awkward, problems.few_train], ids=["whole", "pruned"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlapping", "in turn"])
@pytest.mark.parametrize("grain", [(1, 7), (4, 8)], ids=str)
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_an_epoch_packs_nothing_and_waits_for_nothing(model, grain, overlap, problem, monkeypatch):
    """But at the ends of passes. The first one packs; numbers, bytes and peaks are those that were planned."""
    strategy = replace(Strategy(), resident=False, group=False, overlap=overlap)
    device = simulated()
    trainer = staged.check(model, problem(), grain, epochs=1, device=device, strategy=strategy, detect_anomaly=False)
    plan, waits = trainer.plan, set()
    assert plan.choice.staging == 1 + overlap and plan.script_bytes > 0
    wait = QueueEvent.synchronize
    monkeypatch.setattr(QueueEvent, "synchronize", lambda self, why: (waits.add(why), wait(self, why))[1])
    monkeypatch.setattr(hongtu.device.script, "copy_on_host", lambda *_: pytest.fail("packed again"))
    training.assert_counted(trainer, trainer.train_epoch())
    assert waits == {"drain: the pass is done"}


def test_scripts_stay_where_the_host_has_room(monkeypatch):
    """Else they are packed in every epoch, which is as exact."""
    strategy = replace(Strategy(), resident=False, group=False)
    options = {"device": simulated(), "strategy": strategy, "detect_anomaly": False}
    keeping = training.make_trainer(SIX[0], problems.awkward(), (4, 8), **options).plan
    for room in (0, -1):
        need = host.needed(keeping, has_devices=False) + room
        found = host.without_scripts(keeping, need, has_devices=False)
        assert found.choice.scripts is (room == 0)
    beside = keeping.host_bytes["pinned host"] - found.host_bytes["pinned host"]
    assert 0 < beside < keeping.script_bytes and found.script_bytes == 0 and not same(found.program, keeping.program)
    monkeypatch.setattr(network_plan, "available_bytes", lambda: need)
    trainer = staged.check(SIX[0], problems.awkward(), (4, 8), **options)
    assert not trainer.plan.choice.scripts


@pytest.mark.long
@pytest.mark.parametrize("grain", [(1, 7), (4, 8)], ids=str)
def test_a_batch_takes_one_copy_of_structure_and_few_launches(grain, monkeypatch):
    """Whatever a GPU is asked for costs the thread that asks some microseconds, for every chunk of every pass."""
    strategy = replace(Strategy(), resident=False, group=False)
    trainer = training.make_trainer(SIX[0], problems.awkward(), grain, device="simulated", strategy=strategy)
    trainer.train_epoch()  # and what is done once before
    copies, launches = [], []
    add, launch = Traffic.add, HostLauncher.launch
    monkeypatch.setattr(Traffic, "add", lambda self, link, *a, **k: (copies.append(link), add(self, link, *a, **k)))
    monkeypatch.setattr(HostLauncher, "launch", lambda self, *a, **k: (launches.append(a[0]), launch(self, *a, **k)))
    trainer.train_epoch()
    chunks = sum(len(p.order) * len(p.buffers) for p in trainer._engine.program.train)
    assert 0 < copies.count("topology") <= chunks
    assert 0 < len(launches) <= 12 * chunks


@pytest.mark.parametrize("grain", [(1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("model", [SIX[0], SIX[4], SIX[5]], ids=repr)
def test_only_a_chunk_with_a_hub_launches_something_for_it(model, grain, monkeypatch):
    """Where every chunk has edges enough for one; and the hub has its sum."""
    rng = np.random.default_rng(3)
    random, into_one = rng.integers(0, 400, (2, 3200)), np.stack([rng.integers(0, 400, 600), np.full(600, 7)])
    problem = problems.problem_of(graphs.Graph("one-hub", np.concatenate([random, into_one], axis=1), None, 400))
    launches, launch = [], HostLauncher.launch

    def noted(self, name, grid, block, args, *more):
        launches.extend([args[-1]] if re.match("csc|attend|gated|segment|expand", name) else [])
        launch(self, name, grid, block, args, *more)

    monkeypatch.setattr(HostLauncher, "launch", noted)
    strategy = replace(Strategy(), resident=False, group=False)
    trainer = staged.check(model, problem, grain, device=simulated(), strategy=strategy, detect_anomaly=False)
    longest = trainer.plan.topology.longest
    assert trainer.plan.topology.chunk_edges.min() > HUB and sorted(longest > HUB) == [False, False, True]
    ranges, of_hubs = launches.count(0), len(launches) - launches.count(0)
    assert 0 < of_hubs < ranges and (model is not SIX[0] or 3 * of_hubs == ranges)


class Counted(Operations):
    """How many operations there were that work on the device: a view is none."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(chunks, monkeypatch):
    """By training pass of a GCN, how many operations it takes in so many chunks."""
    strategy, counted = replace(Strategy(), resident=False, group=False), Counted()
    options = {"device": simulated(), "strategy": strategy, "detect_anomaly": False}
    trainer, found = training.make_trainer(SIX[0], problems.awkward(), (1, chunks), **options), {}
    for _ in range(3):  # layers' memory is counted in some epochs
        trainer.train_epoch()
    run = Executor._run_pass

    def run_pass(self, p):
        before = counted.count
        run(self, p)
        found[p.name] = counted.count - before

    monkeypatch.setattr(Executor, "_run_pass", run_pass)
    with counted:
        trainer.train_epoch()
    monkeypatch.undo()
    return found


def test_a_chunk_takes_few_operations(monkeypatch):
    """Of GCN, beside the kernels: what a further chunk adds to a pass, with the loss, too."""
    few, many = operations(4, monkeypatch), operations(8, monkeypatch)
    each = {name: (many[name] - few[name]) / 4 for name in few}
    assert set(each) == {"forward 0", "fused 1", "backward 0"} and max(each.values()) <= 25, each
