"""``hongtu infer``: runs, functions and files of models, on graphs with other labels or none."""

from __future__ import annotations

import importlib
import json
import re

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

import hongtu
from hongtu.cli.main import main
from tests import problems

MODULE = "functions_to_infer"
FUNCTIONS = """
import torch
from torch_geometric.nn import GCN
from hongtu.nn import SAGEConv

def gcn(artifact):
    torch.manual_seed(3)
    return GCN(artifact.feature_width, 8, 2, 5)

def layers(artifact):
    torch.manual_seed(4)
    return [SAGEConv(artifact.feature_width, 8, activation="relu"), SAGEConv(8, 5)]

def fails(artifact):
    return 1 / 0

def kind(artifact):
    return GCN

def nothing(artifact):
    return None

def named(artifact):
    return "gcn"

def of_pyg(artifact):
    import hongtu
    return hongtu.from_pyg(gcn(artifact))
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The current one, with a module of functions, an artifact with labels, and "bare", the same graph without."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "functions_to_infer.py").write_text(FUNCTIONS)
    given = problems.awkward()
    hongtu.preprocess_graph(
        given.edges, given.num_vertices, "bare", features=given.features, edge_weight=given.weights, partitions=2,
        chunks=3,
    )  # fmt: skip
    return problems.prepare(given, 2, 3).path


def infer(*words):
    return main(["infer", *map(str, words)])


def gcn():
    torch.manual_seed(3)
    return pyg.GCN(6, 8, 2, 5)


@pytest.mark.parametrize("model", ["gcn", "gat --heads 2", "pna"])
def test_a_run_on_the_graph_that_it_was_trained_on_and_on_one_without_labels(model, directory, capsys):
    train = f"train {directory} --model {model} --hidden 6 --epochs 2 --run run --json"
    assert main(train.split()) == 0
    assert main(["embed", str(directory), "run", "embedded.npy"]) == 0
    assert infer(directory, "run", "same.npy", "--device-memory", "60KiB") == 0
    assert np.array_equal(np.load("same.npy"), np.load("embedded.npy"))
    assert infer("bare", "run/snapshot-2.pt", "other.npy") == main(["embed", "bare", "run", "embedded-2.npy"]) == 0
    np.testing.assert_allclose(np.load("other.npy"), np.load("same.npy"), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.load("other.npy"), np.load("embedded-2.npy"), rtol=1e-5, atol=1e-6)


def test_a_function_and_weights_and_files_of_models(directory, capsys):
    model, given = gcn(), problems.awkward()
    torch.save(model.state_dict(), "weights.pt")
    torch.save(model, "model.pt")
    with torch.no_grad():
        weight = given.edge_weight(torch.float32)
        expected = model.eval()(torch.from_numpy(given.features), given.edge_index, edge_weight=weight)
    for k, words in enumerate((
        ["functions_to_infer:gcn"], ["functions_to_infer:gcn", "--weights", "weights.pt"], ["model.pt", "--trust"],
    )):  # fmt: skip
        assert infer("bare", words[0], f"{k}.npy", *words[1:]) == 0
        np.testing.assert_allclose(np.load(f"{k}.npy"), expected, rtol=1e-4, atol=1e-5)
    assert "0.npy: float32 [64, 5], in " in capsys.readouterr().out


def test_layers_take_what_a_run_from_python_left(directory):
    functions = importlib.import_module(MODULE)
    trainer = hongtu.Trainer(directory, functions.layers(hongtu.open_artifact(directory)))
    trainer.fit(2, run_dir="run", save_every=1)
    expected = trainer.predict().numpy()
    torch.save(trainer.model.state_dict(), "weights.pt")
    for weights in ("run", "run/snapshot-2.pt", "weights.pt"):
        assert infer(directory, "functions_to_infer:layers", "out.npy", "--weights", weights, "--force") == 0
        assert np.array_equal(np.load("out.npy"), expected)


@pytest.mark.parametrize("form", ["text", "npy"])
def test_rows_of_chosen_vertices(form, directory, tmp_path, capsys):
    assert infer("bare", "functions_to_infer:layers", "all.npy", "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    if form == "text":
        (tmp_path / "some").write_text("50\n\n 3 \n63")
    else:
        np.save("some.npy", [50, 3, 63])
    file = "some" if form == "text" else "some.npy"
    assert infer("bare", "functions_to_infer:layers", "few.npy", "--vertices", file, "--json") == 0
    few = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(np.load("few.npy"), np.load("all.npy")[[50, 3, 63]], rtol=1e-5, atol=1e-6)
    assert whole["shape"] == [64, 5] and few["shape"] == [3, 5]
    assert sum(few["bytes"].values()) < sum(whole["bytes"].values())


@pytest.mark.parametrize(("words", "message"), [
    ("no functions_to_infer:gcn o.npy", "no: not an artifact"),
    ("bare nothing o.npy", "nothing: no such snapshot"),
    ("bare functions_to_infer:none o.npy", "MODEL functions_to_infer:none: module"),
    ("bare functions_to_infer:fails o.npy", "division by zero"),
    ("bare functions_to_infer:gcn o.txt", "ends in .npy"),
    ("bare functions_to_infer:gcn weights.pt", "already exists"),
    ("bare functions_to_infer:gcn o.npy --weights gone.pt", "gone.pt"),
    ("bare functions_to_infer:layers o.npy --weights weights.pt", "Missing key"),
    ("bare model.pt o.npy", "runs code that is in its file; where you trust it, pass --trust"),
    ("bare weights.pt o.npy", "a state dict, weights without a model"),
    ("bare text.pt o.npy --trust", "text.pt: "),
    ("bare model.pt o.npy --weights weights.pt", "it is for MODULE:FUNCTION"),
    ("bare functions_to_infer:gcn o.npy --vertices text.pt", "expected whole numbers, one a line"),
    ("bare functions_to_infer:gcn o.npy --vertices none", "none: "),
    ("bare functions_to_infer:kind o.npy", "it returned the class GCN, expected layers in a list, or a model"),
    ("bare functions_to_infer:nothing o.npy", "it returned None, expected"),
    ("bare functions_to_infer:nothing o.npy --weights weights.pt", "MODEL functions_to_infer:nothing: it returned"),
    ("bare functions_to_infer:named o.npy", "it returned a str, expected"),
    ("bare :gcn o.npy", "MODEL :gcn: ValueError: Empty module name; expected module:function"),
    ("bare does_not_compile:gcn o.npy", "MODEL does_not_compile:gcn: SyntaxError: "),
    ("bare raises_at_import:gcn o.npy", "MODEL raises_at_import:gcn: ZeroDivisionError: division by zero"),
    ("bare functions_to_infer:gcn o.npy --weights text.pt", "text.pt: not a file of torch.save; pass a state dict"),
    ("bare functions_to_infer:gcn o.npy --weights empty.pt", "empty.pt: not a file of torch.save; pass a state dict"),
    ("bare text.pt o.npy", "text.pt: not a file of torch.save; pass MODULE:FUNCTION"),
    ("bare functions_to_infer:gcn o.npy --weights model.pt", "pass model.pt --trust as MODEL; or pass a state dict"),
    ("bare functions_to_infer:gcn o.npy --weights python", "return hongtu.from_pyg(model), or pass what"),
    ("bare functions_to_infer:gcn o.npy --vertices rows.npy", "vertices of shape [2, 1], expected [N]"),
    ("bare functions_to_infer:layers o.npy --device-memory 1", "the smallest that works is"),
    ("text.pt functions_to_infer:gcn o.npy", "text.pt: not an artifact (a file, and an artifact is a directory)"),
    ("python functions_to_infer:gcn o.npy", "python: not an artifact (no manifest.json); pass the directory that"),
    ("graph functions_to_infer:gcn o.npy", "make one with `hongtu preprocess graph ARTIFACT`, and pass ARTIFACT"),
    ("bare bare o.npy", "bare: is an artifact, and holds no snapshot; pass one, or a directory that `hongtu train"),
    ("bare python o.npy", "python: holds no snapshot; pass one, or a directory that `hongtu train ARTIFACT --run RUN`"),
    ("bare functions_to_infer:gcn o.npy --weights gone.pt", "gone.pt: No such file or directory; pass a state dict"),
    ("bare functions_to_infer:gcn o.npy --vertices python", "--vertices python: Is a directory; pass a .npy array"),
    ("bare class.pt o.npy --trust", "class.pt: the class GCN, expected a model of torch_geometric"),
    ("bare function.pt o.npy --trust", "function.pt: the function max, expected a model"),
    ("bare list.pt o.npy", "list.pt: holds a list, expected a model"),
    ("bare checkpoint.pt o.npy", "checkpoint.pt: a dictionary of model, epoch, expected a model"),
])  # fmt: skip
def test_refused_before_anything_is_written(words, message, directory, tmp_path, capsys):
    torch.save(gcn().state_dict(), "weights.pt")
    torch.save(gcn(), "model.pt")
    others = {
        "class": type(gcn()),
        "function": max,
        "list": [1],
        "checkpoint": {"model": gcn().state_dict(), "epoch": 3},
    }
    for name, value in others.items():
        torch.save(value, f"{name}.pt")
    (tmp_path / "graph").mkdir()
    np.save("graph/edges.npy", [[0], [1]])
    for file, text in (("text.pt", "no model"), ("empty.pt", ""), ("does_not_compile.py", "def f(:"),
                       ("raises_at_import.py", "1 / 0")):  # fmt: skip
        (tmp_path / file).write_text(text)
    (tmp_path / "python").mkdir()
    np.save("rows.npy", [[1], [2]])
    before = sorted(file.name for file in tmp_path.iterdir())
    capsys.readouterr()
    assert infer(*words.split()) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir() if file.name != "__pycache__") == [
        name for name in before if name != "__pycache__"
    ]


@pytest.mark.parametrize(("change", "said"), [
    (lambda state: {"model": state, "epoch": 3}, "it is in there: "),
    (lambda state: {"args": {}, "state_dict": state}, "it is in there: "),
    (lambda state: {f"module.{name}": value for name, value in state.items()}, "its names begin with module.; "),
    (lambda state: {f"_orig_mod.{name}": value for name, value in state.items()}, "begin with _orig_mod.; "),
], ids=["model", "state_dict", "module.", "_orig_mod."])  # fmt: skip
def test_weights_of_checkpoints_are_taken_out_as_is_advised(change, said, directory, capsys):
    state = gcn().state_dict() | {"convs.0.bias": torch.arange(8.0)}
    torch.save(change(state), "weights.pt")
    assert infer(directory, "functions_to_infer:gcn", "out.npy", "--weights", "weights.pt") == 2
    error = capsys.readouterr().err
    exec(re.search(rf"{re.escape(said)}(torch[.]save.*, FILE\))", error)[1], {"torch": torch, "FILE": "mended.pt"})
    torch.save(state, "plain.pt")
    for weights in ("plain", "mended"):
        assert infer(directory, "functions_to_infer:gcn", f"{weights}.npy", "--weights", f"{weights}.pt") == 0
    assert np.array_equal(np.load("mended.npy"), np.load("plain.npy"))


def test_weights_of_runs_are_taken_as_is_advised(directory, capsys):
    model = gcn()
    trainer = hongtu.Trainer(directory, hongtu.from_pyg(model))
    trainer.fit(1, run_dir="python", save_every=1)
    assert main(f"train {directory} --model gcn --hidden 8 --epochs 1 --run run".split()) == 0
    for run in ("python", "run", "run/snapshot-1.pt"):
        assert infer(directory, "functions_to_infer:gcn", "out.npy", "--weights", run) == 2
        assert "return hongtu.from_pyg(model), or pass what `hongtu export" in capsys.readouterr().err
    assert infer(directory, "functions_to_infer:of_pyg", "out.npy", "--weights", "python") == 0
    assert np.array_equal(np.load("out.npy"), trainer.predict().numpy())
