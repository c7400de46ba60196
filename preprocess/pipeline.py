"""The whole of preprocessing, stage by stage: the only module that composes the stages beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from hongtu.artifact import Artifact, ArtifactWriter, open_artifact
from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess import clean, csc, order, partition, read, reorganize, volume
from hongtu.topology import build_topology

STAGES = ("read", "clean", "csc", "partition", "order", "renumber", "chunks", "reorganise", "volume", "write")
BLOCK_ELEMENTS = 1 << 24  # of features, copied in one step


def preprocess_directory(
    source: str | os.PathLike[str], artifact: str | os.PathLike[str], config: PreprocessConfig
) -> Artifact:
    """Preprocess a graph on disk: a directory in the neutral format, or any other that ``read_input`` knows.

    Raises:
        InputError: when the input is wrong or the output exists; nothing is written then.
    """
    return _run(lambda scratch: read.read_input(Path(source), config, scratch), artifact, config)


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
    partitions: int = 4,
    chunks: int | str = 32,
    **config: Any,
) -> Artifact:
    """Preprocess in-memory arrays (numpy, or anything ``numpy.asarray`` takes, such as CPU torch tensors).

    Args:
        edges: int32 or int64 [2, E], row 0 = source, row 1 = destination.
        num_vertices: V.
        artifact: directory to write.
        data: instead of edges and num_vertices, a torch_geometric ``Data`` (its x, y and masks are used where no
            others are given) or a NetworkX graph, whose vertices then have the graph's order and names.
        features: float [V, F], a scipy sparse matrix of that shape, or "random:F", "degree" or "embedding:D".
        labels: integers [V] (-1 = none), float [V, C] for multi-label, or "random:C".
        masks: ``{"train": ..., "val": ..., "test": ...}`` of bool [V] (or [S, V] with ``split=k``); a missing "val" or
            "test" is all False.
        edge_weight: float [E] or None.
        partitions: m.
        chunks: n, chunks per partition.
        **config: the other fields of ``hongtu.config.PreprocessConfig``.

    Raises:
        InputError: when the input is wrong or the output exists; nothing is written then.
    """
    unknown = set(config) - {field.name for field in fields(PreprocessConfig)}
    if unknown:
        raise InputError(f"preprocess_graph: unknown option {sorted(unknown)[0]!r}; see hongtu.config.PreprocessConfig")
    if isinstance(features, str):
        config["features"], features = features, None
    if isinstance(labels, str):
        config["labels"], labels = labels, None
    settings = PreprocessConfig(partitions=partitions, chunks=chunks, **config)
    if artifact is None or (data is None) == (edges is None):
        raise InputError("preprocess_graph: pass artifact=DIRECTORY, and either edges and num_vertices or data")
    arrays = {"features": features, "labels": labels, "masks": masks, "edge_weight": edge_weight}

    def load(scratch: Path) -> read.RawGraph:
        if data is None:
            return read.from_arrays(edges, num_vertices, settings, **arrays)
        if num_vertices is not None or edge_weight is not None:
            raise InputError("preprocess_graph: data has its own vertices and weights; leave yours out")
        return read.read_data(data, settings, scratch, features=features, labels=labels, masks=masks)

    return _run(load, artifact, settings)


def _run(load: Callable[[Path], read.RawGraph], path: str | os.PathLike[str], config: PreprocessConfig) -> Artifact:
    m = config.partitions
    with ArtifactWriter(path, force=config.force) as writer, _Progress() as progress:
        progress.enter("read")
        raw = load(writer.scratch())
        v, n = raw.num_vertices, config.resolve_chunks(raw.num_vertices)
        train = raw.masks["train"]

        progress.enter("clean")
        flags = {"undirected": config.undirected, "self_loops": config.self_loops}
        source, destination, weight = clean.clean_edges(raw.edges, raw.edge_weight, v, **flags)

        progress.enter("csc")
        graph = csc.build_csc(source, destination, weight, v)
        del source, destination, weight
        if config.features and not config.embedding:
            raw.features = read.synthesize_features(config.features, *csc.degrees(graph), config.seed)
        statistics: dict[str, Any] = {"input_edges": int(raw.edges.shape[1]), **csc.statistics(graph)}

        progress.enter("partition")
        edges = (graph.in_edge_start, graph.source)
        partitioner, note = partition.choose_partitioner(config.partitioner, len(graph.source))
        if note:
            print(f"hongtu: note: {note}", file=sys.stderr)
        part = partition.partition_vertices(partitioner, *edges, m, train_mask=train, seed=config.seed)
        statistics |= partition.partition_statistics(part, *edges, m, train)

        progress.enter("order")
        original_id, chunk_start, counted = order.order_vertices(config.order, *edges, part, m, n, config.seed)
        statistics["order"] = counted

        progress.enter("renumber")
        graph = csc.renumber(graph, original_id)

        progress.enter("chunks")
        topology = build_topology(m, chunk_start, graph.in_edge_start, graph.source, graph.weight)

        progress.enter("reorganise")
        neighbour_sets = (topology.source_start, topology.sources)
        schedules = {
            "input": np.tile(np.arange(n, dtype=np.int32), (m, 1)),
            "paper": reorganize.reorganize(*neighbour_sets, m, v),
        }

        progress.enter("volume")
        volumes = {
            name: volume.count_volume(*neighbour_sets, topology.partition_start, schedule).to_dict()
            for name, schedule in schedules.items()
        }

        progress.enter("write")
        _write_arrays(writer, raw, original_id, topology, schedules["paper"], config)
        writer.commit(_header(raw, topology, config, statistics, volumes, partitioner))
    return open_artifact(path)


def _write_arrays(
    writer: ArtifactWriter, raw: read.RawGraph, original_id: np.ndarray, topology, schedule, config: PreprocessConfig
) -> None:
    writer.add("original_id", original_id)
    for name in ("chunk_start", "in_edge_start", "source_start", "sources", "local_source"):
        writer.add(name, getattr(topology, name))
    if topology.edge_weight is not None:
        writer.add("edge_weight", topology.edge_weight)
    writer.add("schedule_paper", schedule)
    if isinstance(raw.ids, read.Names):
        writer.add("name_start", np.append(raw.ids.start, len(raw.ids.text)).astype(np.int64))
        writer.add("name_text", raw.ids.text)
    elif raw.ids is not None:
        writer.add("vertex_id", raw.ids)
    writer.add("labels", raw.labels[original_id])
    for split, mask in raw.masks.items():
        writer.add(f"{split}_mask", mask[original_id])
    if config.embedding:
        return
    width = raw.features.shape[1]
    features = writer.create("features", "float32", (len(original_id), width))
    step = max(1, BLOCK_ELEMENTS // width)
    for lo in range(0, len(original_id), step):
        block = raw.features[original_id[lo : lo + step]]
        block = (block if isinstance(block, np.ndarray) else block.toarray()).astype(np.float32, copy=False)
        features[lo : lo + step] = clean.normalize_rows(block) if config.normalize_features else block


def _header(
    raw: read.RawGraph, topology, config: PreprocessConfig, statistics: dict, volumes: dict, partitioner: str
) -> dict[str, Any]:
    """The manifest without its table of arrays: no paths, no times, so that equal inputs give equal bytes."""
    paper = volumes["paper"]
    return {
        "vertices": topology.num_vertices,
        "edges": topology.num_edges,
        "partitions": topology.partitions,
        "chunks": topology.chunks,
        "feature_width": config.embedding or int(raw.features.shape[1]),
        "classes": raw.classes,
        "task": "multilabel" if raw.labels.ndim == 2 else "multiclass",
        "weighted": topology.edge_weight is not None,
        "alpha": round(paper["v_ori"] / topology.num_vertices, 6),
        "v_ori": paper["v_ori"],
        "v_p2p": paper["v_p2p"],
        "v_ru": paper["v_ru"],
        "settings": config.settings() | {"partitioner": partitioner},
        "statistics": {**statistics, **{split: int(mask.sum()) for split, mask in raw.masks.items()}},
        "volume": volumes,
    }


class _Progress:
    """One bar over the stages on stderr, only on a terminal."""

    def __enter__(self) -> _Progress:
        self.bar = tqdm(total=len(STAGES), disable=None, leave=False, bar_format="{desc:<12} {bar} {elapsed}")
        self.entered = 0
        return self

    def enter(self, stage: str) -> None:
        assert STAGES[self.entered] == stage, stage
        self.bar.update(min(self.entered, 1))
        self.bar.set_description_str(stage)
        self.entered += 1

    def __exit__(self, *_: object) -> None:
        self.bar.close()
