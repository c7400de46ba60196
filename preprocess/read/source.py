"""What every format is read into: a stream of edges; and sparse matrices of scipy, torch and torch_sparse, as features
(CSR) or as edges. torch is not imported.

An adapter (``preprocess/read/formats``, one file each) returns a :class:`~.graph.RawGraph` with such a stream;
:mod:`.collect` numbers its vertices and writes its edges to disk block by block, so that no format ever has a whole
graph in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from hongtu.errors import InputError

BLOCK = 1 << 22  # edges, and elements that are looked at in one step, so that no array on a disk is copied whole
NUMBERS = "biuf"  # kinds of numpy that become float32


class EdgeBlock(NamedTuple):
    """Consecutive edges of the input.

    Attributes:
        source, destination: int64 [B], or both names: lists of text.
        weight: float [B] or None.
        relation: names of the types of edges, text [B], or None.
        where: says where the k-th edge of the block stands, such as "graph.csv: line 7".
        spelled: finds the first edge with an integer that is not written as Python writes it, such as 007, and that
            text; None where all are. None: there are no texts of integers.
    """

    source: Any
    destination: Any
    weight: np.ndarray | None
    where: Callable[[int], str]
    relation: list[str] | None = None
    spelled: Callable[[], tuple[int, str] | None] | None = None


class NotIntegers(InputError):
    """Ids that are no integers, in a stream of integers; with ``--relabel`` they are read as text instead."""


def array_blocks(
    name: str, source: np.ndarray, destination: np.ndarray, weight: np.ndarray | None, first: int = 0
) -> Callable[[bool], Iterator[EdgeBlock]]:
    """The stream of edges that are in memory already; the first has the number ``first``."""

    def blocks(as_text: bool) -> Iterator[EdgeBlock]:
        for lo in range(0, len(source), BLOCK):
            part = slice(lo, lo + BLOCK)

            def where(k: int, lo: int = lo) -> str:
                return f"{name}: edge {first + lo + k}"

            ids = [(as_names if as_text else as_integers)(name, a[part], where) for a in (source, destination)]
            yield EdgeBlock(ids[0], ids[1], None if weight is None else weight[part], where)

    return blocks


def as_integers(name: str, ids: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """int64 ids; ``where`` says where the k-th stands.

    Raises:
        InputError: for kinds that are no ids, such as fractions.
        NotIntegers: for text, and for unsigned ids beyond int64.
    """
    if ids.dtype.kind not in "iu":
        if ids.dtype.kind == "U":
            raise NotIntegers(
                f"{name}: vertex ids of type {ids.dtype}, expected integers; pass --relabel to read names"
            )
        raise InputError(f"{name}: vertex ids of type {ids.dtype}, expected integers; cast them to int64")
    if ids.dtype.itemsize == 8 and ids.dtype.kind == "u" and len(ids) and int(ids.max()) > np.iinfo(np.int64).max:
        at = int(np.argmax(ids))
        raise NotIntegers(f"{where(at)}: id {ids[at]} does not fit 64 bits; pass --relabel")
    return ids.astype(np.int64, copy=False)


def as_names(name: str, ids: np.ndarray, where: Callable[[int], str]) -> list[str]:
    """Integer or text ids as text.

    Raises:
        InputError: for kinds that are no ids, and for text that is no Unicode.
    """
    if ids.dtype.kind not in "iuU":
        raise InputError(f"{name}: vertex ids of type {ids.dtype}, expected integers or text; cast them to either")
    return to_names(name, ids.tolist())


def to_names(name: str, ids: list[Any]) -> list[str]:
    """Ids of any kind as text.

    Raises:
        InputError: when one is no Unicode, which no file can hold.
    """
    try:
        names = [str(one) for one in ids]
        "".join(names).encode()
    except ValueError as error:
        raise InputError(f"{name}: an id is not Unicode text ({error}); mend it") from None
    return names


def as_float32(values: np.ndarray) -> np.ndarray:
    """Numbers as an artifact has them; those beyond float32 become infinite, which is refused in any format."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32, copy=False)


def rounds(values: np.ndarray | None) -> bool:
    """Whether an artifact cannot keep numbers as they are."""
    if values is None or values.dtype.kind not in NUMBERS or np.can_cast(values.dtype, np.float32):
        return False
    step = max(1, BLOCK // max(1, values[:1].size))
    blocks = (values[lo : lo + step] for lo in range(0, len(values), step))
    return any(not np.array_equal(as_float32(block), block, equal_nan=True) for block in blocks)


def said_rounded(name: str, dtype: np.dtype) -> str:
    """What a note says of what ``rounds`` finds."""
    return f"{name}: {dtype}, rounded to the float32 of an artifact"


def of_text(values: np.ndarray) -> np.ndarray:
    """float64 that a text says, in a type that has no more digits than people write: int64 or float64 where numbers
    from 2^24 are no float32, such as times; else float32, as decimals of any text are."""
    found = as_float32(values)
    if not ((np.abs(values) >= 1 << 24) & (found != values)).any():
        return found
    whole = np.isfinite(values).all() and (np.trunc(values) == values).all() and np.abs(values).max() < 1 << 53
    return values.astype(np.int64) if whole else values


SQUARE = "of edges between two kinds of vertices pass scipy.sparse.bmat([[None, matrix], [matrix.T, None]])"
DENSE = "of a dense adjacency matrix pass scipy.sparse.csr_matrix(matrix)"


class MatrixEdges(NamedTuple):
    """The entries of a matrix, one by one: equal ones are not added up.

    Attributes:
        row, column: integers [E].
        values: float [E] or [E, F], or None where all are 1 or there are none.
        shape: its rows and columns.
    """

    row: np.ndarray
    column: np.ndarray
    values: np.ndarray | None
    shape: tuple[int, ...]

    @property
    def vertices(self) -> int:
        return self.shape[0]


def to_edges(value: Any, name: str, *, square: bool = True) -> MatrixEdges | None:
    """The entries of an adjacency matrix; None for what is no sparse matrix.

    Raises:
        InputError: for one that is not square, not whole, or not of real numbers.
    """
    found = _entries(value, name)
    if found is None:
        return None
    row, column, values, (rows, columns) = found
    if square and rows != columns:
        raise InputError(f"{name}: a matrix of {rows} x {columns}, expected a square adjacency matrix; {SQUARE}")
    if values is not None and values.dtype.kind not in "biuf":
        raise InputError(f"{name}: entries of type {values.dtype}, expected real numbers; keep the real part")
    only_where = values is None or bool((values == 1).all())
    return MatrixEdges(row, column, None if only_where else values, (rows, columns))


def _entries(value: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[int, ...]] | None:
    try:
        return _parts(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: not a whole sparse matrix of numbers on the CPU ({error}); make it again") from None


def _parts(value: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[int, ...]] | None:
    """Row, column and value of every entry, and the shape."""
    layout = str(getattr(value, "layout", ""))
    if hasattr(value, "tocsr"):
        if hasattr(value, "check_format"):
            check_compressed(value)
        whole = value.tocoo()
        if getattr(value, "format", "") == "bsr":
            whole.eliminate_zeros()  # what fills up blocks
        row, column = whole.coords if hasattr(whole, "coords") else (whole.row, whole.col)
        return row, column, whole.data, whole.shape
    if hasattr(value, "sparse_sizes"):  # of torch_sparse
        row, column, values = value.coo()
        return np.asarray(row), np.asarray(column), None if values is None else np.asarray(values), value.sparse_sizes()
    if layout in ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc"):
        entries = value if layout == "torch.sparse_coo" else value.to_sparse_coo()
        row, column = np.asarray(entries._indices())  # coalesce() would add up equal ones
        return row, column, np.asarray(entries._values()), tuple(value.shape[:2])
    if layout in ("torch.sparse_bsr", "torch.sparse_bsc"):
        raise TypeError("it holds blocks; pass matrix.to_dense().to_sparse()")
    return None


def to_csr(value: Any, name: str = "features") -> Any:
    """scipy CSR of a scipy sparse matrix, a sparse torch tensor or a ``torch_sparse.SparseTensor``; None for others.

    Raises:
        InputError: for a matrix whose parts do not fit together.
    """
    import scipy.sparse

    found = _entries(value, name)
    if found is None or hasattr(value, "tocsr"):
        return None if found is None else value.tocsr()
    row, column, values, shape = found
    try:
        return scipy.sparse.coo_matrix((np.ones(len(row)) if values is None else values, (row, column)), shape).tocsr()
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: not a whole sparse matrix of numbers ({error}); make it again") from None


def check_compressed(matrix: Any) -> None:
    """Refuse a CSR, CSC or BSR matrix whose indices are not all within it: scipy's own code walks memory by them.

    Raises:
        ValueError: at the first thing that is wrong.
    """
    matrix.check_format(full_check=True)
    if (matrix.indptr[1:] < matrix.indptr[:-1]).any():  # scipy does not look where the last one says: no entries
        raise ValueError("indptr must be a non-decreasing sequence")
