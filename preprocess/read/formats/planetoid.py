"""Planetoid's raw files (Cora, Citeseer, Pubmed): ``ind.NAME.x, y, tx, ty, allx, ally, graph`` and ``test.index``.

They are pickles. Arrays, sparse matrices and dictionaries are read from them; anything else is refused, nothing is run.
As in torch_geometric, repeated edges and self-loops are dropped, and test vertices that the files skip get no label.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.host import available_bytes
from hongtu.preprocess.read.formats.data_pickle import Made, load_arrays
from hongtu.preprocess.read.formats.ogb_tables import read_filled
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.size import check_count
from hongtu.preprocess.read.source import array_blocks, check_compressed

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph")
VALIDATION = 500  # vertices after the training ones
TIMES = 4  # as much memory as a file has bytes is taken
MOST_SKIPPED = 2  # times as many vertices as have rows; Citeseer skips 15


def is_planetoid(path: Path) -> bool:
    """Whether the folder holds the raw files of one dataset."""
    return any(path.glob("ind.*.allx")) or any(path.glob("ind.*.graph"))


def open_planetoid(path: Path) -> RawGraph:
    """The public split: the training vertices, the next 500 for validation, and ``test.index``."""
    stem, *others = sorted({file.stem for part in PARTS for file in path.glob(f"ind.*.{part}")})
    if others:
        raise InputError(f"{path}: files of {stem} and of {others[0]}, expected one dataset; give each a folder")
    graph_file = path / f"{stem}.graph"
    x, tx, allx = (_load(path / f"{stem}.{part}", _rows) for part in ("x", "tx", "allx"))
    y, ty, ally = (_load(path / f"{stem}.{part}", _classes) for part in ("y", "ty", "ally"))
    test = _test_index(path / f"{stem}.test.index", allx.shape[0])
    known, count, train = len(ally[0]), int(test.max()) + 1, len(y[0])
    rows = [matrix.shape[0] for matrix in (allx, tx, x)]
    same_width = len({matrix.shape[1] for matrix in (x, tx, allx)}) == len({width for _, width in (y, ty, ally)}) == 1
    if not same_width or rows != [known, len(test), train] or len(ty[0]) != len(test) or train > known:
        raise InputError(f"{path}: {stem}.* have sizes that do not fit each other; copy the files of one dataset")
    labels = np.full(count, -1, dtype=np.int64)
    labels[:known], labels[test] = ally[0], ty[0]
    masks = {split: np.zeros(count, dtype=bool) for split in ("train", "val", "test")}
    masks["train"][:train] = True
    masks["val"][train : min(train + VALIDATION, known)] = True
    masks["test"][test] = True
    source, destination = _load(graph_file, _edges)
    return RawGraph(
        title=str(graph_file),
        blocks=array_blocks(str(graph_file), source, destination, None),
        num_vertices=count,
        features=_placed(allx, tx, test, count),
        labels=labels,
        masks=masks,
        names={"features": str(path / f"{stem}.allx"), "labels": str(path / f"{stem}.ally")},
    )


def _test_index(file: Path, known: int) -> np.ndarray:
    """int64, the test vertices in the order of their rows."""
    if not file.is_file():
        raise _missing(file)
    lines = [*read_filled(file)]
    try:
        test = np.array([*map(int, lines)], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        reason = str(error)[:200]
        raise InputError(f"{file}: not readable ({reason}), expected one vertex a line; copy it again") from None
    if not len(test) or test.min() < known or len(np.unique(test)) < len(test):
        raise InputError(
            f"{file}: does not fit the other files, expected different vertices of at least {known}, one a line; "
            "copy the files of one dataset"
        )
    count = int(test.max()) + 1
    check_count(count, str(file))
    if count > MOST_SKIPPED * (known + len(test)):
        raise InputError(
            f"{file}: vertex {count - 1}, where the files hold rows of {known + len(test)}; copy the files of one "
            "dataset"
        )
    return test


def _rows(value: Any) -> Any:
    """Features as scipy COO."""
    import scipy.sparse

    if not isinstance(value, Made) or value.value is None:
        raise ValueError(f"a {type(value).__name__}, expected a matrix")
    if value.kind == "matrix":
        parts, shape = [value.value[name].value for name in ("data", "indices", "indptr")], value.value["_shape"]
        if any(part.dtype.kind not in "biuf" for part in parts) or max(shape) >= 2**31:
            raise ValueError(f"a matrix of shape {shape}")
        value = scipy.sparse.csr_matrix(tuple(parts), shape=shape)
        check_compressed(value)
    else:
        value = value.value
    if value.ndim != 2:
        raise ValueError(f"an array of shape {value.shape}, expected a matrix")
    if value.dtype.kind not in "biuf":
        raise ValueError(f"{value.dtype}, expected numbers")
    return scipy.sparse.coo_matrix(value)


def _placed(allx: Any, tx: Any, test: np.ndarray, count: int) -> Any:
    """The features of every vertex, scipy CSR."""
    import scipy.sparse

    values, columns = (np.concatenate([getattr(m, part) for m in (allx, tx)]) for part in ("data", "col"))
    rows = np.concatenate([allx.row, test[tx.row]])
    return scipy.sparse.csr_matrix((values, (rows, columns)), shape=(count, allx.shape[1]))


def _classes(value: Any) -> tuple[np.ndarray, int]:
    """int64, the class of every row of ones and zeros, -1 for a row without; and the number of classes."""
    kind, value = getattr(value, "kind", type(value).__name__), getattr(value, "value", None)
    kind = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {kind}"
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind not in "biuf" or not value.shape[1]:
        raise ValueError(f"{kind}, expected ones and zeros [N, C]")
    hot = value == 1
    if (hot.sum(axis=1) + (value == 0).sum(axis=1) < value.shape[1]).any() or (hot.sum(axis=1) > 1).any():
        raise ValueError("a row is not one 1 among zeros")
    return np.where(hot.any(axis=1), hot.argmax(axis=1), -1), value.shape[1]


def _edges(graph: Any) -> tuple[np.ndarray, np.ndarray]:
    """Both directions of every pair, each once, without self-loops, by (source, destination)."""
    if not isinstance(graph, dict) or not all(isinstance(near, list) for near in graph.values()):
        raise ValueError("not a dictionary of neighbour lists")
    if len({id(near) for near in graph.values()}) < len(graph):
        raise ValueError("several vertices have one list of neighbours")
    source = np.repeat(_integers(list(graph)), [len(near) for near in graph.values()])
    destination = _integers([u for near in graph.values() for u in near])
    pairs = np.concatenate([[source, destination], [destination, source]], axis=1)
    found = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
    return found[0], found[1]


def _integers(values: list) -> np.ndarray:
    if not all(type(value) is int or isinstance(value, np.integer) for value in values):
        raise ValueError("a vertex is no integer")
    return np.array(values, dtype=np.int64)


def _missing(file: Path) -> InputError:
    return InputError(f"{file}: missing; all of {', '.join(PARTS)} and test.index are needed")


def _load(file: Path, convert: Callable[[Any], Any]) -> Any:
    """What a file holds, through a function that raises anything where it is not what it should be."""
    try:
        size, available = file.stat().st_size, available_bytes()
        if available is not None and TIMES * size > available:
            raise ValueError(f"{size} bytes, which take more than the {available} of memory that are available")
        return convert(load_arrays(file.read_bytes()))
    except FileNotFoundError:
        raise _missing(file) from None
    except Exception as error:  # a damaged pickle can raise anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{file}: not a readable Planetoid file ({reason}); copy it again") from None
