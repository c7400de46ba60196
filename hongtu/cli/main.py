"""Entry point of ``hongtu``; ``hongtu.cli.stopping`` has the exit codes."""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import suppress
from typing import Any, NoReturn

from hongtu import __version__
from hongtu.cli.stopping import Signals, describe, drop_unread, exit_code, own_streams, stoppable
from hongtu.errors import InputError, nearest, printable
from hongtu.ranks.parent import end_with_torchrun, torchruns
from hongtu.ranks.words import end_early
from hongtu.threads import shared_cores

# modules of hongtu.cli, one subcommand each, with ``add_options(parser)`` and ``run(options)``, which imports what is
# heavy; the help is what their first line says
COMMANDS = (
    "generate", "preprocess", "info", "plan", "train", "embed", "infer", "export", "propagate", "bench", "report",
    "migrate", "doctor",
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
        command = importlib.import_module(f"hongtu.cli.{name}")
        own = subparsers.add_parser(name, help=(command.__doc__ or "").partition("``: ")[2].rstrip("."))
        command.add_options(own)
        own.set_defaults(execute=command.run)
    return parser


def _check_alone(arguments: argparse.Namespace) -> None:
    """Refuse a command that torchrun has started several times."""
    ranks, command = torchruns("WORLD_SIZE", "1"), arguments.command
    if ranks > 1 and command != "train" and getattr(arguments, "measure_links", None) is None:
        raise InputError(f"{command}: runs in one process, and torchrun started {ranks}; leave torchrun out")


def program() -> int:
    """What ``hongtu`` and ``python -m hongtu`` run: signals stay handled until the process has ended."""
    own_streams()
    signals = Signals()
    sys.unraisablehook = signals.again
    signals.install()
    return _run(None, signals)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    with stoppable() as signals:
        return _run(argv, signals)


def _run(argv: list[str] | None, signals: Signals) -> int:
    code = 0
    try:
        try:
            signals.begin()
            with shared_cores:
                end_with_torchrun()
                _execute(argv)
            if sys.stdout is not None:
                sys.stdout.flush()
        finally:
            signals.over = True
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error) if signals.first is None else 128 + signals.first
        end_early(describe(error))
        drop_unread()
        if not isinstance(error, BrokenPipeError):
            with suppress(OSError, ValueError):
                print(f"hongtu: {printable(describe(error))}", file=sys.stderr)
    return code


def _execute(argv: list[str] | None) -> None:
    parser = build_parser()
    try:
        arguments = parser.parse_args(argv)
    except SystemExit:  # --help and --version have printed
        return
    if arguments.command is None:
        parser.print_help()
        return
    _check_alone(arguments)
    arguments.execute(arguments)
