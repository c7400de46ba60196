"""The artifact directory, opened: the contract between preprocessing and training.

Vertices carry *new* ids: partition i owns a contiguous range and chunk (i, j) a contiguous sub-range of it.
This module must not import torch: preprocessing runs without it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hongtu.errors import InputError, names_known
from hongtu.graph.degrees import degree_statistics, edge_id_starts
from hongtu.graph.format import (
    ARRAYS,
    MANIFEST,
    check_bounds,
    check_hash,
    check_indices,
    check_shapes,
    expect,
    file_hash,
    manifest_hash,
    open_array,
    read_manifest,
)
from hongtu.graph.halo import Halo
from hongtu.graph.sparse_rows import PARTS, SparseRows
from hongtu.graph.topology import Topology
from hongtu.graph.vertex_types import VertexIds, VertexTypes, read_types

Rows = TypeVar("Rows")


class Artifact:
    """A preprocessed graph on disk; arrays are memory-mapped, in new vertex order.

    Attributes:
        path: the directory.
        manifest: the parsed ``manifest.json``.
        num_vertices, num_edges, feature_width, num_classes: V, E, and the columns of features and of outputs.
        task: what labels are: "multiclass" (int64 [V]), "multilabel" or "regression" (float32 [V, C]); "links": none.
        original_id: int32 [V].
        vertex_ids: the id that the input gave each vertex, by original number, or None where it is that number.
        sparse_features: features as CSR rows, or None.
        labels: int64 [V] (-1 = none) or float32 [V, C] (NaN = none), as ``task`` says.
        masks: ``{"train" | "val" | "test": bool [V]}``.
        schedule_paper: int32 [m, n].
        topology: the chunks at the artifact's own (finest) grain.
        stored: the same as the directory has it.
        span: the vertices that belong here, in the numbers of ``whole``.
        halo: the rows that ranks fetch of one another; None where they do not, or where there is one.
        bounds: int64 [k + 1], the first vertex of every rank, in the numbers of ``whole``, then V; None of one.
    """

    halo: Halo | None = None
    bounds: np.ndarray | None = None

    def __init__(self, path: Path, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.path = path
        self.manifest = manifest
        self.num_vertices: int = manifest["vertices"]
        self.num_edges: int = manifest["edges"]
        self.feature_width: int = manifest["feature_width"]
        self.num_classes: int = manifest["classes"]
        self.task: str = manifest["task"]
        self._opened = {file: _file_identity(file) for file in (str(path / f"{name}.npy") for name in arrays)}
        self.original_id = arrays["original_id"]
        ids = (arrays.get("vertex_id"), arrays.get("name_start"), arrays.get("name_text"))
        self.vertex_ids = VertexIds(*ids) if ids[0] is not None or ids[1] is not None else None
        self._features = arrays.get("features")
        self.sparse_features: SparseRows | None = None
        if "feature_start" in arrays:
            start, column, value = (arrays[f"feature_{part}"] for part in PARTS)
            self.sparse_features = SparseRows(start, column, value, manifest["feature_width"])
        self.labels = arrays["labels"]
        self.masks = {split: arrays[f"{split}_mask"] for split in ("train", "val", "test")}
        self.schedule_paper = arrays["schedule_paper"]
        self.span = slice(0, manifest["vertices"])
        starts = {name: np.asarray(arrays[name]) for name in ("chunk_start", "source_start")}
        edges = {name: arrays[name] for name in ("in_edge_start", "sources", "local_source")}
        beside = {name: arrays.get(name) for name in ("edge_weight", "edge_features", "edge_type")}
        self.topology = Topology(manifest["partitions"], manifest["chunks"], **starts, **edges, **beside)  # type: ignore[arg-type]
        self.stored = self.topology

    def __repr__(self) -> str:
        return (
            f"Artifact({str(self.path)!r}: {self.num_vertices:,} vertices, {self.num_edges:,} edges, "
            f"{self.feature_width} features, {self.num_classes} classes ({self.task}), "
            f"{self.topology.partitions} partitions x {self.topology.chunks} chunks)"
        )

    @property
    def features(self) -> np.ndarray | None:
        """float32 [V, F], or None where they are sparse or learned."""
        return self._features

    def feature_rows(self, first: int, end: int) -> np.ndarray:
        """Of vertices first to end - 1, where features are dense."""
        assert self._features is not None
        return self._features[first:end]

    def spans(self, first: int, end: int) -> list[tuple[int, int]]:
        """The first vertex and the one behind the last, in the numbers of ``whole``, of consecutive ones among some."""
        return [(first, end)]

    @property
    def whole(self) -> Artifact:
        """The artifact of which this is a share: itself."""
        return self

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that no file backs: none."""
        return 0

    def own(self, rows: Rows) -> Rows:
        """Of a tensor or array with a row per vertex the rows of those that belong here: all."""
        return rows

    @property
    def own_end(self) -> np.ndarray:
        """int64 [m], the row behind the last of every partition that belongs here."""
        return self.topology.partition_start[1:]

    def degree_statistics(self, dtype: str = "float64", columns: int = 3) -> np.ndarray:
        """[V, columns], as :func:`hongtu.graph.degrees.degree_statistics`."""
        return degree_statistics(self.topology, dtype=dtype, columns=columns)

    def with_edge_data(
        self, weight: np.ndarray | None, features: np.ndarray | None, kind: np.ndarray | None, kinds: int
    ) -> Artifact:
        """The same graph with other ``edge_weight``, ``edge_features`` and ``edge_type``, of so many types; ``stored``
        stays what the directory has."""
        other = copy.copy(self)
        other.topology = replace(self.stored, edge_weight=weight, edge_features=features, edge_type=kind)
        other.manifest = self.manifest | ({} if kind is None else {"edge_types": kinds})
        return other

    def with_sparse_features(self, rows: SparseRows) -> Artifact:
        """The same graph with its features in CSR, too."""
        other = copy.copy(self)
        other.sparse_features = rows
        return other

    def edge_id_starts(self) -> np.ndarray:
        """int64 [V], as :func:`hongtu.graph.degrees.edge_id_starts`."""
        return edge_id_starts(self.topology.in_edge_start, self.original_id)

    @property
    def size(self) -> int:
        """Edges and vertices."""
        return self.num_edges + self.num_vertices

    @property
    def learns_features(self) -> bool:
        """Whether training learns embeddings of ``feature_width`` columns."""
        return self.whole._features is None and self.sparse_features is None

    @property
    def edge_feature_width(self) -> int:
        """F_e, or 0 where edges have no features."""
        features = self.topology.edge_features
        return 0 if features is None else features.shape[1]

    @property
    def edge_forms(self) -> dict[str, str]:
        """How the input had what lies beside its edges: ``edge_weight`` as a "field" or as the values of a "matrix", of
        a "sparse tensor" of torch or of a "SparseTensor" of torch-sparse (nothing where an earlier version wrote it);
        ``edge_features``, where they were no [E, F] of floats, by their rank and the kind of their numbers, "1f", "1i",
        "2b", ..."""
        return self.manifest.get("edge_forms", {})

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
    def types(self) -> VertexTypes | None:
        """The named types of vertices and relations of a ``HeteroData``; None where the input names none."""
        return read_types(self.manifest)

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
        """Refuse files that were cut short since they were opened, whose reading kills the process where they are
        mapped, and files with other content. One that was removed, or replaced by another, is still there for who has
        it open.

        Raises:
            InputError: naming the first.
        """
        for name, opened in self._opened.items():
            try:
                now = _file_identity(name)
            except OSError:
                continue
            if now == opened or now[:2] != opened[:2]:
                continue
            file = Path(name)
            expect(file, now[2] >= opened[2], f"cut from {opened[2]} to {now[2]} bytes while it was in use")
            same = file_hash(file) == self.manifest["arrays"][file.stem].get("hash")
            expect(
                file, same, "overwritten while it was in use, so that the graph is another one; no step is made on it"
            )
            self._opened[name] = now  # somebody has touched it

    def numbers(self, vertices: Iterable[Any]) -> np.ndarray:
        """int64, the original numbers of vertices named as the input names them.

        Raises:
            InputError: for a vertex that is not there.
        """
        if isinstance(vertices, str) or not hasattr(vertices, "__iter__") or getattr(vertices, "ndim", 1) == 0:
            raise InputError(f"vertices is {vertices!r}, expected a list or an array of them; pass [it]")
        vertices = list(vertices)
        if vertices and np.ndim(vertices[0]):
            shape = [len(vertices), *np.shape(vertices[0])]
            raise InputError(f"vertices of shape {shape}, expected [N], one row for each; flatten them")
        if self.vertex_ids is not None:
            return self.vertex_ids.numbers(vertices)
        numbers = np.array(vertices)
        if numbers.dtype == bool:
            remedy = "pass mask.nonzero()[:, 0], or numpy.flatnonzero(mask)"
            raise InputError(f"vertices: a mask, expected the vertices' numbers; {remedy}")
        bad = np.flatnonzero((numbers < 0) | (numbers >= self.num_vertices)) if numbers.dtype.kind in "iu" else [0]
        if len(numbers) and len(bad):
            found = numbers[bad[0]].item() if isinstance(numbers[bad[0]], np.generic) else numbers[bad[0]]
            raise InputError(f"vertex {found!r}, expected an integer from 0 to {self.num_vertices - 1}")
        return numbers.astype(np.int64)

    def verify(self) -> None:
        """Read the manifest and every array, compare their hashes with those in the manifest, and the indices with
        what they point into.

        Raises:
            InputError: naming the first file that differs.
        """
        check_hash(self.path / MANIFEST, manifest_hash(self.path, self.manifest), self.manifest.get("hash"))
        for name, entry in self.manifest["arrays"].items():
            file = self.path / f"{name}.npy"
            check_hash(file, file_hash(file), entry.get("hash"))
        check_indices(self)


@names_known
def open_artifact(path: str | os.PathLike[str], *, verify: bool = False) -> Artifact:
    """Open an artifact directory; sizes, dtypes and shapes are always checked, hashes only with ``verify``.

    Raises:
        InputError: when it is absent, incomplete, of another version, truncated or (``verify``) changed.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"artifact: {type(path).__name__}, expected a directory; hongtu.preprocess_graph makes one of a graph"
        )
    path = Path(path)
    manifest = read_manifest(path)
    arrays = {name: open_array(path, name, entry) for name, entry in manifest["arrays"].items()}
    for name, (_, _, required) in ARRAYS.items():
        expect(path / MANIFEST, not required or name in arrays, f"array {name!r} is missing")
    check_shapes(path, manifest, arrays)
    artifact = Artifact(path, manifest, arrays)
    if verify:
        artifact.verify()
    return artifact


def _file_identity(file: str) -> tuple[int, ...]:
    """Device, inode, bytes, and when it was written to last."""
    found = os.stat(file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
