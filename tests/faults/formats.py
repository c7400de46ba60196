"""The readers of other formats than the neutral one, for the fuzzer; as ``tests.faults.readers``."""

from __future__ import annotations

import copyreg
import gzip
import io
import pickle
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import scipy.sparse

from hongtu.config import PreprocessConfig
from hongtu.preprocess.read.formats.column_names import find_ends
from hongtu.preprocess.read.formats.text_layout import find_columns
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.open import read_input
from tests.faults.reader import Reader
from tests.neutral import pieces

GRAPH = pieces()
EDGES = GRAPH["edges"]
WEIGHT = np.linspace(-0.7, 1.9, 60).astype(np.float32)
NAMES = np.array([f"v{k}" if k % 3 else f"ä{k}" for k in range(24)])
SMALL: dict[str, Any] = {"partitions": 2, "chunks": 3}
ALONE: dict[str, Any] = {
    "partitions": 1, "chunks": 1, "features": "degree", "labels": "random:2", "random_split": (0.5, 0.2, 0.3),
}  # fmt: skip
WITH_RELABEL = ("--relabel", "--features", "degree", "--labels", "random:2", "--random-split", "0.5,0.2,0.3")


# ---- what the readers give


def _opened(path: Path, settings: dict[str, Any], take: Callable[[RawGraph], Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="hongtu-fuzz-") as scratch:
        return take(read_input(path, PreprocessConfig(**settings), Path(scratch)))


def _edges_of(raw: RawGraph) -> Any:
    """Edges, weights or None, ids or None."""
    weight = raw.edge_weight if raw.edges.size else None  # of no edges there may be none, or none at all
    return np.array(raw.edges), None if weight is None else np.array(weight), raw.ids


def _beside(file: Path, **settings: Any) -> Any:
    """The edges of a file beside neutral features, labels and masks."""
    return _opened(file.parent, SMALL | settings, _edges_of)


def _alone(file: Path, **settings: Any) -> Any:
    return _opened(file, ALONE | settings, _edges_of)


def _sorted(found: Any) -> Any:
    """The same edges in the order of their ends and weights."""
    edges, weight, ids = found
    order = np.lexsort((edges[0], edges[1]) if weight is None else (weight, edges[0], edges[1]))
    return edges[:, order], None if weight is None else weight[order], ids


def _columns(source: Any, destination: Any, weight: Any = None, ids: Any = None) -> Any:
    edges = np.array([source, destination], dtype=np.int64).reshape(2, -1)
    assert ids is not None or (edges.min(initial=0) >= 0 and edges.max(initial=0) < 24), "out of bounds"
    return edges, None if weight is None or not edges.size else np.array(weight, np.float64).astype(np.float32), ids


def _numbered(pairs: list[tuple[Any, Any]], weight: Any = None) -> Any:
    """Ids numbered as they come: all of them integers where they can be."""
    number: dict[Any, int] = {}
    numbers = [[number.setdefault(end, len(number)) for end in pair] for pair in pairs]
    ids = list(number)
    edges = np.array(numbers, dtype=np.int64).reshape(-1, 2).T
    return edges, weight, np.array(ids, dtype=np.int64) if ids and isinstance(ids[0], int) else ids


# ---- what bytes mean: text


def _lines_of_text(content: bytes) -> list[bytes]:
    content = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert b"\0" not in content
    return content.split(b"\n")


def _rows_of_text(lines: list[bytes], separator: bytes, *, comments: bool = True) -> list[list[bytes]]:
    rows = []
    for line in lines:
        line = line.strip(b" " if separator == b"\t" else b" \t")
        if line and not (comments and line[:1] in b"#%"):
            fields = line.split(separator) if separator else re.split(rb"[ \t]+", line)
            rows.append([_plain_field(field.strip(b" ")) for field in fields])
    return rows


def _plain_field(field: bytes) -> bytes:
    assert field.count(b'"') in (0, 2) and (field.startswith(b'"') or b'"' not in field)
    return field.strip(b'"')


def _text(content: bytes, ending: str, names: tuple[str, ...] | None, *, as_text: bool) -> tuple[list[Any], bool]:
    """Rows of source, destination and weight, and whether there are weights. Which columns are meant and whether the
    first line names them is a convention, not a fact of the bytes: that much is asked of the reader."""
    with tempfile.TemporaryDirectory(prefix="hongtu-fuzz-") as folder:
        file = Path(folder) / f"edges.{ending}"
        file.write_bytes(content)
        found = find_columns(file, names, as_text=as_text)
    separator = bytes([found.delimiter]) if found.delimiter else b""
    rows = _rows_of_text(_lines_of_text(content)[found.passed :], separator, comments=not as_text)
    which = [found.source, found.destination, *([found.weight] if found.weight >= 0 else [])]
    return [[row[k] for k in which] for row in rows], len(which) == 3


def _text_edges(content: bytes, ending: str, names: tuple[str, ...] | None = None) -> Any:
    rows, weighted = _text(content, ending, names, as_text=False)
    ends = [[int(row[end]) for row in rows] for end in (0, 1)]
    return _columns(*ends, [float(row[2]) for row in rows] if weighted else None)


def _text_names(content: bytes, ending: str) -> Any:
    """All are names where one is no integer, or is not written as one is."""
    for as_text in (False, True):
        rows, _ = _text(content, ending, None, as_text=as_text)
        pairs: list[tuple[Any, Any]] = [(row[0].decode().strip(" \t"), row[1].decode().strip(" \t")) for row in rows]
        ends = [end for pair in pairs for end in pair]
        if not as_text and all(re.fullmatch("-?[1-9][0-9]*|0", end) and abs(int(end)) < 2**63 for end in ends):
            return _numbered([(int(a), int(b)) for a, b in pairs])
    return _numbered(pairs)


def _as_text(separator: str, *columns: Any, header: str = "", ending: str = "\n") -> bytes:
    rows = [separator.join(map(str, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return (header + "".join(row + ending for row in rows)).encode()


# ---- what bytes mean: tables and matrices


def _table(ending: str, *columns: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    table = pyarrow.table(dict(zip(("source", "destination", "weight"), columns)))
    save = pyarrow.parquet.write_table if ending == "parquet" else pyarrow.feather.write_feather
    save(table, stream, **options)
    return stream.getvalue()


def _stream(*columns: Any) -> bytes:
    """Arrow's other form."""
    table = pyarrow.table(dict(zip(("source", "destination"), columns)))
    stream = io.BytesIO()
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=25)
    return stream.getvalue()


def _cells(content: bytes, ending: str) -> dict[str, list]:
    if ending == "parquet":
        return pyarrow.parquet.read_table(io.BytesIO(content)).to_pydict()
    try:
        return pyarrow.ipc.open_file(content).read_all().to_pydict()
    except pyarrow.ArrowInvalid:
        return pyarrow.ipc.open_stream(content).read_all().to_pydict()


def _ends(cells: dict[str, list]) -> list[list]:
    """The columns of an edge's ends, which may have other names."""
    names = list(cells)
    found = find_ends(names)
    sure = found is None or {"source", "destination"} <= {*names}
    return [cells[name] for name in (("source", "destination") if sure else [names[at] for at in found])]


def _table_edges(content: bytes, ending: str) -> Any:
    cells = _cells(content, ending)
    return _columns(*_ends(cells), cells.get("weight"))


def _table_names(content: bytes, ending: str) -> Any:
    cells = _cells(content, ending)
    ends = _ends(cells)
    if not all(isinstance(end, int) and end < 2**63 for column in ends for end in column):
        ends = [[end.decode() if isinstance(end, bytes) else str(end) for end in column] for column in ends]
    weight = cells.get("weight") or None
    return _numbered(list(zip(*ends)), None if weight is None else np.array(weight, np.float64).astype(np.float32))


def _market(kind: str, entries: list[tuple]) -> bytes:
    rows = "".join(" ".join(map(str, entry)) + "\n" for entry in entries)
    return f"%%MatrixMarket matrix coordinate {kind}\n% a comment\n24 24 {len(entries)}\n{rows}".encode()


def _market_edges(content: bytes) -> Any:
    kind = content.split(b"\n")[0].lower().split()[3:]
    rows = _rows_of_text(_lines_of_text(content), b"")
    assert [int(size) for size in rows[0]] == [24, 24, len(rows) - 1]
    edges = []
    for row in rows[1:]:
        value = 1.0 if kind[0] == b"pattern" else float(row[2])
        edges.append((int(row[0]) - 1, int(row[1]) - 1, value))
        if kind[1] != b"general" and row[0] != row[1] and int(row[0]) != int(row[1]):
            edges.append((edges[-1][1], edges[-1][0], -value if kind[1].startswith(b"skew") else value))
    return _without_ones(*zip(*edges) if edges else ([], [], []))


def _without_ones(source: Any, destination: Any, weight: Any) -> Any:
    some = any(value != 1 for value in weight)
    return _sorted(_columns(source, destination, weight if some else None))


def _saved_matrix(form: str, values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    matrix = scipy.sparse.coo_matrix((values, tuple(EDGES)), shape=(24, 24))
    scipy.sparse.save_npz(stream, matrix.asformat(form), compressed=False)
    return stream.getvalue()


def _matrix_edges(content: bytes) -> Any:
    """Entry by entry."""
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        given = {name: found[name] for name in found.files}
    form, data = bytes(given["format"].item()).decode(), given["data"]
    assert given["shape"].tolist() == [24, 24]
    if form == "coo":
        ends = given["coords"] if "coords" in given else (given["row"], given["col"])
        return _without_ones(ends[0].tolist(), ends[1].tolist(), data.tolist())
    edges = []
    for major in range(24):
        for k in range(int(given["indptr"][major]), int(given["indptr"][major + 1])):
            at = (major, int(given["indices"][k]))
            edges.append((*(at if form == "csr" else at[::-1]), data[k].item()))
    return _without_ones(*zip(*edges) if edges else ([], [], []))


# ---- what bytes mean: OGB and Planetoid


def _lines(rows: np.ndarray) -> bytes:
    return "".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()).encode()


OGB = {
    "raw/edge.csv.gz": _lines(EDGES.T),
    "raw/num-node-list.csv.gz": b"24\n",
    "raw/num-edge-list.csv.gz": b"60\n",
    "raw/node-feat.csv.gz": _lines(GRAPH["features"]),
    "raw/node-label.csv.gz": _lines(GRAPH["labels"][:, None]),
    **{
        f"split/time/{stem}.csv.gz": _lines(np.flatnonzero(GRAPH[f"{split}_mask"])[:, None])
        for split, stem in (("train", "train"), ("val", "valid"), ("test", "test"))
    },
}


def _save(files: dict[str, bytes], directory: Path, pack: Callable[[bytes], bytes] = bytes) -> None:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(pack(content))


def _ogb(piece: str) -> Callable[[Path], Any]:
    def take(raw: RawGraph) -> Any:
        found = {"edges": raw.edges, "features": raw.features, "labels": raw.labels, "train": raw.masks["train"]}
        return np.array(found[piece])

    return lambda file: _opened(file.parents[file.parts[::-1].index("in") - 1], SMALL, take)


def _cells_of_csv(content: bytes, kind: Callable[[str], Any]) -> list[list]:
    text = content.decode().replace("\r\n", "\n").replace("\r", "\n")
    return [[kind(cell.strip()) for cell in line.split(",")] for line in text.split("\n") if line.strip()]


def _ogb_features(content: bytes) -> np.ndarray:
    return np.array(_cells_of_csv(content, float)).astype(np.float32)


def _ogb_labels(content: bytes) -> np.ndarray:
    rows = _cells_of_csv(content, float)
    if len(rows[0]) > 1:
        return np.array(rows, dtype=np.float32)
    return np.array([-1 if row[0] != row[0] else int(row[0]) for row in rows])


def _ogb_train(content: bytes) -> np.ndarray:
    members = [row[0] for row in _cells_of_csv(content, int)]
    assert min(members) >= 0
    return np.array([v in members for v in range(24)])


def _zipped(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _zip_member(content: bytes, name: str) -> np.ndarray:
    with zipfile.ZipFile(io.BytesIO(content)) as found:  # other bytes may stand before an archive
        return np.load(io.BytesIO(found.read(f"{name}.npy")), allow_pickle=False)


BINARY = {
    "raw/data.npz": _zipped(edge_index=EDGES, node_feat=GRAPH["features"], num_nodes_list=np.array([24])),
    "raw/node-label.npz": _zipped(node_label=GRAPH["labels"][:, None].astype(np.float32)),
}


def _binary(directory: Path) -> None:
    _save({name: gzip.compress(content) for name, content in OGB.items() if name.startswith("split")}, directory)
    _save(BINARY, directory)


def _planetoid() -> dict[str, bytes]:
    """24 vertices: 6 for training, 10 known without a split of their own, 7 for testing, and one that is skipped."""
    test = np.array([17, 16, 19, 18, 23, 20, 22])
    hot = np.eye(3, dtype=np.int32)[GRAPH["labels"]]
    features = scipy.sparse.csr_matrix(np.where(GRAPH["features"] > 0, GRAPH["features"], 0))
    graph = defaultdict(list, {v: EDGES[1, EDGES[0] == v].tolist() for v in range(24)})
    parts = {
        "x": features[:6], "y": hot[:6], "allx": features[:16], "ally": hot[:16],
        "tx": features[test], "ty": hot[test], "graph": graph,
    }  # fmt: skip
    files = {f"ind.tiny.{part}": pickle.dumps(value, protocol=2) for part, value in parts.items()}
    return files | {"ind.tiny.test.index": "".join(f"{v}\n" for v in test).encode()}


PLANETOID = _planetoid()


_OF_PICKLES = {
    "csr_matrix": scipy.sparse.csr_matrix, "ndarray": np.ndarray, "dtype": np.dtype, "defaultdict": defaultdict,
    "_reconstruct": np.zeros(1).__reduce__()[0], "scalar": np.float64(0).__reduce__()[0], "list": list,
    "object": object, "_reconstructor": copyreg._reconstructor, "encode": lambda text, _: text.encode("latin1"),
}  # fmt: skip


class _ByName(pickle.Unpickler):
    """Finds what such pickles are made of by its name alone, for modules were renamed."""

    def find_class(self, module: str, name: str) -> Any:
        return _OF_PICKLES[name]


def _pickled(content: bytes) -> Any:
    return _ByName(io.BytesIO(content), encoding="latin1").load()


def _planetoid_read(piece: str) -> Callable[[Path], Any]:
    def take(raw: RawGraph) -> Any:
        found = {"edges": raw.edges, "features": raw.features, "labels": raw.labels, "test": raw.masks["test"]}[piece]
        return found.toarray() if hasattr(found, "toarray") else np.array(found)

    return lambda file: _opened(file.parent, SMALL, take)


def _planetoid_edges(content: bytes) -> np.ndarray:
    pairs = {pair for u, near in _pickled(content).items() for v in near for pair in ((u, v), (v, u)) if u != v}
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T


def _planetoid_features(content: bytes) -> np.ndarray:
    """The known ones by the damaged file, the others by the whole one."""
    given = [_pickled(content), _pickled(PLANETOID["ind.tiny.tx"])]
    found = np.zeros((24, given[0].shape[1]), dtype=np.float32)
    rows = [range(16), map(int, PLANETOID["ind.tiny.test.index"].split())]
    for matrix, numbers in zip(given, rows):
        for row, v in enumerate(numbers):
            for k in range(int(matrix.indptr[row]), int(matrix.indptr[row + 1])):
                found[v, int(matrix.indices[k])] += np.float32(matrix.data[k])
    return found


def _planetoid_labels(content: bytes) -> np.ndarray:
    found = np.full(24, -1)
    test = [int(v) for v in PLANETOID["ind.tiny.test.index"].split()]
    for matrix, numbers in ((_pickled(content), range(16)), (_pickled(PLANETOID["ind.tiny.ty"]), test)):
        for row, v in zip(matrix.tolist(), numbers, strict=True):
            found[v] = row.index(1) if 1 in row else -1
    return found


def _test_mask(content: bytes) -> np.ndarray:
    members = [int(line) for line in content.decode().split()]
    return np.array([v in members for v in range(max(members) + 1)])


# ---- the table

_WEIGHTED = _as_text(",", *EDGES, WEIGHT, header="source,target,weight\n")
_BESIDE = partial(Reader, remove=("edges.npy",))
_RELABELLED = partial(Reader, graph=lambda directory: directory.mkdir(), arguments=WITH_RELABEL)
_OGB = partial(Reader, graph=lambda directory: _save(OGB, directory, gzip.compress))
_BINARY = partial(Reader, graph=_binary)
_PLANETOID = partial(Reader, graph=lambda directory: _save(PLANETOID, directory))
_GZIPPED = gzip.compress(_as_text("\t", *EDGES), mtime=0)
_MARKETS = (
    _market("real general", list(zip(*(EDGES + 1).tolist(), WEIGHT.tolist()))),
    _market("pattern symmetric", [(2, 1), (3, 3), (24, 7)]),
    _market("integer skew-symmetric", [(2, 1, 4), (5, 3, 1)]),
)
_MATRICES = tuple(_saved_matrix(form, values) for form in ("coo", "csr", "csc") for values in (np.ones(60), WEIGHT))
_TEXTS = (_as_text(" ", *EDGES, header="# a comment\n"), _as_text("\t", *EDGES, ending="\r\n"))
_FEATHERS = (_table("feather", *EDGES, compression="lz4"), _table("feather", *EDGES, WEIGHT, compression="zstd"))
_NAMED = NAMES[EDGES]

FORMATS = {
    "edges.txt": _BESIDE("edges.txt", _TEXTS, _beside, partial(_text_edges, ending="txt")),
    "edges.csv": _BESIDE("edges.csv", (_WEIGHTED,), _beside, partial(_text_edges, ending="csv")),
    "edges.tsv with --columns": _BESIDE(
        "edges.tsv", (_as_text("\t", WEIGHT, *EDGES, header="w\ta\tb\n"),), partial(_beside, columns=("a", "b", "w")),
        partial(_text_edges, ending="tsv", names=("a", "b", "w")), arguments=("--columns", "a,b,w"),
    ),
    "edges.txt.gz": _BESIDE(
        "edges.txt.gz", (_GZIPPED,), _beside, lambda content: _text_edges(gzip.decompress(content), "txt")
    ),
    "edges.csv with --relabel": _RELABELLED(
        "edges.csv", (_as_text(",", *_NAMED), _as_text(",", *(EDGES - 5) * 10**9)), partial(_alone, relabel=True),
        partial(_text_names, ending="csv"),
    ),
    "edges.parquet": _BESIDE(
        "edges.parquet", (_table("parquet", *EDGES, WEIGHT, row_group_size=25), _table("parquet", *EDGES.astype("u2"))),
        _beside, partial(_table_edges, ending="parquet"),
    ),
    "edges.parquet with --relabel": _RELABELLED(
        "edges.parquet", (_table("parquet", *_NAMED), _table("parquet", *EDGES * 10**9, compression="none")),
        partial(_alone, relabel=True), partial(_table_names, ending="parquet"),
    ),
    "edges.feather": _BESIDE("edges.feather", _FEATHERS, _beside, partial(_table_edges, ending="feather")),
    "edges.arrow": _BESIDE("edges.arrow", (_stream(*EDGES),), _beside, partial(_table_edges, ending="arrow")),
    "edges.arrow with --relabel": _RELABELLED(
        "edges.arrow", (_stream(*_NAMED), _stream(*(pyarrow.array(c).dictionary_encode() for c in _NAMED))),
        partial(_alone, relabel=True), partial(_table_names, ending="arrow"),
    ),
    "edges.mtx": _BESIDE("edges.mtx", _MARKETS, lambda file: _sorted(_beside(file)), _market_edges),
    "edges.npz": _BESIDE("edges.npz", _MATRICES, lambda file: _sorted(_beside(file)), _matrix_edges),
    "OGB's edge.csv": _OGB(
        "raw/edge.csv.gz", (OGB["raw/edge.csv.gz"],), _ogb("edges"), lambda content: _text_edges(content, "csv")[0],
        pack=gzip.compress,
    ),
    "OGB's node-feat.csv": _OGB(
        "raw/node-feat.csv.gz", (OGB["raw/node-feat.csv.gz"],), _ogb("features"), _ogb_features, pack=gzip.compress
    ),
    "OGB's node-feat.csv.gz": _OGB(
        "raw/node-feat.csv.gz", (gzip.compress(OGB["raw/node-feat.csv.gz"]),), _ogb("features"),
        lambda content: _ogb_features(gzip.decompress(content)),
    ),
    "OGB's node-label.csv": _OGB(
        "raw/node-label.csv.gz", (OGB["raw/node-label.csv.gz"], b"0,1\n" * 24), _ogb("labels"), _ogb_labels,
        pack=gzip.compress,
    ),
    "OGB's train.csv": _OGB(
        "split/time/train.csv.gz", (OGB["split/time/train.csv.gz"],), _ogb("train"), _ogb_train, pack=gzip.compress
    ),
    "OGB's data.npz": _BINARY(
        "raw/data.npz", (BINARY["raw/data.npz"],), _ogb("edges"),
        lambda content: _zip_member(content, "edge_index").astype(np.int64),
    ),
    "OGB's node-label.npz": _BINARY(
        "raw/node-label.npz", (BINARY["raw/node-label.npz"],), _ogb("labels"),
        lambda content: _zip_member(content, "node_label").ravel().astype(np.int64),
    ),
    "Planetoid's graph": _PLANETOID(
        "ind.tiny.graph", (PLANETOID["ind.tiny.graph"],), _planetoid_read("edges"), _planetoid_edges
    ),
    "Planetoid's allx": _PLANETOID(
        "ind.tiny.allx", (PLANETOID["ind.tiny.allx"],), _planetoid_read("features"), _planetoid_features
    ),
    "Planetoid's ally": _PLANETOID(
        "ind.tiny.ally", (PLANETOID["ind.tiny.ally"],), _planetoid_read("labels"), _planetoid_labels
    ),
    "Planetoid's test.index": _PLANETOID(
        "ind.tiny.test.index", (PLANETOID["ind.tiny.test.index"],), _planetoid_read("test"), _test_mask
    ),
}  # fmt: skip
