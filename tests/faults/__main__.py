"""Do every fault many times, keep what came of it, and write docs/reliability.md.

    python -m tests.faults [KIND ...] [--scale S] [--reader NAME]

KIND is kill, ranks, stop, signals, pressure, fuzz, artifacts, leaks or report (only the document).

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
    parser.add_argument("--reader", metavar="NAME", help="fuzz only this one")
    options = parser.parse_args(argv)
    unknown = set(options.kinds) - {*KINDS, "report"}
    if unknown:
        parser.error(f"unknown kind {sorted(unknown)[0]!r}")
    lost = 0
    for kind in options.kinds or KINDS:
        for outcome in KINDS.get(kind, nothing)(options):
            print(f"{outcome.fault}: {outcome.tries} tries, {len(outcome.losses)} losses ({outcome.note})", flush=True)
            for loss in outcome.losses[:20]:
                print(f"    {loss}", flush=True)
            lost += len(outcome.losses)
            keep(outcome, ["python", "-m", "tests.faults", *(argv or sys.argv[1:])])
    write_report(Path("docs/reliability.md"))
    return 1 if lost else 0


def nothing(options: argparse.Namespace) -> Iterator[Outcome]:
    yield from ()


def kill(options: argparse.Namespace) -> Iterator[Outcome]:
    from tests.faults.kill import kill_and_resume

    yield kill_and_resume(int(30 * options.scale))


def ranks(options: argparse.Namespace) -> Iterator[Outcome]:
    from tests.faults.ranks import disturb_ranks

    yield disturb_ranks("SIGKILL", int(30 * options.scale))
    yield disturb_ranks("SIGSTOP", int(5 * options.scale))


def stop(options: argparse.Namespace) -> Iterator[Outcome]:
    from tests.faults.pressure import FAULTS, disturb

    for fault in FAULTS:
        yield disturb(fault, int(5 * options.scale))


def signals(options: argparse.Namespace) -> Iterator[Outcome]:
    from tests.faults.rank_signals import interrupt_ranks
    from tests.faults.signals import Preprocessing, Training, interrupt

    for kind in (Training, Preprocessing):
        yield interrupt(kind, int(1000 * options.scale))
    for dependencies in ("comm", "cache"):
        yield interrupt_ranks(dependencies, int(500 * options.scale))


def pressure(options: argparse.Namespace) -> Iterator[Outcome]:
    from tests.faults.memory import replan_many

    yield replan_many(int(100 * options.scale))


def fuzz(options: argparse.Namespace) -> Iterator[Outcome]:
    from tests.faults.fuzz import fuzz_reader
    from tests.faults.readers import READERS
    from tests.faults.run_readers import RUN_READERS, fuzz_run_reader

    for name in (name for name in READERS if options.reader in (None, name)):
        yield isolated(partial(fuzz_reader, name, int(10_000 * options.scale)), f"damaged {name}")
    for name in (name for name in RUN_READERS if options.reader in (None, name)):
        yield isolated(partial(fuzz_run_reader, name, int(10_000 * options.scale)), f"damaged {name}")


def artifacts(options: argparse.Namespace) -> Iterator[Outcome]:
    from tests.faults.artifacts import fuzz_artifacts

    yield isolated(partial(fuzz_artifacts, int(5_000 * options.scale)), "damaged artifacts")


def leaks(options: argparse.Namespace) -> Iterator[Outcome]:
    from tests.faults.leaks import train_long

    for words, given in (("", {}), (" in a budget", {"device_memory": "1MiB"})):
        outcome = isolated(partial(train_long, int(200 * options.scale), **given), "a long run")
        outcome.fault += words
        yield outcome


KINDS = {
    "kill": kill, "ranks": ranks, "stop": stop, "signals": signals, "pressure": pressure, "fuzz": fuzz,
    "artifacts": artifacts, "leaks": leaks,
}  # fmt: skip

if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*planned again")
    sys.exit(main())
