"""Train on a graph whose features alone are larger than the memory that the run may take: rows lie on a disk.

    python -m experiments.larger_than_memory --work DIR [--vertices 30000000] [--edges 400000000] [--features 128]
        [--models gcn sage] [--host-memory 6GiB] [--device-memory 512MiB] [--out FILE.jsonl]
    python -m experiments.larger_than_memory --work DIR --form papers --vertices 11000000 --edges 160000000
        --memory 3GiB --models sage --hidden 256 --layers 3 --device-memory 1GiB --dtypes float32 bfloat16

The second one is a tenth of ogbn-papers100M in OGB's own files, once in each of the dtypes of rows and their gradients.
With --infer the models, as they are made, predict rows of all vertices into a file instead.

The graph is generated and preprocessed where DIR has no artifact of its name, and removed once the artifact is there.
Every model trains in a process of its own, at which another one looks: ``peak`` is the most that it took at a time of
anonymous and shared memory and of pages that the system's cache had of the artifact and of the spilled rows.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import shutil
import subprocess
import threading
import time
from dataclasses import asdict, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hongtu
from experiments.options import make_parser
from experiments.papers_form import write_papers
from experiments.preprocess_rates import command
from hongtu.bench.profile import disk_rate
from hongtu.bench.records import append, machine, read
from hongtu.hardware import CPU
from hongtu.host import drop_file_pages, proc_bytes
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds

CACHESTAT = 451  # number of the system call, the same on every processor
INTERVAL = 0.2  # seconds between two looks at a process
CHUNKS = 512
SLAB = 1 << 22  # edges, or numbers of features, that are made in one step
MEMBERS, REMOTE, CLASSES = 4096, 0.05, 8  # of a community; share of edges from others


def main() -> None:
    parser = make_parser(
        __doc__, vertices=30_000_000, edges=400_000_000, features=128, chunks=CHUNKS, order="input", hidden=64,
        layers=2, epochs=2, host_memory="6GiB", device_memory="512MiB",
    )  # fmt: skip
    parser.add_argument("--work", type=Path, required=True, help="keep the artifact here, and spill here")
    parser.add_argument("--models", nargs="*", default=["gcn", "sage"])
    parser.add_argument("--form", choices=("communities", "papers"), default="communities")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32"])
    parser.add_argument("--infer", action="store_true", help="run models forward only, and write what they give")
    parser.add_argument("--memory", help="of preprocessing; not set: as --host-memory")
    options = parser.parse_args()
    about = machine("larger_than_memory") | prepare(options) | disk_of(options.work)
    about |= {"host_memory": options.host_memory, "device_memory": options.device_memory}
    for model, dtype in product(options.models, options.dtypes):
        row = about | {"dtype": dtype} | watched(options, model, dtype, about)
        append(options.out, row)
        peaks = ", ".join(f"{phase} {peak / 2**30:.2f} GiB" for phase, peak in row["peak"].items())
        moved, predicted = (row[key]["epoch"] / 2**30 for key in ("disk_bytes", "predicted_disk_bytes"))
        of = "in all" if options.infer else "an epoch"
        print(f"{model}, {dtype}: {row['seconds']} s {of}, {moved:.3f} GiB on the disk link (predicted {predicted:.3f})"
              f"; peaks: {peaks}", flush=True)  # fmt: skip


def prepare(options: argparse.Namespace) -> dict[str, Any]:
    """Make the artifact where it is not there; returns what it is, and how it was made."""
    name = f"{options.vertices}-{options.edges}-{options.features}" + f"-{options.form}" * (options.form == "papers")
    work, graph = options.work / name, options.work / name / "graph"
    if not (work / "artifact").exists():
        work.mkdir(parents=True, exist_ok=True)
        sizes = options.vertices, options.edges, options.features
        if options.form == "papers":
            write_papers(graph.with_suffix(".new"), *sizes).rename(graph)
        else:
            communities(graph, *sizes)
        flags = ["--partitions", "1", "--chunks", str(options.chunks), "--order", options.order]
        flags += ["--memory", options.memory or options.host_memory]
        append(work / "preprocess.jsonl", command(graph, work, flags))
        shutil.rmtree(graph)
    (made,) = read(work / "preprocess.jsonl")
    options.artifact = work / "artifact"
    found = hongtu.open_artifact(options.artifact)
    sizes = {"vertices": found.num_vertices, "edges": found.num_edges, "features": found.feature_width}
    return {"graph": options.form, **sizes, "chunks": found.topology.chunks, "preprocess": made}


def communities(path: Path, vertices: int, edges: int, width: int, seed: int = 1) -> None:
    """A graph in communities of consecutive vertices: every vertex reads about as many, one in twenty of them anywhere,
    in few communities more often than in most. Labels are the communities', and show in the features. Whatever has an
    entry for every edge or feature is made slab by slab."""
    rng, folder = np.random.default_rng(seed), path.with_suffix(".new")
    folder.mkdir()
    count = max(1, vertices // MEMBERS)
    edge_list = np.lib.format.open_memmap(folder / "edges.npy", "w+", np.int32, (2, edges))
    for lo in range(0, edges, SLAB):
        reader = np.arange(lo, min(lo + SLAB, edges)) * vertices // edges
        community = np.minimum(reader // MEMBERS, count - 1)
        remote = np.flatnonzero(rng.random(len(reader)) < REMOTE)
        community[remote] = count * rng.random(len(remote)) ** 3
        first = community * MEMBERS
        size = np.where(community == count - 1, vertices - first, MEMBERS)
        edge_list[0, lo : lo + len(reader)] = first + (size * rng.random(len(reader))).astype(np.int64)
        edge_list[1, lo : lo + len(reader)] = reader
    labels = np.minimum(np.arange(vertices) // MEMBERS, count - 1) % CLASSES
    np.save(folder / "labels.npy", labels)
    split = rng.random(vertices)
    for name, least, most in (("train", 0, 0.6), ("val", 0.6, 0.8), ("test", 0.8, 1)):
        np.save(folder / f"{name}_mask.npy", (split >= least) & (split < most))
    mean = 0.2 * rng.standard_normal((CLASSES, width), dtype=np.float32)
    features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (vertices, width))
    rows = max(1, SLAB // width)
    for lo in range(0, vertices, rows):
        own = labels[lo : lo + rows]
        features[lo : lo + rows] = mean[own] + rng.standard_normal((len(own), width), dtype=np.float32)
    folder.rename(path)


def disk_of(directory: Path) -> dict[str, Any]:
    """What a directory is on, and how fast files are there."""
    words = ["df", "--output=source,fstype", str(directory)]
    where = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[1].split()
    return {"disk": " ".join(where), "disk_link": round(disk_rate(directory))}


def watched(options: argparse.Namespace, model: str, dtype: str, disk: dict[str, Any]) -> dict[str, Any]:
    """Train in a process of its own, with the peak of every phase of it."""
    context = get_context("spawn")
    here, there = context.Pipe()
    args = there, vars(options), model, dtype, disk
    process = context.Process(target=infer if options.infer else train, args=args)
    process.start()
    there.close()
    watch = Watch(process.pid or 0, options.artifact, options.work)
    found: dict[str, Any] = {}
    with watch:
        while True:
            try:
                phase, facts = here.recv()
            except EOFError:
                break
            found |= facts
            watch.phase = phase
    process.join()
    if process.exitcode:
        raise SystemExit(f"{model}: its process ended with {process.exitcode}; the error is above")
    return {"model": model, **found, "peak": watch.peak, "peak_parts": watch.parts}


class Watch:
    """The most memory that a process took at a time, by what it did.

    Attributes:
        phase: what it does now.
        peak: bytes at most, by phase; ``parts``: what they were.
    """

    def __init__(self, process: int, artifact: Path, spill: Path) -> None:
        self.phase, self.peak, self.parts = "start", dict[str, int](), dict[str, dict[str, int]]()
        self._process, self._spill = process, spill
        self._files = [os.open(file, os.O_RDONLY) for file in sorted(artifact.glob("*.npy"))]
        for file in self._files:  # what is there of another process
            drop_file_pages(file, written=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        for file in self._files:
            os.close(file)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            phase, parts = self.phase, self._look()
            if sum(parts.values()) > self.peak.get(phase, 0):
                self.peak[phase], self.parts[phase] = sum(parts.values()), parts

    def _look(self) -> dict[str, int]:
        status = Path(f"/proc/{self._process}/status")
        return {
            "anonymous": proc_bytes(status, "RssAnon") or 0,
            "shared": proc_bytes(status, "RssShmem") or 0,
            "artifact": sum(map(cached_bytes, self._files)),
            "spilled": self._spilled_bytes(),
        }

    def _spilled_bytes(self) -> int:
        """Of the file without a name that the process has open in the directory, which takes space while it is open."""
        try:
            for file in Path(f"/proc/{self._process}/fd").iterdir():
                target = os.readlink(file)
                if target.startswith(f"{self._spill.resolve()}/") and target.endswith(" (deleted)"):
                    spilled = os.open(file, os.O_RDONLY)
                    try:
                        return cached_bytes(spilled)
                    finally:
                        os.close(spilled)
        except OSError:  # the process is gone
            pass
        return 0


def begun(there: Any, artifact: hongtu.Artifact, options: dict[str, Any], model: str) -> tuple[Any, dict[str, Any]]:
    """The layers of a run, which plans from now on, and its limits."""
    torch.manual_seed(0)
    layers = build_layers(model, artifact.feature_width, options["hidden"], artifact.num_classes, options["layers"])
    there.send(("planning", {}))
    return layers, {name: options[name] for name in ("device_memory", "host_memory")} | {"spill": str(options["work"])}


def train(there: Any, options: dict[str, Any], model: str, dtype: str, disk: dict[str, Any]) -> None:
    """In the other process: says with which phase it begins, and what it found in the one before."""
    artifact, epochs = hongtu.open_artifact(options["artifact"]), []
    layers, limits = begun(there, artifact, options, model)
    start = time.perf_counter()
    trainer = hongtu.Trainer(artifact, layers, host_dtype=dtype, gradient_dtype=dtype, on_oom="replan", **limits)
    plan, planned = trainer.plan, time.perf_counter() - start
    predicted = {"setup": plan.setup_traffic.bytes["disk"], "epoch": plan.bytes["disk"]}
    seconds = predict_seconds(plan, replace(CPU, disk_link=disk["disk_link"]))
    facts = {
        "planning_seconds": round(planned, 1), "predicted_disk_bytes": predicted, "planned_bytes": plan.peak_bytes,
        "predicted_seconds": round(seconds.total, 1), "predicted_parts": asdict(seconds),
        "spilled": {name: plan.topology.num_vertices - kept.rows for name, kept in plan.kept.items()},
        "groups": plan.topology.chunks,
    }  # fmt: skip
    there.send(("set-up", facts))
    for _ in range(options["epochs"]):
        epochs.append(trainer.train_epoch())
        assert trainer.setup is not None
        there.send(("epochs", {"setup_seconds": round(trainer.setup.seconds, 1)}))
    counted = {"setup": trainer.setup.bytes["disk"], "epoch": epochs[-1].bytes["disk"]}
    facts = {
        "disk_bytes": counted, "link_bytes": dict(epochs[-1].bytes),
        "seconds": [round(record.seconds, 1) for record in epochs],
        "counted_is_predicted": counted == predicted and epochs[-1].bytes == plan.bytes,
        "losses": [record.loss for record in epochs], "counted_bytes": epochs[-1].peak_bytes,
        "pass_seconds": {name: round(taken, 1) for name, taken in epochs[-1].pass_seconds.items()},
        "phases": {name: round(taken, 1) for name, taken in epochs[-1].phases.items()},
    }  # fmt: skip
    there.send(("end", facts))
    there.close()


def infer(there: Any, options: dict[str, Any], model: str, dtype: str, disk: dict[str, Any]) -> None:
    """The same for what a model gives."""
    artifact = hongtu.open_artifact(options["artifact"])
    layers, limits = begun(there, artifact, options, model)
    start = time.perf_counter()
    inference = hongtu.Inference(artifact, layers, host_dtype=dtype, **limits)
    plan, planned = inference.plan, time.perf_counter() - start
    facts = {
        "inference": True, "planning_seconds": round(planned, 1), "planned_bytes": plan.peak_bytes,
        "predicted_disk_bytes": {"epoch": plan.bytes["disk"]}, "groups": plan.topology.chunks,
    }  # fmt: skip
    there.send(("epochs", facts))
    inference.predict(out=options["work"] / "predicted.npy")
    record = inference.record
    assert record is not None
    facts = {
        "disk_bytes": {"epoch": record.bytes["disk"]}, "link_bytes": dict(record.bytes),
        "seconds": [round(record.seconds, 1)], "counted_is_predicted": record.bytes == plan.bytes,
        "counted_bytes": record.peak_bytes, "phases": {name: round(taken, 1) for name, taken in record.phases.items()},
    }  # fmt: skip
    there.send(("end", facts))
    there.close()


def cached_bytes(file: int) -> int:
    """What the system's cache has of an open file, whoever read or wrote it.

    Raises:
        OSError: where the system does not tell (Linux before 6.5).
    """
    whole, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()  # from where, how much; pages in memory, ...
    if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, file, whole, found, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(found[0]) * mmap.PAGESIZE


if __name__ == "__main__":
    main()
