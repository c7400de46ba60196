"""``hongtu migrate PATH [OUT]``: say which format a file of hongtu has, and take an older snapshot's weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from hongtu.cli.embed import check_absent
from hongtu.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument("path", metavar="PATH", help="an artifact, a snapshot, a run directory or a hardware profile")
    parser.add_argument("out", metavar="OUT", nargs="?", help="file for the weights of an older snapshot: safetensors "
        "where it ends in .safetensors, which trainer.load_weights takes, else a state dict")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace OUT")


def run(options: argparse.Namespace) -> None:
    """Look at what it is, and say what can be done."""
    from hongtu.graph.format import MANIFEST, VERSION, read_manifest
    from hongtu.hardware import load_hardware
    from hongtu.train.run_directory import newest_snapshot
    from hongtu.train.snapshot import read_snapshot, snapshot_version

    path = Path(options.path)
    old = path / "snapshot.pt"  # of a run directory of 0.1
    if (path / MANIFEST).exists():
        read_manifest(path)
        print(f"{path}: an artifact of format {VERSION}, which this hongtu reads as it is")
    elif path.suffix == ".json" and path.is_file():
        load_hardware(path)
        print(f"{path}: a hardware profile, which this hongtu reads as it is")
    elif snapshot_version(snapshot := newest_snapshot(old if old.is_file() else path)) == 1:
        _weights(snapshot, options)
    else:
        read_snapshot(snapshot)
        print(f"{snapshot}: a snapshot of format {snapshot_version(snapshot)}, which this hongtu reads as it is")


def _weights(snapshot: Path, options: argparse.Namespace) -> None:
    from hongtu.train.outputs import write_weights
    from hongtu.train.snapshot import weights_of_version_1

    if options.out is None:
        raise InputError(
            f"{snapshot}: a snapshot of format 1, without the generators and the history that a run goes on with; its "
            f"weights can be had: `hongtu migrate {options.path} weights.safetensors`"
        )
    check_absent(options.out, force=options.force)
    weights = weights_of_version_1(snapshot)
    write_weights(options.out, weights)
    print(f"{options.out}: {len(weights)} tensors of {snapshot}; trainer.load_weights takes them")
