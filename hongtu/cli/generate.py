"""``hongtu generate KIND OUT``: make a synthetic graph."""

from __future__ import annotations

import argparse

KINDS = ("citation", "rmat", "web")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("output", metavar="OUT", help="directory to write")
    add = parser.add_argument
    add("--vertices", type=int, required=True, metavar="N")
    add("--edges", type=int, required=True, metavar="E")
    add("--features", type=int, default=64, metavar="F", help="columns (default: 64)")
    add("--classes", type=int, default=16, metavar="C", help="default: 16")
    add("--seed", type=int, default=0, help="default: 0")
    add("--force", action="store_true", help="replace an existing generated graph")


def run(arguments: argparse.Namespace) -> None:
    """Write the graph and print one line about it."""
    from hongtu.preprocess.generate import generate

    sizes = {name: getattr(arguments, name) for name in ("vertices", "edges", "features", "classes")}
    generate(arguments.kind, arguments.output, **sizes, seed=arguments.seed, force=arguments.force)
    print(f"{arguments.output}: {arguments.kind}, {arguments.vertices:,} vertices, {arguments.edges:,} edges")
