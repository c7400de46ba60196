"""An artifact stores float32: input that is rounded is named, other input is not."""

import gzip

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData

import hongtu
from hongtu.config import PreprocessConfig
from hongtu.preprocess.entry import preprocess_directory
from hongtu.preprocess.read.formats.ogb_tables import read_features
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


TIME = 1_600_000_001  # seconds, of which float32 has every 128th
TIMES = torch.arange(4) * 7 + TIME
RING = "src,dst,weight\n0,1,{}\n1,2,{}\n2,3,{}\n3,0,{}\n"


def of_data(**fields):
    own = {"x": torch.ones(4, 2), "y": torch.arange(4) % 2, "train_mask": torch.ones(4, dtype=torch.bool)}
    own |= {} if "adj_t" in fields else {"edge_index": torch.from_numpy(EDGES)}
    return lambda folder: {"data": Data(**own | fields)}


def of_types(**fields):
    def made(folder):
        data = HeteroData()
        data["a"].x, data["a"].y, data["b"].x = torch.ones(4, 2), torch.arange(4) % 2, fields.get("x", torch.ones(4, 1))
        data["a"].train_mask = torch.ones(4, dtype=torch.bool)
        for relation in (("a", "r", "a"), ("b", "s", "a")):
            data[relation].edge_index = torch.from_numpy(EDGES)
        for name, value in fields.items():
            if name != "x":
                data["b", "s", "a"][name] = value
        return {"data": data}

    return made


def of_file(name, write):
    def made(folder):
        write(folder / name)
        return {"input": folder / name, "features": "random:2", "labels": "random:2", "random_split": (0.6, 0.2, 0.2)}

    return made


def of_matrix(name, write):
    return of_file(name, lambda path: write(path, scipy.sparse.coo_matrix((TIMES.numpy(), EDGES), shape=(4, 4))))


def text(values):
    return lambda path: path.write_text(RING.format(*values))


def parquet(values):
    table = {"src": EDGES[0], "dst": EDGES[1], "weight": values}
    return lambda path: pytest.importorskip("pyarrow.parquet").write_table(
        pytest.importorskip("pyarrow").table(table), path
    )


SPARSE = torch.sparse_coo_tensor(torch.from_numpy(EDGES), TIMES, (4, 4)).to_sparse_csr()


@pytest.mark.parametrize(
    "rounded", [TIMES[:, None], TIMES.int()[:, None], torch.stack([TIMES, TIMES // 2], 1)], ids=range(3)
)
def test_fractions_stay_beside_times_of_another_relation(rounded, capsys):
    own = torch.tensor([[0.25], [0.5], [1.5], [-0.75]])
    data = of_types(edge_attr=own)(None)["data"]
    data["a", "r", "a"].edge_attr = rounded
    found = hongtu.preprocess_graph(data=data, artifact=problems.new_path(), partitions=1, chunks=1)
    edges = found.topology
    rows = {*edges.edge_features[edges.edge_type == 1, 0].tolist()}
    assert rows == {*own.ravel().tolist()} and "data['a', 'r', 'a'].edge_attr: " in capsys.readouterr().err


LARGE = {  # and what is said of it
    "edge_attr": (of_data(edge_attr=TIMES[:, None]), "data.edge_attr: int64"),
    "edge_attr of rank 1": (of_data(edge_attr=TIMES), "data.edge_attr: int64"),
    "edge_attr, int32": (of_data(edge_attr=TIMES.int()[:, None]), "data.edge_attr: int32"),
    "edge_weight": (of_data(edge_weight=TIMES), "data.edge_weight: int64"),
    "edge_weight, float64": (of_data(edge_weight=TIMES.double()), "data.edge_weight: float64"),
    "adj_t": (of_data(adj_t=SPARSE), "data.adj_t: int64"),
    "adj_t, float64": (of_data(adj_t=SPARSE.double()), "data.adj_t: float64"),
    "edge_attr of a relation": (of_types(edge_attr=TIMES[:, None]), "data['b', 's', 'a'].edge_attr: int64"),
    "edge_weight of a relation": (of_types(edge_weight=TIMES), "data['b', 's', 'a'].edge_weight: int64"),
    "x of a type": (of_types(x=TIMES[:, None]), "data['b'].x: int64"),
    "text": (of_file("e.csv", text(TIMES.tolist())), "e.csv: edge_weight: int64"),
    "text with halves": (of_file("e.csv", text((TIMES.double() + 0.5).tolist())), "e.csv: edge_weight: float64"),
    "parquet": (of_file("e.parquet", parquet(TIMES.numpy())), "e.parquet: edge_weight: int64"),
    "mtx": (of_matrix("e.mtx", scipy.io.mmwrite), "e.mtx: edge_weight: int64"),
    "npz": (of_matrix("e.npz", scipy.sparse.save_npz), "e.npz: edge_weight: int64"),
}


def notes_of(given, capsys):
    given = dict(given)
    where = {"artifact": problems.new_path(), "partitions": 1, "chunks": 1}
    if "input" in given:
        source, artifact = given.pop("input"), where.pop("artifact")
        preprocess_directory(source, artifact, PreprocessConfig(**given | where))
    else:
        hongtu.preprocess_graph(**given, **where)
    return [line for line in capsys.readouterr().err.splitlines() if "rounded" in line]


@pytest.mark.parametrize("name", LARGE)
def test_times_are_said_to_be_rounded_in_every_form(name, tmp_path, capsys):
    make, expected = LARGE[name]
    (line,) = notes_of(make(tmp_path), capsys)
    assert line.endswith(f"{expected}, rounded to the float32 of an artifact")


SMALL = {
    "edge_attr": of_data(edge_attr=TIMES[:, None] - TIME),
    "edge_weight": of_data(edge_weight=TIMES - TIME),
    "adj_t": of_data(adj_t=SPARSE.float()),
    "edge_attr of a relation": of_types(edge_attr=TIMES[:, None] - TIME),
    "decimals": of_file("e.csv", text(["0.1", "1e-3", "3.25", "123456.7"])),
}


@pytest.mark.parametrize("name", SMALL)
def test_numbers_as_people_write_them_are_not(name, tmp_path, capsys):
    assert notes_of(SMALL[name](tmp_path), capsys) == []


@pytest.mark.parametrize(("rows", "said"), [("1600000001,1", "int64"), ("1600000001.5,1", "float64"), ("0.1,7", "")])
def test_tables_of_ogb(rows, said, tmp_path, capsys):
    file = tmp_path / "node-feat.csv.gz"
    file.write_bytes(gzip.compress(f"{rows}\n".encode()))
    read_features(file, 1, tmp_path / "rows.npy", lambda share: None)
    note = f"hongtu: note: {file}: {said}, rounded to the float32 of an artifact"
    assert capsys.readouterr().err.splitlines() == ([note] if said else [])
