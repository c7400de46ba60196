"""Programs of two-layer models on eight vertices, written down by hand: what each batch runs, with which operands."""

from __future__ import annotations

import textwrap
from dataclasses import fields, replace

import numpy as np
import pytest

from hongtu.plan.passes.definition import FEATURES, gradient
from hongtu.plan.passes.strategy import Choice
from hongtu.plan.program import moves
from hongtu.plan.program.compile import compile_plan
from hongtu.plan.program.listing import ARRAYS
from hongtu.plan.program.moves import Call, Copy
from hongtu.plan.program.ref import Stores
from hongtu.plan.program.rows import FRONT, Picked
from tests import tiny
from tests.checker.check import check_program
from tests.tiny import named

V = tiny.V
FULL, PAPER = "full", "paper"


def program_of(shape, strategy, choice=None):
    program = compile_plan(tiny.plan(shape, strategy, choice))
    check_program(program)
    return program


def line(x):
    """The verb, then operands that are words: names, lists of names, switches that are on."""
    words = [x.verb]
    if isinstance(x, Copy):
        to = x.dst.tensor if x.dst.rows is FRONT else x.dst
        source = x.src.rows.column if x.src.where == "plan" and isinstance(x.src.rows, Picked) else x.src
        stored = [isinstance(x.dst.access, Stores) and x.dst.access.where is True, x.in_place]
        said = [word for word, holds in zip(("stores", "in_place"), stored, strict=True) if holds]
        return " ".join(map(str, [*words, to, "<-", source, *said]))
    if isinstance(x, Call):
        takes = [name for name in x.takes if name not in ARRAYS] + [x.at] * (x.at is not None)
        words += [*([] if x.kernel == "write" else x.gives), *["<-", *takes] * bool(takes)]
        words += ["stores"] * (x.at is not None and isinstance(x.at.access, Stores) and x.at.access.where is True)
        drops = [name for name in x.drops if name not in ARRAYS]
        words += [*(k for k, v in x.settings.items() if v is True), *["/", *drops] * bool(drops)]
        return " ".join(str(word or "-") for word in words)
    for field in fields(x):
        value = getattr(x, field.name)
        if value is True or (isinstance(value, Stores) and value.where is True):
            words.append(field.name)
        elif isinstance(value, str) and field.name not in ("why", "link"):
            words.append(value)
        elif isinstance(value, tuple) and value and all(v is None or isinstance(v, str) for v in value):
            words.append(",".join(str(v or "-") for v in value))
    return " ".join(words)


def picks_of(p):
    return {x.dst.tensor: x.src.rows.picks for x in copies(p, "topology") if isinstance(x.src.rows, Picked)}


def copies(p, link):
    return [x for x in p.body if isinstance(x, Copy) and x.link == link]


def text(body):
    """A line for each instruction; of ``compute``, its body behind it, indented."""
    lines = []
    for x in body:
        lines.append(line(x))
        lines += ["  " + line(y) for y in x.body] if isinstance(x, moves.Compute) else []
    return "\n".join(lines)


def check(found, expected):
    assert text(found) == textwrap.dedent(expected).strip()


def test_forward_brings_rows_then_the_chunk_then_computes_then_sends():
    check(
        named(program_of(tiny.GCN, PAPER), "forward 0").body,
        """
        topology load_slots <- slot
        topology load_rows <- row
        load cache[load_slots] <- host z0[load_rows]
        topology pull_to <- slot
        topology pull_from <- peer_slot
        pull cache[pull_to] <- peer's cache[pull_from]
        topology ids <- host ids[chunk]
        topology statistics <- host statistics[chunk]
        topology indptr <- graph indptr[chunk]
        topology local_source <- graph local_source[chunk]
        topology slot_of_source <- slot_of_source[chunk]
        topology edge_weight <- graph edge_weight[chunk]
        read z0 <- host z0[chunk]
        compute
          view a <- aggregate[:]
          sum a <- a cache[slot_of_source]
          combine a <- a z0 / z0
          write <- a host a0[chunk] stores
          stage z1 <- a / a
          write <- z1 host z1[chunk] stores / z1
        write host z1[chunk] <- z1[:] stores
        write host a0[chunk] <- a0[:] stores
        """,
    )


def test_backward_zeroes_computes_pushes_sends_and_flushes():
    program = program_of(tiny.GCN, PAPER)
    p = named(program, "backward 1")
    check(
        p.body,
        """
        topology load_slots <- slot
        topology pull_to <- slot
        topology push_from <- slot
        topology push_to <- peer_slot
        topology flush_slots <- slot
        topology ids <- host ids[chunk]
        topology statistics <- host statistics[chunk]
        topology indptr <- graph indptr[chunk]
        topology local_source <- graph local_source[chunk]
        topology slot_of_source <- slot_of_source[chunk]
        topology edge_weight <- graph edge_weight[chunk]
        read a1 <- host a1[chunk]
        read grad output <- host grad output[chunk]
        zero_rows <- gradient_cache[load_slots] stores
        zero_rows <- gradient_cache[pull_to] stores
        compute graph
          enter a1 <- a1
          stage output <- a1 gradients_only / a1 output
          differentiate d a1 <- grad output / grad output
          uncombine d a d s0 <- d a1 / d a1
          transpose_sum <- d a gradient_cache[slot_of_source] / d a
          write <- d s0 host grad z1[chunk] / d s0
        push peer's gradient_cache[push_to] <- gradient_cache[push_from]
        write host grad z1[chunk] <- grad z1[:]
        flush host grad z1[rows] <- gradient_cache[flush_slots]
        """,
    )
    assert p.order == range(1, -1, -1) and named(program, "forward 1").order == range(2)
    # begins with batch 1: the chunks of 2, 3 and of 6, 7 store their rows, and row 6 is then flushed to and adds; then
    # those of 0, 1 and 4, 5; the flushes of rows 1, 2, 4 and 5 come last of all
    (deliver,), (flush,) = copies(p, "write"), copies(p, "flush")
    assert deliver.dst.access.where.tolist() == [True] * 8
    assert [stores.where.any() for stores in flush.dst.access] == [False, False]
    (place,) = (x for x in p.before if isinstance(x, moves.Place))
    assert (place.where, place.rows, place.shape, place.zero.tolist()) == ("host", (V,), (3,), [])
    picks = picks_of(p)
    assert [picks[name].mirrors for name in ("load_slots", "pull_to", "push_from", "flush_slots")] == [
        False,
        True,
        True,
        False,
    ]
    assert [picks[name].retiring for name in ("load_slots", "pull_to", "push_from", "flush_slots")] == [
        True,
        True,
        False,
        False,
    ]
    forward = picks_of(named(program, "forward 1"))
    assert not any(picks.retiring for picks in forward.values())


def test_the_first_writer_of_a_row_stores():
    """Fused: batch by batch in order, so that chunks (0, 0) and (1, 0) store before rows 1, 2, 4 and 5 are flushed
    after their last batch; row 6 of device 1 too; rows 2, 3, 6 and 7 get their own in batch 1."""
    p = named(program_of(tiny.GCN, FULL, Choice(fuse=True)), "fused 1")
    (deliver,) = copies(p, "write")
    assert deliver.dst.access.where.all()
    # without what chunks give themselves, flushes are the first, and what nobody reads is zeroed
    alone = tiny.network(tiny.layer(4, trained=False), tiny.layer(3, combined=False, s=()), constant_layers=1)
    p = named(program_of(alone, FULL, Choice(fuse=True)), "fused 1")
    (flush,), (place,) = copies(p, "flush"), [x for x in p.before if isinstance(x, moves.Place)]
    assert all(stores.where.all() for stores in flush.dst.access) and place.zero.tolist() == [0, 3, 7]
    assert not copies(p, "write")


def test_an_aggregate_that_is_no_sum_gathers_and_gives_gradients_of_all_it_took():
    check(
        next(x for x in named(program_of(tiny.GAT, PAPER), "backward 0").body if isinstance(x, moves.Compute)).body,
        """
        gather z <- cache[slot_of_source]
        enter z z0 s0.1 <- z z0 s0.1
        aggregate a <- z z0 s0.1 graph / z
        stage z1 s1.1 <- a z0 s0.1 gradients_only / z0 s0.1 a z1 s1.1
        differentiate d z d z0 d s0.1 <- grad z1 grad s1.1 / grad z1 grad s1.1
        add_to_cache <- d z gradient_cache[slot_of_source] / d z
        write <- d z0 host grad z0[chunk] / d z0
        write <- d s0.1 host grad s0.1[chunk] stores / d s0.1
        """,
    )


def test_what_stays_is_its_own_cache_and_moves_nowhere():
    resident = frozenset({"z1", gradient("z1")})
    p = named(program_of(tiny.GCN, FULL, Choice(fuse=True, resident=resident)), "fused 1")
    check(
        p.body,
        """
        topology pull_to <- slot
        topology pull_from <- peer_slot
        pull z1[pull_to] <- peer's z1[pull_from]
        topology push_from <- slot
        topology push_to <- peer_slot
        topology ids <- host ids[chunk]
        topology statistics <- host statistics[chunk]
        topology indptr <- graph indptr[chunk]
        topology local_source <- graph local_source[chunk]
        topology slot_of_source <- slot_of_source[chunk]
        topology edge_weight <- graph edge_weight[chunk]
        read labels <- host labels[chunk]
        read loss_bits <- host loss_bits[chunk]
        zero_rows <- grad z1[pull_to] stores
        compute graph
          view z1 <- z1[chunk]
          view a <- aggregate[:]
          sum a <- a z1[slot_of_source]
          combine a <- a z1 / z1
          enter a <- a
          stage output <- a / a
          loss grad output <- output / output
          differentiate d a <- grad output / grad output
          uncombine d a d s0 <- d a
          transpose_sum <- d a grad z1[slot_of_source] / d a
          write <- d s0 grad z1[chunk] / d s0
        push peer's grad z1[push_to] <- grad z1[push_from]
        """,
    )
    (place,) = p.before
    assert (place.name, place.where, place.rows, place.zero) == (gradient("z1"), "device", (6, 5), True)
    assert [(x.name, x.where) for x in p.frees] == [("z1", "device")]


def test_what_is_kept_is_resumed():
    program = program_of(tiny.GCN, FULL, Choice(fuse=True, save=True, resident=frozenset({"a0", "z1", gradient("z1")})))
    check(
        named(program, "forward 0").body,
        """
        topology ids <- host ids[chunk]
        topology statistics <- host statistics[chunk]
        compute graph saves
          view a0 <- a0[chunk]
          copy ids statistics
          stage z1 <- a0 / a0
          write <- z1 z1[chunk] stores holds / z1
          save
        """,
    )
    check(
        named(program, "backward 0").body,
        """
        topology ids <- host ids[chunk]
        topology statistics <- host statistics[chunk]
        compute graph
          view grad z1 <- grad z1[chunk]
          resume
          differentiate <- grad z1 / grad z1
        """,
    )
    last = named(program, "setup 0")
    assert [(x.name, x.where) for x in last.frees] == [("z0", "host"), (FEATURES, "host")]
    assert [x.name for x in last.before] == ["a0"]
    (aggregate,) = (x for x in last.body if isinstance(x, moves.Compute))
    check(
        aggregate.body,
        """
        view a <- aggregate[:]
        sum a <- a cache[slot_of_source]
        combine a <- a z0 / z0
        write <- a a0[chunk] stores / a
        """,
    )


def test_set_up_fills_what_stays():
    resident = frozenset({FEATURES})
    program = program_of(tiny.GAT, FULL, Choice(fuse=True, resident=resident, structure=True))
    first = program.setup[0]
    check(
        first.body,
        """
        topology structure ids[chunk] <- host ids[chunk]
        topology structure indptr[chunk] <- graph indptr[chunk]
        topology structure local_source[chunk] <- graph local_source[chunk]
        topology structure slot_of_source forward 0[chunk] <- slot_of_source[chunk]
        topology structure edge_weight[chunk] <- graph edge_weight[chunk]
        topology structure sources[chunk] <- graph sources[chunk]
        topology structure edge_id_start[chunk] <- host edge_id_start[chunk]
        topology structure slot_of_source fused 1[chunk] <- slot_of_source[chunk]
        topology structure slot_of_source backward 0[chunk] <- slot_of_source[chunk]
        topology structure slot_of_source evaluate 0[chunk] <- slot_of_source[chunk]
        topology structure slot_of_source evaluate 1[chunk] <- slot_of_source[chunk]
        read features[chunk] <- host features[chunk] stores
        """,
    )
    rows = {x.name: x.rows for x in first.before}
    assert rows["structure ids"] == rows[FEATURES] == (4, 4) and rows["structure indptr"] == (6, 6)
    assert rows["structure local_source"] == (6, 5) and rows["structure sources"] == (6, 5)
    start = {x.dst.tensor: [s.tolist() for s in x.dst.rows.start] for x in first.body}
    assert start[FEATURES] == [[0, 2, 4], [0, 2, 4]] and start["structure sources"] == [[0, 3, 6], [0, 2, 5]]
    assert [(x.name, x.where) for x in first.frees] == [(FEATURES, "host")]


PACKED = """
    ids,indptr,edge_id_start,load_slots,load_rows,pull_to,pull_from,push_from,push_to,flush_slots,local_source,
    slot_of_source,edge_weight,sources
    """
STAGED = """
    wait load sent
    wait dispatch brought
    topology ids <- host ids[chunk]
    topology indptr <- graph indptr[chunk]
    topology edge_id_start <- host edge_id_start[chunk]
    topology load_slots <- slot
    topology load_rows <- row
    topology pull_to <- slot
    topology pull_from <- peer_slot
    topology push_from <- slot
    topology push_to <- peer_slot
    topology flush_slots <- slot
    topology local_source <- graph local_source[chunk]
    topology slot_of_source <- slot_of_source[chunk]
    topology edge_weight <- graph edge_weight[chunk]
    topology sources <- graph sources[chunk]
    ship {packed}
    load cache[load_slots] <- host z1[load_rows]
    meet load
    pull cache[pull_to] <- peer's cache[pull_from]
    read z1 <- host z1[chunk]
    read s1.1 <- host s1.1[chunk]
    read grad output <- host grad output[chunk]
    signal load brought
    wait compute brought
    zero_rows <- gradient_cache[load_slots] stores
    zero_rows <- gradient_cache[pull_to] stores
    compute graph
    meet compute
    push peer's gradient_cache[push_to] <- gradient_cache[push_from]
    meet compute
    follow flush compute
    wait flush added
    write host grad z1[chunk] <- grad z1[:]
    write host grad s1.1[chunk] <- grad s1.1[:] stores
    flush host grad z1[rows] <- gradient_cache[flush_slots]
    signal flush sent
    signal host added
    """


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("sets", [1, 2])
def test_streams_wait_where_memories_differ(sets, scripts):
    p = named(program_of(tiny.GAT, PAPER, Choice(staging=sets, scripts=scripts)), "backward 1")
    found = [line(x) for x in p.body]
    packed = "".join(PACKED.split())
    expected = [each.strip().format(packed=packed) for each in STAGED.strip().splitlines()]
    assert found == [each for each in expected if each != "wait dispatch brought" or not scripts] and p.keeps is scripts
    assert p.sets == sets and all(buffer.sets == sets for buffer in p.staging[0].values())
    plain = named(program_of(tiny.GAT, PAPER), "backward 1")
    kinds = moves.Wait | moves.Signal | moves.Follow | moves.Meet | moves.Ship
    assert not [x for x in plain.body if isinstance(x, kinds)] and plain.sets == 1 and plain.staging == ({}, {})


def test_pruned_chunks_bring_where_their_rows_are():
    train = np.arange(V) == 1  # reads row 4, which reads row 5
    fields_of_loss = (train, train | (np.arange(V) == 4), train | np.isin(np.arange(V), (4, 5)))
    program = program_of(tiny.GAT, FULL, Choice(fuse=True, fields=fields_of_loss))
    p = named(program, "fused 1")
    assert p.view.active.tolist() == [1] and "topology row_in_chunk <- graph row_in_chunk[chunk]" in [
        line(x) for x in p.body
    ]
    assert "topology active <- graph active[chunk]" in [line(x) for x in p.body]
    (place, other) = p.before
    assert place.name == gradient("z1") and place.zero.tolist() == [] and other.zero.tolist() == [4]
    (flush,) = copies(p, "flush")
    assert flush.dst.rows.picks.table(1).row.tolist() == [4]
    assert [stores.where.tolist() for stores in flush.dst.access] == [[], [True]]


def test_a_tensor_that_another_pass_made_is_added_to():
    """The last stage takes the features: their gradient is made there, and stage 0 adds to it."""
    program = program_of(replace(tiny.GAT, takes=((), (), (-1,))), PAPER)
    found = {}
    for name in ("backward 1", "backward stage 0"):
        (deliver,) = (x for x in copies(named(program, name), "write") if x.dst.tensor == gradient(FEATURES))
        found[name] = deliver.dst.access.where
    assert found == {"backward 1": True, "backward stage 0": False}
