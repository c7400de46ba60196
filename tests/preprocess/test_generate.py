from __future__ import annotations

import json

import numpy as np
import pytest

import hongtu
from hongtu.cli.generate import KINDS as CLI_KINDS
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.preprocess.generate import KINDS, generate
from tests.neutral import contents


def load(path):
    return {file.stem: np.load(file) for file in path.glob("*.npy")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vertices, edges", [(1, 0), (2, 1), (3, 3), (7, 21), (100, 0), (100, 900), (1000, 8000)])
def test_exactly_what_was_asked_for(kind, vertices, edges, tmp_path):
    found = load(generate(kind, tmp_path / "g", vertices=vertices, edges=edges, features=3, classes=4, seed=5))
    assert found["edges"].shape == (2, edges) and found["edges"].dtype == np.int32
    assert found["edges"].min(initial=0) >= 0 and found["edges"].max(initial=0) < vertices
    assert found["features"].shape == (vertices, 3) and found["features"].dtype == np.float32
    assert np.isfinite(found["features"]).all()
    assert 0 <= found["labels"].min() <= found["labels"].max() < 4
    masks = [found[f"{split}_mask"] for split in ("train", "val", "test")]
    assert (np.sum(masks, axis=0) == 1).all() and masks[0].any()
    if kind != "rmat":
        assert (found["edges"][0] != found["edges"][1]).all()
        assert len(np.unique(found["edges"], axis=1).T) == edges


@pytest.mark.parametrize("kind", KINDS)
def test_seed_decides_every_byte(kind, tmp_path):
    size = {"vertices": 200, "edges": 1500, "features": 4, "classes": 3}
    first, second, other = (
        generate(kind, tmp_path / name, **size, seed=s) for name, s in (("a", 1), ("b", 1), ("c", 2))
    )
    assert contents(first) == contents(second)
    assert not np.array_equal(load(first)["edges"], load(other)["edges"])


def homophily(graph):
    return (graph["labels"][graph["edges"][0]] == graph["labels"][graph["edges"][1]]).mean()


def test_citation_has_communities_hubs_and_informative_features(tmp_path):
    graph = load(generate("citation", tmp_path / "g", vertices=5000, edges=50_000, features=32, classes=8, seed=0))
    assert 0.4 < homophily(graph) < 0.8
    in_degree = np.bincount(graph["edges"][1], minlength=5000)
    assert in_degree.max() > 10 * in_degree.mean()
    mean = np.stack([graph["features"][graph["labels"] == c].mean(axis=0) for c in range(8)])
    nearest = np.argmin(((graph["features"][:, None] - mean) ** 2).sum(axis=2), axis=1)
    assert 0.3 < (nearest == graph["labels"]).mean() < 0.8  # the features alone do not tell


def test_rmat_is_skewed(tmp_path):
    graph = load(generate("rmat", tmp_path / "g", vertices=5000, edges=50_000, features=2, classes=8))
    in_degree = np.bincount(graph["edges"][1], minlength=5000)
    assert in_degree.max() > 20 * in_degree.mean()


def test_web_is_local(tmp_path):
    graph = load(generate("web", tmp_path / "g", vertices=20_000, edges=200_000, features=2, classes=8))
    distance = np.abs(graph["edges"][0].astype(int) - graph["edges"][1])
    assert (distance < 500).mean() > 0.5
    assert np.bincount(graph["edges"][1]).max() > 200
    assert (np.diff(graph["edges"][0]) >= 0).all()


def test_output_preprocesses(tmp_path, capsys):
    assert main(["generate", "citation", str(tmp_path / "g"), "--vertices", "600", "--edges", "4000"]) == 0
    assert main(["preprocess", str(tmp_path / "g"), str(tmp_path / "a"), "--chunks", "auto"]) == 0
    assert "600 vertices" in capsys.readouterr().out
    artifact = hongtu.open_artifact(tmp_path / "a")
    assert (artifact.feature_width, artifact.num_classes, artifact.topology.chunks) == (64, 16, 1)


@pytest.mark.parametrize(
    "kind, vertices, edges, more, message",
    [
        ("citation", 0, 0, {}, "vertices: 0"), ("citation", 4, 7, {}, "at most 6"), ("web", 4, 13, {}, "at most 12"),
        ("rmat", 4, -1, {}, "edges: -1"), ("rmat", 2**31, 1, {}, "fewer than"), ("tree", 4, 3, {}, "kind: 'tree'"),
        ("rmat", 4, 3, {"features": 0}, "features: 0"), ("rmat", 4, 3, {"classes": 1.5}, "classes: 1.5"),
        ("rmat", 4, 3, {"seed": -1}, "seed: -1"),
    ],
)  # fmt: skip
def test_refused(kind, vertices, edges, more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        generate(kind, tmp_path / "g", vertices=vertices, edges=edges, **more)
    assert not list(tmp_path.iterdir())


def test_existing_output(tmp_path):
    size = {"vertices": 9, "edges": 5}
    path = generate("rmat", tmp_path / "g", **size)
    made = (path / "edges.npy").stat().st_mtime_ns
    assert generate("rmat", path, **size) == path and (path / "edges.npy").stat().st_mtime_ns == made
    with pytest.raises(InputError, match="already exists"):
        generate("rmat", path, **size, seed=1)
    generate("web", path, **size, force=True)
    assert json.loads((path / "meta.json").read_text())["kind"] == "web"
    (path / "meta.json").write_text('{"nodes": 9}')
    with pytest.raises(InputError, match="--force replaces generated graphs only"):
        generate("rmat", path, **size, force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


def test_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("hongtu.preprocess.generate._write_features", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate("rmat", tmp_path / "g", vertices=9, edges=5)
    assert not list(tmp_path.iterdir())


def test_kinds_of_the_command():
    assert set(CLI_KINDS) == set(KINDS)
