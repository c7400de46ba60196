"""``hongtu embed ARTIFACT RUN OUT``: write a trained model's output, or a layer's, for every vertex."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hongtu.cli.build import layers_without_weights, make_trainer
from hongtu.cli.settings import OPTIONS, read_options
from hongtu.cli.train_config import ModelConfig, TrainConfig
from hongtu.cli.trust import CODE, check_trusted
from hongtu.errors import InputError

if TYPE_CHECKING:
    from hongtu.graph.artifact import Artifact

MODEL = ("model", "modules", "hidden", "layers", "dropout", "heads", "loss")  # of the run: what its outputs depend on


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    add = parser.add_argument
    add("artifact", metavar="ARTIFACT", help="the one that it was trained on, or another with the same features")
    add("run_dir", metavar="RUN|SNAPSHOT", help="directory of a run, whose newest snapshot is used, or a snapshot")
    add("out", metavar="OUT", help=".npy file to write: float32 [N, columns], rows in the original order")
    add("--model", metavar="MODULE:FUNCTION", help="what makes the layers, for a run that was made from Python, or has "
        "a model of your own")  # fmt: skip
    add("--loss", metavar="MODULE:FUNCTION", help="for a run that has one of your own")
    add("--layer", type=int, metavar="K", help="1: the first layer's output, ... (default: the last: predictions)")
    add("--device", default="cpu", help="as for `train` (default: cpu)")
    add("--device-memory", metavar="SIZE", help="as for `train` (default: no limit)")
    add("--force", action="store_true", help="replace OUT")


def run(options: argparse.Namespace) -> None:
    """Load, run once, and write."""
    check_absent(options.out, force=options.force)
    from hongtu.graph.artifact import open_artifact
    from hongtu.train.run_directory import newest_snapshot
    from hongtu.train.snapshot import snapshot_version

    snapshot = newest_snapshot(options.run_dir)
    if snapshot_version(snapshot) is None:
        raise InputError(
            f"{options.run_dir}: not a snapshot; pass one, or a directory that `hongtu train ARTIFACT --run RUN` wrote"
        )
    if not options.model and not (snapshot.parent / OPTIONS).exists():
        raise InputError(
            f"{options.run_dir}: begun from Python, so nothing says which layers it has; pass --model MODULE:FUNCTION, "
            "which makes them"
        )
    typed = {name: getattr(options, name) for name in CODE if getattr(options, name, None)}
    file = snapshot.parent / OPTIONS
    begun: dict[str, Any] = {} if options.model and not file.exists() else read_options(file)
    check_trusted(file, {name: begun.get(name) for name in MODEL}, typed)
    begun |= typed
    where = {"artifact": options.artifact, "device": options.device, "device_memory": options.device_memory}
    kept = {name: value for name, value in begun.items() if name in MODEL}
    config = TrainConfig(**kept | where)
    trainer = make_trainer(config, trained_classes(config, open_artifact(config.artifact), snapshot))
    layers = len(trainer.model)
    layer = layers if options.layer is None else options.layer
    if not 1 <= layer <= layers:
        raise InputError(f"--layer {layer}: expected 1 to {layers}, the layers of the run")
    trainer.load_weights(snapshot)
    rows = trainer.embed(layer - 1, out=options.out)
    print(f"{options.out}: {rows.dtype} {list(rows.shape)}, layer {layer} of {layers}, from {snapshot}")


def trained_classes(config: ModelConfig, artifact: Artifact, snapshot: Path) -> int | None:
    """How many classes the layers of a snapshot were made for: one that has other labels, or none, does not tell. None:
    as many as the artifact has."""
    from hongtu.model.wiring import as_modules
    from hongtu.train.snapshot import described_layers, read_from, read_snapshot

    state = read_snapshot(snapshot)
    with read_from(snapshot):
        widths = {width for weight in state["model"].values() for width in weight.shape if width}
        for classes in (None, *sorted(widths)):
            layers = as_modules(layers_without_weights(config, artifact, classes))
            if described_layers(layers) == state["identity"].get("layers"):
                return classes
    return None  # loading says what differs


def check_absent(path: str, *, force: bool) -> None:
    """Refuse to replace a file without ``--force``."""
    if os.path.lexists(path) and not force:
        raise InputError(f"{path}: already exists; choose another path or pass --force to replace it")
