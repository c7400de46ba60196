"""A short run of the fuzzers, and manifests and array headers made up by hypothesis.

``python -m tests.faults`` runs the fuzzers for longer.
"""

from __future__ import annotations

import io
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.files import open_npy
from hongtu.graph import format as form
from hongtu.pyg import NeighborLoader
from tests.faults.artifacts import crossed_index, fuzz_artifacts, make_artifacts
from tests.faults.fuzz import fuzz_reader
from tests.faults.readers import READERS
from tests.neutral import contents


@pytest.mark.most(16)
@pytest.mark.parametrize("name", READERS)
def test_damaged_inputs_are_read_as_what_they_are_or_refused(name):
    outcome = fuzz_reader(name, 150)
    assert outcome.tries == 150 and not outcome.losses


@pytest.mark.parametrize("name, number", [
    ("edges.parquet", 650), ("edges.parquet", 1264), ("edges.parquet", 6632),  # columns of different lengths
    ("edges.arrow", 121),  # a column's name is no text
    ("edges.feather", 4892),  # no batches
    ("Planetoid's allx", 2978),  # rows of a matrix that ends before it began
    ("labels.npy", 3000431),  # complex numbers
    ("features.npy", 2000761),  # NaN that signals
    ("edges.csv", 3000235),  # a line of nothing but an empty text
    ("edges.csv with --relabel", 3000184),  # a tab before a number
    ("edges.arrow", 2000700),  # a column of another good name
    ("Planetoid's ally", 2000465),  # the state of an array of version 108
    ("Planetoid's ally", 2000191),  # an array of 1.5 numbers before it is filled
    ("OGB's train.csv", 5169),  # another kind of white space
])  # fmt: skip
def test_what_was_lost_once(name, number):
    assert not fuzz_reader(name, 1, number).losses


@pytest.mark.long
def test_damaged_artifacts_are_refused_or_equal_to_their_source():
    outcome = fuzz_artifacts(150)
    assert outcome.tries == 150 and not outcome.losses


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make_artifacts(tmp_path_factory.mktemp("artifacts"))[0]


def test_crossed_indices_are_refused_before_anything_runs_on_them(artifact, tmp_path):
    """Also without --verify, where sizes and hashes are right."""
    refused = 0
    for number in range(60):
        path = tmp_path / str(number)
        path.mkdir()
        for name, content in contents(artifact).items():
            (path / name).write_bytes(content)
        what = crossed_index(path, [], np.random.default_rng(number))
        try:
            found = hongtu.open_artifact(path)
            found.check_bounds()
        except InputError as error:
            assert what.partition("[")[0] in str(error) or "expected" in str(error)
            refused += 1
            continue
        array = np.load(path / f"{what.partition('[')[0]}.npy")
        assert what.startswith(("original_id", "schedule_paper", "sources")), what  # in bounds, though wrong
        assert array.min() >= 0 and array.max() < 24
        with pytest.raises(InputError):
            found.verify()
    assert refused > 30


def trainer(path):
    hongtu.Trainer(path, [hongtu.nn.GCNConv(4, 3)])


def batches(path):
    NeighborLoader(hongtu.open_artifact(path), [2])


def propagation(path):
    hongtu.Propagation(path, 3)


@pytest.mark.parametrize("use", [trainer, batches, propagation, "info", "plan", "train"])
def test_an_index_out_of_bounds_is_refused_before_anything_is_planned(use, artifact, tmp_path, capsys):
    """Though sizes and hashes are right."""
    for name, content in contents(artifact).items():
        (tmp_path / name).write_bytes(content)
    sources = np.load(tmp_path / "sources.npy")
    sources[3] = 10**6
    np.save(tmp_path / "sources.npy", sources)
    manifest = json.loads((tmp_path / "manifest.json").read_text()) | {"hash": ""}
    manifest["arrays"]["sources"]["hash"] = form.file_hash(tmp_path / "sources.npy")
    manifest["hash"] = form.text_hash(form.manifest_text(manifest))
    (tmp_path / "manifest.json").write_bytes(form.manifest_text(manifest))
    words = "sources.npy: holds 1000000, expected 0 to 23"
    if callable(use):
        with pytest.raises(InputError, match=words):
            use(tmp_path)
    else:
        assert main([*use.split(), str(tmp_path)]) == 2 and words in capsys.readouterr().err


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ("format", "version", "hash", "vertices", "edges", "partitions", "chunks", "feature_width", "classes", "arrays")


@pytest.mark.long
@given(key=st.sampled_from(KEYS), inner=st.sampled_from(("dtype", "shape", "bytes", "hash", None)), value=json_values)
def test_any_manifest_opens_or_is_refused(artifact, tmp_path_factory, key, inner, value):
    path = tmp_path_factory.mktemp("artifact")
    for name, content in contents(artifact).items():
        (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    if inner is None or key != "arrays":
        manifest[key] = value
    else:
        manifest["arrays"]["sources"][inner] = value
    (path / "manifest.json").write_text(json.dumps(manifest))
    try:
        found = hongtu.open_artifact(path)
    except InputError:
        return
    assert found.num_vertices == 24 and len(found.topology.sources) == found.topology.source_start[-1]
    if manifest != json.loads((artifact / "manifest.json").read_text()):
        with pytest.raises(InputError):
            found.verify()


@pytest.mark.parametrize(("path", "value"), [
    ("settings", []), ("settings", None), ("volume", {}), ("volume.paper", 3), ("volume.paper.v_ru", "x"),
    ("alpha", "x"), ("volume.input.v_ori", 10**400), ("statistics", [1]), ("statistics.balance", 7),
    ("statistics.balance.train", None),
    ("statistics.edge_cut", {}), ("statistics.train", float("nan")), ("hash", 5), ("classes", 10**8), ("task", []),
])  # fmt: skip
def test_values_of_other_types_in_a_manifest_are_refused(artifact, tmp_path, capsys, path, value):
    for name, content in contents(artifact).items():
        (tmp_path / name).write_bytes(content)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    *above, key = path.split(".")
    holder = manifest
    for name in above:
        holder = holder[name]
    holder[key] = value
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    for command in (["info"], ["plan", "--model", "gcn", "--hidden", "4"]):
        assert main([command[0], str(tmp_path), *command[1:]]) == 2
        out, err = capsys.readouterr()
        assert not out and err.count("\n") == 1 and "manifest.json: " in err and path.partition(".")[0] in err


headers = st.fixed_dictionaries(
    {
        "descr": st.sampled_from(
            ("<i4", "<i8", ">i4", "|O", "|b1", "<U3", "|V8", "<f8", "bad", [("a", "<i4")], 3, None)
        ),
        "fortran_order": st.booleans() | st.integers(),
        "shape": st.lists(st.integers(-2, 2**65) | st.integers(0, 4), max_size=3).map(tuple) | st.integers(),
    }
)


@given(header=headers, version=st.sampled_from(((1, 0), (2, 0), (3, 0), (9, 9))), data=st.binary(max_size=64))
def test_any_header_gives_an_array_that_is_all_there_or_is_refused(tmp_path_factory, header, version, data):
    file = tmp_path_factory.mktemp("npy") / "x.npy"
    text = repr(header).encode() + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    file.write_bytes(b"\x93NUMPY" + bytes(version) + size + text + data)
    try:
        found = open_npy(file, "remedy")
    except InputError as error:
        assert "remedy" in str(error)
        return
    assert not found.dtype.hasobject and found.nbytes <= len(data)
    assert found.sum() is not None if found.dtype.kind in "if" else True
    expected = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    assert found.shape == expected.shape and found.tobytes() == expected.tobytes()
