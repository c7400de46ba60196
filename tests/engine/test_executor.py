"""The executor on eight vertices: a toy model's numbers, whatever the plan; what it counts, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from hongtu.cuda_ext.compile import KernelError
from hongtu.device.cpu import CpuDevice
from hongtu.device.simulated import SimulatedBackend
from hongtu.engine.body import Body
from hongtu.engine.chunk import Chunk
from hongtu.plan.passes.definition import FEATURES, gradient
from hongtu.plan.passes.strategy import Choice, Strategy, get_strategy
from hongtu.plan.program import moves
from hongtu.plan.program.moves import call
from hongtu.plan.program.ref import Ref, Stores
from hongtu.plan.search.residents import every_tensor
from tests import tiny
from tests.engine.toy import MODELS, Run

FULL = get_strategy("full")
TRAIN = np.isin(np.arange(tiny.V), (1, 6))  # the vertices with a loss, where passes are pruned
FIELDS = tuple(np.isin(np.arange(tiny.V), rows) for rows in ((1, 6), (1, 2, 4, 6), (1, 2, 4, 5, 6)))
STAY = frozenset({"everything"})
PLANS = {
    "none": ("none", Choice()),
    "paper": ("paper", Choice()),
    "full": (FULL, Choice()),
    "fused": (FULL, Choice(fuse=True)),
    "kept": (FULL, Choice(fuse=True, save=True)),
    "all stays": (FULL, Choice(fuse=True, save=True, resident=STAY)),
    "all stays, nothing kept": (FULL, Choice(resident=STAY)),
    "all stays, structure too": (FULL, Choice(fuse=True, resident=STAY, structure=True)),
    "z1 stays": (FULL, Choice(resident=frozenset({"z1", gradient("z1")}))),
    "gradients of the features": (Strategy(no_input_gradient=False, cache_input_aggregate=False), Choice(fuse=True)),
    "pruned": (FULL, Choice(fuse=True, fields=FIELDS)),
    "pruned, all stays": (FULL, Choice(fields=FIELDS, resident=STAY)),
}
plans = pytest.mark.parametrize("name", PLANS)
models = pytest.mark.parametrize("model", MODELS)


def planned(model, name, staging=0, sizes=(2, 2)):
    strategy, choice = PLANS[name]
    choice = replace(choice, staging=staging)
    if choice.resident == STAY:
        bare = tiny.plan(MODELS[model], strategy, replace(choice, resident=frozenset()), sizes)
        choice = replace(choice, resident=every_tensor(bare.passes))
    return tiny.plan(MODELS[model], strategy, choice, sizes)


def check(plan, backend=None):
    """Two epochs of the same numbers, those of torch on the whole graph, and as many bytes as were predicted."""
    bits = torch.from_numpy((TRAIN if plan.choice.fields else np.ones(tiny.V)).astype(np.uint8))
    run = Run(plan, backend, bits)
    run.setup()
    kept = run.host.names(), [device.placed() for device in run.devices]
    assert run.traffic.bytes == plan.setup_traffic.bytes
    for _ in range(2):
        loss, gradients = run.train()
        counted = run.traffic.bytes, run.traffic.rows, {d.name: d.arena_peak for d in run.devices} | run.host.peak_bytes
        predicted = plan.bytes, plan.rows, plan.arena_bytes
        assert counted[:2] == predicted[:2]
        assert {k: v for k, v in counted[2].items() if k != "pageable host"} == {
            k: v for k, v in predicted[2].items() if k != "pageable host"
        }
        out, expected = run.toy.whole(run.bits)
        wanted = torch.autograd.grad(expected, run.toy.parameters)
        assert loss == pytest.approx(float(expected.detach()), rel=1e-10)
        for found, right in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(run.infer(), out.detach(), rtol=1e-9, atol=1e-9)
        if gradient(FEATURES) in run.host.names():
            run.host.free(gradient(FEATURES))
        assert (run.host.names(), [device.placed() for device in run.devices]) == kept
        assert not any(partition.pieces or partition.graphs for partition in run.executor.partitions)
    return run


@plans
@models
def test_whatever_the_plan_numbers_are_torchs(model, name):
    check(planned(model, name))


@pytest.mark.pairs
@pytest.mark.parametrize("staging", [1, 2])
@pytest.mark.parametrize("name", ["none", "paper", "full", "fused", "all stays, structure too", "z1 stays", "pruned"])
@models
def test_on_devices_with_memory_of_their_own(model, name, staging):
    """Work is done in an order that the seed draws, as far as the waits allow."""
    for seed in range(staging):
        try:
            backend = SimulatedBackend(seed=seed)
        except KernelError as error:
            pytest.skip(str(error))
        check(planned(model, name, staging), backend)


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1), (4, 2)], ids=str)
@models
def test_whatever_the_grain(model, sizes):
    """With four partitions of one chunk every vertex has mirrors; in eight chunks some have no edge."""
    for name in ("paper", "fused", "all stays"):
        check(planned(model, name, sizes=sizes))


def test_chunks_run_in_the_order_of_the_schedule():
    plan = planned("gcn", "paper")
    swapped = np.array([[1, 0], [0, 1]], dtype=np.int32)
    run = Run(tiny.plan(MODELS["gcn"], "paper", Choice(), schedule=swapped))
    seen, spots, stage = [], set(), run.toy.stage

    def spied(*given, **how):
        seen.append(run.toy.chunk)
        spots.add(run.executor.spot[2:])
        return stage(*given, **how)

    run.toy.stage = spied
    loss, _ = run.train()
    assert seen == [1, 2, 0, 3] * 3 + [0, 3, 1, 2] * 3
    assert spots == {((0, 1), 0), ((1, 0), 0), ((0, 0), 1), ((1, 1), 1)}  # the chunk and its batch
    other = Run(plan)
    assert loss == pytest.approx(other.train()[0])


def test_an_error_leaves_no_work():
    run = Run(planned("gat", "paper"))
    run.toy.aggregate, abandoned = None, []
    for device in run.devices:
        device.abandon = partial(abandoned.append, device)
    assert run.executor.spot is None
    with pytest.raises(TypeError):
        run.train()
    assert run.executor.spot == ("forward 0", "toy", (0, 0), 0) and abandoned == run.devices


def test_seconds_are_those_of_the_last_run():
    run = Run(planned("gcn", "full"))
    run.setup()
    assert set(run.executor.seconds) == {"setup", "setup stage 0", "setup 0"}
    run.train()
    assert set(run.executor.seconds) == {p.name for p in run.plan.passes.train}


# ------------------------------------------------------------------------------------------------- single instructions


@pytest.fixture
def run():
    found = Run(planned("gcn", "paper"))
    found.executor._set = 0
    return found


def test_place_and_free(run):
    run.executor.place(
        moves.Place(name="x", where="host", rows=(8,), shape=(2,), zero=np.array([1, 6], dtype=np.int32))
    )
    assert run.host["x"][[1, 6]].eq(0).all() and run.host["x"][[0, 2, 7]].isnan().all()
    run.executor.place(moves.Place(name="y", where="device", rows=(6, 5), shape=(3,), zero=True))
    run.executor.place(moves.Place(name="n", where="device", rows=(6, 5), shape=(), dtype="int32"))
    shapes = [(device.buffer("y").shape, device.buffer("n").dtype) for device in run.devices]
    assert shapes == [((6, 3), torch.int32), ((5, 3), torch.int32)] and not run.devices[1].buffer("y").any()
    run.executor.partitions[1].pieces["p"][3] = torch.zeros(1)
    run.executor.free(moves.Free(name="x", where="host"))
    run.executor.free(moves.Free(name="y", where="device"))
    run.executor.free(moves.Free(name="p", where="chunk"))
    assert "x" not in run.host.names() and run.devices[0].placed() == {"n"} and not run.executor.partitions[1].pieces


class Logged:
    """A stream that writes down what it is told."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def record(self):
        self.log.append(f"record {self.name}")
        return self

    def wait(self, event, why):
        self.log.append(f"{self.name} waits for {event.name}")

    def synchronize(self, why):
        self.log.append(f"host waits for {self.name}")


def test_streams_wait_for_one_another(run):
    log = []
    for i, device in enumerate(run.devices):
        streams = {name: Logged(f"{name} {i}", log) for name in ("load", "compute", "flush", "host")}
        device.streams = replace(device.streams, **streams)
    run.executor.signal(moves.Signal(stream="load", event="brought"))
    run.executor.wait(moves.Wait(stream="compute", event="brought", why=""))
    run.executor.wait(moves.Wait(stream="dispatch", event="brought", why=""))
    assert log == [
        "record load 0", "record load 1", "compute 0 waits for load 0", "compute 1 waits for load 1",
        "host waits for load 0", "host waits for load 1",
    ]  # fmt: skip
    log.clear()
    run.executor.follow(moves.Follow(stream="flush", other="compute", why=""))
    assert log == ["record compute 0", "flush 0 waits for compute 0", "record compute 1", "flush 1 waits for compute 1"]
    log.clear()
    run.executor.meet(moves.Meet(stream="load", why=""))
    assert log == ["record load 0", "record load 1", "load 0 waits for load 1", "load 1 waits for load 0"]


def test_batches_take_turns_with_the_sets_of_staging_memory(monkeypatch):
    """Forward, what batch 0 brings goes to set 0, what batch 1 brings to set 1; backward begins with batch 1."""
    seen, bring = set(), CpuDevice.bring

    def spied(device, name, number, array, link, index=None, **more):
        seen.add((run.executor._current.name, run.executor._batch, number, index is None))
        return bring(device, name, number, array, link, index, **more)

    monkeypatch.setattr(CpuDevice, "bring", spied)
    run = Run(planned("gat", "pruned", staging=2), bits=torch.from_numpy(TRAIN.astype(np.uint8)))
    run.train()
    assert {each[1:] for each in seen if each[0] == "forward 0"} == {(b, b, f) for b in (0, 1) for f in (False, True)}
    assert {each[1:3] for each in seen if each[0] == "backward 0"} == {(1, 0), (0, 1)}


def test_rows_that_no_flush_stores_are_added(run):
    """Chunks of GCN's last layer store their own rows first, so that every flush adds."""
    expected = run.train()[1]
    changed = []
    for p in run.program.train:
        adding = (Stores(False),) * 2
        body = [replace(x, dst=replace(x.dst, access=adding)) if x.verb == "flush" else x for x in p.body]
        changed.append(replace(p, body=tuple(body)) if p.name == "backward 1" else p)
    again = Run(run.plan)
    again.program = replace(run.program, train=tuple(changed))
    for found, right in zip(again.train()[1], expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_a_chunk_adds_to_rows_that_it_has_for_itself(run):
    partition, device = run.executor.partitions[0], run.devices[0]
    chunk = Body(Chunk(partition, run.program.train[0], 0, 1, 1, 0))
    stored, added = (Ref(tensor="x", where="chunk", access=Stores(stores)) for stores in (True, False))
    with device.computing("a pass", 1):
        chunk.write(torch.full((2, 2), 3.0), at=stored, holds=False)
        chunk.write(torch.full((2, 2), 2.0), at=added, holds=False)
    assert partition.pieces["x"][1].tolist() == [[5, 5], [5, 5]]
    assert chunk.view(Ref(tensor="x", where="chunk"))[0].tolist() == [[5, 5], [5, 5]] and partition.pieces["x"]
    chunk.view(Ref(tensor="x", where="chunk"), last=True)
    assert not partition.pieces["x"]


class Norm:
    """What the executor knows of a normalisation."""

    def __init__(self, gradient):
        self.gradients, self.forgotten = (torch.tensor(gradient),), 0

    def forget(self):
        self.forgotten += 1

    def gathers(self, vertices):
        return vertices == tiny.V

    def set_statistics(self, statistics, device, vertices):
        self.statistics = *(x.tolist() for x in statistics), vertices


class OneNorm:
    """A network of one layer."""

    def __init__(self, norm):
        self.norm = lambda layer: norm


def test_statistics_are_those_of_all_devices(run):
    norms = [Norm([1.0, 2.0]), Norm([10.0, 20.0])]
    run.executor.networks = [OneNorm(norm) for norm in norms]
    run.executor.begin_moments(call("begin_moments", stage=1, columns=2))
    rows = torch.tensor([[1.0, 0], [3, 0], [8, 4]], dtype=torch.float64)
    for partition, part in zip(run.executor.partitions, (rows[:2], rows[2:]), strict=True):
        partition.moments.add(part)
    run.executor.end_moments(call("end_moments", stage=1))
    mean, var = rows.mean(0).tolist(), rows.var(0, correction=0).tolist()
    for norm in norms:
        assert norm.statistics == (pytest.approx(mean), pytest.approx(var), tiny.V) and norm.forgotten == 1
    run.executor.sum_statistics(call("sum_statistics", layer=1))
    assert [norm.gradients[0].tolist() for norm in norms] == [[11, 22], [11, 22]]
