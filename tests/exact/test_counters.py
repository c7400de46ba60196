"""What a run counts is what its plan predicts, exactly, and what a brute-force count over sets says."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.device.base import Device
from hongtu.device.cpu import CpuDevice
from hongtu.engine.host_store import HostStore
from hongtu.kernels import dispatch
from hongtu.plan.cache.intervals import make_intervals
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.program.moves import Instruction
from hongtu.plan.program.ref import Ref
from hongtu.plan.program.rows import Picks, Selection
from tests import problems, training
from tests.exact.test_paper import neighbours, volumes
from tests.models import SIX, H, Model
from tests.training import GRAINS, STRATEGIES, over_grid

grains = pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
strategies = pytest.mark.parametrize("strategy", STRATEGIES)
BY_NAME = {model.name: model for model in SIX}
LOOKAHEAD = Strategy(cache_input_aggregate=False, fuse_last_layer=False, prune=False, resident=False, save=False)


class Plain(hnn.Layer):
    def __init__(self, f, c):
        super().__init__()
        self.lin = nn.Linear(f, c)

    def forward(self, block, h):
        return block.mean(torch.tanh(self.lin(h))) + self.lin(h[: block.num_dst])


class TwoSkips(hnn.Layer):
    """A linear aggregate of its own and s = (another row, z, the input)."""

    linear_aggregate = True

    def __init__(self, f, c):
        super().__init__()
        self.u, self.v, self.w = nn.Linear(f, H), nn.Linear(H, c), nn.Linear(f, c)

    def transform(self, h):
        z = self.u(h)
        return z, (torch.tanh(z), z, h)

    def aggregate(self, block, z, s):
        return block.sum(z, weighted=True)

    def update(self, a, s):
        return self.v(a * s[0] + s[1]) + self.w(s[2])


OTHERS = (
    Model("plain", lambda f, c: [Plain(f, H), nn.LayerNorm(H), Plain(H, c)], lambda f, c: []),
    Model("two-skips", lambda f, c: [TwoSkips(f, H), nn.ReLU(), TwoSkips(H, c)], lambda f, c: []),
    Model(
        "pyg",
        lambda f, c: [hnn.PyGLayer(pyg.SAGEConv(f, H)), nn.ReLU(), hnn.PyGLayer(pyg.TransformerConv(H, c))],
        lambda f, c: [],
    ),
    Model("rows-first", lambda f, c: [nn.Linear(f, H), nn.ReLU(), hnn.GINConv(nn.Linear(H, c))], lambda f, c: []),
)


def check_counters(trainer, epochs=1):
    """``training.assert_counted`` for some epochs; returns the last one's record."""
    for _ in range(epochs):
        record = trainer.train_epoch()
        training.assert_counted(trainer, record)
    return record


@pytest.mark.every
@pytest.mark.long
@over_grid
@pytest.mark.parametrize("model", OTHERS, ids=repr)
def test_counted_is_predicted(model, grain, strategy):
    """Every test of exactness counts, too; these have no reference."""
    problem = problems.awkward()
    check_counters(training.make_trainer(model, problem, grain, strategy=strategy, device_memory="smallest"))
    if strategy == "full":  # the others' plans do not depend on the budget
        check_counters(training.make_trainer(model, problem, grain), epochs=2)


@pytest.mark.long
@grains
def test_counted_is_predicted_between_the_smallest_and_no_budget(grain):
    for model in SIX:
        check_counters(training.make_trainer(model, problems.awkward(), grain, device_memory="128KiB"))


@pytest.mark.long
@strategies
def test_counted_is_predicted_for_other_inputs(strategy):
    """Without weights, in single precision, multi-label, with an optimizer that keeps state."""
    for model in (BY_NAME["gcn"], BY_NAME["gat"]):
        options = {"strategy": strategy, "device_memory": "smallest", "dtype": torch.float32}
        check_counters(training.make_trainer(model, unweighted(), (2, 3), optimizer=torch.optim.Adam, **options), 2)
        options["loss"] = "bce_with_logits"
        check_counters(training.make_trainer(model, problems.multi_label(), (2, 3), **options), 2)


@functools.cache
def unweighted():
    return dataclasses.replace(problems.awkward(), weights=None)


def test_counted_is_predicted_after_evaluation_and_prediction():
    """Selection that evaluation moves are not a training epoch's."""
    trainer = training.make_trainer(BY_NAME["gat"], problems.awkward(), (2, 3), device_memory="smallest")
    for _ in range(2):
        check_counters(trainer)
        trainer.evaluate()
        trainer.predict()


# ------------------------------------------------------------------------------------------- what is really copied


@strategies
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_counters_count_the_rows_really_copied(name, strategy, monkeypatch):
    moved = {"copy": [0, 0], "add": [0, 0], "put": [0, 0]}  # rows, bytes
    flushes: list[bool] = []

    def spy(kind, function, counts=lambda: True):
        def call(src, src_index, dst, dst_index, *stores):
            assert len(src_index) == len(dst_index)
            if counts():
                moved[kind][0] += len(src_index)
                moved[kind][1] += len(src_index) * src[:1].nbytes
            function(src, src_index, dst, dst_index, *stores)

        return call

    def flush_rows(*args):
        flushes.append(True)
        flush(*args)
        flushes.pop()

    for kernel in ("copy_rows", "add_rows"):
        counted = spy(kernel[:-5], getattr(dispatch.NUMBA, kernel))
        monkeypatch.setattr(dispatch.NumbaKernels, kernel, staticmethod(counted), raising=False)
    # chunks' own gradients are put, too
    put = spy("put", dispatch.NUMBA.put_rows, lambda: bool(flushes))
    monkeypatch.setattr(dispatch.NumbaKernels, "put_rows", staticmethod(put), raising=False)
    flush = CpuDevice.flush_rows
    monkeypatch.setattr(CpuDevice, "flush_rows", flush_rows)
    trainer = training.make_trainer(BY_NAME[name], problems.awkward(), (2, 3), strategy=strategy)
    record = trainer.train_epoch()
    for kind, links in (("copy", ("load", "pull")), ("add", ("push",)), ("put", ("flush",))):
        both = (record, trainer.setup)
        assert moved[kind] == [
            sum(r.rows[k] for r in both for k in links),
            sum(r.bytes[k] for r in both for k in links),
        ]
    assert moved["copy"][0] > 0 and moved["add"][0] + moved["put"][0] > 0
    assert trainer.setup.rows == trainer.plan.setup_traffic.rows
    assert trainer.setup.bytes == trainer.plan.setup_traffic.bytes


@pytest.mark.long
@grains
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_full_moves_no_more_than_paper_and_no_less_than_it_must(name, grain):
    problem = problems.awkward()
    used = len(set(problem.edges[0].tolist()))
    ru, _ = volumes(*neighbours(problem, problems.prepare(problem, *grain), looped=False), "paper")
    for budget in (None, "smallest"):
        trainer = training.make_trainer(BY_NAME[name], problem, grain, strategy=LOOKAHEAD, device_memory=budget)
        for plan in trainer.plan.transfers.values():
            assert used <= plan.rows_loaded
            if budget is None:
                assert plan.rows_loaded == used <= ru
    everything = training.make_trainer(BY_NAME[name], problem, grain, strategy="full").train_epoch()
    assert everything.rows["load"] == everything.rows["flush"] == 0  # without a limit all stays on the devices


def test_features_need_no_gradient():
    """GIN, whose first layer exchanges the features, flushes for its second layer only."""
    problem = problems.awkward()
    used = len(set(problem.edges[0].tolist()))
    record = training.make_trainer(BY_NAME["gin"], problem, (2, 3), strategy=LOOKAHEAD).train_epoch()
    assert record.rows["load"] == 2 * used
    assert record.rows["flush"] == used


# ---------------------------------------------------------------------------------- nothing undefined, nothing spare


@pytest.fixture
def undefined_is_nan(monkeypatch):
    """Device buffers and host rows hold NaN until they are written."""
    make, create = Device._make, HostStore.create

    def make_nan(self, shape, dtype):
        buffer = make(self, shape, dtype)
        return buffer.fill_(float("nan")) if dtype.is_floating_point else buffer.fill_(0)

    def create_nan(self, name, columns, zero, *more):
        create(self, name, columns, False, *more)
        self[name].fill_(float("nan"))
        if zero is not False:
            self[name][... if zero is True else zero] = 0

    monkeypatch.setattr(Device, "_make", make_nan)
    monkeypatch.setattr(HostStore, "create", create_nan)


@functools.cache
def everyone_trains():
    """Every vertex carries a loss, so that a wrong row anywhere shows."""
    problem = problems.awkward()
    none = np.zeros(problem.num_vertices, dtype=bool)
    return dataclasses.replace(problem, masks={"train": ~none, "val": none, "test": none})


@functools.cache
def clean_outcome(model, grain, strategy):
    return training.train(training.make_trainer(model, everyone_trains(), grain, strategy=strategy), 2)


@pytest.mark.every
@pytest.mark.long
@strategies
@pytest.mark.parametrize("model", SIX + OTHERS, ids=repr)
def test_no_undefined_memory_is_read(model, strategy, request):
    expected = clean_outcome(model, (2, 3), strategy)
    request.getfixturevalue("undefined_is_nan")
    for budget in (None, "smallest"):
        options = {"strategy": strategy, "device_memory": budget}
        trainer = training.make_trainer(model, everyone_trains(), (2, 3), **options)
        training.assert_same(training.train(trainer, 2), expected, 1e-12)
        assert not trainer.predict().isnan().any()


def without(table, k, num_batches):
    keep = np.arange(len(table)) != k
    columns = (table.row[keep], table.slot[keep], table.first[keep], table.last[keep])
    peers = (table.peer[keep], table.peer_slot[keep]) if len(table.peer) else ()
    return make_intervals(*columns, num_batches, *peers)


def drop(engine, name, device_index, kind, k):
    """Take load (or pull) number k of one device out of one pass of the program that an engine runs."""
    (found,) = (p for p in engine.program.train if p.name == name)
    before = engine.plan.transfers[name].devices[device_index]
    table = without(getattr(before, kind), k, found.schedule.shape[1])
    after = dataclasses.replace(before, **{kind: table})
    body = tuple(map(functools.partial(exchanged, before=before, after=after), found.body))
    train = tuple(dataclasses.replace(p, body=body) if p is found else p for p in engine.program.train)
    engine.program = dataclasses.replace(engine.program, train=train)


def exchanged(value, before, after):
    """Plain data with another object in one's place."""
    if value is before:
        return after
    if isinstance(value, tuple):
        parts = tuple(exchanged(part, before, after) for part in value)
        return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    if not isinstance(value, Instruction | Picks | Selection | Ref):
        return value
    parts = {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
    others = {name: exchanged(part, before, after) for name, part in parts.items()}
    changed = any(others[name] is not part for name, part in parts.items())
    return dataclasses.replace(value, **others) if changed else value


def droppable(plan):
    """(pass, device, kind, how many) wherever a device loads or pulls anything in training."""
    trained = {p.name for p in plan.passes.train}
    for name, transfers in plan.transfers.items():
        if name not in trained:
            continue
        for i, found in enumerate(transfers.devices):
            for kind in ("loads", "pulls"):
                if len(getattr(found, kind)):
                    yield name, i, kind, len(getattr(found, kind))


@pytest.mark.every
@pytest.mark.long
@strategies
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_a_plan_without_one_of_its_transfers_fails(name, strategy, undefined_is_nan):
    """In each pass, on each device, any one load or pull: the counters and the numbers both show it."""
    model, grain = BY_NAME[name], (2, 3)
    strategy = LOOKAHEAD if strategy == "full" else strategy
    expected = clean_outcome(model, grain, strategy)
    expected = training.Outcome(expected.losses[:1], expected.gradients[:1])
    rows = training.make_trainer(model, everyone_trains(), grain, strategy=strategy).plan.rows
    rng = np.random.default_rng(2)
    cases = list(droppable(training.make_trainer(model, everyone_trains(), grain, strategy=strategy).plan))
    no_input_gradient = name == "gcn" and strategy == LOOKAHEAD  # no parameter lies below its first exchange
    assert len({case[0] for case in cases}) == (3 if no_input_gradient else 4)
    for pass_name, i, kind, count in cases:
        trainer = training.make_trainer(model, everyone_trains(), grain, strategy=strategy, detect_anomaly=False)
        drop(trainer._engine, pass_name, i, kind, int(rng.integers(count)))
        record = trainer.train_epoch()
        assert record.rows != rows
        if name == "gcn" and strategy != LOOKAHEAD and pass_name == "backward 0":
            continue  # the gradient of the features: no parameter lies below it
        with pytest.raises(AssertionError):
            training.assert_same(training.Outcome([record.loss], [trainer.gradients()]), expected, 1e-9)


def test_a_row_loaded_from_another_vertex_fails():
    trainer = training.make_trainer(BY_NAME["gcn"], everyone_trains(), (2, 3), strategy="paper")
    table = trainer.plan.transfers["forward 0"].devices[0].loads
    table.row[0], table.row[1] = table.row[1], table.row[0]
    expected = clean_outcome(BY_NAME["gcn"], (2, 3), "paper")
    with pytest.raises(AssertionError):
        training.assert_same(training.train(trainer, 2), expected, 1e-9)


def test_more_chunks_than_destinations():
    """Vertex 0 has nearly all in-edges and a partition of its own: the other chunks of that one are empty."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, 9, 40), np.r_[np.zeros(32, dtype=int), rng.integers(1, 9, 8)]])
    labels = rng.integers(0, 2, 9)
    artifact = hongtu.preprocess_graph(
        edges, 9, problems.new_path(), features=rng.normal(size=(9, 3)).astype(np.float32), labels=labels,
        masks={"train": np.ones(9, dtype=bool)}, partitions=2, chunks=4, partitioner="range",
    )  # fmt: skip
    assert (artifact.topology.num_dst == 0).any()
    for strategy in STRATEGIES:
        for layers in ([hnn.GATConv(3, 2)], [hnn.GCNConv(3, 4), hnn.SAGEConv(4, 2)]):
            check_counters(hongtu.Trainer(artifact, layers, strategy=strategy, device_memory="1MiB"))


class SameTwice(hnn.Layer):
    """s holds z twice."""

    reduce = "sum"

    def __init__(self, f, c):
        super().__init__()
        self.lin = nn.Linear(f, c)

    def transform(self, h):
        z = self.lin(h)
        return z, (z, z)

    def update(self, a, s):
        return a + s[0] * s[1]


@strategies
def test_a_tensor_named_twice_moves_once(strategy):
    model = Model("same-twice", lambda f, c: [SameTwice(f, H), SameTwice(H, c)], lambda f, c: [])
    for budget in (None, "smallest"):
        options = {"strategy": strategy, "device_memory": budget}
        check_counters(training.make_trainer(model, problems.awkward(), (2, 3), **options))


@pytest.mark.parametrize("model", SIX, ids=repr)
def test_full_runs_wherever_paper_does(model):
    problem = problems.awkward()
    artifact = problems.prepare(problem, 2, 3)
    full, paper = (
        training.smallest_budget(artifact, lambda: model.build(problem), strategy=strategy, loss=model.loss)
        for strategy in ("full", "paper")
    )
    assert full <= paper
