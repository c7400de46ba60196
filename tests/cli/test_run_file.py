"""Run files: what is written is read, options go over them, and what a run keeps makes it again."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import hongtu
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.cli.train_config import DECIDING, TrainConfig
from hongtu.train.snapshot import read_snapshot
from tests import problems

SHORT = ["--epochs", "3", "--eval-every", "1"]


@pytest.fixture(scope="module")
def artifact():
    return problems.prepare(problems.awkward(), 2, 3)


def refusal(capsys, *argv):
    assert main([str(word) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def run_of(*argv, capsys):
    assert main(["train", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_written_is_read_and_options_go_over_it(artifact, tmp_path, capsys):
    typed = ["--hidden", "5", "--lr", "0.05", "--keep-best", "--run", str(tmp_path / "run"), *SHORT]
    assert main(["train", str(artifact.path), *typed, "--write-config"]) == 0
    file = tmp_path / "run.toml"
    file.write_text(capsys.readouterr().out)
    assert "# columns between layers, over all heads\nhidden = 5\n" in file.read_text()
    assert not (tmp_path / "run").exists()
    found = run_of(file, "--seed", 7, "--no-keep-best", capsys=capsys)
    kept = json.loads((tmp_path / "run" / "options.json").read_text())
    expected = TrainConfig(
        artifact=str(artifact.path), hidden=5, lr=0.05, run=str(tmp_path / "run"), epochs=3, eval_every=1, seed=7
    )
    assert kept == dataclasses.asdict(expected) | {"modules": [], "loggers": []}
    again = run_of(tmp_path / "run" / "options.json", "--run", tmp_path / "again", capsys=capsys)
    assert again["loss"] == found["loss"]
    assert main(["plan", str(file)]) == 0 and "gcn, 2 layers, hidden 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hiden = 3", "'hiden' is no setting; did you mean hidden?; expected some of artifact, model"),
        ("hidden = 'wide'", "hidden is 'wide', expected int"),
        ("keep_best = 1", "keep_best is 1, expected bool"),
        ("strategy = 'best'", "strategy is 'best', expected full or paper or p2p or none"),
        ("hidden = ", "not a run file (Invalid value"),
        ("epochs = 0\nartifact = 'x'", "--epochs 0: expected at least 1"),
        ("keep_best = true\nartifact = 'x'", "--keep-best needs --run DIR"),
        ("epochs = 3", "artifact: missing"),
        ("artifact = 'x'\nmodel = 'gcnn'", "model 'gcnn'; did you mean gcn?; expected one of gcn, sage"),
        ("artifact = 'x'\nrun = \"a\\u0000b\"", "expected text without a zero byte"),
    ],
)
def test_a_bad_run_file_is_refused(text, message, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(text)
    assert message in refusal(capsys, "train", tmp_path / "run.toml")


def test_layers_by_name_are_those_of_python(artifact, capsys):
    modules = ["GCNConv(features, 7, activation='relu')", "Dropout(0.5)", "SAGEConv(7, classes)"]
    found = run_of(artifact.path, *SHORT, "--optimizer", "SGD(momentum=0.9)", "--lr", 0.1, "--scheduler",
                   "StepLR(1, gamma=0.5)", "--modules", *modules, capsys=capsys)  # fmt: skip
    assert main(["plan", str(artifact.path), "--modules", *modules]) == 0
    assert f"{artifact.path}: 3 modules; strategy full" in capsys.readouterr().out
    torch.manual_seed(0)
    layers = [hnn.GCNConv(6, 7, activation="relu"), hnn.Dropout(0.5), hnn.SAGEConv(7, 3)]
    trainer = hongtu.Trainer(
        artifact, layers, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5),
    )  # fmt: skip
    assert trainer.fit(3)[-1].loss == found["loss"]


def test_optimizers_that_know_no_weight_decay_run(artifact, capsys):
    given = artifact.path, "--epochs", 1, "--optimizer"
    assert run_of(*given, "Rprop", capsys=capsys)["epochs"] == 1
    message = refusal(capsys, "train", *given, "Rprop", "--weight-decay", "0.1")
    assert "--optimizer 'Rprop': Rprop.__init__() got an unexpected keyword argument 'weight_decay'" in message
    # torch's own default is 0.01, and the option's is 0
    undecayed = run_of(*given, "AdamW", "--lr", 1, "--epochs", 3, capsys=capsys)
    assert undecayed["loss"] == run_of(*given, "Adam", "--lr", 1, "--epochs", 3, capsys=capsys)["loss"]


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--optimizer", "LBFGS", "another that steps without a closure"),
        ("--optimizer", "SGD(lr=0.5)", "--optimizer 'SGD(lr=0.5)': lr is an option of its own; pass --lr instead"),
        ("--modules", "GCNConf(features, 3)", "no class of hongtu.nn or torch.nn; did you mean GCNConv?"),
        ("--modules", "GCNConv(open('x'), 3)", "open('x') is no plain value; expected a name and plain values"),
        ("--modules", "GCNConv(3", "modules 'GCNConv(3': '(' was never closed; expected a name and plain values"),
        ("--modules", "Linear()", "--modules 'Linear()': Linear.__init__() missing 2 required positional arguments"),
        ("--scheduler", "StepLR('x')", "--scheduler \"StepLR('x')\": unsupported operand type(s) for %"),
        ("--scheduler", "CosineAnnealingLR(0)", "--scheduler 'CosineAnnealingLR(0)': integer modulo by zero"),
        ("--modules", "Transformer(nhead=7)", "embed_dim must be divisible by num_heads"),
        ("--modules", "JumpingKnowledge(9)", "'int' object has no attribute 'lower'"),
        ("--host-memory", "5%", "only device_memory (--device-memory) may be a percentage"),
        ("--modules", "__import__('os').system('true')", "expected a name and plain values (and features, classes)"),
        ("--optimizer", "SGD(momentum={[]: 1})", "{[]: 1} is no plain value; expected a name and plain values"),
        ("--scheduler", "StepLR({{}})", "{{}} is no plain value; expected a name and plain values"),
        ("--optimizer", "SGD(" + "-" * 20_000 + "1)", "expected a name and plain values"),
        ("--optimizer", "Adma", "no class of torch.optim; did you mean Adam"),
        (
            "--optimizer",
            "SGD(momentun=0.9)",
            "--optimizer 'SGD(momentun=0.9)': SGD.__init__() got an unexpected keyword",
        ),
        ("--scheduler", "StepLR", "--scheduler 'StepLR': StepLR.__init__() missing 1 required positional argument"),
        ("--model", "no_such_module:layers", "No module named 'no_such_module'; expected module:function"),
        ("--model", "os:system", "--model os:system: TypeError: "),
        ("--hidden", 10**400, "at most 1048576 columns and 10000 layers"),
        ("--layers", 10**8, "at most 1048576 columns and 10000 layers"),
        ("--device", "cuda:" + "9" * 5000, "expected 'cpu', 'cuda', 'cuda:K'"),
        ("--device-memory", "0%", "expected a percentage"),
        ("--metric", "bleu", "metric 'bleu'; expected one of accuracy, f1, macro-f1, auc, mrr, hits@K"),
        ("--metric", "hits@50", "metric is 'hits@50': expected a callable"),
    ],
)
def test_names_that_are_none_are_refused(option, text, message, artifact, capsys):
    assert message in refusal(capsys, "train", artifact.path, option, text)


def test_what_is_refused_before_an_epoch_loses_none(artifact, capsys):
    message = refusal(capsys, "train", artifact.path, "--patience", "3", "--eval-every", "0")
    assert message.rstrip().endswith("they look at the validation score; no epoch was trained")


OWN = """
import torch_geometric.nn as pyg
from hongtu import nn

def layers(artifact):
    return [nn.GCNConv(artifact.feature_width, 4), nn.GCNConv(4, artifact.num_classes)]

def model(artifact):
    return pyg.GCN(artifact.feature_width, 4, 2, artifact.num_classes)

def squares(out, target):
    return (out.softmax(1).gather(1, target[:, None])[:, 0] - 1) ** 2

def least(out, target):
    return -target.max()
"""


def test_a_model_of_ones_own(artifact, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch_geometric")
    (tmp_path / "own_models_of_this_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    for function in ("layers", "model"):
        name = f"own_models_of_this_test:{function}"
        assert np.isfinite(run_of(artifact.path, "--model", name, *SHORT, capsys=capsys)["loss"])
    own = ["--loss", "own_models_of_this_test:squares", "--metric", "own_models_of_this_test:least"]
    found = run_of(artifact.path, *own, *SHORT, capsys=capsys)
    assert 0 < found["loss"] < 1 and found["val"] == -2
    trainer = hongtu.Trainer(artifact, [hnn.GCNConv(6, 4), hnn.GCNConv(4, 3)])
    trainer.fit(2, run_dir="run", save_every=1)  # a run made from Python has no options.json
    assert "pass --model MODULE:FUNCTION" in refusal(capsys, "embed", artifact.path, "run", "out.npy")
    name = "own_models_of_this_test:layers"
    assert main(["embed", str(artifact.path), "run", "out.npy", "--model", name]) == 0
    assert np.array_equal(np.load("out.npy"), trainer.predict().numpy())
    assert main(["export", "run", "weights.pt"]) == 0
    assert torch.equal(torch.load("weights.pt")["convs.0.lin.weight"], trainer.model[0].lin.weight)


def test_a_budget_may_be_a_share(artifact, capsys):
    layers = [hnn.GCNConv(6, 128, activation="relu"), hnn.GCNConv(128, 3)]
    need = hongtu.Trainer(artifact, layers).plan.likely_bytes
    for command in ("train", "plan"):
        err = refusal(capsys, command, artifact.path, "--device-memory", "5%")
        assert f"device_memory is {need // 20} bytes" in err and "5% of the " in err


def test_loggers_hear_of_every_epoch(artifact, tmp_path, capsys):
    log = tmp_path / "run" / "epochs.csv"
    (tmp_path / "run.toml").write_text(f'artifact = "{artifact.path}"\nloggers = ["CSVLogger(\'{log}\')"]')
    command = [tmp_path / "run.toml", "--run", tmp_path / "run", *SHORT]
    assert run_of(*command, capsys=capsys)["epochs"] == 3
    run_of(*command, "--epochs", 4, "--resume", capsys=capsys)
    run_of(*command, "--epochs", 4, "--resume", "--loggers", "Missing()", capsys=capsys)  # nothing is left to hear of
    assert [line.split(",")[0] for line in log.read_text().splitlines()] == ["epoch", "1", "2", "3", "4"]
    other = "train", artifact.path, "--run", tmp_path / "other", "--loggers"
    assert "no class of hongtu.callbacks" in refusal(capsys, *other, "Path('x')")
    assert "did you mean CSVLogger?" in refusal(capsys, *other, "CSVLoger('x')")
    assert "unexpected keyword argument 'to'" in refusal(capsys, *other, "CSVLogger(to='x')")
    assert not (tmp_path / "other").exists()


def test_the_negatives_of_links(artifact, tmp_path, capsys):
    problem = problems.awkward()
    links = hongtu.preprocess_graph(
        problem.edges, problem.num_vertices, tmp_path / "links", features=problem.features, task="links",
        partitions=2, chunks=3,
    )  # fmt: skip
    (tmp_path / "run.toml").write_text(f"artifact = '{links.path}'\nhidden = 5\nnegatives = 4\ncorrupt = 'both'")
    found = run_of(tmp_path / "run.toml", "--metric", "hits@2", *SHORT, capsys=capsys)
    torch.manual_seed(0)
    loss = hongtu.LinkLoss(negatives=4, corrupt="both")
    layers = [hnn.GCNConv(problem.width, 5, activation="relu"), hnn.GCNConv(5, 5)]
    trainer = hongtu.Trainer(links, layers, loss=loss, metric="hits@2")
    assert trainer.fit(3)[-1].loss == found["loss"] and trainer.evaluate()["train"] == found["train"]
    assert run_of(tmp_path / "run.toml", "--negatives", 3, *SHORT, capsys=capsys)["loss"] != found["loss"]
    assert "--negatives 0: expected at least 1" in refusal(capsys, "train", links.path, "--negatives", 0)
    assert "one class per vertex" in refusal(capsys, "train", links.path, "--class-weights", "balanced")
    assert "are for links" in refusal(capsys, "train", artifact.path, "--negatives", 4)


def test_trained_weights_predict_on_another_graph(artifact, tmp_path, capsys):
    """Inductive use: from the command line and from Python, what torch_geometric's same layers give there."""
    assert main(["train", str(artifact.path), "--model", "sage", *SHORT, "--run", str(tmp_path / "run")]) == 0
    rng = np.random.default_rng(3)
    edges, features = rng.integers(0, 40, (2, 200)), rng.normal(size=(40, 6)).astype(np.float32)
    other = hongtu.preprocess_graph(
        edges, 40, tmp_path / "other", features=features, labels="random:3", random_split=(0.5, 0.2, 0.3),
        partitions=2, chunks=2,
    )  # fmt: skip
    assert main(["embed", str(other.path), str(tmp_path / "run"), str(tmp_path / "out.npy")]) == 0
    layers = [hnn.SAGEConv(6, 128, activation="relu"), hnn.SAGEConv(128, 3)]
    trainer = hongtu.Trainer(other, layers, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), device_memory="1MiB")
    snapshot = tmp_path / "run" / "snapshot-3.pt"
    trainer.load_weights(snapshot)
    assert trainer.epoch == 0 and np.allclose(np.load(tmp_path / "out.npy"), trainer.predict().numpy(), atol=1e-6)
    weights = read_snapshot(snapshot)["model"]
    mean = torch.zeros(40, 40).index_put_((torch.tensor(edges[1]), torch.tensor(edges[0])), torch.ones(200), True)
    mean /= mean.sum(1, keepdim=True).clamp(min=1)
    rows = torch.from_numpy(features)
    for k in (0, 1):
        left, right = weights[f"{k}.lin_l.weight"], weights[f"{k}.lin_r.weight"]
        rows = mean @ rows @ left.T + weights[f"{k}.lin_l.bias"] + rows @ right.T
        rows = rows.relu() if k == 0 else rows
    assert torch.allclose(rows, trainer.predict(), atol=1e-4)
    wrong = hongtu.Trainer(other, [hnn.GCNConv(6, 3)])
    with pytest.raises(hongtu.errors.InputError, match="has 2 layers, this run has 1"):
        wrong.load_weights(snapshot)


def test_the_options_of_a_run_that_was_resumed_begin_another(artifact, tmp_path, capsys):
    command = [artifact.path, "--hidden", "5", "--run", tmp_path / "run", "--resume"]
    run_of(*command, "--epochs", 1, capsys=capsys)
    first = run_of(*command, "--epochs", 2, capsys=capsys)
    options, again = tmp_path / "run" / "options.json", ["--run", tmp_path / "again", "--epochs", "2"]
    assert run_of(options, *again, capsys=capsys)["loss"] == first["loss"]
    assert "already exists; choose another --run directory" in refusal(capsys, "train", options, *again)
    assert run_of(options, *again, "--resume", capsys=capsys)["epochs"] == 2


def test_what_decides_the_numbers_is_named():
    assert {"lr", "seed", "optimizer", "scheduler", "modules", "hidden"} <= set(DECIDING)
    assert not {"artifact", "epochs", "device_memory", "run", "resume"} & set(DECIDING)
