"""``hongtu export RUN OUT``: write trained weights as a plain state dict: torch's, or safetensors."""

from __future__ import annotations

import argparse
from pathlib import Path

from hongtu.cli.embed import check_absent
from hongtu.errors import InputError, note


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    add = parser.add_argument
    add("source", metavar="RUN|SNAPSHOT", help="directory of `hongtu train --run`, or a snapshot")
    add("out", metavar="OUT", help="file to write: safetensors where it ends in .safetensors, else for torch.load")
    add("--names", choices=("pyg", "layers"), help="pyg: convs.0.lin.weight, as the models of "
        "torch_geometric.nn.models; layers: 0.lin.weight, as a ModuleList of the layers (default: pyg, or layers where "
        "those models have no place for a weight)")  # fmt: skip
    add("--force", action="store_true", help="replace OUT")


def run(options: argparse.Namespace) -> None:
    """Read the snapshot, rename, and write."""
    from hongtu.model.pyg_names import to_pyg_names
    from hongtu.train.outputs import write_weights
    from hongtu.train.run_directory import newest_snapshot
    from hongtu.train.snapshot import read_snapshot

    check_absent(options.out, force=options.force)
    out = Path(options.out).absolute()
    if not out.parent.is_dir() or out.is_dir():
        raise InputError(f"{options.out}: expected a file in a directory that exists")
    snapshot = newest_snapshot(options.source)
    state = read_snapshot(snapshot)
    weights = dict(state["model"])
    try:
        if options.names != "layers":
            weights = to_pyg_names(weights, [text.partition("(")[0] for text in state["identity"]["layers"]])
    except InputError as refused:
        if options.names == "pyg":
            raise
        note(str(refused).partition(";")[0] + "; the names are those of the layers")
    write_weights(out, weights)
    print(f"{options.out}: {len(weights)} tensors after {state['epoch']} epochs, from {snapshot}")
    print("\n".join(f"  {name:<28} {list(value.shape)}" for name, value in weights.items()))
