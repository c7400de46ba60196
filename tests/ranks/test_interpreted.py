"""Programs of several ranks on tiny random graphs, run side by side by the slow interpreter, against dense products."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hongtu.errors import BudgetError
from hongtu.graph.artifact import Artifact
from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.passes.strategy import Choice, get_strategy
from hongtu.plan.search.build import make_plan, sketch_plan
from hongtu.ranks.fabric import fabric_of_hosts
from hongtu.ranks.share import deal_partitions, share_of
from hongtu.ranks.stages import ByLayer, ByVertex
from tests.checker.check import check_program
from tests.interpreter import Interpreter, run_ranks
from tests.plan.test_interpreter import Model, random_shape
from tests.plan.test_transfer_plan import random_case

PROGRAMS, BLOCKS = 2600, 80


def artifact_of(topology, schedule, shape, mask, rng):
    """With features and labels of chance, in memory alone."""
    v = topology.num_vertices
    arrays = {name: getattr(topology, name) for name in
              ("chunk_start", "in_edge_start", "source_start", "sources", "local_source")}  # fmt: skip
    if topology.edge_weight is not None:
        arrays["edge_weight"] = topology.edge_weight
    arrays |= {"original_id": np.arange(v, dtype=np.int32), "schedule_paper": schedule}
    arrays |= {"features": rng.normal(size=(v, shape.features)), "labels": rng.normal(size=(v, shape.output))}
    arrays |= {f"{split}_mask": mask for split in ("train", "val", "test")}
    manifest = {"vertices": v, "edges": topology.num_edges, "partitions": topology.partitions}
    manifest |= {"feature_width": 1, "classes": 1, "task": "multiclass"}
    return Artifact(Path("nowhere"), manifest | {"chunks": topology.chunks}, arrays)


def random_stages(shape, rng):
    """Who computes what again; rows that are learned are fetched."""
    layers = len(shape.layers)
    if shape.learned_input:
        return ByLayer(layers, 0)
    if rng.random() < 0.5:
        return ByLayer(layers, int(rng.integers(1, layers + 1)))
    row, edge = (tuple(rng.random(layers + 1)) for _ in range(2))
    return ByVertex(layers, row, edge, tuple(4 * rng.random(layers)))


def plan_of(share, shape, strategy, rng):
    halo = share.halo
    choice = Choice(
        fields=() if halo is None else halo.fields, halo=halo, staging=int(rng.integers(3)),
        fuse=bool(rng.random() < 0.5) and strategy.fuse_last_layer,
    )  # fmt: skip
    budget = None
    if rng.random() < 0.6:
        sketch = sketch_plan(share.topology, share.schedule_paper, shape, strategy, choice)
        budget = max(sketch.device_bytes.values()) + int(rng.integers(0, 400))
    return make_plan(share.topology, share.schedule_paper, shape, strategy, budget, choice=choice)


def check_ranks(artifact, shape, shares, plans, mask, rng):
    """Ranks together give the dense output, loss and gradients, and fetch what is predicted."""
    model = Model(shape, plans[0].passes, rng)
    features = torch.tensor(artifact.features, requires_grad=shape.learned_input)
    weight = artifact.topology.edge_weight
    weight = np.ones(artifact.num_edges) if weight is None else weight.astype(np.float64)
    out = model.dense(artifact.topology, features, torch.as_tensor(weight))
    labels = np.ascontiguousarray(artifact.labels).view(np.uint8)
    loss, grad = model.loss(out.detach().numpy(), labels, mask)
    out.backward(torch.as_tensor(grad))
    expected = model.take_gradients()
    ranks, programs = [], [plan.program for plan in plans]
    for share, program in zip(shares, programs, strict=True):
        check_program(program)
        host = {FEATURES: share.features, "labels": labels[share.rows], "ids": share.rows,
                "loss_bits": (mask[share.rows] & share.owned).astype(np.uint8),
                "statistics": np.ones((len(share.rows), 3)), "edge_id_start": share.edge_id_starts()}  # fmt: skip
        ranks.append(Interpreter(share.topology.partitions, model, host))
    run_ranks(ranks, [program.setup for program in programs])
    for rank in ranks:
        rank.moved.clear()
    for _ in range(2):
        for rank in ranks:
            rank.loss = 0.0
        run_ranks(ranks, [program.train for program in programs])
        np.testing.assert_allclose(sum(rank.loss for rank in ranks), loss, atol=1e-9)
        for rank, share in zip(ranks, shares, strict=True):
            if shape.learned_input:
                own = rank.host.pop(gradient(FEATURES))[share.owned]
                np.testing.assert_allclose(own, features.grad[share.span], atol=1e-9)
    for rank, plan in zip(ranks, plans, strict=True):
        assert {link: rank.moved[link] for link in plan.rows} == {link: 2 * n for link, n in plan.rows.items()}
    for found, value in zip(model.take_gradients(), expected, strict=True):
        np.testing.assert_allclose(found / 2, value, atol=1e-9)
    run_ranks(ranks, [program.evaluate for program in programs])
    for rank, share in zip(ranks, shares, strict=True):
        np.testing.assert_allclose(rank.host[OUTPUT][share.owned], out.detach()[share.span], atol=1e-9)


@pytest.mark.most(10)
@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_ranks_compute_what_dense_products_do(block, monkeypatch):
    monkeypatch.setattr("hongtu.graph.artifact._file_identity", lambda file: (0, 0, 0))
    done = fetched = 0
    for seed in range(block * PROGRAMS // BLOCKS, (block + 1) * PROGRAMS // BLOCKS):
        rng = np.random.default_rng(seed)
        topology, schedule, _ = random_case(rng)
        if topology.partitions < 2:
            continue
        shape = random_shape(rng)
        mask = rng.random(topology.num_vertices) < 0.4
        artifact = artifact_of(topology, schedule, shape, mask, rng)
        count, stages = int(rng.integers(2, topology.partitions + 1)), random_stages(shape, rng)
        hosts = rng.choice(["a", "b"], count).tolist()
        fabric = fabric_of_hosts(hosts, 1.0, 50.0) if rng.random() < 0.5 else None
        bounds = deal_partitions(artifact, count, rng.random(topology.partitions))
        shares = [share_of(artifact, rank, bounds, stages, fabric) for rank in range(count)]
        strategy = get_strategy(str(rng.choice(["none", "paper", "full"])))
        strategy = replace(strategy, resident=False, prune=False)
        try:
            plans = [plan_of(share, shape, strategy, rng) for share in shares]
        except BudgetError:
            continue
        check_ranks(artifact, shape, shares, plans, mask, rng)
        done, fetched = done + 1, fetched + any(plan.choice.halo is not None for plan in plans)
    assert done > PROGRAMS // BLOCKS // 4 and fetched
