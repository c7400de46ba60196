"""The planned device memory: every buffer that a pass keeps on a device, with its exact size.

Legend: D destinations, S sources, E in-edges of a chunk; a buffer has room for the largest chunk of its device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hongtu.hardware import padded
from hongtu.plan.cache.transfer import BatchLimits
from hongtu.plan.memory.placement import Placement
from hongtu.plan.memory.structure import FLOAT, device_entries, nbytes_of
from hongtu.plan.passes.definition import FEATURES, Pass


@dataclass(frozen=True)
class Buffer:
    """A device buffer.

    Attributes:
        shape: rows, or (rows, columns).
        dtype: "float" (the run's dtype), "bfloat16", "int32", "int64", "bool" or "uint8".
        sets: how many of them: copies of one batch fill a set while another batch computes from its own.
        padded: its rows are apart, as ``hardware.padded`` says: vertex rows that kernels of a GPU read.
    """

    shape: tuple[int, ...]
    dtype: str
    sets: int = 1
    padded: bool = False

    def nbytes(self, itemsize: int) -> int:
        step = padded(self.shape[1], itemsize) * itemsize if self.padded else self.row_bytes(itemsize)
        return self.sets * self.shape[0] * step

    def row_bytes(self, itemsize: int) -> int:
        """Of one of its rows, which move."""
        return nbytes_of(self.shape[1:], self.dtype, itemsize)


def pass_buffers(plan: Placement, p: Pass, device: int) -> dict[str, Buffer]:
    """Every planned buffer of one pass on one device but its caches and what stays there, by name."""
    passes, needs, view, shape = plan.passes, plan.needs(p), plan.view(p), plan.shape
    most, width = device_entries(view)[device].most, passes.width
    d = most["destinations"]
    staged = [name for name in (*p.inputs, *p.gradients) if name not in plan.resident or view.active is not None]
    buffers = {
        name: Buffer((most[passes.over(name)], width[name]), FLOAT, padded=plan.apart) for name in dict.fromkeys(staged)
    }
    if FEATURES in p.inputs and shape.sparse_input is not None:
        own = slice(device * view.chunks, (device + 1) * view.chunks)
        buffers |= _sparse_buffers(d, int(shape.sparse_input.numbers(view)[own].max()))
        if plan.maps_sparse_input:
            buffers.pop(FEATURES, None)
    brought = needs.beside if plan.structure_stays(p) else needs.structure | needs.beside
    buffers |= {name: Buffer(array.shape(most[array.over]), array.dtype) for name, array in brought.items()}
    if needs.edges:
        reduces = shape.layers[p.layer].reduce is not None and p.direction != "backward" and not p.saves
        if reduces and not aggregates_in_place(plan, p):
            buffers["aggregate"] = Buffer((d, width[f"a{p.layer}"]), FLOAT, padded=plan.apart)
        buffers |= _exchange_buffers(p, plan.limits_of(p), device)
    return buffers | {places: Buffer((most["edges"],), "int32") for places in plan.edge_places(p)}


def _sparse_buffers(d: int, numbers: int) -> dict[str, Buffer]:
    """Rows of features as they come, beside the buffer in which they become dense."""
    return {
        f"{FEATURES} start": Buffer((d + 1,), "int64"),
        f"{FEATURES} column": Buffer((numbers,), "int32"),
        f"{FEATURES} value": Buffer((numbers,), FLOAT),
    }


def aggregates_in_place(plan: Placement, p: Pass) -> bool:
    """Whether a declared reduction writes where its output stays."""
    return p.checkpoint in plan.resident and plan.view(p).active is None and not plan.shape.layers[p.layer].combined


def _exchange_buffers(p: Pass, limits: list[BatchLimits], device: int) -> dict[str, Buffer]:
    """Numbers of rows and slots, but none of what no device has any of."""
    loads, pulls = Buffer((limits[device].loads,), "int32"), Buffer((limits[device].pulls,), "int32")
    buffers: dict[str, Buffer] = {}
    if p.exchange is not None:
        buffers |= {"load_rows": loads, "load_slots": loads, "pull_from": pulls, "pull_to": pulls}
    if p.flush is not None:
        buffers |= {"load_slots": loads, "pull_to": pulls, "flush_slots": loads, "push_from": pulls, "push_to": pulls}
    some = any(of.loads for of in limits), any(of.pulls for of in limits)
    return {name: buffer for name, buffer in buffers.items() if some[name.startswith(("pull", "push"))]}


def staged(
    plan: Placement, p: Pass, device: int, buffers: dict[str, Buffer], host_dtype: Callable[[str], str]
) -> tuple[dict[str, Buffer], dict[str, Buffer]]:
    """The buffers of a pass where device and host have memories of their own.

    Args:
        buffers: those it has anyway.
        host_dtype: what the host has rows of a tensor in.

    Returns:
        the buffers on the device, rows on their way to the host among them, which are as they will be there, and the
        pinned ones on the host, through which everything goes that is not read from or stored in host rows as it is.
    """
    passes, most, sets = plan.passes, device_entries(plan.view(p))[device].most, plan.choice.staging
    rows, width = (*p.inputs, *p.gradients, "aggregate"), passes.width
    leaving = (name for name in p.written if name not in plan.resident)
    away = {name: Buffer((most[passes.over(name)], width[name]), host_dtype(name)) for name in leaving}
    on_device = buffers | {f"deliver {name}": buffer for name, buffer in away.items()}
    if p.flush is not None and p.flush not in plan.resident:
        shape = plan.limits_of(p)[device].loads, width[p.flush]
        on_device["flush_rows"] = Buffer(shape, host_dtype(p.flush))
    host = {name: buffer for name, buffer in buffers.items() if name not in rows}
    host |= {f"add {name}": away[name] for name in p.direct if name in away}
    if "flush_rows" in on_device:
        host["flush_rows"] = on_device["flush_rows"]
    repeated = {name: replace(buffer, sets=sets) for name, buffer in on_device.items() if name != "aggregate"}
    return on_device | repeated, {name: replace(buffer, sets=sets) for name, buffer in host.items()}


def cache_buffers(plan: Placement, p: Pass, capacity: int) -> dict[str, Buffer]:
    """The caches of one pass on one device: row values, gradient rows, or both."""
    caches = {"cache": p.exchange, "gradient_cache": p.flush}
    return {
        cache: Buffer((capacity, plan.passes.width[name]), FLOAT, padded=plan.apart)
        for cache, name in caches.items()
        if name is not None and name not in plan.resident
    }
