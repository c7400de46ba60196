"""Which writer of a gradient row stores and which add: replayed write by write on memory of NaN."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hongtu.plan.cache.transfer import plan_transfers
from hongtu.plan.cache.writers import find_writers
from hongtu.plan.passes.definition import Pass
from tests.plan.test_transfer_plan import random_case

NAME = "grad z1"


def make_case(rng, direction, *, direct, prune):
    """(pass, chunks, order, transfers) of a random graph; the pass flushes, and gives chunks' own rows if it shall."""
    topology, schedule, _ = random_case(rng, 30, 6)
    if prune:
        topology = topology.pruned(rng.random(topology.num_vertices) < 0.6)
    reuse = str(rng.choice(["none", "p2p", "paper", "lookahead"]))
    p = Pass(direction=direction, layer=1, stage=2, flush=NAME, direct=(NAME,) if direct else (None,))
    return p, topology, schedule, plan_transfers(topology, schedule, reuse)


def replay(p, view, schedule, transfers, writers, rng):
    """(what is in memory in the end, the sum of all that was written), batch by batch, row by row."""
    found, expected = np.full(view.num_vertices, np.nan), np.zeros(view.num_vertices)
    found[writers.unwritten] = 0

    def write(row, stores):
        value = rng.normal()
        expected[row] += value
        found[row] = value if stores else found[row] + value

    batches = range(schedule.shape[1])
    for b in reversed(batches) if p.direction == "backward" else batches:
        for i, j in enumerate(schedule[:, b]):
            chunk = i * view.chunks + int(j)
            active = view.active_rows(chunk)
            own = np.arange(*view.chunk_start[chunk : chunk + 2]) if active is None else active
            for row in own if NAME in p.direct else ():
                write(row, writers.direct is None or writers.direct[row])
        for device, stores in zip(transfers.devices, writers.flush, strict=True):
            loads = device.loads
            for k in np.flatnonzero((loads.first if p.direction == "backward" else loads.last) == b):
                write(loads.row[k], stores[k])
    return found, expected


@pytest.mark.parametrize("prune", [False, True], ids=["whole", "pruned"])
@pytest.mark.parametrize("direct", [False, True], ids=["flush", "both"])
@pytest.mark.parametrize("direction", ["backward", "fused"])
def test_every_row_is_the_sum_of_what_is_written_to_it(direction, direct, prune):
    rng, several = np.random.default_rng(17), 0
    for _ in range(150):
        p, view, schedule, transfers = make_case(rng, direction, direct=direct, prune=prune)
        writers = find_writers(p, NAME, view, schedule, transfers, None)
        found, expected = replay(p, view, schedule, transfers, writers, rng)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        several += sum(int((~stores).sum()) for stores in writers.flush)
        assert (writers.direct is not None) == direct
    assert several > 100


def test_only_rows_that_are_needed_later_are_zeroed():
    rng, counts = np.random.default_rng(1), np.zeros(2, dtype=int)
    for _ in range(50):
        p, view, schedule, transfers = make_case(rng, "backward", direct=False, prune=True)
        every = find_writers(p, NAME, view, schedule, transfers, None).unwritten
        needed = rng.random(view.num_vertices) < 0.5
        some = find_writers(p, NAME, view, schedule, transfers, needed).unwritten
        assert some.tolist() == every[needed[every]].tolist()
        counts += len(some), len(every)
    assert 0 < counts[0] < counts[1]


def test_a_pass_that_only_gives_chunks_own_rows_leaves_out_the_pruned():
    rng = np.random.default_rng(2)
    p, view, schedule, _ = make_case(rng, "backward", direct=True, prune=True)
    p = dataclasses.replace(p, flush=None)
    writers = find_writers(p, NAME, view, schedule, None, None)
    assert writers.flush == () and writers.direct is None
    assert writers.unwritten.tolist() == np.setdiff1d(np.arange(view.num_vertices), view.active).tolist()
