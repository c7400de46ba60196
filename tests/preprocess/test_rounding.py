"""An artifact stores float32: input that is rounded is named, other input is not."""

import numpy as np
import pytest
import scipy.sparse

import hongtu
from tests import problems

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
EXACT, ROUNDED = np.linspace(0, 1, 5)[:4], np.array([0.1, 0.5, 1.0, 2.0])


def said(capsys, **arrays):
    given = {"features": np.ones((4, 2), dtype=np.float32), "labels": np.arange(4) % 2}
    given["masks"] = {"train": np.ones(4, dtype=bool)}
    hongtu.preprocess_graph(EDGES, 4, problems.new_path(), partitions=1, chunks=1, **(given | arrays))
    return [line for line in capsys.readouterr().err.splitlines() if "float64" in line]


@pytest.mark.parametrize(
    "piece, make",
    [
        ("features", lambda x: np.stack([x, x], axis=1)),
        ("features", lambda x: scipy.sparse.csr_matrix(np.stack([x, x], axis=1))),
        ("edge_weight", lambda x: x),
        ("edge_features", lambda x: x[:, None]),
        ("labels", lambda x: x[:, None]),
    ],
    ids=["features", "sparse", "weights", "edge-features", "numbers"],
)
def test_rounded_input_is_named(piece, make, capsys):
    task = {"task": "regression"} if piece == "labels" else {}
    assert said(capsys, **{piece: make(EXACT)}, **task) == []
    (line,) = said(capsys, **{piece: make(ROUNDED)}, **task)
    assert line == f"hongtu: note: {piece}: float64, rounded to the float32 of an artifact"
    assert said(capsys, **{piece: make(ROUNDED.astype(np.float32))}, **task) == []
