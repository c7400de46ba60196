"""Entry point of ``hongtu``; ``hongtu.cli.stopping`` has the exit codes."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import NoReturn

from hongtu import __version__
from hongtu.cli.stopping import describe, exit_code, terminable
from hongtu.errors import InputError

# modules of hongtu.cli, one subcommand each: ``add_parser(subparsers)`` sets ``run``, which imports what is heavy
COMMANDS = (
    "generate", "preprocess", "info", "plan", "train", "embed", "export", "propagate", "bench", "report", "doctor",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """Reports a bad argument as one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see `{self.prog} --help`)")


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = _Parser(prog="hongtu", description="Train GNNs on whole graphs larger than device memory.")
    parser.add_argument("--version", action="version", version=f"hongtu {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"hongtu.cli.{name}").add_parser(subparsers)
    return parser


def program() -> int:
    """What ``hongtu`` and ``python -m hongtu`` run."""
    return main()


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        with terminable():
            arguments = build_parser().parse_args(argv)
            arguments.run(arguments)
        return 0
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except (Exception, KeyboardInterrupt) as error:
        print(f"hongtu: {describe(error)}", file=sys.stderr)
        return exit_code(error)
