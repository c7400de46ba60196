"""Which models are told apart, and which nobody need try."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.train.tracing import probe, shape
from hongtu.train.tracing.guards import digest_of, treats_rows_alone
from tests import problems
from tests.exact.test_typed_graphs import MODELS
from tests.exact.test_typed_graphs import problem as typed_problem
from tests.models import SIX


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def alone(*layers: nn.Module) -> bool:
    model = nn.ModuleList(layers)
    return treats_rows_alone(model, digest_of(model))


def hooked() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda *given: None)
    return module


def replaced() -> nn.Module:
    module = nn.ReLU()
    module.forward = lambda x: x.cumsum(0)
    return module


def gated(value: float) -> nn.Module:
    layer = hnn.GCNConv(4, 6)
    nn.init.constant_(layer.bias, value)
    return layer


@pytest.mark.parametrize("model", SIX, ids=repr)
def test_models_of_layers_alone_need_not_be_tried(model: object) -> None:
    assert alone(*model.build(problems.awkward()))  # type: ignore[attr-defined]


def test_layers_with_parts_of_torch_need_not_be_tried() -> None:
    assert alone(hnn.GINConv(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))), nn.Dropout(0.5))
    assert alone(hnn.GCNConv(4, 4, activation="elu"), hnn.BatchNorm(4), nn.BatchNorm1d(4), hnn.JumpingKnowledge("cat"))


@pytest.mark.parametrize(
    "make",
    [
        Own, hooked, replaced, lambda: nn.Softmax(0), lambda: nn.RNN(4, 4), lambda: nn.TransformerEncoderLayer(4, 1),
        lambda: hnn.SAGEConv(4, 4, activation=partial(torch.softmax, dim=0)),
        lambda: hnn.SAGEConv(4, 4, activation=lambda x: x.cumsum(0)),
        lambda: hnn.GINConv(nn.Sequential(nn.Linear(4, 4), nn.Softmax(0))), lambda: hnn.GINConv(Own()),
        lambda: nn.Sequential(nn.Linear(4, 4), Own()),
    ],
)  # fmt: skip
def test_others_are_tried(make: Callable[[], nn.Module]) -> None:
    assert not alone(hnn.GCNConv(4, 4), make())


def test_what_may_compute_something_else_has_another_digest() -> None:
    makes: list[Callable[[], nn.Module]] = [
        lambda: hnn.GCNConv(4, 4), lambda: hnn.GCNConv(4, 4, improved=True), lambda: hnn.GCNConv(4, 5),
        lambda: hnn.GCNConv(4, 4, bias=False), lambda: hnn.GCNConv(4, 4).double(), lambda: gated(0.0),
        lambda: gated(1.0), lambda: hnn.GCNConv(4, 4).requires_grad_(False), lambda: nn.Dropout(0.25),
        lambda: nn.Dropout(0.5), lambda: nn.LayerNorm(4, eps=1e-3), lambda: nn.LayerNorm(4),
    ]  # fmt: skip
    digests = [digest_of(make()) for make in makes]
    assert len(set(digests)) == len(makes) and None not in digests
    assert digests == [digest_of(make()) for make in makes]
    shared = nn.Linear(4, 4)
    assert digest_of(nn.ModuleList([shared, shared])) != digest_of(nn.ModuleList([shared, nn.Linear(4, 4)]))
    assert [digest_of(make()) for make in (Own, hooked, replaced)] == [None] * 3


@pytest.mark.parametrize("name", ["mean", "hgt"])
def test_a_forward_for_typed_graphs_is_known_by_its_code(name: str) -> None:
    """Of the same classes, on the same types."""
    artifact = problems.prepare(typed_problem(), 2, 2)

    def digest(model: nn.Module) -> object:
        return digest_of(hongtu.Trainer(artifact, hongtu.from_pyg(model))._network.modules)

    first, again = digest(MODELS[name]()), digest(MODELS[name]())
    scaled, plain = MODELS[name](), type(MODELS[name]())
    scaled.__class__ = type("Scaled", (plain,), {"forward": lambda self, *given: 2 * plain.forward(self, *given)})
    assert first == again != digest(scaled) and first is not None


def test_a_process_tries_models_of_one_digest_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And plans them alike, however its parameters are drawn."""
    artifact, traced, probed = problems.prepare(problems.awkward(), 2, 3), [], []
    trace, run = shape.trace, probe._Probe.run
    monkeypatch.setattr(shape, "trace", lambda *given: traced.append(1) or trace(*given))
    monkeypatch.setattr(probe._Probe, "run", lambda *given: probed.append(1) or run(*given))
    plans, counts = [], []
    for _ in range(2):
        layers = [hnn.SAGEConv(6, 13, activation="relu"), nn.Dropout(0.25), hnn.GATConv(13, 3)]
        trainer = hongtu.Trainer(artifact, layers, device_memory="60%", loss="cross_entropy")
        record = trainer.train_epoch()
        assert record.bytes == trainer.plan.bytes and record.arena_bytes == trainer.plan.arena_bytes
        plans.append(trainer.plan)
        counts.append((len(traced), len(probed)))
    assert counts[0] == counts[1] and min(counts[0]) > 0
    assert plans[0].workspace == plans[1].workspace and plans[0].peak_bytes == plans[1].peak_bytes


@pytest.mark.parametrize("of", [0, 1], ids=["layers", "loss"])
def test_what_is_somebodys_own_is_run_each_time(of: int) -> None:
    """It may take something else."""
    artifact, calls = problems.prepare(problems.awkward(), 2, 3), []

    class Seen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return x * 2

    def scored(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return nn.functional.cross_entropy(out, target, reduction="none")

    counts = []
    for _ in range(2):
        layers = [hnn.SAGEConv(6, 13), *([Seen()] if of == 0 else []), hnn.GATConv(13, 3)]
        hongtu.Trainer(artifact, layers, device_memory="60%", loss=scored if of else "cross_entropy")
        counts.append(len(calls))
        calls.clear()
    assert counts[0] == counts[1] > 0


def test_a_trainer_tries_what_is_somebodys_own_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it plans twice, without a limit for the share and within it; again where people may have changed it."""
    artifact, tried, refuse = problems.prepare(problems.awkward(), 2, 3), [], shape.refuse_mixing
    monkeypatch.setattr(shape, "refuse_mixing", lambda *given: tried.append(1) or refuse(*given))
    layers = [hnn.SAGEConv(6, 13), Own(), nn.Dropout(0.5), hnn.GATConv(13, 3)]
    trainer = hongtu.Trainer(artifact, layers, device_memory="70%", loss="cross_entropy")
    assert len(tried) == 1
    trainer.model[2].p = 0.0
    trainer.train_epoch()
    assert len(tried) == 2
