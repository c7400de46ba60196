"""What people do to a model after they made a Trainer: the right number, or a refusal that says what to do."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.model.checks import check_module
from hongtu.train import inferring
from hongtu.train.runtime import Runtime
from tests import problems, trainers
from tests.faults.memory import Hungry
from tests.models import H


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def make(layers, m=2, n=3, **options):
    return hongtu.Trainer(trainers.artifact(m, n), layers, optimizer=sgd, dtype=torch.float64, **options)


def behind(front):
    """A GCN behind a module whose aggregate of the features can be kept."""
    torch.manual_seed(0)
    return [front, hnn.GCNConv(6, H, activation="relu"), hnn.GCNConv(H, 3)]


def losses(trainer, change=None, epochs=3):
    found = []
    for epoch in range(epochs):
        if epoch == 1 and change is not None:
            change(trainer)
        found.append(trainer.train_epoch().loss)
    return found


@pytest.mark.parametrize(
    "front, change",
    [
        (lambda: hnn.Dropout(0.0), lambda t: setattr(t.model[0], "p", 0.5)),
        (lambda: nn.LeakyReLU(0.9), lambda t: setattr(t.model[0], "negative_slope", 0.1)),
        (lambda: hnn.Dropout(0.3), lambda t: setattr(t.model[0], "p", 0.6)),
    ],
)
def test_a_setting_that_changes_is_planned_for(front, change):
    cached, plain = make(behind(front())), make(behind(front()), strategy="none")
    np.testing.assert_allclose(losses(cached, change), losses(plain, change), rtol=1e-9)


@pytest.mark.parametrize(
    "layers, change, names",
    [
        (lambda: [hnn.SGConv(6, 3, K=2)], lambda t: setattr(t.model[0], "K", 3), "model.0.K was 2 and is 3"),
        (trainers.gcn, lambda t: t.model.__setitem__(1, hnn.GCNConv(H, 3)), "model.1 was a GCNConv"),
        (trainers.gcn, lambda t: setattr(t.model[0], "lin", nn.Linear(6, H, bias=False)), "model.0.lin was a Linear"),
        (trainers.gcn, lambda t: t.model[0].register_forward_hook(print), "layers.0. .GCNConv.: it has hooks"),
        (
            trainers.gcn,
            lambda t: setattr(t.model[0], "forward", print),
            "model.0.forward was None|layers.0.*its forward",
        ),
        (trainers.gcn, lambda t: setattr(t.model[0].lin, "weight", nn.Parameter(torch.ones(H, 6))), "lin.weight was"),
        (trainers.gcn, lambda t: t.model.half(), r"bias was torch.float64 \(5,\) and is torch.float16"),
        (trainers.gcn, lambda t: t.model.append(nn.ReLU()), "model.2 was not there"),
        (trainers.gcn, lambda t: setattr(t, "model", trainers.gcn()), "trainer.model is another one"),
        (
            lambda: behind(nn.Linear(6, 6)),
            lambda t: t.model[0].register_full_backward_hook(lambda module, given, out: None),
            "model.0 .Linear. has a backward hook",
        ),
    ],
)
def test_a_model_that_is_another_is_refused(layers, change, names):
    trainer = make(layers())
    trainer.train_epoch()
    change(trainer)
    with pytest.raises(InputError, match=names):
        trainer.train_epoch()


def test_a_loss_that_changes_is_refused():
    loss = nn.CrossEntropyLoss(weight=torch.ones(3, dtype=torch.float64))
    trainer = make(trainers.gcn(), loss=loss)
    trainer.train_epoch()
    loss.weight[0] = 5
    with pytest.raises(InputError, match="the loss has changed"):
        trainer.train_epoch()


@pytest.mark.parametrize("layer", [hnn.GATConv, hnn.GATv2Conv, hnn.TransformerConv])
def test_a_bias_that_would_not_be_added_is_refused(layer):
    convolution = layer(6, 3, edge_dim=2)
    convolution.lin_edge = nn.Linear(2, 3)
    with pytest.raises(InputError, match=r"its lin_edge is a Linear with a bias, expected .* without a bias"):
        check_module(0, convolution)


@pytest.mark.parametrize("m, n", [(1, 1), (2, 3)])
def test_hooks_of_parameters_run_once_on_the_epochs_gradient(m, n):
    trainer, fired = make(trainers.gcn(), m, n), []
    trainer.train_epoch()
    plain = make(trainers.gcn(), m, n)
    plain.train_epoch()
    weight = trainer.model[0].lin.weight
    weight.register_hook(lambda gradient: gradient.clamp(-0.001, 0.001))
    weight.register_post_accumulate_grad_hook(lambda parameter: fired.append(parameter.grad.clone()))
    trainer.train_epoch()
    plain.train_epoch()
    expected = plain.gradients()["0.lin.weight"].clamp(-0.001, 0.001)
    torch.testing.assert_close(trainer.gradients()["0.lin.weight"], expected, rtol=0, atol=1e-15)
    assert len(fired) == 1 and torch.equal(fired[0], trainer.gradients()["0.lin.weight"])
    assert weight._backward_hooks, "they stay registered"


def test_a_snapshot_has_what_is_trained_and_who_drops(tmp_path):
    trainer = make(behind(hnn.Dropout(0.5)))
    trainer.train_epoch()
    trainer.model[1].requires_grad_(False)
    trainer.model[0].eval()
    trainer.save(tmp_path / "snapshot.pt")
    other = make(behind(hnn.Dropout(0.5)))
    other.load(tmp_path / "snapshot.pt")
    np.testing.assert_allclose(losses(other), losses(trainer), rtol=1e-12)


def test_one_weighted_vertex_beside_an_odd_number_of_labels():
    """The weight of a single row lay at an address that is no multiple of eight."""
    problem = problems.problem_of(problems.awkward_graph(), classes=3, multi_label=True)
    weight = np.linspace(0.5, 2, problem.num_vertices)
    artifact = problems.prepare(problem, 2, 3)
    mask = np.zeros(problem.num_vertices, bool)
    mask[artifact.original_id[[0, -1]]] = True  # each alone in its chunk
    torch.manual_seed(0)
    term = hongtu.LossTerm("bce_with_logits", mask=mask, vertex_weight=weight)
    trainer = hongtu.Trainer(artifact, [hnn.GCNConv(6, 3)], loss=term, dtype=torch.float64)
    out, target = trainer.predict()[mask], torch.from_numpy(problem.labels[mask]).double()
    each = nn.functional.binary_cross_entropy_with_logits(out, target, reduction="none").mean(1)
    expected = (each.numpy() * weight[mask]).sum() / weight[mask].sum()
    np.testing.assert_allclose(trainer.train_epoch().loss, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "module, change",
    [
        (lambda: hnn.Dropout(0.3), lambda t: setattr(t.model[1], "p", 0.6)),
        (lambda: nn.LeakyReLU(0.9), lambda t: setattr(t.model[1], "negative_slope", 0.1)),
    ],
)
def test_a_setting_reaches_every_device(module, change):
    def between(**options):
        torch.manual_seed(0)
        return make([hnn.GCNConv(6, H), module(), hnn.GCNConv(H, 3)], **options)

    on_two, on_one = between(device="simulated"), between()
    np.testing.assert_allclose(losses(on_two, change), losses(on_one, change), rtol=1e-9)


@pytest.mark.long
def test_the_output_of_a_layer_is_planned_again_where_memory_runs_out(monkeypatch):
    def hungry(**options):
        torch.manual_seed(0)
        layers = [Hungry(6, H, activation="relu"), hnn.SAGEConv(H, 3)]
        return hongtu.Trainer(trainers.artifact(2, 8), layers, device_memory="14KB", dtype=torch.float64, **options)

    def make_runtime(*given, **options):
        runtime = Runtime(*given, **options)
        monkeypatch.setattr(Hungry, "per_row", 300)  # it is planned: layers take more than when they were probed
        return runtime

    expected, trainer = hungry().embed(0), hungry(on_oom="replan")
    monkeypatch.setattr(inferring, "Runtime", make_runtime)
    with pytest.warns(UserWarning, match="planned again"):
        found = trainer.embed(0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_output_of_a_layer_is_computed_as_in_training():
    def mixed(layers):
        return hongtu.Trainer(trainers.artifact(), layers, autocast=torch.bfloat16, deterministic=True)

    trainer = mixed([hnn.SAGEConv(6, H), hnn.SAGEConv(H, 3)])
    alone, exact = mixed([trainer.model[0]]), hongtu.Trainer(trainers.artifact(), [trainer.model[0]])
    inside = trainer.embed(0)
    assert torch.equal(inside, alone.predict()) and not torch.equal(inside, exact.predict())
    modes = []
    handle = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda *_: modes.append(torch.are_deterministic_algorithms_enabled())
    )
    try:
        mixed([nn.Linear(6, 6), hnn.SAGEConv(6, H), hnn.SAGEConv(H, 3)]).embed(1)
    finally:
        handle.remove()
    assert modes and modes[-1]


def test_a_setting_that_changes_after_an_error_is_planned_for(monkeypatch):
    found = []
    for strategy in ("full", "none"):
        trainer = make(behind(hnn.Dropout(0.0)), strategy=strategy)
        trainer.train_epoch()
        with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
            patched.setattr(hnn.GCNConv, "update", lambda *_: 1 / 0)
            trainer.train_epoch()
        trainer.model[0].p = 0.5
        found.append(trainer.train_epoch().loss)
    np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.parametrize("later", [0.7, 0.0])
def test_every_step_takes_what_its_layer_says_now(later):
    trainer = make([hnn.GCNConv(6, 3), hnn.APPNP(2, 0.1)])
    trainer.train_epoch()
    trainer.model[1].alpha = later
    reference = nn.ModuleList([pyg.GCNConv(6, 3), pyg.APPNP(2, later)]).double()
    reference.load_state_dict(trainer.model.state_dict())
    problem = problems.awkward()
    x, edges, weight = torch.from_numpy(problem.features).double(), problem.edge_index, problem.edge_weight()
    expected = reference[1](reference[0](x, edges, weight), edges, weight)
    torch.testing.assert_close(trainer.predict(), expected.detach(), rtol=1e-9, atol=1e-12)


def test_edges_are_dropped_where_they_were_not_when_planned():
    def with_steps(dropout):
        torch.manual_seed(0)
        return make([hnn.GCNConv(6, 3), hnn.APPNP(2, 0.1, dropout)])

    trainer, dropped = with_steps(0.0), with_steps(0.5)
    for hop in trainer.model[1].hops:
        hop.edge_dropout.p = 0.5
    assert trainer.train_epoch().loss == dropped.train_epoch().loss


def patched(conv):
    for part in (part for part in conv.children() if hasattr(part, "weight")):
        part.forward = lambda x, part=part: 2 * nn.functional.linear(x, part.weight, part.bias)


def hooked(conv):
    for part in (part for part in conv.children() if hasattr(part, "weight")):
        part.register_forward_hook(lambda module, given, out: 2 * out)


def biased(conv):
    for name, part in conv.named_children():
        if name in ("lin", "lin_r", "lin_root"):
            part.bias = nn.Parameter(torch.arange(len(part.weight), dtype=part.weight.dtype))


def replaced(conv):
    for name, part in list(conv.named_children()):
        if name in ("lin", "lin_r", "lin_root"):
            bias = torch.arange(len(part.weight), dtype=part.weight.dtype)
            setattr(conv, name, nn.Sequential(part, nn.Tanh(), Shifted(bias)))


def biased_anew(conv):
    for name, part in list(conv.named_children()):
        if name in ("lin", "lin_r", "lin_root"):
            other = nn.Linear(part.weight.shape[1], len(part.weight))
            other.weight = part.weight
            nn.init.constant_(other.bias, 0.3)
            setattr(conv, name, other)


class Shifted(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.register_buffer("by", by)

    def forward(self, x):
        return x + self.by


@pytest.mark.parametrize("strategy", ["full", "none"])
@pytest.mark.parametrize("change", [patched, hooked, biased, biased_anew, replaced])
@pytest.mark.parametrize("kind", ["GCNConv", "SAGEConv", "GraphConv"])
def test_a_map_that_is_more_than_its_weight_is_called(kind, change, strategy):
    """Patched, with hooks, with a bias of its own or another module: as torch_geometric calls it."""
    torch.manual_seed(0)
    layers = [getattr(hnn, kind)(6, H), getattr(hnn, kind)(H, 3)]
    reference = nn.ModuleList([getattr(pyg, kind)(6, H), getattr(pyg, kind)(H, 3)])
    reference.load_state_dict(nn.ModuleList(layers).state_dict())
    problem = problems.awkward()
    later = change in (patched, hooked)
    if later:
        trainer = make(layers, strategy=strategy)
    for convolutions in (layers, reference):
        change(convolutions[0]), change(convolutions[1])
    if not later:
        trainer = make(layers, strategy=strategy)
    h, edges = torch.from_numpy(problem.features).double(), problem.edge_index
    weight = () if kind == "SAGEConv" else (problem.edge_weight(),)
    for convolution in reference.double():
        h = convolution(h, edges, *weight)
    mask = torch.from_numpy(problem.masks["train"])
    loss = nn.functional.cross_entropy(h[mask], torch.from_numpy(problem.labels)[mask])
    loss.backward()
    np.testing.assert_allclose(trainer.train_epoch().loss, float(loss.detach()), rtol=1e-9)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(trainer.gradients()[name], parameter.grad, rtol=1e-7, atol=1e-9)


def test_inference_mode_around_it_changes_nothing():
    plain, trainer = make(trainers.gcn()), make(trainers.gcn())
    with torch.inference_mode():
        trainer.predict()
        first = trainer.train_epoch().loss
    assert [first, *losses(trainer, epochs=2)] == losses(plain)


def test_a_snapshot_loaded_in_inference_mode_can_be_trained(tmp_path):
    plain, trainer = (
        hongtu.Trainer(trainers.artifact(), trainers.gcn(), optimizer=torch.optim.Adam, dtype=torch.float64)
        for _ in range(2)
    )
    plain.train_epoch()
    plain.save(tmp_path / "snapshot.pt")
    with torch.inference_mode():
        trainer.load(tmp_path / "snapshot.pt")
    assert losses(trainer) == losses(plain)


def test_the_output_of_a_layer_of_another_model_is_refused():
    trainer = make(trainers.gcn())
    trainer.model = trainers.gcn()
    with pytest.raises(InputError, match=r"trainer.model is another one"):
        trainer.embed(0)


def test_tensors_that_cannot_be_trained_are_refused():
    with torch.inference_mode(), pytest.raises(InputError, match=r"0.bias was made under torch.inference_mode"):
        make(trainers.gcn())
    with torch.device("meta"):
        layers = trainers.gcn()
    with pytest.raises(InputError, match=r"0.bias has no numbers \(it is on the meta device\)"):
        make(layers)


def test_a_model_that_lost_its_numbers_later_is_refused(tmp_path):
    trainer = make(trainers.gcn())
    trainer.model.to("meta")
    for use in (trainer.train_epoch, lambda: trainer.embed(0), trainer.predict, lambda: trainer.save(tmp_path / "s")):
        with pytest.raises(InputError, match=r"0.bias has no numbers \(it is on the meta device\)"):
            use()


def test_another_default_device_is_refused():
    layers, trainer = trainers.gcn(), make(trainers.gcn())
    for use in (lambda: make(layers), trainer.train_epoch, trainer.evaluate, lambda: trainer.embed(0)):
        with torch.device("meta"), pytest.raises(InputError, match="default device is 'meta', expected 'cpu'"):
            use()
    assert trainer.train_epoch().loss == make(layers).train_epoch().loss


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_trainer_is_not_copied(copied):
    with pytest.raises(TypeError, match=r"trainer.save\(path\)"):
        copied(make(trainers.gcn()))


def test_weights_and_mask_of_a_loss_are_those_that_were_given():
    weight, mask = np.linspace(0.5, 2, 64), np.arange(64) % 2 == 0
    plain, trainer = (make(trainers.gcn(), loss=hongtu.LossTerm("cross_entropy", 1.0, mask, weight)) for _ in range(2))
    expected = losses(plain)
    weight[:], mask[:] = 1, True
    assert losses(trainer) == expected


def test_a_patched_layer_is_refused():
    layers = trainers.gcn()
    layers[1].update = lambda a, s: a
    with pytest.raises(InputError, match=r"layers\[1\] \(GCNConv\): its update was replaced.*define a subclass"):
        make(layers)
