"""Using a trained model: predictions and embeddings as files, weights for others, metrics, callbacks and loggers."""

from __future__ import annotations

import csv
import json
import sys
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
import torchmetrics

import hongtu
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.train import callbacks, evaluators
from tests import problems


def problem():
    return problems.awkward()


def make(**options):
    torch.manual_seed(2)
    given = problem()
    layers = [hnn.GCNConv(given.width, 5), torch.nn.ReLU(), hnn.SAGEConv(5, given.classes)]
    return hongtu.Trainer(problems.prepare(given, 2, 3), layers, **options)


# ------------------------------------------------------------------------------------------------- predict and embed


@pytest.mark.parametrize("budget", [None, "64KiB"])
def test_rows_stream_to_a_memory_map(budget, tmp_path):
    trainer = make(device_memory=budget)
    trainer.train_epoch()
    mapped = trainer.predict(out=tmp_path / "scores.npy")
    assert isinstance(mapped, np.memmap) and [file.name for file in tmp_path.iterdir()] == ["scores.npy"]
    assert np.array_equal(mapped, trainer.predict().numpy()) and np.array_equal(
        np.load(tmp_path / "scores.npy"), mapped
    )


@pytest.mark.parametrize("options", [{}, {"device_memory": "64KiB"}, {"device": "simulated"}], ids=str)
def test_any_layer_as_on_the_whole_graph(options):
    trainer = make(**options)
    trainer.train_epoch()
    given = problem()
    reference = pyg.GCNConv(given.width, 5)
    reference.load_state_dict({k: v.cpu() for k, v in trainer.model[0].state_dict().items()})
    with torch.no_grad():
        first = reference(torch.from_numpy(given.features), given.edge_index, given.edge_weight(torch.float32))
    torch.testing.assert_close(trainer.embed(0), first, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trainer.embed(-2), first.relu(), rtol=1e-4, atol=1e-5)
    assert torch.equal(trainer.embed(1, [3, 1]), trainer.embed(1)[[3, 1]])
    assert torch.equal(trainer.embed(2), trainer.predict())
    assert trainer.train_epoch().loss > 0, "the trainer goes on"


def test_learned_embeddings_are_layers_input(tmp_path):
    given = problem()
    artifact = hongtu.preprocess_graph(
        given.edges, given.num_vertices, tmp_path / "a", features="embedding:4", labels=given.labels, masks=given.masks,
        partitions=1, chunks=2,
    )  # fmt: skip
    trainer = hongtu.Trainer(artifact, [hnn.SAGEConv(4, 6), hnn.SAGEConv(6, given.classes)])
    before = trainer.embed(0)
    trainer.train_epoch()
    assert before.shape == (given.num_vertices, 6) and not torch.equal(before, trainer.embed(0))


@pytest.mark.parametrize(("call", "message"), [
    (lambda t, p: t.embed(3), "layer 3, expected 0 to 2, or -1 to -3"),
    (lambda t, p: t.predict(out=p / "scores.txt"), "ends in .npy"),
    (lambda t, p: t.predict(out=p / "no" / "scores.npy"), "a directory that exists"),
    (lambda t, p: t.predict([1], out=p / "scores.npy"), "vertices and out"),
])  # fmt: skip
def test_refused(call, message, tmp_path):
    with pytest.raises(InputError, match=message):
        call(make(), tmp_path)
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------------- commands


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run of two GCN layers in the current directory."""
    monkeypatch.chdir(tmp_path)
    artifact = problems.prepare(problem(), 2, 3)
    assert main(f"train {artifact.path} --hidden 6 --epochs 3 --run run --json".split()) == 0
    return artifact


def test_embed_command(run, capsys):
    assert main(["embed", str(run.path), "run", "last.npy"]) == 0
    assert main(["embed", str(run.path), "run", "first.npy", "--layer", "1", "--device-memory", "1MiB"]) == 0
    assert np.load("last.npy").shape == (64, 3) and np.load("first.npy").shape == (64, 6)
    assert "layer 1 of 2, from run/snapshot-3.pt" in capsys.readouterr().out
    for line, message in (
        ("run last.npy", "already exists"), ("run new.npy --layer 3", "expected 1 to 2"),
        ("no new.npy", "holds no run"),
    ):  # fmt: skip
        assert main(["embed", str(run.path), *line.split()]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_exported_weights_load_in_torch_geometric(run, capsys):
    assert main(["export", "run", "weights.pt"]) == 0
    model = pyg.GCN(6, 6, 2, 3)
    model.load_state_dict(torch.load("weights.pt", weights_only=True))
    main(["embed", str(run.path), "run", "last.npy"])
    given = problem()
    with torch.no_grad():
        out = model(torch.from_numpy(given.features), given.edge_index, given.edge_weight(torch.float32))
    np.testing.assert_allclose(np.load("last.npy"), out, rtol=1e-4, atol=1e-5)
    assert main(["export", "run/snapshot-3.pt", "weights.pt", "--names", "layers", "--force"]) == 0
    assert list(torch.load("weights.pt", weights_only=True)) == ["0.bias", "0.lin.weight", "1.bias", "1.lin.weight"]
    capsys.readouterr()
    assert main(["export", "nothing.pt", "weights2.pt"]) == 2
    assert "no such snapshot" in capsys.readouterr().err
    assert main(["embed", str(run.path), "nothing", "out.npy"]) == 2
    assert "nothing: no such snapshot" in capsys.readouterr().err


def test_names_of_layers_where_torch_geometrics_have_no_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = problems.prepare(problem(), 2, 3).path
    modules = ["GCNConv(features, 6)", "Linear(6, 6)", "GCNConv(6, classes)"]
    assert main(["train", str(path), "--epochs", "1", "--run", "run", "--json", "--modules", *modules]) == 0
    assert main(["export", "run", "weights.pt"]) == 0
    assert "1.weight" in torch.load("weights.pt", weights_only=True)
    assert "layers[1] (Linear): torch_geometric's models have no place" in capsys.readouterr().err
    assert main(["export", "run", "others.pt", "--names", "pyg"]) == 2
    assert "hongtu export --names layers" in capsys.readouterr().err


def test_exported_safetensors(run, capsys):
    load = pytest.importorskip("safetensors.torch").load_file
    assert main(["export", "run", "weights.pt"]) == main(["export", "run", "weights.safetensors"]) == 0
    expected, found = torch.load("weights.pt", weights_only=True), load("weights.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_weights_saved_as_safetensors_predict_the_same(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    trained, file = make(), tmp_path / "new" / "weights.safetensors"
    trained.train_epoch()
    trained.save(file, format="safetensors")
    other = make()
    assert not torch.equal(other.predict(), trained.predict())
    other.load_weights(file)
    assert torch.equal(other.predict(), trained.predict()) and other.epoch == 0
    theirs = tmp_path / "theirs.safetensors"  # written by another program: nothing but names and shapes says whose
    library.save_file(trained.model.state_dict(), theirs)
    other = make()
    other.load_weights(theirs)
    assert torch.equal(other.predict(), trained.predict())
    library.save_file({"0.bias": torch.zeros(4)}, theirs)
    (tmp_path / "cut.safetensors").write_bytes(file.read_bytes()[:100])
    short = hongtu.Trainer(problems.prepare(problem(), 2, 3), [hnn.GCNConv(6, 3)])
    forged = [tmp_path / f"{k}.safetensors" for k in range(4)]
    for path, said in zip(forged, ("[]", "[" * 100_000, "7", '{"layers": 7}'), strict=True):
        library.save_file(trained.model.state_dict(), path, {"hongtu": said})
    for trainer, path, message in (
        (other, theirs, r"0.bias: the file has \[4\], the model has"),
        (other, tmp_path / "cut.safetensors", "not a readable file"),
        (other, tmp_path / "no.safetensors", "no such file"),
        *((other, path, "not a readable file|layers is 7") for path in forged),
        (short, file, "has 3 layers, this run has 1"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            trainer.load_weights(path)
    for path, form in ((file, "snapshot"), (tmp_path / "w.pt", "safetensors"), (file, "onnx")):
        with pytest.raises(InputError, match="save: "):
            trained.save(path, format=form)


def of_model(**options):
    """A Trainer of a torch_geometric model, and the model."""
    torch.manual_seed(3)
    model = pyg.GCN(problem().width, 5, 2, problem().classes, **options)
    return hongtu.Trainer(problems.prepare(problem(), 2, 3), hongtu.from_pyg(model)), model


@pytest.mark.parametrize("whose", ["the layers", "the model", "hongtu export"])
def test_state_dicts_of_torch_predict_the_same(whose, tmp_path):
    trained, model = of_model()
    trained.train_epoch()
    hongtu.to_pyg(trained.model, model)
    torch.save((trained.model if whose == "the layers" else model).state_dict(), tmp_path / "weights.pt")
    other = of_model()[0]
    if whose == "hongtu export":
        given = problem()
        layers = [hnn.GCNConv(given.width, 5, activation="relu"), hnn.GCNConv(5, given.classes)]
        other = hongtu.Trainer(trained.artifact, layers)
    other.load_weights(tmp_path / "weights.pt")
    torch.testing.assert_close(other.predict(), trained.predict())


def test_what_else_torch_saves_is_said_with_what_mends_it(tmp_path):
    path, (trainer, model) = tmp_path / "weights.pt", of_model()
    weights = model.state_dict()
    for saved, method, message in (
        (weights, trainer.load, r"a state dict, weights without optimizer .*trainer.load_weights\(path\) takes it"),
        (of_model(norm="batch_norm")[1].state_dict(), trainer.load_weights, "rename its weights, or load them into"),
        ({"net." + name: x for name, x in weights.items()}, trainer.load_weights, "the file has none, the model has"),
        ({"model": weights, "epoch": 3}, trainer.load_weights, r"a dictionary of model, epoch.*model.state_dict\(\)"),
        (model, trainer.load_weights, r"a model, which torch.save wrote.*torch.save\(model.state_dict\(\), path\)"),
        (model, trainer.load, r"a model, which torch.save wrote.*torch.save\(model.state_dict\(\), path\)"),
        ([1, 2], trainer.load, "not a snapshot, or damaged"),
    ):
        torch.save(saved, path)
        with pytest.raises(InputError, match=message):
            method(path)
    trainer.save(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match="its hash differs"):
        trainer.load_weights(path)


# --------------------------------------------------------------------------------------------------------- metrics


def test_metrics_of_torchmetrics_and_ogb_agree_with_the_default():
    plain = make().evaluate()
    accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
    official = evaluators.OGBEvaluator("ogbn-arxiv")
    found = make(metric={"accuracy": accuracy, "ogb": official, "rows": lambda out, target: len(out)}).evaluate()
    for split, expected in plain.items():
        assert found[split] == pytest.approx(expected) and found[f"{split} ogb"] == pytest.approx(expected)
        assert found[f"{split} rows"] == problem().masks[split].sum()


@pytest.mark.parametrize("classes", [2, 4])
def test_named_metrics_are_those_of_torchmetrics(classes):
    generator = torch.Generator().manual_seed(classes)
    out, target = torch.randn(60, classes, generator=generator).round(decimals=1), torch.arange(60) % classes
    options = {"task": "multiclass", "num_classes": classes}
    theirs = torchmetrics.F1Score(average="macro", **options)(out, target)
    assert evaluators.macro_f1(out, target) == pytest.approx(float(theirs))
    theirs = torchmetrics.Accuracy(average="micro", **options)(out, target)
    assert evaluators.accuracy(out, target) == pytest.approx(float(theirs))
    if classes == 2:
        theirs = torchmetrics.F1Score(task="binary")(out.argmax(1), target)
    assert evaluators.f1(out, target) == pytest.approx(float(theirs))
    if classes == 2:
        theirs = torchmetrics.AUROC(task="binary")((out[:, 1] - out[:, 0]).sigmoid(), target)
    else:
        theirs = torchmetrics.AUROC(task="multiclass", num_classes=4)(out, target)
    assert evaluators.auc(out, target) == pytest.approx(float(theirs.mean()))
    several = (torch.rand(60, classes, generator=generator) < 0.3).long()
    theirs = torchmetrics.F1Score(task="multilabel", num_labels=classes, average="micro")(out.sigmoid(), several)
    assert evaluators.f1(out, several) == pytest.approx(float(theirs))
    theirs = torchmetrics.AUROC(task="multilabel", num_labels=classes)(out.sigmoid(), several)
    assert evaluators.auc(out, several) == pytest.approx(float(theirs))


def test_a_metric_by_name():
    found = make(metric={"auc": "auc", "f1": "macro-f1"}).evaluate()
    listed = make(metric=["auc", "macro-f1"]).evaluate()
    assert listed == {name.replace("f1", "macro-f1"): score for name, score in found.items()}
    assert 0 <= found["val"] <= 1 and "test f1" in found


def test_a_multilabel_metric():
    given = problems.multi_label()
    layers = [hnn.GCNConv(given.width, given.classes)]
    metric = torchmetrics.classification.MultilabelF1Score(given.classes, average="micro")
    options = {"loss": "bce_with_logits"}
    artifact = problems.prepare(given, 1, 2)
    ours = hongtu.Trainer(artifact, layers, **options).evaluate()
    theirs = hongtu.Trainer(artifact, layers, metric=metric, **options).evaluate()
    assert theirs == pytest.approx(ours, rel=1e-6)


@pytest.mark.parametrize(("metric", "message"), [
    ("bleu", "expected a callable"), ({}, "metric: none"), ([], "metric: none"),
    (lambda out, target: out, "returned a tensor of shape"),
    ({"f": lambda out, target: None}, "metric 'f' returned None"),
])  # fmt: skip
def test_metrics_that_cannot_work(metric, message):
    with pytest.raises(InputError, match=message):
        make(metric=metric).evaluate()


# ------------------------------------------------------------------------------------------------------- callbacks


def test_callbacks_hear_everything_and_may_stop():
    heard = []

    class Mine:
        def on_fit_begin(self, trainer):
            heard.append("begin")

        def on_epoch_end(self, trainer, record):
            heard.append((record.epoch, sorted(record.metrics)))
            return record.epoch == 2

        def on_fit_end(self, trainer):
            heard.append("end")

    records = make().fit(5, eval_every=2, callbacks=[Mine(), callbacks.Callback()])
    assert len(records) == 2 and heard == ["begin", (1, []), (2, ["test", "train", "val"]), "end"]
    with pytest.raises(InputError, match="has none of the methods on_fit_begin"):
        make().fit(1, callbacks=[object()])


def test_loggers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make()
    loggers = [callbacks.CSVLogger(tmp_path / "log" / "epochs.csv"), callbacks.TensorBoardLogger(tmp_path / "events")]
    records = trainer.fit(3, eval_every=3, callbacks=loggers)
    records += trainer.fit(1, callbacks=loggers[:1])
    lines = list(csv.DictReader((tmp_path / "log" / "epochs.csv").open()))
    assert [float(line["loss"]) for line in lines] == [record.loss for record in records]
    assert [line["val"] != "" for line in lines] == [False, False, True, False]
    assert int(lines[0]["topology bytes"]) == records[0].bytes["topology"]
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3] and events.Scalars("score/val")
    assert json.dumps(records[2].summary())


def test_loggers_of_others(monkeypatch):
    """What they are told; the packages themselves are tried below, where they are installed."""
    for name, make_logger, ending in (
        ("wandb", lambda: callbacks.WandbLogger(project="p", mode="offline"), ["log"] * 2),
        ("mlflow", lambda: callbacks.MLflowLogger("e"), ["log_metric", "set_terminated"]),
    ):
        fake = MagicMock()
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, fake)
            logger = make_logger()
        (record, last) = make().fit(2, eval_every=2, callbacks=[logger])
        assert [call[0].split(".")[-1] for call in fake.mock_calls][-2:] == ending
        told = str(fake.mock_calls)
        assert str(record.loss) in told and str(last.metrics["val"]) in told and "bytes/topology" in told
        with monkeypatch.context() as patch, pytest.raises(InputError, match=rf"pip install 'hongtu\[{name}\]'"):
            patch.setitem(sys.modules, name, None)
            make_logger()


def test_wandb_offline(tmp_path):
    pytest.importorskip("wandb")
    logger = callbacks.WandbLogger(project="p", mode="offline", dir=str(tmp_path))
    make().fit(2, eval_every=1, callbacks=[logger])
    assert logger.run.summary["loss"] > 0 and logger.run.summary["score/val"] >= 0
    logger.run.finish()
    assert list(tmp_path.rglob("*.wandb"))


def test_mlflow_in_a_directory(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than mlflow-skinny has
    logger = callbacks.MLflowLogger("e", tracking_uri=tmp_path.as_uri())
    records = make().fit(2, eval_every=1, callbacks=[logger])
    found = mlflow.MlflowClient(tmp_path.as_uri()).get_metric_history(logger.run_id, "loss")
    assert [(metric.step, metric.value) for metric in found] == [(r.epoch, r.loss) for r in records]
