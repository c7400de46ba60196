"""The command line of an experiment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def make_parser(doc: str | None, *, out: bool = True, **options: Any) -> argparse.ArgumentParser:
    """A parser that shows a module's docstring, and options whose names say what they are.

    Args:
        out: with ``--out``, where results go.
        options: defaults, whose types are those of the values; a list takes several.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in options.items():
        several = isinstance(default, list)
        kind = type(default[0] if several else default)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, nargs="+" if several else None)
    if out:
        parser.add_argument("--out", type=Path, help="append JSON lines here")
    return parser
