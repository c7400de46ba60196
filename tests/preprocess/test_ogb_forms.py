"""OGB's and IGB's own files are read in blocks: every form gives the neutral format's artifact, within its memory."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

import hongtu
from experiments.papers_form import write_papers
from hongtu.cli.main import main
from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess import pipeline
from hongtu.preprocess.read.formats import zipped
from hongtu.preprocess.read.open import read_input
from hongtu.preprocess.read.size import Reading
from tests.neutral import contents, pieces, write

STEMS = {"train": "train", "val": "valid", "test": "test"}


def preprocess(source, output, *arguments):
    return main(["preprocess", str(source), str(output), "--partitions", "2", "--chunks", "3", *map(str, arguments)])


def members_of(given):
    return {split: np.flatnonzero(given[f"{split}_mask"]) for split in STEMS}


def binary(folder, given, *, save=np.savez_compressed, split=".csv.gz", **others):
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / "time").mkdir(parents=True)
    save(folder / "raw" / "data.npz", edge_index=given["edges"], node_feat=given["features"], **others)
    save(folder / "raw" / "node-label.npz", node_label=given["labels"][:, None].astype(np.float32))
    for name, numbers in members_of(given).items():
        file = folder / "split" / "time" / f"{STEMS[name]}{split}"
        if split == ".csv.gz":
            file.write_bytes(gzip.compress("".join(f"{v}\n" for v in numbers).encode()))
        elif split == ".pt":
            torch.save(torch.from_numpy(numbers), file)
        else:
            (np.savez if split == ".npz" else np.save)(file, numbers)
    return folder


def raw_of(source, tmp_path):
    scratch = tmp_path / f"scratch of {source.name}"
    scratch.mkdir()
    raw = read_input(source, PreprocessConfig(partitions=2, chunks=3), scratch)
    arrays = {name: getattr(raw, name) for name in ("edges", "features", "labels", "edge_features")}
    return {name: np.array(array).tolist() for name, array in (arrays | raw.masks).items()}


def same_as_neutral(source, given, tmp_path):
    assert raw_of(write(tmp_path / "neutral", given), tmp_path) == raw_of(source, tmp_path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("change", [
    {}, {"edges": np.asfortranarray}, {"features": np.asfortranarray}, {"edges": np.int32}, {"edges": np.uint16},
    {"features": np.float64}, {"edges": lambda edges: edges[:, :0]}, {"edges": lambda edges: edges[:, :1]},
])  # fmt: skip
def test_data_of_any_layout(save, change, tmp_path, monkeypatch):
    monkeypatch.setattr(zipped, "BLOCK", 7)  # numbers of a block: 60 edges and 24 rows are no multiple of it
    given = pieces()
    given["edges"] = change.get("edges", np.asarray)(given["edges"])
    same = given | {"edges": given["edges"].astype(np.int64)}
    source = binary(
        tmp_path / "in", given | {"features": change.get("features", np.asarray)(given["features"])}, save=save
    )
    same_as_neutral(source, same, tmp_path)


@pytest.mark.parametrize("split", [".pt", ".npz", ".npy"])
def test_split_of_any_form(split, tmp_path):
    same_as_neutral(binary(tmp_path / "in", pieces(), split=split), pieces(), tmp_path)


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray])
def test_split_in_one_dictionary(kind, tmp_path):
    given = pieces()
    source = binary(tmp_path / "in", given)
    numbers = {STEMS[split]: kind(members) for split, members in members_of(given).items()}
    torch.save(numbers, source / "split" / "time" / "split_dict.pt")
    for stem in STEMS.values():
        (source / "split" / "time" / f"{stem}.csv.gz").unlink()
    same_as_neutral(source, given, tmp_path)


def test_edge_features_counts_and_no_labels(tmp_path):
    given = pieces() | {"edge_features": np.arange(120, dtype=np.float32).reshape(60, 2)}
    counts = {"num_nodes_list": np.array([24]), "num_edges_list": np.array([60])}
    source = binary(tmp_path / "in", given, edge_feat=given["edge_features"], **counts)
    same_as_neutral(source, given, tmp_path)
    assert preprocess(tmp_path / "neutral", tmp_path / "expected") == preprocess(source, tmp_path / "out") == 0
    assert contents(tmp_path / "expected") == contents(tmp_path / "out")
    (source / "raw" / "node-label.npz").unlink()
    (source / "split").rename(tmp_path / "elsewhere")
    assert preprocess(source, tmp_path / "to predict on") == 0
    assert (hongtu.open_artifact(tmp_path / "to predict on").labels == -1).all()


def lsc(folder, given):
    """mag240m's form, where test papers have no published label."""
    (folder / "processed" / "paper___cites___paper").mkdir(parents=True)
    (folder / "processed" / "paper").mkdir()
    np.save(folder / "processed" / "paper___cites___paper" / "edge_index.npy", given["edges"])
    np.save(folder / "processed" / "paper" / "node_feat.npy", given["features"].astype(np.float16))
    labels = np.where(given["test_mask"], np.nan, given["labels"]).astype(np.float32)
    np.save(folder / "processed" / "paper" / "node_label.npy", labels)
    torch.save({STEMS[split]: members for split, members in members_of(given).items()}, folder / "split_dict.pt")
    return folder


def test_mag240m(tmp_path, capsys):
    given = pieces()
    source = lsc(tmp_path / "mag240m", given)
    hidden = given | {
        "features": given["features"].astype(np.float16).astype(np.float32),
        "labels": np.where(given["test_mask"], -1, given["labels"]), "test_mask": np.zeros(24, bool),
    }  # fmt: skip
    same_as_neutral(source, hidden, tmp_path)
    assert "8 of test have no label and are left out of it" in capsys.readouterr().err


@pytest.mark.parametrize("headed", [True, False])
def test_igb(headed, tmp_path, capsys):
    given = pieces() | {"features": np.random.default_rng(0).standard_normal((24, 1024)).astype(np.float32)}
    folder = tmp_path / "small"
    (folder / "processed" / "paper__cites__paper").mkdir(parents=True)
    (folder / "processed" / "paper").mkdir()
    np.save(folder / "processed" / "paper__cites__paper" / "edge_index.npy", given["edges"].T)
    for name, array in (("node_feat", given["features"]), ("node_label_19", given["labels"].astype(np.float32))):
        file = folder / "processed" / "paper" / f"{name}.npy"
        np.save(file, array) if headed else array.tofile(file)
    np.save(folder / "processed" / "paper" / "node_label_2K.npy", np.zeros(24))
    at = np.arange(24)
    split = {"train_mask": at < 14, "val_mask": (at >= 14) & (at < 18), "test_mask": at >= 18}
    same_as_neutral(folder, given | split, tmp_path)
    assert "move them away to take node_label_2K.npy" in capsys.readouterr().err


def damaged(file, change):
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("change", [
    lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:200] + b"\x55" * 9 + data[209:],
    lambda data: data[:900] + b"\x55" * 9 + data[909:], lambda data: data.replace(b"edge_index", b"edge_indes"),
])  # fmt: skip
def test_damaged_data(save, change, tmp_path, capsys):
    source = binary(tmp_path / "in", pieces(), save=save)
    damaged(source / "raw" / "data.npz", change)
    assert preprocess(source, tmp_path / "out") == 2
    assert "data.npz" in (error := capsys.readouterr().err) and "again" in error and error.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"], "nothing is left"


@pytest.mark.parametrize("array", [np.array([None]), np.array(["a"]), np.zeros(2, complex)])
def test_data_that_holds_no_numbers(array, tmp_path, capsys):
    source = binary(tmp_path / "in", pieces(), other=array)
    assert preprocess(source, tmp_path / "out") == 2
    assert "expected numbers" in capsys.readouterr().err


@pytest.mark.parametrize("stated", [2**40, 3, -1])
def test_header_that_lies(stated, tmp_path, capsys):
    """A header that speaks of more, or fewer, rows than the archive has is refused before room is made for them."""
    source = binary(tmp_path / "in", pieces())
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (stated, 5)}
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(source / "raw" / "data.npz", "w") as archive:
        archive.writestr("node_feat.npy", stream.getvalue() + bytes(480))
    assert preprocess(source, tmp_path / "out") == 2
    assert "node_feat.npy" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["binary", "text", "lsc"])
def test_what_it_takes_is_said_first(form, tmp_path, monkeypatch, capsys):
    from tests.preprocess.test_formats import ogb

    make = {"binary": lambda: binary(tmp_path / "in", pieces()), "text": lambda: ogb(tmp_path / "in"),
            "lsc": lambda: lsc(tmp_path / "in", pieces())}  # fmt: skip
    source, told = make[form](), []
    config = PreprocessConfig(partitions=2, chunks=3)
    read_input(source, config, tmp_path, Reading(lambda sizes: told.append(sizes), told.append))
    assert (told[0].vertices, told[0].edges, told[0].width) == (24, 60, 5)
    assert told[-1] == 1.0 and told[1:] == sorted(told[1:]), "its share grows"
    monkeypatch.setattr(pipeline, "SAID", 0)
    assert preprocess(source, tmp_path / "out") == 0
    assert "24 vertices, 60 edges, 5 features; takes up to" in capsys.readouterr().err
    assert preprocess(source, tmp_path / "other", "--memory", "1MiB") == 2
    assert "memory is 1MiB, preprocessing takes up to" in capsys.readouterr().err
    monkeypatch.setattr(pipeline.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100}))
    monkeypatch.setattr("os.posix_fallocate", None)  # it is refused before anything is written
    assert preprocess(source, tmp_path / "other") == 2
    assert "of disk, 100 B are free where the artifact is to be" in capsys.readouterr().err


def test_memory_of_a_compressed_graph(tmp_path, monkeypatch):
    """Its features take 10 MiB and its edges 5: what is allocated is some blocks of a quarter MiB."""
    monkeypatch.setattr(zipped, "BLOCK", 1 << 16)
    source = write_papers(tmp_path / "papers", 20_000, 300_000, classes=8)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    tracemalloc.start()
    try:
        raw = read_input(source, PreprocessConfig(partitions=2, chunks=3), scratch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20 < raw.features.nbytes, "as scratch is mapped, it does not count"
    assert raw.edges.shape == (2, 300_000) and int((raw.labels >= 0).sum()) == 20_000 // 70
    assert {split: int(mask.sum()) for split, mask in raw.masks.items()} == {"train": 222, "val": 22, "test": 41}


@pytest.mark.parametrize("arrays, expected", [
    ({"a": np.array([3, 24])}, "train, number 2: vertex 24, expected 0 to 23"), ({}, "train: missing"),
    ({"a": np.array([0.5])}, "float64 of shape (1,)"),
])  # fmt: skip
def test_split_that_is_none(arrays, expected, tmp_path, capsys):
    source = binary(tmp_path / "in", pieces())
    np.savez(source / "split" / "time" / "train.npz", **arrays)
    assert preprocess(source, tmp_path / "out") == 2
    assert expected in capsys.readouterr().err


def text(folder, change=None, **lines):
    """OGB's form as text, with other lines in some files."""
    given, (raw, split) = pieces(), (folder / "raw", folder / "split" / "time")
    raw.mkdir(parents=True), split.mkdir(parents=True)
    files = {
        "edge": given["edges"].T, "node-feat": given["features"], "node-label": given["labels"][:, None],
        "num-node-list": [[24]], "num-edge-list": [[60]],
    } | {STEMS[name]: numbers[:, None] for name, numbers in members_of(given).items()} | lines  # fmt: skip
    for name, rows in files.items():
        body = "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
        ((split if name in STEMS.values() else raw) / f"{name}.csv.gz").write_bytes(gzip.compress(body))
    return folder


NAN = [["nan"] * 5] * 24


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"node-feat": NAN}, "in/raw/node-feat.csv.gz: [0, 0] is nan, expected a finite"),
        (
            {"edge": [[0, 24]] * 60},
            "line 1: vertex 24, expected 0 to 23 (IN/raw/num-node-list.csv.gz says 24 vertices)",
        ),
        ({"edge": [[0, 1, 2]] * 60}, "in/raw/edge.csv.gz: line 1: 3 columns, expected 2; download the dataset again"),
        ({"node-label": [[0]] * 23}, "in/raw/node-label.csv.gz: int64 of shape (23,), expected integers [24]"),
        (
            {"node-label": [[0.5]] * 24},
            "in/raw/node-label.csv.gz: row 0: 0.5, .*--task regression for numbers",
        ),
        ({"valid": [[0]], "train": [[0]]}, "split/time/train.csv.gz and IN/split/time/valid.csv.gz: overlapping masks"),
        ({"train": []}, "in/split/time/train.csv.gz: no vertex is True"),
        ({"node-label": [["nan"]] * 24}, "in/split/time/train.csv.gz: contains vertex"),
    ],
)
def test_refusals_name_the_file_at_fault(lines, message, tmp_path, capsys):
    source = text(tmp_path / "in", **lines)
    assert preprocess(source, tmp_path / "out") == 2
    said, words = capsys.readouterr().err.replace(str(source), "IN"), message.replace("in/", "IN/", 1).split(".*")
    assert all(word in said for word in words), said


def test_numbers_to_predict_as_is_advised(tmp_path):
    source = text(tmp_path / "in", **{"node-label": [[v + 0.5] for v in range(24)]})
    assert preprocess(source, tmp_path / "out", "--task", "regression") == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    assert np.array(artifact.labels)[np.argsort(artifact.original_id)].ravel().tolist() == [v + 0.5 for v in range(24)]


@pytest.mark.parametrize("inside", ["raw", "split", "."])
def test_the_folder_of_a_dataset_is_named(inside, tmp_path, capsys):
    source = text(tmp_path / "in")
    if inside == ".":
        (source / "raw" / "edge.csv.gz").unlink()
    assert preprocess(source / inside, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "edges.npy: missing, found " in said and ("pass the one that holds raw/" in said or inside == "split")


def test_mag240m_whose_split_has_no_test(tmp_path):
    """As its newer releases, which name the papers without published labels otherwise."""
    given = pieces()
    source = lsc(tmp_path / "in", given)
    members = torch.load(source / "split_dict.pt", weights_only=False)
    members["test-whole"] = members.pop("test")
    torch.save(members, source / "split_dict.pt")
    raw = raw_of(source, tmp_path)
    for name, numbers in members_of(given).items():
        assert np.flatnonzero(raw[name]).tolist() == numbers.tolist() or name == "test"


@pytest.mark.parametrize("broken", ["words", "no features", "of another kind"])
def test_damaged_papers(broken, tmp_path, capsys):
    source = lsc(tmp_path / "in", pieces())
    paper = source / "processed" / "paper"
    if broken == "words":
        np.save(paper / "node_label.npy", np.array(["a"] * 24))
    elif broken == "no features":
        (paper / "node_feat.npy").unlink()
    else:
        (source / "split_dict.pt").unlink()
        np.save(paper / "node_feat.npy", np.load(paper / "node_feat.npy")[:20])
    assert preprocess(source, tmp_path / "out") == 2
    said = capsys.readouterr().err
    expected = {"words": "node_label.npy: <U1, expected numbers of classes", "no features": "node_feat.npy: missing"}
    assert expected.get(broken, "node_feat.npy has 20 rows") in said


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("edge_columns", [0, 3])
def test_what_the_loader_gives(labelled, edge_columns, tmp_path):
    """``NodePropPredDataset(name)[0]`` and its ``get_idx_split()``: as a ``Data`` of the same arrays."""
    rng = np.random.default_rng(0)
    edges, rows, classes = (
        rng.integers(0, 12, (2, 40)),
        rng.normal(size=(12, 4)).astype("f4"),
        np.arange(12)[:, None] % 3,
    )
    attributes = rng.normal(size=(40, edge_columns)).astype("f4") if edge_columns else None
    graph = {"edge_index": edges, "edge_feat": attributes, "node_feat": rows, "num_nodes": 12, "node_year": classes}
    data = {"edge_index": edges, "edge_attr": attributes, "x": rows, "y": classes if labelled else None}
    split = {"train": np.arange(6), "valid": np.arange(6, 9), "test": np.arange(9, 12)}
    more = {"masks": split, "partitions": 2, "chunks": 2} | ({} if labelled else {"labels": classes[:, 0]})
    made = [
        hongtu.preprocess_graph(data=given, artifact=tmp_path / name, **more)
        for name, given in (("a", (graph, classes) if labelled else graph), ("b", data))
    ]
    assert contents(made[0].path) == contents(made[1].path) and made[0].edge_feature_width == edge_columns
    with pytest.raises(InputError, match="node_feat: missing"):
        hongtu.preprocess_graph(data=(graph | {"node_feat": None}, classes), artifact=tmp_path / "c")
