"""Inference alone: the bits of Trainer.predict, no more bytes than one forward, and what chosen vertices prune."""

from __future__ import annotations

import os
from contextlib import nullcontext
from errno import ENOSPC

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

import hongtu
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.errors import BudgetError, InputError, OutputError
from hongtu.ranks.together import Alone
from tests import problems, training
from tests.exact.test_edge_states import MODELS as STATES
from tests.exact.test_edge_states import awkward as edge_problem
from tests.exact.test_typed_graphs import BARE, reference
from tests.exact.test_typed_graphs import problem as typed_problem
from tests.models import SIX
from tests.ranks.turns import run_ranks
from tests.staged import on_disk

NO_LABELS = {}


def bare(grain=(2, 3)):
    """The awkward graph without labels and masks."""
    given = problems.awkward()
    if grain not in NO_LABELS:
        NO_LABELS[grain] = hongtu.preprocess_graph(
            given.edges, given.num_vertices, problems.new_path(), features=given.features,
            edge_weight=given.weights, partitions=grain[0], chunks=grain[1],
        )  # fmt: skip
    return NO_LABELS[grain]


def learned():
    given = problems.awkward()
    path = problems.new_path()
    return hongtu.preprocess_graph(given.edges, given.num_vertices, path, features="embedding:6", chunks=2)


def layers_of(model, seed=0):
    torch.manual_seed(seed)
    given = problems.awkward()
    return model.layers(given.width, given.classes)


NORMED = [hnn.SAGEConv(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), hnn.GATConv(5, 4), hnn.GraphConv(4, 3)]
SKIPS = [
    (hnn.SAGEConv(6, 5), "x -> x1"), (hnn.GCNConv(5, 5), "x1 -> x2"), (lambda a, b: a + b, "x1, x2 -> x"),
    torch.nn.Linear(5, 3),
]  # fmt: skip


def check_counted(inference):
    plan, record = inference.plan, inference.record
    assert record.bytes == plan.bytes and record.rows == plan.rows
    assert record.arena_bytes == {name: plan.arena_bytes[name] for name in record.arena_bytes}
    if plan.workspace:  # it was planned within a budget
        assert all(record.peak_bytes[name] <= plan.peak_bytes[name] for name in record.peak_bytes)
    assert record.bytes["flush"] == record.bytes["push"] == 0, "nothing goes back"


@pytest.mark.parametrize("budget", [None, "40KiB"])
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_the_bits_of_a_trainer_and_no_more_than_its_forward(model, budget):
    """On a graph with labels, whose Trainer plans to train, and on one without."""
    for artifact in (problems.prepare(problems.awkward(), 2, 3), bare()):
        trainer = hongtu.Trainer(artifact, layers_of(model), device_memory=budget)
        inference = hongtu.Inference(artifact, layers_of(model), device_memory=budget)
        assert torch.equal(inference.predict(), trainer.predict())
        check_counted(inference)
        plan = trainer.plan
        forward = sum(sum(plan.pass_traffic(p).bytes.values()) for p in plan.passes.evaluate or plan.passes.train)
        assert sum(inference.plan.bytes.values()) <= forward + sum(plan.setup_traffic.bytes.values())
        assert not inference.plan.passes.setup and len(inference.plan.passes.train) <= 1 + len(trainer.model)


@pytest.mark.parametrize("layers", [NORMED, SKIPS], ids=["normed", "skips"])
@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_norms_and_skips_of_layers_that_a_trainer_has(layers, device):
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers, device=device)
    trainer.train_epoch()
    before = trainer.predict()
    for vertices in (None, [3, 60, 3]):
        inference = hongtu.Inference(trainer.artifact, trainer.model, vertices=vertices, device=device)
        rows = before if vertices is None else before[vertices]
        torch.testing.assert_close(inference.predict(), rows, rtol=1e-5, atol=1e-6)
        check_counted(inference)
    assert torch.equal(trainer.predict(), before), "the Trainer goes on with layers of its own"
    assert trainer.train_epoch().loss > 0


@pytest.mark.parametrize("model", [
    pyg.GCN(6, 8, 3, 2, dropout=0.5), pyg.GAT(6, 8, 2, 2, heads=2, jk="cat"), pyg.GraphSAGE(6, 8, 2, norm="batch_norm"),
    pyg.GATv2Conv(6, 2, bias=False),
], ids=lambda model: type(model).__name__)  # fmt: skip
def test_trained_models_of_torch_geometric(model):
    """In either mode, which stays theirs."""
    given = problems.awkward()
    for mode in (True, False):
        found = hongtu.Inference(bare(), model.train(mode), device_memory="60KiB").predict()
        assert model.training == mode
        weights = {"edge_weight": given.edge_weight(torch.float32)} if isinstance(model, pyg.GCN) else {}
        with torch.no_grad():
            expected = model.eval()(torch.from_numpy(given.features), given.edge_index, **weights)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_less_memory_than_training_needs():
    trains = problems.prepare(problems.awkward(), 2, 3)
    with pytest.raises(BudgetError) as training_needs:
        hongtu.Trainer(trains, layers_of(SIX[0]), device_memory=1)
    with pytest.raises(BudgetError, match="smallest that works") as needs:
        hongtu.Inference(trains, layers_of(SIX[0]), device_memory=1)
    assert needs.value.smallest < training_needs.value.smallest
    inference = hongtu.Inference(trains, layers_of(SIX[0]), device_memory=needs.value.smallest)
    inference.predict()
    check_counted(inference)
    assert inference.peak_bytes["device 0"] <= needs.value.smallest


@pytest.mark.parametrize("grain", [(1, 7), (4, 8)], ids=str)
@pytest.mark.parametrize("model", [SIX[1], SIX[4]], ids=repr)
def test_rows_on_a_disk(model, grain, tmp_path):
    """What is on the disk changes no bit, and its bytes are what was predicted."""
    with pytest.raises(BudgetError) as needs:
        hongtu.Inference(bare(grain), layers_of(model), device_memory=1)
    budget = needs.value.smallest
    free = hongtu.Inference(bare(grain), layers_of(model), device_memory=budget)
    with on_disk(tmp_path) as spills:
        spilling = hongtu.Inference(bare(grain), layers_of(model), device_memory=budget, **spills)
        assert torch.equal(spilling.predict(), free.predict())
    check_counted(spilling)
    assert spilling.record.bytes["disk"] > 0 and not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------- chosen vertices


def exact(artifact, layers, pick, **options):
    """The bits of a Trainer, and what was planned; the same rows where only some are asked for."""
    trainer = hongtu.Trainer(artifact, layers(), **options)
    inference = hongtu.Inference(artifact, layers(), **options)
    expected, found = trainer.predict(), inference.predict()
    assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else same_types(found, expected)
    check_counted(inference)
    assert sum(inference.plan.bytes.values()) <= sum(trainer.inferred.bytes.values()) + sum(
        trainer.setup.bytes.values()
    )
    rows = trainer.predict(pick)
    torch.testing.assert_close(inference.predict(pick), rows, rtol=1e-9, atol=1e-9)
    check_counted(inference)
    return inference


def same_types(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[kind], expected[kind]) for kind in expected)


@pytest.mark.long
@pytest.mark.parametrize(("name", "ranks", "spills"), [("mean", 1, False), ("mean", 2, True), ("embedded", 1, True)])
def test_typed_graphs(name, ranks, spills, tmp_path):
    which = BARE if name == "embedded" else ()
    artifact, model = problems.prepare(typed_problem(*which), 2, 2), reference(name, which).model

    def work(group):
        options = {"dtype": torch.float64, "device_memory": 400_000, "ranks": group}
        exact(artifact, lambda: hongtu.from_pyg(model), [46, 2], **options, **disk)

    with on_disk(tmp_path) if spills else nullcontext({}) as disk:
        run_ranks(ranks, work) if ranks > 1 else work(Alone())


@pytest.mark.most(4)
@pytest.mark.parametrize("spills", [False, True], ids=["", "disk"])
@pytest.mark.parametrize(("ranks", "dependencies"), [(1, "cache"), (2, "cache"), (2, "comm")], ids=str)
@pytest.mark.parametrize("model", STATES, ids=repr)
def test_edge_states(model, ranks, dependencies, spills, tmp_path):
    artifact = problems.prepare(edge_problem(), 4, 3)

    def work(group):
        options = {"dtype": torch.float64, "device_memory": 250_000, "dependencies": dependencies, "ranks": group}
        exact(artifact, lambda: model.build(edge_problem()), [50, 3], **options, **disk)

    with on_disk(tmp_path) if spills else nullcontext({}) as disk:
        run_ranks(ranks, work) if ranks > 1 else work(Alone())


@pytest.mark.parametrize("dependencies", ["cache", "comm", "hybrid"])
def test_ranks_infer_together(dependencies):
    """Of a graph without labels, and chosen vertices, whose rows may all be one rank's."""
    expected = hongtu.Inference(bare((4, 3)), layers_of(SIX[4])).predict()

    def work(group):
        options = {"ranks": group, "dependencies": dependencies, "device_memory": "60KiB", "dtype": torch.float64}
        inference = exact(bare((4, 3)), lambda: layers_of(SIX[4]), [3], **options)
        torch.testing.assert_close(inference.predict(range(64)).float(), expected, rtol=1e-5, atol=1e-6)

    run_ranks(2, work)


@pytest.mark.parametrize("vertices", [[2], [50, 3], [63, 48, 48], []], ids=str)
def test_chosen_vertices_prune_the_rest(vertices):
    """Isolated ones, one twice, none at all."""
    for model in (SIX[1], SIX[4]):
        whole = hongtu.Inference(bare(), layers_of(model), device_memory="60KiB")
        rows = whole.predict()
        few = hongtu.Inference(bare(), layers_of(model), vertices=vertices, device_memory="60KiB")
        torch.testing.assert_close(few.predict(), rows[vertices], rtol=1e-5, atol=1e-6)
        check_counted(few)
        if vertices:
            assert sum(few.record.bytes.values()) < 0.5 * sum(whole.record.bytes.values())
        torch.testing.assert_close(whole.predict(vertices), rows[vertices], rtol=1e-5, atol=1e-6)
        check_counted(whole)
        assert whole.record.bytes == few.record.bytes
        assert torch.equal(whole.predict(), rows), "all of them again"


def test_vertices_by_the_names_of_the_input(tmp_path):
    given = problems.awkward()
    names = [f"v{k}" for k in range(given.num_vertices)]
    (tmp_path / "edges.csv").write_text("\n".join(f"{names[a]},{names[b]}" for a, b in given.edges.T.tolist()))
    options = ["--features", "random:6", "--relabel", "--partitions", "1", "--chunks", "2"]
    assert main(["preprocess", str(tmp_path / "edges.csv"), str(tmp_path / "a"), *options]) == 0
    artifact = hongtu.open_artifact(tmp_path / "a")
    whole = hongtu.Inference(artifact, layers_of(SIX[1])).predict()
    places = [list(artifact.vertex_ids).index(name) for name in ("v5", "v1")]
    found = hongtu.Inference(artifact, layers_of(SIX[1]), vertices=["v5", "v1"]).predict(out=tmp_path / "out.npy")
    np.testing.assert_allclose(found, whole[places], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="vertex 'w' is not among"):
        hongtu.Inference(artifact, layers_of(SIX[1]), vertices=["w"])


# ----------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("vertices", [None, [5, 1]], ids=str)
def test_a_file_is_complete_or_absent(vertices, tmp_path, monkeypatch):
    inference = hongtu.Inference(bare(), layers_of(SIX[0]), vertices=vertices)
    mapped = inference.predict(out=tmp_path / "out.npy")
    assert isinstance(mapped, np.memmap) and np.array_equal(mapped, inference.predict().numpy())

    def full(*_):
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match="No space left on device"):
        inference.predict(out=tmp_path / "other.npy")
    assert [file.name for file in tmp_path.iterdir()] == ["out.npy"]
    monkeypatch.undo()
    monkeypatch.setattr(np.memmap, "flush", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        inference.predict(out=tmp_path / "other.npy")
    assert [file.name for file in tmp_path.iterdir()] == ["out.npy"]


@pytest.mark.parametrize(("call", "message"), [
    (lambda p: hongtu.Inference(p / "no", []), "no: not an artifact"),
    (lambda p: hongtu.Inference(bare(), torch.nn.Linear(6, 2)), "from_pyg: got Linear"),
    (lambda p: hongtu.Inference(bare(), [hnn.GCNConv(5, 2)]), "5|6"),
    (lambda p: hongtu.Inference(bare(), [hnn.GCNConv(6, 2)], vertices=[64]), "vertex 64, expected an integer"),
    (lambda p: hongtu.Inference(bare(), [hnn.GCNConv(6, 2)], vertices=["3"]), "vertex '3', expected an integer"),
    (lambda p: hongtu.Inference(bare(), [hnn.GCNConv(6, 2)], vertices=[[1, 2]]), r"vertices of shape \[1, 2\]"),
    (lambda p: hongtu.Inference(bare(), [hnn.GCNConv(6, 2)], vertices=np.ones((3, 1), int)), r"of shape \[3, 1\]"),
    (lambda p: hongtu.Inference(bare(), [hnn.GCNConv(6, 2)]).predict(torch.ones(2, 2).long()), r"of shape \[2, 2\]"),
    (lambda p: hongtu.Inference(bare(), [hnn.GCNConv(6, 2)], loss="mse"), "no argument is named 'loss'"),
    (lambda p: hongtu.Inference(bare(), [hnn.GCNConv(6, 2)]).predict(out=p / "out.txt"), "ends in .npy"),
    (lambda p: hongtu.Inference(learned(), [hnn.GCNConv(6, 2)]), "its features are learned"),
], ids=range(11))  # fmt: skip
def test_refused(call, message, tmp_path):
    with pytest.raises(InputError, match=message):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_closed_trainer_goes_on():
    trainer = training.make_trainer(SIX[0], problems.awkward(), (2, 3))
    other = training.make_trainer(SIX[0], problems.awkward(), (2, 3))
    expected = [other.train_epoch().loss for _ in range(2)]
    losses = [trainer.train_epoch().loss]
    trainer.close()
    assert [*losses, trainer.train_epoch().loss] == expected
