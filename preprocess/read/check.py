"""Everything that is refused in a graph, before any work: what was found, where, what was expected, the remedy."""

from __future__ import annotations

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError, note
from hongtu.graph.format import MOST_CLASSES
from hongtu.preprocess.read.check_labels import (
    FREE_CLASSES,
    check_labels,
    check_masks,
    check_numbers,
    choose_split,
    has_label,
    refuse_value,
)
from hongtu.preprocess.read.graph import SPLITS, RawGraph
from hongtu.preprocess.read.size import check_count, check_held
from hongtu.preprocess.read.source import BLOCK, DENSE, NUMBERS, as_float32, rounds, said_rounded
from hongtu.preprocess.read.synthesize import synthesize_labels, synthesize_split
from hongtu.preprocess.read.typed import TypedFeatures, form_remedy


def check_and_complete(raw: RawGraph, config: PreprocessConfig) -> RawGraph:
    """Check every piece and fill in what the config synthesises (labels and masks; features need degrees, later)."""
    _check_missing(raw, config)
    _check_edge_form(raw)
    _check_vertices(raw, config)
    predicts_only = raw.labels is None and not config.labels and config.task != "links"
    if predicts_only:
        shape, none = ((raw.num_vertices, 1), np.nan) if config.task == "regression" else (raw.num_vertices, -1)
        raw.labels = np.full(shape, none)
    _check_vertex_ids(raw)
    rounded = _rounded(raw, numbers=config.task == "regression")
    if isinstance(raw.features, TypedFeatures) and config.normalize_features:
        beforehand = "; torch_geometric.transforms.NormalizeFeatures()(data) does it" * (raw.types is not None)
        raise InputError(
            "normalize_features (--normalize-features): features of typed vertices stay as they are; leave it out"
            f"{beforehand}"
        )
    check_edge_numbers(raw)
    if raw.edge_type is not None:
        _check_edge_type(raw, config)
    if not config.features:
        _check_features(raw)
    if config.task == "links":
        raw.labels, raw.classes = np.zeros(raw.num_vertices, dtype=np.int64), 1
    elif config.labels:
        raw.labels, raw.classes = synthesize_labels(config.labels, raw.num_vertices, config.seed)
    elif config.task == "regression":
        check_numbers(raw)
    else:
        check_labels(raw)
    labelled = has_label(raw.labels)
    if config.task == "links":
        raw.masks = {split: np.full(raw.num_vertices, split == "train") for split in SPLITS}
    elif config.random_split:
        if not labelled.any():
            raise InputError(f"{raw.name('labels')}: no vertex has a label, so there is nothing to split")
        if config.stratify and (raw.labels.ndim > 1 or config.task == "regression"):
            raise InputError(f"{raw.name('labels')}: --stratify needs one class per vertex; leave it out")
        classes = raw.labels if config.stratify else None
        raw.masks = synthesize_split(config.random_split, labelled, config.seed, classes)
    else:
        given = set(raw.masks or ())
        choose_split(raw, config.split)
        check_masks(raw, labelled, given)
        if "train" not in given:
            found, remedy = "no labels and no masks", ""
            if not predicts_only:
                found = f"no {raw.name('train')}"
                remedy = "; random_split=(0.6, 0.2, 0.2) (--random-split 0.6,0.2,0.2) draws masks"
            note(f"{found}: a model predicts on this graph, and is not trained on it{remedy}")
    if raw.labels.ndim == 1 and raw.classes > max(raw.num_vertices, MOST_CLASSES):
        raise InputError(
            f"{raw.name('labels')}: {raw.classes} classes for {raw.num_vertices} vertices, expected at most "
            f"{max(raw.num_vertices, MOST_CLASSES)}; number the classes that there are from 0"
        )
    for name, dtype in rounded.items():
        note(said_rounded(name, dtype))
    return raw


def _check_missing(raw: RawGraph, config: PreprocessConfig) -> None:
    links, split = config.task == "links", raw.masks is not None or config.random_split is not None
    for piece, given, flag in (
        ("features", raw.features is not None or config.features, "--features random:F (or degree)"),
        (
            "labels",
            raw.labels is not None or config.labels or links or not split,
            "--labels random:C (or --task links), or leave masks and --random-split out for a graph to predict on",
        ),
    ):
        if not given:
            raise InputError(f"{raw.name(piece)}: missing; supply {piece} or pass {flag}")


def _check_vertices(raw: RawGraph, config: PreprocessConfig) -> None:
    vertices = raw.num_vertices
    check_count(vertices, raw.vertices_from)
    beside = [piece for piece in (raw.features, raw.labels, raw.masks, raw.ids) if piece is not None]
    if raw.title and not beside:  # else there is a row for each, or an argument says it
        check_held(vertices, raw.edges.size, raw.vertices_from)
    partitions, chunks = config.grain(vertices)
    if partitions * chunks > vertices:
        most = f"--chunks {vertices // partitions} (or --chunks auto)"
        raise InputError(
            f"{partitions} partitions x {chunks} chunks = {partitions * chunks}: more chunks than vertices "
            f"({vertices}); pass at most {most if vertices >= partitions else f'--partitions {vertices}'}, or leave "
            "both out"
        )


def _check_edge_form(raw: RawGraph) -> None:
    edges = raw.edges
    good_dtype = edges.dtype in (np.dtype(np.int32), np.dtype(np.int64))
    good = good_dtype and edges.ndim == 2 and edges.shape[0] == 2
    if edges.ndim == 2 and edges.shape[0] == edges.shape[1] > 2:
        remedy = DENSE
    elif edges.ndim == 2 and edges.shape[0] != 2 and edges.shape[1] > 2:
        remedy = (
            "pass the two columns of ends alone, as edges=table[:, :2].T.astype(numpy.int64), and weights as "
            "edge_weight=table[:, 2]"
        )
    elif not good_dtype:
        remedy = "save them as numpy.int64"
    elif edges.ndim == 2 and edges.shape[1] == 2:
        remedy = "transpose it"
    else:
        remedy = "save them with numpy.stack([source, destination])"
    raw.expect("edges", edges, good, f"int32 or int64 [2, E], row 0 source, row 1 destination; {remedy}")


def _check_vertex_ids(raw: RawGraph) -> None:
    edges, vertices = raw.edges, raw.num_vertices
    for row in (0, 1):
        for lo in range(0, edges.shape[1], BLOCK):
            block = edges[row, lo : lo + BLOCK]
            if block.min() < 0 or block.max() >= vertices:
                at = int(np.flatnonzero((block < 0) | (block >= vertices))[0])
                where = f"{raw.name('edges')}: [{row}, {lo + at}] is"
                if raw.blocks is not None:
                    where = f"{raw.locate_edge(lo + at)}:"
                from_one = int(edges.min()) == 1 and int(edges.max()) == vertices
                remedy = "subtract 1, for the ids start at 1" if from_one else "remove the edge or add the vertex"
                raise InputError(
                    f"{where} vertex {block[at]}, expected 0 to {vertices - 1} ({raw.vertices_from}); {remedy}"
                )


def check_edge_numbers(raw: RawGraph) -> None:
    """Weights and features of edges.

    Raises:
        InputError: when there is not one for each, or one is not finite.
    """
    edges = raw.edges.shape[1]
    for piece, form, row, rank in (
        ("edge_weight", f"[{edges}]", "one weight", 1),
        ("edge_features", f"[{edges}, F], F > 0", "a row", 2),
    ):
        array = getattr(raw, piece)
        if array is not None:
            good = array.ndim == rank and len(array) == edges and 0 not in array.shape[1:]
            good = good and array.dtype.kind in (NUMBERS if raw.whole else "f")
            remedy = f"save {row} for each edge with .astype(numpy.float32), or remove it"
            raw.expect(piece, array, good, f"float32 {form}; {remedy}")
            _check_finite(raw, piece, array if rank == 2 else array[:, None])


def _check_edge_type(raw: RawGraph, config: PreprocessConfig) -> None:
    kind, edges = raw.edge_type, raw.edges.shape[1]
    good = kind.dtype.kind in "iu" and kind.shape == (edges,)
    raw.expect("edge_type", kind, good, f"integers [{edges}]; save one type for each edge, as a whole number")
    bound = max(edges, FREE_CLASSES)
    for lo in range(0, edges, BLOCK):
        block = kind[lo : lo + BLOCK]
        bad = np.flatnonzero((block < 0) | (block >= bound))
        if len(bad):
            raise InputError(
                f"{_position(raw, 'edge_type', lo + bad[0], 0)} is {block[bad[0]]}, expected a type from 0 to "
                f"{bound - 1}; number the types from 0"
            )
        raw.edge_types = max(raw.edge_types or 1, int(block.max()) + 1)
    raw.edge_types = raw.edge_types or 1
    for flag, given, transform in (
        ("--undirected", config.undirected, "ToUndirected"),
        ("--self-loops", config.self_loops, "AddSelfLoops"),
    ):
        if given:
            remedy = "save those edges with types of their own"
            if raw.types is not None:
                remedy = f"pass torch_geometric.transforms.{transform}()(data)"
            raise InputError(
                f"{raw.name('edge_type')}: {flag} would add edges without a type; leave it out, and {remedy}"
            )


def _check_features(raw: RawGraph) -> None:
    features, vertices = raw.features, raw.num_vertices
    if isinstance(features, TypedFeatures):
        if len(features.vertex_type) != vertices:
            raise InputError(
                f"{raw.name('vertex_type')}: {len(features.vertex_type)} vertices, expected {vertices} "
                f"({raw.vertices_from}); save one type for each vertex"
            )
        for k, part in enumerate(features.parts):
            _check_finite(raw, f"features_{k}", part)
        return
    good = features.dtype.kind in NUMBERS and features.ndim == 2 and features.shape[0] == vertices
    remedy = form_remedy(features, vertices)
    if remedy.startswith("save"):
        remedy += ", or pass --features random:F"
    raw.expect(
        "features", features, good and features.shape[1] > 0,
        f"float32 [{vertices}, F], F > 0 ({raw.vertices_from}); {remedy}",
    )  # fmt: skip
    if isinstance(features, np.ndarray):
        _check_finite(raw, "features", features)
        return
    if features.dtype.kind != "f":  # astype of a matrix would add up duplicates first, in the type that they have
        parts = features.data.astype(np.float32), features.indices, features.indptr
        features = raw.features = type(features)(parts, shape=features.shape)
    if not features.has_canonical_format:  # duplicate entries add up, as they will when rows become dense
        features = raw.features = features.copy()  # the caller's own matrix stays as it is
        features.sum_duplicates()
    bad = ~np.isfinite(as_float32(features.data))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        row = int(np.searchsorted(features.indptr, at, side="right")) - 1
        refuse_value(_position(raw, "features", row, features.indices[at]), features.data[at])


def _rounded(raw: RawGraph, *, numbers: bool) -> dict[str, np.dtype]:
    """Names and types of the numbers that an artifact cannot keep as they are.

    Args:
        numbers: whole labels are such, and no classes.
    """
    features = raw.features
    whole = features if isinstance(features, np.ndarray) else getattr(features, "data", None)  # of CSR
    given = {piece: getattr(raw, piece) for piece in ("edge_weight", "edge_features")} | {"features": whole}
    if isinstance(features, TypedFeatures):
        given |= {f"features_{k}": part for k, part in enumerate(features.parts)}
    if raw.labels is not None and (numbers or raw.labels.dtype.kind == "f"):
        given["labels"] = raw.labels
    return {raw.name(piece): array.dtype for piece, array in given.items() if rounds(array)}


def _position(raw: RawGraph, piece: str, row: int, column: int) -> str:
    if piece.startswith(("features", "edge_features")):
        return f"{raw.name(piece)}: [{row}, {column}]"
    inside = piece == "edge_weight" and raw.blocks is not None  # weights may stand in the file of the edges
    return f"{raw.locate_edge(row)}: edge_weight" if inside else f"{raw.name(piece)}: [{row}]"


def _check_finite(raw: RawGraph, piece: str, array: np.ndarray) -> None:
    step = max(1, BLOCK // max(1, array.shape[1]))
    for lo in range(0, len(array), step):
        finite = np.isfinite(as_float32(array[lo : lo + step]))
        if not finite.all():
            row, column = (int(index[0]) for index in np.nonzero(~finite))
            refuse_value(_position(raw, piece, lo + row, column), array[lo + row, column])
