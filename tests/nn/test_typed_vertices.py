"""Vertices of several types, each with features of its own width: stored as given, projected by type, exact."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import hongtu
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.errors import InputError
from tests import additions, problems, staged
from tests.neutral import contents, pieces, write

WIDTHS = problems.TYPE_WIDTHS
SMALL = ["--partitions", "2", "--chunks", "3"]


def in_files(**changes):
    kind, parts = problems.typed(24)
    given = {**pieces(), "features": None, "vertex_type": kind}
    return given | {f"features_{k}": part for k, part in enumerate(parts)} | changes


def test_directory_and_arrays_give_the_same_artifact(tmp_path):
    given = in_files()
    assert main(["preprocess", str(write(tmp_path / "in", given)), str(tmp_path / "out"), *SMALL]) == 0
    artifact = hongtu.open_artifact(tmp_path / "out", verify=True)
    kind, parts = problems.typed(24)
    masks = {split: given[f"{split}_mask"] for split in ("train", "val", "test")}
    options = {"labels": given["labels"], "masks": masks, "partitions": 2, "chunks": 3}
    hongtu.preprocess_graph(
        given["edges"], 24, tmp_path / "arrays", features=parts, vertex_type=torch.from_numpy(kind), **options
    )
    assert contents(tmp_path / "arrays") == contents(tmp_path / "out")
    assert artifact.vertex_type_widths == WIDTHS and artifact.feature_width == 8
    original = np.asarray(artifact.original_id)
    for k, part in enumerate(parts):
        rows = artifact.features[np.argsort(original)][kind == k]
        assert np.array_equal(rows[:, 1 : 1 + WIDTHS[k]], part)
        assert np.all(rows[:, 0] == k) and not rows[:, 1 + WIDTHS[k] :].any()


KIND, PARTS = problems.typed(24)
REFUSED = {
    "no types": (in_files(vertex_type=None), [], ["vertex_type.npy: missing", "features_0, features_1"]),
    "no features": (in_files(features_0=None), [], ["features beside", "missing"]),
    "both": (in_files(features=np.ones((24, 2))), [], ["both features of all vertices and features_0.npy"]),
    "type beyond": (in_files(features_2=None), [], ["is 2, expected a type from 0 to 1"]),
    "type negative": (in_files(vertex_type=KIND - 1), [], ["is -1, expected a type from 0 to 2"]),
    "type dtype": (in_files(vertex_type=KIND.astype(float)), [], ["vertex_type.npy: float64", "integers [N]"]),
    "types length": (in_files(), ["nodes"], ["vertex_type.npy: 24 vertices, expected 25"]),
    "rows": (in_files(features_1=PARTS[1][:-1]), [], ["features_1.npy", "a row for each vertex of type 1"]),
    "dtype": (in_files(features_1=PARTS[1].astype(str)), [], ["features_1.npy: <U"]),
    "nan": (in_files(features_1=PARTS[1] * np.nan), [], ["features_1.npy: [0, 0] is nan"]),
    "normalised": (
        in_files(),
        ["--normalize-features"],
        ["normalize_features (--normalize-features)", "stay as they are"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path, capsys):
    given, flags, expected = REFUSED[name]
    source = write(tmp_path / "in", given, {"nodes": 25} if flags == ["nodes"] else None)
    flags = [] if flags == ["nodes"] else flags
    assert main(["preprocess", str(source), str(tmp_path / "out"), *SMALL, *flags]) == 2
    message = capsys.readouterr().err.strip()
    assert len(message.splitlines()) == 1 and all(part in message for part in expected), message
    assert not (tmp_path / "out").exists()


def test_a_manifest_whose_widths_do_not_fit_is_refused(tmp_path):
    assert main(["preprocess", str(write(tmp_path / "in", in_files())), str(tmp_path / "out"), *SMALL]) == 0
    file = tmp_path / "out" / "manifest.json"
    for wrong in ([], [3, 7, 3.0], [3, 8], "x", [10**40]):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"vertex_types": wrong}))
        with pytest.raises(InputError, match="vertex_types do not fit"):
            hongtu.open_artifact(tmp_path / "out")


def test_relations_between_typed_vertices_on_devices_with_memory_of_their_own():
    staged.check(additions.TYPED, problems.typed_vertices(), (4, 8), device=staged.simulated())


def test_the_command_line_projects_them(tmp_path, capsys):
    assert main(["preprocess", str(write(tmp_path / "in", in_files())), str(tmp_path / "out"), *SMALL]) == 0
    assert main(["train", str(tmp_path / "out"), "--model", "gcn", "--hidden", "4", "--epochs", "2"]) == 0
    with pytest.raises(ValueError, match="no types"):
        hnn.TypedLinear((), 4)


@pytest.mark.parametrize("model", ["gine", "rgcn"])
def test_models_of_the_command_line_read_what_lies_beside_edges(model, tmp_path, capsys):
    beside = {"edge_features": np.ones((60, 2)), "edge_type": np.arange(60) % 3}
    for name, given in (("with", {**pieces(), **beside}), ("without", pieces())):
        assert main(["preprocess", str(write(tmp_path / "in" / name, given)), str(tmp_path / name), *SMALL]) == 0
    assert main(["train", str(tmp_path / "with"), "--model", model, "--hidden", "4", "--epochs", "2"]) == 0
    capsys.readouterr()
    assert main(["train", str(tmp_path / "without"), "--model", model, "--hidden", "4"]) == 2
    assert f"model {model}: needs edge" in capsys.readouterr().err


def test_a_graph_without_types_has_none():
    assert problems.prepare(problems.edge_data(), 1, 1).vertex_type_widths == ()


@pytest.mark.parametrize(
    "layer", [hnn.GCNConv(8, 3), hnn.SAGEConv(-1, 3), torch.nn.Linear(8, 3)], ids=["layer", "lazy", "linear"]
)
def test_a_layer_that_would_map_the_types_is_refused(layer):
    artifact = problems.prepare(problems.typed_vertices(), 1, 1)
    with pytest.raises(InputError, match="TypedLinear"):
        hongtu.Trainer(artifact, [layer, hnn.GCNConv(3, artifact.num_classes)])
