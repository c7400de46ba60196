"""Vertex rows on a disk: every number is that of a run without, to the bit; what is counted is what was planned."""

from __future__ import annotations

import functools
import gc
import itertools
import re
import time
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.device.cpu import CpuDevice
from hongtu.engine import executor
from hongtu.engine.disk import Disk
from hongtu.engine.executor import Executor
from hongtu.errors import BudgetError, InputError
from hongtu.host import is_mapped
from hongtu.metrics import BELOW, Traffic
from hongtu.plan.cost.seconds import Seconds
from hongtu.plan.passes.definition import OUTPUT
from hongtu.plan.program import moves
from hongtu.plan.program.on_disk import Summed
from hongtu.plan.search import host
from hongtu.train import network_plan
from tests import problems, staged, training
from tests.models import SIX, H, Model
from tests.staged import everything, on_disk

GRAINS = ((1, 7), (4, 8))
NORMED = Model(
    "normed", lambda f, c: [hnn.SAGEConv(f, H), hnn.BatchNorm(H), nn.ReLU(), hnn.GATConv(H, c)], lambda f, c: []
)
DEEP = Model(
    "deep", lambda f, c: [hnn.GINConv(nn.Linear(f, H)), nn.Dropout(0.3), hnn.GGCNConv(H, H), hnn.SAGEConv(H, c)],
    lambda f, c: [],
)  # fmt: skip

SHARED = Model(
    "shared",
    lambda f, c: [
        (nn.Linear(f, H), "x -> x1"), nn.ReLU(), (hnn.SAGEConv(H, H), "x1 -> x2"), (hnn.SAGEConv(H, H), "x1 -> x3"),
        (hnn.JumpingKnowledge("cat"), "x1, x2, x3 -> x"), nn.Linear(3 * H, c),
    ],
    lambda f, c: [],
)  # fmt: skip


def pair(model, grain, tmp_path, fit=everything, **options):
    """A trainer in a device budget, and one that spills."""
    options = {"device_memory": "smallest"} | options
    made = []
    for disk in (nullcontext({}), on_disk(tmp_path, fit)):
        torch.manual_seed(0)
        with disk as spills:
            made.append(training.make_trainer(model, problems.awkward(), grain, **options | spills))
        options["device_memory"] = made[0]._budget
    return made


def check_same(free, spilling, epochs=3):
    """Losses, gradients, scores and predictions are the same bits, and what is counted is what was predicted."""
    for _ in range(epochs):
        expected, record = free.train_epoch(), spilling.train_epoch()
        training.assert_counted(spilling, record)
        assert spilling.setup.bytes == spilling.plan.setup_traffic.bytes
        assert record.loss == expected.loss
        assert all(torch.equal(g, free.gradients()[name]) for name, g in spilling.gradients().items())
        elsewhere = {link: n for link, n in expected.bytes.items() if link not in (*BELOW, "read")}
        assert elsewhere.items() <= record.bytes.items() and expected.bytes["disk"] == 0
        assert record.bytes["read"] <= expected.bytes["read"], "rows from the disk are used where they lie"
    assert spilling.evaluate() == free.evaluate()
    assert torch.equal(spilling.predict(), free.predict())
    evaluation = (spilling.plan.pass_traffic(p) for p in spilling.plan.passes.evaluate)
    assert spilling.inferred.bytes == sum(evaluation, Traffic()).bytes
    return record


@pytest.mark.parametrize("kept", [0, 1])
def test_the_output_need_not_be_on_the_host(kept, tmp_path):
    """It has as many columns as there are classes, and is what takes most of a large graph's host."""
    free, spilling = pair(SIX[0], (2, 3), tmp_path, fit=lambda plan, limit: host.with_spilled(plan, {OUTPUT: kept}))
    record = check_same(free, spilling, epochs=1)
    assert record.bytes["disk"] == 0, "an epoch has none"
    assert (OUTPUT in {x.name for p in spilling.plan.program.evaluate for x in p.before}) == (kept > 0)
    assert np.array_equal(spilling.predict(out=tmp_path / "rows.npy"), free.predict())


@pytest.mark.most(4)
@pytest.mark.long
@pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
@pytest.mark.parametrize("model", (*SIX, NORMED, DEEP), ids=repr)
def test_everything_on_the_disk_gives_the_same_bits(model, grain, tmp_path):
    free, spilling = pair(model, grain, tmp_path)
    record = check_same(free, spilling)
    assert record.bytes["disk"] > 0 and not list(tmp_path.iterdir()), "the file has no name"


def test_several_passes_give_one_tensor(tmp_path):
    """Rows are added up in the order in which they were given, for the first giver stores."""
    free, spilling = pair(SHARED, (2, 3), tmp_path)
    recalls = [x.src.rows for p in spilling.plan.program.train for x in p.recalls if x.verb == "recall"]
    assert 2 in [len(rows.given) for rows in recalls if isinstance(rows, Summed)]
    check_same(free, spilling, epochs=1)


@pytest.mark.long
@pytest.mark.parametrize("kept", range(3))
def test_some_on_the_disk_and_some_not(kept, tmp_path):
    def some(plan, limit):
        return everything(plan, limit, but=host.candidates(plan)[kept::3])

    for model in (NORMED, DEEP):
        check_same(*pair(model, (2, 3), tmp_path, fit=some), epochs=2)


@pytest.mark.most(3)
@pytest.mark.long
@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
@pytest.mark.parametrize("model", (SIX[0], SIX[4], NORMED, DEEP), ids=repr)
def test_some_chunks_stay_in_memory(model, grain, kept, tmp_path):
    free, spilling = pair(model, grain, tmp_path, fit=functools.partial(everything, kept=kept))
    record = check_same(free, spilling, epochs=2)
    assert 0 < record.bytes["disk"] < everything(free.plan, None).bytes["disk"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("problem", "models"),
    [(problems.awkward, (SIX[0], SIX[4])), (problems.whole_lines, (SIX[1],))],
    ids=["few", "lines"],
)
@pytest.mark.parametrize("seed", range(2))
def test_on_devices_with_memory_of_their_own(seed, problem, models, tmp_path):
    for model in models:
        options = {"device": staged.simulated(seed=seed)}
        options["device_memory"] = staged.budget(model, problem(), (2, 3), 1.05, **options)
        with on_disk(tmp_path, functools.partial(everything, kept=seed)) as spills:
            trainer = staged.check(model, problem(), (2, 3), **options, **spills)
        assert trainer.plan.choice.spilled and trainer.plan.bytes["disk"]


@pytest.mark.long
@pytest.mark.parametrize("way", ["_read", "_write"])
def test_a_slow_disk_changes_no_number(way, tmp_path, monkeypatch):
    """What is not waited for would be read too early, or be written over."""
    move = getattr(Disk, way)
    free, spilling = pair(NORMED, (2, 4), tmp_path)
    monkeypatch.setattr(Disk, way, lambda *operands: (time.sleep(0.002), move(*operands)))
    check_same(free, spilling, epochs=1)


@pytest.mark.long
def test_rows_on_their_way_to_the_disk_keep_nothing_of_their_batch(tmp_path, monkeypatch):
    held, spill = [], Disk.spill
    monkeypatch.setattr(
        Disk, "spill", lambda disk, x, chunk: (held.append({*chunk.registers} - {None}), spill(disk, x, chunk))
    )
    _, spilling = pair(SIX[0], (2, 4), tmp_path)
    spilling.train_epoch()
    assert held and not any(held)


def test_the_disk_is_a_batch_ahead(tmp_path, monkeypatch):
    """A batch does not compute before the rows of the next one have come: that ends, and nobody is asked for them."""
    came, ahead, recall, compute = set(), [], Disk.recall, Executor.compute

    def noted(self, x, chunk):
        recall(self, x, chunk)
        came.add((chunk.p.name, chunk.batch))

    def waits(self, x):
        p, last = self._current, time.monotonic() + 20
        following = p.order[list(p.order).index(self._batch) + 1 :][:1]
        for batch in following if any(y.verb == "recall" and isinstance(y.src.rows, Summed) for y in p.recalls) else ():
            while p.busy(batch) and (p.name, batch) not in came:
                assert time.monotonic() < last, f"pass '{p.name}', batch {batch} waits for the one before it"
                time.sleep(0.001)
            ahead.append(batch)
        compute(self, x)

    monkeypatch.setattr(Disk, "recall", noted)
    monkeypatch.setattr(Executor, "compute", waits)
    _, spilling = pair(SIX[1], (1, 7), tmp_path)
    training.assert_counted(spilling, spilling.train_epoch())
    assert len(ahead) >= 6


@pytest.mark.long
def test_in_single_precision_the_features_come_as_they_are(tmp_path):
    free, spilling = pair(SIX[1], (2, 3), tmp_path, dtype=torch.float32)
    assert "features" in spilling.plan.choice.spilled
    check_same(free, spilling)


@pytest.mark.long
def test_a_run_goes_on_where_it_was(tmp_path):
    (tmp_path / "rows").mkdir()
    _, first = pair(DEEP, (2, 3), tmp_path / "rows")
    first.train_epoch()
    first.save(tmp_path / "snapshot.pt")
    _, second = pair(DEEP, (2, 3), tmp_path / "rows")  # beside the first, in the same directory
    second.load(tmp_path / "snapshot.pt")
    assert second.train_epoch().loss == first.train_epoch().loss
    assert torch.equal(second.predict(), first.predict())


# ------------------------------------------------------------------------------------------------------- what fits


@functools.cache
def wide():
    return problems.problem_of(problems.awkward_graph(), width=120)


@pytest.mark.parametrize("model", (SIX[0], SIX[4], DEEP), ids=repr)
def test_structure_of_pruned_chunks_stays_beside_a_disk(model, tmp_path):
    """What the host holds is known of each pass of set-up."""
    with on_disk(tmp_path) as spills:
        options = {"device": staged.simulated(), "device_memory": "1GiB"}
        trainer = training.make_trainer(model, problems.few_train(), (1, 3), **options, **spills)
    plan = replace(trainer.plan, choice=replace(trainer.plan.choice, structure=True))
    assert any("hops" in p.name for p in plan.program.setup) and plan.spilled
    assert plan.held_together["device 0"] >= plan.structure_bytes(0) > 0


@pytest.mark.parametrize(
    "convolutions",
    (
        (hnn.SAGEConv, hnn.GATConv, hnn.GCNConv),
        (hnn.GGCNConv, hnn.GGCNConv),
        (hnn.GCNConv, hnn.GCNConv, hnn.GCNConv, hnn.SAGEConv),
    ),
    ids=lambda each: "-".join(one.__name__ for one in each),
)
def test_what_is_read_for_the_last_time_makes_room(convolutions, tmp_path):
    """Two tensors that are alive in one pass lie apart; all regions together would take more."""
    model = Model("wide", lambda f, c: [one(64 if k else f, 64) for k, one in enumerate(convolutions)], lambda f, c: [])
    with on_disk(tmp_path) as spills:
        plan = training.make_trainer(model, problems.awkward(), (2, 4), device_memory="smallest", **spills).plan
    disk, vertices = plan.disk, plan.topology.num_vertices
    for group in (plan.passes.train, plan.passes.evaluate):
        number = {p.name: k for k, p in enumerate((*plan.passes.setup, *group))}
        readers = [(reader, giver.name, name) for (reader, name), gave in disk.givers.items() for giver in gave]
        lives = []  # the first byte and the one behind the last, the first and the last pass
        for (giver, name), begin in disk.own.items():
            last = max((number[r] for r, g, n in readers if (g, n) == (giver, name) and r in number), default=None)
            if giver in number and last is not None:
                lives.append((begin, begin + vertices * plan.disk_row(name), number[giver], last))
        for (reader, name), region in disk.loaded.items():
            given = [number[g] for r, g, n in readers if (r, n) == (reader, name) and g in number]
            if reader in number:
                lives.append((region.begin[0], region.begin[0] + region.nbytes, min(given, default=0), number[reader]))
        for (giver, name), region in disk.flushed.items():
            last = [number[r] for r, g, n in readers if (g, n) == (giver, name)] if giver in number else []
            lives += [(region.begin[0], region.begin[0] + region.nbytes, number[giver], k) for k in last]
        for k in range(len(number)):
            there = sorted((begin, end) for begin, end, first, last in lives if first <= k <= last and end > begin)
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(there))
        whole = sum(end - begin for begin, end, *_ in lives)
        assert max(end for _, end, *_ in lives) <= disk.nbytes["disk"]
        assert group is plan.passes.evaluate or disk.nbytes["disk"] < whole


def build(**options):
    torch.manual_seed(0)
    layers = [hnn.SAGEConv(120, 40), nn.ReLU(), hnn.GATConv(40, 40), nn.ReLU(), hnn.SAGEConv(40, 3)]
    artifact = problems.prepare(wide(), 2, 3)
    return hongtu.Trainer(artifact, layers, **{"device_memory": "140KiB", "optimizer": training.sgd} | options)


def kept(peak_bytes):
    return host.PROCESS + sum(bytes for name, bytes in peak_bytes.items() if name != "disk")


@pytest.fixture
def held(monkeypatch):
    """Bytes of host and devices together at most in every pass that runs; with a disk none leaves the next anything
    that is not counted."""
    found, run, make = [], Executor._run_pass, Executor._allocate

    def run_pass(executor, p):
        counters = [(device, name) for device in executor.devices for name in ("peak", "arena_peak")]
        counters.append((executor.host, "_pinned_peak"))
        before = [getattr(*counter) for counter in counters]
        executor.host.reset_peak()
        for device in executor.devices:
            device.reset_peaks()
        run(executor, p)
        found.append(sum(executor.host.peak_bytes.values()) + sum(device.peak for device in executor.devices))
        for (memory, name), peak in zip(counters, before, strict=True):
            setattr(memory, name, max(peak, getattr(memory, name)))

    def allocate(executor, p):
        idle = sum(device._pool.idle + device._staging_pool.idle for device in executor.devices)
        assert executor.disk is None or not idle
        make(executor, p)

    monkeypatch.setattr(Executor, "_run_pass", run_pass)
    monkeypatch.setattr(Executor, "_allocate", allocate)
    return found


@pytest.mark.long
def test_what_does_not_fit_is_spilled_and_no_more(tmp_path, held):
    free = build()
    whole = kept(free.plan.peak_bytes)
    assert not build(host_memory=whole).plan.choice.spilled
    with pytest.raises(InputError, match=f"the run needs {whole} .* of vertex rows .*--spill DIR"):
        build(host_memory=whole - 1)
    with pytest.raises(InputError, match=r"host_memory is 1 bytes, .* of Python, .*; give more") as refused:
        build(host_memory=1, spill=tmp_path)
    least = int(re.search(r"needs (\d+)", str(refused.value))[1])
    assert least < whole
    with pytest.raises(InputError, match=f"the run needs {least}"):
        build(host_memory=least - 1, spill=tmp_path)
    loss, moved = free.train_epoch().loss, [0]
    for limit in np.linspace(whole - 1, least, 5).astype(int).tolist():
        trainer = build(host_memory=limit, spill=tmp_path)
        held.clear()
        record = trainer.train_epoch()
        training.assert_counted(trainer, record)
        assert record.loss == pytest.approx(loss, rel=1e-6) and host.PROCESS + max(held) <= limit  # of other chunks
        moved.append(record.bytes["disk"])
    assert moved == sorted(moved) and moved[-1] > 0
    torch.testing.assert_close(trainer.embed(0), free.embed(0))


@pytest.mark.long
@pytest.mark.parametrize("layers", [(hnn.GCNConv, hnn.GCNConv), (hnn.SAGEConv, hnn.GATConv)], ids=["gcn", "mixed"])
def test_the_least_that_a_refusal_names_works(layers, tmp_path):
    """Also where plan arrays are little beside it, and most of a limit of one byte."""
    ids = np.arange(64)
    artifact = hongtu.preprocess_graph(
        np.stack([ids[:-1], ids[1:]]), 64, tmp_path / "chain", features=ids[:, None].astype(np.float32), labels=ids % 2,
        masks={"train": ids % 2 == 0}, partitions=1, chunks=8, order="input",
    )  # fmt: skip

    def build(**limits):
        torch.manual_seed(0)
        model = [layers[0](1, 8), nn.ReLU(), layers[0](8, 8), layers[1](8, 2)]
        return hongtu.Trainer(artifact, model, **{"device_memory": smallest} | limits)

    smallest = 1
    with pytest.raises(BudgetError) as refused:
        build()
    smallest = refused.value.smallest
    with pytest.raises(InputError) as refused:
        build(host_memory=1, spill=tmp_path)
    least = int(re.search(r"needs (\d+)", str(refused.value))[1])
    for more in (0, 1, 1000, 5000, 20000):
        assert np.isfinite(build(host_memory=least + more, spill=tmp_path).train_epoch().loss)
    with pytest.raises(InputError, match=f"needs {least}"):
        build(host_memory=least - 1, spill=tmp_path)


@pytest.mark.long
def test_chunks_are_not_grouped_where_only_that_fits(tmp_path):
    """The structure of groups comes beside that of the artifact's chunks."""
    with pytest.raises(InputError) as refused:
        build(device_memory="200KiB", host_memory=1, spill=tmp_path)
    least = int(re.search(r"needs (\d+)", str(refused.value))[1])
    free, limited = (
        build(device_memory="200KiB", **limits) for limits in ({}, {"host_memory": least, "spill": tmp_path})
    )
    assert (free.plan.topology.chunks, limited.plan.topology.chunks) == (1, 3)
    training.assert_counted(limited, limited.train_epoch())


def test_half_as_large_groups_where_the_largest_do_not_fit(tmp_path, monkeypatch):
    """Where they are predicted to be faster than none: they are, for starting chunks takes time."""
    fit, chunks, layers = network_plan.fit_host, 16, [hnn.GCNConv(120, 40), nn.ReLU(), hnn.GCNConv(40, 3)]

    def refusing(plan, limit):
        if plan.topology.chunks == 1:
            raise InputError("too much")
        return fit(plan, limit)

    def found():
        artifact = problems.prepare(wide(), 1, chunks)
        limits = {"device_memory": "300KiB", "host_memory": "1GiB", "spill": tmp_path}
        return hongtu.Trainer(artifact, layers, **limits).plan.topology.chunks

    monkeypatch.setattr(network_plan, "fit_host", refusing)
    assert found() == 2
    monkeypatch.setattr(network_plan, "predict_seconds", lambda plan, _: Seconds(load=1 / plan.topology.chunks))
    assert found() == chunks


def test_planning_leaves_nothing_of_what_it_tried(tmp_path, monkeypatch):
    """Devices on which layers were tried refer to themselves, and Python looks for such things when it likes to."""
    monkeypatch.setattr(network_plan, "LARGE", 0)
    limit = kept(build().plan.peak_bytes) - 1
    gc.collect()
    gc.disable()
    try:
        plan = build(host_memory=limit, spill=tmp_path).plan
        left = [x for x in gc.get_objects() if type(x) is CpuDevice and x.name == "probe"]
    finally:
        gc.enable()
    assert plan.spilled and not left and not plan.known


def test_the_process_is_looked_at_behind_every_batch(tmp_path, monkeypatch):
    """What it may have is what is planned, less what layers take; each look says from where on the next is worth it.
    Before a pass it is that less what the pass takes from its beginning."""
    looks, coming, make = [], [], Executor._allocate

    def allocate(made, p):
        before = sum(device.arena for device in made.devices) + made.host._staging
        found = [x for x in p.before if isinstance(x, moves.Place)]
        placed = sum(made.host[x.name].nbytes for x in found if x.where == "host")
        placed += sum(device.buffer(x.name).nbytes for x in found if x.where != "host" for device in made.devices)
        make(made, p)
        coming.append(sum(device.arena for device in made.devices) + made.host._staging - before + placed)

    monkeypatch.setattr(executor, "trim_beyond", lambda most: looks.append(most) or most + 1)
    with on_disk(tmp_path) as spills:
        trainer = build(**spills)
        monkeypatch.setattr(Executor, "_allocate", allocate)  # the probes have been
        trainer.train_epoch()
    plan = trainer.plan
    assert plan.spilled and plan.resident
    passes = (*plan.program.setup, *plan.program.train)
    most = host.needed(plan, has_devices=True) - max(plan.workspace.values()) + host.PROCESS - host.ON_THEIR_WAY
    most -= sum(array.nbytes for array in plan.arrays() if is_mapped(array))
    expected = []
    for p, taken in zip(passes, coming, strict=True):
        expected += [most - taken, *(most + k for k in range(len(p.order) + p.ahead))]
    assert looks == expected and max(coming) > 0


def test_bad_uses_are_refused_before_any_work(tmp_path, monkeypatch):
    for options, words in (
        ({"spill": tmp_path}, "spill: nothing says what fits; give host_memory"),
        ({"host_memory": "1GiB", "device_memory": None}, "give device_memory"),
        ({"host_memory": "1GiB", "spill": __file__}, "test_spill.py: not a writable directory"),
        ({"host_memory": "much"}, "host_memory 'much'"),
        ({"host_memory": 1.5}, "host_memory 1.5: .*1.5GB; a number alone is bytes$"),
        ({"host_memory": "50%"}, "host_memory '50%': .*; only device_memory .* may be a percentage"),
        ({"device_memory": "0%"}, "device_memory '0%': expected a percentage"),
        ({"host_memory": "1GiB", "spill": ""}, "spill: found '', expected the path of a directory"),
        ({"host_memory": "1GiB", "spill": "long" * 99}, r"not a writable directory \(File name too long\)"),
        ({"host_memory": "1KiB"}, r"give more \(a spill directory alone would not do\)$"),
        ({"host_memory": "1KiB", "spill": tmp_path}, "give more$"),
    ):
        with pytest.raises(InputError, match=words):
            build(**options)
    limit = kept(build().plan.peak_bytes) - 1
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(InputError, match=r"the run takes \d+ bytes there, 10 are free"):
        build(host_memory=limit, spill=tmp_path)


def test_a_directory_in_memory_is_warned_of(tmp_path, monkeypatch):
    (tmp_path / "mounts").write_text(f"/dev/x / ext4 rw 0 0\ntmpfs {tmp_path} tmpfs rw 0 0\n")
    monkeypatch.setattr("hongtu.host.MOUNTS", tmp_path / "mounts")
    with pytest.warns(UserWarning, match="this file system is memory"):
        build(host_memory="1GiB", spill=tmp_path)


def test_passes_hold_less_than_the_peaks_of_all(tmp_path, held):
    """Host and devices are at their highest in different passes."""
    _, spilling = pair(SIX[0], (1, 4), tmp_path)
    held.clear()
    spilling.train_epoch(), spilling.evaluate()
    plan = spilling.plan
    apart = sum((plan.host_bytes | plan.device_bytes).values())
    assert max(held) <= host.needed(plan, has_devices=True) < apart
