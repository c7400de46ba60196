"""torch_geometric's own loader on the artifact's stores, and the one line: the same batches by any workers."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
import torch
from torch_geometric.data import TensorAttr
from torch_geometric.loader import NodeLoader

import hongtu
from hongtu.errors import InputError
from hongtu.pyg import NeighborLoader, NeighborSampler, feature_store, graph_store
from hongtu.pyg.windows import Steps
from tests import problems


def same(batch, other):
    """Two batches, tensor by tensor."""
    assert batch.keys() == other.keys()
    for name in batch.keys():  # noqa: SIM118
        ours, theirs = batch[name], other[name]
        assert torch.equal(ours, theirs) if torch.is_tensor(ours) else ours == theirs, name
    return True


def check(batch, problem):
    """Every row, label and edge is the one that the input had."""
    edges = problem.edges[:, np.argsort(problem.edges[1], kind="stable")]
    n_id = batch.n_id.numpy()
    assert np.array_equal(edges[:, batch.e_id], n_id[batch.edge_index.numpy()])
    assert np.array_equal(batch.x, problem.features[n_id])
    assert np.array_equal(batch.y, problem.labels[n_id])
    assert batch.batch_size == len(batch.input_id)
    assert batch.validate()


@pytest.mark.parametrize("make", [problems.awkward, problems.edge_data, problems.multi_label])
def test_batches_have_what_the_graph_has(make):
    problem = make()
    seen = []
    for batch in NeighborLoader(problems.prepare(problem, 2, 3), [3, 2], batch_size=7):
        check(batch, problem)
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])
        order = np.argsort(problem.edges[1], kind="stable")
        for name, rows in problem.edge_data(torch.float32).items():
            assert torch.equal(batch[name], rows[order][batch.e_id].to(batch[name].dtype)), name
        seen += batch.input_id.tolist()
    assert sorted(seen) == np.flatnonzero(problem.masks["train"]).tolist()


def test_torch_geometrics_own_loader_takes_it():
    problem = problems.awkward()
    artifact = problems.prepare(problem, 2, 3)
    stores = feature_store(artifact), graph_store(artifact)
    loaders = [
        NodeLoader(stores, NeighborSampler(artifact, [3, 2], seed=4), torch.arange(20), batch_size=6, num_workers=k)
        for k in (0, 1, 2)
    ]
    for alone, *others in zip(*loaders, strict=True):
        check(alone, problem)
        assert all(same(alone, other) for other in others)
    mask = torch.from_numpy(problem.masks["val"])
    loader = NodeLoader(stores, NeighborSampler(artifact, [3]), mask, batch_size=6, shuffle=True)
    assert sorted(torch.cat([batch.input_id for batch in loader]).tolist()) == mask.nonzero()[:, 0].tolist()


def test_stores_have_the_graph():
    problem = problems.awkward()
    artifact = problems.prepare(problem, 2, 3)
    features, edges = feature_store(artifact), graph_store(artifact)
    source, start, _ = edges.csc()
    order = np.argsort(problem.edges[1], kind="stable")
    assert np.array_equal(source, problem.edges[0, order])
    assert np.array_equal(start.diff(), np.bincount(problem.edges[1], minlength=problem.num_vertices))
    for index in (None, 3, slice(2, 9), torch.tensor([5, 1])):
        wanted = problem.features[index] if index is not None else problem.features
        assert np.array_equal(features.get_tensor(TensorAttr(None, "x", index)), np.atleast_2d(wanted))
    assert features.get_tensor_size(TensorAttr(None, "y")) == problem.labels.shape
    assert features.get_tensor(TensorAttr(None, "z", None)) is None
    with pytest.raises(InputError, match="read only"):
        features.put_tensor(torch.zeros(1), TensorAttr(None, "x", None))
    with pytest.raises(InputError, match="read only"):
        edges.put_edge_index((source, start), edges.get_all_edge_attrs()[0])


@pytest.mark.long
@pytest.mark.parametrize("replace", [False, True])
def test_the_same_seed_gives_the_same_batches(replace):
    """For any number of workers, kept or not, in every epoch; another seed and another epoch give others."""
    artifact = problems.prepare(problems.awkward(), 2, 3)

    def epochs(seed=0, **options):
        loader = NeighborLoader(artifact, [3, 2], batch_size=8, replace=replace, seed=seed, **options)
        return [list(loader) for _ in range(2)]

    first, second = epochs()
    assert len(first) == len(second) > 2
    for options in ({"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        for ours, theirs in zip((first, second), epochs(**options), strict=True):
            assert all(map(same, ours, theirs))
    for others in (second, epochs(seed=1)[0]):
        assert any(not torch.equal(a.n_id, b.n_id) for a, b in zip(first, others, strict=True))
    later = NeighborLoader(artifact, [3, 2], batch_size=8, replace=replace)
    later.epoch = 1
    assert all(map(same, second, later)) and later.epoch == 2


def test_a_process_that_is_not_forked_opens_the_artifact_itself():
    artifact = problems.prepare(problems.awkward(), 2, 3)
    loader = NeighborLoader(artifact, [3, 2], batch_size=8, split="test", shuffle=False)
    text = pickle.dumps(loader.dataset)
    assert len(text) < 2000
    again = pickle.loads(text)
    assert all(same(batch, again[step]) for batch, step in zip(loader, loader.sampler.steps.of(1), strict=True))
    for store in (feature_store(artifact), graph_store(artifact)):
        assert pickle.loads(pickle.dumps(store)).graph.artifact.path == artifact.path


def test_not_shuffled_are_the_seeds_as_given():
    artifact = problems.prepare(problems.awkward(), 2, 3)
    vertices = np.array([9, 1, 60, 4])
    loader = NeighborLoader(artifact, [2], batch_size=3, split=vertices)
    assert [batch.input_id.tolist() for batch in loader] == [[9, 1, 60], [4]] and len(loader) == 2
    assert len(NeighborLoader(artifact, [2], batch_size=3, split=vertices, drop_last=True)) == 1
    val = torch.cat([batch.input_id for batch in NeighborLoader(artifact, [2], batch_size=5, split="val")])
    assert val.tolist() == np.flatnonzero(problems.awkward().masks["val"]).tolist()


def test_partitions_take_turns():
    """Every stretch of an epoch has its part of every partition, and each vertex comes once."""
    partition = np.repeat([0, 2, 3], [500, 100, 400])
    steps = Steps(np.arange(1000) * 3, partition, 50, True, seed=1)
    parts = [step.seeds // 3 for step in steps.of(1)]
    assert sorted(np.concatenate(parts)) == list(range(1000)) and len(parts) == len(steps) == 20
    counts = np.array([np.bincount(partition[part], minlength=4) for part in parts])
    assert (abs(counts - [25, 0, 5, 20]) <= 1).all()
    keys = [step.key for epoch in (1, 2) for step in steps.of(epoch)]
    assert len(set(keys)) == 40
    assert not np.array_equal(parts[0], next(steps.of(2)).seeds // 3)


def test_features_may_be_sparse_or_learned(tmp_path):
    rng = np.random.default_rng(0)
    import scipy.sparse

    features = scipy.sparse.random(40, 30, 0.02, "csr", dtype=np.float32, random_state=rng)
    arrays = {"labels": rng.integers(0, 3, 40), "masks": {"train": np.arange(40) < 20}}
    edges = rng.integers(0, 40, (2, 200))
    sparse = hongtu.preprocess_graph(edges, 40, tmp_path / "sparse", features=features, chunks=2, **arrays)
    assert sparse.sparse_features is not None
    batch = next(iter(NeighborLoader(sparse, [3], batch_size=5)))
    assert np.array_equal(batch.x, features.toarray()[batch.n_id])
    learned = hongtu.preprocess_graph(edges, 40, tmp_path / "learned", features="embedding:8", chunks=2, **arrays)
    assert learned.learns_features
    assert next(iter(NeighborLoader(learned, [3], batch_size=5))).x is None
    stores = feature_store(learned), graph_store(learned)
    assert "x" not in next(iter(NodeLoader(stores, NeighborSampler(learned, [3]), torch.arange(5), batch_size=5)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"fanouts": []}, "expected one for every layer"),
        ({"fanouts": [3, -2]}, "-2 for hop 2"),
        ({"fanouts": [2.5]}, "2.5 for hop 1"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"split": "dev"}, "expected one of train, val, test"),
        ({"split": [3, 64]}, "vertices 3 to 64, there are 0 to 63"),
        ({"split": [0.5]}, "expected vertices"),
    ],
)
def test_what_is_wrong_is_refused(arguments, message):
    artifact = problems.prepare(problems.awkward(), 2, 3)
    with pytest.raises(InputError, match=message):
        NeighborLoader(artifact, **{"fanouts": [3, 2]} | arguments)


def test_links_and_times_are_refused():
    sampler = NeighborSampler(problems.prepare(problems.awkward(), 2, 3), [3])
    with pytest.raises(InputError, match="LinkLoss"):
        sampler.sample_from_edges(None)
    stores = feature_store(sampler.graph.artifact), graph_store(sampler.graph.artifact)
    with pytest.raises(InputError, match="times"):
        next(iter(NodeLoader(stores, sampler, torch.arange(5), input_time=torch.arange(5))))


def test_a_damaged_artifact_is_refused(tmp_path):
    shutil.copytree(problems.prepare(problems.awkward(), 2, 3).path, tmp_path / "artifact")
    np.load(tmp_path / "artifact" / "sources.npy", mmap_mode="r+")[3] = 64
    artifact = hongtu.open_artifact(tmp_path / "artifact")
    for use in (lambda: NeighborLoader(artifact, [3]), lambda: graph_store(artifact).csc()):
        with pytest.raises(InputError, match="sources"):
            use()
