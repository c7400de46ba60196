"""OGB node-property datasets as the ogb package unpacks them, ``raw/`` and ``split/`` in one folder; without ogb.

ogbn_arxiv/raw/edge.csv.gz, node-feat.csv.gz, edge-feat.csv.gz, node-label.csv.gz, num-node-list.csv.gz
ogbn_arxiv/split/time/train.csv.gz, valid.csv.gz, test.csv.gz
ogbn_papers100M/raw/data.npz, node-label.npz    (the binary form)
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.files import check_stored, open_npy
from hongtu.preprocess.read.formats import zipped
from hongtu.preprocess.read.formats.data_pickle import load_arrays
from hongtu.preprocess.read.formats.ogb_tables import open_pairs, read_features, read_filled, read_table
from hongtu.preprocess.read.formats.torch_file import load_torch_file
from hongtu.preprocess.read.formats.zipped import Member, members
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.size import Reading, Sizes, check_archive, check_count, check_held
from hongtu.preprocess.read.source import EdgeBlock, array_blocks, of_text

STORED_ONCE = ("ogbn_products", "ogbn_proteins")  # OGB adds the reverse of every edge when it loads these
COUNTS = ("num_nodes_list", "num_edges_list")
SPLITS = {"train": "train", "val": "valid", "test": "test"}


def from_loader(data: Any) -> Any:
    """The fields, by torch_geometric's names, of what ogb's ``NodePropPredDataset`` gives: a dictionary, or that and
    labels; anything else as it is."""
    graph, labels = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if not isinstance(graph, Mapping) or not {"edge_index", "node_feat"} <= {*graph}:
        return data
    own = {"x": "node_feat", "edge_attr": "edge_feat", "edge_type": "edge_reltype", "num_nodes": "num_nodes"}
    fields = {name: graph.get(key) for name, key in own.items()}
    return SimpleNamespace(edge_index=graph["edge_index"], y=labels, **fields, own_names=own)


def is_ogb(path: Path) -> bool:
    """Whether this is the folder of a dataset."""
    return any((path / "raw" / name).is_file() for name in ("edge.csv.gz", "data.npz"))


def open_ogb(path: Path, scratch: Path, config: PreprocessConfig, reading: Reading) -> RawGraph:
    """One homogeneous graph; features go through a file in ``scratch``.

    Raises:
        InputError: when a file is missing or damaged, or the dataset needs ``--undirected``.
    """
    if path.resolve().name in STORED_ONCE and not config.undirected:
        raise InputError(f"{path}: stores each undirected edge once; pass --undirected, as OGB itself does")
    raw = path / "raw"
    source = (_binary if (raw / "data.npz").is_file() else _text)(raw, scratch, config, reading)
    assert source.num_vertices is not None
    kind = only_split(path / "split")
    source.masks = None if config.random_split or kind is None else masks_in(kind, source.num_vertices)
    files = {split: split_file(kind, stem) if kind else path / "split" for split, stem in SPLITS.items()}
    source.names |= {split: str(file) for split, file in files.items()}
    return source


def _text(raw: Path, scratch: Path, config: PreprocessConfig, reading: Reading) -> RawGraph:
    source = open_pairs(raw / "edge.csv.gz")
    file, rows, labels = raw / "num-node-list.csv.gz", raw / "node-feat.csv.gz", raw / "node-label.csv.gz"
    vertices = source.num_vertices = _only(read_table(file, np.int64, 2), str(file))
    source.vertices_from = f"{file} says {vertices} vertices"
    source.names |= {"features": str(rows), "labels": str(labels), "edge_features": str(raw / "edge-feat.csv.gz")}
    check_count(vertices, str(file))
    check_held(vertices, (raw / "edge.csv.gz").stat().st_size, str(file))
    file = raw / "num-edge-list.csv.gz"
    beside = raw / "edge-feat.csv.gz"
    if file.is_file() or beside.is_file():
        source.num_edges = _only(read_table(file, np.int64, 2), str(file))
    used = rows.is_file() and not config.features
    if source.num_edges is not None:
        widths = [len(next(read_filled(file), "").split(",")) if has else 0 for file, has in
                  ((rows, used), (beside, beside.is_file()))]  # fmt: skip
        sizes = Sizes(
            title=str(raw), vertices=vertices, edges=source.num_edges, width=widths[0],
            beside=4 * widths[1] * source.num_edges, labels=8 * vertices,
            unpacked=4 * (widths[0] * vertices + widths[1] * source.num_edges),
        )  # fmt: skip
        reading.expect(sizes)
    if used:
        source.features = read_features(rows, vertices, scratch / "node-feat.npy", reading.progress)
    if beside.is_file():
        assert source.num_edges is not None
        source.edge_features = read_features(beside, source.num_edges, scratch / "edge-feat.npy", reading.progress)
    if labels.is_file() and not config.labels:
        source.labels = labels_of(of_text(read_table(labels, np.float64, vertices)), labels, config)
    return source


def _binary(raw: Path, scratch: Path, config: PreprocessConfig, reading: Reading) -> RawGraph:
    file = raw / "data.npz"
    data, beside = members(file), raw / "node-label.npz"
    labelled = members(beside) if beside.is_file() and not config.labels else {}
    for name, held, place in (("edge_index", data, file), ("node_label", labelled, beside)):
        if name not in held and (held or place == file):
            raise InputError(f"{place}: no {name}, found {', '.join(held) or 'nothing'}; download it again")
    edges, label = data["edge_index"], labelled.get("node_label")
    if len(edges.shape) != 2 or edges.shape[0] != 2:
        raise InputError(f"{file}: edge_index of shape {edges.shape}, expected [2, E]; download it again")
    counts = {name: _only(data[name].whole(), f"{file}: {name}") for name in COUNTS if name in data}
    rows = [member.shape[0] for member in (label, data.get("node_feat")) if member is not None and member.shape]
    if not counts.keys() & COUNTS[:1] and not rows:
        raise InputError(f"{file}: no {COUNTS[0]}, node_feat or labels say how many vertices there are; add one")
    vertices = counts.get(COUNTS[0]) if COUNTS[0] in counts else rows[0]
    check_count(vertices, str(file))
    kept = {name: data[name] for name in ("node_feat", "edge_feat") if name in data}
    if config.features:
        kept.pop("node_feat", None)
    sizes = Sizes(
        title=str(file), vertices=vertices, edges=edges.shape[1], labels=0 if label is None else label.nbytes,
        width=math.prod(kept["node_feat"].shape[1:]) if "node_feat" in kept else 0,
        beside=kept["edge_feat"].nbytes if "edge_feat" in kept else 0,
        unpacked=sum(member.nbytes for member in kept.values()),
    )  # fmt: skip
    reading.expect(sizes)
    if label is not None:
        check_archive(beside)
    total, done = sizes.unpacked + edges.nbytes, 0

    def read(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        reading.progress(min(1.0, done / max(total, 1)))

    arrays = {name: member.unpacked(scratch / f"{name}.npy", read) for name, member in kept.items()}
    return RawGraph(
        title=str(file),
        blocks=partial(_edges, edges, read),
        num_vertices=vertices,
        num_edges=counts.get(COUNTS[1]),
        features=arrays.get("node_feat"),
        edge_features=arrays.get("edge_feat"),
        labels=None if label is None else labels_of(label.whole(), beside, config),
        names={
            "features": f"{file}: node_feat", "edge_features": f"{file}: edge_feat", "labels": f"{beside}: node_label",
        },
    )  # fmt: skip


def _edges(member: Member, read: Callable[[int], None], as_text: bool) -> Iterator[EdgeBlock]:
    """The stream of edges of an array [2, E], both of whose rows are read at a time."""
    count = member.shape[1]
    pairs: Iterator[Any] = zip(member.blocks(0, count), member.blocks(count), strict=True)
    if member.by_column:
        pairs = (block.reshape(-1, 2).T for block in member.blocks(step=2 * zipped.BLOCK))
    first = 0
    for source, destination in pairs:
        yield from array_blocks(str(member.file), source, destination, None, first=first)(as_text)
        first += len(source)
        read(2 * source.nbytes)


def _only(counts: np.ndarray, name: str) -> int:
    """The count of the only graph."""
    if counts.size != 1 or counts.dtype.kind not in "iu":
        found = f"{counts.size} graphs" if counts.dtype.kind in "iu" else f"{counts.dtype}"
        raise InputError(f"{name}: {found}, expected one (a node-property dataset), by an integer")
    return int(counts.ravel()[0])


def labels_of(table: np.ndarray, file: Path, config: PreprocessConfig) -> np.ndarray:
    """One column: classes, with -1 for nan, or numbers to predict. Several: one yes or no each, or numbers."""
    if table.ndim not in (1, 2) or table.dtype.kind not in "biuf":
        raise InputError(f"{file}: {table.dtype} of shape {table.shape}, expected numbers [N, 1] or [N, C]")
    if (table.ndim == 2 and table.shape[1] > 1) or config.task == "regression":
        return table
    column = table.ravel().astype(np.float64) if table.dtype.kind == "f" else table.ravel()
    column = np.where(np.isnan(column), -1, column)
    with np.errstate(invalid="ignore"):  # of infinities
        bad = np.flatnonzero((column % 1 != 0) | (np.abs(column) >= 2**53))
    if len(bad):
        raise InputError(
            f"{file}: row {bad[0]}: {column[bad[0]]}, expected the number of a class, or nan for none; pass --task "
            "regression for numbers to predict"
        )
    return column.astype(np.int64)


def only_split(folder: Path) -> Path | None:
    """The folder of the only split of a dataset; None where there is none."""
    kinds = sorted(kind for kind in folder.iterdir() if kind.is_dir()) if folder.is_dir() else []
    if len(kinds) > 1:
        found = ", ".join(kind.name for kind in kinds)
        raise InputError(f"{folder}: several splits ({found}), expected one; keep the one you want")
    return kinds[0] if kinds else None


def masks_in(kind: Path, num_vertices: int) -> dict[str, np.ndarray]:
    """The masks of a split in its folder: ``split_dict.pt`` or a file each for train, valid and test, as .csv.gz, .pt,
    .npz or .npy."""
    whole = kind / "split_dict.pt"
    if whole.is_file():
        return masks_of(read_arrays(whole), whole, num_vertices)
    masks = {}
    for split, stem in SPLITS.items():
        file = split_file(kind, stem)
        if file.suffix == ".gz":
            table = read_table(file, np.int64, num_vertices)
            if table.shape[1] != 1:
                raise InputError(f"{file}: {table.shape[1]} columns, expected one, a vertex a line; download it again")
            masks[split] = _mask(table[:, 0], num_vertices, f"{file}: line")
        else:
            one = dict(zip((stem,), read_arrays(file).values(), strict=False))  # whatever its name in the file
            masks |= masks_of(one, file, num_vertices, (split,))
    return masks


def split_file(kind: Path, stem: str) -> Path:
    """Where a split's vertices stand, or should."""
    files = [kind / name for name in ("split_dict.pt", *(f"{stem}{ending}" for ending in (".pt", ".npz", ".npy")))]
    return next((file for file in files if file.is_file()), kind / f"{stem}.csv.gz")


def masks_of(
    arrays: dict[str, np.ndarray], file: Path, num_vertices: int, splits: Iterable[str] = tuple(SPLITS)
) -> dict[str, np.ndarray]:
    """The masks of vertex numbers under OGB's names."""
    masks = {}
    for split in splits:
        members = arrays.get(SPLITS[split])
        if members is None or members.ndim > 2 or members.size != len(members) or members.dtype.kind not in "iu":
            found = "missing" if members is None else f"{members.dtype} of shape {members.shape}"
            raise InputError(f"{file}: {SPLITS[split]}: {found}, expected vertex numbers; download it again")
        masks[split] = _mask(members.ravel(), num_vertices, f"{file}: {SPLITS[split]}, number")
    return masks


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a .pt, .npz or .npy file by name; of a single one under the file's."""
    if file.suffix == ".npy":
        return {file.stem: open_npy(file, "download it again")}
    if file.suffix == ".npz":
        return {name: member.whole() for name, member in members(file).items()}
    found = None
    # torch opens tensors safely, and numpy's arrays not at all
    with contextlib.suppress(Exception), zipfile.ZipFile(file) as archive:
        check_stored(file)
        (inside,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        found = load_arrays(archive.read(inside))
    found = load_torch_file(file) if found is None else found
    found = found if isinstance(found, dict) else {file.stem: found}
    return {str(name): np.asarray(getattr(value, "value", value)) for name, value in found.items()}


def _mask(members: np.ndarray, num_vertices: int, title: str) -> np.ndarray:
    bad = np.flatnonzero((members < 0) | (members >= num_vertices))
    if len(bad):
        raise InputError(f"{title} {bad[0] + 1}: vertex {members[bad[0]]}, expected 0 to {num_vertices - 1}")
    mask = np.zeros(num_vertices, dtype=bool)
    mask[members] = True
    return mask
