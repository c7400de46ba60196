"""Rows that go by way of ranks that read them, too."""

from __future__ import annotations

import dataclasses
import json
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hongtu.engine import messages
from hongtu.errors import InputError
from hongtu.hardware import CPU
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.ranks import fabric as fabrics
from hongtu.ranks import rounds
from hongtu.ranks.fabric import Fabric, fabric_between, fabric_of_hosts, load_fabric, shared_hosts
from hongtu.ranks.rounds import Tree, paces, plan_routes, readers_of, rounds_of
from hongtu.ranks.share import Share, share_of
from hongtu.ranks.stages import ByLayer
from hongtu.train.planning import plan_ranks
from tests import graphs, problems, training
from tests.models import DEEP, SIX
from tests.ranks.test_dependencies import SAME, outcome
from tests.ranks.turns import run_ranks

TWO_HOSTS = fabric_of_hosts(["a", "a", "b", "b"], network_link=1.0, host_link=1000.0)
LINE = Fabric(  # 0 - 1 - 2 - 3, and a slow bus for all else
    {"bus": 1.0} | {f"{a}{b}": 100.0 for a, b in permutations(range(4), 2)},
    {(a, b): (f"{a}{b}",) if abs(a - b) == 1 else ("bus",) for a, b in permutations(range(4), 2)},
)


@st.composite
def cases(draw):
    """Rows of classes, and what joins 2 to 5 ranks."""
    k = draw(st.integers(2, 5))
    owners = st.integers(0, k - 1)
    keys = draw(st.sets(st.tuples(owners, st.integers(1, 2**k - 1)).filter(lambda key: not key[1] >> key[0] & 1)))
    rows = {key: draw(st.integers(1, 50)) for key in sorted(keys)}
    hops = {str(hop): draw(st.sampled_from([0.5, 1.0, 7.0])) for hop in range(4)}
    path = st.lists(st.sampled_from(sorted(hops)), max_size=3).map(tuple)
    return rows, Fabric(hops, {pair: draw(path) for pair in permutations(range(k), 2)})


@given(cases())
def test_every_reader_has_its_rows_from_one_that_has_them(case):
    rows, fabric = case
    trees = plan_routes(rows, fabric)
    assert set(trees) == set(rows)
    for key, tree in trees.items():
        assert sorted(tree.parent) == readers_of(key) and set(tree.parent.values()) <= {key[0], *tree.parent}
        there = {key[0]}
        for number, giver, taker in sorted(tree.fetched()):
            assert giver in there or number == 0, "what it gives came in an earlier round"
            there.add(taker)
        added: dict[int, int] = {}
        for number, _, taker in tree.sent():  # all that a rank takes, before what it sends
            added[taker] = max(added.get(taker, -1), number)
        assert all(number > added.get(giver, -1) for number, giver, _ in tree.sent())
    direct = {key: Tree(dict.fromkeys(readers_of(key), key[0])) for key in rows}
    assert sum(map(sum, paces(rows, trees, fabric))) <= sum(map(sum, paces(rows, direct, fabric)))


def test_rows_cross_between_hosts_once():
    rows = {(0, 0b1100): 100, (1, 0b1100): 100, (2, 0b0011): 100, (3, 0b0011): 100}
    there, back = paces(rows, plan_routes(rows, TWO_HOSTS), TWO_HOSTS)
    assert there == back[::-1] == [200.0, pytest.approx(0.2)]
    direct = {key: Tree(dict.fromkeys(readers_of(key), key[0])) for key in rows}
    assert paces(rows, direct, TWO_HOSTS)[0] == [400.0]


def test_a_line_is_walked_where_all_read():
    trees = plan_routes({(0, 0b1110): 10}, LINE)
    assert trees[0, 0b1110].parent == {1: 0, 2: 1, 3: 2}
    assert plan_routes({(0, 0b1000): 10}, LINE)[0, 0b1000].parent == {3: 0}, "no other rank has them"


@given(st.integers(0, 10**6))
def test_ranks_agree_on_what_goes_where(seed):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 5))
    bounds = np.concatenate([[0], np.sort(rng.integers(0, 30, k - 1)), [30]])
    owner = np.searchsorted(bounds, np.arange(30), side="right") - 1
    readers = rng.integers(0, 2**k, 30) & ~(1 << owner)
    hosts = rng.choice(["a", "b"], k).tolist()
    fabric = fabric_of_hosts(hosts, 1.0, 50.0) if rng.random() < 0.8 else None
    values = [np.where(owner == rank, np.arange(30.0), np.nan) for rank in range(k)]
    gradients = [np.where(readers >> rank & 1, 10.0**rank, 0.0) for rank in range(k)]
    made = [rounds_of(rank, readers, bounds, np.arange(30), fabric) for rank in range(k)]
    for ways, rows in ((0, values), (1, gradients)):
        for of_ranks in zip(*(each[ways] for each in made), strict=True):
            link = ("fetch", "send")[ways]
            sent = [[rows[rank][part] for part in x.leaving(link)] for rank, x in enumerate(of_ranks)]
            for rank, x in enumerate(of_ranks):
                for other, part in enumerate(x.arriving(link)):
                    assert len(sent[other][rank]) == len(part)
                    if link == "fetch":
                        rows[rank][part] = sent[other][rank]
                    else:
                        rows[rank][part] += sent[other][rank]
    for rank in range(k):
        read = (readers >> rank & 1).astype(bool)
        assert np.array_equal(values[rank][read], np.flatnonzero(read))
        own = owner == rank
        assert np.array_equal(gradients[rank][own], sum((readers[own] >> r & 1) * 10.0**r for r in range(k)))


def test_layers_alike_on_one_rank_may_differ_on_others(monkeypatch):
    """Vertex 0 goes on from rank 2 to rank 3 for the first layer only: rank 1 gives and takes the same for both, and
    sends its gradients a round later for the first."""
    source, target = np.divmod(np.arange(64), 8)
    problem = problems.problem_of(graphs.Graph("dense", np.stack([source, target]), None, 8))
    artifact = problems.prepare(problem, 4, 1, partitioner="range", order="input")
    readers = np.zeros((2, 8), dtype=np.uint8)
    readers[:, artifact.topology.partition_start[3]] = 0b0111
    readers[:, 0] = 0b1110, 0b0110
    monkeypatch.setattr(Share, "_readers", lambda share, stages, bounds: readers)
    halos = [share_of(artifact, rank, range(5), ByLayer(2, 0), LINE).halo for rank in range(4)]
    assert halos[1].fetched[0] is halos[1].fetched[1] and halos[3].fetched[0] is not halos[3].fetched[1]
    for link, layers in (("fetch", [h.fetched for h in halos]), ("send", [h.sent for h in halos])):
        for of_layer in zip(*layers, strict=True):
            for each in zip(*of_layer, strict=True):
                for rank, x in enumerate(each):
                    gone, come = x.leaving(link), [y.arriving(link)[rank] for y in each]
                    assert list(map(len, gone)) == list(map(len, come))


@pytest.fixture
def two_hosts(tmp_path):
    file = tmp_path / "hosts.json"
    file.write_text('{"hosts": ["a", "a", "b", "b"]}')
    return file


SLOW = dataclasses.replace(CPU, network_link=1e5, host_link=1e9)


@pytest.mark.pairs
@pytest.mark.parametrize("dependencies", ("comm", "hybrid"))
@pytest.mark.parametrize("model", (*SIX, DEEP), ids=repr)
def test_routes_change_no_number(model, dependencies, two_hosts, monkeypatch):
    """Nor what is predicted, which is what is counted."""
    monkeypatch.setattr(messages, "LEAST", 1)
    problem, options = problems.awkward(), {"dependencies": dependencies, "hardware": SLOW}
    expected, scores, rows = outcome(training.make_trainer(model, problem))

    def run(group):
        trainer = training.make_trainer(model, problem, (4, 3), ranks=group, topology=two_hosts, **options)
        halo = trainer._share.halo
        most = 0 if halo is None else max(map(len, halo.fetched))
        return outcome(trainer), most

    found = run_ranks(4, run)
    assert dependencies != "comm" or {most for _, most in found} == {2}
    for (run_, evaluated, predicted), _ in found:
        training.assert_same(run_, expected, SAME)
        assert evaluated == pytest.approx(scores, rel=1e-6, nan_ok=True)
        torch.testing.assert_close(predicted, rows, rtol=SAME, atol=SAME)


def test_routes_are_predicted_to_be_faster(two_hosts, monkeypatch):
    problem = problems.awkward()
    artifact = problems.prepare(problem, 4, 3)

    def slowest(hardware, **options):
        plans = plan_ranks(
            artifact, SIX[0].build(problem), 4, "comm", loss="cross_entropy", device_memory=None, strategy="full",
            hardware=hardware, **options,
        )  # fmt: skip
        assert len({sum(plan.rows[link] for _, plan in plans) for link in ("fetch", "send")}) == 1
        return max(predict_seconds(plan, hardware).network for _, plan in plans), [plan.rows for _, plan in plans]

    routed, rows = slowest(SLOW, topology=two_hosts)
    fast, _ = slowest(dataclasses.replace(SLOW, network_link=1e9), topology=two_hosts)
    assert fast < routed / 10
    monkeypatch.setattr(rounds, "plan_routes", lambda found, fabric: plan_routes(found, None))
    direct, same = slowest(SLOW, topology=two_hosts)
    assert routed < 0.9 * direct
    assert rows == same, "a tree brings every reader its rows once"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"hops": {"a": %s}}' % (10**400), "above 0"),
        ('{"hops": {"a": 1}, "paths": {"0 1": [["a"]]}}', "expected a list of names of hops"),
        ('{"hops": {"a": 1}, "paths": {"0 1": [{}]}}', "expected a list of names of hops"),
        ("[]", "expected {\"hosts\""),
        ('{"host": []}', "expected {\"hosts\""),
        ('{"hosts": ["a"]}', "one for each of 2 ranks"),
        ('{"hosts": "ab"}', "one for each of 2 ranks"),
        ('{"hops": {"x": 0}}', "hop 'x' has 0"),
        ('{"hops": []}', "expected {\"hosts\""),
        ('{"paths": {"0 1": 3}}', "expected a list of names of hops"),
        ('{"hops": {"x": 1}, "paths": {"0 2": ["x"]}}', "two of the ranks 0 to 1"),
        ('{"hops": {"x": 1}, "paths": {"0 \u00b2": ["x"]}}', "two of the ranks 0 to 1"),
        ('{"hops": {"x": 1}, "paths": {"0 1%s": ["x"]}}' % ("0" * 5000), "two of the ranks 0 to 1"),
        ('{"hops": {"x": 1}, "paths": {"0 1": ["y"]}}', "passes 'y'; expected one of x"),
        ('{"hops": {"x": 1}, "paths": {"0 1": ["x"]}}', 'no path for "1 0"'),
    ],
)  # fmt: skip
def test_a_wrong_topology_file_is_refused(text, why, tmp_path):
    file = tmp_path / "topology.json"
    file.write_text(text)
    with pytest.raises(InputError, match="topology") as refused:
        load_fabric(file, 2, CPU)
    assert why in str(refused.value)
    with pytest.raises(InputError, match="cannot be read"):
        load_fabric(tmp_path / "none", 2, CPU)


def test_hops_and_paths_of_a_file(tmp_path):
    file = tmp_path / "topology.json"
    file.write_text(json.dumps({"hosts": ["a", "a", "b"], "hops": {"nvlink": 5e10}, "paths": {"0 1": ["nvlink"]}}))
    found = load_fabric(file, 3, CPU)
    assert found.paths[0, 1] == ("nvlink",) and found.hops["nvlink"] == 5e10
    assert found.paths[1, 0] == ("a memory",) and found.paths[1, 2] == ("a out", "b in")


def test_without_a_file_ranks_that_share_a_card_are_known():
    assert shared_hosts(["a", "b", "c"], CPU) is None and shared_hosts(["a", "a"], CPU) is None
    assert shared_hosts(["a", "a", "b"], CPU) == fabric_of_hosts(["a", "a", "b"], CPU.network_link, CPU.host_link)


def test_ranks_find_their_hosts(monkeypatch):
    names = iter("aabb")
    monkeypatch.setattr(fabrics.socket, "gethostname", lambda: next(names))
    found = run_ranks(4, lambda group: fabric_between(group, None, CPU))
    assert found[0] == fabric_of_hosts(list("aabb"), CPU.network_link, CPU.host_link)


def test_one_process_has_nothing_to_join(two_hosts):
    with pytest.raises(InputError, match="alone"):
        training.make_trainer(SIX[0], problems.awkward(), topology=two_hosts)
