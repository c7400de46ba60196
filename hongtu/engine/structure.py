"""The structure of chunks on a device: brought with each chunk, or there for all chunks of a partition."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device
from hongtu.engine.host_store import HostStore
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.memory.structure import FLOAT
from hongtu.plan.passes.definition import Pass

PLACE = "structure {}"  # what a device calls an array that stays


def edge_arrays(plan: ExecutionPlan, p: Pass, i: int, batch: int, chunk: int) -> dict[str, np.ndarray]:
    """What a pass needs of a chunk's in-edges, by name; the rest of its structure are rows that the host has."""
    view, needs = plan.view(p), plan.needs(p)
    transfers = plan.exchange_plan(p)
    if not needs.edges or transfers is None:
        return {}
    structure = view.chunk(chunk)
    found = {
        "indptr": structure.indptr,
        "local_source": structure.local_source,
        "slot_of_source": transfers.devices[i].slots(batch),
    }
    if needs.weights:
        assert structure.edge_weight is not None
        found["edge_weight"] = structure.edge_weight
    if needs.edge_features:
        assert view.edge_features is not None
        found["edge_features"] = view.edge_rows(view.edge_features, chunk)
    if needs.edge_type:
        assert view.edge_type is not None
        found["edge_type"] = view.edge_rows(view.edge_type, chunk)
    if needs.identity:
        found["sources"] = structure.sources
    return found


def place_structure(plan: ExecutionPlan, host: HostStore, device: Device, i: int) -> None:
    """Put what stays on a device there."""
    n, spans = plan.topology.chunks, plan.structure_spans[i]
    for name, (_, _, array) in plan.structure.items():
        dtype = host.dtype if array.dtype == FLOAT else getattr(torch, array.dtype)
        device.place(PLACE.format(name), array.shape(int(spans[array.over][-1])), dtype)
    for p in dict.fromkeys(p for p, _, _ in plan.structure.values()):
        given = {name: (stays, array) for stays, (by, name, array) in plan.structure.items() if by is p}
        for batch, j in enumerate(plan.schedule(p)[i].tolist()):
            chunk = i * n + j
            first, end = (int(x) for x in plan.topology.chunk_start[chunk : chunk + 2])
            edges = edge_arrays(plan, p, i, batch, chunk)
            for name, (stays, array) in given.items():
                lo, hi = spans[array.over][j : j + 2]
                rows = torch.from_numpy(np.ascontiguousarray(edges[name])) if name in edges else None
                target = device.buffer(PLACE.format(stays))[lo:hi]
                if hi > lo:
                    device.fill(target, host.rows(name, first, end) if rows is None else rows, "topology")


def structure_there(plan: ExecutionPlan, p: Pass, device: Device, i: int, chunk: int) -> dict[str, Tensor]:
    """A chunk's structure where it stays, by name."""
    spans, j = plan.structure_spans[i], chunk - i * plan.topology.chunks
    found = {}
    for name, array in plan.needs(p).structure.items():
        lo, hi = spans[array.over][j : j + 2]
        found[name] = device.buffer(PLACE.format(plan.structure_name(p, name)))[lo:hi]
    return found
