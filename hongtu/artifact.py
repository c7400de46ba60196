"""The artifact directory: the contract between preprocessing and training.

Arrays first, ``manifest.json`` last, written to a temporary sibling and renamed: an artifact is complete or absent.
Vertices carry *new* ids: partition i owns a contiguous range and chunk (i, j) a contiguous sub-range of it.
This module must not import torch: preprocessing runs without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.artifact_check import check_bounds, check_indices
from hongtu.errors import InputError
from hongtu.npy import open_npy
from hongtu.output import check_output, replace_directory, reserve, temporary_sibling
from hongtu.sparse_rows import PARTS, SparseRows
from hongtu.topology import Topology
from hongtu.vertex_ids import VertexIds

FORMAT = "hongtu-artifact"
VERSION = 1
MANIFEST = "manifest.json"

# name -> (dtypes allowed, dimensions, required)
ARRAYS: dict[str, tuple[tuple[str, ...], int, bool]] = {
    "original_id": (("int32",), 1, True),  # [V] original number of every new id
    "vertex_id": (("int64",), 1, False),  # [V] the input's own id of every original number, where it is another
    "name_start": (("int64",), 1, False),  # [V + 1] the same, where ids are text: starts in name_text
    "name_text": (("uint8",), 1, False),  # UTF-8
    "chunk_start": (("int64",), 1, True),  # [m * n + 1]
    "in_edge_start": (("int64",), 1, True),  # [V + 1]
    "source_start": (("int64",), 1, True),  # [m * n + 1]
    "sources": (("int32",), 1, True),  # [sum |N_ij|]
    "local_source": (("int32",), 1, True),  # [E]
    "edge_weight": (("float32",), 1, False),  # [E]
    "edge_features": (("float32",), 2, False),  # [E, F_e]
    "edge_type": (("int32",), 1, False),  # [E] from 0 to the manifest's "edge_types" - 1
    "schedule_paper": (("int32",), 2, True),  # [m, n] chunk j of partition i run in batch k (Algorithm 4)
    "features": (("float32",), 2, False),  # [V, F], absent where training learns embeddings, or sparse as follows
    "feature_start": (("int64",), 1, False),  # [V + 1], CSR
    "feature_column": (("int32",), 1, False),
    "feature_value": (("float32",), 1, False),
    "labels": (("int64", "float32"), 0, True),  # [V] or [V, C]
    "train_mask": (("bool",), 1, True),  # [V]
    "val_mask": (("bool",), 1, True),  # [V]
    "test_mask": (("bool",), 1, True),  # [V]
}

_LEAST = {"vertices": 1, "edges": 0, "partitions": 1, "chunks": 1, "feature_width": 1, "classes": 1}


class Artifact:
    """A preprocessed graph on disk; arrays are memory-mapped, in new vertex order.

    Attributes:
        path: the directory.
        manifest: the parsed ``manifest.json``.
        original_id: int32 [V].
        vertex_ids: the id that the input gave each vertex, by original number, or None where it is that number.
        features: float32 [V, F], or None where they are sparse or learned.
        sparse_features: features as CSR rows, or None.
        labels: int64 [V] (-1 = none) or float32 [V, C] (all-NaN row = none), as ``task`` says.
        masks: ``{"train" | "val" | "test": bool [V]}``.
        schedule_paper: int32 [m, n].
        topology: the chunks at the artifact's own (finest) grain.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.path = path
        self.manifest = manifest
        self._opened = {file: _file_identity(file) for file in (path / f"{name}.npy" for name in arrays)}
        self.original_id = arrays["original_id"]
        ids = (arrays.get("vertex_id"), arrays.get("name_start"), arrays.get("name_text"))
        self.vertex_ids = VertexIds(*ids) if ids[0] is not None or ids[1] is not None else None
        self.features = arrays.get("features")
        self.sparse_features: SparseRows | None = None
        if "feature_start" in arrays:
            start, column, value = (arrays[f"feature_{part}"] for part in PARTS)
            self.sparse_features = SparseRows(start, column, value, manifest["feature_width"])
        self.labels = arrays["labels"]
        self.masks = {split: arrays[f"{split}_mask"] for split in ("train", "val", "test")}
        self.schedule_paper = arrays["schedule_paper"]
        self.topology = Topology(
            partitions=manifest["partitions"],
            chunks=manifest["chunks"],
            chunk_start=np.asarray(arrays["chunk_start"]),
            in_edge_start=arrays["in_edge_start"],
            source_start=np.asarray(arrays["source_start"]),
            sources=arrays["sources"],
            local_source=arrays["local_source"],
            edge_weight=arrays.get("edge_weight"),
            edge_features=arrays.get("edge_features"),
            edge_type=arrays.get("edge_type"),
        )

    @property
    def num_vertices(self) -> int:
        return self.manifest["vertices"]

    @property
    def num_edges(self) -> int:
        return self.manifest["edges"]

    @property
    def feature_width(self) -> int:
        return self.manifest["feature_width"]

    @property
    def learns_features(self) -> bool:
        """Whether training learns embeddings of ``feature_width`` columns."""
        return self.features is None and self.sparse_features is None

    @property
    def edge_feature_width(self) -> int:
        """F_e, or 0 where edges have no features."""
        features = self.topology.edge_features
        return 0 if features is None else features.shape[1]

    @property
    def num_edge_types(self) -> int:
        """How many types edges have, or 0 where they have none."""
        return 0 if self.topology.edge_type is None else self.manifest["edge_types"]

    @property
    def vertex_type_widths(self) -> tuple[int, ...]:
        """Columns of each vertex type's features, which ``hongtu.nn.TypedLinear`` takes; () without types. Column 0 of
        ``features`` is then the type, the vertex's own come next."""
        return tuple(self.manifest.get("vertex_types", ()))

    @property
    def num_classes(self) -> int:
        return self.manifest["classes"]

    @property
    def task(self) -> str:
        """What labels are: "multiclass" (int64 [V]), "multilabel" or "regression" (float32 [V, C])."""
        return self.manifest["task"]

    @property
    def multi_label(self) -> bool:
        return self.task == "multilabel"

    def check_bounds(self) -> None:
        """Refuse indices that point out of what they index, before anything runs on them.

        Raises:
            InputError: naming the first array.
        """
        check_bounds(self)

    def check_files(self) -> None:
        """Refuse files that were cut short since they were opened: reading what is gone of a mapped file kills the
        process. A file that was removed, or replaced by another, is still there for who has it open.

        Raises:
            InputError: naming the first.
        """
        for file, (device, inode, size) in self._opened.items():
            try:
                now = file.stat()
            except OSError:
                continue
            if (now.st_dev, now.st_ino) == (device, inode) and now.st_size < size:
                raise InputError(
                    f"{file}: cut from {size} to {now.st_size} bytes while it was in use; run `hongtu preprocess` again"
                )

    def numbers(self, vertices: Iterable[Any]) -> np.ndarray:
        """int64, the original numbers of vertices named as the input names them.

        Raises:
            InputError: for a vertex that is not there.
        """
        if self.vertex_ids is not None:
            return self.vertex_ids.numbers(vertices)
        numbers = np.array(list(vertices))
        bad = np.flatnonzero((numbers < 0) | (numbers >= self.num_vertices)) if numbers.dtype.kind in "iu" else [0]
        if len(numbers) and len(bad):
            raise InputError(f"vertex {numbers[bad[0]]!r}, expected an integer from 0 to {self.num_vertices - 1}")
        return numbers.astype(np.int64)

    def verify(self) -> None:
        """Read the manifest and every array, compare their hashes with those in the manifest, and the indices with
        what they point into.

        Raises:
            InputError: naming the first file that differs.
        """
        _check_hash(self.path / MANIFEST, _manifest_hash(self.path, self.manifest), self.manifest.get("hash"))
        for name, entry in self.manifest["arrays"].items():
            file = self.path / f"{name}.npy"
            _check_hash(file, file_hash(file), entry.get("hash"))
        check_indices(self)


def open_artifact(path: str | os.PathLike[str], *, verify: bool = False) -> Artifact:
    """Open an artifact directory; sizes, dtypes and shapes are always checked, hashes only with ``verify``.

    Raises:
        InputError: when it is absent, incomplete, of another version, truncated or (``verify``) changed.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    arrays = {name: _open_array(path, name, entry) for name, entry in manifest["arrays"].items()}
    for name, (_, _, required) in ARRAYS.items():
        if required and name not in arrays:
            raise InputError(f"{path / MANIFEST}: array {name!r} is missing; run `hongtu preprocess` again")
    _check_shapes(path, manifest, arrays)
    artifact = Artifact(path, manifest, arrays)
    if verify:
        artifact.verify()
    return artifact


def _file_identity(file: Path) -> tuple[int, int, int]:
    """Device, inode and bytes."""
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_size


def _check_hash(file: Path, found: str, expected: Any) -> None:
    if found != expected:
        raise InputError(
            f"{file}: hash {found[:12]}... differs from the manifest's {str(expected)[:12]}...; "
            "the file was changed or damaged: run `hongtu preprocess` again"
        )


def _manifest_hash(path: Path, manifest: dict[str, Any]) -> str:
    """Hash of the manifest's text with its own hash left out."""
    return _hash((path / MANIFEST).read_bytes().replace(str(manifest.get("hash")).encode(errors="replace"), b"", 1))


def _manifest_text(manifest: dict[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=1) + "\n").encode()


def _hash(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=32).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        raise InputError(f"{path}: not an artifact (no {MANIFEST}); make one with `hongtu preprocess INPUT {path}`")
    try:
        manifest = json.loads(file.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{file}: not valid JSON ({error}); run `hongtu preprocess` again") from None
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
    return manifest


def _open_array(path: Path, name: str, entry: Any) -> np.ndarray:
    file = path / f"{name}.npy"
    if name not in ARRAYS or not isinstance(entry, dict):
        raise InputError(f"{path / MANIFEST}: unknown array {name!r}; run `hongtu preprocess` again")
    dtypes, ndim, _ = ARRAYS[name]
    if not file.is_file():
        raise InputError(f"{file}: missing; run `hongtu preprocess` again")
    if file.stat().st_size != entry.get("bytes"):
        raise InputError(
            f"{file}: {file.stat().st_size} bytes, the manifest says {entry.get('bytes')}; "
            "the file was truncated or changed: run `hongtu preprocess` again"
        )
    array = open_npy(file, "run `hongtu preprocess` again")
    if str(array.dtype) not in dtypes or (ndim and array.ndim != ndim):
        raise InputError(f"{file}: {array.dtype} {array.shape}, expected {' or '.join(dtypes)} with {ndim} dimensions")
    if name == "labels" and (array.ndim == 2) != (array.dtype == np.float32):
        raise InputError(f"{file}: {array.dtype} {array.shape}, expected int64 [V] or float32 [V, C]; preprocess again")
    if list(array.shape) != entry.get("shape") or str(array.dtype) != entry.get("dtype"):
        raise InputError(f"{file}: {array.dtype} {array.shape} is not what the manifest says; preprocess again")
    return array


def _check_shapes(path: Path, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    v, e, m, n = (manifest[key] for key in ("vertices", "edges", "partitions", "chunks"))
    expected: dict[str, tuple[int, ...]] = {
        "original_id": (v,),
        "vertex_id": (v,),
        "name_start": (v + 1,),
        "chunk_start": (m * n + 1,),
        "in_edge_start": (v + 1,),
        "source_start": (m * n + 1,),
        "local_source": (e,),
        "edge_weight": (e,),
        "edge_features": (e, *arrays["edge_features"].shape[1:]) if "edge_features" in arrays else (e,),
        "edge_type": (e,),
        "schedule_paper": (m, n),
        "features": (v, manifest["feature_width"]),
        "feature_start": (v + 1,),
        "labels": (v, manifest["classes"]) if arrays["labels"].ndim == 2 else (v,),
        "train_mask": (v,),
        "val_mask": (v,),
        "test_mask": (v,),
    }
    for name, shape in expected.items():
        if name in arrays and arrays[name].shape != shape:
            raise InputError(f"{path / name}.npy: shape {arrays[name].shape}, expected {shape} from the manifest")
    for group in (("name_start", "name_text"), tuple(f"feature_{part}" for part in PARTS)):
        missing = [name for name in group if name not in arrays]
        if 0 < len(missing) < len(group):
            raise InputError(
                f"{path / MANIFEST}: one of {', '.join(group)} is missing: {missing[0]}; run `hongtu preprocess` again"
            )
    if "feature_start" in arrays and len(arrays["feature_column"]) != len(arrays["feature_value"]):
        raise InputError(f"{path}: feature_column and feature_value differ in length; run `hongtu preprocess` again")
    if manifest.get("task") not in (("multiclass",) if arrays["labels"].ndim == 1 else ("multilabel", "regression")):
        raise InputError(
            f"{path / MANIFEST}: task {manifest.get('task')!r} does not fit labels {arrays['labels'].dtype} "
            f"{arrays['labels'].shape}; run `hongtu preprocess` again"
        )
    if "edge_features" in arrays and arrays["edge_features"].shape[1] == 0:
        raise InputError(f"{path / 'edge_features'}.npy: no columns; run `hongtu preprocess` again")
    types = manifest.get("edge_types")
    if "edge_type" in arrays and (type(types) is not int or not 1 <= types < 2**31):
        raise InputError(f"{path / MANIFEST}: edge_types is {types!r}, expected at least 1; preprocess again")
    widths = manifest.get("vertex_types")
    if widths is not None and not (
        isinstance(widths, list)
        and widths
        and all(type(width) is int and width > 0 for width in widths)
        and 1 + max(widths) == manifest["feature_width"]
    ):
        raise InputError(f"{path / MANIFEST}: vertex_types do not fit feature_width; run `hongtu preprocess` again")
    ends = {"chunk_start": v, "source_start": len(arrays["sources"]), "in_edge_start": e}
    if "name_start" in arrays:
        ends["name_start"] = len(arrays["name_text"])
    if "feature_start" in arrays:
        ends["feature_start"] = len(arrays["feature_value"])
    for name, last in ends.items():
        array = arrays[name]
        if array[0] != 0 or array[-1] != last or np.any(np.diff(array) < 0):
            raise InputError(f"{path / name}.npy: expected an ascending array from 0 to {last}; preprocess again")


class ArtifactWriter:
    """Writes arrays into a temporary directory beside ``path``; ``commit`` adds the manifest and renames it into place.

    Use as a context manager: leaving it without ``commit`` removes everything that was written.

    Args:
        path: the artifact to make.
        force: replace one that is there.
        directory: an existing directory to write into, on the same file system; whoever gives it removes it. None: a
            new sibling of ``path``.

    Raises:
        InputError: when ``path`` exists and ``force`` is false.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False, directory: Path | None = None) -> None:
        self.path = Path(path)
        check_output(self.path, force=force, marker=MANIFEST)
        self._given = directory is not None
        self._directory = directory or temporary_sibling(self.path)
        self._names: set[str] = set()

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._given:
            shutil.rmtree(self._directory, ignore_errors=True)

    def create(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """A writable memory map for array ``name``; fill it before ``commit``."""
        self.adopt(name)
        return create_array(self._directory / f"{name}.npy", dtype, shape)

    def adopt(self, name: str) -> None:
        """Take an array that is in the directory already."""
        assert name in ARRAYS, name
        self._names.add(name)

    def add(self, name: str, array: np.ndarray) -> None:
        """Store a whole array."""
        self.create(name, str(array.dtype), array.shape)[...] = array

    def commit(self, header: dict[str, Any]) -> None:
        """Write the manifest and move the artifact into place; ``header`` holds everything but the array table."""
        names = [name for name in ARRAYS if name in self._names]
        files = [self._directory / f"{name}.npy" for name in names]
        forms = [_form(file) for file in files]  # here: reading a header in two threads fails at times in Python 3.11
        with ThreadPoolExecutor() as pool:
            entries = [form | {"hash": digest} for form, digest in zip(forms, pool.map(_store, files), strict=True)]
        manifest = {"format": FORMAT, "version": VERSION, "hash": "", **header, "arrays": dict(zip(names, entries))}
        manifest["hash"] = _hash(_manifest_text(manifest))
        (self._directory / MANIFEST).write_bytes(_manifest_text(manifest))
        replace_directory(self._directory, self.path)


def create_array(file: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A writable memory map of a new .npy file; an array without elements is saved and returned, for it has no map."""
    if 0 in shape:
        np.save(file, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
    reserve(file)
    return array


def _form(file: Path) -> dict[str, Any]:
    """The manifest's entry of a file, but for its hash."""
    array = np.load(file, mmap_mode=None if file.stat().st_size < 4096 else "r", allow_pickle=False)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": file.stat().st_size}


def _store(file: Path) -> str:
    """Have a file on disk; returns its hash."""
    with open(file, "rb") as stream:
        os.fsync(stream.fileno())
    return file_hash(file)


def file_hash(file: Path) -> str:
    """Hexadecimal BLAKE2b-256 of a file."""
    digest = hashlib.blake2b(digest_size=32)
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
