"""Entry point of ``hongtu``; ``hongtu.cli.stopping`` has the exit codes."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

from hongtu import __version__
from hongtu.cli.stopping import describe, exit_code, terminable
from hongtu.errors import InputError, nearest
from hongtu.ranks.words import end_early
from hongtu.threads import shared_cores

# modules of hongtu.cli, one subcommand each: ``add_parser(subparsers)`` sets ``run``, which imports what is heavy
COMMANDS = (
    "generate", "preprocess", "info", "plan", "train", "embed", "export", "propagate", "bench", "report", "doctor",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """Reports a bad argument as one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses here, where the options of a command are known, what the parser of all commands would refuse."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option.lstrip("-") for action in self._actions for option in action.option_strings]
            meant = nearest(unknown[0].lstrip("-").partition("=")[0], options, "--")
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see `{self.prog} --help`)")


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = _Parser(prog="hongtu", description="Train GNNs on whole graphs larger than device memory.")
    parser.add_argument("--version", action="version", version=f"hongtu {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"hongtu.cli.{name}").add_parser(subparsers)
    return parser


def program() -> int:
    """What ``hongtu`` and ``python -m hongtu`` run."""
    return main()


def _check_alone(arguments: argparse.Namespace) -> None:
    """Refuse a command that torchrun has started several times."""
    ranks, command = int(os.environ.get("WORLD_SIZE", "1")), arguments.command
    if ranks > 1 and command != "train" and getattr(arguments, "measure_links", None) is None:
        raise InputError(f"{command}: runs in one process, and torchrun started {ranks}; leave torchrun out")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        with terminable(), shared_cores:
            parser = build_parser()
            arguments = parser.parse_args(argv)
            if arguments.command is None:
                parser.print_help()
            else:
                _check_alone(arguments)
                arguments.execute(arguments)
            sys.stdout.flush()
        return 0
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        end_early(describe(error))
        if code == 128 + signal.SIGPIPE:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        if not isinstance(error, BrokenPipeError):
            print(f"hongtu: {describe(error)}", file=sys.stderr)
        return code
