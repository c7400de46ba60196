"""What the reader accepts: sparse features, inferred sizes, several splits, flags, in-memory arrays."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import scipy.sparse

import hongtu
from hongtu.cli.main import main
from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.directory import read_directory
from hongtu.preprocess.read.open import from_arrays
from tests.neutral import pieces, write

SMALL = ["--partitions", "2", "--chunks", "3"]
MULTI = np.zeros((24, 3), dtype=np.float32)


def replaced(**new):
    return {**pieces(), **new}


def sparse_input(tmp_path, matrix):
    source = write(tmp_path / "in", replaced(features=None))
    scipy.sparse.save_npz(source / "features.npz", matrix)
    return source


def test_sparse_features_become_the_same_dense_rows(tmp_path):
    dense = np.where(np.random.default_rng(1).random((24, 5)) < 0.5, pieces()["features"], 0)
    source = sparse_input(tmp_path, scipy.sparse.csr_matrix(dense))
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    assert np.array_equal(artifact.features, dense[artifact.original_id])


@pytest.mark.parametrize("kind", ["<f2", ">f4", ">f8", ">i4"])
def test_sparse_features_of_other_numbers(kind, tmp_path):
    """Which scipy reads, and computes with no half of them."""
    source = sparse_input(tmp_path, scipy.sparse.csr_matrix(np.eye(24, 5, dtype=np.float32)))
    with np.load(source / "features.npz") as parts:
        given = dict(parts) | {"data": parts["data"].astype(kind)}
    np.savez(source / "features.npz", **given)
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    assert np.array_equal(artifact.features, np.eye(24, 5)[artifact.original_id])


def test_sparse_features_are_checked(tmp_path, capsys):
    dense = np.eye(24, 5, dtype=np.float32)
    dense[3, 3] = np.nan
    source = sparse_input(tmp_path, scipy.sparse.csr_matrix(dense))
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 2
    assert "features.npz: [3, 3] is nan" in capsys.readouterr().err
    matrix = scipy.sparse.csr_matrix(np.eye(24, 5, dtype=np.float32))
    matrix.indices[0] = 77
    scipy.sparse.save_npz(source / "features.npz", matrix)
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 2
    assert "features.npz: not a readable scipy sparse matrix" in capsys.readouterr().err


def duplicated(first, second):
    """CSR [24, 5] whose entry [3, 2] is stored twice."""
    indptr = np.where(np.arange(25) > 3, 2, 0)
    return scipy.sparse.csr_matrix((np.array([first, second], np.float32), np.array([2, 2]), indptr), shape=(24, 5))


def test_duplicate_sparse_features_add_up_before_they_are_checked(tmp_path, capsys):
    source = sparse_input(tmp_path, duplicated(1.5, 2.0))
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    dense = np.zeros((24, 5), np.float32)
    dense[3, 2] = 3.5
    assert np.array_equal(artifact.features, dense[artifact.original_id])
    scipy.sparse.save_npz(source / "features.npz", duplicated(3e38, 3e38))  # each is finite, their sum is not
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL, "--force"]) == 2
    assert "features.npz: [3, 2] is inf" in capsys.readouterr().err


def test_duplicates_in_memory_leave_the_callers_matrix_alone():
    matrix = duplicated(1.5, 2.0)
    raw = from_arrays(config=PreprocessConfig(partitions=1, chunks=1), **arrays_of(features=matrix))
    assert raw.features.data.tolist() == [3.5] and matrix.data.tolist() == [1.5, 2.0]
    matrix.data = np.array([100, 100], np.int8)
    raw = from_arrays(config=PreprocessConfig(partitions=1, chunks=1), **arrays_of(features=matrix))
    assert raw.features.data.tolist() == [200] and matrix.data.tolist() == [100, 100]


@pytest.mark.parametrize(
    "remove, meta, arguments, expected",
    [
        ((), {"nodes": 30}, [], None),
        ((), None, [], 24),
        (("features",), None, ["features=random:2"], 24),
        (("features", "labels"), None, ["features=degree", "labels=random:2"], 24),
        (("features", "labels", "train_mask", "val_mask", "test_mask"), None,
         ["features=degree", "labels=random:2", "random_split=0.6,0.2,0.2"], 21),
        (("features", "labels", "train_mask", "val_mask", "test_mask"), {"nodes": 40},
         ["features=degree", "labels=random:2", "random_split=0.6,0.2,0.2"], 40),
    ],
)  # fmt: skip
def test_number_of_vertices(remove, meta, arguments, expected, tmp_path):
    arrays = pieces()
    arrays["edges"] = np.minimum(arrays["edges"], 20)
    source = write(tmp_path, {name: None if name in remove else array for name, array in arrays.items()}, meta)
    config = PreprocessConfig(partitions=1, chunks=1, **dict(argument.split("=") for argument in arguments))
    if expected is None:
        with pytest.raises(InputError, match=r"features.npy: .* expected float32 \[30, F\]"):
            read_directory(source, config)
    else:
        assert read_directory(source, config).num_vertices == expected


def test_classes(tmp_path):
    config = PreprocessConfig(partitions=1, chunks=1)
    assert read_directory(write(tmp_path / "a", pieces()), config).classes == 3
    assert read_directory(write(tmp_path / "b", pieces(), {"classes": 5}), config).classes == 5
    largest = replaced(labels=np.where(np.arange(24) == 4, 1023, 0))
    assert read_directory(write(tmp_path / "d", largest), config).classes == 1024
    beyond = replaced(labels=np.where(np.arange(24) == 4, 4999, 0))
    assert read_directory(write(tmp_path / "e", beyond, {"classes": 5000}), config).classes == 5000
    multilabel = read_directory(write(tmp_path / "c", replaced(labels=MULTI.astype(np.float64))), config)
    assert multilabel.classes == 3 and multilabel.labels.dtype == np.float32


def test_labels_in_one_column(tmp_path):
    column = replaced(labels=np.arange(24)[:, None] % 3)
    raw = read_directory(write(tmp_path, column), PreprocessConfig(partitions=1, chunks=1))
    assert raw.labels.tolist() == (np.arange(24) % 3).tolist() and raw.classes == 3


def test_several_splits(tmp_path):
    arrays = pieces()
    arrays["train_mask"] = np.stack([arrays["train_mask"], np.roll(arrays["train_mask"], 3)])
    arrays["train_mask"][1, 0] = False
    source = write(tmp_path, arrays)
    for split in (0, 1):
        raw = read_directory(source, PreprocessConfig(partitions=1, chunks=1, split=split))
        assert np.array_equal(raw.masks["train"], arrays["train_mask"][split])
        assert np.array_equal(raw.masks["val"], arrays["val_mask"])
    with pytest.raises(InputError, match=r"train_mask.npy: 2 splits; pass one, --split 0 to --split 1"):
        read_directory(source, PreprocessConfig(partitions=1, chunks=1))


def test_flags_replace_what_is_there(tmp_path):
    config = PreprocessConfig(
        partitions=1, chunks=1, labels="random:9", random_split=(0.5, 0.25, 0.25), features="degree"
    )
    raw = read_directory(write(tmp_path, replaced(labels=np.full(24, -7)), {"classes": 3}), config)
    assert raw.features is None and raw.classes == 9 and 0 <= raw.labels.min() <= raw.labels.max() < 9
    assert [int(raw.masks[split].sum()) for split in ("train", "val", "test")] == [12, 6, 6]
    again = read_directory(tmp_path, config)
    assert np.array_equal(raw.labels, again.labels) and np.array_equal(raw.masks["val"], again.masks["val"])


def test_random_split_takes_labelled_vertices_only(tmp_path):
    arrays = pieces()
    arrays["labels"] = np.where(np.arange(24) % 2, arrays["labels"], -1)
    raw = read_directory(
        write(tmp_path, arrays), PreprocessConfig(partitions=1, chunks=1, random_split=(0.01, 0.5, 0.49))
    )
    assert [int(mask.sum()) for mask in raw.masks.values()] == [1, 5, 6]
    assert not any((mask & (arrays["labels"] < 0)).any() for mask in raw.masks.values())


def test_a_stratified_split_takes_of_every_class(tmp_path):
    classes = np.array([0] * 12 + [1] * 8 + [-1] * 4)
    source = write(tmp_path / "graph", replaced(labels=classes))
    raw = read_directory(source, PreprocessConfig(partitions=1, chunks=1, random_split="3,0.25,rest", stratify=True))
    of_class = [[int((mask & (classes == k)).sum()) for k in (0, 1, -1)] for mask in raw.masks.values()]
    assert of_class == [[3, 3, 0], [3, 2, 0], [6, 3, 0]]
    for parts in ("5,5,rest", "10,0.1,rest"):
        config = PreprocessConfig(partitions=1, chunks=1, random_split=parts, stratify=True)
        with pytest.raises(InputError, match="8 labelled vertices of class 1, expected 10; ask for fewer"):
            read_directory(source, config)
    numbers = write(tmp_path / "numbers", replaced(labels=np.ones(24)))
    config = PreprocessConfig(partitions=1, chunks=1, random_split="0.5,0.2,0.3", stratify=True, task="regression")
    with pytest.raises(InputError, match="--stratify needs one class per vertex"):
        read_directory(numbers, config)


def arrays_of(**new):
    given = replaced(**new)
    masks = {split: given.pop(f"{split}_mask") for split in ("train", "val", "test")}
    return {"num_vertices": 24, "masks": masks, **given}


def test_in_memory_refusals():
    config = PreprocessConfig(partitions=1, chunks=1)
    for new, message in (
        ({"num_vertices": 20}, "edges: .* is vertex 2[0-3], expected 0 to 19"),
        ({"num_vertices": 2.5}, "num_vertices is 2.5"),
        ({"num_vertices": 0}, "num_vertices=0: a graph of 0 vertices"),
        ({"labels": None}, "labels: missing; supply labels or pass --labels random:C"),
        ({"masks": {"train": np.ones(24, bool), "dev": None}}, "unknown key 'dev'"),
        ({"masks": {"train": [0], "val": [1], "valid": [2]}}, r"masks\['val'\] and masks\['valid'\]: are different"),
        ({"features": [[1.0], [1.0, 2.0]]}, "features: not convertible"),
        ({"features": None}, "features: missing"),
    ):
        with pytest.raises(InputError, match=message):
            from_arrays(config=config, **{**arrays_of(), **new})


def test_in_memory_forms():
    config = PreprocessConfig(partitions=1, chunks=1)
    given = arrays_of()
    given["masks"] = {"train": given["masks"]["train"].tolist()}
    raw = from_arrays(config=config, **given)
    assert raw.masks["train"].sum() == 8 and not raw.masks["val"].any() and not raw.masks["test"].any()
    raw = from_arrays(config=config, **{**given, "masks": {"train": [5, 3], "test": [0]}})
    assert np.flatnonzero(raw.masks["train"]).tolist() == [3, 5] and np.flatnonzero(raw.masks["test"]).tolist() == [0]
    raw = from_arrays(config=config, **{**given, "edges": [[], []], "features": scipy.sparse.coo_array(np.eye(24))})
    assert raw.edges.shape == (2, 0) and raw.features.format == "csr"
    blocks = scipy.sparse.csr_array((np.ones(2), ([0, 5], [1, 9])), (24, 24)).tobsr((3, 3))  # filled up with zeros
    raw = from_arrays(config=config, **{**given, "edges": blocks})
    assert raw.edges.tolist() == [[0, 5], [1, 9]] and raw.edge_weight is None


def test_preprocess_graph_refuses_unknown_options(tmp_path):
    given = arrays_of()
    with pytest.raises(InputError, match=r"no argument is named 'train_mask'; pass masks=\{'train': ...\}"):
        hongtu.preprocess_graph(given["edges"], 24, tmp_path / "out", train_mask=np.arange(24) < 9)
    with pytest.raises(InputError, match=r"num_vertices is None.*or a graph of DGL or NetworkX, is given as data="):
        hongtu.preprocess_graph(networkx.path_graph(24), artifact=tmp_path / "out")
    with pytest.raises(InputError, match="no argument is named 'chunk'; did you mean chunks"):
        hongtu.preprocess_graph(given.pop("edges"), given.pop("num_vertices"), tmp_path / "out", chunk=3, **given)
    assert not list(tmp_path.iterdir())


def test_one_hot_labels_are_said_to_be_multi_label(capsys):
    config = PreprocessConfig(partitions=1, chunks=1)
    for labels, noted in ((np.eye(3)[pieces()["labels"] % 3], True), (np.ones((24, 3)), False)):
        assert from_arrays(config=config, **arrays_of(labels=labels.astype(np.float32))).classes == 3
        assert ("labels.argmax(1) are one class per vertex" in capsys.readouterr().err) == noted


def test_masks_that_a_drawn_split_replaces_are_named(capsys, tmp_path):
    given = arrays_of()
    data = {"edge_index": given["edges"], "x": given["features"], "y": given["labels"], "train_mask": np.arange(24) < 9}
    hongtu.preprocess_graph(data=data, artifact=tmp_path / "a", random_split=(0.5, 0.5, 0))
    assert "note: data: its masks are left out for others, as was asked" in capsys.readouterr().err


def test_classes_as_tables_have_them(capsys):
    """Whole numbers with gaps, truth values; what is no class is not guessed."""
    config = PreprocessConfig(partitions=1, chunks=1, random_split=(0.5, 0.25, 0.25))
    known = pieces()["labels"].astype(np.float64)
    known[[3, 4]] = np.nan
    raw = from_arrays(config=config, **arrays_of(labels=known))
    assert np.array_equal(raw.labels, np.where(np.isnan(known), -1, known)) and raw.labels.dtype == np.int64
    assert "labels: float64, whole numbers, taken as classes (" in capsys.readouterr().err
    assert from_arrays(config=config, **arrays_of(labels=np.arange(24) > 3)).labels.tolist() == [0] * 4 + [1] * 20
    for labels in (np.full(24, np.nan), np.full(24, np.inf), np.full(24, 1e300)):
        with pytest.raises(InputError, match="labels: float64 of shape"):
            from_arrays(config=config, **arrays_of(labels=labels))


@pytest.mark.parametrize(("vertices", "grain"), [(1, (1, 1)), (3, (3, 1)), (100, (4, 25))])
def test_small_graphs_get_fewer_chunks_where_no_number_is_named(tmp_path, vertices, grain):
    given = np.zeros((2, 1), int), vertices, tmp_path / "a"
    rest = {"features": np.ones((vertices, 2), np.float32), "labels": np.zeros(vertices, int)}
    rest["masks"] = {"train": np.ones(vertices, bool)}
    artifact = hongtu.preprocess_graph(*given, **rest)
    assert (artifact.topology.partitions, artifact.topology.chunks) == grain
    with pytest.raises(InputError, match="more chunks than vertices"):
        hongtu.preprocess_graph(*given[:2], tmp_path / "b", chunks=vertices + 1, **rest)
