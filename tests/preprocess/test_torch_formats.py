"""Graphs that come as torch objects, and predictions by the ids of the input."""

from __future__ import annotations

import pickle
import re

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import AddSelfLoops, NormalizeFeatures, ToUndirected
from torch_geometric.utils import add_remaining_self_loops, coalesce, sort_edge_index, to_undirected

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.nn import GCNConv, RGCNConv, TypedLinear
from tests.neutral import contents, pieces, write

SMALL = ["--partitions", "2", "--chunks", "3"]


def data(**changes):
    given = {name: torch.from_numpy(np.array(array)) for name, array in pieces().items()}
    fields = {"edge_index": given.pop("edges"), "x": given.pop("features"), "y": given.pop("labels"), **given}
    return Data(**(fields | changes))


@pytest.fixture
def expected(tmp_path):
    assert main(["preprocess", str(write(tmp_path / "neutral", pieces())), str(tmp_path / "expected"), *SMALL]) == 0
    return contents(tmp_path / "expected")


def test_data_in_memory(tmp_path, expected):
    changes = [
        {},
        {"y": data().y[:, None]},
        {"x": data().x.to_sparse()},
        {"edge_index": EdgeIndex(data().edge_index, sparse_size=(24, 24))},
    ]
    for k, change in enumerate(changes):
        hongtu.preprocess_graph(data=data(**change), artifact=tmp_path / str(k), partitions=2, chunks=3)
        assert contents(tmp_path / str(k)) == expected, change
    mapping = data().to_dict()
    hongtu.preprocess_graph(data=mapping, artifact=tmp_path / "mapping", partitions=2, chunks=3)
    assert contents(tmp_path / "mapping") == expected


def by_source():
    """The edges in the order in which a matrix in CSR has them; some are equal."""
    edges = pieces()["edges"]
    return edges[:, np.argsort(edges[0], kind="stable")]


def adjacency(form, transposed=False):
    row, column = by_source()[::-1] if transposed else by_source()
    if form == "coo":
        return torch.sparse_coo_tensor(torch.from_numpy(np.stack([row, column])), torch.ones(60), (24, 24))
    if form == "torch_sparse":
        return SparseTensor(row, column)
    order = np.argsort(row, kind="stable")
    start, others = np.searchsorted(row[order], np.arange(25)), column[order]
    if form == "scipy":
        return scipy.sparse.csr_matrix((np.ones(60), others, start), (24, 24))
    return torch.sparse_csr_tensor(torch.from_numpy(start), torch.from_numpy(others), torch.ones(60), (24, 24))


class SparseTensor:
    """As torch_sparse's, by its methods."""

    def __init__(self, row, column):
        self._parts = torch.from_numpy(row.copy()), torch.from_numpy(column.copy()), None

    def coo(self):
        return self._parts

    def sparse_sizes(self):
        return 24, 24


@pytest.mark.parametrize("form", ["scipy", "coo", "csr", "torch_sparse"])
def test_matrices_are_edges_everywhere(form, tmp_path):
    """Entry (i, j) is the edge i -> j, of ``adj_t`` j -> i; equal edges stay two."""
    options = {"partitions": 2, "chunks": 3}
    source = write(tmp_path / "neutral", {**pieces(), "edges": by_source()})
    assert main(["preprocess", str(source), str(tmp_path / "expected"), *SMALL]) == 0
    expected = contents(tmp_path / "expected")
    matrix, rest = adjacency(form), pieces()
    hongtu.preprocess_graph(data=data(edge_index=matrix).to_dict(), artifact=tmp_path / "field", **options)
    transposed = data(edge_index=None, adj_t=adjacency(form, transposed=True))
    hongtu.preprocess_graph(data=transposed, artifact=tmp_path / "adj_t", **options)
    given = {piece: rest[piece] for piece in ("features", "labels")}
    given["masks"] = {split: rest[f"{split}_mask"] for split in ("train", "val", "test")}
    hongtu.preprocess_graph(matrix, artifact=tmp_path / "edges", **given, **options)
    hongtu.preprocess_graph(data=matrix, artifact=tmp_path / "data", **given, **options)
    weighs = form in (
        "coo",
        "csr",
    )  # self-loops of torch's matrices count twice in some layers, which is seen by weights
    for name in ("field", "adj_t", "edges", "data"):
        found = contents(tmp_path / name)
        if name == "adj_t" and weighs:
            assert set(np.load(tmp_path / name / "edge_weight.npy")) == {1}
            found |= {"manifest.json": expected["manifest.json"]}
            del found["edge_weight.npy"]
        assert found == expected, name


def test_values_of_a_matrix_are_weights(tmp_path):
    values = torch.linspace(0, 1, 60)
    weighted = torch.sparse_coo_tensor(data().edge_index, values, (24, 24))
    options = {"partitions": 1, "chunks": 1}
    artifact = hongtu.preprocess_graph(data=data(edge_index=weighted), artifact=tmp_path / "out", **options)
    assert sorted(artifact.topology.edge_weight.tolist()) == sorted(values.tolist())
    with pytest.raises(InputError, match=r"data.edge_index: holds weights, and so does data.edge_weight"):
        hongtu.preprocess_graph(data=data(edge_index=weighted, edge_weight=values), artifact=tmp_path / "other")


def test_vertex_numbers_as_masks(tmp_path):
    """As many as are in the split; the others may be missing."""
    graph = data(train_mask=torch.tensor([5, 3]), val_mask=None, test_mask=torch.tensor([0]))
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "out", partitions=1, chunks=1)
    chosen = {split: np.sort(artifact.original_id[mask]).tolist() for split, mask in artifact.masks.items()}
    assert chosen == {"train": [3, 5], "val": [], "test": [0]}


def hetero():
    torch.manual_seed(0)
    graph = HeteroData()
    graph["paper"].x, graph["author"].x = torch.randn(9, 4), torch.randn(6, 2)
    graph["paper"].y, graph["paper"].train_mask = torch.arange(9) % 3, torch.arange(9) < 6
    graph["paper"].val_mask = torch.tensor([7, 8])
    for key, size in {("author", "writes", "paper"): (6, 9), ("paper", "cites", "paper"): (9, 9)}.items():
        graph[key].edge_index = torch.stack([torch.randint(n, (12,)) for n in size])
    return graph


def dgl_of(graph):
    """The same in DGL, which sorts the types by name."""
    dgl = pytest.importorskip("dgl", reason="pip install --no-deps dgl==1.1.3")
    if not isinstance(graph, HeteroData):
        made = dgl.graph(tuple(graph.edge_index), num_nodes=24)
        made.ndata.update({"feat": graph.x, "label": graph.y, "train_mask": graph.train_mask})
        made.ndata.update({name: graph[name] for name in ("val_mask", "test_mask")})
        made.edata.update({"weight": graph.edge_weight, "feat": graph.edge_attr, "other": graph.edge_weight})
        return made
    counts = {kind: graph[kind].num_nodes for kind in graph.node_types}
    made = dgl.heterograph({key: tuple(graph[key].edge_index) for key in graph.edge_types}, counts)
    for kind in graph.node_types:
        names = {"x": "feat", "y": "label", "train_mask": "train_mask", "val_mask": "val_mask"}
        made.nodes[kind].data.update({names[name]: value for name, value in graph[kind].items() if name in names})
    return made


def test_graphs_of_dgl(tmp_path):
    beside = {"edge_weight": torch.rand(60), "edge_attr": torch.rand(60, 2)}
    mask = {"val_mask": torch.arange(9) > 6}
    turned = HeteroData()
    for kind in sorted(hetero().node_types):
        turned[kind].update(dict(hetero()[kind].items()) | (mask if kind == "paper" else {}))
    for key in sorted(hetero().edge_types):
        turned[key].edge_index = hetero()[key].edge_index
    for k, given in enumerate((data(**beside), turned)):
        graph = dgl_of(given)
        for name, form in (("theirs", given), ("graph", graph), ("fields", hongtu.from_dgl(graph))):
            hongtu.preprocess_graph(data=form, artifact=tmp_path / f"{name}{k}", partitions=2, chunks=3)
        theirs, found, fields = (contents(tmp_path / f"{name}{k}") for name in ("theirs", "graph", "fields"))
        assert found == fields == theirs
    expected = hongtu.from_dgl(dgl_of(data(**beside))).edge_index
    for kept in ("coo", "csr", "csc"):  # in which DGL stores the edges
        np.testing.assert_array_equal(hongtu.from_dgl(dgl_of(data(**beside)).formats(kept)).edge_index, expected)
    with pytest.raises(InputError, match="from_dgl: got Data, expected a graph of DGL"):
        hongtu.from_dgl(data())


def test_what_is_left_out_of_a_graph_of_dgl_is_named(tmp_path, capfd):
    of_types = hetero()
    of_types["paper"].val_mask = torch.arange(9) > 6
    typed, plain = dgl_of(of_types), dgl_of(data(edge_weight=torch.rand(60), edge_attr=torch.rand(60, 2)))
    typed.nodes["paper"].data["year"] = torch.arange(9)
    plain.ndata["year"] = torch.arange(24)
    for graph, shown in ((typed, r"'year' of nodes\['paper'\].data"), (plain, "'year' of ndata and 'other' of edata")):
        capfd.readouterr()
        hongtu.preprocess_graph(data=graph, artifact=tmp_path / shown[-9:], partitions=1, chunks=1)
        said = [line for line in capfd.readouterr().err.splitlines() if "not read" in line]
        assert len(said) == 1 and re.search(f"the attributes {shown} are not read; of vertices 'feat'", said[0])


def test_typed_vertices_and_edges(tmp_path):
    """The numbering is that of ``to_homogeneous``."""
    graph = hetero()
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "out", partitions=2, chunks=2)
    assert artifact.vertex_type_widths == (4, 2) and artifact.num_edge_types == 2
    order = np.argsort(artifact.original_id)
    expected = graph.to_homogeneous()
    rows = np.array(artifact.features)[order]
    assert np.array_equal(rows[:, 0], expected.node_type)
    assert np.array_equal(rows[:9, 1:], graph["paper"].x) and np.array_equal(rows[9:, 1:3], graph["author"].x)
    assert np.array(artifact.labels)[order].tolist() == [*graph["paper"].y.tolist(), *[-1] * 6]
    assert np.flatnonzero(np.array(artifact.masks["val"])[order]).tolist() == [7, 8]
    topology = artifact.topology
    destination = np.repeat(artifact.original_id, np.diff(topology.in_edge_start))
    source = artifact.original_id[topology.global_sources()]
    found = sorted(zip(source.tolist(), destination.tolist(), topology.edge_type.tolist()))
    assert found == sorted(zip(*expected.edge_index.tolist(), expected.edge_type.tolist()))
    layers = [TypedLinear(artifact.vertex_type_widths, 8), RGCNConv(8, 3, artifact.num_edge_types)]
    assert hongtu.Trainer(artifact, layers).fit(1, progress=False)[0].loss > 0


def without_rows(graph):
    for kind in graph.node_types:
        graph[kind].x = graph[kind].x[:, :0]


def two_labels(graph):
    graph["author"].y = torch.rand(6, 2)


def two_splits(graph):
    graph["author"].y, graph["author"].train_mask = torch.zeros(6).long(), torch.ones(6, 2).bool()


def one_attribute(graph):
    graph["paper", "cites", "paper"].edge_attr = torch.randn(11, 2)


CITES = "paper", "cites", "paper"


def put(key, **fields):
    """What gives a type or a relation these fields."""
    return lambda graph: [setattr(graph[key], name, value) for name, value in fields.items()]


def beyond(graph):
    graph["author", "writes", "paper"].edge_index[0, :2] = torch.tensor([0, 6])


@pytest.mark.parametrize(("change", "message"), [
    (without_rows, r"data\['paper'\].x and data\['author'\].x: no columns; leave features out, .*embedding:64"),
    (two_labels, r"data\['paper'\].y and data\['author'\].y: int64 \[N\] and float32 \[N, 2\], expected the same"),
    (two_splits, r"data\['author'\].train_mask: 2 splits; pass one, split=0 to split=1"),
    (one_attribute, r"'cites', 'paper'\].edge_attr: float32 of shape \(11, 2\), expected float32 \[12"),
    (beyond, r"edge_index: vertex 6, expected 0 to 5, for there are 6 of 'author'; remove the edge"),
    (put("author", x=torch.rand(6)), r"author'\].x: float32 of shape \(6,\), .*; write one column, x\[:, None\]"),
    (put("author", x=torch.rand(6, 2, 2)), r"author'\].x: .*; make one row of each, x.reshape\("),
    (put("author", x=torch.rand(6, 2).log() / 0), r"data\['author'\].x: \[0, 0\] is -inf"),
    (put("author", y=torch.tensor([0, 1])), r"author'\].y: int64 of shape \(2,\), expected integers \[6\]"),
    (put("author", y=torch.arange(6) - 4), r"data\['author'\].y: \[0\] is -4, expected -1"),
    (put("paper", y=torch.rand(9)), r"data\['paper'\].y: float32 of shape \(9,\), expected integers \[9\]"),
    (put("paper", train_mask=torch.ones(8).bool()), r"of shape \(8,\), expected bool \[9\] or \[9, S\]"),
    (put("paper", test_mask=torch.tensor([8, 7])), r"val_mask and data\['paper'\].test_mask: overlapping"),
    (put("paper", y=torch.arange(9) - 1), r"train_mask: contains vertex 0 \(and 0 more\) whose label is -1"),
    (put(CITES, edge_attr=torch.rand(12, 2) / 0), r"paper'\].edge_attr: \[0, 0\] is inf"),
    (put(CITES, edge_attr=torch.rand(12, 2, 2)), r"paper'\].edge_attr: float32 of shape \(12, 2, 2\)"),
    (put(CITES, edge_attr=np.array(["a"] * 12)), r"paper'\].edge_attr: <U1 of shape \(12, 1\)"),
    (put(CITES, edge_weight=torch.rand(12).log() / 0), r"paper'\].edge_weight: \[0\] is -inf"),
    (put(CITES, edge_index=torch.rand(2, 12)), r"paper'\].edge_index: vertex ids of type float32"),
    (put(CITES, edge_index=torch.rand(2, 12) > 0), r"paper'\].edge_index: vertex ids of type bool"),
    (put(CITES, edge_index=1 + torch.arange(9).repeat(2, 1)), r"; subtract 1, for the ids start at 1"),
    (put(("venue", "has", "paper"), edge_index=torch.zeros(2, 1).long()), r"no type 'venue' among paper, author"),
    (put(CITES, edge_index=torch.eye(6).to_sparse()), r"for 6 sources and 6 destinations, expected 9 of"),
])  # fmt: skip
def test_what_one_graph_cannot_hold(change, message, tmp_path):
    graph = hetero()
    change(graph)
    with pytest.raises(InputError, match=message):
        hongtu.preprocess_graph(data=graph, artifact=tmp_path / "out", partitions=1, chunks=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message", "transform"),
    [
        ({"undirected": True}, r"pass torch_geometric.transforms.ToUndirected\(\)\(data\)", ToUndirected),
        ({"self_loops": True}, r"pass torch_geometric.transforms.AddSelfLoops\(\)\(data\)", AddSelfLoops),
        ({"normalize_features": True}, r"transforms.NormalizeFeatures\(\)\(data\) does it", NormalizeFeatures),
    ],
)
def test_types_are_changed_by_torch_geometric_beforehand(options, message, transform, tmp_path):
    with pytest.raises(InputError, match=message):
        hongtu.preprocess_graph(data=hetero(), artifact=tmp_path / "out", partitions=1, chunks=2, **options)
    changed = transform()(hetero())
    artifact = hongtu.preprocess_graph(data=changed, artifact=tmp_path / "out", partitions=1, chunks=2)
    assert artifact.topology.num_edges == changed.num_edges and artifact.num_edge_types == len(changed.edge_types)
    order = np.argsort(artifact.original_id)
    assert np.array_equal(np.array(artifact.features)[order][:9, 1:], changed["paper"].x)


def test_masks_of_a_type_without_labels_are_left_out_with_a_note(tmp_path, capfd):
    graph = hetero()
    graph["author"].train_mask = torch.ones(6).bool()
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "out", partitions=1, chunks=2)
    assert artifact.masks["train"].sum() == 6
    assert "data['author'].train_mask: is left out, for there is no data['author'].y" in capfd.readouterr().err
    labels = torch.zeros(15).long()
    artifact = hongtu.preprocess_graph(data=graph, labels=labels, artifact=tmp_path / "own", partitions=1, chunks=2)
    assert artifact.masks["train"].sum() == 12  # also those of authors


@pytest.mark.parametrize("form", ["in memory", "saved"])
def test_dictionaries_of_typed_graphs(form, tmp_path):
    """As a refusal of a whole ``HeteroData`` in a file advises."""
    file, expected = tmp_path / "data.pt", hongtu.preprocess_graph(data=hetero(), artifact=tmp_path / "out", chunks=2)
    torch.save(hetero(), file)
    with pytest.raises(InputError, match=r"save `data.to_dict\(\)` with torch.save"):
        hongtu.preprocess_graph(data=file, artifact=tmp_path / "other", chunks=2)
    torch.save(hetero().to_dict(), file)
    given = file if form == "saved" else hetero().to_dict()
    found = hongtu.preprocess_graph(data=given, artifact=tmp_path / "other", chunks=2)
    assert found.types == expected.types
    for name in ("features.npy", "labels.npy", "edge_type.npy", "local_source.npy", "train_mask.npy"):
        if (tmp_path / "out" / name).exists():
            assert np.array_equal(np.load(tmp_path / "out" / name), np.load(tmp_path / "other" / name)), name


def test_weights_and_splits(tmp_path):
    weight = torch.linspace(0, 1, 60)
    masks = {f"{split}_mask": torch.stack([data()[f"{split}_mask"]] * 2, dim=1) for split in ("train", "val", "test")}
    graph = data(edge_weight=weight[:, None], **masks)
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "out", partitions=1, chunks=1, split=1)
    assert sorted(artifact.topology.edge_weight.tolist()) == sorted(weight.tolist())
    assert artifact.masks["train"].sum() == 8
    with pytest.raises(InputError, match=r"data.edge_weight: 3 values for 60 edges"):
        hongtu.preprocess_graph(data=data(edge_weight=torch.ones(3)), artifact=tmp_path / "other")


def test_edge_attributes_and_types(tmp_path, capfd):
    """One column is features, too, whether or not there are weights; numbers that float32 rounds are named."""
    weight, types, attributes = torch.linspace(0, 1, 60), torch.arange(60) % 4, torch.arange(180.0).reshape(60, 3)
    given = {**pieces(), "edge_features": attributes.numpy(), "edge_type": types.numpy(), "edge_weight": weight.numpy()}
    assert main(["preprocess", str(write(tmp_path / "in", given)), str(tmp_path / "expected"), *SMALL]) == 0
    graph = data(edge_attr=attributes, edge_type=types, edge_weight=weight)
    torch.save(graph, tmp_path / "graph.pt")
    assert main(["preprocess", str(tmp_path / "graph.pt"), str(tmp_path / "saved"), *SMALL]) == 0
    options = {"partitions": 2, "chunks": 3}
    hongtu.preprocess_graph(data=graph, artifact=tmp_path / "found", **options)
    bare = data(edge_weight=weight)
    hongtu.preprocess_graph(
        data=bare, artifact=tmp_path / "given", edge_features=attributes, edge_type=types, **options
    )
    for name in ("found", "given", "saved"):
        assert contents(tmp_path / name) == contents(tmp_path / "expected"), name
    one = hongtu.preprocess_graph(
        data=data(edge_attr=weight, edge_weight=weight), artifact=tmp_path / "one", **options
    ).topology
    assert np.array_equal(one.edge_features[:, 0], one.edge_weight)
    times = torch.arange(60) * 2**30 + 1
    for k, attribute in enumerate((weight, weight[:, None], weight.double(), times, times % 2 == 0)):
        alone = hongtu.preprocess_graph(data=data(edge_attr=attribute), artifact=tmp_path / f"alone{k}", **options)
        assert alone.topology.edge_weight is None and alone.edge_feature_width == 1
        said = capfd.readouterr().err
        assert "data.edge_attr: one number for each edge, kept as edge features" in said
        assert ("rounded to the float32 of an artifact" in said) is (k == 3)
    with pytest.raises(InputError, match=r"data.edge_attr: float32 of shape \(59, 3\), expected float32 \[60, F\]"):
        hongtu.preprocess_graph(data=data(edge_attr=attributes[:59]), artifact=tmp_path / "other", **options)


@pytest.mark.parametrize("flag", ["undirected", "self_loops"])
def test_merged_and_added_edges_are_torch_geometrics(flag, tmp_path):
    """``to_undirected`` adds up the features of equal edges; ``add_remaining_self_loops`` fills in 1."""
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 3))).float()
    ends = data().edge_index
    if flag == "self_loops":  # torch_geometric keeps one of several
        ends, rows = coalesce(ends, rows)
    graph = data(edge_index=ends, edge_attr=rows)
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "out", partitions=2, chunks=3, **{flag: True})
    change = to_undirected if flag == "undirected" else add_remaining_self_loops
    expected = sort_edge_index(*change(ends, rows, num_nodes=24), num_nodes=24)
    topology, original = artifact.topology, torch.from_numpy(np.array(artifact.original_id)).long()
    destination = original.repeat_interleave(torch.from_numpy(np.diff(topology.in_edge_start)))
    found = torch.stack([original[topology.global_sources()], destination])
    found = sort_edge_index(found, torch.from_numpy(np.array(topology.edge_features)), num_nodes=24)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("form", ["data", "dict", "dataset"])
def test_saved(form, tmp_path, expected):
    saved = {"data": data(), "dict": data().to_dict(), "dataset": (data().to_dict(), None, Data)}[form]
    torch.save(saved, tmp_path / "graph.pt")
    assert main(["preprocess", str(tmp_path / "graph.pt"), str(tmp_path / "out"), *SMALL]) == 0
    assert contents(tmp_path / "out") == expected


class Harmful:
    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize("content, message", [
    (Harmful(), "cannot be opened safely"),
    ({"x": torch.ones(3, 1)}, "no edge_index"),
    (data(edge_index=None, adj_t=torch.ones(24, 25).to_sparse()), "adj_t: a matrix of 24 x 25, expected a square"),
    (torch.ones(24, 24, dtype=torch.complex64).to_sparse(), "entries of type complex64, expected real numbers"),
    ({"edge_index": torch.zeros(3, 2)}, r"(3, 2), expected [2, E], row 0 source, row 1 destination; transpose it"),
    ({"edge_index": torch.zeros(3, 3)}, "of a dense adjacency matrix pass"),
    (data(edge_index=torch.tensor([[0, 1], [1, 24]])), "edge 1: vertex 24, expected 0 to 23"),
    (data(edge_index=torch.tensor([[0, 1], [1, -1]])), "edge 1: vertex -1, expected 0"),
    (data(edge_index=torch.zeros(2, 3)), "vertex ids of type float32"),
    (data(y=None), "graph.pt.y: missing; supply labels or pass --labels random:C"),
    ([1, 2], "expected), found a list; pass one graph of it, such as dataset[0]"),
    ("Cora", "expected), found a str; `hongtu preprocess` reads files"),
    ({"edge_index": torch.zeros(3, 2, dtype=torch.long)}, ".edge_index.t()"),
    (data(edge_weight=torch.ones(60, dtype=torch.complex64)), "edge_weight: complex64, expected real numbers"),
    (data(edge_weight=["a"] * 60), "edge_weight: <U1, expected real numbers"),
    (data(num_nodes="many").to_dict(), "num_nodes: 'many', expected an integer"),
    (data(num_nodes=24.5).to_dict(), "num_nodes: 24.5, expected an integer"),
])  # fmt: skip
def test_malformed_files_are_refused(content, message, tmp_path, capsys):
    torch.save(content, tmp_path / "graph.pt")
    assert main(["preprocess", str(tmp_path / "graph.pt"), str(tmp_path / "out"), *SMALL]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "graph.pt" in err and message in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["graph.pt"]


def test_vertices_without_edges_are_counted(tmp_path):
    """Saved fields say how many there are by their rows alone."""
    torch.save(data(edge_index=torch.tensor([[0, 1], [1, 2]])).to_dict(), tmp_path / "graph.pt")
    assert main(["preprocess", str(tmp_path / "graph.pt"), str(tmp_path / "out"), *SMALL]) == 0
    assert hongtu.open_artifact(tmp_path / "out").num_vertices == 24


def test_a_pickle_that_is_no_file_of_torch(tmp_path, capsys):
    (tmp_path / "graph.pt").write_bytes(pickle.dumps(Harmful()))
    assert main(["preprocess", str(tmp_path / "graph.pt"), str(tmp_path / "out"), *SMALL]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "graph.pt: cannot be opened safely" in err


def test_truncated_file(tmp_path, capsys):
    torch.save(data(), tmp_path / "graph.pt")
    (tmp_path / "graph.pt").write_bytes((tmp_path / "graph.pt").read_bytes()[:-30])
    assert main(["preprocess", str(tmp_path / "graph.pt"), str(tmp_path / "out"), *SMALL]) == 2
    assert "graph.pt: cannot be opened safely" in capsys.readouterr().err


def test_predictions_by_the_ids_of_the_input(tmp_path):
    graph = networkx.relabel_nodes(networkx.karate_club_graph(), lambda k: f"member {k}")
    settings = {"features": "degree", "labels": "random:2", "random_split": (0.5, 0.2, 0.3)}
    artifact = hongtu.preprocess_graph(data=graph, artifact=tmp_path / "out", partitions=2, chunks=2, **settings)
    trainer = hongtu.Trainer(artifact, layers=[GCNConv(4, 2)])
    scores = trainer.predict()
    assert torch.equal(trainer.predict(["member 33", "member 0"]), scores[[33, 0]])
    assert list(artifact.vertex_ids)[33] == "member 33"
    with pytest.raises(InputError, match="vertex 'member 34' is not among"):
        trainer.predict(["member 34"])


def test_datasets_are_named(tmp_path):
    """As DGL's, which are no sequences."""

    class Dataset:
        def __getitem__(self, number):
            return data()

        def __len__(self):
            return 1

    with pytest.raises(InputError, match=r"found a Dataset; pass one graph of it, such as dataset\[0\]"):
        hongtu.preprocess_graph(data=Dataset(), artifact=tmp_path / "a")
