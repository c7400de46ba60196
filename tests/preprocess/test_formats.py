"""Every format gives the artifact that the same graph gives in the neutral format; malformed files are refused."""

from __future__ import annotations

import _codecs
import gzip
import io
import os
import pickle
import tracemalloc
from collections import defaultdict
from contextlib import suppress
from datetime import date
from pathlib import Path

import networkx
import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import scipy.sparse

import hongtu
from hongtu.cli.main import main
from hongtu.preprocess.read.formats import text_lines
from tests.neutral import contents, pieces, write

SMALL = ["--partitions", "2", "--chunks", "3"]
SYNTHETIC = ["--features", "degree", "--labels", "random:3", "--random-split", "0.5,0.2,0.3"]
WEIGHT = np.linspace(-0.7, 1.9, 60)


def preprocess(source, output, *arguments):
    return main(["preprocess", str(source), str(output), *SMALL, *map(str, arguments)])


def as_text(separator, header=None, comment=None, weighted=False, ending="\n"):
    def save(file):
        rows = [[str(s), str(d), repr(float(w))] for s, d, w in zip(*pieces()["edges"].tolist(), WEIGHT, strict=True)]
        lines = [separator.join(row if weighted else row[:2]) for row in rows]
        lines = ([comment] if comment else []) + ([header] if header else []) + lines
        data = (ending.join(lines) + ("" if comment else ending)).encode()
        file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)

    return save


def table(columns=("source", "destination"), kind=np.int64, weighted=False):
    edges = pieces()["edges"].astype(kind)
    arrays = {columns[0]: edges[0], columns[1]: edges[1]} | ({"weight": WEIGHT} if weighted else {})
    return pyarrow.table(arrays)


# file name -> (how to write the graph there, whether it has weights, arguments)
EDGE_FILES = {
    "edges.txt": (as_text(" ", comment="# Nodes: 24 Edges: 60\n# FromNodeId\tToNodeId"), False, []),
    "edges.txt.gz": (as_text("\t", ending="\r\n"), False, []),
    "edges.csv": (as_text(",", header="source,target,weight", weighted=True), True, []),
    "edges.csv.gz": (as_text(" , "), False, []),
    "edges.tsv": (as_text("\t", header="a\tb\tc", weighted=True), True, ["--columns", "a,b,c"]),
    "edges.edges": (
        as_text("   ", comment="% konect", weighted=True),
        True,
        ["--columns", "source,destination,weight"],
    ),
    "edges.parquet": (lambda file: pyarrow.parquet.write_table(table(weighted=True), file, row_group_size=7), True, []),
    "edges.feather": (lambda file: pyarrow.feather.write_feather(table(kind=np.uint16), file), False, []),
    "edges.arrow": (
        lambda file: pyarrow.feather.write_feather(table(("u", "v"), np.int8), file, compression="uncompressed"),
        False,
        ["--columns", "u,v"],
    ),
    "edges.mtx": (lambda file: file.write_text(matrix_market()), True, []),
    "edges.npz": (lambda file: scipy.sparse.save_npz(file, matrix(np.ones(60))), False, []),
}


def matrix_market():
    rows = [f"{s + 1} {d + 1} {float(w)!r}" for s, d, w in zip(*pieces()["edges"].tolist(), WEIGHT, strict=True)]
    return "\n".join(["%%MatrixMarket matrix coordinate real general", "% a comment", "24 24 60", *rows, ""])


def matrix(values):
    return scipy.sparse.coo_matrix((values, tuple(pieces()["edges"])), shape=(24, 24))


@pytest.mark.parametrize("name", EDGE_FILES)
def test_edges_of_any_format_beside_neutral_pieces(name, tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "BLOCK", 100)  # several blocks, lines cut between them
    save, weighted, arguments = EDGE_FILES[name]
    weight = WEIGHT.astype(np.float32) if weighted else None
    expected = write(tmp_path / "neutral", {**pieces(), "edge_weight": weight})
    source = write(tmp_path / "in", {**pieces(), "edges": None})
    save(source / name)
    assert preprocess(expected, tmp_path / "expected") == 0
    assert preprocess(source, tmp_path / "out", *arguments) == 0
    first, second = contents(tmp_path / "expected"), contents(tmp_path / "out")
    del first["manifest.json"], second["manifest.json"]
    assert first == second


@pytest.mark.parametrize("name", EDGE_FILES)
def test_a_file_of_edges_alone(name, tmp_path):
    save, _, arguments = EDGE_FILES[name]
    save(tmp_path / name)
    assert preprocess(tmp_path / name, tmp_path / "out", *arguments, *SYNTHETIC) == 0
    assert edges_of(hongtu.open_artifact(tmp_path / "out")) == sorted(map(tuple, pieces()["edges"].T.tolist()))


def edges_of(artifact):
    original = np.asarray(artifact.original_id)
    destination = np.repeat(original, np.diff(artifact.topology.in_edge_start))
    return sorted(zip(original[artifact.topology.global_sources()].tolist(), destination.tolist(), strict=True))


def named_edges_of(artifact):
    return sorted((artifact.vertex_ids[s], artifact.vertex_ids[d]) for s, d in edges_of(artifact))


INTEGERS = np.array([[10**12, -4, 7, 7], [-4, 7, 10**12, -4]])
TEXTS = np.array([["b", "ä", "c", "c"], ["ä", "c", "b", "ä"]])


@pytest.mark.parametrize("ids", [INTEGERS, TEXTS])
@pytest.mark.parametrize("ending", [".txt", ".csv", ".parquet", ".npy"])
def test_relabel(ending, ids, tmp_path):
    if ending == ".npy":
        source = tmp_path / "in"
        source.mkdir()
        np.save(source / "edges.npy", ids)
    else:
        source = tmp_path / f"edges{ending}"
        if ending == ".parquet":
            pyarrow.parquet.write_table(pyarrow.table({"source": ids[0], "destination": ids[1]}), source)
        else:
            separator = "," if ending == ".csv" else "\t"
            source.write_text("".join(f"{s}{separator}{d}\n" for s, d in ids.T.tolist()))
    arguments = ["--partitions", 1, "--chunks", 2, *SYNTHETIC]
    assert preprocess(source, tmp_path / "out", "--relabel", *arguments) == 0
    artifact = hongtu.open_artifact(tmp_path / "out", verify=True)
    assert list(artifact.vertex_ids) == [ids[0, 0], ids[1, 0], ids[1, 1]]  # in the order of first use
    assert named_edges_of(artifact) == sorted(map(tuple, ids.T.tolist()))
    assert artifact.numbers([ids[1, 1], ids[0, 0]]).tolist() == [2, 0]


@pytest.mark.parametrize("ids", [np.array([7, 99, -4, 10**12]), np.array(["c", "z", "ä", "b"])])
def test_relabel_with_the_ids_of_rows(ids, tmp_path):
    source = tmp_path / "in"
    write(source, {
        "ids": ids, "features": np.arange(4, dtype=np.float32)[:, None], "labels": np.arange(4),
        "train_mask": np.array([1, 0, 0, 1], bool), "val_mask": np.zeros(4, bool), "test_mask": np.zeros(4, bool),
    })  # fmt: skip
    edges = INTEGERS if ids.dtype.kind == "i" else TEXTS
    (source / "edges.tsv").write_text("".join(f"{s}\t{d}\n" for s, d in edges.T.tolist()))
    assert preprocess(source, tmp_path / "out", "--relabel", "--partitions", 1, "--chunks", 1) == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    assert list(artifact.vertex_ids) == ids.tolist()
    assert artifact.labels[np.argsort(artifact.original_id)].tolist() == [0, 1, 2, 3]
    assert named_edges_of(artifact) == sorted(map(tuple, edges.T.tolist()))


def test_relabel_needs_to_know_whose_rows_they_are(tmp_path, capsys):
    source = write(tmp_path / "in", pieces())
    assert preprocess(source, tmp_path / "out", "--relabel") == 2
    assert "ids.npy: missing; with --relabel, save the id" in capsys.readouterr().err


def test_many_names_and_numbers(tmp_path):
    """Tables grow several times, and hold what they held."""
    rng = np.random.default_rng(0)
    names = np.array([f"v{'x' * (k % 13)}{k}" for k in rng.permutation(9000)])
    edges = rng.integers(0, 9000, (2, 20000))
    for ids in (names[edges], edges * 10**9):
        pyarrow.parquet.write_table(
            pyarrow.table({"source": ids[0], "destination": ids[1]}), tmp_path / "edges.parquet"
        )
        arguments = ["--relabel", "--partitions", 1, "--chunks", 1, "--force", *SYNTHETIC]
        assert preprocess(tmp_path / "edges.parquet", tmp_path / "out", *arguments) == 0
        artifact = hongtu.open_artifact(tmp_path / "out")
        flat = ids.T.ravel()
        first = np.sort(np.unique(flat, return_index=True)[1])
        assert list(artifact.vertex_ids) == flat[first].tolist()
        assert named_edges_of(artifact) == sorted(map(tuple, ids.T.tolist()))


def market(kind, *lines):
    return "\n".join([f"%%MatrixMarket matrix coordinate {kind}", *lines, ""]).encode()


def packed(**arrays):
    held = io.BytesIO()
    np.savez(held, **arrays)
    return held.getvalue()


# name -> (file name, its content, arguments, what the message must contain)
MALFORMED = {
    "one column": ("edges.txt", b"0 1\n\n# note\n5\n", [], ["edges.txt: line 4: 1 columns, expected 2"]),
    "a third column": ("edges.txt", b"0 1\n1 2 9\n", [], ["line 2: 3 columns, expected 2", "--columns"]),
    "an empty field": ("edges.csv", b"0,1\n1,\n", [], ["edges.csv: line 2: column 2 is empty"]),
    "a quote": ("edges.csv", b'0,1\n"1,5",2\n', [], ["edges.csv: line 2: a quoted field"]),
    "a name": ("edges.txt", b"0 1\n1 two\n", [], ["edges.txt: line 2: id 'two', expected an integer; pass --relabel"]),
    "a fraction": ("edges.tsv", b"0\t1\n1\t2.0\n", [], ["edges.tsv: line 2: id '2.0'"]),
    "a negative id": ("edges.txt", b"0 1\n\n-3 1\n", [], ["line 3: vertex -3, expected 0", "--relabel"]),
    "a huge id": ("edges.txt", b"0 1\n1 99999999999999999999\n", [], ["line 2: id 99999999999999999999 does not fit"]),
    "beyond int32": ("edges.txt", b"0 1\n1 2147483648\n", [], ["line 2: vertex 2147483648, expected 0", "--relabel"]),
    "a weight": ("edges.csv", b"u,v,weight\n0,1,1\n1,0,heavy\n", [], ["edges.csv: line 3: weight 'heavy'"]),
    "nan": ("edges.csv", b"u,v,weight\n0,9,1\n1,0,nan\n", [], ["edges.csv: line 3: edge_weight is nan"]),
    "no such column": ("edges.csv", b"a,b\n0,1\n", ["--columns", "a,c"], ["no column 'c', found a, b"]),
    "truncated gzip": ("edges.txt.gz", gzip.compress(b"0 1\n" * 999)[:-9], [], ["edges.txt.gz: truncated or damaged"]),
    "not gzip": ("edges.txt.gz", b"0 1\n", [], ["edges.txt.gz: truncated or damaged gzip"]),
    "not parquet": ("edges.parquet", b"0 1\n", [], ["edges.parquet: not a readable .parquet file"]),
    "not arrow": ("edges.arrow", b"0 1\n" * 9, [], ["edges.arrow: not a readable .arrow file"]),
    "not a matrix": ("edges.mtx", b"0 1\n", [], ["edges.mtx: not a readable Matrix Market file"]),
    "matrix entry": (
        "edges.mtx", b"%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 x\n", [], ["edges.mtx", "ine 3"],
    ),
    "matrix not square": (
        "edges.mtx", b"%%MatrixMarket matrix coordinate pattern general\n2 3 1\n1 2\n", [], ["2 x 3", "square"],
    ),
    "dense matrix": (
        "edges.mtx", b"%%MatrixMarket matrix array real general\n1 1\n1.0\n", [], ["a dense array, expected sparse"],
    ),
    "not npz": ("edges.npz", b"nonsense", [], ["edges.npz: not a readable scipy sparse matrix"]),
    "npz of arrays": (
        "edges.npz", packed(edge_index=np.zeros((2, 3), int), node_labels=np.arange(3)), [],
        ["pass its arrays (edge_index, node_labels) to hongtu.preprocess_graph"],
    ),
    "numbers of numpy.savetxt": ("edges.txt", b"1.000e+00 2.000e+00\n", [], ["of numpy.savetxt, fmt='%d'"]),
    "unknown": ("edges.doc", b"", [], ["edges.doc: unknown format '.doc', expected .txt, .csv", "rename it to .txt"]),
    "JSON lines": ("edges.jsonl", b"{}", [], ["'.jsonl'", "pandas.read_json(path, lines=True).to_csv('edges.csv', i"]),
    "no ending": ("edges", b"0 1\n", [], ["edges: unknown format ''", "an edge on each line, rename it to .txt"]),
    "packed otherwise": ("edges.txt.bz2", b"", [], ["unknown format '.bz2'", "unpack it first: bunzip2"]),
    "of another tool": ("edges.gml", b"", [], ["'.gml'", "preprocess_graph(data=networkx.read_gml(path), "]),
    "of METIS": ("edges.graph", b"", [], ["'.graph'", "METIS's, a vertex each: save it as a scipy matrix (.npz)"]),
    "commas at the end": (
        "edges.csv", b"0,1,\n1,2,\n", [], ["line 1: 3 columns, expected 2", "leave out ',' at the end of lines"],
    ),
    "bars at the end": ("edges.txt", b"0|1|\n1|2|\n", [], ["line 1: 3 columns", "leave out '|' at the end of lines"]),
    "one comma at the end": ("edges.csv", b"0,1\n1,2,,\n", [], ["line 2: 4 columns", "leave out ',' at the end"]),
    "columns of a matrix": ("edges.npz", b"", ["--columns", "a,b"], ["--columns is for edge lists and tables"]),
    "columns of no line": (
        "edges.csv", b"a,b\n0,1\n", ["--columns", "x,y", "--relabel"],
        ["no column 'x', found a, b", "pass --columns source,destination where no line names the columns"],
    ),
    "a column twice": ("edges.csv", b"a,b,a\n0,1,2\n", ["--columns", "a,b"], ["2 columns 'a', expected one"]),
    "two weights": ("edges.csv", b"u,v,weight,weight\n0,1,2,3\n", [], ["2 columns 'weight', expected one"]),
    "a fraction of Python's": ("edges.csv", b"u,v,weight\n0,1,1_0\n", [], ["edges.csv: line 2: weight '1_0'"]),
    "a hidden zero": ("edges.csv", b"u,v,weight\n0,1,1\x00\n", [], ["edges.csv: line 2: a zero byte"]),
    "no text": ("edges.txt", b"# \xff\na b\n\xff a\n", ["--relabel"], ["edges.txt: line 3: id", "is not UTF-8"]),
    "a name that is no text": ("edges.csv", b"u\xff,v\n0,1\n", [], ["edges.csv: line 1: 'u\ufffd v' is not UTF-8"]),
    "no edges": ("edges.txt", b"# only\n\n", [], ["edges.txt has no edges: a graph of 0 vertices"]),
    "an endless line": ("edges.txt", b"1" * (17 << 20), [], ["edges.txt: line 1: longer than 4194304 bytes"]),
    "matrix line": ("edges.mtx", market("pattern general", "3 3 1", "2 1 9"), [], ["edges.mtx: line 3: 3 columns"]),
    "matrix index": ("edges.mtx", market("pattern general", "3 3 1", "0 1"), [], ["line 3: index 0, expected 1 to 3"]),
    "matrix index beyond": ("edges.mtx", market("real general", "3 3 1", "1 4 2"), [], ["line 3: index 4, expected"]),
    "matrix fraction": ("edges.mtx", market("integer general", "3 3 1", "1 2 2.5"), [], ["line 3: 2.5, expected an"]),
    "matrix shorter": ("edges.mtx", market("real general", f"3 3 {10**15}", "1 2 2"), [], ["1 entries, expected"]),
    "matrix sizes": ("edges.mtx", market("real general", "-3 -3 1", "1 2 2"), [], ["line 2: not a readable"]),
    "matrix diagonal": (
        "edges.mtx", market("real skew-symmetric", "3 3 1", "2 2 5"), [], ["line 3: on the diagonal of a skew-symm"],
    ),
    "complex matrix": ("edges.mtx", market("complex general", "3 3 1", "2 1 5 1"), [], ["of complex entries"]),
    "columns twice": ("edges.csv", b"", ["--columns", "a,a"], ["columns: 'a,a', expected two or three names"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused(case, tmp_path, capsys):
    name, content, arguments, expected = MALFORMED[case]
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, tmp_path / name, [*SYNTHETIC, *arguments], expected, capsys)


def refused(tmp_path, source, arguments, expected, capsys):
    before = sorted(tmp_path.iterdir())
    assert preprocess(source, tmp_path / "out", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("hongtu: ")
    for part in expected:
        assert part in err, err
    assert sorted(tmp_path.iterdir()) == before


# name -> (columns of the table, arguments, what the message must contain)
TABLES = {
    "missing columns": ({"mentor": [0], "pupil": [1]}, [], ["no column 'source', found mentor, pupil", "--columns"]),
    "bytes": ({"source": [b"\xff"], "destination": [b"b"]}, ["--relabel"], ["row 0: 'source' holds an id", "UTF-8"]),
    "bytes for integers": ({"source": [b"a"], "destination": [b"b"]}, [], ["'source' is binary", "--relabel"]),
    "names": ({"source": ["a"], "destination": ["b"]}, [], ["'source' is string", "--relabel"]),
    "fractions": ({"source": [0.5], "destination": [1.0]}, [], ["'source' is double, expected integers", "int64"]),
    "fractions as names": ({"source": [0.5], "destination": [1.0]}, ["--relabel"], ["'source' is double"]),
    "dates": ({"source": [date(2020, 1, 1)], "destination": [date(2020, 1, 2)]}, ["--relabel"], ["date32", "as text"]),
    "lists": ({"source": [[0]], "destination": [[1]]}, [], ["'source' is list", "write an id in each row"]),
    "null": ({"source": [0, None], "destination": [1, 1]}, [], ["row 1: 'source' is null"]),
    "negative": ({"source": [0, 1], "destination": [1, -1]}, [], ["row 1: vertex -1, expected 0"]),
    "weights": ({"source": [0], "destination": [1], "weight": ["x"]}, [], ["'weight' is string, expected numbers"]),
}


@pytest.mark.parametrize("ending", ["parquet", "feather"])
@pytest.mark.parametrize("case", TABLES)
def test_malformed_tables_are_refused(case, ending, tmp_path, capsys):
    columns, arguments, expected = TABLES[case]
    file = tmp_path / f"edges.{ending}"
    save = pyarrow.parquet.write_table if ending == "parquet" else pyarrow.feather.write_feather
    save(pyarrow.table(columns), file)
    refused(tmp_path, file, [*SYNTHETIC, *arguments], expected, capsys)


ONE_DIMENSION = tuple(map(int, scipy.__version__.split(".")[:2])) >= (1, 15)
MATRICES = {
    "one dimension": (  # older scipy makes a row of it, or cannot read what it has written
        lambda file: scipy.sparse.save_npz(file, scipy.sparse.coo_array([1.0, 0])),
        ["of 1 dimensions"] if ONE_DIMENSION else [],
    ),
    "complex": (lambda file: scipy.sparse.save_npz(file, matrix(np.ones(60, complex))), ["complex128, expected real"]),
    "too large": (lambda file: scipy.sparse.save_npz(file, matrix(np.full(60, 1e300))), ["edge 0: edge_weight is inf"]),
    "offsets": (
        lambda file: np.savez(file, data=np.ones((1, 3)), offsets=[2**40], shape=[3, 3], format=b"dia"),
        ["offsets beyond the matrix"],
    ),
    "indices": (
        lambda file: np.savez(file, data=[1.0], row=[0], col=[-1], shape=[3, 3], format=b"coo"), ["negative axis"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MATRICES)
def test_malformed_matrices_are_refused(case, tmp_path, capsys):
    save, expected = MATRICES[case]
    save(tmp_path / "edges.npz")
    refused(tmp_path, tmp_path / "edges.npz", SYNTHETIC, ["edges.npz", *expected], capsys)


def test_columns_of_one_name_are_refused(tmp_path, capsys):
    columns = [pyarrow.array([0]), pyarrow.array([1]), pyarrow.array([2])]
    pyarrow.feather.write_feather(pyarrow.table(columns, ["source", "source", "destination"]), tmp_path / "e.feather")
    refused(tmp_path, tmp_path / "e.feather", SYNTHETIC, ["2 columns 'source', expected one"], capsys)


def test_a_graph_larger_than_the_host_is_refused(tmp_path, capsys, monkeypatch):
    """One stray id makes a small file a graph of two billion vertices."""
    monkeypatch.setattr("hongtu.preprocess.read.size.available_bytes", lambda: 8 << 30)
    (tmp_path / "edges.txt").write_text("0 2147483646\n")
    expected = ["2147483647 vertices take at least 34359738352 bytes of memory, 8589934592 are", "pass --relabel"]
    refused(tmp_path, tmp_path / "edges.txt", SYNTHETIC, expected, capsys)


# what the bytes of a file are -> the edges that must come of it, with their weights where there are some
ODD = {
    "a byte order mark before a comment": ("edges.txt", b"\xef\xbb\xbf# source target\n0 1\n", [(0, 1)]),
    "spaces before a comment": ("edges.txt", b"  # source target\n0 1\n", [(0, 1)]),
    "leading zeros": ("edges.txt", b"00000000000000000000001 -0\n", [(1, 0)]),
    "two gzip members": ("edges.csv.gz", gzip.compress(b"0,1\n1,") + gzip.compress(b"2\r\n\r\n"), [(0, 1), (1, 2)]),
    "symmetric": ("edges.mtx", market("pattern symmetric", "3 3 2", "2 1", "3 3"), [(0, 1), (1, 0), (2, 2)]),
    "skew": ("edges.mtx", market("integer skew-symmetric", "3 3 1", "2 1 1"), [(0, 1, -1.0), (1, 0, 1.0)]),
    "ones": ("edges.mtx", market("real general", "3 3 2", "2 1 1.0", "", "2 1 1"), [(1, 0), (1, 0)]),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_files_are_read_as_what_they_mean(case, tmp_path):
    name, content, expected = ODD[case]
    (tmp_path / name).write_bytes(content)
    assert weighted_edges(tmp_path / name, tmp_path) == expected


def weighted_edges(file, tmp_path, *arguments):
    assert preprocess(file, tmp_path / "out", *arguments, *SYNTHETIC, "--partitions", 1, "--chunks", 1) == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    if artifact.topology.edge_weight is None:
        return edges_of(artifact) if artifact.vertex_ids is None else named_edges_of(artifact)
    original, topology = np.asarray(artifact.original_id), artifact.topology
    ends = original[topology.global_sources()], np.repeat(original, np.diff(topology.in_edge_start))
    return sorted(zip(*(array.tolist() for array in (*ends, topology.edge_weight)), strict=True))


def test_odd_tables_are_read_as_what_they_mean(tmp_path):
    ends = [pyarrow.array([0, 1]), pyarrow.array([1, 2])]
    large = [pyarrow.array([2**63, 1], pyarrow.uint64()), pyarrow.array([1, 5], pyarrow.uint64())]
    relabelled = ["--relabel"], [("0", "1"), ("1", "2")]
    forms = {
        "dictionary": ([end.dictionary_encode() for end in ends], [], [(0, 1), (1, 2)]),
        "unsigned": (large, ["--relabel"], [("1", "5"), (str(2**63), "1")]),
    }  # fmt: skip
    of_bytes = [pyarrow.array([b"0", b"1"]), pyarrow.array([b"1", b"2"])]
    for kind in (pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary(1)):
        forms[str(kind)] = [end.cast(kind) for end in of_bytes], *relabelled
    forms["dictionary of bytes"] = [end.dictionary_encode() for end in of_bytes], *relabelled
    with suppress(AttributeError, pyarrow.ArrowNotImplementedError):  # of an older pyarrow
        forms["views"] = [end.cast(pyarrow.string()).cast(pyarrow.string_view()) for end in ends], *relabelled
    for name, (columns, arguments, expected) in forms.items():
        file = tmp_path / f"{name}.feather"
        pyarrow.feather.write_feather(pyarrow.table(columns, ["source", "destination"]), file)
        assert weighted_edges(file, tmp_path, "--force", *arguments) == expected


@pytest.mark.parametrize("where", ["edges.parquet", "in/edges.parquet", "parts"])
@pytest.mark.parametrize("kind", ["numbers", "names", "src_id"])
def test_folders_of_parts_as_spark_writes_them(where, kind, tmp_path, capsys):
    folder = tmp_path / where
    folder.mkdir(parents=True)
    columns = ("src_id", "dst_id") if kind == "src_id" else ("source", "destination")
    for k in range(12):
        ends = [[k], [k + 1]] if kind == "numbers" else [[f"v{k}".encode()], [f"v{k + 1}".encode()]]
        pyarrow.parquet.write_table(pyarrow.table(dict(zip(columns, ends))), folder / f"part-{k:05}.snappy.parquet")
    for beside in ("_SUCCESS", ".part-00000.snappy.parquet.crc"):
        (folder / beside).touch()
    source = tmp_path / where.partition("/")[0]
    arguments = [] if kind == "numbers" else ["--relabel"]
    found = weighted_edges(source, tmp_path, *arguments)
    assert found == [
        (k, k + 1) if kind == "numbers" else (f"v{k}", f"v{k + 1}") for k in sorted(range(12), key=KEY[kind])
    ]
    capsys.readouterr()
    pyarrow.parquet.write_table(pyarrow.table({columns[0]: [[0]], columns[1]: [[1]]}), folder / "part-00012.parquet")
    refused(tmp_path, source, [*SYNTHETIC, *arguments, "--force"], ["part-00012.parquet: column", "is list"], capsys)
    (folder / "part-00012.parquet").write_bytes(b"")
    refused(tmp_path, source, [*SYNTHETIC, *arguments, "--force"], ["part-00012.parquet: not a readable"], capsys)


KEY = {"numbers": int, "names": str, "src_id": str}


def test_a_folder_of_no_parts(tmp_path, capsys):
    (tmp_path / "edges.parquet").mkdir()
    refused(tmp_path, tmp_path / "edges.parquet", [], ["edges.npy: missing"], capsys)
    (tmp_path / "in").mkdir()
    (tmp_path / "edges.parquet").rename(tmp_path / "in" / "edges.parquet")
    refused(tmp_path, tmp_path / "in", [], ["edges.parquet: not a file"], capsys)


def test_odd_matrices_are_read_as_what_they_mean(tmp_path):
    dense = np.array([[0, 1, 0], [0, 0, 2], [3, 0, 0]], np.int8)
    expected = [(0, 1, 1.0), (1, 2, 2.0), (2, 0, 3.0)]
    for form in ("bsr", "csc", "dia"):
        given = scipy.sparse.csr_array(dense)
        given = given.tobsr((3, 3)) if form == "bsr" else given.asformat(form)  # one block, filled up with zeros
        scipy.sparse.save_npz(tmp_path / "edges.npz", given)
        assert weighted_edges(tmp_path / "edges.npz", tmp_path, "--force") == expected
    np.savez(tmp_path / "edges.npz", data=[True, False], row=[0, 1], col=[1, 2], shape=[3, 3], format=b"coo")
    assert weighted_edges(tmp_path / "edges.npz", tmp_path, "--force") == [(0, 1, 1.0), (1, 2, 0.0)]


@pytest.mark.parametrize("name", ["labels.npy", "edge_weight.npy", "meta.json", "ids.npy", "edges.csv"])
def test_what_is_no_file_is_refused(name, tmp_path, capsys):
    """And not taken for absent: weights behind a broken link would be lost without a word."""
    source = write(tmp_path / "in", {**pieces(), "edges": None if name == "edges.csv" else pieces()["edges"]})
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")):
        (source / name).unlink(missing_ok=True)
        make(source / name)
        refused(tmp_path, source, [], [f"{name}: not a file"], capsys)
        (source / name).rmdir() if (source / name).is_dir() else None


def test_a_matrix_of_another_size_than_the_rows_beside_it(tmp_path, capsys):
    source = write(tmp_path / "in", {**pieces(), "edges": None})
    (source / "edges.mtx").write_bytes(market("pattern general", "30 30 1", "1 2"))
    refused(tmp_path, source, [], ["edges.mtx: 30 vertices, but", "features.npy has 24 rows"], capsys)
    np.save(source / "ids.npy", np.arange(24))
    refused(tmp_path, source, ["--relabel"], ["numbers its 30 vertices already; leave --relabel out"], capsys)


@pytest.mark.parametrize("ids, edges, expected", [
    (["a\ud800", "b"], [["b"], ["b"]], "ids.npy: an id is not Unicode text"),
    (["a", "b"], [[0.5], [1.0]], "edges.npy: vertex ids of type float64, expected integers or text"),
    (["a", "b"], [[b"a"], [b"b"]], "edges.npy: vertex ids of type |S1, expected integers or text"),
    ([1, 2], [["1"], ["2"]], "edges.npy: holds text where"),
])  # fmt: skip
def test_ids_that_are_none(ids, edges, expected, tmp_path, capsys):
    source = write(tmp_path / "in", {"ids": np.array(ids), "edges": np.array(edges)})
    refused(tmp_path, source, ["--relabel", *SYNTHETIC], [expected], capsys)


@pytest.mark.parametrize("name", ["edges.txt", "edges.csv.gz", "edges.parquet"])
def test_an_edge_beyond_the_vertices_says_where_it_stands(name, tmp_path, capsys):
    EDGE_FILES[name][0](write(tmp_path / "in", {**pieces(23), "edges": None}) / name)
    at = int(np.flatnonzero((pieces()["edges"] == 23).any(axis=0))[0])
    first = {"edges.txt": f"line {at + 3}", "edges.csv.gz": f"line {at + 1}", "edges.parquet": f"row {at}"}
    expected = [f"{name}: {first.get(name, '')}", "vertex 23, expected 0 to 22", "has 23 rows"]
    arguments = ["--columns", "source,destination"] if name == "edges.parquet" else []
    refused(tmp_path, tmp_path / "in", arguments, expected, capsys)


def test_an_edge_beyond_the_ids(tmp_path, capsys):
    source = write(tmp_path / "in", {**pieces(), "edges": None, "ids": np.arange(24) * 5})
    (source / "edges.txt").write_text("0 5\n10 11\n")
    refused(tmp_path, source, ["--relabel"], ["edges.txt: line 2: vertex 11 is not among the 24 ids"], capsys)


def test_two_files_of_edges(tmp_path, capsys):
    source = write(tmp_path / "in", pieces())
    (source / "edges.csv").write_text("0,1\n")
    refused(tmp_path, source, [], ["holds both edges.csv and edges.npy; remove one"], capsys)


def ogb(folder, **changes):
    """ogbn-like folder of the small graph; a change replaces a file's text, None leaves it out."""
    given = pieces()
    files = {
        "raw/edge.csv.gz": lines(given["edges"].T),
        "raw/num-node-list.csv.gz": "24\n",
        "raw/num-edge-list.csv.gz": "60\n",
        "raw/node-feat.csv.gz": lines(given["features"]),
        "raw/node-label.csv.gz": lines(given["labels"][:, None]),
        **{
            f"split/time/{stem}.csv.gz": lines(np.flatnonzero(given[f"{split}_mask"])[:, None])
            for split, stem in (("train", "train"), ("val", "valid"), ("test", "test"))
        },
    }
    for name, content in (files | changes).items():
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(gzip.compress(content.encode()))
    return folder


def lines(rows):
    return "".join(",".join(map(repr, row)) + "\n" for row in rows.tolist())


def same_as_neutral(source, tmp_path, given=None):
    assert preprocess(write(tmp_path / "neutral", given or pieces()), tmp_path / "expected") == 0
    assert preprocess(source, tmp_path / "out") == 0
    assert contents(tmp_path / "expected") == contents(tmp_path / "out")


def test_ogb(tmp_path):
    same_as_neutral(ogb(tmp_path / "ogbn_arxiv"), tmp_path)


def test_ogb_with_edge_features(tmp_path):
    given = pieces() | {"edge_features": np.arange(120, dtype=np.float32).reshape(60, 2)}
    source = ogb(tmp_path / "ogbn_proteins_once", **{"raw/edge-feat.csv.gz": lines(given["edge_features"])})
    same_as_neutral(source, tmp_path, given)


def test_ogb_in_binary_form(tmp_path):
    given, folder = pieces(), tmp_path / "ogbn_papers"
    none = {f"raw/{stem}.csv.gz": None for stem in ("edge", "node-feat", "node-label")}
    ogb(folder, **none)
    labels = np.where(given["labels"] == 2, np.nan, given["labels"])[:, None]
    np.savez(folder / "raw" / "data.npz", edge_index=given["edges"], node_feat=given["features"])
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    assert preprocess(folder, tmp_path / "out", "--random-split", "0.6,0.2,0.2") == 0
    artifact = hongtu.open_artifact(tmp_path / "out")
    expected = np.where(given["labels"] == 2, -1, given["labels"])
    assert np.array_equal(artifact.labels, expected[artifact.original_id])
    assert edges_of(artifact) == sorted(map(tuple, given["edges"].T.tolist()))


@pytest.mark.parametrize("changes, expected", [
    ({"raw/node-feat.csv.gz": lines(pieces()["features"][:20])}, ["node-feat.csv.gz: 20 lines of 5 columns"]),
    ({"raw/node-feat.csv.gz": "1,2\n3,x\n"}, ["node-feat.csv.gz: after line 0", "'x'"]),
    ({"raw/num-node-list.csv.gz": "12\n12\n"}, ["2 graphs, expected one"]),
    ({"raw/node-feat.csv.gz": lines(pieces()["features"][[*range(24), 0]])}, ["csv.gz: 25 lines of 5"]),
    ({"raw/node-feat.csv.gz": "# x\n" + lines(pieces()["features"])}, ["node-feat.csv.gz: after line 0", "'# x'"]),
    ({"raw/node-label.csv.gz": "1.5\n" * 24}, ["node-label.csv.gz: row 0: 1.5, expected the number of a class"]),
    ({"raw/node-label.csv.gz": "inf\n" * 24}, ["node-label.csv.gz: row 0: inf"]),
    ({"raw/num-node-list.csv.gz": "-5\n"}, ["num-node-list.csv.gz: a graph of -5 vertices"]),
    ({"raw/num-node-list.csv.gz": "9999999999\n"}, ["num-node-list.csv.gz: 9999999999 vertices, expected fewer"]),
    ({"raw/num-edge-list.csv.gz": "61\n"}, ["edge.csv.gz: 60 edges, expected 61"]),
    ({"split/time/valid.csv.gz": "1,2\n"}, ["valid.csv.gz: 2 columns, expected one"]),
    ({"raw/num-node-list.csv.gz": None}, ["num-node-list.csv.gz: cannot be read"]),
    ({"split/time/valid.csv.gz": "3\n24\n"}, ["valid.csv.gz: line 2: vertex 24, expected 0 to 23"]),
    ({"split/time/test.csv.gz": None}, ["test.csv.gz: cannot be read"]),
    ({"split/other/train.csv.gz": "1\n"}, ["several splits (other, time)"]),
    ({"raw/edge.csv.gz": "0,1\n1,24\n", "raw/num-edge-list.csv.gz": None}, ["line 2: vertex 24, expected 0 to 23"]),
])  # fmt: skip
def test_malformed_ogb(changes, expected, tmp_path, capsys):
    refused(tmp_path, ogb(tmp_path / "ogbn_arxiv", **changes), [], expected, capsys)


def test_truncated_ogb(tmp_path, capsys):
    file = ogb(tmp_path / "ogbn_arxiv") / "raw" / "node-label.csv.gz"
    file.write_bytes(file.read_bytes()[:-9])
    refused(tmp_path, tmp_path / "ogbn_arxiv", [], ["node-label.csv.gz: truncated or damaged gzip"], capsys)


def test_ogb_that_stores_edges_once(tmp_path, capsys):
    source = ogb(tmp_path / "ogbn_products")
    refused(tmp_path, source, [], ["stores each undirected edge once; pass --undirected"], capsys)
    assert preprocess(source, tmp_path / "out", "--undirected") == 0


def planetoid(folder, **changes):
    """Raw files of a graph of 700 vertices: 10 train, 500 validation, test vertices 650..699 without 655."""
    rng = np.random.default_rng(0)
    count, known = 700, 650
    test = rng.permutation(np.r_[650:655, 656:700])
    features = scipy.sparse.random(count, 9, 0.3, format="csr", dtype=np.float32, random_state=1)
    labels = rng.integers(0, 4, count)
    hot = np.eye(4, dtype=np.int32)[labels]
    graph = defaultdict(list, {v: rng.integers(0, count, 3).tolist() for v in range(count)})
    files = {
        "x": features[:10], "y": hot[:10], "allx": features[:known], "ally": hot[:known],
        "tx": features[test], "ty": hot[test], "graph": graph,
    } | changes  # fmt: skip
    folder.mkdir()
    for part, value in files.items():
        (folder / f"ind.tiny.{part}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / "ind.tiny.test.index").write_text("".join(f"{v}\n" for v in test))
    return features.toarray(), labels, graph


def test_planetoid(tmp_path):
    features, labels, graph = planetoid(tmp_path / "in")
    features[655], labels[655] = 0, -1
    pairs = {pair for u, near in graph.items() for v in near for pair in ((u, v), (v, u)) if u != v}
    masks = {split: np.zeros(700, bool) for split in ("train_mask", "val_mask", "test_mask")}
    masks["train_mask"][:10], masks["val_mask"][10:510] = True, True
    masks["test_mask"][np.r_[650:655, 656:700]] = True
    given = {"edges": np.array(sorted(pairs)).T, "features": features, "labels": labels, **masks}
    same_as_neutral(tmp_path / "in", tmp_path, given)


class Harmful:
    def __reduce__(self):
        return print, ("this must not run",)


def test_planetoid_pickles_run_nothing(tmp_path, capsys):
    planetoid(tmp_path / "in", graph=Harmful())
    refused(
        tmp_path, tmp_path / "in", [], ["ind.tiny.graph: not a readable Planetoid file", "print is not allowed"], capsys
    )


class Called:
    """Pickled as a call of a function with some arguments, and perhaps a state."""

    def __init__(self, *how):
        self.how = how

    def __reduce__(self):
        return self.how


def dtype_of_objects():
    """A pickle whose last value is a scalar of a structure with an object where eight letters stand: reading it takes
    the letters for an address."""
    state = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
    kind = Called(np.dtype, ("V8", False, True), state)
    return Called(np.float64(0).__reduce__()[0], (kind, b"A" * 8))


# what a file must not be able to do: crash, call, or take much memory
FORGED = {
    "a type with objects": lambda: pickle.dumps({0: [dtype_of_objects()]}, 2),
    "a type of objects": lambda: pickle.dumps(np.array([[{}]], dtype=object), 2),
    "a type with a state": lambda: pickle.dumps(Called(np.dtype, ("i8", False, True), (3, "<", None, ("a",))), 2),
    "an array of no type": lambda: pickle.dumps(Called(np.ndarray, ((10**10,), "i1")), 2),
    "a shape beyond its bytes": lambda: pickle.dumps(np.ones((3, 3)), 2).replace(b"K\x03K\x03", b"K\x03K\x09"),
    "a call": lambda: pickle.dumps(Harmful(), 2),
    "a call that is renamed": lambda: b"\x80\x02c__builtin__\nexec\n(U\x01xtR.",
    "a name within numpy": lambda: b"\x80\x02cnumpy.f2py\nndarray\n)\x81.",
    "a state of a name": lambda: b"\x80\x02ccollections\ndefaultdict\n}U\x01aK\x01sb.",
    "one list a thousand times": lambda: pickle.dumps(dict.fromkeys(range(1000), [1] * 1000), 2),
    "a list of one list": lambda: pickle.dumps({0: [[1] * 1000] * 1000}, 2),
    "one text many times": lambda: pickle.dumps([Called(_codecs.encode, (LONG, "latin1")) for _ in range(999)], 2),
    "keys within keys": lambda: b"\x80\x02)" + b"q\x01h\x01\x86" * 60 + b"K\x01}h\x01K\x01s.",
    "a call that fills": lambda: pickle.dumps(Called(defaultdict, (list, {0: [1]})), 2),
    "another alphabet": lambda: pickle.dumps({0: [number(np.dtype("i4"), Called(_codecs.encode, (ONE, "utf-16")))]}, 2),
    "a number and more": lambda: pickle.dumps({0: [number(np.dtype("i4"), ONE.encode(), 7)]}, 2),
    "a type and more": lambda: pickle.dumps({0: [number(Called(np.dtype, ("i4", True, 9)), ONE.encode())]}, 2),
    "no end": lambda: pickle.dumps({0: [1]}, 2)[:-1],
    "another protocol": lambda: pickle.dumps({0: [1]}, 5),
}  # fmt: skip
LONG, ONE = "x" * 10_000, "\x01\x00\x00\x00"


def number(*arguments):
    return Called(np.float64(0).__reduce__()[0], arguments)


@pytest.mark.parametrize("case", FORGED)
def test_forged_pickles_are_refused_without_running_them(case, tmp_path, capsys):
    planetoid(tmp_path / "in")
    (tmp_path / "in" / "ind.tiny.graph").write_bytes(FORGED[case]())
    tracemalloc.start()
    refused(tmp_path, tmp_path / "in", [], ["ind.tiny.graph: not a readable Planetoid file"], capsys)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


CSR = scipy.sparse.csr_matrix(np.ones((10, 9), np.float32))


def broken(part, at, value):
    found = CSR.copy()
    getattr(found, part)[at] = value
    return found


@pytest.mark.parametrize("changes, expected", [
    ({"x": {}}, ["ind.tiny.x: not a readable Planetoid file (a Dictionary, expected a matrix)"]),
    ({"x": broken("indices", 3, 10**6)}, ["ind.tiny.x: not a readable Planetoid file (indices must be < 9)"]),
    ({"x": broken("indptr", 3, 10**6)}, ["ind.tiny.x: not a readable Planetoid file (ind"]),
    ({"x": bytearray(9)}, ["ind.tiny.x: not a readable Planetoid file ("]),
    ({"x": CSR[:9]}, ["ind.tiny.* have sizes that do not fit each other"]),
    ({"y": np.ones((10, 4))}, ["ind.tiny.y: not a readable Planetoid file (a row is not one 1 among zeros)"]),
    ({"graph": {0: [1.5]}}, ["ind.tiny.graph: not a readable Planetoid file (a vertex is no integer)"]),
    ({"graph": {0: "12"}}, ["ind.tiny.graph: not a readable Planetoid file (not a dictionary of neighbour lists)"]),
    ({"graph": {0: [700]}}, ["ind.tiny.graph: edge 1: vertex 700, expected 0 to 699"]),
])  # fmt: skip
def test_planetoid_files_of_other_things(changes, expected, tmp_path, capsys):
    planetoid(tmp_path / "in", **changes)
    refused(tmp_path, tmp_path / "in", [], expected, capsys)


@pytest.mark.parametrize("part, change, expected", [
    ("tx", None, ["ind.tiny.tx: missing"]),
    ("ally", b"\x80\x02}", ["ind.tiny.ally: not a readable Planetoid file"]),
    ("test.index", b"1\n2\n", ["ind.tiny.test.index: does not fit"]),
    ("test.index", b"650\n650\n", ["ind.tiny.test.index: does not fit", "different vertices of at least 650"]),
    ("test.index", b"650\n9999999999\n", ["ind.tiny.test.index: 10000000000 vertices, expected fewer"]),
    ("test.index", b"650\n9999999\n", ["ind.tiny.test.index: vertex 9999999, where the files hold rows of 652"]),
    ("test.index", b"", ["ind.tiny.test.index: does not fit"]),
    ("test.index", b"many\n", ["ind.tiny.test.index: not readable"]),
])  # fmt: skip
def test_malformed_planetoid(part, change, expected, tmp_path, capsys):
    planetoid(tmp_path / "in")
    file = tmp_path / "in" / f"ind.tiny.{part}"
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change)
    refused(tmp_path, tmp_path / "in", [], expected, capsys)


def run(data, path, **more):
    settings = {
        "labels": "random:2",
        "features": "degree",
        "random_split": (0.5, 0.2, 0.3),
        "partitions": 1,
        "chunks": 1,
    }
    return hongtu.preprocess_graph(data=data, artifact=path, **(settings | more))


def test_networkx(tmp_path):
    graph = networkx.Graph()
    graph.add_nodes_from(["z", "a", "alone"])
    graph.add_weighted_edges_from([("a", "z", 2.5), ("a", "a", 0.5)])
    artifact = run(graph, tmp_path / "named")
    assert list(artifact.vertex_ids) == ["z", "a", "alone"]
    assert named_edges_of(artifact) == [("a", "a"), ("a", "z"), ("z", "a")]
    assert sorted(artifact.topology.edge_weight.tolist()) == [0.5, 2.5, 2.5]
    numbered = run(networkx.path_graph(3, create_using=networkx.DiGraph), tmp_path / "numbered")
    assert numbered.vertex_ids is None and edges_of(numbered) == [(0, 1), (1, 2)]
    numpys = networkx.DiGraph([(np.int64(5), np.int64(3))])
    assert list(run(numpys, tmp_path / "numpys").vertex_ids) == [5, 3]
    karate = networkx.karate_club_graph()
    assert run(karate, tmp_path / "karate").num_edges == 2 * karate.number_of_edges()


def test_networkx_attributes(tmp_path, capfd):
    """Those of torch_geometric's names are its fields, both ways along an edge; others are named in one note."""
    graph = networkx.MultiGraph([(0, 1, {"edge_attr": [1.0, 2.0], "edge_type": 0, "time": 3})])
    graph.add_edge(0, 1, edge_attr=[3.0, 4.0], edge_type=1, weight=0.5)
    graph.add_edge(1, 1, edge_attr=[5.0, 6.0], edge_type=1)
    graph.add_nodes_from([(k, {"x": np.full(3, float(k)), "team": "a"}) for k in range(3)])
    networkx.set_node_attributes(graph, {0: 1, 2: 0}, "y")
    networkx.set_node_attributes(graph, {2: True}, "train_mask")
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "a", partitions=1, chunks=1)
    order = np.argsort(artifact.original_id)
    assert artifact.features[order].tolist() == [[0.0] * 3, [1.0] * 3, [2.0] * 3]
    assert artifact.labels[order].tolist() == [1, -1, 0] and artifact.masks["train"][order].tolist() == [False] * 2 + [
        True
    ]
    topology = artifact.topology
    found = zip(
        topology.edge_features.tolist(), topology.edge_type.tolist(), topology.edge_weight.tolist(), strict=True
    )
    both = [([1.0, 2.0], 0, 1.0), ([3.0, 4.0], 1, 0.5)]
    assert sorted(found) == sorted([*both, *both, ([5.0, 6.0], 1, 1.0)])
    said = [line for line in capfd.readouterr().err.splitlines() if "not read" in line]
    assert len(said) == 1 and "'team' of nodes and 'time' of edges are not read" in said[0]
    for name in ("weight", "x"):
        networkx.set_node_attributes(graph, {1: None}, name)
    with pytest.raises(hongtu.errors.InputError, match="1 of 3 nodes lack the attribute 'x'"):
        run(graph, tmp_path / "b")


@pytest.mark.parametrize("label", [[1, 0, 1], np.array([0.0, 1.0]), (True, False)])
def test_vertices_of_networkx_that_lack_several_labels_have_none(label, tmp_path):
    graph = networkx.path_graph(4)
    networkx.set_node_attributes(graph, {0: label, 1: label, 3: label}, "y")
    networkx.set_node_attributes(graph, {0: True, 1: True}, "train_mask")
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "a", partitions=1, chunks=1, features="degree")
    known = np.isfinite(np.asarray(artifact.labels, dtype=float)[np.argsort(artifact.original_id)])
    assert known.shape == (4, len(label)) and known.all(1).tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("values", "found"),
    [(("a", "b"), "is text, expected numbers"), (([1.0], [1.0, 2.0]), "has 1 and 2 numbers"), ((3.0, 4.0), None)],
)
def test_features_of_networkx_are_numbers_and_as_many_of_each(values, found, tmp_path):
    graph = networkx.path_graph(2)
    networkx.set_node_attributes(graph, dict(enumerate(values)), "x")
    options = {"partitions": 1, "chunks": 1, "labels": np.arange(2), "masks": {"train": np.ones(2, bool)}}
    if found:
        with pytest.raises(hongtu.errors.InputError, match=f"the attribute 'x' of nodes {found}"):
            hongtu.preprocess_graph(data=graph, artifact=tmp_path / "a", **options)
        return
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "a", **options)
    assert np.asarray(artifact.features)[np.argsort(artifact.original_id)].tolist() == [[3.0], [4.0]]


def test_networkx_refusals(tmp_path):
    graph = networkx.DiGraph()
    graph.add_edge(1, "1")
    with pytest.raises(hongtu.errors.InputError, match="the same name as text"):
        run(graph, tmp_path / "out")
    graph = networkx.DiGraph()
    graph.add_edge(0, 1, weight="x")
    with pytest.raises(hongtu.errors.InputError, match="an edge weight is no number"):
        run(graph, tmp_path / "out")
    for node, weight, message in (("\ud800", 1, "is not Unicode text"), (1, 10**400, "an edge weight is no number")):
        graph = networkx.DiGraph()
        graph.add_edge(0, node, weight=weight)
        with pytest.raises(hongtu.errors.InputError, match=message):
            run(graph, tmp_path / "out")
    for masks in ([1], {"x": [True]}):
        with pytest.raises(hongtu.errors.InputError, match="masks: "):
            run(networkx.path_graph(3), tmp_path / "out", masks=masks, random_split=None)
    for arguments in ({}, {"data": graph, "edges": np.zeros((2, 1), int)}):
        with pytest.raises(hongtu.errors.InputError, match="either edges and num_vertices or data"):
            hongtu.preprocess_graph(artifact=tmp_path / "out", **arguments)
    assert not list(tmp_path.iterdir())


def test_pieces_beside_data(tmp_path):
    """What is given replaces the data's own, in any form that arrays alone may have."""
    masks = {"train": [True, False, True]}
    given = {"features": [[1.0], [2.0], [3.0]], "labels": [0, 1, 0], "masks": masks, "random_split": None}
    for data in (networkx.path_graph(3), {"edge_index": [[0], [1]]}):
        artifact = run(data, tmp_path / "out", **given, force=True)
        assert artifact.num_vertices == 3 and artifact.masks["train"].sum() == 2 and not artifact.masks["val"].any()
        assert artifact.features[np.argsort(artifact.original_id)].tolist() == given["features"]


def test_numbers_without_ids(tmp_path):
    artifact = run(networkx.path_graph(3), tmp_path / "out")
    assert artifact.numbers(np.array([2, 0])).tolist() == [2, 0] and len(artifact.numbers([])) == 0
    for bad in ([3], [-1], ["a"]):
        with pytest.raises(hongtu.errors.InputError, match="expected an integer from 0 to 2"):
            artifact.numbers(bad)
    named = networkx.relabel_nodes(networkx.path_graph(3), {0: "x"})
    with pytest.raises(hongtu.errors.InputError, match="vertex 'y' is not among the artifact's 3 ids"):
        run(named, tmp_path / "named").numbers(["x", "y"])
