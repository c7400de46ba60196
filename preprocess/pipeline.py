"""The whole of preprocessing, stage by stage: this module composes the stages beside it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig, size
from hongtu.errors import InputError, note
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.graph.format import MANIFEST, VERSION
from hongtu.graph.neighbour_sets import neighbour_sets
from hongtu.host import available_bytes
from hongtu.preprocess import csc, edge_rows, memory, order, partition, reorganize
from hongtu.preprocess.read.graph import SPLITS, RawGraph, features_of, to_pieces
from hongtu.preprocess.read.size import Reading, Sizes
from hongtu.preprocess.read.synthesize import synthesize_features
from hongtu.preprocess.workspace.directory import Workspace
from hongtu.preprocess.workspace.origin import check_origin, input_hash

BESIDE_EDGES = {"edge_weight": "float32", "edge_features": "float32", "edge_type": "int32"}

SAID = 1 << 30  # bytes of disk from which on a run says beforehand what it takes
ONE_WAY = 0.05  # of the edges have a reverse, at most
NOTE = (
    "edges go one way, and vertices hear from their in-edges alone; undirected=True (--undirected) adds the other way"
)


def run_stages(
    load: Callable[[Path, Reading], RawGraph],
    path: str | os.PathLike[str],
    config: PreprocessConfig,
    files: Callable[[], list[list[Any]]] | None = None,
) -> Artifact:
    """Make an artifact, or open one of the same input and settings.

    Args:
        load: reads the input, which may use a directory of its own, and tells how far it is.
        files: what tells whether the input is still the same; None: the input itself, which lies in memory.

    Raises:
        InputError: when the input is wrong, or the output exists and is of another; nothing is written then.
    """
    given = None if files is None else files()
    source = None if given is None else input_hash({"files": given})

    def check_unchanged() -> None:
        now = None if files is None else files()
        if now != given:
            changed = next(file for file in [*(given or ()), *(now or ())] if file not in given or file not in now)
            raise InputError(f"{changed[0]}: changed while it was read; run it again")

    made_of = {"input": source, "settings": config.settings(), "version": VERSION}
    if (Path(path) / MANIFEST).is_file() and not config.force:
        return _reopen(load, Path(path), made_of)
    with Workspace(Path(path), made_of if source else None, force=config.force, resume=config.resume) as work:
        work.check = check_unchanged
        reading = Reading(partial(_expect, config=config, work=work), partial(work.within, "read"))
        raw = work.stage("read", lambda: to_pieces(load(work.scratch, reading)))
        work.origin = made_of if source else made_of | {"input": input_hash(raw)}
        (m, n), e = config.grain(raw["vertices"]), raw["input_edges"]
        partitioner = _plan(raw, config, work)
        graph = work.stage("csc", lambda: _csc(raw, config, work), e)
        work.drop("edges")
        in_edges = (graph.get("start"), graph.get("source"))  # dropped where a later stage is finished
        parts = work.stage("partition", lambda: _partition(raw, in_edges, partitioner, m, config.seed), e)
        ordered = work.stage("order", lambda: _order(in_edges, parts["part"], (m, n), config, work), e)
        new = work.stage("renumber", lambda: _renumber(graph, ordered["original_id"], work), e)
        work.drop("csc_source")
        sets = work.stage("chunks", lambda: _chunks(ordered["chunk_start"], new, work), e)
        work.drop("new_source")
        sources = (sets["source_start"], sets["sources"])
        tour = work.stage("reorganise", lambda: _reorganise(sources, m, raw["vertices"], work), e)
        starts = ordered["chunk_start"][::n]
        volumes = work.stage("volume", lambda: _volumes(sources, starts, tour["schedule_paper"]))
        written = work.stage("write", lambda: _write(raw, graph, new, ordered["original_id"], config, work))
        check_unchanged()
        statistics = {**graph["statistics"], **parts["statistics"], "order": ordered["counted"]}
        shape = {"edges": len(sets["local_source"]), "feature_width": written.pop("width")}
        shape |= {"weighted": "edge_weight" in raw, **written}
        shape |= {key: raw[key] for key in ("edge_types", "edge_forms") if key in raw}
        if "types" in raw and not (config.undirected or config.self_loops):  # whose edges are of no relation
            shape["types"] = raw["types"]
        if "feature_parts" in raw:
            shape["vertex_types"] = [int(raw[f"features_{k}"].shape[1]) for k in range(raw["feature_parts"])]
        work.commit(_header(raw, shape, (m, n), config, partitioner, statistics, volumes["volume"]))
    return open_artifact(path)


def _reopen(load: Callable[[Path, Reading], RawGraph], path: Path, made_of: dict[str, Any]) -> Artifact:
    """An artifact that is there already, if it is of the same input and settings; one in memory is read for that."""
    if made_of["input"] is None:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.absolute().parent) as scratch:
            made_of = made_of | {"input": input_hash(to_pieces(load(Path(scratch), Reading())))}
    check_origin(path, made_of)
    artifact = open_artifact(path)
    note(f"{path}: is there already, of the same input and settings")
    return artifact


def _expect(sizes: Sizes, config: PreprocessConfig, work: Workspace) -> None:
    """Refuse a graph that neither ``--memory`` nor the disk can hold, before it is read; of a large one say what it
    takes, and what there is."""
    *_, needed, _ = _choose(config, sizes.vertices, sizes.edges, sizes.labels, beside=sizes.beside > 0)
    stored = 8 * sizes.edges * (1 + config.undirected) + 4 * sizes.width * sizes.vertices + sizes.beside
    disk = sizes.unpacked + max(16 * sizes.edges, stored)  # edges in two forms, or the artifact beside one
    free, available = shutil.disk_usage(work.scratch).free, available_bytes()
    if disk > free:
        raise InputError(
            f"{sizes.title}: preprocessing takes at least {size(disk)} of disk, {size(free)} are free where the "
            "artifact is to be; write it to a larger disk"
        )
    if disk >= SAID:
        memory_there = "" if available is None else f" ({size(available)} available)"
        note(
            f"{sizes.title}: {sizes.vertices:,} vertices, {sizes.edges:,} edges, {sizes.width} features; takes up to "
            f"{size(needed)} of memory{memory_there} and at least {size(disk)} of disk ({size(free)} free)"
        )


def _choose(
    config: PreprocessConfig, vertices: int, edges: int, labels: int, *, beside: bool
) -> tuple[str, str, int, int]:
    """The partitioner to use, what to say of it, and the bytes that preprocessing takes at most: as asked, and with the
    options that take the least.

    Args:
        edges: of the input.
        labels: their bytes.
        beside: edges have weights, features or types.

    Raises:
        InputError: when that is more than ``--memory``.
    """
    edges, lean = edges * (1 + config.undirected), not (config.undirected or beside)
    partitioner, slow = partition.choose_partitioner(config.partitioner, edges)
    asked = partitioner if config.grain(vertices)[0] > 1 else ""  # none for one partition
    orders = order.candidates(edges) if config.order == "auto" else [config.order]
    needed = memory.predicted_peak(vertices, edges, asked, orders, lean=lean, labels=labels)
    smallest = memory.predicted_peak(vertices, edges, "streaming", ["input"], lean=lean, labels=labels)
    memory.check_limit(config.memory, needed, smallest)
    return partitioner, slow, needed, smallest


def _plan(raw: dict[str, Any], config: PreprocessConfig, work: Workspace) -> str:
    """The partitioner to use; tells the user where time or memory may run short."""
    sizes, beside = (
        (raw["vertices"], raw["input_edges"], raw["labels"].nbytes),
        any(name in raw for name in BESIDE_EDGES),
    )
    partitioner, slow, work.predicted, smallest = _choose(config, *sizes, beside=beside)
    for advice in (slow, memory.advice(work.predicted, available_bytes(), smallest)):
        if advice:
            note(advice)
    return partitioner


def _csc(raw: dict[str, Any], config: PreprocessConfig, work: Workspace) -> dict[str, Any]:
    """In-edges by destination, as the flags want them, where they come from, and features made of degrees or at
    random."""
    source, destination = raw["edges"]
    given = source, destination, raw["vertices"]
    loops = csc.without_loop(*given) if config.self_loops else None
    final, first = work.maker(start="csc_start", value="csc_source"), work.maker(start="all_start", value="all_source")
    how: dict[str, Any] = {"undirected": config.undirected, "loops": loops}
    graph = csc.build_csc(*given, **how, create=first if config.undirected else final)
    found = {}
    if any(name in raw for name in BESIDE_EDGES):
        create = work.maker(start="all_start", value="csc_origin")
        found["origin"] = edge_rows.sort_origins(*given, **how, create=create)
    if config.undirected:
        *merged, is_first = csc.coalesce(*graph, found.get("origin"), final)
        graph = csc.Csc(*merged)
        if "origin" in found:
            found["group_start"] = np.append(np.flatnonzero(is_first), len(is_first))
    elif len(source) >= csc.LOOKS and "edge_types" not in raw and csc.share_both_ways(graph) < ONE_WAY:
        note(NOTE)
    work.drop("all_start", "all_source")
    found |= {"start": graph.in_edge_start, "source": graph.source}
    if config.features and not config.embedding:
        made = work.maker(features="made_features")
        found["features"] = synthesize_features(config.features, *csc.degrees(graph), config.seed, made)
    return {**found, "statistics": {"input_edges": len(source), **csc.statistics(graph)}}


def _partition(
    raw: dict[str, Any], in_edges: tuple[np.ndarray, np.ndarray], partitioner: str, partitions: int, seed: int
) -> dict[str, Any]:
    train, part = raw["train_mask"], raw.get("partition")
    if part is None:
        part = partition.partition_vertices(partitioner, *in_edges, partitions, train_mask=train, seed=seed)
    if empty := partitions - len(np.unique(part)):
        note(
            f"{empty} of {partitions} partitions are empty, and their devices will have nothing to do; pass fewer "
            "--partitions, or --partitioner range"
        )
    statistics = partition.partition_statistics(part, *in_edges, partitions, train)
    return {"part": part, "statistics": statistics}


def _order(
    in_edges, part: np.ndarray, grain: tuple[int, int], config: PreprocessConfig, work: Workspace
) -> dict[str, Any]:
    start, source = in_edges
    original_id, chunk_start, counted = order.order_vertices(config.order, start, source, part, *grain, config.seed)
    arrays = {"original_id": work.put("original_id", original_id), "chunk_start": work.put("chunk_start", chunk_start)}
    return {**arrays, "counted": counted}


def _renumber(graph: dict[str, Any], original_id: np.ndarray, work: Workspace) -> dict[str, Any]:
    create = work.maker(start="in_edge_start", value="new_source")
    return csc.renumber(csc.Csc(graph["start"], graph["source"]), original_id, create)._asdict()


def _chunks(chunk_start: np.ndarray, graph: dict[str, Any], work: Workspace) -> dict[str, Any]:
    found = neighbour_sets(chunk_start, graph["in_edge_start"], graph["source"], work.maker())
    return {"source_start": work.put("source_start", found[0]), "sources": found[1], "local_source": found[2]}


def _reorganise(
    sources: tuple[np.ndarray, np.ndarray], partitions: int, num_vertices: int, work: Workspace
) -> dict[str, Any]:
    return {"schedule_paper": work.put("schedule_paper", reorganize.reorganize(*sources, partitions, num_vertices))}


def _volumes(sources: tuple[np.ndarray, np.ndarray], partition_start: np.ndarray, paper: np.ndarray) -> dict[str, Any]:
    plain = np.tile(np.arange(paper.shape[1], dtype=np.int32), (len(paper), 1))
    found = [reorganize.count_volume(sources[0], sources[1], partition_start, s)._asdict() for s in (plain, paper)]
    return {"volume": {"input": found[0], "paper": found[1]}}


def _write(
    raw: dict[str, Any],
    graph: dict[str, Any],
    new: dict[str, Any],
    original_id: np.ndarray,
    config: PreprocessConfig,
    work: Workspace,
) -> dict[str, Any]:
    """Everything that belongs to vertices and lies beside edges, in new order."""
    most = memory.room_for_blocks(config.memory, raw["vertices"])
    if "origin" in graph:
        lists = graph["origin"], graph.get("group_start"), graph["start"], new["in_edge_start"], original_id
        edges = edge_rows.EdgeOrder(*lists)
        for name, dtype in BESIDE_EDGES.items():
            if name in raw:
                into = work.maker()(name, dtype, (int(lists[3][-1]), *raw[name].shape[1:]))
                edge_rows.copy_edge_rows(name, raw[name], edges, into, partial(work.within, "write"), most)
    for name in ("labels", "train_mask", "val_mask", "test_mask"):
        work.put(name, raw[name][original_id])
    for name in ("vertex_id", "name_start", "name_text"):  # by original number
        if name in raw:
            work.put(name, raw[name])
    if config.embedding:
        return {"width": config.embedding}
    given = graph["features"] if "features" in graph else features_of(raw)
    if edge_rows.stays_sparse(given):
        edge_rows.copy_sparse_rows(given, original_id, work.maker(), normalize=config.normalize_features)
        return {"width": int(given.shape[1]), "sparse_numbers": int(given.nnz)}
    into = work.maker()("features", "float32", given.shape)
    change = edge_rows.normalize_rows if config.normalize_features else None
    edge_rows.copy_rows(given, original_id, into, change, partial(work.within, "write"), most)
    return {"width": int(given.shape[1])}


def _header(
    raw: dict[str, Any],
    shape: dict[str, Any],
    grain: tuple[int, int],
    config: PreprocessConfig,
    partitioner: str,
    statistics: dict,
    volumes: dict,
) -> dict[str, Any]:
    """The manifest without its table of arrays: no paths, no times, so that equal inputs give equal bytes."""
    paper = volumes["paper"]
    return {
        "vertices": raw["vertices"],
        **shape,
        "partitions": grain[0],
        "chunks": grain[1],
        "classes": raw["classes"],
        "task": config.task or ("multilabel" if raw["labels"].ndim == 2 else "multiclass"),
        "alpha": round(paper["v_ori"] / raw["vertices"], 6),
        "v_ori": paper["v_ori"],
        "v_p2p": paper["v_p2p"],
        "v_ru": paper["v_ru"],
        "settings": config.settings() | {"partitioner": partitioner},
        "statistics": {**statistics, **{split: int(raw[f"{split}_mask"].sum()) for split in SPLITS}},
        "volume": volumes,
    }
