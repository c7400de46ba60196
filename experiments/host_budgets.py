"""Epoch time in ever less host memory: rows that do not fit lie on a disk, by the plan or by the system's paging.

    python -m experiments.host_budgets --work DIR [--vertices 4000000] [--edges 16000000] [--features 128]
        [--models gcn sage] [--shares 0.5 0.25 0.1] [--epochs 2] [--out FILE.jsonl]

Per model, each run in a process of its own: without a limit; then for every share of what that needs on the host, the
run with ``host_memory`` and ``spill``, and the same run without either whose vertex rows are in mapped files, in as
much memory. A thread keeps that process to it: when it has more, parts of the mapped files are written back and their
pages given up, at random, which is kinder than the system's choice to passes that come around again. A share that
cannot work is refused, with what takes how much. ``of_least``: the epoch beside the longer of one without a limit and
its predicted bytes at the rates of the disk, which are measured before and after each of these runs; ``of_spilled``:
the mapped run beside the one that spills. What a process takes by itself (``PROCESS``) is beside the shares.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import tempfile
import threading
import time
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hongtu
from experiments.larger_than_memory import communities, disk_of
from experiments.prepare import prepared
from hongtu.bench.records import append, machine
from hongtu.device.cpu import Backend
from hongtu.device.pool import Make
from hongtu.host import STATUS, proc_bytes
from hongtu.model.named import build_layers
from hongtu.plan.program.moves import Copy
from hongtu.plan.program.program import PassProgram, copied_rows, crossing_bytes, row_bytes
from hongtu.plan.search.host import PROCESS

BLOCK = 8 << 20  # bytes of a mapped file that are given up together
INTERVAL = 0.01  # seconds between two looks at the process
PAGEOUT = 21  # of madvise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="keep the artifact here, and spill here")
    parser.add_argument("--vertices", type=int, default=4_000_000)
    parser.add_argument("--edges", type=int, default=16_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--chunks", type=int, default=128)
    parser.add_argument("--models", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25, 0.1])
    parser.add_argument("--device-memory", default="192MiB")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    graph = options.work / f"graph-{options.vertices}-{options.edges}-{options.features}"
    if not graph.exists():
        options.work.mkdir(parents=True, exist_ok=True)
        communities(graph, options.vertices, options.edges, options.features)
    path = graph.with_name(graph.name.replace("graph", "artifact"))
    found = prepared(graph, path, partitions=1, chunks=options.chunks, order="input")
    about = machine("host_budgets")
    about |= {"vertices": found.num_vertices, "edges": found.num_edges, "features": found.feature_width}
    for model in options.models:
        measure(options, path, model, about)


def measure(options: argparse.Namespace, artifact: Path, model: str, about: dict[str, Any]) -> None:
    """All runs of one model."""
    common = {key: getattr(options, key) for key in ("hidden", "layers", "epochs", "device_memory")}
    common |= {"artifact": str(artifact), "model": model, "work": str(options.work)}
    free = alone(common)
    keep(options, about | {"model": model, "how": "no limit"} | free)
    for share in options.shares:
        limit = int(share * free["host_bytes"])
        before = disk_of(options.work)
        spilled = alone(common | {"how": "spill", "limit": limit})
        after = disk_of(options.work)
        if "refused" not in spilled:
            moving = (moving_seconds(spilled, before) + moving_seconds(spilled, after)) / 2
            spilled["of_least"] = round(spilled["seconds"] / max(free["seconds"], moving), 3)
            spilled |= {"moving_seconds": moving, "before": before, "after": after}
        mapped = alone(common | {"how": "mapped", "limit": limit})
        if "refused" not in spilled:
            mapped["of_spilled"] = round(mapped["seconds"] / spilled["seconds"], 3)
        for how, found in (("spill", spilled), ("mapped", mapped)):
            keep(options, about | {"model": model, "how": how, "share": share, "limit": limit} | found)


def moving_seconds(found: dict[str, Any], disk: dict[str, Any]) -> float:
    """What an epoch's rows take to go to a disk and to come from it, and nothing else."""
    return (found["recalled_bytes"] + found["spilled_bytes"]) / disk["disk_link"]


def keep(options: argparse.Namespace, row: dict[str, Any]) -> None:
    append(options.out, row)
    share = f"{row['share']:.0%}, " if "share" in row else ""
    found = row.get("refused") or f"{row['seconds']:.2f} s, {row['disk_bytes'] / 2**30:.2f} GiB on the disk link"
    least = f", {row['of_least']} of the least" if "of_least" in row else ""
    times = f", {row['of_spilled']} of the run that spills" if "of_spilled" in row else ""
    print(f"{row['model']}, {share}{row['how']}: {found}{least}{times}", flush=True)


def alone(order: dict[str, Any]) -> dict[str, Any]:
    """What a process of its own finds."""
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=run, args=(there, order))
    process.start()
    there.close()
    try:
        found: dict[str, Any] = here.recv()
    except EOFError:
        raise SystemExit(f"{order}: its process ended; the error is above") from None
    process.join()
    return found


def run(there: Any, order: dict[str, Any]) -> None:
    """Train as ordered; the fastest epoch but the first counts."""
    artifact, limits, backend = hongtu.open_artifact(order["artifact"]), {}, Backend()
    if order.get("how") == "spill":
        limits = {"host_memory": PROCESS + order["limit"], "spill": order["work"]}
    elif order.get("how") == "mapped":
        backend = MappedBackend(order["work"], order["limit"])
    torch.manual_seed(0)
    layers = build_layers(
        order["model"], artifact.feature_width, order["hidden"], artifact.num_classes, order["layers"]
    )
    try:
        trainer = hongtu.Trainer(artifact, layers, device=backend, device_memory=order["device_memory"], **limits)
    except hongtu.errors.InputError as refused:
        there.send({"refused": str(refused)})
        return
    records = [trainer.train_epoch() for _ in range(1 + order["epochs"])]
    recalled, spilled = (copied_bytes(trainer.plan.program.train, verb) for verb in ("recall", "spill"))
    there.send({
        "seconds": min(record.seconds for record in records[1:]), "losses": [record.loss for record in records],
        "disk_bytes": records[-1].bytes["disk"], "recalled_bytes": recalled, "spilled_bytes": spilled,
        "host_bytes": sum(bytes for name, bytes in records[-1].peak_bytes.items() if name != "disk"),
    })  # fmt: skip


def copied_bytes(passes: Iterable[PassProgram], verb: str) -> int:
    """What the copies of a name move in passes of all devices."""
    copies = [(x, p) for p in passes for x in p.around if isinstance(x, Copy) and x.verb == verb]
    return sum(
        copied_rows(x, p, i) * crossing_bytes(x, p, row_bytes(p, i)) for x, p in copies for i in range(len(p.buffers))
    )


def held() -> int:
    """Bytes of this process's memory, those of mapped files among them."""
    return sum(proc_bytes(STATUS, name) or 0 for name in ("RssAnon", "RssFile", "RssShmem"))


class MappedBackend(Backend):
    """The CPU, with vertex rows in mapped files without names, of which the process has so much in memory at most.

    Args:
        directory: where the files are.
        limit: bytes.
    """

    def __init__(self, directory: str, limit: int) -> None:
        super().__init__()
        self._directory, self._limit, self._files = directory, limit, list[tuple[mmap.mmap, int]]()
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        threading.Thread(target=self._keep_to_limit, daemon=True).start()

    @property
    def pinned(self) -> Make:
        return self._mapped

    def _mapped(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        nbytes = max(1, int(np.prod(shape)) * dtype.itemsize)
        with tempfile.TemporaryFile(dir=self._directory) as stream:
            stream.truncate(nbytes)
            pages = mmap.mmap(stream.fileno(), nbytes)
        self._files.append((pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))))
        return torch.frombuffer(pages, dtype=dtype, count=int(np.prod(shape))).reshape(shape)

    def _keep_to_limit(self) -> None:
        rng, base = np.random.default_rng(0), held()
        while True:
            time.sleep(INTERVAL)
            over = held() - base - self._limit
            while over > 0 and self._files:
                pages, start = self._files[rng.integers(len(self._files))]
                at = int(rng.integers(-(-len(pages) // BLOCK))) * BLOCK
                count = min(BLOCK, len(pages) - at)
                pages.flush(at, count)
                self._madvise(ctypes.c_void_p(start + at), ctypes.c_size_t(count), PAGEOUT)
                over -= count


if __name__ == "__main__":
    main()
