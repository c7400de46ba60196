"""What people call to preprocess a graph, on disk or in memory."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hongtu.config import ORDERS, OWN, PARTITIONERS, SWITCHES, TASKS, PreprocessConfig
from hongtu.errors import InputError, nearest, note
from hongtu.graph.artifact import Artifact
from hongtu.preprocess.partition import check_partition, read_partition
from hongtu.preprocess.pipeline import run_stages
from hongtu.preprocess.read.graph import SPLIT_NAMES, RawGraph
from hongtu.preprocess.read.open import BELOW, from_arrays, read_data, read_input


def preprocess_directory(
    source: str | os.PathLike[str], artifact: str | os.PathLike[str], config: PreprocessConfig
) -> Artifact:
    """Preprocess a graph on disk: a directory in the neutral format, or any other that ``read_input`` knows.

    Raises:
        InputError: when the input is wrong, or the output exists and is of another input or other settings; nothing is
            written then.
    """
    path, own = Path(source), config.partitioner
    beside = path / "partition.npy"
    found = os.path.isfile(beside)  # False also where nobody may look
    if own == "auto" and found:
        own = str(beside)
    elif found and own != str(beside):
        note(f"{beside}: is left out for {own}, as was asked")
    settings, attach = _with_partition(config, own)
    return run_stages(
        lambda *where: attach(read_input(path, settings, *where)), artifact, settings,
        lambda: _files(path) + (_files(Path(own)) if settings.partitioner == OWN else []),
    )  # fmt: skip


def _with_partition(config: PreprocessConfig, own: Any) -> tuple[PreprocessConfig, Callable[[RawGraph], Any]]:
    """Settings for a partition that the user made, an array or a file's name, and what gives a graph that partition;
    of any other partitioner as they are."""
    if isinstance(own, str) and own in PARTITIONERS:
        return config, lambda raw: raw
    part, name = read_partition(own)
    settings = replace(config, partitioner=OWN, partitions=config.partitions or int(part.max()) + 1)

    def attach(raw: RawGraph) -> RawGraph:
        check_partition(part, name, raw.num_vertices or 0, settings.partitions or 0)
        raw.partition = part
        return raw

    return settings, attach


def preprocess_graph(
    edges: Any = None,
    num_vertices: int | None = None,
    artifact: str | os.PathLike[str] | None = None,
    *,
    data: Any = None,
    features: Any = None,
    labels: Any = None,
    masks: Mapping[str, Any] | None = None,
    edge_weight: Any = None,
    edge_features: Any = None,
    edge_type: Any = None,
    vertex_type: Any = None,
    partitions: int | None = None,
    chunks: int | str | None = None,
    **config: Any,
) -> Artifact:
    """Preprocess in-memory arrays (numpy, or anything ``numpy.asarray`` takes, such as CPU torch tensors), or a graph
    on disk.

    Args:
        edges: int32 or int64 [2, E], row 0 = source, row 1 = destination; or a sparse matrix of scipy, torch or
            torch_sparse whose entry (i, j) is the edge i -> j, with its value as weight where they are not all 1.
        num_vertices: V; None: that of the matrix.
        artifact: directory to write.
        data: instead of edges and num_vertices, a torch_geometric ``Data`` (its x, y and masks are used where no
            others are given) or ``HeteroData``, a graph of DGL (:func:`hongtu.from_dgl`), one of NetworkX, whose
            vertices then have its order and names, or the path of a graph on disk, as ``hongtu preprocess`` takes it.
        features: numbers [V, F], kept as float32, a scipy sparse matrix of that shape, or "random:F", "degree" or
            "embedding:D".
        labels: integers [V] (-1 = none), numbers [V, C] from 0 to 1 for multi-label, or "random:C"; with
            ``task="regression"`` numbers [V] or [V, C]. NaN is none, in all columns or in some. None for a graph to
            predict on, without masks either.
        masks: ``{"train": ..., "val": ..., "test": ...}`` of bool [V] (or [S, V] with ``split=k``), or vertex numbers;
            a missing one is all False ("valid" is "val").
        edge_weight: float [E] or None.
        edge_features: float [E, F] or None.
        edge_type: integers [E] from 0, the relation of each edge, or None.
        vertex_type: integers [V] from 0, or None; ``features`` are then a list, float [V_k, F_k] for the V_k vertices
            of each type k in the order of their numbers.
        partitions, chunks, **config: the fields of ``hongtu.config.PreprocessConfig``; ``partitioner`` may also be
            integers [V], the partition of every vertex.

    Raises:
        InputError: when the input is wrong, or the output exists and is of another input or other settings; nothing is
            written then.
    """
    known = [field.name for field in fields(PreprocessConfig)]
    for name in sorted(set(config) - set(known)):
        split, own = name.removesuffix("_mask"), inspect.signature(preprocess_graph).parameters
        meant = (
            f"; pass masks={{{split!r}: ...}}"
            if split in sum(SPLIT_NAMES.values(), ())
            else nearest(name, [*list(own)[:-1], *known])
        )
        meant = "; pass the partition of every vertex as partitioner" if name in ("part", "partition") else meant
        raise InputError(f"preprocess_graph: no argument is named {name!r}{meant}; see hongtu.config.PreprocessConfig")
    if getattr(partitions, "shape", ()) or isinstance(partitions, list | tuple):
        raise InputError("preprocess_graph: partitions is a number; pass the partition of every vertex as partitioner")
    if isinstance(features, str):
        config["features"], features = features, None
    if isinstance(labels, str):
        config["labels"], labels = labels, None
    own = config.pop("partitioner", "auto")
    given = own if isinstance(own, str) else OWN
    settings = PreprocessConfig(partitions=partitions, chunks=chunks, partitioner=given, **config)
    if masks is not None and settings.random_split:
        raise InputError("preprocess_graph: masks, and a random_split that would replace them; leave one out")
    edges, data = (data, None) if edges is None and isinstance(data, str | os.PathLike) else (edges, data)
    if artifact is None or (data is None) == (edges is None):
        raise InputError("preprocess_graph: pass artifact=DIRECTORY, and either edges and num_vertices or data")
    beside = {"edge_features": edge_features, "edge_type": edge_type}
    arrays = {"features": features, "labels": labels, "masks": masks, **beside}
    weight_and_type = {"edge_weight": edge_weight, "vertex_type": vertex_type}
    of_vertices = num_vertices, *weight_and_type.values()
    on_disk = isinstance(edges, str | os.PathLike)
    if on_disk and (given == OWN or any(array is not None for array in (*of_vertices, *arrays.values()))):
        raise InputError(f"preprocess_graph: {edges} is a graph on disk, with arrays of its own; leave yours out")

    def load(scratch: Path) -> RawGraph:
        if data is None:
            return from_arrays(edges, num_vertices, settings, **weight_and_type, **arrays)
        if any(array is not None for array in of_vertices):
            raise InputError("preprocess_graph: data has its own vertices and weights; leave yours out")
        return read_data(data, settings, scratch, **arrays)

    try:
        if on_disk:
            return preprocess_directory(edges, artifact, settings)
        settings, attach = _with_partition(settings, own if given == OWN else settings.partitioner)
        return run_stages(lambda scratch, reading: attach(load(scratch)), artifact, settings)
    except InputError as error:
        raise type(error)(in_python(str(error))) from error


_NAMES = "|".join(sorted((*PARTITIONERS, *ORDERS, *TASKS), key=len, reverse=True))  # the longest first
_OPTION = re.compile(rf"--([a-z][a-z-]*)( (?:[\w.]+(?:[,:][\w.]*\w)+|\d[\d.]*\b|(?:{_NAMES})\b))?")


def in_python(message: str) -> str:
    """A message whose remedies are options of the command line, with arguments of ``preprocess_graph`` instead.

    >>> in_python("pass --random-split 0.6,0.2,0.2 or --chunks auto, or --force")
    "pass random_split=(0.6, 0.2, 0.2) or chunks='auto', or force=True"
    >>> in_python("--split is 2; leave --split out, or --columns a,b names them")
    "split is 2; leave split out, or columns=('a', 'b') names them"
    """

    def argument(match: re.Match[str]) -> str:
        name, value = match[1].replace("-", "_"), (match[2] or "").strip()
        if name in SWITCHES:
            return f"{name}=True{match[2] or ''}"
        parts = [part if part.replace(".", "").isdigit() else repr(part) for part in value.split(",")]
        return f"{name}=({', '.join(parts)})" if parts[1:] else f"{name}={parts[0]}" if value else name

    return _OPTION.sub(argument, message)


def _files(path: Path) -> list[list[Any]]:
    """What tells whether the input is still the same: name, size, times and place of every file."""
    try:
        if path.is_dir():
            os.listdir(path)  # globbing takes a directory that may not be read for an empty one
        found = sorted({file for pattern in ("*", *BELOW) for file in path.glob(pattern)}) if path.is_dir() else [path]
        stats = [(file, file.stat()) for file in found if file.is_file()]
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); mend or remove it") from None
    return [[str(f.absolute()), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for f, s in stats]
