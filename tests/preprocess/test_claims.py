"""Small files that speak of much: refused before memory is taken for what they claim, and never a Python error."""

from __future__ import annotations

import copy
import gzip
import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
import scipy.sparse
import torch
import torch_geometric.data  # noqa: F401 - so that no test measures its import

from hongtu.cli.main import main
from hongtu.config import parse_bytes
from hongtu.errors import InputError
from hongtu.preprocess.read.formats.ogb import read_arrays
from tests.faults.fuzz import time_limit
from tests.neutral import pieces, write

SYNTHETIC = ["--features", "degree", "--labels", "random:3", "--random-split", "0.5,0.2,0.3"]
ALONE = ["--partitions", "1", "--chunks", "1", *SYNTHETIC]
MOST = 100 << 20  # bytes that a refusal may take
MANY, LONG = 10**8, 9 << 20
TOO_MANY = "vertices, expected at most"
MARKET = "%%MatrixMarket matrix coordinate pattern"


def npz(**arrays):
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def saved(**changes):
    stream = io.BytesIO()
    edges = torch.zeros(2, 3, dtype=torch.long)
    torch.save({"edge_index": edges, "x": torch.ones(3, 2), "y": torch.zeros(3)} | changes, stream)
    return stream.getvalue()


def sparse(index, size):
    return torch.sparse_coo_tensor(torch.tensor(index), torch.ones(len(index[0])), size, check_invariants=False)


ONE = {"data": [1.0], "row": [0], "col": [1]}
# name of the case -> (file, its content, what the message must contain)
CLAIMS = {
    "a matrix of many rows": ("e.mtx", f"{MARKET} general\n{MANY} {MANY} 1\n1 2\n".encode(), TOO_MANY),
    "a symmetric one": ("e.mtx", f"{MARKET} symmetric\n{MANY} {MANY} 1\n2 1\n".encode(), TOO_MANY),
    "many entries": ("e.mtx", f"{MARKET} general\n2 2 {MANY}\n1 2\n".encode(), f"1 entries, expected {MANY}"),
    "a long banner": ("e.mtx.gz", gzip.compress(b"%%MatrixMarket" + b" " * LONG), "line 1: longer than"),
    "a long line of sizes": ("e.mtx.gz", gzip.compress(f"{MARKET} general\n".encode() + b"1" * LONG), "longer than"),
    "a long edge": ("e.csv.gz", gzip.compress(b"0,1\n" + b"1" * LONG), "line 2: longer than"),
    "long white space": ("e.txt.gz", gzip.compress(b"0 1\n0" + b" " * LONG + b"1"), "line 2: longer than"),
    "many returns": ("e.txt.gz", gzip.compress(b"\r" * (LONG // 4)), "no edges"),
    "returns behind an edge": ("e.txt.gz", gzip.compress(b"0 x" + b"\r" * (LONG // 4)), "expected"),
    "many comments": ("e.txt.gz", gzip.compress(b"#\n\n" * (LONG // 8)), "no edges"),
    "one id": ("e.txt", f"0 {MANY}\n".encode(), TOO_MANY),
    "one id of a table": ("e.csv", f"src,dst,weight\n0,{MANY},1\n".encode(), TOO_MANY),
    "a sparse matrix of many rows": ("e.npz", npz(**ONE, shape=[MANY, MANY], format=b"coo"), TOO_MANY),
    "columns": ("e.npz", npz(data=[1.0], indices=[0], indptr=[0, 1], shape=[MANY, 1], format=b"csc"), "vertices, exp"),
    "an expanded tensor": ("e.pt", saved(edge_index=torch.zeros(2, 1).long().expand(2, MANY)), "contiguous()"),
    "expanded features": ("e.pt", saved(x=torch.ones(1, 1).expand(3, MANY)), "contiguous()"),
    "sparse labels": ("e.pt", saved(y=sparse([[0]], (MANY * 100,))), "contiguous()"),
    "an index beyond": ("e.pt", saved(x=sparse([[MANY], [0]], (3, 2))), "cannot be opened safely"),
    "a label beyond": ("e.pt", saved(y=sparse([[MANY]], (3,))), "cannot be opened safely"),
    "a count": ("e.pt", saved(x=None, y=None, num_nodes=MANY), TOO_MANY),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMS)
def test_what_a_file_claims_is_compared_with_what_it_holds(case, tmp_path, capsys):
    name, content, expected = CLAIMS[case]
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, tmp_path / name, ALONE, expected, capsys)


def refused(tmp_path, source, arguments, expected, capsys):
    capsys.readouterr()
    tracemalloc.start()
    with time_limit(30):
        code = main(["preprocess", str(source), str(tmp_path / "out"), *arguments])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1) and expected in err, err
    assert peak < MOST and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("meta", "changes", "arguments", "expected"), [
    ({"classes": MANY}, {}, [], f"labels.npy: {MANY} classes for 24 vertices, expected at most"),
    ({"classes": 2**63}, {}, [], "expected at most"),
    ({}, {}, ["--labels", f"random:{MANY}"], "classes for 24 vertices"),
    ({"nodes": MANY}, {"features": None, "labels": None, "train_mask": None, "val_mask": None, "test_mask": None},
     SYNTHETIC, f"meta.json says {MANY} nodes: {MANY} vertices, expected at most"),
    ({}, {"features": scipy.sparse.coo_array(([1.0], ([0], [1])), (MANY, 3))}, [], TOO_MANY),
])  # fmt: skip
def test_a_directory_that_claims_much(meta, changes, arguments, expected, tmp_path, capsys):
    matrix = changes.get("features")
    source = write(tmp_path / "in", pieces() | changes | ({} if matrix is None else {"features": None}), meta or None)
    if matrix is not None:
        scipy.sparse.save_npz(source / "features.npz", matrix)
    refused(tmp_path, source, ["--partitions", "2", "--chunks", "3", *arguments], expected, capsys)


def test_an_archive_larger_than_memory(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hongtu.preprocess.read.size.available_bytes", lambda: 8 << 20)
    (tmp_path / "e.npz").write_bytes(npz(**ONE, shape=[3, 3], format=b"coo", more=np.zeros(9 << 20, np.uint8)))
    refused(tmp_path, tmp_path / "e.npz", ALONE, "its arrays take", capsys)


def test_a_file_of_torch_that_would_unpack_to_more_than_it_is(tmp_path, capsys):
    with zipfile.ZipFile(io.BytesIO(saved())) as whole, zipfile.ZipFile(tmp_path / "e.pt", "w") as squeezed:
        for name in whole.namelist():
            content = bytes(MOST * 2) if name.endswith("data/0") else whole.read(name)
            squeezed.writestr(name, content, zipfile.ZIP_DEFLATED)
    refused(tmp_path, tmp_path / "e.pt", ALONE, "is compressed, which torch.save does not do", capsys)


def overlapping(content):
    """An archive in which members of data that are equally long are one."""
    with zipfile.ZipFile(io.BytesIO(content)) as whole, zipfile.ZipFile(stream := io.BytesIO(), "w") as folded:
        first: dict[int, str] = {}
        for name in whole.namelist():
            size = whole.getinfo(name).file_size if "/data/" in name else -1
            if size in first:
                same = copy.copy(folded.getinfo(first[size]))
                same.filename = name
                folded.filelist.append(same)
                continue
            folded.writestr(name, whole.read(name))
            if size >= 0:
                first[size] = name
    return stream.getvalue()


def test_a_file_of_torch_whose_members_lie_over_each_other(tmp_path, capsys):
    content = overlapping(saved(**{f"more {k}": torch.full((10**6,), 1.0) for k in range(9)}))
    assert len(torch.load(io.BytesIO(content))["more 8"]) == 10**6 and len(content) < 9 * 10**6
    (tmp_path / "e.pt").write_bytes(content)
    refused(tmp_path, tmp_path / "e.pt", ALONE, "its members lie over each other", capsys)


def header(length):
    """Of an array, as long as it says, of which all but the front is white space."""
    return b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little") + b" " * length


def test_headers_of_many_bytes(tmp_path, capsys):
    """They are not read to see that they are too long."""
    source = write(tmp_path / "in", pieces())
    with open(source / "labels.npy", "wb") as stream:
        stream.write(header(0)[:8] + (2**32 - 1).to_bytes(4, "little"))
    os.truncate(source / "labels.npy", 5 << 30)
    refused(tmp_path, source, ["--partitions", "2", "--chunks", "3"], "a header of many bytes", capsys)
    (tmp_path / "ogb" / "raw").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "ogb" / "raw" / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("edge_index.npy", header(2 * MOST))
    refused(tmp_path, tmp_path / "ogb", ALONE, "data.npz: not readable", capsys)


def test_a_pickle_that_would_unpack_to_more_than_its_file_is(tmp_path):
    """Of numpy's arrays, as OGB's splits hold them."""
    with zipfile.ZipFile(tmp_path / "split_dict.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("split_dict/data.pkl", bytes(2 * MOST))
    tracemalloc.start()
    with pytest.raises(InputError, match="is compressed"):
        read_arrays(tmp_path / "split_dict.pt")
    assert tracemalloc.get_traced_memory()[1] < MOST
    tracemalloc.stop()


def test_what_is_too_large_for_memory_is_said_to_be(tmp_path, capsys, monkeypatch):
    """And no snapshot is taken for a damaged one."""
    (tmp_path / "e.pt").write_bytes(saved(x=torch.ones(3, 10**5)))
    monkeypatch.setattr("hongtu.files.available_bytes", lambda: 10**6)
    refused(tmp_path, tmp_path / "e.pt", ALONE, "does not fit in memory", capsys)
    folder = tmp_path / "planetoid"
    folder.mkdir()
    for name in ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index"):
        (folder / f"ind.a.{name}").write_bytes(bytes(10**6))
    monkeypatch.setattr("hongtu.preprocess.read.formats.planetoid.available_bytes", lambda: 10**6)
    refused(tmp_path, folder, ALONE, "which take more than the 1000000 of memory", capsys)


def test_sizes_are_parsed_in_linear_time():
    for text in ("1" + " " * 10**6 + "!", " " * 10**6, "1" * 10**6 + "!", "." * 10**6):
        with pytest.raises(InputError, match="expected a positive number with a unit") as refusal:
            parse_bytes(text)
        assert len(str(refusal.value)) < 300
    assert parse_bytes(" 2 GiB ") == 2 << 30 and parse_bytes(10**30) == 10**30
