"""CUDA's engine without a GPU: streams as queues in random order, the kernels' own sources on the CPU.

Exactness of training through it, predictions that hold, and that every wait is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hongtu import host
from hongtu.cuda_ext.compile import KernelError
from hongtu.device.simulated import SimulatedBackend, poisoned
from hongtu.device.staged import StagedDevice
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.plan.passes.definition import FEATURES
from hongtu.plan.passes.strategy import Strategy, get_strategy
from tests import problems, training
from tests.models import SIX
from tests.staged import EXACT, budget, check, everything, on_disk
from tests.training import STRATEGIES

try:
    SimulatedBackend()
except KernelError as error:
    pytest.skip(str(error), allow_module_level=True)

GRAINS = ((1, 7), (4, 8))  # (m, n)
SEEDS = 12  # orders of work tried per wait that is left out

six = pytest.mark.parametrize("model", SIX, ids=repr)
grains = pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.mark.every
@pytest.mark.long
@strategies
@grains
@six
def test_training_is_exact(model, grain, strategy):
    problem, device = problems.awkward(), SimulatedBackend(seed=grain[0])
    check(model, problem, grain, device=device, strategy=strategy, device_memory="smallest")
    if strategy == "full":
        check(model, problem, grain, device=device, strategy=strategy)
        some = budget(model, problem, grain, 1.7, device=device, strategy=strategy)
        check(model, problem, grain, device=device, strategy=strategy, device_memory=some)


@pytest.mark.most(3)
@pytest.mark.long
@six
def test_batches_overlap_and_stay_exact(model):
    """Two sets of staging memory, caches that evict, every order of work."""
    problem, strategy = problems.directed_weighted(), replace(Strategy(), resident=False, group=False)
    for seed in range(2):
        device = SimulatedBackend(seed=seed)
        some = budget(model, problem, (4, 8), 2.0, device=device, strategy=strategy)
        trainer = check(model, problem, (4, 8), device=device, strategy=strategy, device_memory=some)
    assert trainer.plan.choice.staging == 2
    assert trainer.plan.topology.chunks == 8


@six
def test_structure_that_stays_is_brought_once(model):
    problem, device = problems.awkward(), SimulatedBackend()
    trainer = training.make_trainer(model, problem, (1, 7), device=device)
    before = trainer.plan.setup_traffic.bytes["topology"]
    record = trainer.train_epoch()
    training.assert_counted(trainer, record)
    assert record.bytes["topology"] == 0 and trainer.setup is not None
    assert trainer.setup.bytes["topology"] == before == trainer.plan.structure_bytes(0) > 0
    plain = training.make_trainer(model, problem, (1, 7), strategy=replace(Strategy(), resident=False), device=device)
    assert plain.train_epoch().bytes["topology"] > 0 and not plain.plan.choice.structure


@six
def test_structure_of_pruned_chunks_stays_too(model):
    """What an epoch brings are places alone of the rows that it computes."""
    device = SimulatedBackend()
    trainer = check(model, problems.few_train(), (1, 3), device=device)
    plan = trainer.plan
    pruned = [p for p in plan.passes.train if plan.view(p).active is not None]
    assert pruned and all(plan.structure_stays(p) for p in pruned)
    record = trainer.train_epoch()
    training.assert_counted(trainer, record)
    assert record.bytes["topology"] == sum(4 * len(plan.view(p).active) for p in pruned)
    assert trainer.setup.bytes["topology"] == plan.structure_bytes(0) > 0


@pytest.mark.long
def test_structure_stays_where_the_budget_has_room_for_it():
    model, problem, device = SIX[1], problems.awkward(), SimulatedBackend()
    slow = replace(device.hardware, host_link=1e5)
    found = []
    for share in (1.0, 2.5, 3.0):
        some = budget(model, problem, (2, 6), share, device=device)
        trainer = check(model, problem, (2, 6), device=device, device_memory=some, hardware=slow)
        found.append(trainer.plan.choice.structure)
    assert found == [False, True, True]


@pytest.mark.long
@pytest.mark.parametrize("link", [None, 1e6])
def test_more_memory_never_plans_a_slower_epoch(link):
    """Grain, order, overlap, fusion and residents are chosen together."""
    model, problem, device = SIX[0], problems.directed_weighted(), SimulatedBackend()
    hardware = device.hardware if link is None else replace(device.hardware, host_link=link)
    smallest, seconds = budget(model, problem, (4, 8), 1.0, device=device), []
    for share in (1.0, 1.25, 1.5, 2.0, 3.0):
        options = {"device": device, "device_memory": int(share * smallest), "hardware": hardware}
        plan = training.make_trainer(model, problem, (4, 8), **options).plan
        seconds.append(predict_seconds(plan, hardware).total)
    assert seconds == sorted(seconds, reverse=True) and seconds[-1] < seconds[0]


@pytest.mark.long
def test_memory_that_kernels_take_for_hubs_is_planned():
    problem = problems.awkward()
    hub = np.stack([np.arange(600) % problem.num_vertices, np.zeros(600, dtype=np.int64)])
    weights = np.ones(600, dtype=np.float32)
    edges, weights = np.concatenate([problem.edges, hub], axis=1), np.concatenate([problem.weights, weights])
    problem = dataclasses.replace(problem, edges=edges, weights=weights)
    check(SIX[4], problem, (1, 7), device=SimulatedBackend(), device_memory="smallest")


@pytest.mark.long
@pytest.mark.parametrize(("gpus", "model"), [(1, SIX[0]), (2, SIX[4]), (3, SIX[0])], ids=str)
def test_partitions_share_gpus(gpus, model):
    """Streams and parameters are those of a GPU, whatever the number of its partitions."""
    check(model, problems.awkward(), (4, 8), device=SimulatedBackend(gpus, seed=gpus), device_memory="smallest")


@pytest.mark.long
@pytest.mark.parametrize(("model", "strategy"), zip(SIX[3:], STRATEGIES), ids=str)
def test_rows_that_a_gpu_does_not_reach_take_a_detour(model, strategy):
    device = SimulatedBackend(seed=5, detours=True)
    check(model, problems.awkward(), (4, 8), device=device, strategy=strategy, device_memory="smallest")


@pytest.mark.long
@pytest.mark.parametrize("problem", [problems.awkward, problems.few_train], ids=["whole", "pruned"])
@pytest.mark.parametrize("model", [SIX[4], SIX[0]], ids=repr)
def test_several_threads_of_the_host_store_and_add(model, problem, monkeypatch):
    monkeypatch.setattr(host, "copy_threads", lambda: 3)
    monkeypatch.setattr(host, "LEAST", 1)
    plain = (model is SIX[0]) == (problem is problems.awkward)
    strategy = get_strategy("none") if plain else replace(Strategy(), resident=False)
    check(model, problem(), (4, 8), device=SimulatedBackend(seed=2), strategy=strategy, device_memory="smallest")


def test_evaluation_and_prediction(tmp_path):
    problem, model = problems.awkward(), SIX[0]
    found = {}
    for device in ("cpu", "simulated"):
        trainer = training.make_trainer(model, problem, (4, 8), device=device)
        trainer.fit(2, eval_every=1)
        found[device] = trainer.predict(), trainer.evaluate()
    torch.testing.assert_close(found["simulated"][0], found["cpu"][0], rtol=EXACT, atol=EXACT)
    assert found["simulated"][1] == found["cpu"][1]


def test_an_error_in_a_layer_leaves_a_trainer_that_works(monkeypatch):
    problem, model = problems.awkward(), SIX[0]
    trainer = training.make_trainer(model, problem, (4, 8), device="simulated")
    good = trainer.train_epoch().loss

    def fail(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(type(trainer.model[1]), "update", fail)
        trainer.train_epoch()
    assert trainer.train_epoch().loss < good


# ------------------------------------------------------------------------------------------------- every wait is needed

PLANS = {  # what overlaps, in how many times the smallest budget, and whether rows lie on a disk
    "overlapping": (replace(Strategy(), resident=False, group=False), 1.5, False),
    "in turn": (get_strategy("paper"), 1.0, False),
    "spilling": (replace(Strategy(), resident=False, group=False), 1.5, True),
}


def but_constants(plan, limit):
    """Everything that an epoch writes lies on the disk, so that one pass has nothing to recall."""
    return everything(plan, limit, but=plan.passes.constant | {FEATURES})


@functools.cache
def budget_of(plan: str, model: str) -> int:
    strategy, times, _ = PLANS[plan]
    chosen = next(m for m in SIX if repr(m) == model)
    return budget(chosen, problems.awkward(), (4, 8), times, device=SimulatedBackend(), strategy=strategy)


def gradients(plan: str, model: str, seed: int, ignored: frozenset[str] = frozenset()) -> tuple[torch.Tensor, set[str]]:
    """All gradients of an epoch, and the reasons of its waits."""
    problem, device = problems.awkward(), SimulatedBackend(seed=seed, ignored=ignored)
    chosen = next(m for m in SIX if repr(m) == model)
    options = {"device": device, "strategy": PLANS[plan][0], "device_memory": budget_of(plan, model)}
    with on_disk(fit=but_constants) if PLANS[plan][2] else contextlib.nullcontext({}) as spills:
        trainer = training.make_trainer(chosen, problem, (4, 8), **options, **spills, detect_anomaly=False)
    trainer.train_epoch()
    return torch.cat([g.flatten() for g in trainer.gradients().values()]), device.scheduler.waits


def survives(plan: str, why: str, expected: torch.Tensor) -> bool:
    """Whether leaving a wait out changes nothing, in any order of work."""
    for seed in range(SEEDS):
        try:
            found, _ = gradients(plan, "gcn", seed, frozenset({why}))
        except Exception:  # buffers are gone when the work is done
            return False
        if not torch.allclose(found, expected, rtol=EXACT, atol=1e-12):
            return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("plan", PLANS)
def test_no_order_of_work_changes_a_number(plan):
    expected, _ = gradients(plan, "gcn", 0)
    for seed in range(1, 3):
        torch.testing.assert_close(gradients(plan, "gcn", seed)[0], expected, rtol=EXACT, atol=1e-12)


@pytest.mark.long
def test_every_wait_for_the_disk_is_needed():
    """A tape knows the others (test_order.py): without them arrays of indices would be those of another batch."""
    expected, waits = gradients("spilling", "gcn", 0)
    waits -= gradients("overlapping", "gcn", 0)[1]
    assert len(waits) == 4
    assert not [why for why in waits if survives("spilling", why, expected)]


@pytest.mark.long
def test_devices_read_host_rows_that_begin_where_their_memory_does(monkeypatch):
    """A GPU knows pinned memory by the address of its storage; a view that hides it would take the detour."""
    made, asked = [], []

    def noted(shape, dtype):
        made.append(poisoned(shape, dtype))
        return made[-1]

    def copy_rows(self, src, src_index, dst, dst_index):
        asked.extend((src, dst))
        return copy(self, src, src_index, dst, dst_index)

    copy = StagedDevice._copy_rows
    monkeypatch.setattr("hongtu.device.simulated.poisoned", noted)
    monkeypatch.setattr(StagedDevice, "_copy_rows", copy_rows)
    monkeypatch.setattr(StagedDevice, "empty", lambda self, shape, dtype: noted(shape, dtype))
    device = SimulatedBackend()
    monkeypatch.setattr(SimulatedBackend, "pinned", property(lambda self: noted))
    check(SIX[0], problems.awkward(), (4, 8), device=device, device_memory="smallest")
    starts = {tensor.untyped_storage().data_ptr() for tensor in made}
    assert asked and all(tensor.untyped_storage().data_ptr() in starts for tensor in asked if tensor.numel())
