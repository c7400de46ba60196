"""NaN and infinity: where they come from is said, and nothing is learned from them."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.errors import AnomalyError
from tests import problems, training
from tests.models import H
from tests.training import STRATEGIES

strategies = pytest.mark.parametrize("strategy", STRATEGIES)
VICTIM = 5  # the hub


class Poison(nn.Module):
    """A row-wise module that is poisonous for one vertex; ``where`` is "forward", "backward" or None.

    It asks a layer for the current rows, which is no part of it: hence the tuple.
    """

    def __init__(self, layer):
        super().__init__()
        self._where, self.layers = None, (layer,)

    def forward(self, x):
        return _Poison.apply(x, self)


class _Poison(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, poison):
        ctx.poison, ctx.ids = poison, poison.layers[0].rows.ids.clone()
        return _poisoned(x, poison, ctx.ids, "forward")

    @staticmethod
    def backward(ctx, gradient):
        return _poisoned(gradient, ctx.poison, ctx.ids, "backward"), None


def _poisoned(x, poison, ids, where):
    if poison._where != where:
        return x.clone()
    return torch.where((ids == VICTIM).unsqueeze(1), torch.full_like(x, float("inf")), x)


def make(strategy="full", **options):
    torch.manual_seed(0)
    first = hnn.GCNConv(6, H, activation="relu")
    poison = Poison(first)
    layers = [first, nn.Linear(H, H), poison, hnn.SAGEConv(H, 3)]
    options = {"strategy": strategy, "dtype": torch.float64, "optimizer": training.sgd} | options
    return hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers, **options), poison


@strategies
@pytest.mark.parametrize("budget", [None, "1MiB"])
def test_a_value_is_found(strategy, budget):
    trainer, poison = make(strategy, device_memory=budget)
    expected = [record.loss for record in make(strategy, device_memory=budget)[0].fit(3)]
    losses = [trainer.train_epoch().loss]
    before = copy.deepcopy(trainer.model.state_dict())
    poison._where = "forward"
    pattern = (
        rf"epoch 2: what layers\[2\] \(Poison\) returned is inf for vertex {VICTIM}, in batch \d \(chunk \(\d, \d\)"
    )
    with pytest.raises(AnomalyError, match=pattern) as caught:
        trainer.train_epoch()
    assert caught.value.vertex == VICTIM
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    poison._where = None
    losses += [record.loss for record in trainer.fit(2)]
    assert losses == expected


@strategies
def test_a_gradient_is_found(strategy):
    trainer, poison = make(strategy)
    poison._where = "backward"
    with pytest.raises(AnomalyError, match=r"the gradient of what layers\[1\] \(Linear\) returned is inf") as caught:
        trainer.train_epoch()
    assert caught.value.vertex == VICTIM


def test_the_loss_is_found():
    victim = int(torch.from_numpy(problems.awkward().masks["train"]).nonzero()[7])
    out_of_victim = make()[0].predict()[victim]

    def loss(out, target):
        spoiled = torch.isclose(out, out_of_victim).all(dim=1)
        return nn.functional.cross_entropy(out, target, reduction="none") + torch.where(spoiled, float("inf"), 0.0)

    with pytest.raises(AnomalyError, match=rf"the loss or its gradient is not finite for vertex {victim}, in batch"):
        make(loss=loss)[0].train_epoch()


def test_a_parameter_is_found():
    trainer, _ = make()
    with torch.no_grad():
        trainer.model[1].bias[2] = float("nan")
    with pytest.raises(AnomalyError, match=r"epoch 1: parameter 1\.bias is nan before it"):
        trainer.train_epoch()


def test_embeddings_are_looked_at_too():
    from tests.faults.run import make_trainer, prepare

    trainer = make_trainer(prepare(problems.new_path()))
    trainer.train_epoch()
    with torch.no_grad():
        trainer.embedding.weight[3] = float("nan")
    vertex = int(trainer.artifact.original_id[3])
    for _ in range(2):
        with pytest.raises(AnomalyError, match=rf"is nan for vertex {vertex}"):
            trainer.train_epoch()
    with torch.no_grad():
        trainer.embedding.weight[3] = 0
    assert trainer.train_epoch().epoch == 2


def test_roots_of_negative_sums_of_weights_are_named():
    artifact = hongtu.preprocess_graph(
        [[0, 2, 0], [1, 1, 2]], 3, problems.new_path(), features=torch.ones(3, 2), labels=[0, 1, 0],
        masks={"train": [True] * 3}, edge_weight=torch.tensor([1.0, -4, 3]),
    )  # fmt: skip
    with pytest.raises(AnomalyError, match="the in-edges of 1 vertices add up to less than 0"):
        hongtu.Trainer(artifact, [hnn.GCNConv(2, 2)]).fit(1)


def test_without_detection_the_run_goes_on(tmp_path):
    trainer, poison = make(detect_anomaly=False)
    poison._where = "forward"
    records = trainer.fit(1, run_dir=tmp_path)
    assert not torch.isfinite(torch.tensor(records[0].loss))
    assert json.loads((tmp_path / "epochs.jsonl").read_text())["loss"] is None


def test_the_command_stops_with_what_is_kept(tmp_path, capsys):
    graph = problems.prepare(problems.awkward(), 2, 3)
    command = ["train", str(graph.path), "--lr", "1e17", "--model", "gcn", "--layers", "9", "--epochs", "50"]
    assert main([*command, "--run", str(tmp_path / "run"), "--save-every", "1"]) == 1
    err = capsys.readouterr().err
    assert "layers[" in err and "for vertex" in err and "in batch" in err and err.count("\n") == 1
    assert "--resume continues from" in err


def test_deterministic_mode_is_torchs_while_layers_run():
    seen = []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append(torch.are_deterministic_algorithms_enabled())
            return x + 0

    graph = problems.prepare(problems.awkward(), 2, 3)
    trainer = hongtu.Trainer(graph, [hnn.GCNConv(6, 3), Looks()], deterministic=True)
    seen.clear()  # planning
    trainer.fit(1, eval_every=1)
    assert seen and all(seen) and not torch.are_deterministic_algorithms_enabled()


class Infinite(nn.Module):
    def forward(self, x):
        return x / 0.0


def test_rows_that_are_not_finite_are_no_rows_that_mix():
    """A trial compares them as they are; the epoch says where the first comes from."""
    layers = [hongtu.nn.GCNConv(6, 4), Infinite(), hongtu.nn.GCNConv(4, 3)]
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers)
    with pytest.raises(AnomalyError, match=r"layers\[1\] \(Infinite\) returned is (nan|-?inf)"):
        trainer.train_epoch()
