"""How fast one device's links are, and what a chunk costs: what decides how rows are brought and how large groups are.

    python -m experiments.gpu_links [--device cuda|simulated] [--megabytes 2048]

One JSON object: bandwidth (GB/s) of a large copy from pinned memory; of rows of 128 to 1024 bytes gathered by the
device itself ("zero-copy"), and gathered by the host and then copied, and the former as a share of the large copy; of
512-byte rows by the number of thread blocks that gather, alone and beside products on the compute stream; and the
seconds that a chunk takes whose work is nothing, over 128 chunks with streams and events as in training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hongtu.bench.records import machine
from hongtu.device.backends import get_backend
from hongtu.device.base import Device
from hongtu.device.streams import Turn
from hongtu.metrics import Traffic

ROW_BYTES = (128, 256, 512, 1024)
CHUNKS = 128
BLOCKS = (16, 32, 64, 128, 1024)
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--megabytes", type=int, default=2048, help="of host rows")
    options = parser.parse_args()
    backend = get_backend(options.device)
    (device,) = backend.devices(1, None, Traffic())
    assert backend.pinned is not None, "the CPU has no links"
    host = backend.pinned((options.megabytes << 18,), torch.float32)
    host.fill_(1.0)
    there = device.place("rows", (len(host) // 8,), torch.float32)
    row = machine("gpu_links") | {"device": options.device, "megabytes": options.megabytes}
    row["copy"] = len(there) * 4 / seconds(device, lambda: copy(device, there, host[: len(there)])) / 1e9
    row["rows"] = {str(size): gathers(device, host, there, size) for size in ROW_BYTES}
    row["share_of_copy"] = {size: rates["zero_copy"] / row["copy"] for size, rates in row["rows"].items()}
    row["blocks"] = {str(blocks): by_blocks(device, host, there, blocks) for blocks in BLOCKS}
    row["chunk_seconds"] = seconds(device, lambda: dummy_chunks(device)) / CHUNKS
    print(json.dumps(row))


def seconds(device: Device, work: Callable[[], None]) -> float:
    """Median seconds of some work, until the device has done it."""
    found = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        work()
        device.drain()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def copy(device: Device, there: Tensor, host: Tensor) -> None:
    device.streams.load.run(lambda: there.copy_(host, non_blocking=True))


def gathers(device: Device, host: Tensor, there: Tensor, size: int) -> dict[str, float]:
    """GB/s of random rows of so many bytes, both ways."""
    width = size // 4
    rows, cache = host.view(-1, width), there.view(-1, width)
    index = np.random.default_rng(0).permutation(len(rows)).astype(np.int32)[: len(cache)]
    on_device = torch.from_numpy(index).to(there.device)
    slots = torch.arange(len(cache), dtype=torch.int32, device=there.device)
    staging = torch.empty_like(rows[: len(cache)], pin_memory=there.is_cuda)
    device.begin()

    def gather_on_the_host() -> None:
        torch.index_select(rows, 0, torch.from_numpy(index), out=staging)
        device.streams.load.run(lambda: cache.copy_(staging, non_blocking=True))

    direct = seconds(device, lambda: device.move_rows("load", rows, on_device, cache, slots))
    assert bool((cache == 1).all())
    through_host = seconds(device, gather_on_the_host)
    nbytes = len(cache) * size / 1e9
    return {"zero_copy": nbytes / direct, "host_gather": nbytes / through_host}


def by_blocks(device: Device, host: Tensor, there: Tensor, blocks: int) -> dict[str, float]:
    """GB/s of random rows of 512 bytes gathered by so many thread blocks, alone and beside products."""
    rows, cache = host.view(-1, 128), there.view(-1, 128)
    index = np.random.default_rng(0).permutation(len(rows)).astype(np.int32)[: len(cache)]
    on_device = torch.from_numpy(index).to(there.device)
    square = torch.ones((1024, 1024) if there.is_cuda else (8, 8), device=there.device)
    device.begin()

    def gather() -> None:
        device.kernels.copy_rows(rows, on_device, cache, None, max_blocks=blocks)

    def load() -> None:
        device.streams.load.run(gather)
        device.streams.load.record().synchronize("the rows are there")

    def products() -> None:
        for _ in range(2000 if there.is_cuda else 2):
            torch.mm(square, square)

    found = {}
    for name, beside in (("alone", False), ("beside", True)):
        taken = []
        for _ in range(REPEATS):
            if beside:
                device.streams.compute.run(products)
            start = time.perf_counter()
            load()
            taken.append(time.perf_counter() - start)
            device.drain()
        found[name] = len(cache) * 512 / statistics.median(taken) / 1e9
    return found


def dummy_chunks(device: Device) -> None:
    """What a pass does around its work, with next to no work."""
    streams, turns = device.streams, (Turn(1), Turn(1))
    little = device.buffer("rows")[:1]
    for step in range(CHUNKS):
        turn = turns[step % 2]
        streams.load.wait(turn.sent[0], "the set is free")
        turn.brought[0].synchronize("staging is free")
        for _ in range(8):
            streams.load.run(lambda: little.add_(0))
        turn.brought[0] = streams.load.record()
        streams.compute.wait(turn.brought[0], "inputs are there")
        for _ in range(12):
            streams.compute.run(lambda: little.add_(0))
        streams.flush.wait(streams.compute.record(), "results are there")
        streams.flush.run(lambda: little.add_(0))
        turn.sent[0] = streams.flush.record()


if __name__ == "__main__":
    main()
