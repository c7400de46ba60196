"""``hongtu report RUN_OR_RESULTS``: show a run or results as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from hongtu.errors import InputError, refused_as

PAGE = "report.html"  # where nothing is said


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument("results", type=Path, metavar="RUN_OR_RESULTS", help="directory of `hongtu train --run`, "
        "or a file of `hongtu bench --out` or a directory of such")  # fmt: skip
    parser.add_argument("-o", "--out", type=Path, default=Path(PAGE), help=f"default: {PAGE}")
    parser.add_argument("--title", help="default: the directory's name")


def run(options: argparse.Namespace) -> None:
    """Read, draw, write."""
    from hongtu.bench.report.page import collect, render, settings_of
    from hongtu.files import write_text

    if not options.results.exists():
        raise InputError(f"{options.results}: not found; expected a run or a directory of results")
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        raise InputError(f"--out {options.out}: expected a file in a directory that exists")
    results = collect(options.results)
    title = options.title or f"hongtu: {options.results.resolve().name}"
    with refused_as(str(options.results), "remove what no run and no benchmark wrote"):
        page = render(results, title, settings_of(options.results))
    write_text(options.out, page, PAGE)
    print(f"{options.out}: {', '.join(f'{len(rows)} rows of {name}' for name, rows in results.items())}")
