"""Mini-batches of graphs with types: what the graph has, fan-outs by relation, and the whole graph's numbers."""

from __future__ import annotations

import operator
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import HeteroData
from torch_geometric.utils import trim_to_layer

from hongtu.bench.baselines import ArtifactSampling
from hongtu.errors import InputError
from hongtu.pyg import NeighborLoader
from tests.exact.drawn_types import draw_graph
from tests.problems import prepare
from tests.ranks.turns import run_ranks

H = 4
DRAWN = {seed: draw_graph(np.random.default_rng(seed), "classes") for seed in (1, 2, 3, 5, 6, 11)}
graphs = pytest.mark.parametrize("seed", DRAWN)
SPLIT = {"split": "t0"}  # all its vertices


def data_of(seed):
    """A graph with edges in the order in which batches number them: by destination."""
    data = DRAWN[seed][1].clone()
    for relation in data.edge_types:
        order = np.argsort(data[relation].edge_index[1].numpy(), kind="stable")
        for name, rows in [*data[relation].items()]:
            data[relation][name] = rows[:, order] if name == "edge_index" else rows[order]
    return data


def loader_of(graph, fanouts, grain=(2, 3), **options):
    return NeighborLoader(prepare(DRAWN[graph][0], *grain), fanouts, **{"batch_size": 7, **SPLIT} | options)


@graphs
@pytest.mark.parametrize("grain", [(1, 1), (2, 3)], ids=str)
def test_batches_have_what_the_graph_has(seed, grain):
    data, seen = data_of(seed), []
    for batch in loader_of(seed, [3, 2], grain):
        assert isinstance(batch, HeteroData) and batch.validate() and batch.metadata() == data.metadata()
        for name in data.node_types:
            own, n_id = data[name], batch[name].n_id
            assert batch[name].num_nodes == len(n_id) == len(n_id.unique()) == sum(batch[name].num_sampled_nodes)
            for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
                assert (key in own) == (key in batch[name]), (name, key)
                assert key not in own or torch.equal(batch[name][key], own[key][n_id]), (name, key)
        for relation in data.edge_types:
            own, drawn = data[relation], batch[relation]
            ends = [batch[relation[0]].n_id[drawn.edge_index[0]], batch[relation[2]].n_id[drawn.edge_index[1]]]
            assert torch.equal(own.edge_index[:, drawn.e_id], torch.stack(ends))
            assert sum(drawn.num_sampled_edges) == len(drawn.e_id) == len(drawn.e_id.unique())
            assert ("edge_attr" in own) == ("edge_attr" in drawn)
            assert "edge_attr" not in own or torch.equal(own.edge_attr[drawn.e_id], drawn.edge_attr)
            assert "edge_weight" not in own or torch.equal(own.edge_weight[drawn.e_id], drawn.edge_weight)
        assert torch.equal(batch["t0"].input_id, batch["t0"].n_id[: batch["t0"].batch_size])
        assert [store for store in batch.node_types if "input_id" in batch[store]] == ["t0"]
        seen += batch["t0"].input_id.tolist()
    assert seen == [*range(data["t0"].num_nodes)]


@graphs
@pytest.mark.parametrize("by_relation", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_fanouts_hold_by_relation(seed, by_relation, again):
    """In every hop, of those that the hop before met first; a list is for every relation."""
    data = data_of(seed)
    fanouts = {relation: [1 + k, 3 - k % 3, -1 if k % 2 else 0] for k, relation in enumerate(data.edge_types)}
    fanouts = fanouts if by_relation else {relation: [2, 1, 3] for relation in data.edge_types}
    given = fanouts if by_relation else [2, 1, 3]
    for batch in loader_of(seed, given, replace=again, batch_size=3):
        met = {name: np.cumsum([0, 0, *batch[name].num_sampled_nodes]) for name in data.node_types}
        for relation in data.edge_types:
            drawn, kind = batch[relation], relation[2]
            degree = np.bincount(data[relation].edge_index[1], minlength=data[kind].num_nodes)[batch[kind].n_id.numpy()]
            cuts = np.cumsum([0, *drawn.num_sampled_edges])
            for hop, fanout in enumerate(fanouts[relation]):
                span = slice(met[kind][hop + 1], met[kind][hop + 2])
                ends = drawn.edge_index[1, cuts[hop] : cuts[hop + 1]].numpy()
                taken = np.bincount(ends, minlength=len(degree))
                wanted = degree if fanout < 0 else (degree > 0) * fanout if again else degree.clip(max=fanout)
                assert np.array_equal(taken[span], wanted[span]) and taken.sum() == taken[span].sum()


class Net(nn.Module):
    """Rows of types without features are learned; convolutions, then a linear map."""

    def __init__(self, data, make, edges=False):
        super().__init__()
        bare = {name: data[name].num_nodes for name in data.node_types if "x" not in data[name]}
        self.rows = nn.ModuleDict({name: nn.Embedding(count, H) for name, count in bare.items()})
        self.first = nn.ModuleDict({name: pyg.Linear(-1, H) for name in data.node_types if name not in bare})
        self.convs, self.last = nn.ModuleList(make() for _ in range(2)), nn.Linear(H, 5)

    def forward(self, x_dict, edge_index_dict, ids, sampled=None):
        x_dict = {name: lin(x_dict[name]).tanh() for name, lin in self.first.items()}
        x_dict |= {name: rows(ids[name]) for name, rows in self.rows.items()}
        for k, conv in enumerate(self.convs):
            if sampled is not None:
                x_dict, edge_index_dict, _ = trim_to_layer(k, *sampled, x_dict, edge_index_dict)
            found = conv(x_dict, edge_index_dict)
            x_dict = {name: found[name].tanh() if found.get(name) is not None else x for name, x in x_dict.items()}
        return self.last(x_dict["t0"])


class Relational(nn.Module):
    """RGCN's: a mean by relation, each with a map of its own, and one of the vertex itself."""

    def __init__(self, data):
        super().__init__()
        means = {r: pyg.SAGEConv((H, H), H, root_weight=False, bias=False) for r in data.edge_types}
        self.means, self.root = pyg.HeteroConv(means, "sum"), pyg.HeteroDictLinear(H, H, types=data.node_types)

    def forward(self, x_dict, edge_index_dict):
        found = self.means(x_dict, edge_index_dict)
        return {name: x + found[name] if name in found else x for name, x in self.root(x_dict).items()}


MODELS = {
    "sage": lambda data: lambda: pyg.HeteroConv({r: pyg.SAGEConv((H, H), H) for r in data.edge_types}),
    "hgt": lambda data: lambda: pyg.HGTConv(H, H, data.metadata(), heads=2),
    "rgcn": lambda data: lambda: Relational(data),
    "to_hetero": lambda data: lambda: pyg.to_hetero(One(), data.metadata()),
}


class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.lin = pyg.GATConv((H, H), H, add_self_loops=False), nn.Linear(H, H)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index) + self.lin(x)


def of_batch(model, batch, trims=False):
    x_dict = {name: x.double() for name, x in batch.x_dict.items()}
    sampled = (batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict) if trims else None
    ids = {name: batch[name].n_id for name in batch.node_types}
    return model(x_dict, batch.edge_index_dict, ids, sampled)[: batch["t0"].batch_size]


@graphs
@pytest.mark.parametrize("name", MODELS)
def test_all_in_edges_give_the_whole_graphs_numbers(name, seed):
    """Outputs of every seed; the loss's gradient, summed over batches; the same where rows are trimmed by hop."""
    data = data_of(seed)
    torch.manual_seed(seed)
    model = Net(data, MODELS[name](data)).double()
    for kind in data.node_types:
        data[kind].n_id = torch.arange(data[kind].num_nodes)
    data["t0"].batch_size = data["t0"].num_nodes
    whole = of_batch(model, data)
    train = data["t0"].train_mask
    cross_entropy(whole[train], data["t0"].y[train], reduction="sum").backward()
    expected = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    options = {"batch_size": 5, "input_nodes": ("t0", train), "shuffle": True}
    for trims, grain in ((False, (2, 3)), (True, (1, 1))):
        model.zero_grad()
        for batch in NeighborLoader(prepare(DRAWN[seed][0], *grain), num_neighbors=[-1, -1], **options):
            found = of_batch(model, batch, trims)
            torch.testing.assert_close(found, whole[batch["t0"].input_id], rtol=1e-9, atol=1e-9)
            cross_entropy(found, batch["t0"].y[: len(found)], reduction="sum").backward()
        for key, parameter in model.named_parameters():
            wanted = expected.get(key, torch.zeros_like(parameter))
            found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@graphs
def test_the_same_seed_gives_the_same_batches(seed):
    """For any number of workers and partitioning; another seed and another epoch give others."""
    options = {"split": ("t0", "train"), "batch_size": 4}

    def epochs(grain=(2, 3), **more):
        loader = loader_of(seed, [2, 2], grain, **options | more)
        return [list(loader) for _ in range(2)]

    first = epochs()
    for ours, theirs in zip(first, epochs(num_workers=2), strict=True):
        assert all(map(same_by_type, ours, theirs))
    alone = epochs((1, 1), shuffle=False)
    assert all(map(same_by_type, alone[0], epochs((2, 3), shuffle=False)[0]))
    others = [first[1], epochs(seed=1)[0], alone[1]]
    assert any(not same_by_type(a, b) for other in others for a, b in zip(first[0], other, strict=True))
    loader = loader_of(seed, [2], **options)
    again = pickle.loads(pickle.dumps(loader.dataset))
    assert all(same_by_type(batch, again[step]) for batch, step in zip(loader, loader.sampler.steps.of(1), strict=True))


def same_by_type(batch, other):
    assert batch.metadata() == other.metadata()
    for mine, theirs in zip(batch.stores, other.stores, strict=True):
        assert [*mine] == [*theirs]
        for name in mine:
            equal = torch.equal if torch.is_tensor(mine[name]) else operator.eq
            if not equal(mine[name], theirs[name]):
                return False
    return True


def test_relations_draw_apart():
    """Every in-edge of a relation is as likely as any other, whatever was drawn of another relation."""
    data = HeteroData()
    data["a"].x, data["b"].x, data["c"].x = torch.randn(4, 1), torch.randn(3, 2), torch.randn(2, 1)
    data["a"].y, data["a"].train_mask = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.bool)
    for source, count in (("b", 3), ("a", 3), ("c", 1)):
        at = torch.arange(count).repeat(4)
        data[source, "to", "a"].edge_index = torch.stack([at, torch.arange(4).repeat_interleave(count)])
    loader = NeighborLoader(prepare(replace(DRAWN[1][0], given={"data": data}), 1, 1), [1], batch_size=4)
    pairs = np.zeros((3, 3))
    for _ in range(400):
        batch = next(iter(loader))
        pairs += np.histogram2d(*(batch[s, "to", "a"].e_id.numpy() % 3 for s in "ba"), bins=3, range=[[0, 3]] * 2)[0]
    assert pairs.sum() == 1600 and abs(pairs - 1600 / 9).max() < 4 * np.sqrt(1600 / 9)


@pytest.mark.parametrize("fanouts", [[-1, -1], [2, 2], [3, 1]], ids=str)
def test_ranks_have_the_batches_of_one_process(fanouts):
    artifact, options = prepare(DRAWN[2][0], 2, 3), {"split": "t0", "shuffle": True, "batch_size": 12}
    alone = list(NeighborLoader(artifact, fanouts, **options))
    found = run_ranks(2, lambda ranks: list(NeighborLoader(artifact, fanouts, ranks=ranks, **options)))
    for whole, *parts in zip(alone, *found, strict=True):
        for relation in whole.edge_types:
            edges = torch.cat([part[relation].e_id for part in parts]).unique()
            assert torch.equal(edges, whole[relation].e_id.sort().values)
        for part in parts:
            assert all(torch.equal(x, DRAWN[2][1][name].x[part[name].n_id]) for name, x in part.x_dict.items())
        assert sum(part["t0"].batch_size for part in parts) == whole["t0"].batch_size


def test_seeds_are_of_one_type():
    problem, data = DRAWN[2]
    artifact = prepare(problem, 2, 3)
    mask = data["t0"].train_mask
    for split in ("train", ("t0", "train"), ("t0", mask), ("t0", mask.nonzero()[:, 0]), ("t0", mask.numpy())):
        for names in ({"split": split}, {"input_nodes": split}):
            loader = NeighborLoader(artifact, [1], shuffle=False, **names)
            assert torch.equal(next(iter(loader))["t0"].input_id, mask.nonzero()[:, 0])
    for kind in (name for name in data.node_types if data[name].num_nodes):
        batch = next(iter(NeighborLoader(artifact, [1], split=kind, batch_size=99)))
        assert batch[kind].input_id.tolist() == [*range(data[kind].num_nodes)]


RELATIONS = DRAWN[2][1].edge_types


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "expected one of train, val, test, t0"),
        ({"split": ("t9", [0])}, "expected one of train, val, test, t0"),
        ({"split": ("t0", "dev")}, "expected one of train, val, test, t0"),
        ({"split": [0, 1]}, r"seeds are of one type; give it, too: \('t0'"),
        ({"split": ("t0", [0, 10**6])}, "split of 't0': vertices 0 to 1000000, there are 0 to"),
        ({"split": ("t0", torch.ones(2, dtype=torch.bool))}, "expected vertices"),
        ({"fanouts": {RELATIONS[0]: [2]}}, "is not one of both; the graph has"),
        ({"fanouts": {relation: [2] for relation in RELATIONS} | {("t0", "r", "t9"): [2]}}, "'t9'. is not one of both"),
        ({"fanouts": {r: [2] * (1 + k) for k, r in enumerate(RELATIONS)}}, "expected as many for every relation"),
        ({"fanouts": {relation: [-2] for relation in RELATIONS}}, "-2 for hop 1"),
        ({"fanouts": []}, "expected one for every layer"),
    ],
)
def test_what_is_wrong_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        loader_of(2, **{"fanouts": [1]} | arguments)


def test_train_vertices_of_several_types_need_one():
    for seed in range(60):
        problem, data = draw_graph(np.random.default_rng(seed), "classes")
        kinds = [name for name in data.node_types if "train_mask" in data[name]]
        if len(kinds) > 1:
            break
    with pytest.raises(InputError, match=r"seeds are of one type; give it, too: \('t0', a split or vertices\)"):
        NeighborLoader(prepare(problem, 1, 2), [1])
    batch = next(iter(NeighborLoader(prepare(problem, 1, 2), [1], split=(kinds[1], "train"))))
    assert batch[kinds[1]].train_mask[: batch[kinds[1]].batch_size].all() and "y" in batch[kinds[1]]
    learned = prepare(problem, 1, 2, features="embedding:4")
    assert "x" not in next(iter(NeighborLoader(learned, [1], split="t0")))["t0"]


def test_the_harness_has_no_model_for_them():
    with pytest.raises(InputError, match="baseline loader: batches of a graph with named types are HeteroData"):
        ArtifactSampling._make_loader(object.__new__(ArtifactSampling), prepare(DRAWN[2][0], 1, 1), [1])
