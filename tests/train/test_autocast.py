"""Autocast of the dense part: the numbers of torch's own, close to float32's, and predictions that hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.plan.passes.strategy import Strategy
from tests import additions, problems, training
from tests.models import DEEP, SIX, H, Model

MIXED = Model(
    "mixed",
    lambda f, c: [
        nn.Linear(f, 7), hnn.GCNConv(7, H, activation="relu"), nn.LayerNorm(H),
        nn.Sequential(nn.Linear(H, 6), hnn.Dropout(0.3)), hnn.GATConv(6, H), hnn.SAGEConv(H, c),
    ],
    None,
)  # fmt: skip

GAT = SIX[4]


def make(model, grain, autocast=torch.bfloat16, **options):
    options = {"dtype": torch.float32, "autocast": autocast} | options
    return training.make_trainer(model, problems.awkward(), grain, **options)


def flat(gradients):
    return torch.cat([gradients[name].ravel() for name in sorted(gradients)])


@pytest.mark.long
@pytest.mark.parametrize("model", [SIX[0], SIX[1], GAT, MIXED], ids=repr)
def test_gradients_are_close_to_those_in_single_precision(model):
    exact = training.train(make(model, (1, 1), None), 1)
    expected = flat(exact.gradients[0])
    for strategy in ("full", "paper"):
        budget = "smallest" if strategy == "full" else None
        trainer = make(model, (2, 3), strategy=strategy, device_memory=budget)
        found = training.train(trainer, 1)
        difference = float((flat(found.gradients[0]) - expected).norm() / expected.norm())
        # what the paper computes for each edge stays in single precision: there is nothing else in its attention
        rounds = any(trainer._network.once_per_vertex) or model is not GAT
        least, most = (1e-4, 0.15) if rounds else (0, 1e-5)
        assert least <= difference < most
        assert found.losses[0] == pytest.approx(exact.losses[0], rel=0.02)
        record = trainer.train_epoch()
        assert (record.bytes, record.arena_bytes) == (trainer.plan.bytes, trainer.plan.arena_bytes)
        if budget:
            assert all(record.peak_bytes[name] <= peak for name, peak in trainer.plan.peak_bytes.items())


@pytest.mark.most(8)
@pytest.mark.long
@pytest.mark.parametrize(("model", "problem"), additions.ROWS, ids=[repr(model) for model, _ in additions.ROWS])
def test_what_came_after_the_first_six_layers_is_close_too(model, problem):
    """Loss within 2%, gradient within 15% of single precision's, in the length of the vector."""
    options = {"dtype": torch.float32, "device_memory": "256KiB", "seed": additions.SEED}
    exact = training.train(training.make_trainer(model, problem(), (2, 3), **options), 1)
    found = training.train(training.make_trainer(model, problem(), (2, 3), autocast=torch.bfloat16, **options), 1)
    assert found.losses[0] == pytest.approx(exact.losses[0], rel=0.02)
    expected = flat(exact.gradients[0])
    assert float((flat(found.gradients[0]) - expected).norm() / expected.norm()) < 0.15


def test_the_output_is_that_of_the_same_products_in_bfloat16():
    """Every linear map behind its aggregate: A h in single precision, rounded, times the rounded weight."""
    problem, strategy = problems.awkward(), Strategy(transform_first=False)
    trainer = make(SIX[0], (2, 3), strategy=strategy, device_memory="64KiB")
    weight = problem.edge_weight(torch.float32)
    (source, destination), weight = gcn_norm(problem.edge_index, weight, problem.num_vertices)
    h = torch.from_numpy(problem.features)
    for k, layer in enumerate(trainer.model):
        a = torch.zeros_like(h).index_add(0, destination, h[source] * weight.unsqueeze(1))
        h = nn.functional.linear(*(x.detach().bfloat16() for x in (a, layer.lin.weight, layer.bias))).float()
        h = h.relu() if k == 0 else h
    single = make(SIX[0], (2, 3), None, strategy=strategy).predict()
    difference, rounding = (trainer.predict() - h).abs(), (single - h).abs()
    assert float(difference.max()) < 0.02 and float(difference.mean()) < 0.2 * float(rounding.mean())


def test_recomputation_sees_the_same_numbers():
    """One pass that saves everything and one that recomputes all give the same gradients, but for sums over chunks;
    linear maps are on the same side of the exchange."""
    found = [
        training.train(make(MIXED, (1, 1), strategy=Strategy(save=save, transform_first=False)), 1)
        for save in (True, False)
    ]
    for name, gradient in found[0].gradients[0].items():
        torch.testing.assert_close(found[1].gradients[0][name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("autocast", "dtype"), [(torch.float16, torch.float32), (torch.bfloat16, torch.float64)])
def test_other_kinds_are_refused(autocast, dtype):
    with pytest.raises(InputError, match=r"expected torch\.bfloat16 with float32"):
        make(DEEP, (1, 1), autocast, dtype=dtype)


def test_a_snapshot_of_another_precision_is_refused(tmp_path):
    make(DEEP, (1, 1)).save(tmp_path / "snapshot.pt")
    with pytest.raises(InputError, match=r"autocast is torch\.bfloat16, this run's is None"):
        make(DEEP, (1, 1), None).load(tmp_path / "snapshot.pt")


def test_all_the_epochs_of_a_run():
    trainer = hongtu.Trainer(
        problems.prepare(problems.awkward(), 2, 3), DEEP.build(problems.awkward()), autocast=torch.bfloat16
    )
    records = trainer.fit(10)
    assert records[-1].loss < records[0].loss
