"""What one device's links, its starting of work, and its kernels do: the planner's constants.

    python -m experiments.gpu_links memory|links|rates [--device cuda|simulated] [--megabytes 2048] [--vertices 1000000]

One JSON object, printed anew after every measurement, so that the last line holds whatever is known: "rates", by name.
memory: seconds to register 1, 8 and 32 GiB (of 2048 megabytes) with the driver. links: large copies from and to pinned
memory; random rows of 128 to 1024 bytes read from there, and written there, by the device itself; rows gathered by the
host and copied; rows that functions of a graph add up on the host; microseconds of a node of a graph, and of a chunk
whose work is nothing. rates: on a random graph with fifteen edges a vertex and rows of 128 floats, what each moves at
least, as a share of a copy inside the device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.bench.records import machine
from hongtu.device.backends import get_backend
from hongtu.device.base import Device
from hongtu.device.cpu import Backend
from hongtu.device.host_work import Put
from hongtu.device.streams import DONE, Event
from hongtu.metrics import Traffic

ROW_BYTES = (128, 256, 512, 1024)
CHUNKS, NODES, WIDTH, HEADS = 128, 2000, 128, 8
BLOCKS = (16, 64, 256)
REPEATS = 5


class Rates:
    """Prints what is known after every measurement."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._known: dict[str, float] = {}
        self._row = machine("gpu_links") | {"device": options.device, "rates": self._known}

    def begin(self, name: str) -> None:
        """What is measured next, for where that crashes or hangs."""
        self._row["measuring"] = name
        print(json.dumps(self._row), flush=True)

    def note(self, name: str, value: float) -> float:
        self._known[name] = value
        self._row.pop("measuring", None)
        print(json.dumps(self._row), flush=True)
        return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "links", "rates"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--megabytes", type=int, default=2048, help="of host rows")
    parser.add_argument("--vertices", type=int, default=1_000_000, help="of the kernels' graph")
    options = parser.parse_args()
    backend = get_backend(options.device)
    assert backend.pinned is not None, "the CPU has no links"
    {"memory": memory, "links": links, "rates": kernel_rates}[options.what](backend, options, Rates(options))


def memory(backend: Backend, options: argparse.Namespace, rates: Rates) -> None:
    for part in (2, 16, 64):
        nbytes, start = options.megabytes * (part << 18), time.perf_counter()
        rates.begin(f"{nbytes / 2**30:g} GiB")
        with warnings.catch_warnings(record=True) as refused:
            warnings.simplefilter("always")
            made = backend.pinned((nbytes,), torch.uint8)
        what = "refused" if refused else "pinned"
        rates.note(f"{nbytes / 2**30:g} GiB {what}, s", time.perf_counter() - start)
        del made


def seconds(device: Device, work: Callable[[], object]) -> float:
    """Median seconds of some work, until the device has done it."""
    found = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        work()
        device.drain()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def links(backend: Backend, options: argparse.Namespace, rates: Rates) -> None:
    (device,) = devices = backend.devices(1, None, Traffic())
    host = backend.pinned((options.megabytes << 18,), torch.float32)
    host.fill_(1.0)
    there = device.place("rows", (len(host) // 8,), torch.float32)
    part, gigabytes = host[: len(there)], there.nbytes / 1e9
    load, flush = device.streams.load, device.streams.flush

    def rate(name: str, stream: Any, work: Callable[[], object], nbytes: float = gigabytes) -> float:
        rates.begin(name)
        return rates.note(f"{name}, GB/s", nbytes / seconds(device, lambda: stream.run(work)))

    device.begin()
    rate("copy to the device", load, lambda: there.copy_(part, non_blocking=True))
    rate("copy to the host", flush, lambda: part.copy_(there, non_blocking=True))
    rate("copy inside", device.streams.compute, lambda: there[: len(there) // 2].copy_(there[len(there) // 2 :]))
    staging = backend.pinned(there.shape, torch.float32)
    for size in ROW_BYTES:
        rows_of(device, *(x.view(-1, size // 4) for x in (host, there, staging)), rate)
    rates.begin("a chunk of nothing")
    rates.note("a chunk of nothing, us", seconds(device, lambda: dummy_chunks(device)) / CHUNKS * 1e6)
    recorder = backend.recorder(devices)
    if recorder is None:
        return
    little, compute = there[:1], device.streams.compute
    count = min(len(there) // WIDTH, 1 << 18)
    rows, target = (x[: count * WIDTH].view(count, WIDTH) for x in (host[len(host) // 2 :], host))
    adds = Put(rows.numpy(), target.numpy(), np.random.default_rng(0).permutation(count).astype(np.int32), False)
    rates.begin("a graph of small nodes")
    nodes = recorder.capture(lambda: [compute.run(lambda: little.add_(0)) for _ in range(NODES)], device.drain)
    rates.note("a node of a graph, us", seconds(device, nodes.replay) / NODES * 1e6)
    rates.begin("a graph of functions of the host")
    puts = recorder.capture(lambda: device.streams.host.run(adds), device.drain)  # while the pool has its first graph
    rates.note("rows added on the host by a node, GB/s", rows.nbytes / 1e9 / seconds(device, puts.replay))


def rows_of(device: Device, rows: Tensor, cache: Tensor, staging: Tensor, rate: Callable[..., object]) -> None:
    """Random rows of the host, to the device and back."""
    picked, size = np.random.default_rng(0).permutation(len(rows)).astype(np.int32)[: len(cache)], rows.shape[1] * 4
    index, load = torch.from_numpy(picked), device.streams.load
    on_device, every = index.to(cache.device), torch.arange(len(cache), dtype=torch.int32, device=cache.device)

    def gather() -> None:
        torch.index_select(rows, 0, index, out=staging)
        cache.copy_(staging, non_blocking=True)

    device.begin()
    rate(f"rows of {size} bytes read", load, lambda: device._copy_rows(rows, on_device, cache, None))
    assert bool((cache == 1).all()), "rows that were read are not those of the host"
    back = device.streams.flush
    rate(f"rows of {size} bytes written", back, lambda: device._copy_rows(cache, every, rows, on_device))
    for blocks in BLOCKS if size == 512 and device._reaches(rows) else ():
        read = partial(device.kernels.copy_rows, rows, on_device, cache, None, max_blocks=blocks)
        rate(f"rows of {size} bytes read by {blocks} blocks", load, read)
    rate(f"rows of {size} bytes gathered by the host", load, gather)


def kernel_rates(backend: Backend, options: argparse.Namespace, rates: Rates) -> None:
    """Seconds of each, and what it moves at least as a share of a copy."""
    (device,), vertices, item = backend.devices(1, None, Traffic()), options.vertices, 4
    edges, row, of_edges = 15 * vertices, WIDTH * item, 15 * vertices * HEADS * item
    where, run = device.empty((0,), torch.float32).device, device.kernels
    rows, out = (torch.ones(vertices, WIDTH, device=where) for _ in range(2))
    source = torch.randint(vertices, (edges,), dtype=torch.int32, device=where)
    indptr = torch.arange(0, edges + 1, 15, device=where)
    numbers, shares = (torch.rand(edges, HEADS, device=where) for _ in range(2))
    ids, key = torch.arange(vertices, device=where), torch.ones(1, dtype=torch.int64, device=where)
    none, nobody = (torch.empty(0, dtype=kind, device=where) for kind in (torch.int32, torch.bool))
    no_floats = torch.empty(0, device=where)
    no_heads, graph = no_floats.view(0, HEADS), (indptr, source, none, no_floats, False)
    works: dict[str, tuple[Callable[[], object], int]] = {
        "copy": (lambda: out.copy_(rows), 2 * vertices * row),
        "csc_aggregate": (lambda: run.csc_aggregate(*graph, rows, out), (edges + vertices) * row),
        "csc_aggregate_transpose": (
            lambda: run.csc_aggregate_transpose(*graph, rows, out), (2 * edges + vertices) * row),
        "attend": (lambda: run.attend(indptr, source, shares, rows, out), (edges + vertices) * row + of_edges),
        "segment_softmax": (
            lambda: run.segment_softmax(indptr, numbers, nobody, no_heads, shares, no_heads), 4 * of_edges),
        "dropout": (lambda: run.dropout(rows, ids, key, 1, 1, 1 << 31, 2.0, out), vertices * (2 * row + 8)),
        "copy_rows": (lambda: run.copy_rows(rows, source[:vertices], out, None), 2 * vertices * row),
    }  # fmt: skip
    copy = 0.0
    for name, (work, nbytes) in works.items():
        rates.begin(name)
        device.begin()
        taken = seconds(device, partial(device.streams.compute.run, work))
        rates.note(f"{name}, GB/s", nbytes / taken / 1e9)
        copy = copy or nbytes / taken
        rates.note(f"{name}, share of the copy", nbytes / taken / copy)


def dummy_chunks(device: Device) -> None:
    """What a pass does around its work, with next to no work."""
    streams, sets = device.streams, [dict[str, Event](brought=DONE, sent=DONE) for _ in range(2)]
    little = device.buffer("rows")[:1]
    for step in range(CHUNKS):
        reached = sets[step % 2]
        streams.load.wait(reached["sent"], "the set is free")
        reached["brought"].synchronize("staging is free")
        for _ in range(8):
            streams.load.run(lambda: little.add_(0))
        reached["brought"] = streams.load.record()
        streams.compute.wait(reached["brought"], "inputs are there")
        for _ in range(12):
            streams.compute.run(lambda: little.add_(0))
        streams.flush.wait(streams.compute.record(), "results are there")
        streams.flush.run(lambda: little.add_(0))
        reached["sent"] = streams.flush.record()


if __name__ == "__main__":
    main()
