"""Folders of a table's parts, endings in upper case, and names that stand twice."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.open import read_data, read_input
from tests.preprocess.test_text import read

GIVEN = {"features": "degree", "labels": "random:2", "random_split": (0.5, 0.2, 0.3), "partitions": 1, "chunks": 1}
ENDS = {"src": [0, 1], "dst": [1, 0]}


def open_graph(path, scratch, **settings):
    """Edges, their weights, their types."""
    raw = read_input(path, PreprocessConfig(**(GIVEN | settings)), scratch)
    pieces = raw.edges, raw.edge_weight, raw.edge_type
    return [None if piece is None else np.array(piece).tolist() for piece in pieces]


def save(file, columns):
    file.parent.mkdir(parents=True, exist_ok=True)
    writes = pyarrow.parquet.write_table if file.suffix.lower() == ".parquet" else pyarrow.feather.write_feather
    writes(pyarrow.table(columns), file)


@pytest.mark.parametrize("where", ["parts", "edges.parquet"])
@pytest.mark.parametrize("ending", [".parquet", ".feather"])
@pytest.mark.parametrize(("first", "second"), [
    ({}, {"weight": [5.0, 7.0]}), ({"weight": [5.0, 7.0]}, {}), ({}, {"year": [1, 2]}),
    ({"weight": [1.0, 1.0]}, {"weight": [1.0, 1.0], "relation": [0, 1]}),
])  # fmt: skip
def test_parts_of_other_columns_are_refused(first, second, ending, where, tmp_path):
    folder = tmp_path / where
    for name, more in (("a", first), ("b", second), ("c", first)):
        save(folder / f"{name}{ending}", ENDS | more)
    with pytest.raises(InputError, match=rf"b\{ending}: columns src, dst.*, and a\{ending} has src, dst") as refused:
        open_graph(folder, tmp_path)
    assert "pass --columns src,dst to read these of each" in str(refused.value)
    assert open_graph(folder, tmp_path, columns=("src", "dst")) == [[[0, 1] * 3, [1, 0] * 3], None, None]
    save(folder / f"b{ending}", ENDS | first)
    weight = None if "weight" not in first else first["weight"] * 3
    assert open_graph(folder, tmp_path) == [[[0, 1] * 3, [1, 0] * 3], weight, None]


def test_parts_may_have_their_columns_in_another_order(tmp_path):
    save(tmp_path / "in" / "a.parquet", ENDS | {"weight": [5.0, 7.0]})
    save(tmp_path / "in" / "b.parquet", {"weight": [1.0, 2.0], "dst": [1, 1], "src": [0, 0]})
    assert open_graph(tmp_path / "in", tmp_path) == [[[0, 1, 0, 0], [1, 0, 1, 1]], [5.0, 7.0, 1.0, 2.0], None]


def test_parts_where_text_and_numbers_differ(tmp_path):
    save(tmp_path / "in" / "a.parquet", ENDS | {"c": [5.0, 7.0]})
    save(tmp_path / "in" / "b.parquet", ENDS | {"c": ["x", "y"]})
    with pytest.raises(InputError, match=r"b\.parquet: column 'c' is text in some parts and numbers in others"):
        open_graph(tmp_path / "in", tmp_path, columns=("src", "dst", "c"))


WRITES = {
    ".CSV": lambda file: file.write_text("src,dst\n0,1\n1,0\n"),
    ".Txt": lambda file: file.write_text("0 1\n1 0\n"),
    ".TSV": lambda file: file.write_text("0\t1\n1\t0\n"),
    ".EDGES": lambda file: file.write_text("0 1\n1 0\n"),
    ".CSV.GZ": lambda file: file.write_bytes(gzip.compress(b"0,1\n1,0\n")),
    ".PARQUET": lambda file: save(file, ENDS),
    ".Feather": lambda file: save(file, ENDS),
    ".MTX": lambda file: file.write_text("%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 2\n2 1\n"),
    ".NPZ": lambda file: file.write_bytes(matrix(file.with_name("m.npz"))),
    ".PT": lambda file: torch.save(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2).to_dict(), file),
}


def matrix(file):
    scipy.sparse.save_npz(file, scipy.sparse.coo_array(([1.0, 1.0], ([0, 1], [1, 0]))))
    content = file.read_bytes()
    file.unlink()
    return content


@pytest.mark.parametrize("ending", WRITES)
@pytest.mark.parametrize("beside", [False, True])
def test_endings_are_read_in_upper_case(ending, beside, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    WRITES[ending](folder / f"edges{ending}")
    if beside:
        np.save(folder / "features.npy", np.ones((2, 3), np.float32))
    source = folder if beside else folder / f"edges{ending}"
    assert open_graph(source, tmp_path, **({"features": None} if beside else {})) == [[[0, 1], [1, 0]], None, None]


def test_delimiters_of_endings_in_upper_case(tmp_path):
    assert read(tmp_path, "e.CSV", "Rome,New York\nNew York,Rome\n", relabel=True) == [
        ("Rome", "New York"), ("New York", "Rome"),
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"'\.JSONL'|'\.jsonl'.*read_json\(path, lines=True\)"):
        read(tmp_path, "e.JSONL", "{}")


@pytest.mark.parametrize("where", ["in", "in/edges.parquet"])
@pytest.mark.parametrize("key", ["date=2020", "relation=knows", "a=1/b=2"])
def test_folders_of_partition_by(key, where, tmp_path, monkeypatch):
    folder = tmp_path / where
    save(folder / key / "a.parquet", ENDS)
    save(folder / key.replace("0", "1").replace("knows", "likes") / "b.parquet", ENDS)
    (folder / "_SUCCESS").touch()
    with pytest.raises(InputError, match="a folder of partitionBy; write the table as one file, ") as refused:
        open_graph(tmp_path / "in", tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(str(refused.value).rpartition("as one file, ")[2], {"pyarrow": pyarrow, "path": folder})
    columns = ("src", "dst", "relation") if "relation" in key else None
    _, weight, kind = open_graph(tmp_path / "edges.parquet", tmp_path, columns=columns)
    assert weight is None and kind == ([0, 0, 1, 1] if columns else None)


@pytest.mark.parametrize(("names", "expected"), [
    (("a.parquet", "b.csv"), "a.parquet; rename it, or leave only the parts of one table there, without b.csv"),
    (("a.csv", "b.csv"), "expected a file edges.csv, found a.csv; rename it, with all parts in one"),
    (("a.feather", "notes.md"), "expected a file edges.feather, found a.feather; rename it, or leave only"),
    (("graph.parquet", "labels.npy"), "expected a file edges.parquet, found graph.parquet; rename it"),
    (("b.npy",), "edges.npy: missing"),
    ((), "edges.npy: missing"),
])  # fmt: skip
def test_folders_of_other_things(names, expected, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in names:
        save(folder / name, ENDS) if name.endswith((".parquet", ".feather")) else (folder / name).write_text("0,1\n")
    with pytest.raises(InputError, match=re.escape(expected)):
        open_graph(folder, tmp_path)
    if "leave only" in expected:
        (folder / names[1]).unlink()
        assert open_graph(folder, tmp_path)[0] == [[0, 1], [1, 0]]
    if "rename" in expected:
        (folder / names[0]).rename(folder / f"edges{(folder / names[0]).suffix}")
        for name in names[1:]:
            (folder / name).unlink(missing_ok=True)
        assert open_graph(folder, tmp_path)[0] in ([[0, 1], [1, 0]], [[0], [1]])


@pytest.mark.parametrize("header", ["src,src", "Src,src", "x,x", "source,source,destination", "a,b,a"])
@pytest.mark.parametrize("relabel", [False, True])
def test_two_columns_of_one_name(header, relabel, tmp_path):
    rows = "".join(",".join(map(str, range(k, k + header.count(",") + 1))) + "\n" for k in range(3))
    with pytest.raises(InputError, match=r"line 1: 2 columns '.*', expected one; rename the others"):
        read(tmp_path, "e.csv", f"{header}\n{rows}", relabel=relabel)
    renamed = ",".join(("source", "destination", "other")[: header.count(",") + 1])
    assert read(tmp_path, "e.csv", f"{renamed}\n{rows}") == [(0, 1), (1, 2), (2, 3)]


def test_a_loop_is_no_line_of_names(tmp_path):
    assert read(tmp_path, "e.csv", "ann,ann\nann,bob\n", relabel=True) == [("ann", "ann"), ("ann", "bob")]
    with pytest.raises(InputError, match="put the line 'source,destination' before it if it is an edge"):
        read(tmp_path, "e.csv", "eve,eve\nann,bob\nbob,ann\n", relabel=True)
    assert len(read(tmp_path, "e.csv", "source,destination\neve,eve\nann,bob\nbob,ann\n", relabel=True)) == 3


@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.int32])
def test_features_of_one_dimension(kind, tmp_path):
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), x=torch.arange(2).to(kind), y=torch.tensor([0, 1]))
    settings = PreprocessConfig(random_split=(0.5, 0.2, 0.3), partitions=1, chunks=1)
    with pytest.raises(InputError, match=r"data\.x: .* of shape \(2,\), expected .*; write one column, x\[:, None\]"):
        read_data(data, settings, tmp_path)
    data.x = data.x[:, None]
    assert np.array(read_data(data, settings, tmp_path).features[:]).tolist() == [[0], [1]]


UNPACKS = """
import sys
from hongtu.cli.main import main
from hongtu.preprocess.read.formats import table
table.available_bytes = lambda: 64 << 20
made = ["--features", "degree", "--labels", "random:2", "--random-split", ".5,.2,.3"]
sys.exit(main(["preprocess", *sys.argv[1:], *made]))
"""


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_a_batch_that_unpacks_to_more_than_the_memory_is_refused(stream, tmp_path):
    """Of zeros, in a file of some kilobytes; in a process that has no memory left of earlier ones."""
    file, zeros = tmp_path / "edges.arrow", np.zeros(12 << 20, dtype=np.int64)
    table = pyarrow.table({"source": zeros, "destination": zeros})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    make = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with make(str(file), table.schema, options=options) as writer:
        writer.write_table(table)
    assert file.stat().st_size < 1 << 20
    words = [sys.executable, "-c", UNPACKS, str(file), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (
        done.returncode == 2
        and "what follows row 0 takes more than the 64.0 MiB of memory that is there" in done.stderr
    )
    assert not (tmp_path / "out").exists()
