"""Rows on the host in bfloat16: counted is predicted, values take half the bytes, and numbers are near."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.device.simulated import SimulatedBackend
from hongtu.errors import InputError
from tests import problems, training
from tests.models import SIX, H, Model
from tests.staged import everything, on_disk

EPSILON = 2.0**-8  # of bfloat16: half a step, as a share of a number
MODELS = (
    *SIX,
    Model("normed", lambda f, c: [hnn.SAGEConv(f, H), hnn.BatchNorm(H), nn.ReLU(), hnn.GATConv(H, c)], lambda f, c: []),
    Model(
        "shared",
        lambda f, c: [
            (nn.Linear(f, H), "x -> x1"), (hnn.SAGEConv(H, H), "x1 -> x2"), (hnn.GCNConv(H, H), "x1 -> x3"),
            (hnn.JumpingKnowledge("cat"), "x1, x2, x3 -> x"), nn.Linear(3 * H, c),
        ],
        lambda f, c: [],
    ),
)  # fmt: skip
GRAINS = ((1, 7), (4, 8))


def pair(model, grain, problem=None, gradient_dtype=None, **options):
    """The same model with rows in float32 and in bfloat16, perhaps with their gradients."""
    found, problem = [], problem or problems.awkward()
    options = {"device_memory": "smallest", "dtype": torch.float32} | options
    for narrow in ({}, {"host_dtype": torch.bfloat16, "gradient_dtype": gradient_dtype}):
        torch.manual_seed(0)
        found.append(training.make_trainer(model, problem, grain, **options, **narrow))
    return found


def check(exact, narrow, epochs=3):
    """Counted is predicted; losses, gradients and predictions are those of float32 but for roundings."""
    for _ in range(epochs):
        expected, record = exact.train_epoch(), narrow.train_epoch()
        training.assert_counted(narrow, record)
        assert narrow.setup.bytes == narrow.plan.setup_traffic.bytes
        assert record.loss == pytest.approx(expected.loss, rel=8 * EPSILON)
        largest = max(gradient.abs().max() for gradient in exact.gradients().values())
        for name, gradient in exact.gradients().items():
            found = narrow.gradients()[name]
            assert found.dtype == torch.float32 and (found - gradient).abs().max() <= 16 * EPSILON * largest, name
    out = exact.predict()
    assert (narrow.predict() - out).abs().max() <= 16 * EPSILON * out.abs().max()
    return expected, record


@pytest.mark.long
@pytest.mark.most(12)
@pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
@pytest.mark.parametrize("model", MODELS, ids=repr)
@pytest.mark.parametrize("budget", ("smallest", None))
def test_counted_is_predicted_and_numbers_are_near(model, grain, budget):
    check(*pair(model, grain, device_memory=budget), epochs=2)


@pytest.mark.long
@pytest.mark.most(6)
@pytest.mark.parametrize("strategy", ("full", "none"))
@pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_gradients_take_half_as_well(model, grain, strategy):
    """Of what is flushed, of what chunks read and write of gradients, and of their memory."""
    exact, narrow = pair(model, grain, gradient_dtype="bf16", strategy=strategy)
    expected, record = check(exact, narrow, epochs=2)
    if record.rows["flush"] == expected.rows["flush"]:
        assert record.bytes["flush"] == expected.bytes["flush"] / 2


@pytest.mark.long(sample=2)
@pytest.mark.most(8)
@pytest.mark.parametrize("gradient_dtype", (None, "bf16"))
@pytest.mark.parametrize("kept", (0, 2))
@pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
@pytest.mark.parametrize("model", (SIX[0], SIX[1], MODELS[-2], MODELS[-1]), ids=repr)
def test_on_a_disk_and_beside_it(model, grain, kept, gradient_dtype, tmp_path):
    """All of it there, or but some chunks."""
    with on_disk(tmp_path, lambda plan, limit: everything(plan, limit, kept=kept)) as spills:
        exact, narrow = pair(model, grain, gradient_dtype=gradient_dtype, device_memory="smallest", **spills)
    expected, record = check(exact, narrow, epochs=2)
    assert 0 < record.bytes["disk"] < expected.bytes["disk"]


@pytest.mark.long(sample=4)
@pytest.mark.most(8)
@pytest.mark.parametrize("gradient_dtype", (None, "bf16"))
@pytest.mark.parametrize("detours", (False, True))
@pytest.mark.parametrize("budget", ("smallest", None))
@pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_devices_with_memory_of_their_own(model, grain, budget, detours, gradient_dtype):
    """Kernels of a GPU read and write rows of the host, or, where they reach none, the host does."""
    device, strategy = SimulatedBackend(seed=3, detours=detours), hongtu.Strategy(resident=False)
    options = {"device": device, "device_memory": budget, "strategy": strategy, "gradient_dtype": gradient_dtype}
    expected, record = check(*pair(model, grain, **options), epochs=2)
    if record.rows["load"] == expected.rows["load"]:
        assert record.bytes["load"] == expected.bytes["load"] / 2
    if gradient_dtype and record.rows["flush"] == expected.rows["flush"]:
        assert record.bytes["flush"] == expected.bytes["flush"] / 2


@pytest.mark.parametrize("problem", (problems.odd_widths, problems.whole_lines))
@pytest.mark.parametrize("model", (SIX[0], SIX[1]), ids=repr)
def test_kernels_round_as_the_processor_does(model, problem):
    options = {"host_dtype": "bf16", "dtype": torch.float32, "strategy": hongtu.Strategy(resident=False)}
    losses = []
    for device in ("cpu", SimulatedBackend(seed=3)):
        torch.manual_seed(0)
        trainer = training.make_trainer(model, problem(), (2, 3), device=device, **options)
        losses.append([trainer.train_epoch().loss for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("gradient_dtype", (None, "bf16"))
@pytest.mark.parametrize("kept", (0, 2))
def test_devices_with_memory_of_their_own_and_a_disk(kept, gradient_dtype, tmp_path):
    with on_disk(tmp_path, lambda plan, limit: everything(plan, limit, kept=kept)) as spills:
        spills |= {"device": SimulatedBackend(seed=4), "gradient_dtype": gradient_dtype}
        exact, narrow = pair(SIX[1], (2, 4), device_memory="smallest", **spills)
    expected, record = check(exact, narrow, epochs=2)
    assert 0 < record.bytes["disk"] < expected.bytes["disk"]


@pytest.mark.parametrize("model", [SIX[0], SIX[4]], ids=repr)
def test_values_take_half(model):
    """Of what is loaded and what is predicted; gradients and results are float32."""
    strategy = hongtu.Strategy(resident=False, fuse_last_layer=False, transform_first=False)
    exact, narrow = pair(model, (2, 3), strategy=strategy)
    if exact.plan.topology.chunks == narrow.plan.topology.chunks:
        assert narrow.plan.bytes["load"] == exact.plan.bytes["load"] / 2
        assert narrow.plan.bytes["flush"] == exact.plan.bytes["flush"]
    hosts = [trainer.plan.host_bytes["pinned host"] for trainer in (exact, narrow)]
    assert hosts[1] < 0.75 * hosts[0]
    infer = hongtu.Inference(narrow.artifact, narrow.model, host_dtype="bf16")
    assert infer.predict().dtype == torch.float32
    assert infer.record.bytes == infer.plan.bytes


def test_pruned_rows_and_dropout():
    model = Model("drop", lambda f, c: [hnn.SAGEConv(f, H), hnn.Dropout(0.5), hnn.GATConv(H, c)], lambda f, c: [])
    check(*pair(model, (2, 3), problems.few_train()))


def test_learned_rows_and_sparse_features_stay_as_they_are(tmp_path):
    given = problems.awkward()
    artifact = hongtu.preprocess_graph(
        given.edges, given.num_vertices, tmp_path / "a", features="embedding:6", labels=given.labels, masks=given.masks,
        partitions=2, chunks=3,
    )  # fmt: skip
    torch.manual_seed(0)
    layers = [hnn.SAGEConv(6, H, activation="relu"), hnn.GATConv(H, 3)]
    trainer = hongtu.Trainer(artifact, layers, device_memory="100%", host_dtype="bfloat16")
    training.assert_counted(trainer, trainer.train_epoch())
    assert trainer.embedding.weight.dtype == torch.float32 and "bfloat16" not in trainer.plan.host_dtype("features")


@pytest.mark.parametrize(("options", "message"), [
    ({"host_dtype": "float16"}, "host_dtype is 'float16': expected torch.bfloat16"),
    ({"host_dtype": "bf16", "dtype": torch.float64}, "narrower than float32, and dtype is torch.float64"),
    ({"gradient_dtype": "bf8"}, "gradient_dtype is 'bf8': expected torch.bfloat16"),
])  # fmt: skip
def test_refused(options, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), [hnn.GCNConv(6, 3)], **options)


def test_commands_say_that_it_is_not_exact(tmp_path, capsys):
    path = str(problems.prepare(problems.awkward(), 2, 3).path)
    model = ["--model", "gat", "--hidden", "8", "--device-memory", "20KiB", "--host-dtype", "bf16"]
    model += ["--gradient-dtype", "bf16"]
    assert main(["plan", path, *model]) == 0
    said = capsys.readouterr().out
    assert "what layers give forward in bfloat16: not exact" in said
    assert "gradients of what layers give in bfloat16: not exact" in said
    assert main(["plan", path, *model, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main(["train", path, *model, "--epochs", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == planned["bytes"] and planned["host_dtype"] == "bfloat16"
    assert main(["plan", path, *model, "--listing"]) == 0
    assert main(["plan", path, *model, "--ranks", "2"]) == 0
    assert "in bfloat16: not exact" in capsys.readouterr().out
