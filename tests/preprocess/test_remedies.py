"""What refusals of files advise is run, as it is written, and gives the same graph."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError

networkx = pytest.importorskip("networkx")
pandas = pytest.importorskip("ogb.io.read_graph_raw").pd  # which brings it


GRAPHS = {
    "undirected": networkx.gnm_random_graph(12, 20, seed=1),
    "several edges": networkx.MultiDiGraph([(0, 1), (0, 1), (1, 2), (2, 2)]),
}
WRITERS = {
    ".graphml": networkx.write_graphml, ".gml": networkx.write_gml, ".gexf": networkx.write_gexf,
    ".net": networkx.write_pajek, ".adjlist": networkx.write_adjlist,
    ".json": lambda graph, path: Path(path).write_text(json.dumps(networkx.node_link_data(graph))),
    ".pkl": lambda graph, path: Path(path).write_bytes(pickle.dumps(graph)),
    ".mat": lambda graph, path: scipy.io.savemat(path, {"A": networkx.to_scipy_sparse_array(graph)}),
}  # fmt: skip


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ending", WRITERS)
def test_the_remedy_for_files_of_others_reads_the_same_edges(ending, graph, tmp_path, capsys):
    given, path = GRAPHS[graph], str(tmp_path / f"graph{ending}")
    if given.is_multigraph() and ending in (".adjlist", ".mat"):
        pytest.skip("adds up edges, or knows no directions")
    WRITERS[ending](given, path)
    assert main(["preprocess", path, str(tmp_path / "out")]) == 2
    call = re.search(r"(hongtu.preprocess_graph\(.*), artifact=...\)", capsys.readouterr().err)[1]
    options = "artifact=out, features='random:4', labels='random:2', random_split=(0.6, 0.2, 0.2), chunks=1)"
    names = {"out": tmp_path / "out", "path": path, "NAME": "A", "scipy": scipy, "networkx": networkx, "json": json}
    artifact = eval(f"{call}, {options}", {"hongtu": hongtu, "pickle": pickle, **names})
    ids = artifact.vertex_ids or [str(v) for v in range(artifact.topology.num_vertices)]
    destination = np.repeat(artifact.original_id, np.diff(artifact.topology.in_edge_start))
    source = artifact.original_id[artifact.topology.global_sources()]
    found = sorted((str(ids[int(a)]), str(ids[int(b)])) for a, b in zip(source, destination))
    ways = list(given.edges()) + ([] if given.is_directed() else [(b, a) for a, b in given.edges()])
    assert found == sorted((str(a), str(b)) for a, b in ways)


def test_the_remedy_for_tables_of_vertices(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "edges.csv").write_text("source,destination\n0,1\n1,2\n2,0\n")
    pandas.DataFrame({"id": [0, 1, 2], "x": [1.5, 2, 3], "label": [0, 1, 0]}).to_csv(folder / "nodes.csv", index=False)
    assert main(["preprocess", str(folder), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    line = re.search(r"features.npy: missing, and nodes.csv is not read; .*(numpy.save.*\)), and", said)
    monkeypatch.chdir(folder)
    exec(line[1], {"numpy": np, "pandas": pandas, "COLUMNS": ["x"]})
    np.save("labels.npy", pandas.read_csv("nodes.csv")["label"].to_numpy())
    np.save("train_mask.npy", np.ones(3, bool))
    assert main(["preprocess", str(folder), str(tmp_path / "out"), "--chunks", "1"]) == 0
    assert "nodes.csv: is not read; features, labels and masks are .npy files" in capsys.readouterr().err
    artifact = hongtu.open_artifact(tmp_path / "out")
    assert np.array(artifact.features)[np.argsort(artifact.original_id)].ravel().tolist() == [1.5, 2, 3]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("graph.bin", "dgl.load_graphs(path)[0][0]"), ("edges.xlsx", "pandas.read_excel(path).to_csv"),
        ("edges.h5", "pandas.read_hdf(path).to_csv"), ("edges.tar.gz", "unpack it first: tar xf"),
        ("edges.npy", "pass its directory"),
    ],
)  # fmt: skip
def test_what_reads_files_of_other_kinds(name, words, tmp_path, capsys):
    (tmp_path / name).write_bytes(b"")
    assert main(["preprocess", str(tmp_path / name), str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "matrix", [scipy.sparse.random(5, 4, 0.5, random_state=1), np.eye(3), scipy.sparse.eye(3) * (1 + 0j)], ids=type
)
def test_the_remedy_for_matrices_of_other_forms(matrix, tmp_path, capsys):
    path = tmp_path / "edges.mtx"
    scipy.io.mmwrite(path, matrix)
    options = ["--chunks", "1", "--features", "random:2", "--labels", "random:2", "--random-split", "0.6,0.2,0.2"]
    command = ["preprocess", str(path), str(tmp_path / "out"), *options]
    assert main(command) == 2
    line = capsys.readouterr().err.partition("; ")[2].strip()
    names = {"scipy": scipy, "path": path, "matrix": matrix.T if matrix.shape == (4, 5) else matrix}
    if "bmat" in line:
        scipy.io.mmwrite(path, eval(line.partition(" pass ")[2], names))
    else:
        exec(line.partition("write it with ")[2], names)
    assert main(command) == 0
    entries = np.count_nonzero(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
    assert hongtu.open_artifact(tmp_path / "out").topology.num_edges == entries * (1 + ("bmat" in line))


@pytest.mark.parametrize("names", [["source", "target"], ["from", "to", "amount"], [0, 1]])
def test_a_table_of_edges(names, tmp_path):
    """It is not taken for a matrix, and what is advised is read."""
    data = pandas.DataFrame({name: [0, 1, 2] for name in names})
    with pytest.raises(
        InputError, match=r"of a list of edges pass .*edges=data\[\[.*\]\].to_numpy\(\).T, num_v"
    ) as found:
        hongtu.preprocess_graph(data=data, artifact=tmp_path / "a")
    advised = re.search(r"edges=(\S+ \S+), num_vertices=N", str(found.value))[1]
    made = hongtu.preprocess_graph(eval(advised), 3, tmp_path / "b", features="degree")
    assert (made.num_vertices, made.num_edges) == (3, 3)
