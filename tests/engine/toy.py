"""A model of three matrices for the graph of tests/tiny.py, run by the engine's executor alone, and the same in torch.

Stage l gives tanh(x) W_l, the last one x W_2; aggregates are those that tiny's shapes declare. Losses are half of the
squared distance from a target. Legend: V vertices, E edges, S sources, D destinations, F columns.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.device.backends import Backend
from hongtu.engine.executor import Executor
from hongtu.engine.host_store import HostStore
from hongtu.engine.instructions import Means
from hongtu.metrics import Traffic
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES, OUTPUT
from hongtu.plan.passes.shapes import NetworkShape
from tests import tiny

CUSTOM = tiny.network(
    *(tiny.layer(z, reduce=None, combined=False, s=(), uses_statistics=False) for z in (4, 3))
)  # linear, but no declared sum
MODELS = {n: replace(x, itemsize=8) for n, x in (("gcn", tiny.GCN), ("gat", tiny.GAT), ("custom", CUSTOM))}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng([seed, *shape]).normal(size=shape))


class Toy:
    """What the executor knows of a network, and the loss. Nothing in it depends on chunks."""

    def __init__(self, shape: NetworkShape) -> None:
        self.shape, self.chunk, self.current, self.context = shape, 0, "toy", SimpleNamespace()
        columns = [shape.features, *(layer.a for layer in shape.layers)]
        gives = [*(layer.z for layer in shape.layers), shape.output]
        self.weights = [
            random(a, b, seed=k).requires_grad_() for k, (a, b) in enumerate(zip(columns, gives, strict=True))
        ]
        self.weights[0].requires_grad_(shape.layers[0].trained)
        self.logits = [random(columns[k], 1, seed=9).requires_grad_() for k in range(len(shape.layers))]
        self.calls: list[tuple[str, int, int]] = []  # what ran, of which layer or stage, on how many rows

    @property
    def parameters(self) -> list[Tensor]:
        return [w for w in (*self.weights, *(self.logits if self.attends else ())) if w.requires_grad]

    @property
    def attends(self) -> bool:
        return not self.shape.layers[0].linear

    def stage(self, stage: int, base: Tensor, s: tuple, rows: Any, values: tuple, **how: bool) -> list[Tensor]:
        x = torch.tanh(base) if stage else base
        assert len(rows.ids) == len(x)
        self.calls.append(("stage", stage, len(x)))
        z = x @ self.weights[stage]
        return [z, x @ self.logits[stage]] if self.attends and stage < len(self.logits) else [z]

    def aggregate(self, layer: int, block: Any, z: Tensor, s: tuple, e: tuple = ()) -> list[Tensor]:
        assert torch.equal(block.sources[block.local_source.long()], block.sources.index_select(0, block.local_source))
        self.calls.append(("aggregate", layer, len(z)))
        weight, source, dst = block.edge_weight[:, None], z[block.local_source.long()], block.dst_of_edge
        if self.attends:
            source = torch.tanh(source[:, : self.shape.layers[layer].a]) * s[1][dst]
        return [z.new_zeros(block.num_dst, source.shape[1]).index_add(0, dst, weight * source)]

    def combine(self, layer: int, a: Tensor, s: tuple, rows: Any, *, gradients_only: bool = False) -> Tensor:
        return a + (rows.ids[:, None] % 3 + rows.statistics[:, :1]) * s[0]

    def gradient(self, out: Tensor, labels: Tensor, bits: Tensor, known: np.ndarray) -> tuple[Tensor, Tensor]:
        assert bits.tolist() == known.tolist()
        target = labels.contiguous().view(torch.int64).to(out.dtype)
        distance = (out - target) * (bits > 0)[:, None]
        return distance, (distance.double() ** 2).sum() / 2

    def whole(self, bits: Tensor) -> tuple[Tensor, Tensor]:
        """(output, loss) on the whole graph."""
        h, dense = self.host_rows()[FEATURES], torch.from_numpy(tiny.dense())
        rows = SimpleNamespace(ids=self.host_rows()["ids"], statistics=self.host_rows()["statistics"])
        for k, layer in enumerate(self.shape.layers):
            z, *logit = self.stage(k, h, (), rows, ())
            if logit:
                h = (dense @ torch.tanh(z[:, : layer.a])) * logit[0]
            else:
                h = self.combine(k, dense @ z, (z,), rows) if layer.combined else dense @ z
        out = self.stage(len(self.shape.layers), h, (), rows, ())[0]
        return out, self.gradient(out, self.host_rows()["labels"], bits, bits.numpy())[1]

    def host_rows(self) -> dict[str, Tensor]:
        v = tiny.V
        return {
            FEATURES: random(v, self.shape.features, seed=5),
            "ids": torch.arange(v).flip(0),
            "statistics": random(v, 3, seed=6),
            "edge_id_start": torch.zeros(v, dtype=torch.int64),
            "labels": (torch.arange(v, dtype=torch.int64)[:, None] % 2).view(torch.uint8),
        }


class Run:
    """A plan, its program, and what it takes to run it on float64."""

    def __init__(self, plan: ExecutionPlan, backend: Any = None, bits: Tensor | None = None) -> None:
        self.plan, self.toy, self.traffic = plan, Toy(plan.shape), Traffic()
        backend = Backend() if backend is None else backend
        self.devices = backend.devices(plan.topology.partitions, None, self.traffic)
        self.host = HostStore(tiny.V, torch.float64, backend.pinned)
        rows = self.toy.host_rows()
        self.host.keep(FEATURES, rows.pop(FEATURES))
        self.bits = torch.ones(tiny.V, dtype=torch.uint8) if bits is None else bits
        for name, tensor in (rows | {"loss_bits": self.bits}).items():
            self.host.keep_pageable(name, tensor)
        for device in self.devices:
            device.reserve("model", plan.shape.model_bytes)
        self.program = plan.program
        means = Means(
            networks=[self.toy] * len(self.devices), host=self.host, devices=self.devices, loss=self.toy,
            num_graph_edges=plan.topology.num_edges, num_graph_vertices=tiny.V,
        )  # fmt: skip
        self.executor = Executor(self.program, means)

    def setup(self) -> None:
        self.executor.run(self.program.setup)

    def train(self) -> tuple[float, list[Tensor]]:
        """(loss, gradients) of an epoch."""
        for parameter in self.toy.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.traffic.clear()
        self.host.reset_peak()
        for device in self.devices:
            device.reset_peaks()
        loss = self.executor.run(self.program.train)
        return loss, [parameter.grad.clone() for parameter in self.toy.parameters]

    def infer(self) -> Tensor:
        self.executor.run(self.program.evaluate)
        found = self.host[OUTPUT].clone()
        self.host.free(OUTPUT)
        return found
