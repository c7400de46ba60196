"""Waits that follow from what operations do to every row, beside those of programs, which follow from parts."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest

from hongtu.plan.program import moves
from tests.ledger.by_hand import Order
from tests.ledger.lower import Placed
from tests.ledger.plans import PLANS, lowered
from tests.ledger.streams import placed_waits, unordered, waits

DERIVED = 4  # waits of a pass that are left out
WAITING = (  # together they have all that programs may have
    "a rank, staged", "spilled, but the features", "spilled, but the features, staged",
    "drawn, a slot is filled while a peer may pull",
)  # fmt: skip
KINDS = 16 + 2  # and two that are in no program: before the host adds, and when a pass ends


@functools.cache
def pairs_of(name):
    return [waits(one.ops, staged=one.staged) for one in lowered(name)]


def why(x):
    """Which wait it is."""
    return *(getattr(x.wait, part, "") for part in ("verb", "stream", "other", "event")), x.wait.why


def placed(one):
    return Counter(why(x) for x in one.entries if isinstance(x, Placed) and not isinstance(x.wait, moves.Signal))


@pytest.mark.parametrize("name", PLANS)
def test_waits_of_programs_order_all_that_follows(name):
    for one, (pairs, _) in zip(lowered(name), pairs_of(name), strict=True):
        assert not len(Order(one).unordered(pairs)), one.p.name


def test_every_wait_of_a_program_follows():
    """Without it some plan has operations in no order that what they read and write puts in one."""
    there, follows = set(), set()
    for name in WAITING:
        for one, (pairs, _) in zip(lowered(name), pairs_of(name), strict=True):
            for wait in placed(one):
                there.add(wait)
                if wait not in follows and len(Order(one, lambda x, wait=wait: why(x) != wait).unordered(pairs)):
                    follows.add(wait)
    assert there == follows and len(there) == KINDS, there ^ follows


@pytest.mark.parametrize("name", PLANS)
def test_derived_waits_order_everything_and_none_is_too_many(name):
    rng = np.random.default_rng(len(name))
    for one, (pairs, _) in zip(lowered(name), pairs_of(name), strict=True):
        found = placed_waits(one.ops, pairs, staged=one.staged)
        assert unordered(one.ops, pairs, found, staged=one.staged) == []
        for k in rng.permutation(len(found))[:DERIVED]:
            assert found[k] in unordered(one.ops, pairs, found[:k] + found[k + 1 :], staged=one.staged)


@pytest.mark.parametrize("name", ["full, four devices", "in a budget, staged", "spilled, four devices", "one device"])
def test_adds_that_race_are_those_that_are_atomic(name):
    found = set()
    for one, (_, adding) in zip(lowered(name), pairs_of(name), strict=True):
        racing = {(one.batches[j], one.ops[j].dst.space.number) for j, _ in Order(one).unordered(adding).tolist()}
        pushes = [x for x in one.p.body if x.verb == "push"]
        assert racing == {pair for x in pushes for pair in x.dst.rows.picks.contended}
        found |= racing
    assert found or name == "one device"
