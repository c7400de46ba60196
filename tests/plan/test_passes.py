"""The list of passes of two-layer models, written down by hand: what each exchanges, reads, writes, makes and frees."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hongtu.graph.halo import receptive_field
from hongtu.plan.passes.builder import plan_passes
from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.passes.shapes import Products, StageWork, ValueShape
from hongtu.plan.passes.strategy import get_strategy
from hongtu.plan.search.planner import pays
from tests import tiny
from tests.tiny import GAT, GCN, layer, network

FULL, PAPER, NONE = (get_strategy(name) for name in ("full", "paper", "none"))
OFF = {"fuse": False, "save": False, "prune": False}
WORDS = {
    "exchange": "caches", "flush": "flushes", "inputs": "reads", "gradients": "takes", "written": "writes",
    "creates": "makes", "frees": "frees", "holds": "holds", "moments": "moments of",
}  # fmt: skip
SWITCHES = ("loss", "edge_loss", "saves")


def text(passes):
    """A line for each pass: "forward 1: caches z1; reads z1; writes grad output, a1; ..."."""
    lines = []
    for p in passes:
        parts = []
        for field, word in WORDS.items():
            names = getattr(p, field)
            names = (names,) if isinstance(names, str) else names or ()
            parts += [f"{word} {', '.join(names)}"] if names else []
        parts += [switch.replace("_", " ") for switch in SWITCHES if getattr(p, switch)]
        parts += [] if p.hops is None else [f"hops {p.hops}"]
        lines.append(f"{p.name}: {'; '.join(parts)}")
    return "\n".join(lines)


def check(passes, expected):
    assert text(passes) == "\n".join(line.strip() for line in expected.strip().splitlines())


@pytest.mark.parametrize("strategy", [PAPER, NONE], ids=["paper", "none"])
def test_gcn_as_published(strategy):
    passes = plan_passes(GCN, strategy, **OFF)
    check(
        passes.train,
        """
        forward stage 0: reads features; writes z0; makes z0
        forward 0: caches z0; reads z0; writes z1, a0; makes z1, a0; frees z0
        forward 1: caches z1; reads z1; writes grad output, a1; makes grad output, a1; frees z1; loss
        backward 1: flushes grad z1; reads a1; takes grad output; writes grad z1; makes grad z1; frees a1, grad output
        backward 0: flushes grad z0; reads a0; takes grad z1; writes grad z0; makes grad z0; frees a0, grad z1
        backward stage 0: reads features; takes grad z0; writes grad features; makes grad features; \
frees grad z0, grad features
        """,
    )
    check(
        passes.evaluate,
        """
        evaluate stage 0: reads features; writes z0; makes z0
        evaluate 0: caches z0; reads z0; writes z1; makes z1; frees z0
        evaluate 1: caches z1; reads z1; writes output; makes output; frees z1
        """,
    )
    assert passes.setup == () and passes.pieces == frozenset() and passes.constant == {FEATURES}
    assert passes.on_host == {OUTPUT} and passes.wanted == {FEATURES, "z0", "z1"}
    assert passes.layer_inputs == (("z0", "z0"), ("z1", "z1")) and passes.returned == (("z0",), ("z1",), (OUTPUT,))
    assert [passes.width[name] for name in (FEATURES, "z0", "a0", "z1", "a1", OUTPUT)] == [4, 4, 4, 3, 3, 2]
    assert all(passes.width[gradient(name)] == passes.width[name] for name in (FEATURES, "z0", "z1", OUTPUT))


def test_gat_as_published_brings_its_rows_again_in_backward():
    passes = plan_passes(GAT, PAPER, **OFF)
    check(
        passes.train,
        """
        forward stage 0: reads features; writes z0, s0.1; makes z0, s0.1
        forward 0: caches z0; reads z0, s0.1; writes z1, s1.1; makes z1, s1.1
        forward 1: caches z1; reads z1, s1.1; writes grad output; makes grad output; loss
        backward 1: caches z1; flushes grad z1; reads z1, s1.1; takes grad output; writes grad z1, grad s1.1; \
makes grad z1, grad s1.1; frees z1, s1.1, grad output
        backward 0: caches z0; flushes grad z0; reads z0, s0.1; takes grad z1, grad s1.1; writes grad z0, grad s0.1; \
makes grad z0, grad s0.1; frees z0, s0.1, grad z1, grad s1.1
        backward stage 0: reads features; takes grad z0, grad s0.1; writes grad features; makes grad features; \
frees grad z0, grad s0.1, grad features
        """,
    )
    assert passes.wanted == {FEATURES, "z0", "s0.1", "z1", "s1.1"}
    assert passes.layer_inputs == (("z0", "z0", "s0.1"), ("z1", "z1", "s1.1"))


GCN_FULL = """
    forward 0: reads a0; writes z1; makes z1
    forward 1: caches z1; reads z1; writes grad output, a1; makes grad output, a1; frees z1; loss
    backward 1: flushes grad z1; reads a1; takes grad output; writes grad z1; makes grad z1; frees a1, grad output
    backward 0: reads a0; takes grad z1; frees grad z1
    """


def test_full_computes_the_aggregate_of_the_features_once():
    passes = plan_passes(GCN, FULL, **OFF)
    check(
        passes.setup,
        """
        setup stage 0: reads features; writes z0; makes z0
        setup 0: caches z0; reads z0; writes a0; makes a0; frees z0
        """,
    )
    check(passes.train, GCN_FULL)
    check(
        passes.evaluate,
        """
        evaluate 0: reads a0; writes z1; makes z1
        evaluate 1: caches z1; reads z1; writes output; makes output; frees z1
        """,
    )
    assert passes.constant == {"a0"} and passes.wanted == {"z1"} and passes.on_host == {OUTPUT, FEATURES}


def test_full_computes_the_aggregates_of_several_hops_once():
    hops = network(layer(4, trained=False), layer(4, trained=False), layer(3), constant_layers=2)
    passes = plan_passes(hops, FULL, **OFF)
    check(
        passes.setup,
        """
        setup stage 0: reads features; writes z0; makes z0
        setup 0: caches z0; reads z0; writes z1; makes z1; frees z0
        setup 1: caches z1; reads z1; writes a1; makes a1; frees z1
        """,
    )
    assert [p.name for p in passes.train] == ["forward 1", "forward 2", "backward 2", "backward 1"]
    assert passes.train[0].source == "a1" and passes.constant == {"a1"}


def test_full_without_a_cached_aggregate_has_no_gradient_of_the_features():
    passes = plan_passes(GCN, replace(FULL, cache_input_aggregate=False), **OFF)
    check(
        passes.train,
        """
        forward stage 0: reads features; writes z0; makes z0
        forward 0: caches z0; reads z0; writes z1, a0; makes z1, a0; frees z0
        forward 1: caches z1; reads z1; writes grad output, a1; makes grad output, a1; frees z1; loss
        backward 1: flushes grad z1; reads a1; takes grad output; writes grad z1; makes grad z1; frees a1, grad output
        backward 0: reads a0; takes grad z1; frees a0, grad z1
        """,
    )


def test_fused_last_layers_have_no_checkpoint():
    check(
        plan_passes(GCN, FULL, **OFF | {"fuse": True}).train,
        """
        forward 0: reads a0; writes z1; makes z1
        fused 1: caches z1; flushes grad z1; reads z1; writes grad z1; makes grad z1; frees z1; loss
        backward 0: reads a0; takes grad z1; frees grad z1
        """,
    )
    check(
        plan_passes(GAT, FULL, **OFF | {"fuse": True}).train,
        """
        forward stage 0: reads features; writes z0, s0.1; makes z0, s0.1
        forward 0: caches z0; reads z0, s0.1; writes z1, s1.1; makes z1, s1.1
        fused 1: caches z1; flushes grad z1; reads z1, s1.1; writes grad z1, grad s1.1; makes grad z1, grad s1.1; \
frees z1, s1.1; loss
        backward 0: caches z0; flushes grad z0; reads z0, s0.1; takes grad z1, grad s1.1; writes grad z0, grad s0.1; \
makes grad z0, grad s0.1; frees z0, s0.1, grad z1, grad s1.1
        backward stage 0: reads features; takes grad z0, grad s0.1; frees grad z0, grad s0.1
        """,
    )


def test_what_is_kept_is_not_exchanged_again():
    options = OFF | {"fuse": True, "save": True}
    check(
        plan_passes(GCN, FULL, **options).train,
        """
        forward 0: reads a0; writes z1; makes z1; holds z1; saves
        fused 1: caches z1; flushes grad z1; reads z1; writes grad z1; makes grad z1; loss
        backward 0: takes grad z1; frees grad z1, z1; holds z1; saves
        """,
    )
    passes = plan_passes(GAT, FULL, **options)
    check(
        passes.train,
        """
        forward stage 0: reads features; writes z0, s0.1; makes z0, s0.1; holds z0; saves
        forward 0: caches z0; reads z0, s0.1; writes z1, s1.1; makes z1, s1.1; frees s0.1; holds z1; saves
        fused 1: caches z1; flushes grad z1; reads z1, s1.1; writes grad z1, grad s1.1; makes grad z1, grad s1.1; \
frees s1.1; loss
        backward 0: flushes grad z0; reads z0; takes grad z1, grad s1.1; writes grad z0, grad s0.1; \
makes grad z0, grad s0.1; frees grad z1, grad s1.1, z1; holds z1; saves
        backward stage 0: reads features; takes grad z0, grad s0.1; frees grad z0, grad s0.1, z0; holds z0; saves
        """,
    )
    assert passes.pieces == {"s0.1", "s1.1", "grad s0.1", "grad s1.1"}  # no other chunk reads them
    assert plan_passes(GAT, FULL, **options | {"prune": True}).pieces == frozenset()


@pytest.mark.parametrize("again, keeps", [(30, False), (31, True)])
def test_what_little_work_makes_is_not_kept(again, keeps):
    """An eighth of three times all products: 8 * 30 <= 3 * 80 < 8 * 31."""
    work = (
        StageWork(),
        StageWork(products=Products(60, 1), mapped=Products(60 - again, 1)),
        StageWork(products=Products(20, 1)),
    )
    passes = plan_passes(replace(GCN, stage_work=work), FULL, fuse=True, save=True, prune=False)
    assert [p.saves for p in passes.train] == [keeps, False, keeps]
    assert passes.train[-1].source == (None if keeps else "a0")
    passes = plan_passes(replace(GAT, stage_work=work), FULL, fuse=True, save=True, prune=False)
    assert all(p.saves for p in passes.train if p.direction != "fused")


def test_pruned_passes_compute_as_many_hops_as_there_are_layers_above():
    passes = plan_passes(GAT, PAPER, fuse=False, save=False, prune=True)
    hops = {p.name: p.hops for p in passes.train}
    assert hops == {
        "forward stage 0": 2, "forward 0": 1, "forward 1": 0, "backward 1": 0, "backward 0": 1, "backward stage 0": 2,
    }  # fmt: skip
    assert {p.hops for p in passes.evaluate} == {None}
    passes = plan_passes(GCN, FULL, fuse=True, save=False, prune=True)
    assert [p.hops for p in passes.every] == [None, None, 1, 0, 1, None, None]


NORM = layer(3, combined=False, linear=True, norm=True, uses_statistics=False)
NORMALISED = network(layer(4, trained=False), NORM, layer(3), constant_layers=1)


def test_a_normalisation_reads_its_input_and_gathers_its_moments_before():
    passes = plan_passes(NORMALISED, replace(FULL, cache_input_aggregate=False), **OFF | {"prune": True})
    check(
        passes.train,
        """
        forward stage 0: reads features; writes z0; makes z0
        forward 0: caches z0; reads z0; writes z1, a0; makes z1, a0; frees z0; moments of z1
        forward 1: reads z1; writes z2; makes z2; hops 1
        forward 2: caches z2; reads z2; writes grad output, a2; makes grad output, a2; frees z2; loss; hops 0
        backward 2: flushes grad z2; reads a2; takes grad output; writes grad z2; makes grad z2; \
frees a2, grad output; hops 0
        backward 1: reads z1; takes grad z2; writes grad z1; makes grad z1; frees z1, grad z2; hops 1
        backward 0: reads a0; takes grad z1; frees a0, grad z1; moments of z1
        """,
    )


def test_frozen_layers_get_no_gradients():
    """Where only the second layer is trained, nothing is flushed below it; where nothing gets a gradient, the loss
    still has its backward: the last stage may have parameters."""
    half = network(layer(4, 3, linear=False, trained=False), layer(3, 2, linear=False))
    check(
        plan_passes(half, FULL, **OFF).train[2:],
        """
        forward 1: caches z1; reads z1, s1.1; writes grad output; makes grad output; loss
        backward 1: caches z1; flushes grad z1; reads z1, s1.1; takes grad output; writes grad z1, grad s1.1; \
makes grad z1, grad s1.1; frees z1, s1.1, grad output
        backward 0: caches z0; reads z0, s0.1; takes grad z1, grad s1.1; frees z0, s0.1, grad z1, grad s1.1
        """,
    )
    frozen = network(*(layer(3, trained=False) for _ in range(2)))
    check(
        plan_passes(frozen, FULL, **OFF).train[-1:],
        "backward 1: reads a1; takes grad output; frees a1, grad output",
    )
    assert len(plan_passes(frozen, FULL, **OFF).train) == 4
    assert plan_passes(frozen, FULL, **OFF).wanted == frozenset()
    every = plan_passes(frozen, PAPER, **OFF)  # the paper's system has gradients of the features
    assert every.wanted == {FEATURES, "z0", "z1"} and len(every.train) == 6


def test_learned_features_get_a_gradient_that_stays():
    shape = replace(GCN, learned_input=True)
    passes = plan_passes(shape, FULL, **OFF)
    assert passes.setup == ()
    check(
        passes.train[-1:],
        "backward stage 0: reads features; takes grad z0; writes grad features; makes grad features; frees grad z0",
    )
    assert passes.on_host == {FEATURES, gradient(FEATURES), OUTPUT}


def test_sparse_features_are_neither_cached_nor_kept():
    passes = plan_passes(replace(GCN, sparse_input=object()), FULL, fuse=True, save=True, prune=False)
    assert passes.setup == () and FEATURES not in passes.wanted
    assert {FEATURES, gradient(FEATURES)} <= passes.on_host
    assert [p.saves for p in passes.train] == [False, True, False, True]


def test_a_loss_over_edges_is_evaluated_on_the_whole_output():
    passes = plan_passes(replace(GCN, edge_loss=True), FULL, fuse=True, save=False, prune=False)
    check(
        passes.train[1:3],
        """
        forward 1: caches z1; reads z1; writes output, a1; makes output, a1, grad output; frees z1, output; edge loss
        backward 1: flushes grad z1; reads a1; takes grad output; writes grad z1; makes grad z1; frees a1, grad output
        """,
    )
    assert {OUTPUT, gradient(OUTPUT)} <= passes.on_host


def test_without_a_loss_an_epoch_is_an_evaluation():
    passes = plan_passes(replace(GCN, trains=False), replace(FULL, cache_input_aggregate=False), **OFF)
    assert passes.evaluate == ()
    check(
        passes.train,
        """
        forward stage 0: reads features; writes z0; makes z0
        forward 0: caches z0; reads z0; writes z1; makes z1; frees z0
        forward 1: caches z1; reads z1; writes output; makes output; frees z1
        """,
    )


def test_values_travel_from_their_stage_to_those_that_take_them():
    """The features, and a value of stage 0 that is stored by itself, go to the last stage."""
    values = (ValueShape(number=7, stage=0, columns=2, same_as=None, trained=True),)
    shape = replace(GAT, values=values, takes=((), (), (-1, 7)))
    passes = plan_passes(shape, PAPER, **OFF)
    check(
        (passes.train[0], *passes.train[2:4], passes.train[5]),
        """
        forward stage 0: reads features; writes z0, s0.1, v0.7; makes z0, s0.1, v0.7
        forward 1: caches z1; reads z1, s1.1, features, v0.7; writes grad output; makes grad output; loss
        backward 1: caches z1; flushes grad z1; reads z1, s1.1, features, v0.7; takes grad output; \
writes grad z1, grad s1.1, grad features, grad v0.7; makes grad z1, grad s1.1, grad features, grad v0.7; \
frees z1, s1.1, v0.7, grad output
        backward stage 0: reads features; takes grad z0, grad s0.1, grad v0.7; writes grad features; \
frees grad z0, grad s0.1, grad v0.7, grad features
        """,
    )
    same = replace(shape, values=(replace(values[0], columns=1, same_as=2),))
    assert plan_passes(same, PAPER, **OFF).train[2].values == (FEATURES, "s0.1")


MODELS = {
    "gcn": GCN,
    "gat": GAT,
    "norm": NORMALISED,
    "gat, gcn": network(layer(4, 3, linear=False), layer(3)),
    "gcn, gat, gcn": network(layer(4, trained=False), layer(3, 3, linear=False), layer(3), constant_layers=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_read_before_it_is_made_or_after_it_is_freed(name):
    for strategy, *switches in itertools.product((PAPER, FULL), *((False, True),) * 3):
        passes = plan_passes(MODELS[name], strategy, **dict(zip(OFF, switches, strict=True)))
        for group, before in (
            (passes.setup, {FEATURES}),
            (passes.train, passes.constant),
            (passes.evaluate, passes.constant),
        ):
            alive = set(before)
            for p in group:
                assert not alive & set(p.creates), p.name
                alive |= set(p.creates)
                touched = {*p.inputs, *p.gradients, *p.written, p.exchange, p.flush, *p.holds} - {None}
                assert touched <= alive, (p.name, touched - alive)
                assert set(p.frees) <= touched
                alive -= set(p.frees)
            left = {OUTPUT} if group is passes.evaluate else set()
            assert alive - before == (passes.constant - before if group is passes.setup else left)


def test_the_loss_needs_what_its_vertices_read():
    """0 reads 1 and 2, 1 reads 4, 2 reads 1."""
    chunks, one = tiny.topology(), np.arange(tiny.V) == 0
    masks = receptive_field(chunks, one, 2)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[0], [0, 1, 2], [0, 1, 2, 4]]
    assert pays(chunks, masks) and not pays(chunks, [np.ones(tiny.V, dtype=bool)] * 3)
