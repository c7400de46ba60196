"""Ranks on a slow network: hosts are network namespaces whose links are limited in both directions. Linux, as root.

    python -m experiments.ranks_network ARTIFACT [--rate 20] [--hidden 256] [--layers 2 3] [--ranks-of-host 1]
        [--systems sar cache comm hybrid routes] [--equal] [--out FILE.jsonl]

ARTIFACT has one partition a rank. GCN by every ``--dependencies``, by SAR (``sar``), and by ``comm`` with a topology
file that says who shares a host (``routes``), one after the other; each rank has one core, which it shares where there
are more ranks than cores. Seconds are the median epoch's of rank 0, the first left out; the first loss must agree.
``--equal``: what crosses takes as long as the passes that it crosses beside.
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
from experiments.crossing import crossing_bytes, exchanges, plans_of
from experiments.options import make_parser
from hongtu.bench.records import append, machine
from hongtu.hardware import CPU
from hongtu.train.ranked import DEPENDENCIES

AGREE = 1e-4  # of the first loss
BURST = 32  # kilobits, at least what passes between two ticks of a clock
TICKS = 250  # in a second
MASTER, PORT = "10.77.0.1", 29500
LIMIT = 1800  # seconds that a run may take
FREE = 100_000.0  # megabits per second, which is no limit here
MODULES = {"sar": "experiments.sar", "alone": "experiments.crossing"}


@contextmanager
def network(hosts: int, megabits: float) -> Iterator[list[str]]:
    """Names of namespaces, one for each host, that a bridge in one more joins."""
    hub, names = f"hongtu{os.getpid()}", [f"hongtu{os.getpid()}-{host}" for host in range(hosts)]

    def ip(*words: str, inside: str | None = None) -> None:
        subprocess.run(["ip", *(("-n", inside) if inside else ()), *words], check=True)

    def limit(device: str, inside: str) -> None:
        burst = f"{max(BURST, round(1000 * megabits / TICKS))}kbit"
        rate = ["rate", f"{megabits}mbit", "burst", burst, "latency", "400ms"]
        subprocess.run(["tc", "-n", inside, "qdisc", "add", "dev", device, "root", "tbf", *rate], check=True)

    try:
        ip("netns", "add", hub)
        ip("link", "add", "bridge", "type", "bridge", inside=hub)
        ip("link", "set", "bridge", "up", inside=hub)
        for host, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", "eth0", "type", "veth", "peer", "name", f"port{host}", "netns", hub, inside=name)
            ip("addr", "add", f"10.77.0.{host + 1}/24", "dev", "eth0", inside=name)
            for device in ("lo", "eth0"):
                ip("link", "set", device, "up", inside=name)
            ip("link", "set", f"port{host}", "master", "bridge", "up", inside=hub)
            if megabits < FREE:
                limit("eth0", name)
                limit(f"port{host}", hub)
        yield names
    finally:
        for name in (hub, *names):
            subprocess.run(["ip", "netns", "del", name], check=False)


def started(names: list[str], ranks_of_host: int, words: list[str]) -> str:
    """Run a module by torchrun, so many processes in each namespace; what rank 0 printed."""
    cores, processes = sorted(os.sched_getaffinity(0)), []
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    for host, name in enumerate(names):
        where = ["--nnodes", str(len(names)), "--nproc-per-node", str(ranks_of_host), "--node-rank", str(host)]
        where += ["--master-addr", MASTER, "--master-port", str(PORT), "-m", "--"]
        command = ["ip", "netns", "exec", name, "taskset", "-c", str(cores[host % len(cores)]), sys.executable]
        out = subprocess.PIPE if host == 0 else subprocess.DEVNULL
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
    parser = make_parser(__doc__, hidden=256, layers=[2, 3], epochs=4, ranks_of_host=1, systems=[*DEPENDENCIES])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--rate", type=float, default=20.0, help="megabits per second of each host's link")
    parser.add_argument("--equal", action="store_true", help="what crosses takes as long as what is computed")
    options = parser.parse_args()
    for layers in options.layers:
        if options.equal:
            measure_equal(options, layers)
        else:
            measured(options, layers, options.systems, options.rate)


def measure_equal(options: argparse.Namespace, layers: int) -> None:
    """An epoch where what crosses takes as long as the passes that it crosses beside. These passes, with the waits for
    what crosses, by what is longer: ``of_longer`` pass by pass, the pass without a limit or its crossing alone;
    ``of_total`` all passes or all crossings. The rate is the one at which the latter are equal."""
    plans = plans_of(hongtu.open_artifact(options.artifact), options.hidden, layers)
    crossed = {name for name, *_ in exchanges(plans[0])}
    free = measured(options, layers, ["comm"], FREE)["comm"]
    beside = {name: seconds for name, seconds in free["passes"].items() if name in crossed}
    total = sum(beside.values())
    found = measured(options, layers, ["alone", "comm"], crossing_bytes(plans) * 8 / 1e6 / total)
    alone, epoch = found["alone"], found["comm"]["seconds"]
    longer, taken = sum(max(beside[name], alone["passes"][name]) for name in beside), epoch - free["seconds"] + total
    row = machine("ranks_network") | {"layers": layers, "free": free["seconds"], "beside": total}
    row |= {"alone": alone["seconds"], "epoch": epoch, "of_longer": taken / longer}
    row |= {"of_total": taken / max(total, alone["seconds"])}
    append(options.out, row)
    print({name: value for name, value in row.items() if isinstance(value, float)}, flush=True)


def measured(options: argparse.Namespace, layers: int, systems: list[str], rate: float) -> dict[str, dict[str, Any]]:
    """What ``measure`` gives of each system."""
    ranks = hongtu.open_artifact(options.artifact).topology.partitions
    found: dict[str, dict[str, Any]] = {}
    with network(ranks // options.ranks_of_host, rate) as names, tempfile.TemporaryDirectory() as folder:
        profile, topology = Path(folder) / "profile.json", Path(folder) / "topology.json"
        profile.write_text(json.dumps(replace(CPU, network_link=rate / 8 * 1e6).to_dict()))
        hosts = [names[rank // options.ranks_of_host] for rank in range(ranks)]
        topology.write_text(json.dumps({"hosts": hosts}))
        for system in systems:
            found[system] = measure(options, names, layers, system, Path(folder), profile, topology)
            about = {"ranks": ranks, "ranks_of_host": options.ranks_of_host, "megabits": rate, "layers": layers}
            about |= {"graph": options.artifact.name, "hidden": options.hidden, "system": system}
            append(options.out, machine("ranks_network") | about | found[system])
            over = found[system]["seconds"] / found[systems[0]]["seconds"]
            print(f"{layers} layers, {rate:.0f} Mbit/s, {system:6s} {found[system]['seconds']:7.2f} s, {over:.2f} of "
                  f"{systems[0]}", flush=True)  # fmt: skip
    losses = [row["loss"] for row in found.values() if row["loss"] is not None]
    if max(losses) - min(losses) > AGREE * max(losses):
        raise SystemExit(f"losses differ: {found}")
    return found


def measure(
    options: argparse.Namespace, names: list[str], layers: int, system: str, folder: Path, profile: Path, topology: Path
) -> dict[str, Any]:
    """Seconds of the median epoch after the first, of its passes, and the first loss."""
    model = ["--hidden", str(options.hidden), "--layers", str(layers), "--epochs", str(options.epochs)]
    artifact, run = str(options.artifact.resolve()), folder / f"{system}-{layers}"
    if system in MODULES:
        lines = started(names, options.ranks_of_host, [MODULES[system], artifact, *model]).splitlines()
    else:
        words = ["hongtu", "train", artifact, "--model", "gcn", *model, "--hardware", str(profile), "--run", str(run)]
        words += ["--dependencies", "comm" if system == "routes" else system]
        words += ["--topology", str(topology)] if system == "routes" else []
        started(names, options.ranks_of_host, words)
        lines = (run / "epochs.jsonl").read_text().splitlines()
    epochs = [json.loads(line) for line in lines]
    passes = {
        name: median(epoch["pass_seconds"][name] for epoch in epochs[1:]) for name in epochs[0].get("pass_seconds", ())
    }
    return {"seconds": median(epoch["seconds"] for epoch in epochs[1:]), "loss": epochs[0]["loss"], "passes": passes}


if __name__ == "__main__":
    main()
