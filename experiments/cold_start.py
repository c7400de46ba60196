"""What a first use costs where nothing has been compiled yet: processor seconds of `hongtu preprocess` and of a first
`hongtu train`, and which kernels were compiled in how many of them.

    HONGTU_DATA=DIR python -m experiments.cold_start [GRAPH ...] [--models gcn gat] [--train "--epochs 1"] [--warm]

GRAPH is a directory of HONGTU_DATA or a path (default: planetoid-cora planetoid-citeseer ogbn-arxiv); one without
features gets 128 random ones. Every command
runs in a process of its own, with NUMBA_CACHE_DIR an empty directory; with ``--warm`` once more with what the first
left there. Seconds are those of the processor, which others on the machine change less; those of compiling are by the
clock. The first line has those of importing torch, which every ``train`` holds. ``HONGTU_COMPILE=always`` shows what
plain kernels save.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parents[1]
GRAPHS = ("planetoid-cora", "planetoid-citeseer", "ogbn-arxiv")

ONE = """
import json, sys, time
from experiments.cold_start import count_compiling
from hongtu.cli.main import main
seconds = count_compiling()
code = main(sys.argv[2:])
loaded = sorted({"torch", "numba"} & set(sys.modules))
with open(sys.argv[1], "w") as out:
    json.dump({"code": code, "processor": time.process_time(), "loaded": loaded, "kernels": seconds}, out)
"""


def count_compiling() -> dict[str, float]:
    """From here on, the seconds that compiling takes in this process, by kernel, without the kernels that it calls;
    numba, which compiles on one thread at a time, is not loaded before it is needed."""
    from hongtu import compiled

    seconds: dict[str, float] = {}
    make, listening, begun, inside = compiled._make, [], [], [0.0]

    def listen_and_make(*given: Any) -> Any:
        from numba.core import event

        class Clock(event.Listener):
            def on_start(self, found: Any) -> None:
                begun.append(perf_counter())
                inside.append(0.0)

            def on_end(self, found: Any) -> None:
                whole, of_others = perf_counter() - begun.pop(), inside.pop()
                function = found.data["dispatcher"].py_func
                name = f"{function.__module__}.{function.__qualname__}"
                seconds[name] = seconds.get(name, 0.0) + whole - of_others
                inside[-1] += whole

        if not listening:
            listening.append(Clock())
            event.register("numba:compile", listening[0])
        return make(*given)

    compiled._make = listen_and_make
    return seconds


def measure(command: list[str], cache: Path) -> dict[str, Any]:
    """One command of hongtu in a new process: exit code, processor seconds, libraries that were loaded, and by kernel
    the seconds that it took to compile."""
    with tempfile.NamedTemporaryFile() as out:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(HERE)}
        call = [sys.executable, "-c", ONE, out.name, *command]
        done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
        found: dict[str, Any] = json.loads(Path(out.name).read_text() or "{}")
    if found.get("code") != 0:
        raise SystemExit(f"hongtu {shlex.join(command)}:\n{done.stderr}")
    return found


def main(argv: list[str] | None = None) -> None:
    """Measure, and print a line for every command and every kernel."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--models", nargs="+", default=["gcn", "gat"])
    parser.add_argument("--train", default="--epochs 1", help="further options of `hongtu train`")
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args(argv)
    alone = [sys.executable, "-c", "import time, torch; print(time.process_time())"]
    seconds = float(subprocess.run(alone, capture_output=True, text=True, check=True).stdout)
    print(f"importing torch, in every train: {seconds:.1f} s of processor time")
    for name in options.graphs:
        graph = Path(name) if Path(name).exists() else Path(os.environ.get("HONGTU_DATA", "."), name)
        with tempfile.TemporaryDirectory() as folder:
            artifact = str(Path(folder, "artifact"))
            given = [] if any(graph.glob("features.*")) else ["--features", "random:128"]
            commands = [["preprocess", str(graph), artifact, "--force", *given]]
            commands += [["train", artifact, "--model", m, *shlex.split(options.train)] for m in options.models]
            for state in ("cold", "warm") if options.warm else ("cold",):
                for k, command in enumerate(commands):
                    _print(graph.name, state, command, measure(command, Path(folder, f"cache {k}")))


def _print(graph: str, state: str, command: list[str], found: dict[str, Any]) -> None:
    what = command[0] if command[0] == "preprocess" else f"train {command[3]}"
    own = {kernel: seconds for kernel, seconds in found["kernels"].items() if kernel.startswith("hongtu.")}
    print(f"{graph} {state} {what}: {found['processor']:.1f} s of processor time, {len(own)} kernels compiled")
    for kernel, seconds in sorted(own.items(), key=lambda item: -item[1]):
        print(f"  {seconds:6.2f} s  {kernel.removeprefix('hongtu.')}")


if __name__ == "__main__":
    main()
