"""Matrix Market files (.mtx, .mtx.gz): entry (i, j) is the edge i -> j; what is not 1 throughout is a weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.formats.scipy_matrix import from_matrix
from hongtu.preprocess.read.formats.text import DAMAGED, damaged, open_stream
from hongtu.preprocess.read.source import Source

ENDINGS = (".mtx",)


def open_matrix_market(path: Path) -> Source:
    """A square matrix; "symmetric" stands for both directions. scipy reads it whole: 16 bytes an entry.

    Raises:
        InputError: when it is unreadable, not sparse or not square.
    """
    import scipy.io
    import scipy.sparse

    try:
        with open_stream(path) as stream:
            matrix = scipy.io.mmread(stream if path.suffix == ".gz" else path)
    except DAMAGED as error:
        raise damaged(path, error) from None
    except (ValueError, OSError, OverflowError, TypeError) as error:
        raise InputError(f"{path}: not a readable Matrix Market file: {error}; write it again") from None
    if isinstance(matrix, np.ndarray):
        raise InputError(f"{path}: a dense array, expected sparse coordinates; write it with scipy.io.mmwrite")
    return from_matrix(str(path), scipy.sparse.coo_array(matrix))
