"""What an artifact directory holds: the arrays, the manifest, their hashes, and the shapes that go together."""

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
_LEAST = {"vertices": 1, "edges": 0, "partitions": 1, "chunks": 1, "feature_width": 1, "classes": 1}


def check_hash(file: Path, found: str, expected: Any) -> None:
    """Compare a file's hash with the manifest's.

    Raises:
        InputError: when they differ.
    """
    if found != expected:
        raise InputError(
            f"{file}: hash {found[:12]}... differs from the manifest's {str(expected)[:12]}...; "
            "the file was changed or damaged: run `hongtu preprocess` again"
        )


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
    """The parsed ``manifest.json`` of an artifact directory.

    Raises:
        InputError: when it is absent, damaged or of another version.
    """
    file = path / MANIFEST
    if not file.is_file():
        raise InputError(f"{path}: not an artifact (no {MANIFEST}); make one with `hongtu preprocess INPUT {path}`")
    manifest = read_json(file, "run `hongtu preprocess` again")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{file}: expected format {FORMAT!r}; run `hongtu preprocess` again")
    if manifest.get("version") != VERSION:
        raise InputError(
            f"{file}: artifact version {manifest.get('version')!r}, this hongtu reads version {VERSION}; "
            "run `hongtu preprocess` again"
        )
    for key, least in _LEAST.items():
        if type(manifest.get(key)) is not int or not least <= manifest[key] < 2**62:
            raise InputError(f"{file}: {key} is {manifest.get(key)!r}, expected an integer of at least {least}")
    if not isinstance(manifest.get("arrays"), dict):
        raise InputError(f"{file}: no table of arrays; run `hongtu preprocess` again")
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
        if not is_good:
            shown = reprlib.repr(manifest.get(key))
            raise InputError(f"{file}: {key} is {shown}, not as `hongtu preprocess` writes it; run it again")


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(type(value) in (int, float) and abs(value) < 2**62 for value in values)


def _are_rows(volume: Any) -> bool:
    return isinstance(volume, dict) and {"v_ori", "v_p2p", "v_ru"} <= set(volume) and _are_numbers(volume.values())


def open_array(path: Path, name: str, entry: Any) -> np.ndarray:
    """Memory-map one array, as its entry in the manifest's table says that it is.

    Raises:
        InputError: when it is absent, truncated or another array.
    """
    file = path / f"{name}.npy"
    if name not in ARRAYS or not isinstance(entry, dict):
        raise InputError(f"{path / MANIFEST}: unknown array {name!r}; run `hongtu preprocess` again")
    dtypes, shape, _ = ARRAYS[name]
    if not file.is_file():
        raise InputError(f"{file}: missing; run `hongtu preprocess` again")
    if file.stat().st_size != entry.get("bytes"):
        raise InputError(
            f"{file}: {file.stat().st_size} bytes, the manifest says {entry.get('bytes')}; "
            "the file was truncated or changed: run `hongtu preprocess` again"
        )
    array = open_npy(file, "run `hongtu preprocess` again")
    ndim = len(shape.split())
    if str(array.dtype) not in dtypes or (name != "labels" and array.ndim != ndim):
        raise InputError(f"{file}: {array.dtype} {array.shape}, expected {' or '.join(dtypes)} with {ndim} dimensions")
    if name == "labels" and array.ndim != (2 if array.dtype == np.float32 else 1):
        raise InputError(f"{file}: {array.dtype} {array.shape}, expected int64 [V] or float32 [V, C]; preprocess again")
    if list(array.shape) != entry.get("shape") or str(array.dtype) != entry.get("dtype"):
        raise InputError(f"{file}: {array.dtype} {array.shape} is not what the manifest says; preprocess again")
    return array


def check_shapes(path: Path, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Compare the arrays' shapes with the manifest and with each other.

    Raises:
        InputError: naming the first that does not fit.
    """
    v, e, m, n = (manifest[key] for key in ("vertices", "edges", "partitions", "chunks"))
    sizes = {"V": v, "V+1": v + 1, "E": e, "m": m, "n": n, "mn+1": m * n + 1}
    sizes |= {"F": manifest["feature_width"], "C": manifest["classes"]}
    for name, array in arrays.items():
        expected = tuple(sizes.get(size, found) for size, found in zip(ARRAYS[name][1].split(), array.shape))
        if array.shape != expected:
            raise InputError(f"{path / name}.npy: shape {array.shape}, expected {expected} from the manifest")
    for group in (("name_start", "name_text"), tuple(f"feature_{part}" for part in PARTS)):
        missing = [name for name in group if name not in arrays]
        if 0 < len(missing) < len(group):
            raise InputError(
                f"{path / MANIFEST}: one of {', '.join(group)} is missing: {missing[0]}; run `hongtu preprocess` again"
            )
    if "feature_start" in arrays and len(arrays["feature_column"]) != len(arrays["feature_value"]):
        raise InputError(f"{path}: feature_column and feature_value differ in length; run `hongtu preprocess` again")
    one_column = arrays["labels"].ndim == 1
    if one_column and manifest["classes"] > max(v, MOST_CLASSES):
        raise InputError(
            f"{path / MANIFEST}: classes is {manifest['classes']}, expected at most {max(v, MOST_CLASSES)}; run "
            "`hongtu preprocess` again"
        )
    if manifest.get("task") not in (("multiclass", "links") if one_column else ("multilabel", "regression")):
        raise InputError(
            f"{path / MANIFEST}: task {manifest.get('task')!r} does not fit labels {arrays['labels'].dtype} "
            f"{arrays['labels'].shape}; run `hongtu preprocess` again"
        )
    if "edge_features" in arrays and arrays["edge_features"].shape[1] == 0:
        raise InputError(f"{path / 'edge_features'}.npy: no columns; run `hongtu preprocess` again")
    types = manifest.get("edge_types")
    if "edge_type" in arrays and (type(types) is not int or not 1 <= types < 2**31):
        raise InputError(f"{path / MANIFEST}: edge_types is {types!r}, expected at least 1; preprocess again")
    forms = manifest.get("edge_forms", {})
    if not isinstance(forms, dict) or forms.get("edge_features", "2f") not in FORMS:
        raise InputError(f"{path / MANIFEST}: edge_forms is {forms!r}, expected names; preprocess again")
    widths = manifest.get("vertex_types")
    if widths is not None and not (
        isinstance(widths, list)
        and widths
        and all(type(width) is int and width >= 0 for width in widths)
        and 1 + max(widths) == manifest["feature_width"]
    ):
        raise InputError(f"{path / MANIFEST}: vertex_types do not fit feature_width; run `hongtu preprocess` again")
    try:
        read_types(manifest)
    except ValueError:
        raise InputError(f"{path / MANIFEST}: types do not fit the graph; run `hongtu preprocess` again") from None
    ends = {"chunk_start": v, "source_start": len(arrays["sources"]), "in_edge_start": e}
    if "name_start" in arrays:
        ends["name_start"] = len(arrays["name_text"])
    if "feature_start" in arrays:
        ends["feature_start"] = len(arrays["feature_value"])
    for name, last in ends.items():
        array = arrays[name]
        if array[0] != 0 or array[-1] != last or np.any(np.diff(array) < 0):
            raise InputError(f"{path / name}.npy: expected an ascending array from 0 to {last}; preprocess again")


def file_hash(file: Path) -> str:
    """Hexadecimal BLAKE2b-256 of a file."""
    digest = hashlib.blake2b(digest_size=32)
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
