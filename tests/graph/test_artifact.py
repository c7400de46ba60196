"""The artifact on disk: reproducible, checked when it is opened, complete or absent."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.graph.format import ARRAYS
from hongtu.preprocess.workspace.directory import Workspace
from tests.neutral import contents, pieces, write

BESIDE = {
    "edge_weight": np.linspace(0.5, 2, 60).astype(np.float32),
    "edge_features": np.linspace(0, 1, 120).reshape(60, 2),
}


def preprocess(source, output, *arguments):
    return main(["preprocess", str(source), str(output), "--partitions", "2", "--chunks", "3", *arguments])


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "in", {**pieces(), **BESIDE})


@pytest.fixture
def artifact(source, tmp_path, capsys):
    assert preprocess(source, tmp_path / "out") == 0
    capsys.readouterr()
    return tmp_path / "out"


def test_everything_is_there_in_new_order(source, artifact):
    found, given = (
        hongtu.open_artifact(artifact, verify=True),
        {**pieces(), "edge_weight": np.load(source / "edge_weight.npy")},
    )
    original = np.asarray(found.original_id)
    assert sorted(original.tolist()) == list(range(24))
    assert np.array_equal(found.features, given["features"][original])
    assert np.array_equal(found.labels, given["labels"][original]) and found.labels.dtype == np.int64
    for split in ("train", "val", "test"):
        assert np.array_equal(found.masks[split], given[f"{split}_mask"][original])
    assert (found.num_vertices, found.num_edges, found.feature_width, found.num_classes) == (24, 60, 5, 3)
    # every in-edge list: the same sources and weights, in input order
    global_source = original[found.topology.global_sources()]
    start = np.asarray(found.topology.in_edge_start)
    for v in range(24):
        mine = given["edges"][1] == original[v]
        assert np.array_equal(global_source[start[v] : start[v + 1]], given["edges"][0][mine])
        assert np.array_equal(found.topology.edge_weight[start[v] : start[v + 1]], given["edge_weight"][mine])


def test_manifest(artifact):
    manifest = hongtu.open_artifact(artifact).manifest
    statistics = manifest["statistics"]
    assert manifest["task"] == "multiclass" and manifest["weighted"] is True
    assert manifest["settings"]["partitioner"] == "metis" and "force" not in manifest["settings"]
    assert [statistics[key] for key in ("train", "val", "test", "input_edges")] == [8, 8, 8, 60]
    edges = pieces()["edges"]
    assert statistics["self_loops"] == int((edges[0] == edges[1]).sum())
    assert statistics["duplicate_edges"] == 60 - len(np.unique(edges, axis=1).T)
    assert set(manifest["volume"]) == {"input", "paper"}
    for key in ("v_ori", "v_p2p", "v_ru"):
        assert manifest[key] == manifest["volume"]["paper"][key]
    assert manifest["alpha"] == pytest.approx(manifest["v_ori"] / 24, abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("arguments", [
    [], ["--undirected", "--self-loops"], ["--partitioner", "random", "--seed", "4"],
    ["--features", "random:3", "--labels", "random:4", "--random-split", "0.5,0.2,0.3"],
])  # fmt: skip
def test_reproducible_byte_for_byte(arguments, source, tmp_path):
    shutil.copytree(source, tmp_path / "elsewhere")
    assert preprocess(source, tmp_path / "first", *arguments) == 0
    assert preprocess(tmp_path / "elsewhere", tmp_path / "second", *arguments) == 0
    assert preprocess(source, tmp_path / "second", *arguments, "--force") == 0
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_arrays_and_directory_give_the_same_artifact(source, artifact, tmp_path):
    given = {**pieces(), **BESIDE}
    masks = {split: given.pop(f"{split}_mask") for split in ("train", "val", "test")}
    path = tmp_path / "from-arrays"
    found = hongtu.preprocess_graph(num_vertices=24, artifact=path, masks=masks, partitions=2, chunks=3, **given)
    assert found.path == path and contents(path) == contents(artifact)


def test_strings_ask_for_synthetic_pieces(tmp_path):
    found = hongtu.preprocess_graph(
        pieces()["edges"], 24, tmp_path / "out", features="random:7", labels="random:4", random_split=(0.5, 0.25, 0.25),
        partitions=1, chunks=1,
    )  # fmt: skip
    assert found.features.shape == (24, 7) and found.num_classes == 4 and found.masks["train"].sum() == 12


def test_multilabel(tmp_path):
    labels = np.random.default_rng(0).integers(0, 2, (24, 4)).astype(np.float32)
    labels[1] = np.nan
    arrays = {**pieces(), "labels": labels}
    arrays["val_mask"][1] = False
    assert preprocess(write(tmp_path / "in", arrays), tmp_path / "out") == 0
    found = hongtu.open_artifact(tmp_path / "out")
    assert found.multi_label and found.num_classes == 4 and found.manifest["task"] == "multilabel"
    assert np.array_equal(found.labels, labels[found.original_id], equal_nan=True)


@pytest.mark.parametrize("columns", [(), (1,), (2,)])
def test_regression(columns, tmp_path):
    labels = np.random.default_rng(0).normal(size=(24, *columns))
    labels[1] = np.nan
    arrays = {**pieces(), "labels": labels}
    arrays["val_mask"][1] = False
    assert preprocess(write(tmp_path / "in", arrays), tmp_path / "out", "--task", "regression") == 0
    found = hongtu.open_artifact(tmp_path / "out")
    assert found.task == "regression" and found.num_classes == max(columns, default=1)
    expected = labels.reshape(24, -1).astype(np.float32)[found.original_id]
    assert np.array_equal(found.labels, expected, equal_nan=True)


def test_the_same_again_opens_and_another_is_refused_without_force(source, artifact, capsys):
    before = contents(artifact)
    assert preprocess(source, artifact) == 0 and "there already, of the same input" in capsys.readouterr().err
    assert preprocess(source, artifact, "--seed", "3") == 2
    assert "out: already exists, made with seed 0 (now 3); choose another path" in capsys.readouterr().err
    (source / "labels.npy").touch()
    assert preprocess(source, artifact) == 2
    assert "out: already exists, made of another input; choose another path or pass --force" in capsys.readouterr().err
    (artifact / "origin.json").unlink()
    assert preprocess(source, artifact) == 2
    assert "does not say what it was made of" in capsys.readouterr().err
    assert contents(artifact) == before


def test_the_same_arrays_again_open(tmp_path):
    given = pieces()
    masks = {split: given.pop(f"{split}_mask") for split in ("train", "val", "test")}
    options = {"partitions": 2, "chunks": 3, "num_vertices": 24, "artifact": tmp_path / "out", "masks": masks}
    made = hongtu.preprocess_graph(**given, **options)
    written = (made.path / "manifest.json").stat().st_mtime_ns
    again = hongtu.preprocess_graph(
        given["edges"].tolist(), **options, **{k: v for k, v in given.items() if k != "edges"}
    )
    assert again.manifest == made.manifest and (made.path / "manifest.json").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    given["features"] = given["features"] + np.float32(1)
    with pytest.raises(InputError, match="made of another input; choose another path or pass force=True"):
        hongtu.preprocess_graph(**given, **options)
    with pytest.raises(InputError, match=r"made with chunks 3 \(now 4\)"):
        hongtu.preprocess_graph(**given, **options | {"chunks": 4})
    assert hongtu.preprocess_graph(**given, **options, force=True).manifest != made.manifest


def test_force_replaces_artifacts_only(source, artifact, capsys):
    assert preprocess(source, artifact, "--force", "--features", "degree") == 0
    assert hongtu.open_artifact(artifact).feature_width == 4
    capsys.readouterr()
    before = contents(source)
    assert preprocess(source, source, "--force") == 2
    assert "--force replaces artifacts only" in capsys.readouterr().err and contents(source) == before


def test_a_failing_force_keeps_the_old_artifact(source, artifact):
    before = contents(artifact)
    assert preprocess(source, artifact, "--force", "--chunks", "99") == 2
    assert contents(artifact) == before


def test_output_below_a_file_is_refused(source, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert preprocess(source, tmp_path / "file" / "deeper" / "out") == 2
    assert "file is not a writable directory" in capsys.readouterr().err


def test_a_killed_preprocess_leaves_nothing_that_opens(tmp_path):
    work = Workspace(tmp_path / "out", None, force=False, resume=False).__enter__()  # never committed, nor cleaned up
    work.put("original_id", np.arange(3, dtype=np.int32))
    for path in (work.artifact, tmp_path / "out"):
        with pytest.raises(InputError, match="not an artifact"):
            hongtu.open_artifact(path)


SPARSE = ("feature_start", "feature_column", "feature_value")
ABSENT = ("vertex_id", "name_start", "name_text", "edge_type", *SPARSE)  # from the artifact of these tests
ALWAYS = [name for name in ARRAYS if name not in ABSENT]


@pytest.mark.parametrize("name", ALWAYS)
def test_truncated_or_missing_array(name, artifact):
    file = artifact / f"{name}.npy"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(InputError, match=rf"{name}.npy: \d+ bytes, the manifest says \d+; .*preprocess"):
        hongtu.open_artifact(artifact)
    file.unlink()
    with pytest.raises(InputError, match=f"{name}.npy: missing"):
        hongtu.open_artifact(artifact)


@pytest.mark.parametrize("name", [*ALWAYS, "manifest"])
def test_changed_byte(name, artifact, capsys):
    file = artifact / ("manifest.json" if name == "manifest" else f"{name}.npy")
    content = bytearray(file.read_bytes())
    if name == "manifest":
        at = content.index(b'"alpha"') + len(b'"alpha": ')
        content[at] = ord("7") if content[at] != ord("7") else ord("8")
    else:
        content[-1] ^= 1
    file.write_bytes(content)
    assert main(["info", str(artifact), "--verify"]) == 2
    err = capsys.readouterr().err
    assert file.name in err and "preprocess" in err and err.count("\n") == 1


def edit(artifact, **changes):
    file = artifact / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"version": 2}, "artifact version 2, this hongtu reads version 1; run `hongtu preprocess` again"),
        ({"format": "other"}, "expected format 'hongtu-artifact'"),
        ({"vertices": -1}, "vertices is -1"),
        ({"vertices": 25}, r"original_id.npy: shape \(24,\), expected \(25,\)"),
        ({"chunks": 4}, "expected"),
        ({"arrays": {}}, "array 'original_id' is missing"),
        ({"arrays": None}, "no table of arrays"),
        ({"arrays": {"../x": {}}}, "unknown array"),
    ],
)
def test_manifest_that_does_not_fit(changes, message, artifact):
    edit(artifact, **changes)
    with pytest.raises(InputError, match=message):
        hongtu.open_artifact(artifact)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_unreadable_manifest(text, artifact):
    (artifact / "manifest.json").write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=r"manifest.json: .*preprocess"):
        hongtu.open_artifact(artifact)


def test_no_manifest(artifact, capsys):
    (artifact / "manifest.json").unlink()
    assert main(["info", str(artifact)]) == 2
    assert "not an artifact (no manifest.json)" in capsys.readouterr().err


AWKWARD = {
    "one vertex": (1, np.empty((2, 0), int), 1, 1),
    "one vertex with a loop": (1, np.zeros((2, 3), int), 1, 1),
    "no edges": (12, np.empty((2, 0), int), 3, 2),
    "as many chunks as vertices": (12, np.random.default_rng(0).integers(0, 12, (2, 40)), 4, 3),
    "as many partitions as vertices": (5, np.random.default_rng(0).integers(0, 5, (2, 9)), 5, 1),
    "a hub": (40, np.stack([np.zeros(200, int), np.arange(200) % 40]), 4, 5),
    "into a hub": (40, np.stack([np.arange(200) % 40, np.zeros(200, int)]), 4, 5),
    "isolated vertices": (40, np.random.default_rng(0).integers(0, 4, (2, 60)), 2, 4),
}


@pytest.mark.parametrize("flags", [{}, {"undirected": True, "self_loops": True}])
@pytest.mark.parametrize("case", AWKWARD)
def test_awkward_graphs(case, flags, tmp_path):
    num_vertices, edges, m, n = AWKWARD[case]
    found = hongtu.preprocess_graph(
        edges,
        num_vertices,
        tmp_path / "out",
        features="degree",
        labels="random:2",
        masks={"train": np.ones(num_vertices, dtype=bool)},
        partitions=m,
        chunks=n,
        **flags,
    )
    found.verify()
    topology = found.topology
    assert (topology.partitions, topology.chunks, found.num_vertices) == (m, n, num_vertices)
    if not flags:
        original = np.asarray(found.original_id)
        destination = np.repeat(original, np.diff(topology.in_edge_start))
        pairs = zip(original[topology.global_sources()].tolist(), destination.tolist(), strict=True)
        assert sorted(pairs) == sorted(map(tuple, edges.T.tolist()))


def test_real_graph(data_graph, tmp_path):
    found = hongtu.preprocess.entry.preprocess_directory(
        data_graph("planetoid-cora"), tmp_path / "out", hongtu.config.PreprocessConfig(normalize_features=True)
    )
    statistics = found.manifest["statistics"]
    assert (found.num_vertices, found.num_edges, found.feature_width, found.num_classes) == (2708, 10556, 1433, 7)
    assert [statistics[split] for split in ("train", "val", "test")] == [140, 500, 1000]
    assert statistics["max_in_degree"] == 168 and statistics["duplicate_edges"] == 0
    assert found.features is None and len(found.sparse_features.value) == found.manifest["sparse_numbers"]
    np.testing.assert_allclose(np.add.reduceat(found.sparse_features.value, found.sparse_features.start[:-1]), 1, 1e-5)
