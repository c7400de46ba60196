"""What `make gpu-check` and `make gpu-more` run: parts, step by step."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.gpu_check import Check

PYTHON, EAGER, WORKERS = sys.executable, ("--eager",), ("-p", "xdist", "-n", "4")
KERNELS = {
    "rows": ("TestRows",),
    "csc": ("TestCsc",),
    "softmax": ("TestAttention::test_softmax", "TestAttention::test_softmax_of_logits_far_from_zero"),
    "attention": ("TestAttention::test_attend",),
    "gates": ("TestAttention::test_gated_sum", "TestAttention::test_attention_in_few_blocks"),
    "dropout": ("TestDropout",),
}
TRAINING = {
    "eager": ("single_precision and m1n7", *EAGER),
    "captured in memory": ("captured_epochs and memory",),
    "captured out of core": ("captured_epochs and core",),
    "four partitions": ("single_precision and m4n8",),
    "float64": ("is_exact or same_numbers", *WORKERS),
}
RUNS = {"eager": EAGER, "captured": (), "torch_geometric": ("--pyg",), "eager in 25%": ("--memory", "25%", *EAGER),
        "captured in 25%": ("--memory", "25%")}  # fmt: skip
FEW = "(gcn-m1n7-full or gat-m1n7-full) and exact and not ggcn"


@dataclass(frozen=True)
class Part:
    """One thing to find out.

    Attributes:
        command: run from the repository's root; the last JSON object that it prints is the part's result.
        limit: seconds.
        needs_gpu: left out on another device.
        captures: passes, so that a crash may be due to that.
        eager: what keeps it from that, where something else that captures has crashed or hung; () where nothing does.
        alike: parts whose losses agree have this in common.
        shows: on a GPU, what some line must hold: tests that were all skipped show nothing.
        forked: begins, on a GPU, from a process that has imported torch.
        environment: beside the process's own.
    """

    name: str
    command: tuple[str, ...]
    limit: int
    needs_gpu: bool = False
    captures: bool = False
    eager: tuple[str, ...] = ()
    alike: str = ""
    shows: str = ""
    forked: bool = False
    environment: tuple[tuple[str, str], ...] = ()


def first(check: Check) -> Iterator[list[Part]]:
    """The first call: what runs side by side, step by step."""
    options = check.options
    small = options.vertices * 2 // 5
    limits_of = {name: 60 if "--memory" in more else 40 for name, more in RUNS.items()}  # planning takes longest
    runs = {
        vertices: [
            epochs(options, vertices, f"{model} {name}", "--model", model, *more, limit=limits_of[name])
            for model in ("gcn", "gat")
            for name, more in RUNS.items()
        ]
        for vertices in (options.vertices, small)
    }
    timed = any(all(map(check.done, parts)) for parts in runs.values())
    if not timed:
        check.late.append(made(options, options.vertices, 120))
    query = "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current,clocks.max.sm"
    limits = "lscpu; free -g; df -h /tmp; nvidia-smi topo -m; nvcc --version; g++ --version; "
    limits += "nproc; echo locked memory: $(ulimit -l)"
    facts = [
        Part("machine", ("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"), 20, needs_gpu=True),
        Part("limits", ("sh", "-c", limits), 20),
        Part("packages", (PYTHON, "-m", "pip", "list", "--format", "freeze"), 30),
    ]
    yield [*facts, replace(measured(options, "memory", 40), forked=True)] + [
        tests(f"kernels of {file}.cu", "test_cuda_kernels.py", 60, "--sample", only=only, CUDA_LAUNCH_BLOCKING="1")
        for file, only in KERNELS.items()
    ]
    training = [
        replace(tests(name, "test_training.py", 90, "-k", *more), captures="--eager" not in more,
                eager=EAGER if name in ("four partitions", "float64") else ())
        for name, more in TRAINING.items()
    ]  # fmt: skip
    doctor = Part("environment", (PYTHON, "-m", "hongtu", "doctor", "--json"), 30)
    yield [*training, tests("kernels", "test_cuda_kernels.py", 90, *WORKERS), doctor]
    yield [measured(options, "links", 25)]
    yield [measured(options, "rates", 25)]
    if timed:
        return
    wait = options.seconds / (3 if options.more else 10)  # a second call may have nothing to run meanwhile
    found = check.artifact(f"artifact of {options.vertices}", wait)
    if not found:
        yield [made(options, small, 60)]
    for part in runs[options.vertices if found else small]:
        yield [part]


def more(check: Check) -> Iterator[list[Part]]:
    """The second call: what failed, then what there was no time for."""
    options = check.options
    if check.known:
        yield from first(check)
    vertices = 4 * options.vertices
    check.late += [made(options, options.vertices, 120), made(options, vertices, 240)]
    sanitizer = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9")
    checked = tests("sanitizer", "test_training.py", 150, "-k", FEW, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    counters = ("ncu", "--clock-control", "none", "--csv", "-k", "regex:csc_aggregate_f|copy_rows", "-c", "12")
    counters += ("--section", "SpeedOfLight", "--section", "MemoryWorkloadAnalysis", "--section", "Occupancy")
    yield [Part("counters", (*counters, *measured(options, "rates", 0).command), 90, needs_gpu=True)]
    # torch's cache is left out, for nothing in it is out of bounds
    yield [replace(checked, command=(*sanitizer, *checked.command), needs_gpu=True, forked=False)]
    if not check.artifact(f"artifact of {vertices}", options.seconds / 2):
        vertices = options.vertices
    for share in ("25%", "10%"):
        name = f"gcn of {vertices} in {share}"
        yield [epochs(options, vertices, name, "--model", "gcn", "--memory", share, "--timeline", limit=120)]


def made(options: argparse.Namespace, vertices: int, limit: int) -> Part:
    """An artifact of so many vertices and fifteen times as many edges, on half of the cores."""
    name, graph, hongtu = f"artifact of {vertices}", options.work / f"graph of {vertices}", f"'{PYTHON}' -m hongtu"
    size = f"--vertices {vertices} --edges {15 * vertices} --features 128 --classes 40 --seed 1"
    cut = f"--partitions 1 --chunks {options.chunks} --order {options.order} --force"
    script = (
        f"{hongtu} generate citation '{graph}' {size} && {hongtu} preprocess '{graph}' '{options.work / name}' {cut}"
    )
    half = str(max(1, (os.cpu_count() or 1) // 2))
    threads = ("OMP_NUM_THREADS", half), ("NUMBA_NUM_THREADS", half)
    script += f"; made=$?; rm -rf '{graph}'; exit $made"  # nobody reads it again, and /tmp may be small
    return Part(name, ("sh", "-c", f"rm -rf '{graph}'; {script}"), limit, environment=threads)


def tests(name: str, file: str, limit: int, *more: str, only: tuple[str, ...] = (), **environment: str) -> Part:
    """Tests on the GPU, each by its name: all of a file, or only these, and no others are looked at, which takes time.
    Of pytest's plugins those that are needed: others take seconds to load, and one a second of collecting garbage."""
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = (PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:unraisableexception")
    found = [f"tests/gpu/{file}::{test}" for test in only] or [f"tests/gpu/{file}"]
    beside = tuple(environment.items())
    return Part(name, (*command, *found, *more), limit, shows=" passed", forked=True, environment=beside)


def measured(options: argparse.Namespace, what: str, limit: int) -> Part:
    size = ("--megabytes", str(options.megabytes), "--vertices", str(options.vertices))
    return Part(what, (PYTHON, "-m", "experiments.gpu_links", what, "--device", options.device, *size), limit)


def epochs(options: argparse.Namespace, vertices: int, name: str, *more: str, limit: int) -> Part:
    artifact, alike = f"artifact of {vertices}", f"{more[1]} of {vertices}"
    command = (PYTHON, "-m", "experiments.gpu_epoch", str(options.work / artifact), "--device", options.device)
    captures = "--eager" not in more and "--pyg" not in more
    command += ("--epochs", str(options.epochs), *more)
    return Part(name, command, limit, captures=captures, eager=EAGER if captures else (), alike=alike)
