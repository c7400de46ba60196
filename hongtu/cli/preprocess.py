"""``hongtu preprocess INPUT ARTIFACT``: from edges, features and labels to an artifact."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import Any

from hongtu.config import ORDERS, PARTITIONERS, TASKS, PreprocessConfig


def add_parser(subparsers: Any) -> None:
    """Register ``hongtu preprocess``."""
    parser = subparsers.add_parser("preprocess", help="turn a graph into an artifact that training reads")
    parser.add_argument(
        "input", metavar="INPUT", help="directory with edges, features, labels and masks; or a file of edges"
    )
    parser.add_argument("artifact", metavar="ARTIFACT", help="directory to write")
    add = parser.add_argument
    add("--partitions", type=int, default=4, metavar="M", help="one for each device (default: 4)")
    add("--chunks", type=_chunks, default=32, metavar="N", help="chunks per partition, or 'auto' (default: 32)")
    add("--partitioner", choices=PARTITIONERS, default="auto", help="default: auto, METIS for small graphs")
    add("--order", choices=ORDERS, default="auto", help="order of vertices inside a partition (default: auto)")
    add("--columns", metavar="S,D[,W]", help="names of the source, destination and weight columns of a table")
    add("--relabel", action="store_true", help="number vertices whose ids are arbitrary integers or names")
    add("--undirected", action="store_true", help="add reverse edges, then merge duplicates, summing weights")
    add("--self-loops", action="store_true", help="add a self-loop to each vertex without one")
    add("--normalize-features", action="store_true", help="divide each feature row by its sum")
    add("--seed", type=int, default=0, help="of the partitioner and of random pieces (default: 0)")
    add("--features", metavar="SPEC", help="use these instead of the input's: random:F or degree")
    add("--labels", metavar="SPEC", help="use these instead of the input's: random:C")
    add("--task", choices=TASKS, help="float labels are numbers to predict, not classes")
    add("--random-split", metavar="A,B,C", help="random train, val and test masks of these fractions")
    add("--split", type=int, default=0, metavar="K", help="which of several splits in the masks (default: 0)")
    add("--force", action="store_true", help="replace an existing artifact")
    add("--resume", action="store_true", help="continue the same run where it was interrupted, if it was")
    add("--json", action="store_true", help="print the artifact's summary as one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Write the artifact and print its summary."""
    config = PreprocessConfig(**{field.name: getattr(arguments, field.name) for field in fields(PreprocessConfig)})

    from hongtu.cli.info import summary, table
    from hongtu.preprocess.pipeline import preprocess_directory

    result = summary(preprocess_directory(arguments.input, arguments.artifact, config))
    print(json.dumps(result) if arguments.json else table(result))


def _chunks(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() else text  # the config refuses what is not "auto"
