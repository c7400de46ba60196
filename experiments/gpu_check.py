"""Everything that a machine with a GPU has to say, in one command: environment, tests, links, epochs.

    make gpu-check OUT=DIR

Writes DIR/gpu-check.jsonl (one line per part), DIR/gpu-check.txt (for people) and DIR/gpu-check.log (what each part
printed); graph and artifact go to --work. Each part has a time limit, and all together end within --seconds; parts that
are done are not run again, so an interrupted check goes on. Of a part that was ended the last JSON object that it
printed counts.
Works on a machine without a package registry: it needs what `hongtu` needs, pytest, and torch_geometric.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hongtu.bench.records import append

PYTHON = sys.executable
DONE = "done"


@dataclass(frozen=True)
class Part:
    """One thing to find out.

    Attributes:
        command: run from the repository's root; its last line may be a JSON object, the part's result.
        limit: seconds.
        needs_gpu: left out on another device.
        shows: on a GPU, what some line must hold: tests that were all skipped show nothing.
        environment: beside the process's own.
    """

    name: str
    command: tuple[str, ...]
    limit: int
    needs_gpu: bool = False
    shows: str = ""
    environment: tuple[tuple[str, str], ...] = ()


def parts(options: argparse.Namespace) -> list[Part]:
    """What is to be done, the most important first."""
    graph, artifact = options.work / "graph", options.work / "artifact"
    size = ("--vertices", str(options.vertices), "--edges", str(15 * options.vertices))
    on = ("--device", options.device)
    query = "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current,clocks.max.sm"
    few = "(gcn-m1n7-full or gat-m1n7-full) and exact and not ggcn"
    found = [
        Part("environment", (PYTHON, "-m", "hongtu", "doctor", "--json"), 60),
        Part("machine", ("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"), 30, True),
        Part("packages", (PYTHON, "-m", "pip", "list", "--format", "freeze"), 60),
        Part("links", (PYTHON, "-m", "experiments.gpu_links", *on, "--megabytes", str(options.megabytes)), 60),
        Part("tests", (PYTHON, "-m", "pytest", "-q", "-n", "8", "--maxfail", "30", "tests/gpu"), 300, shows=" passed"),
        Part("graph", (PYTHON, "-m", "hongtu", "generate", "citation", str(graph), *size, "--features", "128",
             "--classes", "40", "--seed", "1"), 120),
        Part("artifact", (PYTHON, "-m", "hongtu", "preprocess", str(graph), str(artifact), "--partitions", "1",
             "--chunks", str(options.chunks), "--order", options.order), 200),
    ]  # fmt: skip
    for model, layers in (("gcn", 2), ("gcn", 3), ("gat", 2)):
        command = (PYTHON, "-m", "experiments.gpu_epoch", str(artifact), *on, "--model", model, "--layers", str(layers))
        more = ("--epochs", str(options.epochs), "--timeline")
        found.append(Part(f"{model} of {layers} layers", (*command, *more), 150))
    proofs = ("tests/device", "tests/cuda_ext", "tests/plan/test_timeline.py")
    found.append(Part("proofs", (PYTHON, "-m", "pytest", "-q", "-n", "8", "--sample", *proofs), 120, shows=" passed"))
    found.append(
        # without torch's cache, in which nothing is out of bounds
        Part("sanitizer", ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", PYTHON, "-m", "pytest",
             "-q", "tests/gpu/test_training.py", "-k", few), 200, True, " passed",
             (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),))
    )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", help="'simulated' tries the check itself, without a GPU")
    parser.add_argument("--vertices", type=int, default=4_000_000, help="of the graph that epochs are timed on")
    parser.add_argument("--chunks", type=int, default=64, help="of its finest grain (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="timed of each run (default: %(default)s)")
    parser.add_argument("--order", default="clusters", help="of its vertices (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=2048, help="of host rows for the links")
    parser.add_argument("--seconds", type=int, default=520, help="for everything (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="PART", help="just these parts")
    parser.add_argument("--work", type=Path, help="graph and artifact, some gigabytes (default: OUT/work)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.work = (options.work or options.out / "work").resolve()
    for folder in (options.out, options.work):
        folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    for part in parts(options):
        if not is_done(part, options) and (options.only is None or part.name in options.only):
            row = run(part, options, end)
            append(options.out / "gpu-check.jsonl", row)
            print(line(row), flush=True)
    rows = latest(options.out)
    (options.out / "gpu-check.txt").write_text("\n".join(map(line, rows.values())) + "\n")
    sys.exit(any(row["status"] not in (DONE, "left out") for row in rows.values()))


def run(part: Part, options: argparse.Namespace, end: float) -> dict[str, Any]:
    """Run a part within its limit and the time that is left."""
    row: dict[str, Any] = identity(part, options)
    if part.needs_gpu and not options.device.startswith("cuda"):
        return row | {"status": "left out", "why": "needs a GPU"}
    left = end - time.monotonic()
    if left < 1:
        return row | {"status": "no time left"}
    start = time.monotonic()
    out, log = options.work / "out", options.work / "log"
    with open(out, "w") as stdout, open(log, "w") as stderr:
        try:
            code = run_all(part.command, stdout, stderr, min(part.limit, left), dict(part.environment))
        except FileNotFoundError:
            return row | {"status": "left out", "why": f"there is no {part.command[0]} here"}
    row["seconds"] = time.monotonic() - start
    printed = out.read_text()
    with open(options.out / "gpu-check.log", "a") as every:
        every.write(f"=== {part.name}: {' '.join(part.command)}\n{printed}\n--- stderr\n{log.read_text()}\n")
    if code is None:
        row["status"] = "took too long"
    else:
        shown = part.shows in printed or not options.device.startswith("cuda")
        row["status"] = DONE if code == 0 and shown else "failed"
    return row | result_of(printed.strip().splitlines(), part.shows)


def result_of(lines: list[str], shows: str) -> dict[str, Any]:
    """The last JSON object among what was printed, and of the rest the last line, or the last that shows something."""
    found: dict[str, Any] = {}
    for text in lines:
        try:
            read = json.loads(text)
        except ValueError:
            continue
        found = {"result": read} if isinstance(read, dict) else found
    telling = [text for text in lines if shows and shows in text] or lines[-1:]
    return found or {"said": telling[-1] if telling else ""}


def run_all(
    command: tuple[str, ...], stdout: IO[str], stderr: IO[str], limit: float, more: dict[str, str] | None = None
) -> int | None:
    """Run a command; its exit code, or None when it was ended, with all that it had started, after the limit.

    Args:
        more: environment.
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | (more or {})
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, start_new_session=True, env=environment)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def identity(part: Part, options: argparse.Namespace) -> dict[str, Any]:
    """What tells one part of a check from another."""
    return {"part": part.name, "command": " ".join(("python", *part.command[1:])), "device": options.device}


def is_done(part: Part, options: argparse.Namespace) -> bool:
    """Whether the same command has been done on the same device."""
    row = latest(options.out).get(part.name, {})
    return row.get("status") == DONE and row.items() >= identity(part, options).items()


def latest(out: Path) -> dict[str, dict[str, Any]]:
    """What was found last, by part."""
    file = out / "gpu-check.jsonl"
    rows = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    return {row["part"]: row for row in rows}


def line(row: dict[str, Any]) -> str:
    """One part for people."""
    text = (
        f"{row['part']:18s} {row['status']:14s} {row.get('seconds', 0):6.1f} s  {row.get('why', row.get('said', ''))}"
    )
    result = row.get("result")
    if not isinstance(result, dict):
        return text.rstrip()
    if row["part"] == "links":
        text += f"copy {result['copy']:.1f} GB/s, a chunk {result['chunk_seconds'] * 1e3:.2f} ms"
        for size, both in result["rows"].items():
            direct, through_host = both["zero_copy"], both["host_gather"]
            text += f"\n    rows of {size:>4s} bytes: zero-copy {direct:5.1f}, host gather {through_host:5.1f} GB/s"
        for blocks, rate in result["blocks"].items():
            text += f"\n    {blocks:>4s} blocks: {rate['alone']:5.1f} GB/s alone, {rate['beside']:5.1f} beside products"
    elif "unlimited" in result:
        text += "losses agree" if result["losses_agree"] else "LOSSES DIFFER"
        for name, run in result.items():
            if isinstance(run, dict):
                text += f"\n    {name:16s} " + (
                    f"{run['seconds']:.4f} s, allocated {run['allocated'] / 2**30:.2f} GiB"
                    if "seconds" in run
                    else run["error"]
                )
    elif row["part"] == "environment":
        text += ", ".join(gpu["name"] for gpu in result["gpus"]) or "no GPU"
    return text.rstrip()


if __name__ == "__main__":
    main()
