"""Do every fault many times, keep what came of it, and write docs/reliability.md.

    python -m tests.faults [KIND ...] [--scale S]    # KIND: kill, stop, pressure, fuzz, artifacts, leaks, report

Outcomes are appended to experiments/results/reliability.jsonl; the document shows the newest of each fault.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.faults.outcome import Outcome
from tests.faults.processes import isolated
from tests.faults.report import keep, write_report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}, report; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many tries (default: 1)")
    options = parser.parse_args(argv)
    unknown = set(options.kinds) - {*KINDS, "report"}
    if unknown:
        parser.error(f"unknown kind {sorted(unknown)[0]!r}")
    lost = 0
    for kind in options.kinds or KINDS:
        for outcome in KINDS.get(kind, nothing)(options.scale):
            print(f"{outcome.fault}: {outcome.tries} tries, {len(outcome.losses)} losses ({outcome.note})", flush=True)
            for loss in outcome.losses[:20]:
                print(f"    {loss}", flush=True)
            lost += len(outcome.losses)
            keep(outcome, ["python -m tests.faults", kind, *(["--scale", str(options.scale)] * (options.scale != 1))])
    write_report(Path("docs/reliability.md"))
    return 1 if lost else 0


def nothing(scale: float) -> Iterator[Outcome]:
    yield from ()


def kill(scale: float) -> Iterator[Outcome]:
    from tests.faults.kill import kill_and_resume

    yield kill_and_resume(int(30 * scale))


def stop(scale: float) -> Iterator[Outcome]:
    from tests.faults.pressure import FAULTS, disturb

    for fault in FAULTS:
        yield disturb(fault, int(5 * scale))


def pressure(scale: float) -> Iterator[Outcome]:
    from tests.faults.memory import replan_many

    yield replan_many(int(100 * scale))


def fuzz(scale: float) -> Iterator[Outcome]:
    from tests.faults.fuzz import fuzz_reader
    from tests.faults.readers import READERS
    from tests.faults.run_readers import fuzz_run_reader

    for name in READERS:
        yield isolated(partial(fuzz_reader, name, int(10_000 * scale)), f"damaged {name}")
    for name in ("snapshot", "options.json", "epochs.jsonl"):
        yield isolated(partial(fuzz_run_reader, name, int(10_000 * scale)), f"damaged {name}")


def artifacts(scale: float) -> Iterator[Outcome]:
    from tests.faults.artifacts import fuzz_artifacts

    yield isolated(partial(fuzz_artifacts, int(5_000 * scale)), "damaged artifacts")


def leaks(scale: float) -> Iterator[Outcome]:
    from tests.faults.leaks import train_long

    for words, given in (("", {}), (" in a budget", {"device_memory": "1MiB"})):
        outcome = train_long(int(200 * scale), **given)
        outcome.fault += words
        yield outcome


KINDS = {"kill": kill, "stop": stop, "pressure": pressure, "fuzz": fuzz, "artifacts": artifacts, "leaks": leaks}

if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*planned again")
    sys.exit(main())
