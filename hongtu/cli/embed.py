"""``hongtu embed ARTIFACT RUN OUT``: what a trained model, or a layer inside it, gives for every vertex."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from hongtu.cli.train import OPTIONS, make_trainer, read_options
from hongtu.config import parse_bytes
from hongtu.errors import InputError


def add_parser(subparsers: Any) -> None:
    """Register ``hongtu embed``."""
    parser = subparsers.add_parser("embed", help="write a trained model's output, or a layer's, for every vertex")
    add = parser.add_argument
    add("artifact", metavar="ARTIFACT", help="the one that it was trained on")
    add("run_dir", metavar="RUN", help="directory of `hongtu train --run`; its newest snapshot is used")
    add("out", metavar="OUT", help=".npy file to write: float32 [N, columns], rows in the original order")
    add("--layer", type=int, metavar="K", help="1: the first layer's output, ... (default: the last: predictions)")
    add("--device", default="cpu", help="as for `train` (default: cpu)")
    add("--device-memory", metavar="SIZE", help="bytes per partition, like 2GiB (default: no limit)")
    add("--force", action="store_true", help="replace OUT")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load, run once, and write."""
    begun = read_options(Path(options.run_dir) / OPTIONS)
    layer = begun["layers"] if options.layer is None else options.layer
    if not 1 <= layer <= begun["layers"]:
        raise InputError(f"--layer {layer}: expected 1 to {begun['layers']}, the layers of the run")
    check_absent(options.out, force=options.force)
    snapshot = newest_snapshot(options.run_dir)
    budget = None if options.device_memory is None else parse_bytes(options.device_memory)
    fixed = {"strategy": "full", "hardware": None, "deterministic": False, "on_oom": "raise"}
    where = {"artifact": options.artifact, "device": options.device}
    trainer = make_trainer(argparse.Namespace(**begun, **fixed, **where), budget)
    trainer.load(snapshot)
    rows = trainer.embed(layer - 1, out=options.out)
    print(f"{options.out}: {rows.dtype} {list(rows.shape)}, layer {layer} of {begun['layers']}, from {snapshot}")


def newest_snapshot(path: str | os.PathLike[str]) -> Path:
    """A snapshot as it is, or the newest of a run directory that can be read.

    Raises:
        InputError: when there is none.
    """
    from hongtu.train.run_directory import RunDirectory

    if not Path(path).is_dir():
        return Path(path)
    found = RunDirectory(path).newest()
    if found is None:
        raise InputError(f"{path}: holds no snapshot; train with `hongtu train ... --run {path}`")
    return found[0]


def check_absent(path: str, *, force: bool) -> None:
    """Refuse to replace a file without ``--force``.

    Raises:
        InputError: with the remedy.
    """
    if os.path.lexists(path) and not force:
        raise InputError(f"{path}: already exists; choose another path or pass --force to replace it")
