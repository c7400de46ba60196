"""The cache plan by itself: which gaps stay, which rows move, which slot each has; by hand and against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hongtu.errors import BudgetError
from hongtu.graph.topology import build_topology
from hongtu.plan.cache import gaps, intervals, reuse
from hongtu.plan.cache.lookahead import count_lookahead, lookahead_intervals
from hongtu.plan.cache.transfer import batch_limits, count_transfers, plan_resident, plan_transfers
from hongtu.plan.cache.writers import NEVER, direct_times, flush_times
from hongtu.plan.passes.definition import Pass
from hongtu.plan.program.rows import Picks
from tests import tiny

SCHEDULE = np.tile(np.arange(2, dtype=np.int32), (2, 1))
IN_TURN = np.arange(4, dtype=np.int32)[None]  # one device, four batches


def requests(*batches):
    """start, row of rows by batch."""
    return np.append(0, np.cumsum([len(rows) for rows in batches])), np.array(
        list(itertools.chain(*batches)), dtype=np.int32
    )


def rows_by_batch(found):
    return [found.row[a:b].tolist() for a, b in itertools.pairwise(found.start.tolist())]


def table(found):
    """(row, slot, first, last) of every interval, and (peer, peer_slot) where it mirrors."""
    columns = [found.row, found.slot, found.first, found.last]
    if len(found.peer):
        columns += [found.peer, found.peer_slot]
    return list(zip(*(column.tolist() for column in columns), strict=True))


# ------------------------------------------------------------------------------------------------------------- requests


def test_what_devices_request():
    zero, one = reuse.uses_of(tiny.topology(), SCHEDULE)
    assert rows_by_batch(zero.own) == [[1, 2], [1, 2]] and rows_by_batch(one.own) == [[4, 5], [4, 5, 6]]
    assert rows_by_batch(zero.mirror) == [[4], [4, 5]] and rows_by_batch(one.mirror) == [[1], [2]]
    assert zero.own.next_use.tolist() == [1, 1, -1, -1] and zero.mirror.next_use.tolist() == [1, -1, -1]
    assert [u.window_rows(0).tolist() for u in (zero, one)] == [[3, 4], [3, 4]]
    assert [u.window_rows(1).tolist() for u in (zero, one)] == [[4, 4], [5, 4]]


def test_requests_follow_the_schedule():
    swapped = np.array([[1, 0], [0, 1]], dtype=np.int32)
    zero, one = reuse.uses_of(tiny.topology(), swapped)
    assert rows_by_batch(zero.own) == [[1], [1, 2]] and rows_by_batch(one.own) == [[4, 5], [4, 5, 6]]
    assert rows_by_batch(reuse.neighbour_requests(tiny.topology(), swapped, 0)) == [[1, 4, 5], [1, 2, 4]]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_rows_of_a_window(prefetch):
    rng = np.random.default_rng(prefetch)
    for _ in range(50):
        batches = [sorted(rng.choice(9, rng.integers(0, 6), replace=False).tolist()) for _ in range(6)]
        uses = reuse.Uses(*(reuse.Requests(9, *requests(*each)) for each in (batches, [[]] * 6)))
        expected = [len(set().union(*batches[b : b + prefetch + 1])) for b in range(6)]
        assert uses.window_rows(prefetch).tolist() == expected


def test_the_next_use_of_a_row_is_in_a_later_batch():
    start, row = requests([3, 7], [7], [3], [3, 7])
    assert intervals.next_uses(start, row, 8).tolist() == [2, 1, 3, 3, -1, -1]


# ----------------------------------------------------------------------------------------------------------------- gaps


def test_gaps_are_counted_by_their_ends():
    start, next_use = np.array([0, 4, 6, 7]), np.array([2, 1, 2, -1, 2, 2, -1], dtype=np.int32)
    found = gaps.count_gaps(start, next_use, gaps.ALL)
    assert [x.tolist() for x in found] == [[0, 2, 3, 3], [1, 2, 2], [1, 2, 2]]
    found = gaps.count_gaps(start, next_use, np.array([True, False, False, True, True, True, True]))
    assert [x.tolist() for x in found] == [[0, 1, 2, 2], [2, 2], [1, 2]]


def test_two_kinds_of_gaps_in_one_list():
    one = gaps.Gaps(np.array([0, 1, 1]), np.array([2], np.int32), np.array([5], np.int32))
    other = gaps.Gaps(np.array([0, 2, 3]), np.array([1, 2, 2], np.int32), np.array([6, 7, 8], np.int32))
    merged, at = gaps.merge_gaps(one, other)
    assert [x.tolist() for x in merged] == [[0, 3, 4], [2, 1, 2, 2], [5, 6, 7, 8]] and at.tolist() == [0]


def test_the_gap_that_ends_last_is_dropped():
    """From batch 0: two gaps to 2, two to 3, one to 1, which costs nothing; room for 3 in batch 1 and 1 in batch 2."""
    found = gaps.Gaps(np.array([0, 3, 3, 3, 3]), np.array([2, 3, 1], np.int32), np.array([2, 2, 1], np.int32))
    kept = gaps.choose_gaps(found, np.array([9, 3, 1, 9]), 0)
    assert kept.tolist() == [2, 1, 1] and gaps.gap_slots(found, kept, 0).tolist() == [0, 3, 1, 0]
    assert gaps.choose_gaps(found, np.array([9, 3, 0, 9]), 0).tolist() == [2, 0, 1]
    assert gaps.choose_gaps(found, np.array([9, 1, 1, 9]), 0).tolist() == [1, 0, 1]
    # brought a batch ahead, a gap to 2 takes no slot, one to 3 takes batch 1 only
    kept = gaps.choose_gaps(found, np.array([9, 1, 0, 9]), 1)
    assert kept.tolist() == [2, 1, 1] and gaps.gap_slots(found, kept, 1).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_no_choice_of_gaps_keeps_more(prefetch):
    rng, dropping = np.random.default_rng(prefetch), 0
    for _ in range(80):
        batches = int(rng.integers(2, 7))
        pairs = [pair for pair in itertools.combinations(range(batches), 2) if rng.random() < 0.5][:5]
        number = rng.integers(1, 4, len(pairs)).astype(np.int32)
        start = np.searchsorted([j for j, _ in pairs], np.arange(batches + 1))
        found = gaps.Gaps(start, np.array([k for _, k in pairs], dtype=np.int32), number)
        room = rng.integers(0, 4, batches)
        kept = gaps.choose_gaps(found, room, prefetch)

        def taken(choice, pairs=pairs, batches=batches):
            spans = [((j + 1, k - prefetch), n) for (j, k), n in zip(pairs, choice, strict=True)]
            return [sum(n for (lo, hi), n in spans if lo <= t < hi) for t in range(batches)]

        fits = [c for c in itertools.product(*(range(n + 1) for n in number)) if np.all(taken(c) <= room)]
        assert tuple(kept) in fits and sum(kept) == max(map(sum, fits))
        assert gaps.gap_slots(found, kept, prefetch).tolist() == taken(kept)
        dropping += sum(kept) < sum(number)
    assert dropping > 10


def test_of_alike_gaps_the_first_stay():
    start, next_use = np.array([0, 3, 4]), np.array([1, 1, 1, -1], dtype=np.int32)
    found = gaps.count_gaps(start, next_use, gaps.ALL)
    kept = np.array([2], dtype=np.int32)
    assert gaps.bridged(start, next_use, gaps.ALL, found, kept).tolist() == [True, True, False, False]
    allowed = np.array([False, True, True, True])
    assert gaps.bridged(start, next_use, allowed, found, kept).tolist() == [False, True, True, False]


# ------------------------------------------------------------------------------------------------------------ intervals


def test_intervals_end_where_a_row_is_not_kept():
    start, row = requests([3, 7], [3], [3, 7])
    columns = intervals.chain(start, row, np.array([True, False, False, True, True]), 8)
    assert [c.tolist() for c in columns] == [[3, 7, 3, 7], [0, 0, 2, 2], [1, 0, 2, 2]]


def test_a_slot_is_free_from_the_batch_after_its_last():
    first, last = np.array([0, 0, 1, 2, 2]), np.array([1, 0, 2, 2, 3])
    slot, capacity = intervals.assign_slots(first, last, 4)
    assert slot.tolist() == [0, 1, 1, 0, 2] and capacity == 3


def test_what_opens_and_retires():
    row, slot, first, last = (np.array(x, dtype=np.int32) for x in ([5, 6, 7], [0, 1, 2], [0, 0, 2], [2, 0, 2]))
    found = intervals.make_intervals(row, slot, first, last, 3)
    assert [found.opening(b) for b in range(3)] == [slice(0, 2), slice(2, 2), slice(2, 3)]
    assert [found.retiring(b).tolist() for b in range(3)] == [[1], [], [0, 2]]
    assert not len(found.peer) and not len(found.peer_slot) and len(found) == 3


def test_mirrors_that_retire_together_are_sorted_by_peer():
    row, slot, first, last, peer = (
        np.array(x, np.int32) for x in ([5, 6, 7], [0, 1, 2], [0, 0, 0], [1, 1, 0], [2, 0, 0])
    )
    found = intervals.make_intervals(row, slot, first, last, 2, peer, slot)
    assert [found.retiring(b).tolist() for b in range(2)] == [[2], [1, 0]]


# ------------------------------------------------------------------------------------------------------- transfer plans


def test_without_deduplication_every_chunk_loads_its_neighbour_set():
    zero, one = plan_transfers(tiny.topology(), SCHEDULE, "none").devices
    assert table(zero.loads) == [(1, 0, 0, 0), (2, 1, 0, 0), (4, 2, 0, 0), (1, 2, 1, 1), (4, 1, 1, 1), (5, 0, 1, 1)]
    assert [len(one.loads), zero.capacity, one.capacity, len(zero.pulls), len(one.pulls)] == [5, 3, 3, 0, 0]
    assert zero.slots(0).tolist() == [0, 1, 2] and zero.slots(1).tolist() == [2, 1, 0]


def test_with_deduplication_owners_load_and_mirrors_pull():
    plan = plan_transfers(tiny.topology(), SCHEDULE, "p2p")
    zero, one = plan.devices
    assert [(row, first, last) for row, _, first, last in table(zero.loads)] == [
        (1, 0, 0), (2, 0, 0), (1, 1, 1), (2, 1, 1),
    ]  # fmt: skip
    assert [len(one.loads), len(zero.pulls), len(one.pulls)] == [5, 3, 2]
    assert (plan.rows_loaded, plan.rows_pulled) == (9, 5)


@pytest.mark.parametrize("reuse", ["paper", "lookahead"])
def test_with_reuse_rows_stay(reuse):
    """Row 1 has slot 0 of device 0 and row 2 its slot 1, in both batches; slot 2 of device 1 goes from row 1 to 6."""
    zero, one = plan_transfers(tiny.topology(), SCHEDULE, reuse).devices
    assert table(zero.loads) == [(1, 0, 0, 1), (2, 1, 0, 1)]
    assert table(one.loads) == [(4, 0, 0, 1), (5, 1, 0, 1), (6, 2, 1, 1)]
    assert table(zero.pulls) == [(4, 2, 0, 1, 1, 0), (5, 3, 1, 1, 1, 1)]
    assert table(one.pulls) == [(1, 2, 0, 0, 0, 0), (2, 3, 1, 1, 0, 1)]
    assert (zero.capacity, one.capacity) == (4, 4)
    assert [zero.slots(b).tolist() for b in (0, 1)] == [[0, 1, 2], [0, 2, 3]]
    assert [one.slots(b).tolist() for b in (0, 1)] == [[2, 1], [3, 1, 2]]


def test_a_row_that_is_brought_ahead_takes_its_slot_ahead():
    _, one = plan_transfers(tiny.topology(), SCHEDULE, "paper", prefetch=1).devices
    assert table(one.loads) == [(4, 0, 0, 1), (5, 1, 0, 1), (6, 2, 1, 1)]
    assert table(one.pulls) == [(1, 3, 0, 0, 0, 0), (2, 4, 1, 1, 0, 1)] and one.capacity == 5


@pytest.mark.parametrize("capacity, loads", [(3, 6), (4, 5), (None, 5)])
def test_the_row_whose_next_use_is_farthest_goes(capacity, loads):
    """Row 2 is read in batches 0 and 3, others sooner again; three rows are needed in batch 1."""
    topology = tiny.topology(1, 4)
    (device,) = plan_transfers(topology, IN_TURN, "lookahead", capacity).devices
    assert len(device.loads) == loads and device.loads.row.tolist().count(2) == loads - 4
    assert [len(d.loads) for d in count_transfers(topology, IN_TURN, capacity and [capacity], 0, 0.0).devices] == [
        loads
    ]


def test_a_batch_that_does_not_fit_is_named():
    with pytest.raises(BudgetError, match="device 0, batch 0: its rows need 3 cache slots, there are 2"):
        plan_transfers(tiny.topology(1, 4), IN_TURN, "lookahead", 2)
    with pytest.raises(BudgetError, match="device 1, batch 1: its rows need 4 cache slots, there are 3"):
        plan_transfers(tiny.topology(), SCHEDULE, "lookahead", [4, 3])


def belady(batches, capacity):
    """Rows that are loaded if whatever is not needed now makes room, the one whose next use is farthest first."""
    cache, loads = set(), 0
    for b, rows in enumerate(batches):
        loads += len(set(rows) - cache)
        cache |= set(rows)

        def next_use(row, b=b):
            return next((k for k in range(b + 1, len(batches)) if row in batches[k]), len(batches))

        while len(cache) > capacity:
            cache.remove(max(cache - set(rows), key=next_use))
    return loads


def random_batches(rng, vertices=12):
    """A graph whose chunk b is vertex b alone, which reads the rows of batch b."""
    batches = [sorted(rng.choice(vertices, rng.integers(1, 6), replace=False).tolist()) for _ in range(vertices)]
    start, source = requests(*batches)
    return batches, build_topology(1, np.arange(vertices + 1), start, source)


def test_loads_are_beladys():
    rng, evicting = np.random.default_rng(0), 0
    for _ in range(100):
        batches, topology = random_batches(rng)
        order = rng.permutation(len(batches)).astype(np.int32)[None]
        capacity = max(map(len, batches)) + int(rng.integers(0, 4))
        expected = belady([batches[b] for b in order[0]], capacity)
        plan = plan_transfers(topology, order, "lookahead", capacity)
        assert plan.rows_loaded == expected and plan.devices[0].capacity <= capacity
        evicting += expected > len(set().union(*batches))
    assert evicting > 50


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_counted_rows_are_the_planned(prefetch):
    """On one device exactly; on several, mirrors may find less than was counted."""
    rng = np.random.default_rng(prefetch)
    for _ in range(40):
        _, topology = random_batches(rng)
        order = topology.input_order
        limit = batch_limits(topology, order, "lookahead", prefetch)[0]
        capacity = limit.slots + int(rng.integers(0, 3))
        plan = plan_transfers(topology, order, "lookahead", capacity, prefetch)
        assert count_lookahead(topology, order, capacity, prefetch) == [(plan.rows_loaded, 0)]
        assert plan.devices[0].capacity <= capacity


def test_mirrors_stay_only_where_their_owner_does():
    """Vertices 0 and 1 belong to device 0, vertex 2 to device 1, which reads row 0 in batches 0 and 2. Device 0 reads
    row 1 in batch 1: with one slot it lets row 0 go."""
    start, source = requests([], [], [], [1], [], [], [], [0], [], [0])
    chunk_start = np.array([0, 3, 4, 6, 8, 9, 10])
    topology = build_topology(2, chunk_start, start, source)
    order = topology.input_order
    owners, mirrors = lookahead_intervals(topology, order, [1, 3])
    assert [c.tolist() for c in owners[0]] == [[0, 1, 0], [0, 1, 2], [0, 1, 2]]
    assert [c.tolist() for c in mirrors[1]] == [[0, 0], [0, 2], [0, 2]]
    owners, mirrors = lookahead_intervals(topology, order, [2, 3])
    assert [c.tolist() for c in owners[0]] == [[0, 1], [0, 1], [2, 1]]
    assert [c.tolist() for c in mirrors[1]] == [[0], [0], [2]]


@pytest.mark.parametrize(
    "reuse, prefetch, expected",
    [
        ("none", 0, [(3, 0, 3), (3, 0, 3)]), ("none", 1, [(3, 0, 6), (3, 0, 5)]),
        ("p2p", 0, [(2, 2, 4), (3, 1, 4)]), ("p2p", 1, [(2, 2, 7), (3, 1, 7)]),
        ("paper", 0, [(2, 2, 4), (3, 1, 4)]), ("lookahead", 1, [(2, 2, 4), (3, 1, 5)]),
    ],
)  # fmt: skip
def test_the_most_that_a_batch_requests(reuse, prefetch, expected):
    limits = batch_limits(tiny.topology(), SCHEDULE, reuse, prefetch)
    assert [(limit.loads, limit.pulls, limit.slots) for limit in limits] == expected


def test_where_rows_stay_slots_are_rows_of_the_partition_and_mirrors_come_behind():
    plan = plan_resident(tiny.topology(), SCHEDULE)
    zero, one = plan.devices
    assert plan.rows_loaded == 0
    assert table(zero.pulls) == [(4, 4, 0, 1, 1, 0), (5, 5, 1, 1, 1, 1)] and zero.capacity == 6
    assert table(one.pulls) == [(1, 4, 0, 0, 0, 1), (2, 4, 1, 1, 0, 2)] and one.capacity == 5
    assert [zero.slots(b).tolist() for b in (0, 1)] == [[1, 2, 4], [1, 4, 5]]
    assert [one.slots(b).tolist() for b in (0, 1)] == [[4, 1], [4, 1, 2]]
    ahead = plan_resident(tiny.topology(), SCHEDULE, prefetch=1).devices[1]
    assert ahead.pulls.slot.tolist() == [4, 5] and ahead.capacity == 6


# -------------------------------------------------------------------------------------------------------------- writers


@pytest.mark.parametrize("direction", ["backward", "fused"])
def test_writers_are_ordered_by_batch_then_chunks_then_flushes_by_device(direction):
    """Three moments in each batch: the chunks' own rows, the flush of device 0, that of device 1."""
    topology = tiny.topology()
    p = Pass(direction=direction, layer=1, stage=2, flush="grad z1", direct=("grad z1",))
    transfers = plan_transfers(topology, SCHEDULE, "paper")
    chunks, flushes = direct_times(p, topology, SCHEDULE), [t.tolist() for t in flush_times(p, transfers)]
    if direction == "backward":  # begins with batch 1; a row is flushed after its first batch
        assert chunks.tolist() == [3, 3, 0, 0, 3, 3, 0, 0] and flushes == [[4, 4], [5, 5, 2]]
    else:
        assert chunks.tolist() == [0, 0, 3, 3, 0, 0, 3, 3] and flushes == [[4, 4], [5, 5, 5]]


def test_vertices_that_a_pass_leaves_out_never_write():
    wanted = np.arange(8) % 2 == 1
    p = Pass(direction="backward", layer=1, stage=2, flush="grad z1", direct=("grad z1",))
    times = direct_times(p, tiny.topology().pruned(wanted), SCHEDULE)
    assert times.tolist() == [NEVER, 3, NEVER, 0, NEVER, 3, NEVER, 0]


def test_devices_visit_their_peers_in_turn():
    """Device i begins with device i + 1: every device is visited by one other at a time."""
    m = 4
    everyone = np.arange(m, dtype=np.int64)
    source = np.tile(everyone, m)  # every vertex reads every vertex
    topology = build_topology(m, np.arange(m + 1), np.arange(0, m * m + 1, m), source)
    plan = plan_transfers(topology, np.zeros((m, 1), np.int32), "paper")
    picks = Picks(plan.devices, mirrors=True, retiring=False)
    visits = [[peer for peer, _ in picks.by_peer(i, 0)] for i in range(m)]
    assert visits == [[1, 2, 3], [2, 3, 0], [3, 0, 1], [0, 1, 2]]
    for i in range(m):
        rows = np.concatenate([picks.column("row", i, 0)[part] for _, part in picks.by_peer(i, 0)])
        assert sorted(rows) == [v for v in range(m) if v != i]
