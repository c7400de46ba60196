"""Labels and masks as datasets have them: many forms of the same, holes, other names, and none at all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import hongtu
from hongtu.cli.main import main
from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.open import from_arrays, read_data
from tests import problems
from tests.neutral import pieces, write

V = 24
YES = np.arange(V) % 3 == 1
MANY = np.random.default_rng(0).random((V, 5)) < 0.4


def read(tmp_path, labels, task=None, **config):
    """The labels and their number of classes, from a Data, from arrays and from a directory: all the same."""
    given = pieces()
    settings = PreprocessConfig(partitions=1, chunks=1, task=task, **config)
    masks = {split: given[f"{split}_mask"] for split in ("train", "val", "test")}
    as_data = Data(
        edge_index=torch.from_numpy(given["edges"]), x=torch.from_numpy(given["features"]),
        y=torch.from_numpy(labels), **{f"{split}_mask": torch.from_numpy(mask) for split, mask in masks.items()},
    )  # fmt: skip
    raws = [
        read_data(as_data, settings, tmp_path),
        from_arrays(given["edges"], V, settings, features=given["features"], labels=labels, masks=masks),
    ]
    return raws


@pytest.mark.parametrize(
    "form", [np.int64, np.int32, np.uint8, bool, np.float32, np.float64], ids=lambda form: form.__name__
)
@pytest.mark.parametrize("shape", [(V,), (V, 1)])
def test_zeros_and_ones_are_two_classes(tmp_path, form, shape):
    labels = YES.astype(form).reshape(shape)
    of_data, of_arrays = read(tmp_path, labels)
    assert of_data.labels.dtype == np.int64 and np.array_equal(of_data.labels, YES) and of_data.classes == 2
    if form in (np.float32, np.float64) and shape == (V, 1):  # [N, C] floats are many labels, of which there is one
        assert np.array_equal(of_arrays.labels, YES[:, None]) and of_arrays.labels.dtype == np.float32
    else:
        assert np.array_equal(of_arrays.labels, YES) and of_arrays.labels.dtype == np.int64


@pytest.mark.parametrize("form", [np.int64, np.int8, np.uint8, bool, np.float32], ids=lambda form: form.__name__)
def test_many_labels_in_any_form(tmp_path, form):
    for raw in read(tmp_path, MANY.astype(form)):
        assert raw.labels.dtype == np.float32 and np.array_equal(raw.labels, MANY) and raw.classes == 5


def test_one_of_many_integers_is_none(tmp_path):
    labels = MANY.astype(np.int64)
    labels[2, 3] = labels[5, 0] = -1
    for raw in read(tmp_path, labels):
        assert np.array_equal(np.argwhere(np.isnan(raw.labels)), [[2, 3], [5, 0]])
    labels[4, 1] = 2
    with pytest.raises(InputError, match=r"data.y: \[4, 1\] is 2.0, expected a number from 0 to 1"):
        read(tmp_path, labels)


@pytest.mark.parametrize("task", [None, "regression"])
def test_holes(tmp_path, task):
    labels = MANY.astype(np.float32)
    labels[3, 1:] = labels[7, 0] = np.nan
    for raw in read(tmp_path, labels, task):
        assert np.array_equal(raw.labels, labels, equal_nan=True)
    labels[7] = np.nan
    masked = next(split for split in ("train", "val", "test") if pieces()[f"{split}_mask"][7])
    with pytest.raises(InputError, match=f"data.{masked}_mask: contains vertex 7 .* all nan"):
        read(tmp_path, labels, task)


@pytest.mark.parametrize("form", [np.int64, np.uint8, bool, np.float32], ids=lambda form: form.__name__)
def test_numbers_to_predict_in_any_form(tmp_path, form):
    labels = (np.arange(V) % 5 - (1 if form == np.int64 else 0)).astype(form)
    for raw in read(tmp_path, labels, "regression"):
        assert raw.labels.dtype == np.float32 and np.array_equal(raw.labels, labels[:, None].astype(np.float32))


@pytest.mark.parametrize(("form", "task"), [(torch.bool, None), (torch.uint8, None), (torch.int64, "regression")])
def test_vertices_of_other_types_have_no_label(tmp_path, form, task):
    data = HeteroData()
    data["a"].x, data["b"].x = torch.ones(6, 2), torch.ones(4, 3)
    data["a"].y = (torch.arange(6) % 2).to(form)
    data["b", "to", "a"].edge_index = torch.tensor([[0, 3], [1, 5]])
    config = PreprocessConfig(partitions=1, chunks=1, task=task, random_split=(0.5, 0.5, 0))
    raw = read_data(data, config, tmp_path)
    assert not (raw.masks["train"] | raw.masks["val"])[6:].any() and (raw.masks["train"] | raw.masks["val"])[:6].all()


# ------------------------------------------------------------------------------------------------------ names of masks


def masked(names):
    """A graph of DGL and a Data whose masks have these names."""
    given = pieces()
    own = {name: torch.from_numpy(given[f"{split}_mask"]) for split, name in names.items()}
    plain = {"x": torch.from_numpy(given["features"]), "y": torch.from_numpy(given["labels"])}
    yield Data(edge_index=torch.from_numpy(given["edges"]), **plain, **own)
    graph = SimpleNamespace(
        ntypes=["_N"], canonical_etypes=[("_N", "_E", "_N")], ndata={}, edata={}, is_block=False,
        nodes={"_N": SimpleNamespace(data={"feat": plain["x"], "label": plain["y"], **own})},
        num_nodes=lambda kind: V,
    )  # fmt: skip
    numbered = *given["edges"], range(given["edges"].shape[1])
    graph.edges = type("Edges", (dict,), {"__call__": lambda self, form, order, etype: numbered})()
    graph.edges["_N", "_E", "_N"] = SimpleNamespace(data={})
    graph.cpu = lambda: graph
    yield graph


@pytest.mark.parametrize(
    "names",
    [
        {"train": "train_mask", "val": "valid_mask", "test": "test_mask"},
        {"train": "train_mask", "val": "validation_mask"},
        {"train": "train_idx", "val": "valid_idx", "test": "test_idx"},
        {"train": "train_idx", "val": "val_idx"},
    ],
    ids=lambda names: names["val"],
)
def test_masks_by_other_names(tmp_path, names):
    for data in masked(names):
        if names["val"].endswith("_idx"):
            fields = data if isinstance(data, Data) else data.nodes["_N"].data
            for name in names.values():
                fields[name] = fields[name].nonzero()[:, 0]
        raw = read_data(data, PreprocessConfig(partitions=1, chunks=1), tmp_path)
        for split in ("train", "val", "test"):
            expected = pieces()[f"{split}_mask"] if split in names else np.zeros(V, bool)
            assert np.array_equal(raw.masks[split], expected)
        name = names["val"]
        assert raw.name("val") == (f"data.{name}" if isinstance(data, Data) else f"data.ndata[{name!r}]")


def test_two_names_of_one_split(tmp_path):
    config = PreprocessConfig(partitions=1, chunks=1)
    (data, _) = masked({"train": "train_mask", "val": "val_mask"})
    data.valid_mask = data.val_mask.clone()
    data.val_idx = {"of": "something else"}  # which is looked at where there is no mask
    assert np.array_equal(read_data(data, config, tmp_path).masks["val"], pieces()["val_mask"])
    data.valid_mask = ~data.val_mask
    with pytest.raises(InputError, match=r"data.val_mask and data.valid_mask: are different masks of one split, val"):
        read_data(data, config, tmp_path)


def test_splits_of_ogb_and_files_of_other_names(tmp_path):
    given = pieces()
    masks = {"train": given.pop("train_mask").nonzero()[0], "valid": given.pop("val_mask"), "test": [0]}
    given.pop("test_mask")
    config = PreprocessConfig(partitions=1, chunks=1)
    raw = from_arrays(
        given["edges"], V, config, masks={**masks, "test": None}, **{k: given[k] for k in ("features", "labels")}
    )
    assert np.array_equal(raw.masks["val"], pieces()["val_mask"]) and not raw.masks["test"].any()
    source = write(tmp_path / "in", {**pieces(), "val_mask": None, "valid_mask": pieces()["val_mask"]})
    assert main(["preprocess", str(source), str(tmp_path / "a"), "--partitions", "2", "--chunks", "3"]) == 0
    artifact = hongtu.open_artifact(tmp_path / "a")
    assert np.array_equal(artifact.masks["val"], pieces()["val_mask"][artifact.original_id])


# ------------------------------------------------------------------------------------------------- graphs to predict on


def graph_without(*names):
    given = {name: array for name, array in pieces().items() if name not in names}
    fields = {"edge_index": given.pop("edges"), "x": given.pop("features"), "y": given.pop("labels", None), **given}
    return Data(**{name: torch.from_numpy(array) for name, array in fields.items() if array is not None})


MASKS = "train_mask", "val_mask", "test_mask"


@pytest.mark.parametrize(
    "without", [("labels", *MASKS), MASKS, ("train_mask", "val_mask"), ("train_mask",)], ids=lambda names: names[0]
)
@pytest.mark.parametrize("task", [None, "regression"])
def test_a_graph_to_predict_on(tmp_path, capsys, without, task):
    data = graph_without(*without)
    of_data = hongtu.preprocess_graph(data=data, artifact=tmp_path / "a", partitions=2, chunks=3, task=task)
    assert "a model predicts on this graph, and is not trained on it" in capsys.readouterr().err
    source = write(tmp_path / "in", {name: None if name in without else array for name, array in pieces().items()})
    arguments = ["--partitions", "2", "--chunks", "3"] + (["--task", task] if task else [])
    assert main(["preprocess", str(source), str(tmp_path / "b"), *arguments]) == 0
    assert "a model predicts on this graph" in capsys.readouterr().err
    for artifact in (of_data, hongtu.open_artifact(tmp_path / "b")):
        assert not artifact.masks["train"].any()
        kept = [split for split in ("val", "test") if f"{split}_mask" not in without]
        assert [split for split, mask in artifact.masks.items() if mask.any()] == kept
        assert artifact.num_classes >= 1


@pytest.mark.long
def test_predictions_without_a_train_mask(tmp_path):
    """predict, embed and evaluate give a trained model's numbers; training is refused, and says why."""
    problem = problems.awkward()
    whole = problems.prepare(problem, 2, 3)
    layers = lambda: [hongtu.nn.GCNConv(6, 5, activation="relu"), hongtu.nn.GCNConv(5, 3)]  # noqa: E731
    trained = hongtu.Trainer(whole, layers())
    trained.fit(2)
    trained.save(tmp_path / "weights.safetensors", format="safetensors")
    masks = {"test": problem.masks["test"]}
    pieces = {"features": problem.features, "edge_weight": problem.weights, "partitions": 2, "chunks": 3}
    of_test = hongtu.preprocess_graph(problem.edges, 64, tmp_path / "a", labels=problem.labels, masks=masks, **pieces)
    bare = hongtu.preprocess_graph(problem.edges, 64, tmp_path / "b", **pieces)
    for artifact in (of_test, bare):
        for options in ({}, {"device_memory": "40KiB"}, {"strategy": "paper"}):
            trainer = hongtu.Trainer(artifact, layers(), **options)
            trainer.load_weights(tmp_path / "weights.safetensors")
            torch.testing.assert_close(trainer.predict(), trained.predict(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(trainer.embed(0), trained.embed(0), rtol=1e-5, atol=1e-6)
            found = trainer.evaluate()
            assert np.isnan(found["train"]) and np.isnan(found["val"])
            if artifact is of_test:
                assert found["test"] == pytest.approx(trained.evaluate()["test"])
            refused = r"no train mask; predict, embed and evaluate work.*random_split"
            with pytest.raises(InputError, match=refused):
                trainer.train_epoch()
            with pytest.raises(InputError, match=refused):
                trainer.fit(1)
    assert main(["train", str(bare.path), "--run", str(tmp_path / "run")]) == 2 and not (tmp_path / "run").exists()
    entropy = lambda out, target: -(out.log_softmax(1) * out.softmax(1)).sum(1)  # noqa: E731
    loss = hongtu.LossTerm(entropy, mask=problem.masks["val"])  # as the message says
    assert hongtu.Trainer(bare, layers(), loss=loss).fit(1)[0].loss > 0


def test_messages_name_what_a_graph_of_dgl_has(capsys):
    """As people write it there, and a Data's fields as there."""
    for spoil, of_data, of_dgl in (
        ("x", r"data\.x: ", r"data\.ndata\['feat'\]: "),
        ("y", r"data\.y: ", r"data\.ndata\['label'\]: "),
        ("train_mask", r"data\.train_mask: ", r"data\.ndata\['train_mask'\]: "),
        ("edge_weight", r"data\.edge_weight: 3 values for", r"data\.edata\['weight'\]: 3 values for"),
        ("edge_index", r"data\.edge_index: shape \(3, ", r"data\.edges\(\): shape \(3, "),
    ):
        for data, expected in zip(masked({"train": "train_mask"}), (of_data, of_dgl), strict=True):
            fields = data if isinstance(data, Data) else hongtu.from_dgl(data)
            wrong = {"x": torch.zeros(V, 0), "edge_index": torch.zeros(3, 4)}.get(spoil, torch.zeros(3))
            setattr(fields, spoil, wrong)
            with pytest.raises(InputError, match=expected):
                hongtu.preprocess_graph(data=fields, artifact=problems.new_path(), partitions=1, chunks=1)


@pytest.mark.parametrize("form", [np.uint8, np.int8, np.int64], ids=lambda form: form.__name__)
@pytest.mark.parametrize("shape", [(V,), (1, V)])
def test_masks_of_zeros_and_ones(form, shape):
    given = pieces()
    masks = {split: given[f"{split}_mask"] for split in ("train", "val", "test")}
    as_numbers = {split: mask.astype(form).reshape(shape) for split, mask in masks.items()}
    settings = PreprocessConfig(partitions=1, chunks=1)
    rest = {"features": given["features"], "labels": given["labels"]}
    raw = from_arrays(given["edges"], V, settings, masks=as_numbers, **rest)
    assert all(np.array_equal(raw.masks[split], mask) for split, mask in masks.items())
    if shape == (V,):
        every = {"train": np.random.default_rng(0).permutation(V).astype(form), "val": None, "test": None}
        assert from_arrays(given["edges"], V, settings, masks=every, **rest).masks["train"].all()
    as_numbers["train"] = as_numbers["train"] * 2
    with pytest.raises(InputError, match=r"expected (bool|distinct)"):
        from_arrays(given["edges"], V, settings, masks=as_numbers, **rest)


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("y", torch.tensor(1), r"data\.y: int64 of shape \(\), expected one for each of \d+ vertices"),
        ("y", torch.arange(V) * 10**6, "renumber the classes from 0$"),
        (
            "train_mask",
            torch.zeros(3, V, dtype=torch.bool),
            rf"of shape \(3, {V}\), expected bool \[{V}\] or \[{V}, S\].*give its",
        ),
        ("train_mask", torch.zeros(V, 3), rf"float32 of shape \({V}, 3\), expected bool"),
        ("edge_weight", torch.ones(40, 2), r"80 values \(40, 2\) for 40 edges, .* several columns are edge_attr"),
        ("edge_index", torch.full((2, 4), -1), rf"vertex -1, expected 0 to {V - 1}; remove the edge"),
    ],
)
def test_messages_name_what_a_data_has(field, wrong, message):
    data = Data(x=torch.ones(V, 2), edge_index=torch.zeros(2, 40, dtype=torch.long), y=torch.arange(V) % 3)
    data[field] = wrong
    with pytest.raises(InputError, match=message):
        hongtu.preprocess_graph(data=data, artifact=problems.new_path(), partitions=1, chunks=1)
