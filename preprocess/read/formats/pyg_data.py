"""torch_geometric's ``Data``, or anything with its fields: no import of it, or of torch, is needed."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hongtu.errors import InputError, note
from hongtu.graph.format import OF_SPARSE, TENSOR
from hongtu.graph.given import as_array
from hongtu.preprocess.read.graph import SPLITS, RawGraph, find_masks
from hongtu.preprocess.read.source import DENSE, array_blocks, to_csr, to_edges

FIELDS = {"features": "x", "labels": "y"}
EDGE_FIELDS = {"edge_features": "edge_attr", "edge_type": "edge_type"}


class Ends(NamedTuple):
    """The edges of a graph, and what lies beside them.

    Attributes:
        source, destination: integers [E].
        weight: numbers [E] or None.
        features: numbers [E, F] or None.
        vertices: V, or None where no matrix says it; between two types how many of sources and of destinations.
        title: what messages call the edges.
        forms: how the graph has weights and features, as ``RawGraph.edge_forms``.
    """

    source: np.ndarray
    destination: np.ndarray
    weight: np.ndarray | None
    features: np.ndarray | None
    vertices: Any
    title: str
    forms: dict[str, str]


def from_data(data: Any, name: str = "data") -> RawGraph:
    """One graph from ``edge_index`` (or ``adj_t``), ``edge_weight``, ``edge_attr``, ``edge_type``, ``x``, ``y`` and the
    masks.

    Args:
        data: a ``Data`` or a mapping with its fields, or an adjacency matrix alone.
        name: what messages call it.

    Raises:
        InputError: when there is no edge list, or a field is no array.
    """
    edges, vertices, (masks, names) = edges_of(data, name), _num_vertices(data, name), masks_of(data, name)
    return RawGraph(
        title=name,
        blocks=array_blocks(edges.title, edges.source, edges.destination, edges.weight),
        num_vertices=edges.vertices if vertices is None else vertices,
        edge_features=edges.features,
        edge_type=_field(data, name, "edge_type"),
        edge_forms=edges.forms,
        whole=True,
        names={piece: title_of(data, name, key) for piece, key in (FIELDS | EDGE_FIELDS).items()}
        | {"edge_weight": edges.title if "edge_weight" in edges.forms else title_of(data, name, "edge_weight")}
        | names,
        masks=masks,
        **vertex_fields(data, name),
    )


def edges_of(data: Any, name: str, *, square: bool = True) -> Ends:
    """``edge_index`` [2, E], or a matrix whose entry (i, j) is the edge i -> j; or ``adj_t``, where it is j -> i.
    ``edge_weight`` is weights, as are the values of a matrix where they are not all 1; ``edge_attr`` is edge features.

    Args:
        square: both ends are vertices of the same kind.

    Raises:
        InputError: when there are no edges, or what lies beside them does not fit.
    """
    source, destination, values, vertices, title = _ends(data, name, square=square)
    attributes, weight = _field(data, name, "edge_attr"), _field(data, name, "edge_weight")
    if values is not None and values.ndim == 2 and attributes is None:
        attributes, values = values, None
    elif values is not None and weight is not None:
        raise InputError(f"{title}: holds weights, and so does {title_of(data, name, 'edge_weight')}; remove one")
    matrix = next(value for value in (_get(data, "edge_index"), _get(data, "adj_t"), data) if value is not None)
    of_torch = str(getattr(matrix, "layout", "")).startswith("torch.sparse")
    by_loops = square and matrix is _get(data, "adj_t") and bool((source == destination).any())
    if of_torch and values is None and weight is None and by_loops:
        values = np.ones(len(source), dtype=np.float32)  # of such a matrix self-loops are counted with those added
    kind = OF_SPARSE if type(matrix).__name__ == OF_SPARSE else TENSOR if of_torch else "matrix"
    forms = {} if values is None else {"edge_weight": kind}
    weight = _weight(weight if values is None else values, title_of(data, name, "edge_weight"), len(source))
    if attributes is not None:
        form = f"{attributes.ndim}{attributes.dtype.kind.replace('u', 'i')}"
        forms |= {} if form == "2f" else {"edge_features": form}
        attributes = attributes[:, None] if attributes.ndim == 1 else attributes
        if weight is None and attributes.shape == (len(source), 1):
            note(
                f"{title_of(data, name, 'edge_attr')}: one number for each edge, kept as edge features; a model gets "
                "it where its forward passes edge_attr on, and for layers that weigh edges by it set "
                f"{title_of(data, name, 'edge_weight')}"
            )
    return Ends(source, destination, weight, attributes, vertices, title, forms)


def _ends(data: Any, name: str, *, square: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Any, str]:
    """Sources, destinations, values beside them, how many vertices there are, and what messages call the edges."""
    for key, value in (("edge_index", _get(data, "edge_index")), ("adj_t", _get(data, "adj_t")), ("", data)):
        title = title_of(data, name, key) if key else name
        found = None if value is None else to_edges(value, title, square=square)
        if found is not None:
            ends = (found.column, found.row) if key == "adj_t" else (found.row, found.column)
            shape = found.shape[::-1] if key == "adj_t" else found.shape
            return *ends, found.values, found.vertices if square else shape, title
        if value is not None and key == "edge_index":
            edges = _array(title, value)
            if edges.ndim != 2 or edges.shape[0] != 2:
                remedy = f"transpose it, {title}.t()" if edges.ndim == 2 and edges.shape[1] == 2 else DENSE
                raise InputError(
                    f"{title}: shape {edges.shape}, expected [2, E], row 0 source, row 1 destination; {remedy}"
                )
            return edges[0], edges[1], None, None, title
    raise InputError(
        f"{name}: no edge_index and no sparse adj_t (fields of one graph are expected), found {_fields(data)}"
    )


def vertex_fields(data: Any, name: str) -> dict[str, Any]:
    """``x`` and ``y``, as features and labels."""
    labels, sparse = _field(data, name, "y"), to_csr(_get(data, "x"), title_of(data, name, "x"))
    return {
        "features": _field(data, name, "x") if sparse is None else sparse,
        "labels": labels.ravel() if labels is not None and labels.shape[1:] == (1,) else labels,
    }


def masks_of(data: Any, name: str) -> tuple[dict[str, np.ndarray] | None, dict[str, str]]:
    """``train_mask``, ``val_mask`` (or ``valid_mask``) and ``test_mask``, bool [V] or of several splits [S, V], by
    split, None where there are none; and what messages call them."""
    found = find_masks(lambda key: _field(data, name, key), lambda key: title_of(data, name, key))
    masks = {split: mask.T if mask.ndim == 2 else mask for split, (_, mask) in found.items()}
    keys = {split: f"{split}_mask" for split in SPLITS} | {split: key for split, (key, _) in found.items()}
    return masks or None, {split: title_of(data, name, key) for split, key in keys.items()}


def title_of(data: Any, name: str, key: str) -> str:
    """What messages call a field: where it is that of a graph of DGL or NetworkX, as people write it there."""
    own = getattr(data, "own_names", {}).get(key)
    return f"{name}.{key}" if own is None else f"{name.partition('[')[0]}.{own}"


def said_unread(unread: Mapping[str, Collection[Any]], read: str) -> list[str]:
    """A note that names attributes, by what has them, which nothing reads; empty where there are none."""
    shown = " and ".join(f"{', '.join(sorted(map(repr, keys)))} of {of}" for of, keys in unread.items() if keys)
    return [f"data: the attributes {shown} are not read; {read}"] if shown else []


def _field(data: Any, name: str, key: str) -> np.ndarray | None:
    value = _get(data, key)
    return None if value is None else _array(title_of(data, name, key), value)


def _array(name: str, value: Any) -> np.ndarray:
    sparse = hasattr(value, "to_dense") and str(getattr(value, "layout", "")) != "torch.strided"
    # an EdgeIndex is strided, and its dense form a matrix of all vertices
    return as_array(name, value.to_dense() if sparse else value)


def _weight(weight: np.ndarray | None, title: str, count: int) -> np.ndarray | None:
    if weight is None:
        return None
    if weight.size != count:
        found = f"{weight.size} values" + f" {weight.shape}" * (weight.ndim > 1)
        raise InputError(
            f"{title}: {found} for {count} edges, expected one each"
            + "; several columns are edge_attr, of which a forward hands one on as weights, edge_attr[:, 0]"
            * (weight.ndim > 1)
        )
    if weight.dtype.kind not in "biuf":
        raise InputError(f"{title}: {weight.dtype}, expected real numbers; save one float an edge")
    return weight.ravel()


def _get(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, Mapping) else getattr(data, key, None)


def _num_vertices(data: Any, name: str) -> int | None:
    count = _get(data, "num_nodes")
    try:
        return None if count is None else operator.index(count)
    except TypeError:
        raise InputError(f"{name}.num_nodes: {count!r}, expected an integer") from None


def _fields(data: Any) -> str:
    if isinstance(data, str | os.PathLike):
        return f"a {type(data).__name__}; `hongtu preprocess` reads files"
    of_many = hasattr(data, "__getitem__") and not hasattr(data, "keys") and not hasattr(data, "shape")
    if isinstance(data, Sequence) or of_many:  # as DGL's datasets
        return f"a {type(data).__name__}; pass one graph of it, such as dataset[0]"
    if hasattr(data, "shape") or not (hasattr(data, "keys") or hasattr(data, "__dict__")):
        if getattr(data, "ndim", 0) != 2:
            return f"a {type(data).__name__}"
        if len(names := list(getattr(data, "columns", ()))) > 1:
            ends = f"edges=data[{names[:2]!r}].to_numpy().T, num_vertices=N"
            return f"a {type(data).__name__}; of a list of edges pass the columns of ends, as {ends}; {DENSE}"
        return f"a {type(data).__name__}; " + ("pass it as edges, with num_vertices" if len(data) == 2 else DENSE)
    keys = data.keys() if callable(getattr(data, "keys", None)) else vars(data)
    return ", ".join(map(str, keys))[:200] or "nothing"
