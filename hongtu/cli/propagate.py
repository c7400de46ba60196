"""``hongtu propagate ARTIFACT``: classify by label propagation, without a model."""

from __future__ import annotations

import argparse
import json
import time

from hongtu.cli.train import bytes_of, scores_of
from hongtu.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument("artifact", metavar="ARTIFACT", help="directory written by `hongtu preprocess`")
    add = parser.add_argument
    add("--alpha", type=float, default=0.9, help="share of the neighbours in every step (default: 0.9)")
    add("--steps", type=int, default=50, help="default: 50")
    add("--normalize", choices=("symmetric", "source", "destination", "none"), default="symmetric",
        help="D^-1/2 A D^-1/2, A D^-1, D^-1 A or A (default: symmetric)")  # fmt: skip
    add(
        "--device",
        default="cpu",
        help="cpu, cuda (all GPUs), cuda:K, or simulated (CUDA's engine on the CPU); default: cpu",
    )
    add("--device-memory", metavar="SIZE", help="as for `train` (default: no limit)")
    add("--strategy", choices=("full", "paper", "p2p", "none"), default="full", help="default: full")
    add("--json", action="store_true", help="print one JSON object instead of lines")


def run(options: argparse.Namespace) -> None:
    """Propagate the train vertices' labels and print how many of each split they hit."""
    if not 0 <= options.alpha <= 1 or options.steps < 1:
        raise InputError(f"--alpha {options.alpha}: expected 0 to 1; --steps {options.steps}: expected at least 1")

    import torch

    from hongtu.graph.artifact import open_artifact
    from hongtu.train.evaluators import scores
    from hongtu.train.postprocess import LabelPropagation
    from hongtu.train.propagation import Propagation

    artifact = open_artifact(options.artifact)
    if artifact.task in ("regression", "links"):
        raise InputError(f"{options.artifact}: holds no classes ({artifact.task}); propagate needs some")
    propagation = Propagation(
        artifact, artifact.num_classes, normalize=options.normalize, device=options.device,
        device_memory=options.device_memory, strategy=options.strategy,
    )  # fmt: skip
    start = time.perf_counter()
    labels = propagation.ordered(torch.from_numpy(artifact.labels.copy()))
    masks = {split: propagation.ordered(torch.from_numpy(mask.copy())) for split, mask in artifact.masks.items()}
    out = LabelPropagation(options.steps, options.alpha)(propagation, labels, masks["train"])
    seconds = time.perf_counter() - start
    if artifact.multi_label:
        out -= 0.5  # a score is counted from 0
    record = propagation.record
    assert record is not None
    found = {split: None if x != x else x for split, x in scores(out, labels, masks, artifact.task).items()}
    result = {
        "steps": options.steps,
        **found,
        "seconds_per_step": seconds / options.steps,
        "peak_bytes": record.peak_bytes,
        "bytes": record.bytes,
        "rows": record.rows,
    }
    lines = f"{options.steps} steps, {result['seconds_per_step']:.3f} s each\n{scores_of(found).strip()}"
    print(json.dumps(result) if options.json else f"{lines}\n{bytes_of(result, 'step')}")
