"""Edge features and types: reordered through a bounded buffer, summed where edges are merged, refused where wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.files import in_memory
from hongtu.preprocess import edge_rows
from hongtu.preprocess.bucket_sort import group_by_key
from tests.neutral import contents, pieces, write

SMALL = ["--partitions", "2", "--chunks", "3"]


def beside(edges=60, width=4, seed=3):
    rng = np.random.default_rng(seed)
    return {"edge_features": rng.standard_normal((edges, width)), "edge_type": rng.integers(0, 4, edges)}


def by_end(edges, rows):
    """``{(source, destination): the rows of the edges between them, in input order}``."""
    found: dict = {}
    for source, destination, row in zip(*edges, rows, strict=True):
        found.setdefault((int(source), int(destination)), []).append(row)
    return found


def edges_of(artifact):
    """[2, E] in original numbers, in the artifact's order."""
    topology, original = artifact.topology, np.asarray(artifact.original_id)
    destination = np.repeat(original, np.diff(topology.in_edge_start))
    return np.stack([original[topology.global_sources()], destination])


@pytest.mark.parametrize("buffer", [1, 7, 1 << 22])
def test_the_command_keeps_them_whatever_the_buffer(tmp_path, monkeypatch, buffer):
    monkeypatch.setattr(edge_rows, "BUFFER", buffer)
    given = {**pieces(), **beside()}
    source = write(tmp_path / "in", given)
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 0
    artifact = hongtu.open_artifact(tmp_path / "out", verify=True)
    assert (artifact.edge_feature_width, artifact.num_edge_types) == (4, 4)
    for name in ("edge_features", "edge_type"):
        found = getattr(artifact.topology, name)
        assert isinstance(found, np.memmap)
        expected = given[name].astype(found.dtype)
        assert {k: np.array(v).tolist() for k, v in by_end(edges_of(artifact), found).items()} == {
            k: np.array(v).tolist() for k, v in by_end(given["edges"], expected).items()
        }


def test_info_shows_them(tmp_path, capsys):
    source = write(tmp_path / "in", {**pieces(), **beside()})
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 0
    capsys.readouterr()
    assert main(["info", str(tmp_path / "out")]) == 0
    assert "60 edges, 4 features, 4 types" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["edge_features"], found["edge_types"]) == (4, 4)


def test_without_them_an_artifact_is_as_before(tmp_path):
    source = write(tmp_path / "in", pieces())
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL]) == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    assert (artifact.edge_feature_width, artifact.num_edge_types) == (0, 0)
    manifest = contents(tmp_path / "out")["manifest.json"]
    assert b"edge_features" not in manifest and b"edge_type" not in manifest


@pytest.mark.parametrize("self_loops", [False, True])
def test_undirected_sums_what_it_merges(tmp_path, self_loops):
    given, rows = pieces(num_edges=90), beside(90)["edge_features"].astype(np.float32)
    given["edges"][:, :20] = given["edges"][:, 40:60]  # repeated edges
    given["edges"][:, 5] = 7  # a loop, which is its own reverse
    flags = ["--undirected", *(["--self-loops"] if self_loops else [])]
    source = write(tmp_path / "in", {**given, "edge_features": rows})
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL, *flags]) == 0
    artifact = hongtu.open_artifact(tmp_path / "out", verify=True)
    both = np.concatenate([given["edges"], given["edges"][::-1]], axis=1)
    expected = {k: np.sum(v, axis=0) for k, v in by_end(both, np.concatenate([rows, rows])).items()}
    if self_loops:
        for v in range(24):
            expected.setdefault((v, v), np.ones(4))
    found = by_end(edges_of(artifact), artifact.topology.edge_features)
    assert found.keys() == expected.keys()
    for ends, sums in expected.items():
        assert len(found[ends]) == 1
        np.testing.assert_allclose(found[ends][0], sums, rtol=1e-5, atol=1e-6)


def test_more_edges_than_int32_counts_get_wider_numbers():
    source, destination = pieces()["edges"]
    wide = group_by_key([(destination, np.arange(60))], 24, in_memory, "int64")[1]
    narrow = edge_rows.sort_origins(source, destination, 24)
    assert (wide.dtype, narrow.dtype) == (np.int64, np.int32) and np.array_equal(wide, narrow)


ALTERED = np.full((60, 2), 1.0, np.float32)
REFUSED = {
    "length": ({"edge_features": np.ones((59, 2))}, [], ["edge_features.npy: float64 of shape (59, 2)", "[60, F]"]),
    "rank": ({"edge_features": np.ones(60)}, [], ["edge_features.npy: float64 of shape (60,)", "a row for each edge"]),
    "no columns": ({"edge_features": np.ones((60, 0))}, [], ["F > 0"]),
    "dtype": ({"edge_features": np.ones((60, 2), int)}, [], ["edge_features.npy: int64", "astype(numpy.float32)"]),
    "nan": ({"edge_features": np.where(np.arange(60)[:, None] == 4, np.nan, ALTERED)}, [], ["[4, 0] is nan"]),
    "inf": ({"edge_features": np.where(np.arange(60)[:, None] == 4, np.inf, ALTERED)}, [], ["[4, 0] is inf"]),
    "overflow": (
        {"edge_features": np.full((60, 1), 3e38, np.float32), "edges": np.zeros((2, 60), int)},
        ["--undirected"],
        ["edge_features: the sum over duplicate edges overflows float32"],
    ),
    "type length": ({"edge_type": np.zeros(61, int)}, [], ["edge_type.npy: int64 of shape (61,)", "integers [60]"]),
    "type rank": ({"edge_type": np.zeros((60, 1), int)}, [], ["edge_type.npy: int64 of shape (60, 1)"]),
    "type dtype": ({"edge_type": np.zeros(60)}, [], ["edge_type.npy: float64", "integers [60]"]),
    "type negative": ({"edge_type": np.full(60, -1)}, [], ["edge_type.npy: [0] is -1", "from 0"]),
    "stray type": ({"edge_type": np.full(60, 2**40)}, [], ["[0] is 1099511627776", "0 to 1023"]),
    "types undirected": ({"edge_type": np.zeros(60, int)}, ["--undirected"], ["edges without a type", "leave it out"]),
    "types and loops": ({"edge_type": np.zeros(60, int)}, ["--self-loops"], ["--self-loops would add edges"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path, capsys):
    new, flags, expected = REFUSED[name]
    source = write(tmp_path / "in", {**pieces(), **new})
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL, *flags]) == 2
    message = capsys.readouterr().err.strip()
    assert len(message.splitlines()) == 1 and all(part in message for part in expected), message
    assert not (tmp_path / "out").exists()


def test_a_type_beyond_the_manifest_is_refused(tmp_path):
    given = pieces()
    masks = {split: given[f"{split}_mask"] for split in ("train", "val", "test")}
    artifact = hongtu.preprocess_graph(
        given["edges"], 24, tmp_path / "out", features=given["features"], labels=given["labels"], masks=masks,
        edge_type=np.zeros(60, np.uint8), partitions=2, chunks=3,
    )  # fmt: skip
    assert artifact.num_edge_types == 1
    changed = np.load(tmp_path / "out" / "edge_type.npy")
    changed[3] = 9
    np.save(tmp_path / "out" / "edge_type.npy", changed)
    with pytest.raises(InputError, match=r"edge_type.npy: holds 9, expected 0 to 0"):
        hongtu.open_artifact(tmp_path / "out").check_bounds()
