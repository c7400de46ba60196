"""An artifact stores float32: input that is rounded is named, other input is not."""

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

import hongtu
from tests import problems

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
EXACT, ROUNDED = np.linspace(0, 1, 5)[:4], np.array([0.1, 0.5, 1.0, 2.0])


def said(capsys, **arrays):
    given = {"features": np.ones((4, 2), dtype=np.float32), "labels": np.arange(4) % 2}
    given["masks"] = {"train": np.ones(4, dtype=bool)}
    hongtu.preprocess_graph(EDGES, 4, problems.new_path(), partitions=1, chunks=1, **(given | arrays))
    return [line for line in capsys.readouterr().err.splitlines() if "rounded" in line]


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


TYPES = {
    "bool": lambda x: x > 0, "int8": lambda x: x.to(torch.int8), "int64": lambda x: x.long(),
    "float16": lambda x: x.half(), "bfloat16": lambda x: x.bfloat16(),
}  # fmt: skip
FORMS = {
    "tensor": lambda x: {"features": x},
    "numpy": lambda x: {"features": (x.float() if x.dtype == torch.bfloat16 else x).numpy()},
    "sparse": lambda x: {
        "features": scipy.sparse.csr_matrix((x.bool() if x.dtype == torch.bool else x.short()).numpy())
    },
    "data": lambda x: {"data": Data(x=x, edge_index=torch.from_numpy(EDGES))},
    "typed": lambda x: {"features": [x[:1], x[1:]], "vertex_type": [0, 1, 1, 1]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TYPES)
def test_numbers_of_other_types_are_features(kind, form):
    x = TYPES[kind](torch.tensor([[0.0, 1.0], [7.0, 0.0], [2.0, 3.0], [0.0, 0.0]]))
    graph = FORMS[form](x)
    if "data" not in graph:
        graph |= {"edges": EDGES, "num_vertices": 4}
    found = hongtu.preprocess_graph(
        **graph, artifact=problems.new_path(), labels=[0, 1, 0, 1], masks={"train": [0, 1]}, partitions=1, chunks=1
    )
    rows = found.features[:, 1:] if form == "typed" else found.features
    assert rows.dtype == np.float32 and np.array_equal(rows, x.float().numpy()[found.original_id])


def test_whole_numbers_that_are_rounded_are_named(capsys):
    assert said(capsys, features=np.full((4, 2), 2**24)) == []
    assert said(capsys, features=np.full((4, 2), 2**24 + 1)) == [
        "hongtu: note: features: int64, rounded to the float32 of an artifact"
    ]
