"""Everything that DESIGN refuses: exit code 2, one line that says what, where and the remedy, and nothing written."""

from __future__ import annotations

import numpy as np
import pytest

from hongtu.cli.main import main
from hongtu.graph.artifact import open_artifact
from tests.neutral import pieces, write

SMALL = ["--partitions", "2", "--chunks", "3"]


def changed(name, position, value):
    """The valid pieces with one element changed."""
    arrays = pieces()
    arrays[name] = arrays[name].copy()
    arrays[name][position] = value
    return arrays


def replaced(**new):
    return {**pieces(), **new}


MULTI = np.zeros((24, 3), dtype=np.float32)


def multi(position, value):
    labels = MULTI.copy()
    labels[position] = value
    return labels


def overlapping():
    arrays = pieces()
    arrays["test_mask"] = arrays["test_mask"] | (np.arange(24) == 6)
    return arrays


# name -> (pieces, meta, extra arguments, what the message must contain)
REFUSED = {
    "id too large": (
        changed("edges", (0, 5), 24),
        None,
        [],
        ["edges.npy: [0, 5] is vertex 24, expected 0 to 23", "features.npy has 24 rows", "remove the edge"],
    ),
    "id negative": (changed("edges", (1, 7), -2), None, [], ["edges.npy: [1, 7] is vertex -2, expected 0 to 23"]),
    "id beyond meta": (
        changed("edges", (1, 7), 23),
        {"nodes": 23},
        [],
        ["expected 0 to 22", "meta.json says 23 nodes"],
    ),
    "ids from 1": (
        replaced(edges=np.array([[1, 24, 3], [2, 1, 24]])),
        None,
        [],
        ["vertex 24, expected 0 to 23", "the ids start at 1"],
    ),
    "a structured array": (
        replaced(features=np.zeros(24, dtype=[("a", "f4"), ("b", "f4")])),
        None,
        [],
        ["structured_to_unstructured"],
    ),
    "edges rank": (
        replaced(edges=np.zeros(4, int)),
        None,
        [],
        ["edges.npy: int64 of shape (4,), expected int32 or int64 [2, E]", "numpy.stack([source, destination])"],
    ),
    "edges with weights": (replaced(edges=np.zeros((9, 3))), None, [], ["(9, 3)", "edge_weight=table[:, 2]"]),
    "edges transposed": (replaced(edges=np.zeros((9, 2), int)), None, [], ["shape (9, 2)", "transpose it"]),
    "edges dtype": (
        replaced(edges=np.zeros((2, 9))),
        None,
        [],
        ["edges.npy: float64", "int32 or int64", "save them as numpy.int64"],
    ),
    "edges unsigned": (
        replaced(edges=np.zeros((2, 9), np.uint64)),
        None,
        [],
        ["edges.npy: uint64 of shape (2, 9)", "save them as numpy.int64"],
    ),
    "edges missing": (replaced(edges=None), None, [], ["edges.npy: missing", "int32 or int64 [2, E]"]),
    "features length": (
        replaced(features=np.zeros((9, 2), np.float32)),
        {"nodes": 24},
        [],
        ["features.npy: float32 of shape (9, 2), expected float32 [24, F]", "meta.json says 24 nodes"],
    ),
    "features rank": (replaced(features=np.zeros(24, np.float32)), None, [], ["features.npy", "(24,)"]),
    "features width": (
        replaced(features=np.zeros((24, 0), np.float32)),
        None,
        [],
        ["features.npy", "F > 0", "--features random:F"],
    ),
    "features dtype": (
        replaced(features=np.zeros((24, 2), complex)),
        None,
        [],
        ["features.npy: complex128", "astype(numpy.float32)"],
    ),
    "features nan": (
        changed("features", (3, 4), np.nan),
        None,
        [],
        ["features.npy: [3, 4] is nan, expected a finite float32", "nan_to_num"],
    ),
    "features inf": (changed("features", (23, 0), np.inf), None, [], ["features.npy: [23, 0] is inf"]),
    "features beyond float32": (replaced(features=np.full((24, 2), 1e300)), None, [], ["[0, 0] is 1e+300"]),
    "features missing": (
        replaced(features=None),
        None,
        [],
        ["features.npy: missing", "--features random:F (or degree)"],
    ),
    "labels too small": (
        changed("labels", 4, -2),
        None,
        [],
        ["labels.npy: [4] is -2, expected -1 (none) or a class from 0"],
    ),
    "labels beyond meta": (
        changed("labels", 4, 3),
        {"classes": 3},
        [],
        ["labels.npy: [4] is 3", "0 to 2", "meta.json says 3 classes", "renumber the classes"],
    ),
    "stray label": (
        changed("labels", 4, 2**30),
        None,
        [],
        ["labels.npy: [4] is 1073741824", "a class from 0 to 1023", "24 vertices", 'meta.json as "classes"'],
    ),
    "first class too many": (changed("labels", 4, 1024), None, [], ["labels.npy: [4] is 1024", "0 to 1023"]),
    "labels dtype": (
        replaced(labels=np.full(24, 0.5)),
        None,
        [],
        ["labels.npy: float64 of shape (24,)", "integers [24]", "--labels random:C"],
    ),
    "labels length": (
        replaced(labels=np.zeros(23, int)),
        None,
        [],
        ["labels.npy: int64 of shape (23,), expected integers [24]"],
    ),
    "labels one-hot": (
        replaced(labels=np.eye(3, dtype=int)[np.arange(24) % 3]),
        None,
        [],
        ["labels.npy: int64 of shape (24, 3)", "float32 [24, C]", "pass labels.argmax(1)"],
    ),
    "labels in words as numbers": (
        replaced(labels=np.full(24, "a")),
        None,
        ["--task", "regression"],
        ["labels.npy: <U1 of shape (24,), expected float32 [24] or [24, C]", "or leave --task out"],
    ),
    "several masks of a split": (
        {**pieces(), "valid_mask": ~pieces()["val_mask"]},
        None,
        [],
        ["val_mask.npy and", "valid_mask.npy: are different masks of one split, val; remove one"],
    ),
    "labels missing": (replaced(labels=None), None, [], ["labels.npy: missing", "--labels random:C"]),
    "multilabel range": (
        replaced(labels=multi((5, 1), 1.5)),
        None,
        [],
        ["labels.npy: [5, 1] is 1.5, expected a number from 0 to 1", "save 0 or 1 there"],
    ),
    "multilabel columns": (replaced(labels=MULTI), {"classes": 4}, [], ["3 columns, expected 4", "correct"]),
    "multilabel no columns": (replaced(labels=MULTI[:, :0]), None, [], ["0 columns, expected at least one"]),
    "numbers without a task": (
        replaced(labels=np.full(24, 0.5)),
        None,
        [],
        ["labels.npy: float64 of shape (24,)", "or --task regression for numbers"],
    ),
    "infinite numbers": (
        replaced(labels=np.where(np.arange(24) == 7, np.inf, 0.0)),
        None,
        ["--task", "regression"],
        ["labels.npy: [7, 0] is inf, expected a finite float32 number"],
    ),
    "random classes as numbers": (
        replaced(),
        None,
        ["--task", "regression", "--labels", "random:3"],
        ["labels 'random:3' are classes: leave task 'regression' out"],
    ),
    "mask dtype": (
        replaced(val_mask=np.zeros(24, np.float32)),
        None,
        [],
        ["val_mask.npy: float32 of shape (24,), expected bool [24]", "save it as numpy.bool_"],
    ),
    "mask unsigned": (
        replaced(train_mask=np.full(24, 2, np.uint8)),
        None,
        [],
        ["train_mask.npy: vertex 2 is there 24 times, expected distinct vertex numbers", "bool [24]", "--random-split"],
    ),
    "mask length": (
        replaced(test_mask=np.zeros(9, bool)),
        None,
        [],
        ["test_mask.npy: bool of shape (9,)", "save one value for each vertex"],
    ),
    "mask empty": (
        replaced(train_mask=np.zeros(24, bool)),
        None,
        [],
        ["train_mask.npy: no vertex is True", "empty train mask", "--random-split"],
    ),
    "masks overlap": (
        overlapping(),
        None,
        [],
        ["train_mask.npy and", "test_mask.npy: overlapping masks: vertex 6 and 0 more"],
    ),
    "mask without label": (
        changed("labels", 4, -1),
        None,
        [],
        ["val_mask.npy: contains vertex 4", "whose label is -1"],
    ),
    "labels of two signs": (
        replaced(labels=np.where(np.arange(24) % 2, 1, -1)),
        None,
        [],
        ["whose label is -1", "or pass (labels + 1) // 2 where -1 and 1 are two classes"],
    ),
    "mask without multilabel": (
        replaced(labels=multi(5, np.nan)),
        None,
        [],
        ["test_mask.npy: contains vertex 5", "all nan"],
    ),
    "split too large": (
        replaced(train_mask=np.ones((2, 24), bool)),
        None,
        ["--split", "2"],
        ["train_mask.npy: 2 splits, but --split is 2"],
    ),
    "no split": (replaced(train_mask=np.ones((0, 24), bool)), None, [], ["train_mask.npy: bool of shape (0, 24)"]),
    "split of one": (pieces(), None, ["--split", "1"], ["one split only, but --split is 1"]),
    "zero vertices": (
        replaced(features=np.zeros((0, 3), np.float32)),
        None,
        [],
        ["features.npy has 0 rows", "0 vertices, expected at least one"],
    ),
    "zero vertices in meta": (pieces(), {"nodes": 0}, [], ["meta.json says 0 nodes"]),
    "too many vertices": (pieces(), {"nodes": 2**31}, [], ["2147483648 vertices, expected fewer"]),
    "more chunks than vertices": (
        pieces(),
        None,
        ["--chunks", "13"],
        ["2 partitions x 13 chunks = 26: more chunks than vertices (24)", "--chunks 12"],
    ),
    "more partitions than vertices": (
        pieces(),
        None,
        ["--partitions", "25", "--chunks", "1"],
        ["more chunks than vertices", "--partitions 24"],
    ),
    "weights length": (
        replaced(edge_weight=np.ones(3, np.float32)),
        None,
        [],
        ["edge_weight.npy: float32 of shape (3,), expected float32 [60]", "save one weight for each edge"],
    ),
    "weights dtype": (
        replaced(edge_weight=np.ones(60, int)),
        None,
        [],
        ["edge_weight.npy: int64", "save one weight for each edge with .astype(numpy.float32)"],
    ),
    "weights nan": (replaced(edge_weight=np.full(60, np.nan, np.float32)), None, [], ["edge_weight.npy: [0] is nan"]),
    "meta nodes": (pieces(), {"nodes": "many"}, [], ["meta.json: nodes is 'many'"]),
    "meta classes": (pieces(), {"classes": 0}, [], ["meta.json: classes is 0"]),
    "meta list": (pieces(), [1], [], ["meta.json: holds a list"]),
    "embedding": (pieces(), None, ["--features", "embedding:x"], ["embedding:D"]),
    "bad spec": (pieces(), None, ["--labels", "random:0"], ["labels: 'random:0'"]),
    "huge spec": (pieces(), None, ["--features", "random:2147483648"], ["features: 'random:2147483648'"]),
    "bad fractions": (pieces(), None, ["--random-split", "0.9,0.9,0"], ["random_split", "0.6,0.2,0.2"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_the_command(case, tmp_path, capsys):
    arrays, meta, arguments, expected = REFUSED[case]
    source = write(tmp_path / "in", arrays, meta)
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("hongtu: ")
    for part in expected:
        assert part in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_directory_with_train_vertices_alone(tmp_path, capsys):
    given = pieces()
    source = write(tmp_path / "in", given | {"val_mask": None, "test_mask": None}, None)
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 0
    assert f"note: {source}: no val_mask.npy and no test_mask.npy: no vertex is scored" in capsys.readouterr().err
    artifact = open_artifact(tmp_path / "out")
    assert np.array_equal(artifact.masks["train"], given["train_mask"][artifact.original_id])
    assert not artifact.masks["val"].any() and not artifact.masks["test"].any()


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("edges.npy", "nonsense", "edges.npy: not a readable .npy"),
        ("labels.npy", "", "labels.npy: not a readable .npy"),
        ("meta.json", "{", "meta.json: not valid JSON"),
        ("features.npz", "nonsense", "both features.npy and features.npz"),
    ],
)
def test_unreadable_file(name, text, expected, tmp_path, capsys):
    write(tmp_path / "in", pieces())
    (tmp_path / "in" / name).write_text(text)
    assert main(["preprocess", str(tmp_path / "in"), str(tmp_path / "out"), *SMALL]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_truncated_file(tmp_path, capsys):
    file = write(tmp_path / "in", pieces()) / "features.npy"
    file.write_bytes(file.read_bytes()[:-8])
    assert main(["preprocess", str(tmp_path / "in"), str(tmp_path / "out"), *SMALL]) == 2
    assert "features.npy: not a readable .npy" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["features", "edges"])
def test_pickles_are_not_loaded(name, tmp_path, capsys):
    source = write(tmp_path / "in", pieces())
    np.save(source / f"{name}.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 2
    assert "not a readable .npy" in capsys.readouterr().err


def test_input_is_not_a_directory(tmp_path, capsys):
    assert main(["preprocess", str(tmp_path / "absent"), str(tmp_path / "out")]) == 2
    assert "absent: not a directory" in capsys.readouterr().err
