"""OGB's heterogeneous datasets give the graph that a HeteroData of the same gives; damaged ones are refused."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import hongtu
from hongtu.cli.main import main
from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.open import read_data, read_input

COUNTS = {"author": 7, "field_of_study": 3, "institution": 2, "paper": 9}
RELATIONS = [
    ("author", "affiliated_with", "institution"), ("author", "writes", "paper"), ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
]  # fmt: skip


def mag():
    """As torch_geometric's OGB_MAG has it."""
    draw, data = torch.Generator().manual_seed(0), HeteroData()
    for kind, count in COUNTS.items():
        data[kind].num_nodes = count
    data["paper"].x = torch.randn(9, 4, generator=draw).round(decimals=4)
    data["paper"].y = torch.randint(3, (9,), generator=draw)
    for split, first, last in (("train", 0, 4), ("val", 4, 6), ("test", 6, 9)):
        at = torch.arange(9)
        data["paper"][f"{split}_mask"] = (at >= first) & (at < last)
    for k, (source, name, destination) in enumerate(RELATIONS):
        ends = [torch.randint(COUNTS[kind], (0 if k == 0 else 12,), generator=draw) for kind in (source, destination)]
        data[source, name, destination].edge_index = torch.stack(ends)
    return data


def lines(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress("".join(f"{','.join(map(str, row))}\n" for row in rows).encode()))


def unpacked(folder):
    """As the ogb package unpacks it."""
    data, raw = mag(), folder / "raw"
    lines(raw / "num-node-dict.csv.gz", [[*COUNTS], [*COUNTS.values()]])
    lines(raw / "triplet-type-list.csv.gz", RELATIONS[::-1])
    lines(raw / "node-feat" / "paper" / "node-feat.csv.gz", data["paper"].x.numpy().round(4).tolist())
    lines(raw / "node-label" / "paper" / "node-label.csv.gz", data["paper"].y[:, None].tolist())
    for relation in RELATIONS:
        place = raw / "relations" / "___".join(relation)
        lines(place / "edge.csv.gz", data[relation].edge_index.T.tolist())
    for split, stem in (("train", "train"), ("val", "valid"), ("test", "test")):
        members = data["paper"][f"{split}_mask"].nonzero().tolist()
        lines(folder / "split" / "time" / "paper" / f"{stem}.csv.gz", members)
    return folder


def test_it_is_the_graph_of_a_hetero_data(tmp_path):
    config = PreprocessConfig(partitions=1, chunks=2)
    scratches = [tmp_path / name for name in ("one", "other")]
    for scratch in scratches:
        scratch.mkdir()
    found = read_input(unpacked(tmp_path / "ogbn_mag"), config, scratches[0])
    expected = read_data(mag(), config, scratches[1])
    assert found.types == expected.types and found.edge_types == 4
    for name in ("edges", "edge_type", "labels"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    rows = np.arange(sum(COUNTS.values()))
    assert np.allclose(found.features[rows], expected.features[rows])
    assert all(np.array_equal(found.masks[split], mask) for split, mask in expected.masks.items())


def test_it_trains(tmp_path):
    artifact = tmp_path / "artifact"
    assert main(["preprocess", str(unpacked(tmp_path / "mag")), str(artifact), "--partitions", "2"]) == 0
    types = hongtu.open_artifact(artifact).types
    assert types.names == tuple(COUNTS) and types.widths == (0, 0, 0, 4) and types.relations == tuple(RELATIONS)


@pytest.mark.parametrize(
    "file",
    [
        "raw/relations/paper___cites___paper/edge.csv.gz",
        "raw/node-label/paper/node-label.csv.gz",
        "split/time/paper/train.csv.gz",
    ],
)
def test_another_file_is_another_input(file, tmp_path, capsys):
    folder, artifact = unpacked(tmp_path / "mag"), str(tmp_path / "artifact")
    assert main(["preprocess", str(folder), artifact, "--partitions", "2"]) == 0
    assert main(["preprocess", str(folder), artifact, "--partitions", "2"]) == 0
    lines(folder / file, [[1] * (2 if "edge" in file else 1)] * 9)
    assert main(["preprocess", str(folder), artifact, "--partitions", "2"]) == 2
    assert "already exists, made of another input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "rows", "words"),
    [
        ("raw/num-node-dict.csv.gz", [["author", "paper"]], "expected two lines, names of types"),
        ("raw/num-node-dict.csv.gz", [["author", "paper"], [7, "x"]], "expected two lines, names of types"),
        ("raw/triplet-type-list.csv.gz", [["paper", "cites", "book"]], "expected a relation between two of author"),
        ("raw/triplet-type-list.csv.gz", [["paper", "/../../x", "paper"]], "expected a relation between two of author"),
        ("raw/num-node-dict.csv.gz", [["/etc", "paper"], [7, 9]], "expected two lines, names of types"),
        ("raw/num-node-dict.csv.gz", [["..", "paper"], [7, 9]], "expected two lines, names of types"),
        ("raw/num-node-dict.csv.gz", [], "expected two lines, names of types"),
        ("raw/relations/author___writes___paper/edge.csv.gz", [[0, 9]], "vertex 9, expected 0 to 8"),
        ("raw/node-feat/paper/node-feat.csv.gz", [[1, 2]], "1 lines of 2 columns, expected 9 of 2"),
        ("split/time/paper/train.csv.gz", [[9]], "vertex 9, expected 0 to 8"),
    ],
    ids=lambda x: "" if isinstance(x, list) else None,
)
def test_damaged(file, rows, words, tmp_path):
    folder = unpacked(tmp_path / "mag")
    lines(folder / file, rows)
    with pytest.raises(InputError, match=words):
        read_input(folder, PreprocessConfig(partitions=1, chunks=1), tmp_path)


def test_a_missing_relation(tmp_path):
    folder = unpacked(tmp_path / "mag")
    (folder / "raw" / "relations" / "paper___cites___paper" / "edge.csv.gz").unlink()
    with pytest.raises(InputError, match="no such file; download the dataset again"):
        read_input(folder, PreprocessConfig(partitions=1, chunks=1), tmp_path)
