"""Ranks on a slow network: each in a network namespace whose link is limited in both directions. Linux, as root.

    python -m experiments.ranks_network ARTIFACT [--rate 20] [--hidden 256] [--layers 2 3] [--out FILE.jsonl]

ARTIFACT has one partition a rank. GCN by every ``--dependencies`` and by SAR's rounds (``experiments.ring``), one after
the other; each rank has one core, which it shares where there are more ranks than cores. Seconds are the median epoch's
of rank 0, the first left out; the first loss must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import hongtu
from hongtu.bench.records import append, machine
from hongtu.hardware import CPU
from hongtu.train.dependencies import DEPENDENCIES

AGREE = 1e-4  # of the first loss
BURST = "32kbit"
MASTER, PORT = "10.77.0.1", 29500
LIMIT = 1800  # seconds that a run may take


@contextmanager
def network(ranks: int, megabits: float) -> Iterator[list[str]]:
    """Names of namespaces, one for each rank, that a bridge in one more joins."""
    hub, names = f"hongtu{os.getpid()}", [f"hongtu{os.getpid()}-{rank}" for rank in range(ranks)]

    def ip(*words: str, inside: str | None = None) -> None:
        subprocess.run(["ip", *(("-n", inside) if inside else ()), *words], check=True)

    def limit(device: str, inside: str) -> None:
        rate = ["rate", f"{megabits}mbit", "burst", BURST, "latency", "400ms"]
        subprocess.run(["tc", "-n", inside, "qdisc", "add", "dev", device, "root", "tbf", *rate], check=True)

    try:
        ip("netns", "add", hub)
        ip("link", "add", "bridge", "type", "bridge", inside=hub)
        ip("link", "set", "bridge", "up", inside=hub)
        for rank, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", "eth0", "type", "veth", "peer", "name", f"port{rank}", "netns", hub, inside=name)
            ip("addr", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0", inside=name)
            for device in ("lo", "eth0"):
                ip("link", "set", device, "up", inside=name)
            ip("link", "set", f"port{rank}", "master", "bridge", "up", inside=hub)
            limit("eth0", name)
            limit(f"port{rank}", hub)
        yield names
    finally:
        for name in (hub, *names):
            subprocess.run(["ip", "netns", "del", name], check=False)


def started(names: list[str], words: list[str]) -> str:
    """Run a module by torchrun, one process in each namespace; what rank 0 printed."""
    cores, processes = sorted(os.sched_getaffinity(0)), []
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    for rank, name in enumerate(names):
        where = ["--nnodes", str(len(names)), "--nproc-per-node", "1", "--node-rank", str(rank)]
        where += ["--master-addr", MASTER, "--master-port", str(PORT), "-m", "--"]
        command = ["ip", "netns", "exec", name, "taskset", "-c", str(cores[rank % len(cores)]), sys.executable]
        out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        command += ["-m", "torch.distributed.run", *where, *words]
        processes.append(subprocess.Popen(command, env=environment, stdout=out, text=True))
    try:
        printed, _ = processes[0].communicate(timeout=LIMIT)
        if any(process.wait(LIMIT) for process in processes):
            raise SystemExit(f"{words}: exit {[process.returncode for process in processes]}")
        return printed
    finally:
        for process in processes:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--rate", type=float, default=20.0, help="megabits per second of each rank's link")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--systems", nargs="+", default=["ring", *DEPENDENCIES])
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    ranks = hongtu.open_artifact(options.artifact).topology.partitions
    with network(ranks, options.rate) as names, tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        profile.write_text(json.dumps(replace(CPU, network_link=options.rate / 8 * 1e6).to_dict()))
        for layers in options.layers:
            found: dict[str, dict[str, Any]] = {}
            for system in options.systems:
                found[system] = measure(options, names, layers, system, Path(folder) / f"{system}-{layers}", profile)
                about = {"ranks": ranks, "megabits": options.rate, "layers": layers, "hidden": options.hidden}
                row = machine("ranks_network") | {"graph": options.artifact.name, **about, "system": system}
                append(options.out, row | found[system])
                over = found[system]["seconds"] / found[options.systems[0]]["seconds"]
                print(f"{layers} layers, {system:6s} {found[system]['seconds']:7.2f} s, {over:.2f} of "
                      f"{options.systems[0]}", flush=True)  # fmt: skip
            losses = [row["loss"] for row in found.values()]
            if max(losses) - min(losses) > AGREE * max(losses):
                raise SystemExit(f"losses differ: {found}")


def measure(
    options: argparse.Namespace, names: list[str], layers: int, system: str, run: Path, profile: Path
) -> dict[str, Any]:
    """Seconds of the median epoch after the first, and the first loss."""
    model = ["--hidden", str(options.hidden), "--layers", str(layers), "--epochs", str(options.epochs)]
    artifact = str(options.artifact.resolve())
    if system == "ring":
        lines = started(names, ["experiments.ring", artifact, *model]).splitlines()
    else:
        words = ["hongtu", "train", artifact, "--model", "gcn", *model, "--dependencies", system]
        started(names, [*words, "--hardware", str(profile), "--run", str(run)])
        lines = (run / "epochs.jsonl").read_text().splitlines()
    epochs = [json.loads(line) for line in lines]
    return {"seconds": median(epoch["seconds"] for epoch in epochs[1:]), "loss": epochs[0]["loss"]}


if __name__ == "__main__":
    main()
