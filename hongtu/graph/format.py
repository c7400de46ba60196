"""What an artifact directory holds: the arrays, the manifest, their hashes, the shapes that go together, and what
indices must satisfy, so that nothing that runs on them reads out of bounds."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.files import open_npy, read_json
from hongtu.graph.sparse_rows import PARTS
from hongtu.graph.vertex_types import read_types

FORMAT = "hongtu-artifact"
VERSION = 1
MANIFEST = "manifest.json"
ORIGIN, STAGES = "origin.json", "stages.jsonl"  # beside it: what the artifact is made of, and how; no part of it

# name -> (dtypes allowed, shape, required); sizes that are no letter of `check_shapes` are any
ARRAYS: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "original_id": (("int32",), "V", True),  # original number of every new id
    "vertex_id": (("int64",), "V", False),  # the input's own id of every original number, where it is another
    "name_start": (("int64",), "V+1", False),  # the same, where ids are text: starts in name_text
    "name_text": (("uint8",), "*", False),  # UTF-8
    "chunk_start": (("int64",), "mn+1", True),
    "in_edge_start": (("int64",), "V+1", True),
    "source_start": (("int64",), "mn+1", True),
    "sources": (("int32",), "*", True),  # [sum |N_ij|]
    "local_source": (("int32",), "E", True),
    "edge_weight": (("float32",), "E", False),
    "edge_features": (("float32",), "E *", False),
    "edge_type": (("int32",), "E", False),  # from 0 to the manifest's "edge_types" - 1
    "schedule_paper": (("int32",), "m n", True),  # chunk j of partition i run in batch k (Algorithm 4)
    "features": (("float32",), "V F", False),  # absent where training learns embeddings, or sparse as follows
    "feature_start": (("int64",), "V+1", False),  # CSR
    "feature_column": (("int32",), "*", False),
    "feature_value": (("float32",), "*", False),
    "labels": (("int64", "float32"), "V C", True),  # int64 [V] or float32 [V, C]
    "train_mask": (("bool",), "V", True),
    "val_mask": (("bool",), "V", True),
    "test_mask": (("bool",), "V", True),
}

TENSOR, OF_SPARSE = "sparse tensor", "SparseTensor"  # of torch and torch-sparse: whose values edge weights were
FORMS = tuple(f"{rank}{kind}" for rank in (1, 2) for kind in "fib")  # of edge features, as the input had them
MOST_CLASSES = 1 << 20  # that are more than there are vertices
STARTS = {"name_start": "name_text", "feature_start": "feature_value"}  # which array says where others begin
_LEAST = {"vertices": 1, "edges": 0, "partitions": 1, "chunks": 1, "feature_width": 1, "classes": 1}


def expect(file: Path, good: bool, found: str) -> None:
    """Refuse a file of an artifact that is not as it was written."""
    if not good:
        raise InputError(f"{file}: {found}; run `hongtu preprocess` again")


def check_hash(file: Path, found: str, expected: Any) -> None:
    """Compare a file's hash with the manifest's."""
    said = f"hash {found[:12]}... differs from the manifest's {str(expected)[:12]}...: it was changed or damaged"
    expect(file, found == expected, said)


def manifest_hash(path: Path, manifest: dict[str, Any]) -> str:
    """Hash of the manifest's text with its own hash left out."""
    return text_hash((path / MANIFEST).read_bytes().replace(str(manifest.get("hash")).encode(errors="replace"), b"", 1))


def manifest_text(manifest: dict[str, Any]) -> bytes:
    """The bytes of ``manifest.json``."""
    return (json.dumps(manifest, indent=1) + "\n").encode()


def text_hash(text: bytes) -> str:
    """Hexadecimal BLAKE2b-256 of bytes."""
    return hashlib.blake2b(text, digest_size=32).hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """The parsed ``manifest.json`` of an artifact directory."""
    file = path / MANIFEST
    if not file.is_file():
        found, remedy = f"no {MANIFEST}", "pass the directory that `hongtu preprocess INPUT ARTIFACT` wrote"
        if path.is_file():
            found = "a file, and an artifact is a directory"
        elif not path.exists():
            remedy = f"make one with `hongtu preprocess INPUT {path}`"
        elif any(path.glob("edges.*")):
            found = f"no {MANIFEST}, a graph as it was before preprocessing"
            remedy = f"make one with `hongtu preprocess {path} ARTIFACT`, and pass ARTIFACT"
        raise InputError(f"{path}: not an artifact ({found}); {remedy}")
    manifest = read_json(file, "run `hongtu preprocess` again")
    expect(file, isinstance(manifest, dict) and manifest.get("format") == FORMAT, f"expected format {FORMAT!r}")
    version = manifest.get("version")
    expect(file, version == VERSION, f"artifact version {version!r}, this hongtu reads version {VERSION}")
    for key, least in _LEAST.items():
        value = manifest.get(key)
        good = type(value) is int and least <= value < 2**62
        expect(file, good, f"{key} is {value!r}, expected an integer of at least {least}")
    expect(file, isinstance(manifest.get("arrays"), dict), "no table of arrays")
    _check_told(file, manifest)
    return manifest


def _check_told(file: Path, manifest: dict[str, Any]) -> None:
    """Check the form of what no array depends on, and people are shown."""
    volume, statistics = manifest.get("volume"), manifest.get("statistics", {})
    balance = statistics.get("balance", {}) if isinstance(statistics, dict) else None
    good = {
        "hash": isinstance(manifest.get("hash"), str),
        "settings": isinstance(manifest.get("settings"), dict),
        "alpha": _are_numbers([manifest.get("alpha", 0)]),
        "sparse_numbers": _are_numbers([manifest.get("sparse_numbers", 0)]),
        "volume": isinstance(volume, dict) and bool(volume) and all(map(_are_rows, volume.values())),
        "statistics": isinstance(balance, dict)
        and _are_numbers(balance.values())
        and _are_numbers(value for name, value in statistics.items() if name not in ("balance", "order")),
    }
    for key, is_good in good.items():
        expect(file, is_good, f"{key} is {reprlib.repr(manifest.get(key))}, not as it was written")


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(type(value) in (int, float) and abs(value) < 2**62 for value in values)


def _are_rows(volume: Any) -> bool:
    return isinstance(volume, dict) and {"v_ori", "v_p2p", "v_ru"} <= set(volume) and _are_numbers(volume.values())


def open_array(path: Path, name: str, entry: Any) -> np.ndarray:
    """Memory-map one array, as its entry in the manifest's table says that it is."""
    file = path / f"{name}.npy"
    expect(path / MANIFEST, name in ARRAYS and isinstance(entry, dict), f"unknown array {name!r}")
    dtypes, shape, _ = ARRAYS[name]
    expect(file, file.is_file(), "missing")
    nbytes, said = file.stat().st_size, entry.get("bytes")
    expect(file, nbytes == said, f"{nbytes} bytes, the manifest says {said}")
    array = open_npy(file, "run `hongtu preprocess` again")
    ndim, found = len(shape.split()), f"{array.dtype} {array.shape}"
    if name == "labels":
        ndim = 2 if array.dtype == np.float32 else 1
    good = str(array.dtype) in dtypes and array.ndim == ndim
    expect(file, good, f"{found}, expected {' or '.join(dtypes)} with {ndim} dimensions")
    good = list(array.shape) == entry.get("shape") and str(array.dtype) == entry.get("dtype")
    expect(file, good, f"{found} is not what the manifest says")
    return array


def check_shapes(path: Path, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Compare the arrays' shapes with the manifest and with each other."""
    file = path / MANIFEST
    v, e, m, n = (manifest[key] for key in ("vertices", "edges", "partitions", "chunks"))
    sizes = {"V": v, "V+1": v + 1, "E": e, "m": m, "n": n, "mn+1": m * n + 1}
    sizes |= {"F": manifest["feature_width"], "C": manifest["classes"]}
    for name, array in arrays.items():
        expected = tuple(sizes.get(size, found) for size, found in zip(ARRAYS[name][1].split(), array.shape))
        said = f"shape {array.shape}, expected {expected} from the manifest"
        expect(path / f"{name}.npy", array.shape == expected, said)
    for group in (("name_start", "name_text"), tuple(f"feature_{part}" for part in PARTS)):
        missing = [name for name in group if name not in arrays]
        expect(file, len(missing) in (0, len(group)), f"of {', '.join(group)} is missing: {', '.join(missing)}")
    if "feature_start" in arrays:
        fits = len(arrays["feature_column"]) == len(arrays["feature_value"])
        expect(path, fits, "feature_column and feature_value differ in length")
    labels, classes, task = arrays["labels"], manifest["classes"], manifest.get("task")
    most = max(v, MOST_CLASSES) if labels.ndim == 1 else classes
    expect(file, classes <= most, f"classes is {classes}, expected at most {most}")
    fits = task in (("multiclass", "links") if labels.ndim == 1 else ("multilabel", "regression"))
    expect(file, fits, f"task {task!r} does not fit labels {labels.dtype} {labels.shape}")
    if "edge_features" in arrays:
        expect(path / "edge_features.npy", arrays["edge_features"].shape[1] > 0, "no columns")
    types = manifest.get("edge_types")
    good = "edge_type" not in arrays or (type(types) is int and 1 <= types < 2**31)
    expect(file, good, f"edge_types is {types!r}, expected at least 1")
    forms = manifest.get("edge_forms", {})
    good = isinstance(forms, dict) and forms.get("edge_features", "2f") in FORMS
    expect(file, good, f"edge_forms is {forms!r}, expected names")
    widths = manifest.get("vertex_types")
    good = widths is None or (
        isinstance(widths, list)
        and all(type(width) is int and width >= 0 for width in widths)
        and 1 + max(widths, default=-1) == manifest["feature_width"]
    )
    expect(file, good, "vertex_types do not fit feature_width")
    try:
        read_types(manifest)
    except ValueError:
        expect(file, False, "types do not fit the graph")
    ends = {"chunk_start": v, "source_start": len(arrays["sources"]), "in_edge_start": e}
    ends |= {name: len(arrays[of]) for name, of in STARTS.items() if name in arrays}
    for name, last in ends.items():
        array = arrays[name]
        good = array[0] == 0 and array[-1] == last and not np.any(np.diff(array) < 0)
        expect(path / f"{name}.npy", good, f"expected an ascending array from 0 to {last}")


def file_hash(file: Path) -> str:
    """Hexadecimal BLAKE2b-256 of a file."""
    digest = hashlib.blake2b(digest_size=32)
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_bounds(artifact: Any) -> None:
    """Compare the least and largest of every index with what it points into: cheap, and enough for memory safety."""
    topology, vertices = artifact.topology, artifact.num_vertices
    ranges = {
        "original_id": (artifact.original_id, 0, vertices), "sources": (topology.sources, 0, vertices),
        "schedule_paper": (artifact.schedule_paper, 0, topology.chunks),
        "local_source": (topology.local_source, 0, vertices),
    }  # fmt: skip
    if topology.edge_type is not None:
        ranges["edge_type"] = topology.edge_type, 0, artifact.num_edge_types
    if artifact.sparse_features is not None:
        ranges["feature_column"] = artifact.sparse_features.column, 0, artifact.sparse_features.width
    if artifact.task == "multiclass":
        ranges["labels"] = artifact.labels, -1, artifact.num_classes
    for name, (array, least, end) in ranges.items():
        for found in (array.min(initial=least), array.max(initial=end - 1)):
            said = f"holds {found}, expected {least} to {end - 1}"
            expect(artifact.path / f"{name}.npy", bool(least <= found < end), said)
    edge_start = np.asarray(topology.in_edge_start)[topology.chunk_start]
    busy = np.flatnonzero(np.diff(edge_start))
    if len(busy):
        largest = np.maximum.reduceat(topology.local_source, edge_start[busy])
        beyond = busy[largest >= topology.num_sources[busy]]
        _expect(artifact, "local_source", not len(beyond), f"less than the chunk's sources in chunk {beyond[:1]}")


def check_indices(artifact: Any) -> None:
    """Read every index and compare it with what it must be."""
    check_bounds(artifact)
    topology, vertices = artifact.topology, artifact.num_vertices
    seen = np.zeros(vertices, dtype=bool)
    seen[artifact.original_id] = True
    _expect(artifact, "original_id", bool(seen.all()), f"each number from 0 to {vertices - 1} once")
    chunks = np.arange(topology.chunks)
    rows = np.sort(np.asarray(artifact.schedule_paper), axis=1)
    _expect(
        artifact, "schedule_paper", bool((rows == chunks).all()), f"each chunk from 0 to {len(chunks) - 1} in a row"
    )
    steps = np.diff(np.asarray(topology.sources).astype(np.int64))
    starts = np.asarray(topology.source_start)[1:-1]
    steps[starts[(starts > 0) & (starts <= len(steps))] - 1] = 1  # from one chunk to the next
    _expect(artifact, "sources", bool(np.all(steps > 0)), "ascending vertices in every chunk")
    if artifact.task == "multiclass":
        for split, mask in artifact.masks.items():
            _expect(artifact, f"{split}_mask", bool(np.all(artifact.labels[mask] >= 0)), "labelled vertices only")


def _expect(artifact: Any, name: str, good: bool, expected: str) -> None:
    expect(artifact.path / f"{name}.npy", good, f"expected {expected}")
