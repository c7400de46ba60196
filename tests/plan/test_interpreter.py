"""Programs of random models and plans on tiny random graphs, run by the slow interpreter, against dense products."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from hongtu.errors import BudgetError
from hongtu.graph.halo import receptive_field
from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.passes.strategy import Choice, Strategy, get_strategy
from hongtu.plan.program.moves import Copy
from hongtu.plan.program.program import copied_rows, crossing_bytes, row_bytes
from hongtu.plan.search.build import make_plan, sketch_plan
from hongtu.plan.search.host import candidates, with_spilled
from hongtu.plan.search.residents import _units, every_tensor
from tests import tiny
from tests.checker.check import check_program
from tests.interpreter import Interpreter
from tests.plan.test_transfer_plan import random_case

PROGRAMS = 300
KINDS = (  # GCN, GraphSAGE, attention, and a linear aggregate that is no sum
    {},
    {"s": (2,), "reduce": "mean", "weighted": False, "combined": False},
    {"linear": False},
    {"s": (None, 3), "reduce": None, "weighted": False, "combined": False},
)


def weights(*shape, rng, trained=True):
    return torch.tensor(rng.normal(size=shape), requires_grad=trained)


class Model:
    """A model of a shape, with random weights; its loss is half the squared distance from the labels."""

    def __init__(self, shape, passes, rng):
        self.shape, self.passes = shape, passes
        self.maps, self.sources, self.skips = [], [], []
        for stage, names in enumerate(passes.returned):
            inputs = shape.features
            if stage:
                layer, (z, *s) = shape.layers[stage - 1], passes.layer_inputs[stage - 1]
                widths = [passes.width[name] for name in s]
                inputs = layer.a + (0 if layer.combined else sum(widths))
                self.sources.append(weights(passes.width[z], layer.a, rng=rng, trained=not layer.linear))
                self.skips.append([weights(n, layer.a, rng=rng, trained=not layer.linear) for n in widths])
            trained = [name == OUTPUT or name in passes.wanted for name in names]
            self.maps.append(
                [weights(inputs, passes.width[n], rng=rng, trained=t) for n, t in zip(names, trained, strict=True)]
            )

    def take_gradients(self):
        found = []
        for x in chain(*self.maps, self.sources, *self.skips):
            found.append(torch.zeros_like(x) if x.grad is None else x.grad)
            x.grad = None
        return found

    def stage(self, stage, *inputs):
        names, h = self.passes.returned[stage], torch.cat(inputs, dim=1)
        return [inputs[0] if n == FEATURES else torch.tanh(h @ w) for n, w in zip(names, self.maps[stage], strict=True)]

    def aggregate(self, layer, source, ends, count, z, *s):
        per_edge = (z @ self.sources[layer])[source]
        if not self.shape.layers[layer].linear:
            per_edge = torch.tanh(per_edge + sum(x @ m for x, m in zip(s, self.skips[layer], strict=True))[ends])
        return per_edge.new_zeros((count, per_edge.shape[1])).index_add(0, ends, per_edge)

    def combine(self, layer, a, *s):
        return a + sum(x @ m for x, m in zip(s, self.skips[layer], strict=True))

    def loss(self, out, labels, known):
        wrong = (out - np.ascontiguousarray(labels).view(np.float64)) * known[:, None]
        return 0.5 * (wrong * wrong).sum(), wrong

    def dense(self, topology, features, weight):
        """The output on the whole graph at once."""
        source = torch.as_tensor(topology.global_sources()).long()
        degree = np.diff(topology.in_edge_start)
        ends = torch.as_tensor(np.repeat(np.arange(len(degree)), degree))
        known = dict(zip(self.passes.returned[0], self.stage(0, features), strict=True))
        for k, layer in enumerate(self.shape.layers):
            z, *s = (known[name] for name in self.passes.layer_inputs[k])
            if layer.reduce is None:
                a = self.aggregate(k, source, ends, len(degree), z, *s)
            else:
                rows = z[source] * weight[:, None] if layer.weighted else z[source]
                a = z.new_zeros((len(degree), z.shape[1])).index_add(0, ends, rows)
                if layer.reduce == "mean":
                    a = a / torch.as_tensor(np.maximum(degree, 1))[:, None]
            a, s = (self.combine(k, a, *s), ()) if layer.combined else (a, s)
            known |= zip(self.passes.returned[k + 1], self.stage(k + 1, a, *s), strict=True)
        return known[OUTPUT]


def random_shape(rng):
    layers = []
    for _ in range(int(rng.integers(1, 4))):
        kind = dict(KINDS[int(rng.integers(len(KINDS)))])
        z, linear = int(rng.integers(1, 5)), kind.get("linear", True)
        a = z if kind.get("reduce", linear and "sum") else int(rng.integers(1, 4))
        layers.append(tiny.layer(z, a, **kind))
    if rng.random() < 0.3:
        layers[0] = replace(layers[0], trained=False)
    elif rng.random() < 0.3:
        layers[0] = replace(layers[0], z=4, a=4 if layers[0].reduce else layers[0].a, z_is_input=True)
    constant = not layers[0].trained and layers[0].linear
    return tiny.network(
        *layers, itemsize=8, label_bytes=16, learned_input=rng.random() < 0.2, constant_layers=int(constant)
    )


def random_plan(rng):
    """A topology and a plan of random kinds; None where the two do not go together."""
    topology, schedule, _ = random_case(rng)
    shape = random_shape(rng)
    strategy = get_strategy(str(rng.choice(["none", "paper", "full", "full"])))
    if rng.random() < 0.3:
        strategy = replace(
            Strategy(), reuse=str(rng.choice(["p2p", "paper"])), no_input_gradient=bool(rng.random() < 0.5)
        )
    mask = rng.random(topology.num_vertices) < 0.4
    fields = ()
    if strategy.prune and rng.random() < 0.4:
        fields = tuple(receptive_field(topology, mask, len(shape.layers)))
    choice = Choice(
        fuse=bool(rng.random() < 0.5) and strategy.fuse_last_layer, staging=int(rng.integers(3)), fields=fields
    )
    if strategy.resident and rng.random() < 0.6:
        save = bool(rng.random() < 0.4) and strategy.save
        passes = sketch_plan(topology, schedule, shape, strategy, replace(choice, save=save)).passes
        units = [unit for unit in _units(passes) if rng.random() < 0.5]
        resident = every_tensor(passes) if save or rng.random() < 0.3 else frozenset().union(*units)
        choice = replace(choice, save=save, resident=resident, structure=bool(rng.random() < 0.5))
    budget = None
    if rng.random() < 0.6 and not choice.save:
        least = max(sketch_plan(topology, schedule, shape, strategy, choice).device_bytes.values())
        budget = least + int(rng.integers(0, 400))
    try:
        plan = make_plan(topology, schedule, shape, strategy, budget, choice=choice)
    except BudgetError:
        return None
    names = [name for name in candidates(plan) if rng.random() < 0.5] if rng.random() < 0.6 else []
    spilled = {name: max(int(rng.integers(-1, plan.topology.chunks)), 0) for name in names}
    return topology, mask, with_spilled(plan, spilled)


def check_numbers(topology, mask, plan, program, rng):
    """An epoch and an evaluation give the dense output, loss and gradients, and move what is predicted."""
    v, shape = topology.num_vertices, plan.shape
    model = Model(shape, plan.passes, rng)
    host = {
        FEATURES: rng.normal(size=(v, shape.features)), "labels": rng.normal(size=(v, shape.output)).view(np.uint8),
        "loss_bits": mask.astype(np.uint8), "ids": np.arange(v), "statistics": np.ones((v, 3)),
        "edge_id_start": np.asarray(topology.in_edge_start[:-1]),
    }  # fmt: skip
    features = torch.tensor(host[FEATURES], requires_grad=shape.learned_input)
    weight = topology.edge_weight
    weight = np.ones(topology.num_edges) if weight is None else weight.astype(np.float64)
    out = model.dense(topology, features, torch.as_tensor(weight))
    loss, grad = model.loss(out.detach().numpy(), host["labels"], host["loss_bits"])
    out.backward(torch.as_tensor(grad))
    expected = model.take_gradients()

    run = Interpreter(topology.partitions, model, host)
    run.run(program.setup)
    run.moved.clear()
    for _ in range(2):  # the second epoch finds what the first has left
        run.loss = 0.0
        run.run(program.train)
        np.testing.assert_allclose(run.loss, loss, atol=1e-9)
        if shape.learned_input:
            np.testing.assert_allclose(run.host.pop(gradient(FEATURES)), features.grad, atol=1e-9)
    rows = plan.rows
    assert {name: run.moved[name] for name in rows} == {name: 2 * count for name, count in rows.items()}
    copies = [(x, p) for p in program.train for x in p.around if isinstance(x, Copy)]
    recalled, spilled = (
        sum(
            copied_rows(x, p, i) * crossing_bytes(x, p, row_bytes(p, i))
            for x, p in copies
            for i in range(topology.partitions)
            if x.verb == verb
        )
        for verb in ("recall", "spill")
    )
    assert (run.moved["recalled"] * 8, run.moved["spilled"] * 8) == (2 * recalled, 2 * spilled)
    assert recalled + spilled == plan.bytes["disk"]
    for found, value in zip(model.take_gradients(), expected, strict=True):
        np.testing.assert_allclose(found / 2, value, atol=1e-9)
    run.run(program.evaluate)
    np.testing.assert_allclose(output_of(run, plan), out.detach(), atol=1e-9)


def output_of(run, plan):
    """What evaluation has left on the host, and on the disk."""
    if OUTPUT not in plan.kept:
        return run.host[OUTPUT]
    kept, columns = plan.kept[OUTPUT], plan.shape.output
    begin = plan.disk.own[plan.passes.evaluate[-1].name, OUTPUT]
    rows = np.full((plan.topology.num_vertices, columns), np.nan)
    on_host = np.concatenate([np.arange(*ends) for ends in zip(kept.start, kept.end, strict=True)])
    rows[on_host] = run.host[OUTPUT][on_host] if kept.rows else np.nan
    for k in np.setdiff1d(np.arange(len(rows)), on_host):
        rows[k] = run.disk[begin + k * columns * 8]
    return rows


@pytest.mark.long
@pytest.mark.most(5)
@pytest.mark.parametrize("block", range(10))
def test_programs_compute_what_dense_products_do(block):
    done = 0
    for seed in range(block * PROGRAMS // 10, (block + 1) * PROGRAMS // 10):
        rng = np.random.default_rng(seed)
        found = random_plan(rng)
        if found is not None:
            topology, mask, plan = found
            program = plan.program
            check_program(program)
            check_numbers(topology, mask, plan, program, rng)
            done += 1
    assert done > PROGRAMS // 20
