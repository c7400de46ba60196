"""Adjacency matrices of scipy (.npz of ``scipy.sparse.save_npz``): entry (i, j) is the edge i -> j."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hongtu.errors import InputError
from hongtu.preprocess.read.source import Source, array_blocks, weights_of

ENDINGS = (".npz",)


def open_scipy_matrix(path: Path) -> Source:
    """A square sparse matrix; what is not 1 throughout is a weight. Read whole: 16 bytes an entry.

    Raises:
        InputError: when it is unreadable or not square.
    """
    import scipy.sparse

    try:
        matrix = scipy.sparse.load_npz(path)
        if matrix.format in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)
        matrix = matrix.tocoo()
    except Exception as error:  # zip, pickle, key and value errors: all mean the file is not what it should be
        raise InputError(f"{path}: not a readable scipy matrix ({error}); use scipy.sparse.save_npz") from None
    return from_matrix(str(path), matrix)


def from_matrix(name: str, matrix: Any) -> Source:
    """The entries of a scipy COO matrix as edges, in stored order."""
    rows, columns = matrix.shape
    if rows != columns:
        raise InputError(f"{name}: a matrix of {rows} x {columns}, expected a square adjacency matrix")
    if matrix.data.dtype.kind not in "biuf":
        raise InputError(f"{name}: entries of type {matrix.data.dtype}, expected real numbers; keep the real part")
    source, destination = matrix.coords if hasattr(matrix, "coords") else (matrix.row, matrix.col)
    blocks = array_blocks(name, source, destination, weights_of(matrix.data))
    return Source(name=name, blocks=blocks, num_vertices=rows)
