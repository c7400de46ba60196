"""Adjacency matrices of scipy (.npz of ``scipy.sparse.save_npz``): entry (i, j) is the edge i -> j."""

from __future__ import annotations

import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.size import FREE, PER_ROW, check_archive, check_held
from hongtu.preprocess.read.source import array_blocks, check_compressed, to_edges

ENDINGS = (".npz",)


def open_scipy_matrix(path: Path) -> RawGraph:
    """A square sparse matrix; what is not 1 throughout is a weight. Read whole: 16 bytes an entry."""
    found = to_edges(load_matrix(path), str(path))
    assert found is not None
    blocks = array_blocks(str(path), found.row, found.column, found.values)
    return RawGraph(title=str(path), blocks=blocks, num_vertices=found.vertices)


def load_matrix(path: Path) -> Any:
    """A matrix in CSR, CSC or COO form whose indices are within its shape; without the zeros that blocks are filled
    up with.
    """
    import scipy.sparse

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of index types that scipy would rather not see
            check_archive(path)
            matrix = scipy.sparse.load_npz(path)
            if matrix.ndim != 2:
                raise ValueError(f"an array of {matrix.ndim} dimensions, expected two")
            check_held(matrix.shape[0], 2 * matrix.nnz + len(getattr(matrix, "indptr", ())), str(path))
            if matrix.shape[1] > max(FREE, PER_ROW * matrix.nnz):
                raise ValueError(f"{matrix.shape[1]} columns of {matrix.nnz} entries")
            if matrix.format == "dia":
                _check_offsets(path)
            if matrix.format in ("csr", "csc", "bsr"):
                check_compressed(matrix)
            if matrix.dtype.kind in "iuf":  # scipy computes with numbers of this machine, and halves with none
                kind = matrix.dtype.newbyteorder("=")
                matrix = matrix.astype(np.float32 if kind == np.float16 else kind, copy=False)
            if matrix.format == "bsr":
                matrix = matrix.tocsr()
                matrix.eliminate_zeros()
            return matrix if matrix.format in ("csr", "csc", "coo") else matrix.tocoo()
    except InputError:
        raise
    except Exception as error:  # zip, pickle, key, memory and value errors: all mean the file is not what it should be
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        arrays = []
        with suppress(Exception), zipfile.ZipFile(path) as archive:  # a damaged one raises whatever it pleases
            arrays = [name.removesuffix(".npy") for name in archive.namelist()][:9]
        others = f", or pass its arrays ({', '.join(arrays)}) to hongtu.preprocess_graph" if arrays else ""
        raise InputError(
            f"{path}: not a readable scipy sparse matrix ({reason}); use scipy.sparse.save_npz{others}"
        ) from None


def _check_offsets(path: Path) -> None:
    """Refuse diagonals whose number is beyond int32: scipy takes them for others."""
    with np.load(path, allow_pickle=False) as parts:
        if (np.abs(parts["offsets"].astype(np.float64)) >= 2**31).any():
            raise ValueError("offsets beyond the matrix")
