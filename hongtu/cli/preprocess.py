"""``hongtu preprocess INPUT ARTIFACT``: turn a graph into an artifact that training reads."""

from __future__ import annotations

import argparse
import json

from hongtu.cli.settings import add_settings, configure
from hongtu.config import PreprocessConfig


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument(
        "input", metavar="INPUT", help="directory with edges, features, labels and masks; or a file of edges"
    )
    parser.add_argument("artifact", metavar="ARTIFACT", help="directory to write")
    add_settings(parser, PreprocessConfig)
    parser.add_argument("--json", action="store_true", help="print the artifact's summary as one JSON object")


def run(arguments: argparse.Namespace) -> None:
    """Write the artifact and print its summary."""
    config = configure(PreprocessConfig, arguments)

    from hongtu.cli.info import brief, summary
    from hongtu.preprocess.entry import preprocess_directory

    result = summary(preprocess_directory(arguments.input, arguments.artifact, config))
    print(json.dumps(result) if arguments.json else brief(result))
