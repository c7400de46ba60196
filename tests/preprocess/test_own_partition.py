"""A partition that the user made: as an array, a file of numpy or of METIS, or beside the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.preprocess.partition import read_partition
from tests.neutral import pieces, write

OWN = np.random.default_rng(3).integers(0, 3, 24)


def lines(ending="\n"):
    return ending.join(map(str, OWN)) + ending


# how the user's own partition is given: (file beside or None, its content, the argument)
WAYS = {
    "an array": (None, None, OWN),
    "a list": (None, None, OWN.tolist()),
    "a tensor": (None, None, torch.from_numpy(OWN)),
    "small integers": (None, None, OWN.astype(np.uint8)),
    "an array on disk": ("part.npy", OWN.astype(np.int32), "part.npy"),
    "METIS's text": ("graph.part.3", lines(), "graph.part.3"),
    "text with returns": ("p.txt", lines("\r\n"), "p.txt"),
    "beside the graph": ("in/partition.npy", OWN, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_ones_own_partition_is_taken_as_it_is(way, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, (file, content, own) = write(tmp_path / "in", pieces()), WAYS[way]
    if isinstance(content, str):
        Path(file).write_text(content)
    elif file is not None:
        np.save(file, content)
    if isinstance(own, str) or own is None:
        command = ["preprocess", str(source), "out", "--chunks", "2", *(["--partitioner", own] if own else [])]
        assert main(command) == 0
        assert main(command) == 0 and "is there already" in capsys.readouterr().err
        artifact = hongtu.open_artifact("out")
        assert artifact.manifest["settings"]["partitioner"] == "own"
        np.save(file, (OWN + 1) % 3) if file.endswith(".npy") else Path(file).write_text(lines()[::-1].lstrip())
        assert main(command) == 2 and "made of another input" in capsys.readouterr().err
    else:
        given = pieces()
        masks = {split: given.pop(f"{split}_mask") for split in ("train", "val", "test")}
        artifact = hongtu.preprocess_graph(
            given.pop("edges"), 24, "out", partitioner=own, chunks=2, masks=masks, **given
        )
    m, n = artifact.topology.partitions, artifact.topology.chunks
    assert (m, n) == (3, 2)
    sizes = np.diff(artifact.topology.chunk_start[::n])
    found = np.empty(24, int)
    found[artifact.original_id] = np.repeat(np.arange(3), sizes)
    assert found.tolist() == OWN.tolist()


@pytest.mark.parametrize(("own", "more", "message"), [
    (OWN[:9], {}, "partitioner: 9 vertices, the graph has 24"),
    (OWN, {"partitions": 2}, r"is 2, expected 0 to 1; pass partitions=3, or leave partitions out"),
    (OWN - 1, {}, "is -1, expected a partition from 0 to 23"),
    (OWN * 100, {}, "expected a partition from 0 to 23"),
    (OWN * 1.0, {}, r"partitioner: float64 of shape \(24,\), expected integers"),
    (OWN[None], {}, r"of shape \(1, 24\), expected integers"),
    ([], {}, "expected integers"),
    ("nowhere.npy", {}, "nowhere.npy: no such file, expected integers"),
    ("METIS", {}, "expected one of auto, metis"),
    ("own", {}, "own: no such file"),
    (None, {}, "partitioner"),
])  # fmt: skip
def test_a_partition_of_something_else_is_refused(own, more, message, tmp_path):
    given = pieces()
    masks = {split: given.pop(f"{split}_mask") for split in ("train", "val", "test")}
    with pytest.raises(InputError, match=message):
        hongtu.preprocess_graph(
            given.pop("edges"), 24, tmp_path / "out", partitioner=own, chunks=2, masks=masks, **more, **given
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["0\n1\nx\n", "0 1\n", "0\n\n1\n", "", "9" * 99, "0\n1.5\n", "0\n\u0661\n"])
def test_text_that_is_no_partition_is_refused(content, tmp_path):
    (tmp_path / "graph.part.2").write_text(content, "utf-8")
    with pytest.raises(InputError, match=r"graph\.part\.2.* expected integers"):
        read_partition(tmp_path / "graph.part.2")


@pytest.mark.parametrize(
    "given", [{"part": OWN}, {"partition": OWN}, {"partitions": OWN}, {"partitions": OWN.tolist()}]
)
def test_where_a_partition_goes_is_said(given, tmp_path):
    with pytest.raises(InputError, match="pass the partition of every vertex as partitioner"):
        hongtu.preprocess_graph(np.zeros((2, 1), int), 24, tmp_path / "out", **given)


@pytest.mark.parametrize("name", ["edges", "data"])
def test_a_graph_on_disk_is_read_as_by_the_command(name, tmp_path):
    """With the partition beside it; nothing of one's own is taken with it."""
    source = write(tmp_path / "in", pieces())
    np.save(source / "partition.npy", OWN)
    given = str(source) if name == "data" else source
    artifact = hongtu.preprocess_graph(artifact=tmp_path / "out", **{name: given}, chunks=2)
    assert main(["preprocess", str(source), str(tmp_path / "other"), "--chunks", "2"]) == 0
    assert artifact.manifest == hongtu.open_artifact(tmp_path / "other").manifest
    for more in {"num_vertices": 24}, {"features": np.ones((24, 2))}, {"partitioner": OWN}:
        with pytest.raises(InputError, match="is a graph on disk, with arrays of its own; leave yours out"):
            hongtu.preprocess_graph(source, artifact=tmp_path / "third", **more)
    with pytest.raises(InputError, match="missing"):
        hongtu.preprocess_graph("missing", artifact=tmp_path / "third")
