"""Planetoid's raw files (Cora, Citeseer, Pubmed): ``ind.NAME.x, y, tx, ty, allx, ally, graph`` and ``test.index``.

They are pickles. Only arrays, sparse matrices and dictionaries are let in; anything else in them is refused, not run.
As in torch_geometric, repeated edges and self-loops are dropped, and test vertices that the files skip get no label.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.source import Source, array_blocks

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph")
VALIDATION = 500  # vertices after the training ones
ALLOWED = {
    ("collections", "defaultdict"), ("builtins", "list"), ("builtins", "object"), ("copyreg", "_reconstructor"),
    ("_codecs", "encode"), ("numpy", "ndarray"), ("numpy", "dtype"), ("numpy", "_reconstruct"),
    ("numpy", "scalar"), ("scipy.sparse", "csr_matrix"),
}  # fmt: skip
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # Python 2


def is_planetoid(path: Path) -> bool:
    """Whether the folder holds the raw files of one dataset."""
    return len(list(path.glob("ind.*.graph"))) == 1


def open_planetoid(path: Path) -> Source:
    """The public split: the training vertices, the next 500 for validation, and ``test.index``.

    Raises:
        InputError: when a file is missing, damaged, or holds what it should not.
    """
    import scipy.sparse

    (graph_file,) = path.glob("ind.*.graph")
    stem = graph_file.name.removesuffix(".graph")
    x, y, tx, ty, allx, ally, graph = (_load(path / f"{stem}.{part}") for part in PARTS)
    index_file = path / f"{stem}.test.index"
    try:
        test = np.loadtxt(index_file, dtype=np.int64, ndmin=1)
    except (OSError, ValueError) as error:
        raise InputError(f"{index_file}: not readable ({error}), expected one vertex a line; copy it again") from None
    known = allx.shape[0]
    if not len(test) or test.min() < known or len(test) != tx.shape[0] or len(y) != x.shape[0]:
        raise InputError(f"{index_file}: does not fit {stem}.tx and {stem}.allx; copy the files of one dataset")
    count = int(test.max()) + 1
    features = scipy.sparse.lil_matrix((count, allx.shape[1]), dtype=np.float32)
    features[:known], features[test] = allx, tx
    labels = np.full(count, -1, dtype=np.int64)
    for rows, hot in ((slice(0, known), ally), (test, ty)):
        labels[rows] = np.where(hot.any(axis=1), hot.argmax(axis=1), -1)
    masks = {split: np.zeros(count, dtype=bool) for split in ("train", "val", "test")}
    masks["train"][: len(y)] = True
    masks["val"][len(y) : len(y) + VALIDATION] = True
    masks["test"][test] = True
    source, destination = _edges(graph, graph_file)
    return Source(
        name=str(graph_file),
        blocks=array_blocks(str(graph_file), source, destination, None),
        num_vertices=count,
        features=features.tocsr(),
        labels=labels,
        masks=masks,
        names={"features": str(path / f"{stem}.allx"), "labels": str(path / f"{stem}.ally")},
    )


def _edges(graph: Any, file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Both directions of every pair, each once, without self-loops, by (source, destination)."""
    try:
        lengths = [len(neighbours) for neighbours in graph.values()]
        source = np.repeat(np.fromiter(graph.keys(), dtype=np.int64, count=len(graph)), lengths)
        destination = np.array([u for neighbours in graph.values() for u in neighbours], dtype=np.int64)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{file}: not a dictionary of neighbour lists ({error}); copy it again") from None
    pairs = np.concatenate([[source, destination], [destination, source]], axis=1)
    found = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
    return found[0], found[1]


class _Unpickler(pickle.Unpickler):
    """Python 2 pickles of arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        package = module.split(".")[0]
        module = RENAMED.get(
            module, "scipy.sparse" if package == "scipy" else "numpy" if package == "numpy" else module
        )
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        if module == "numpy" and name in ("_reconstruct", "scalar"):
            module = "numpy._core.multiarray" if hasattr(np, "_core") else "numpy.core.multiarray"
        return super().find_class(module, name)


def _load(file: Path) -> Any:
    try:
        with file.open("rb") as stream:
            return _Unpickler(stream, encoding="latin1").load()
    except FileNotFoundError:
        raise InputError(f"{file}: missing; all of {', '.join(PARTS)} and test.index are needed") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{file}: not a readable Planetoid file ({error}); copy it again") from None
