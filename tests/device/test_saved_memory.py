"""What chunks keep until a later pass has memory of its own, is counted there, and is given back."""

from __future__ import annotations

import gc

import pytest
import torch

import hongtu.device.cpu
from hongtu import nn as hnn
from hongtu.device.cpu import CpuDevice
from hongtu.device.layer_memory import REGION, Sample, SavedMemory, slot_bytes
from hongtu.metrics import Traffic
from hongtu.plan.search import planner
from tests import problems, training
from tests.models import DEEP, SIX, Model


def storage(*shape: int) -> torch.UntypedStorage:
    return torch.randn(*shape).untyped_storage()


def test_slots_are_few_sizes_and_waste_little() -> None:
    for nbytes in (1, 63, 64, 1000, 4096, 4097, 10_000_000, 2**30 + 1):
        assert nbytes <= slot_bytes(nbytes) and slot_bytes(nbytes) % 64 == 0
        assert slot_bytes(nbytes) <= nbytes * 17 / 16 + 64
    assert len({slot_bytes(n) for n in range(2**20, 2**21, 1000)}) <= 17


def test_a_slot_is_used_again_when_nobody_has_the_copy() -> None:
    memory, x = SavedMemory(), torch.randn(100, 50)
    first = memory.copy(x.untyped_storage())
    view = first.view(torch.float32).view(100, 50)[3:7]
    place = first.data_ptr()
    assert torch.equal(view, x[3:7]) and memory.has(first.untyped_storage())
    del first
    second = memory.copy(storage(100, 50))
    assert second.data_ptr() != place and torch.equal(view, x[3:7])
    del view
    third = memory.copy(storage(100, 49))  # smaller, of the same size of slot
    assert third.data_ptr() == place and third.nbytes == 100 * 49 * 4
    assert memory.copy(storage(REGION // 4 + 10)).nbytes == REGION + 40


def test_a_device_counts_copies_until_they_are_gone() -> None:
    device = CpuDevice("device 0", None, Traffic())
    with device.computing():
        made = torch.randn(200, 100)
        copied = device.save(made.untyped_storage())
        assert copied is not None and device.save(copied) is None
        assert device.workspace.live == 2 * 80_000
        del made
        assert device.workspace.live == 80_000
    planned = torch.zeros(200, 100)
    assert device.save(planned.untyped_storage()) is None
    del copied
    gc.collect()
    assert device.workspace.live == 0


@pytest.mark.parametrize("model", [*SIX, DEEP], ids=repr)
def test_no_number_depends_on_it(model: Model, monkeypatch) -> None:
    problem = problems.awkward()
    found = []
    for least in (1, 1 << 40):
        monkeypatch.setattr(hongtu.device.cpu, "LEAST", least)
        trainer = training.make_trainer(model, problem, (2, 3))
        found.append(training.train(trainer, 3))
        assert not any(device._saved._saved for device in trainer._engine._executor.devices)  # all given back
    training.assert_same(found[0], found[1], 0.0)


def deep_sage() -> Model:
    """What is behind its cached aggregate is computed again."""

    def layers(f: int, c: int) -> list[torch.nn.Module]:
        first = [hnn.SAGEConv(f, 8, activation="relu"), hnn.Dropout(0.2)]
        return [*first, hnn.SAGEConv(8, 8, activation="elu"), hnn.SAGEConv(8, 8), hnn.SAGEConv(8, c)]

    return Model("deep sage", layers, layers)


@pytest.mark.long
@pytest.mark.parametrize("model", [*SIX, DEEP, deep_sage()], ids=repr)
def test_what_stays_is_counted_alike_in_chunks_that_are_counted_and_in_others(model: Model, monkeypatch) -> None:
    monkeypatch.setattr(planner, "_group_size", lambda plan, hardware: 1)
    problem, found = problems.awkward(), []
    for every_chunk in (False, True):
        if every_chunk:
            monkeypatch.setattr(Sample, "takes", lambda self, name, chunk, most: True)
        trainer = training.make_trainer(model, problem, (2, 6))
        records = [trainer.train_epoch() for _ in range(2)]
        found.append(([r.loss for r in records], [r.peak_bytes for r in records], trainer.gradients()))
        assert trainer.plan.choice.save and trainer.plan.topology.chunks == 6
    assert found[0][0] == found[1][0]
    if model not in (*SIX[4:], DEEP):  # their blocks hold positions of edges, which are not kept, until the next chunk
        assert found[0][1] == found[1][1]
    assert all(torch.equal(found[0][2][name], grad) for name, grad in found[1][2].items())


def test_rows_of_one_chunk_alone_are_kept_as_layers_made_them() -> None:
    """They take no planned memory; rows that are exchanged do."""
    trainer = training.make_trainer(DEEP, problems.awkward(), (1, 3))
    plan = trainer.plan
    moved = {name for p in plan.passes.every for name in (p.exchange, p.flush)}
    assert not plan.pieces & moved
    budgeted = training.make_trainer(DEEP, problems.awkward(), (1, 3), device_memory="1GB")
    assert not budgeted.plan.pieces


def test_the_stage_behind_the_cached_aggregate_is_computed_again_where_it_is_little_of_an_epoch() -> None:
    model, problem = deep_sage(), problems.awkward()
    trainer = training.make_trainer(model, problem, (2, 3))
    left = [p.name for p in trainer.plan.passes.train if p.direction != "fused" and not p.saves]
    assert left == ["forward 0", "backward 0"]
    other = training.make_trainer(model, problem, (2, 3), strategy="paper")
    training.assert_same(training.train(trainer, 3), training.train(other, 3), 1e-12)
