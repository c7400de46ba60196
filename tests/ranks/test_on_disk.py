"""Ranks whose rows lie on a disk, or on the host in bfloat16: the same bits as without, and what the plan predicts."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial

import pytest
import torch

import hongtu
from hongtu.errors import InputError
from hongtu.ranks.share import share_of
from hongtu.ranks.stages import ByLayer
from tests import problems, training
from tests.exact.test_host_dtype import check
from tests.exact.test_spill import build, check_same, kept
from tests.models import SIX, H, Model
from tests.ranks.turns import run_ranks
from tests.staged import everything, on_disk

DEPENDENCIES = ("cache", "comm", "hybrid")
OUTSIDE = {"strategy": hongtu.Strategy(resident=False), "device_memory": "64KiB"}  # nothing stays on a device
DEEP = Model("deep", lambda f, c: [hongtu.nn.SAGEConv(f, H), hongtu.nn.GCNConv(H, H), hongtu.nn.GATConv(H, c)], None)


@pytest.mark.long
@pytest.mark.most(6)
@pytest.mark.parametrize("left", (0, 2))
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32))
@pytest.mark.parametrize("dependencies", DEPENDENCIES)
@pytest.mark.parametrize("model", (SIX[1], SIX[4], DEEP), ids=repr)
def test_rows_on_a_disk_change_no_bit(model, dependencies, dtype, left, tmp_path):
    def work(group, spills):
        options = OUTSIDE | {"ranks": group, "dependencies": dependencies, "dtype": dtype}
        free, spilling = (
            training.make_trainer(model, problems.awkward(), (4, 3), **options, **beside) for beside in ({}, spills)
        )
        record = check_same(free, spilling, epochs=2)
        plan = spilling.plan
        assert plan.spilled and record.bytes["disk"] > 0
        assert not plan.spilled.keys() & {p.exchange for p in plan.passes.every if plan.crossings.fetched(p)}

    def fit(plan, limit):
        return everything(plan, limit, kept=min(left, plan.topology.chunks - 1))

    with on_disk(tmp_path, fit) as spills:
        run_ranks(2, partial(work, spills=spills))


def test_the_rows_of_replicas_are_read_where_the_artifact_has_them():
    artifact = problems.prepare(problems.awkward(), 4, 3)
    share = share_of(artifact, 1, [0, 2, 4], ByLayer(2, 2))
    for first, end in ((0, len(share.rows)), (3, 9), (5, 5)):
        found = [vertex for lo, hi in share.spans(first, end) for vertex in range(lo, hi)]
        assert found == share.rows[first:end].tolist()
    assert artifact.spans(3, 9) == [(3, 9)]


def test_every_rank_has_the_limit_for_itself(tmp_path):
    """The least that both need with a disk, which is less than without."""

    def work(group):
        options = {"ranks": group, "dependencies": "comm"}
        free = build(**options)
        with pytest.raises(InputError, match="host_memory is 1 bytes") as refused:
            build(host_memory=1, spill=tmp_path, **options)
        needed = int(re.search(r"needs (\d+)", str(refused.value))[1])
        assert needed < kept(free.plan.peak_bytes)
        spilling = build(host_memory=max(group.gather(needed)), spill=tmp_path, **options)
        expected, record = free.train_epoch(), spilling.train_epoch()
        training.assert_counted(spilling, record)
        assert record.loss == pytest.approx(expected.loss, rel=1e-6)  # chunks may be others: float32 rows, other sums
        assert needed < max(group.gather(needed)) or spilling.plan.spilled

    run_ranks(2, work)


@pytest.mark.long
@pytest.mark.most(5)
@pytest.mark.parametrize("spills", (False, True))
@pytest.mark.parametrize("dependencies", DEPENDENCIES)
@pytest.mark.parametrize("model", (SIX[0], SIX[4], DEEP), ids=repr)
def test_bfloat16_rows_cross_in_half_the_bytes(model, dependencies, spills, tmp_path):
    def work(group, beside):
        options = OUTSIDE | beside | {"dtype": torch.float32, "ranks": group, "dependencies": dependencies}
        exact, narrow = (
            training.make_trainer(model, problems.awkward(), (4, 3), **options, **dtypes)
            for dtypes in ({}, dict.fromkeys(("host_dtype", "gradient_dtype"), "bf16"))
        )
        expected, record = check(exact, narrow, epochs=2)
        if dependencies == "hybrid":  # what is fetched goes by its bytes
            return
        assert record.rows["fetch"] == expected.rows["fetch"]
        assert record.bytes["fetch"] == expected.bytes["fetch"] / 2
        assert record.bytes["send"] == expected.bytes["send"] / 2

    with on_disk(tmp_path) if spills else nullcontext({}) as beside:
        run_ranks(2, partial(work, beside=beside))
