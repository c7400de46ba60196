"""``hongtu export RUN OUT``: trained weights as a plain torch state dict, such as torch_geometric's models load."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from hongtu.cli.embed import check_absent
from hongtu.errors import InputError, OutputError


def add_parser(subparsers: Any) -> None:
    """Register ``hongtu export``."""
    parser = subparsers.add_parser("export", help="write trained weights as a plain torch state dict")
    add = parser.add_argument
    add("source", metavar="RUN|SNAPSHOT", help="directory of `hongtu train --run`, or a snapshot")
    add("out", metavar="OUT", help="file to write; torch.load(OUT) gives {name: tensor}")
    add("--names", choices=("pyg", "layers"), default="pyg", help="pyg: convs.0.lin.weight, as the models of "
        "torch_geometric.nn.models; layers: 0.lin.weight, as a ModuleList of the layers (default: pyg)")  # fmt: skip
    add("--force", action="store_true", help="replace OUT")
    parser.set_defaults(execute=run)


def run(options: argparse.Namespace) -> None:
    """Read the snapshot, rename, and write."""
    import torch

    from hongtu.model.pyg_names import to_pyg_names
    from hongtu.train.run_directory import newest_snapshot
    from hongtu.train.snapshot import read_snapshot

    check_absent(options.out, force=options.force)
    out = Path(options.out).absolute()
    if not out.parent.is_dir() or out.is_dir():
        raise InputError(f"{options.out}: expected a file in a directory that exists")
    snapshot = newest_snapshot(options.source)
    state = read_snapshot(snapshot)
    weights = dict(state["model"])
    if options.names == "pyg":
        weights = to_pyg_names(weights, [text.partition("(")[0] for text in state["identity"]["layers"]])
    partial = None
    try:
        descriptor, partial = tempfile.mkstemp(prefix=f".{out.name}.partial-", dir=out.parent)
        os.close(descriptor)
        torch.save(weights, partial)
        os.chmod(partial, 0o644)
        os.replace(partial, out)
    except OSError as error:
        raise OutputError(out, error) from error
    finally:
        if partial is not None and os.path.exists(partial):
            os.unlink(partial)
    print(f"{options.out}: {len(weights)} tensors after {state['epoch']} epochs, from {snapshot}")
    print("\n".join(f"  {name:<28} {list(value.shape)}" for name, value in weights.items()))
