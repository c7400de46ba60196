"""Everything that a machine with a GPU has to say in the minutes for which one has it, in two calls.

    make gpu-check OUT=DIR    # facts, each kernel, training, links, rates, epochs: within --seconds
    make gpu-more OUT=DIR     # what failed, again; then a larger graph, counters of kernels, memory checks
    make gpu-more OUT=DIR CHECK="--known FILE"    # the same on another machine, with the first one's gpu-check.jsonl

Rows are kept in --work, which outlives the call, and copied to DIR after every part: gpu-check.jsonl (one line a
part), .txt (for people) and .log (what each part printed). Parts that are done are not run again. Every part
(gpu_parts.py) is a process of its own with a time limit; those of a step run side by side. What a part had printed
counts where it was ended: of JSON objects the last. Where something that was captured has crashed or hung, later parts
capture nothing.
Needs what `hongtu` needs, pytest and torch_geometric, and no package registry.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gpu_parts import Part, first, more
from experiments.gpu_processes import MARK, SIGNALS, begin, end, end_left_behind, kill
from experiments.gpu_results import WARNED, line, reason, result_of
from hongtu.bench.records import append
from hongtu.errors import OutputError

DONE, LEFT_OUT, SLOW, ENDED, DIFFERS = "done", "left out", "took too long", "the call ended", "losses differ"
HANGS = 1 / 3  # what has printed nothing for so much of its limit hangs; else it is slow
TOLERANCE = 1e-4  # of losses, relative
LONGEST = 100_000  # characters of a part in the log
BROKEN = re.compile("CUDA error|CUDA_ERROR_(?!OUT_OF_MEMORY)")  # as torch and as cuda-bindings say it


@dataclass
class Running:
    """A part that has begun."""

    part: Part
    process: subprocess.Popen[bytes]
    files: tuple[Path, Path]
    start: float
    end: float
    row: dict[str, Any]


class Check:
    """Runs parts side by side, and keeps a row of each.

    Attributes:
        known: the last row of each part.
        late: parts that run beside the others, one after the other.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.begun = options, time.monotonic()
        self.known: dict[str, dict[str, Any]] = {row["part"]: row for row in kept(options.work / "gpu-check.jsonl")}
        self.late: list[Part] = []
        self._running: list[Running] = []
        self._beside: Running | None = None  # of these, that from ``late``
        self._processors = 0.0  # seconds that parts have taken of them

    def run(self, parts: Iterable[Part]) -> None:
        """Side by side, until all have ended; what is in the background begins before them, and goes on."""
        self._look()
        begun = [run for part in parts if (run := self._begin(part)) is not None]
        while any(run in self._running for run in begun):
            self._look()

    def done(self, part: Part) -> bool:
        """Whether it would not be run again."""
        return self._prepare(part)[2]

    def artifact(self, name: str, seconds: float) -> bool:
        """Whether a part that runs beside the others is done, or is within so many seconds; else it ends."""
        until = time.monotonic() + seconds
        while (self.late or self._beside in self._running) and time.monotonic() < until:
            self._look()
        self.late.clear()
        if self._beside is not None and self._beside in self._running:
            self._end(self._beside, None)
        return self.known.get(name, {}).get("status") == DONE

    def close(self) -> None:
        """End what still runs, and write that down, whoever else wants this process to end."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for run in self._running:
            kill(run.process)
        for run in [*self._running]:
            self._end(run, None, ENDED)
        self._report()

    def _look(self) -> None:
        """A moment later: what has ended, or has to."""
        time.sleep(0.02)
        if self.late and self._beside not in self._running:
            self._beside = self._begin(self.late.pop(0))
        for run in [*self._running]:
            if run.process.poll() is not None or time.monotonic() > run.end:
                self._end(run, run.process.poll())

    def _prepare(self, part: Part) -> tuple[Part, dict[str, Any], bool]:
        """A part as it would begin now, its row, and whether it is done."""
        row: dict[str, Any] = {"part": part.name, "device": self.options.device}
        ways, known = [said(part.command)], self.known.get(part.name, {})
        broken = [name for name, other in self.known.items() if other.get("crashed") and name != part.name]
        if part.eager and broken:  # what crashed itself is tried again as it was, by a second call
            ways.append(eagerly(part))
            part = replace(part, command=(*part.command, *part.eager), captures=False)
            row |= {"note": f"eager, for '{broken[0]}' crashed or hung"}
        row |= {"command": ways[-1]}
        done = known.get("status") == DONE and known["command"] in ways and known["device"] == row["device"]
        return part, row, done

    def _broken(self, command: str) -> bool:
        """Whether a command has crashed or hung."""
        return any(row.get("broken") and row["command"] == command for row in self.known.values())

    def _begin(self, part: Part) -> Running | None:
        part, row, done = self._prepare(part)
        if done:
            return None
        left = self.options.seconds - (time.monotonic() - self.begun)
        if part.needs_gpu and not on_gpu(self.options):
            return self._note(row | {"status": LEFT_OUT, "why": "needs a GPU"})
        if left < 1:
            return self._note(row | {"status": "no time left"})
        files = self.options.work / f"{part.name}.out", self.options.work / f"{part.name}.err"
        more = dict(part.environment) | {MARK: str(self.options.work)}
        with open(files[0], "wb") as stdout, open(files[1], "wb") as stderr:
            try:
                process = begin(part.command, stdout, stderr, more, part.forked and on_gpu(self.options))
            except OSError as error:
                return self._note(row | {"status": LEFT_OUT, "why": f"{part.command[0]} cannot run here: {error}"})
        start = time.monotonic()  # what is imported for the first copy may take longer than its limit
        last = min(start + part.limit * self.options.slow, self.begun + self.options.seconds)
        run = Running(part, process, files, start, last, row)
        self._running.append(run)
        return run

    def _end(self, run: Running, code: int | None, ended: str = SLOW) -> None:
        quiet = (time.time() - run.files[0].stat().st_mtime) / (run.part.limit * self.options.slow)
        if code is None and ended == SLOW:  # Python says where it is
            kill(run.process, signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(2)
        end(run.process)
        self._running.remove(run)
        printed, errors = (file.read_text(errors="replace") for file in run.files)
        with suppress(OSError), open(self.options.work / "gpu-check.log", "a") as log:
            log.write(f"=== {run.part.name}: {' '.join(run.part.command)}\n{printed[-LONGEST:]}\n")
            log.write(f"--- stderr\n{errors[-LONGEST:]}\n")
        row = run.row | {"begun": round(run.start - self.begun, 1), "seconds": round(time.monotonic() - run.start, 1)}
        used, before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]), self._processors
        self._processors, row["processor_seconds"] = used, round(used - before, 1)
        row |= result_of(printed.strip().splitlines(), run.part.shows)
        if warned := WARNED.findall(errors):
            row["warned"] = [*dict.fromkeys(warned)][:5]
        good = code == 0 and (run.part.shows in printed or not on_gpu(self.options))
        row["status"] = ended if code is None else DONE if good else "failed"
        if not good:
            row["why"] = reason(code, printed, errors, ended)
            broken = (ended == SLOW and quiet > HANGS if code is None else code < 0) or BROKEN.search(printed + errors)
            row["broken"] = bool(broken)
            too = run.part.eager and self._broken(eagerly(run.part))  # what is eager broke: capturing is not to blame
            row["crashed"] = row["broken"] and run.part.captures and not too
        losses = row.get("result", {}).get("losses")
        alike = [k for k in self.known.values() if k.get("alike") == run.part.alike != "" and k["status"] != DIFFERS]
        others = [k["result"]["losses"] for k in alike if k["part"] != run.part.name]
        if run.part.alike and losses:
            row["alike"], count = run.part.alike, min(map(len, [losses, *others]))
            if not all(np.allclose(losses[:count], other[:count], rtol=TOLERANCE) for other in others):
                row |= {"status": DIFFERS, "why": f"losses {losses} are not those of '{alike[0]['part']}': {others[0]}"}
        self._note(row)

    def _note(self, row: dict[str, Any]) -> None:
        self.known[row["part"]] = row
        self._report(row)
        with suppress(OSError, ValueError):  # nobody reads it any more
            print(line(row), flush=True)

    def _report(self, row: dict[str, Any] | None = None) -> None:
        work, out = self.options.work, self.options.out
        try:
            if row is not None:
                append(work / "gpu-check.jsonl", row)
            (work / "gpu-check.txt").write_text("\n".join(map(line, self.known.values())) + "\n")
            for name in ("gpu-check.jsonl", "gpu-check.txt", "gpu-check.log"):
                if (work / name).exists():
                    os.replace(shutil.copyfile(work / name, out / f".{name}"), out / name)  # whole, also if killed
        except (OSError, OutputError) as error:  # a full disk costs no part
            with suppress(OSError, ValueError):
                print(f"cannot be written: {error}", flush=True)


def said(command: tuple[str, ...]) -> str:
    return " ".join(("python", *command[1:]))


def eagerly(part: Part) -> str:
    """The command of a part where it captures nothing."""
    return said((*part.command, *part.eager))


def kept(path: Path) -> list[dict[str, Any]]:
    """Rows of earlier calls; a line that one which was killed left unfinished goes."""
    rows, whole = rows_of(path)
    if not whole:
        write(path, rows)
    return rows


def rows_of(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a file, if there is one, and whether every line is one."""
    lines, rows = path.read_text(errors="replace").splitlines() if path.exists() else [], []
    for text in lines:
        with suppress(ValueError):
            rows.append(json.loads(text))
    return rows, len(rows) == len(lines)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Have these rows in a file."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def on_gpu(options: argparse.Namespace) -> bool:
    return bool(options.device.startswith("cuda"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--more", action="store_true", help="the second call")
    parser.add_argument("--known", type=Path, help="gpu-check.jsonl of a machine that is gone: what it did is done")
    parser.add_argument("--work", type=Path, default=Path("/tmp/hongtu-gpu-check"), help="rows, artifacts")
    parser.add_argument("--device", default="cuda", help="'simulated' tries the check itself, without a GPU")
    parser.add_argument("--vertices", type=int, default=1_000_000, help="of the graph that epochs are timed on")
    parser.add_argument("--chunks", type=int, default=64, help="of its finest grain (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=6, help="of each run (default: %(default)s)")
    parser.add_argument("--order", default="clusters", help="of its vertices (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=2048, help="of host rows for the links")
    parser.add_argument("--host-memory", default="96GiB", help="what the machine grows to (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="for everything (default: 300, and 390 with --more)")
    parser.add_argument("--slow", type=float, default=1.0, help="times its limit a part has (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="PART", help="just these parts")
    options = parser.parse_args()
    options.seconds = options.seconds or (390 if options.more else 300)
    options.out, options.work = options.out.resolve(), options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # rows are printed, and kept in --work
        options.out.mkdir(parents=True, exist_ok=True)
    if on_gpu(options):
        if os.environ.get(MARK) != str(options.work):  # what marks a process is what it began with, copies included
            marked = os.environ | {MARK: str(options.work), "PYTHONUTF8": "1"}  # rows hold what no locale need have
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], marked)
        os.environ.setdefault("HONGTU_HOST_MEMORY", options.host_memory)
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    for number in SIGNALS:
        signal.signal(number, lambda found, _: sys.exit(128 + found))
    if count := end_left_behind(options.work):
        print(f"{count} processes of an earlier call were ended", flush=True)
    rows = options.work / "gpu-check.jsonl"
    if options.known is not None and not rows.exists():  # but for what that machine is, and what lay there
        its = "machine", "limits", "artifact of"
        write(rows, [row for row in rows_of(options.known)[0] if not row["part"].startswith(its)])
    check = Check(options)
    try:
        for parts in (more if options.more else first)(check):
            check.late = [part for part in check.late if options.only is None or part.name in options.only]
            check.run(part for part in parts if options.only is None or part.name in options.only)
    finally:
        check.close()
    sys.exit(any(row["status"] not in (DONE, LEFT_OUT) for row in check.known.values()))


if __name__ == "__main__":
    main()
