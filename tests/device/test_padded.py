"""Rows that are apart on a device, at widths that are no multiple of a lane: what trains, and what lanes move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hongtu
from hongtu.cuda_ext import arguments
from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.device.simulated import SimulatedBackend
from hongtu.hardware import padded
from hongtu.kernels.dispatch import as_on_gpu, laned, new_rows, plain_rows
from hongtu.nn import CommNetConv, GATConv, GCNConv, GGCNConv, TransformerConv
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.program import moves
from tests import models, problems, training
from tests.frozen import CapturingBackend
from tests.models import SIX
from tests.staged import SINGLE, check, simulated
from tests.tape import conflicts, taped, taping

OUT_OF_CORE = replace(Strategy(), resident=False, group=False)
HIDDEN = 33


@pytest.fixture(autouse=True)
def _hidden(monkeypatch):
    simulated()
    monkeypatch.setattr(models, "H", HIDDEN)


@pytest.mark.most(3)
@pytest.mark.long
@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_training_is_exact_and_takes_the_bytes_that_are_planned(model, m):
    """Out of core, in lanes of four floats on one device and of two doubles on four; and in memory."""
    options = {"device": SimulatedBackend(seed=m), "epochs": 1}
    precision = {"dtype": torch.float32, "tolerance": SINGLE} if m == 1 else {}
    grain, small = (m, 4), {"strategy": OUT_OF_CORE, "device_memory": "smallest"}
    plan = check(model, problems.odd_widths(), grain, **small, **precision, **options).plan
    assert any(x.padded for p in plan.program.train for x in p.buffers[0].values())
    if m == 1:
        plan = check(model, problems.odd_widths(), grain, **options).plan
        assert any(isinstance(x, moves.Place) and x.padded for p in plan.program.train for x in p.before)


def test_what_torch_copies_of_padded_rows_is_planned():
    """Some of its operations take rows only that lie behind one another."""
    artifact = training.prepare(problems.odd_widths(), 1, 4)
    options = {"optimizer": training.sgd, "device": SimulatedBackend(), "loss": "cross_entropy"}

    def layers():
        return [torch.nn.GroupNorm(1, artifact.feature_width), hongtu.nn.SAGEConv(artifact.feature_width, 47)]

    least = training.smallest_budget(artifact, layers, **options)
    trainer = hongtu.Trainer(artifact, layers(), device_memory=least, **options)
    assert trainer.train_epoch().peak_bytes["device 0"] <= trainer.plan.peak_bytes["device 0"] <= least


def epochs(model, captures):
    artifact = training.prepare(problems.odd_widths(), 1, 4)
    torch.manual_seed(0)
    layers, device = model.build(problems.odd_widths()), CapturingBackend() if captures else SimulatedBackend()
    trainer = hongtu.Trainer(
        artifact, layers, optimizer=training.sgd, device=device, strategy=OUT_OF_CORE, loss=model.loss
    )
    losses = [trainer.train_epoch().loss for _ in range(3)]
    return losses, [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.most(3)
@pytest.mark.long
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_captured_epochs_are_eager_ones(model):
    (eager, expected), (captured, found) = (epochs(model, captures) for captures in (False, True))
    assert eager == captured and all(map(torch.equal, expected, found))


@pytest.mark.long
@pytest.mark.parametrize("model", SIX[4:], ids=repr)
def test_streams_are_ordered(model, monkeypatch):
    device = taped()
    options = {"device": device, "strategy": OUT_OF_CORE, "detect_anomaly": False}
    trainer = training.make_trainer(model, problems.odd_widths(), (4, 4), **options)
    with taping(device.scheduler, monkeypatch):
        trainer.train_epoch()
    assert not conflicts(device.scheduler)


ATOMIC = {"csc_aggregate_transpose", "attend_transpose", "gated_sum_transpose", "add_rows_system", "add_rows_atomic"}
OF_HEADS = {"segment_softmax", "segment_softmax_backward", "expand_rows", "segment_sum"}  # a number each
LAYERS = {
    GCNConv: {"csc_aggregate"},
    CommNetConv: {"csc_aggregate"},
    GATConv: {"attend", "attend_alpha_gradient", "add_rows"},
    GGCNConv: {"gated_sum", "gated_sum_key_gradient", "add_rows"},
    TransformerConv: {"attend", "attend_alpha_gradient"},
}


@pytest.mark.long
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_lanes_move_16_bytes_of_every_row_that_an_edge_reads(layer, monkeypatch):
    launched, launch = set(), HostLauncher.launch

    def note(self, name, *given):
        launched.add(name)
        launch(self, name, *given)

    monkeypatch.setattr(HostLauncher, "launch", note)
    artifact = training.prepare(problems.odd_widths(), 4, 4)
    layers = [layer(artifact.feature_width, HIDDEN), layer(HIDDEN, artifact.num_classes)]
    trainer = hongtu.Trainer(artifact, layers, optimizer=training.sgd, device=SimulatedBackend(), strategy=OUT_OF_CORE)
    trainer.train_epoch()
    wide = {name.removesuffix("_f32x4") for name in launched if name.endswith("x4")}
    scalar = {name.removesuffix("_f32x1") for name in launched if name.endswith("x1")}
    assert LAYERS[layer] | {"copy_rows", "zero_rows"} <= wide
    scalar -= ATOMIC | {"copy_rows"} | (OF_HEADS if "attend" in wide else set())  # copied to and from the host
    assert scalar <= ({"add_rows"} if layer is TransformerConv else set())  # of gradients that autograd has added up


def test_rows_are_apart_where_that_costs_little():
    assert [padded(columns, 4) for columns in (1, 15, 16, 17, 47, 128)] == [1, 15, 16, 20, 48, 128]
    assert [padded(columns, 8) for columns in (7, 8, 9, 47)] == [7, 8, 10, 48]
    like = torch.empty(0)
    assert new_rows(like, 3, 47).is_contiguous()
    with as_on_gpu():
        rows = new_rows(like, 3, 47, zero=True)
        assert rows.stride() == (48, 1) and not rows.any() and not rows._is_view()
        assert new_rows(like, 3, 5).is_contiguous() and new_rows(like, 3, 48).is_contiguous()


def test_rows_that_every_edge_reads_are_copied_where_lanes_are_not_aligned():
    rows = torch.arange(3 * 47.0).view(3, 47)
    packed = torch.arange(3 * 96.0).view(3, 96)
    assert plain_rows(packed[:, 48:]).is_contiguous() and laned(rows) is not None
    with as_on_gpu():
        found = laned(rows)
        assert found.stride() == (48, 1) and torch.equal(found, rows)
        assert laned(found).data_ptr() == found.data_ptr()
        assert laned(packed[:, 48:]).data_ptr() == packed[:, 48:].data_ptr()
        assert laned(packed[:, 47:]).data_ptr() != packed[:, 47:].data_ptr()
        assert plain_rows(rows.t()).is_contiguous()
        assert arguments.has_rows(plain_rows(rows[:1].expand(3, 47)))
