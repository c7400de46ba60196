"""Train a published recipe on your copy of its graph, or on a generated stand-in, and print both accuracies.

    python -m experiments.recipes                                     # what there is
    python -m experiments.recipes cora-gcn --data FOLDER [--seeds 5] [--device-memory 2GiB] [--host-dtype bf16]
    python -m experiments.recipes arxiv-gcn --stand-in                # a small graph with its columns and classes
    python -m experiments.recipes arxiv-gcn --print ARTIFACT          # its run file, for `hongtu train`

FOLDER (default: HONGTU_DATA) holds the graphs under the names of OGB's and the other directories in docs/recipes.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.options import make_parser
from experiments.recipes.table import GRAPHS, RECIPES, Graph, Recipe
from hongtu.bench.records import append, machine
from hongtu.cli.build import make_trainer
from hongtu.cli.settings import to_toml
from hongtu.cli.train_config import TrainConfig
from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.preprocess.entry import preprocess_directory
from hongtu.preprocess.generate import generate
from hongtu.train.evaluators import scores
from hongtu.train.postprocess import CorrectAndSmooth, LabelPropagation
from hongtu.train.propagation import Propagation

STEPS = 50  # of label propagation, Correct and Smooth
STAND_IN_EPOCHS = 3


def main() -> int:
    parser = make_parser(__doc__, seeds=1, device="cpu")
    parser.add_argument("recipe", nargs="?", choices=RECIPES)
    parser.add_argument("--data", type=Path, default=os.environ.get("HONGTU_DATA"))
    parser.add_argument("--stand-in", action="store_true", help="generate a small graph, and train a few epochs")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device-memory", help="budget, like 2GiB")
    parser.add_argument(
        "--host-dtype", default="float32", help="bf16: rows on the host, and links, take half the bytes"
    )
    parser.add_argument("--work", type=Path, help="keep artifacts here")
    parser.add_argument("--print", metavar="ARTIFACT", dest="artifact", help="print the run file, and end")
    options = parser.parse_args()
    if options.recipe is None:
        print("\n".join(f"{name:22}{recipe.published}" for name, recipe in RECIPES.items()))
        return 0
    recipe = RECIPES[options.recipe]
    if options.artifact:
        print(to_toml(TrainConfig(artifact=options.artifact, **recipe.run)))
        return 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = [score(recipe, options, options.work or Path(folder), seed) for seed in range(options.seeds)]
    except InputError as error:
        print(f"recipes: {error}", file=sys.stderr)
        return 2
    tests = [of_seed["test"] for of_seed in found]
    where = " on a stand-in" if options.stand_in else ""
    print(f"{options.recipe}{where}: test {np.mean(tests):.4f} +- {np.std(tests):.4f} of {len(tests)} seeds; published"
          f"{', of the graph itself,' if options.stand_in else ''} {recipe.published}")  # fmt: skip
    row = {
        "recipe": options.recipe,
        "host_dtype": options.host_dtype,
        "stand_in": options.stand_in,
        "published": recipe.published,
    }
    append(options.out, machine("recipes") | row | {split: [of[split] for of in found] for split in ("val", "test")})
    return 0


def score(recipe: Recipe, options: argparse.Namespace, work: Path, seed: int) -> dict[str, float]:
    """Of one seed, by split."""
    graph = GRAPHS[recipe.graph]
    source = stand_in(graph, work / "graphs") if options.stand_in else find(graph, options.data)
    settings = PreprocessConfig(**graph.settings, seed=seed if "random_split" in graph.settings else 0)
    artifact = preprocess_directory(source, work / f"{recipe.graph}-{settings.seed}", settings)
    if not recipe.run:
        return propagated(recipe, artifact, options)
    config = TrainConfig(
        artifact=str(artifact.path), seed=seed, device=options.device, device_memory=options.device_memory,
        host_dtype=options.host_dtype, **recipe.run,
    )  # fmt: skip
    epochs = options.epochs or (STAND_IN_EPOCHS if options.stand_in else config.epochs)
    trainer = make_trainer(replace(config, epochs=epochs))
    trainer.fit(
        epochs, eval_every=config.eval_every, patience=config.patience, restore_best=config.restore_best,
    )  # fmt: skip
    return trainer.evaluate() if recipe.smooth is None else smoothed(recipe, trainer, artifact, options)


def propagated(recipe: Recipe, artifact: Artifact, options: argparse.Namespace) -> dict[str, float]:
    """Label propagation alone."""
    assert recipe.propagate is not None
    propagation = propagator(artifact, recipe.propagate[1], options)
    labels, masks = originals(propagation, artifact)
    out = LabelPropagation(STEPS, recipe.propagate[0])(propagation, labels, masks["train"])
    return scores(out, labels, masks, artifact.task)


def smoothed(recipe: Recipe, trainer: Any, artifact: Artifact, options: argparse.Namespace) -> dict[str, float]:
    """Correct and Smooth behind a model, or the second alone."""
    soft = torch.as_tensor(trainer.predict())[:, : artifact.num_classes].softmax(1)
    assert recipe.smooth is not None
    for step, asked in (("correct", recipe.correct), ("smooth", recipe.smooth)):
        if asked is not None:
            alpha, normalize = asked
            propagation = propagator(artifact, normalize, options)
            labels, masks = originals(propagation, artifact)
            both = CorrectAndSmooth(STEPS, alpha, STEPS, alpha)
            soft = getattr(both, step)(propagation, soft, labels, masks["train"])
    return scores(soft, labels, masks, artifact.task)


def propagator(artifact: Artifact, normalize: str, options: argparse.Namespace) -> Propagation:
    return Propagation(
        artifact, artifact.num_classes, normalize=normalize, device=options.device, device_memory=options.device_memory
    )


def originals(propagation: Propagation, artifact: Artifact) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Labels and masks in the original order."""
    masks = {split: propagation.ordered(torch.from_numpy(mask.copy())) for split, mask in artifact.masks.items()}
    return propagation.ordered(torch.from_numpy(artifact.labels.copy())), masks


def find(graph: Graph, data: Path | None) -> Path:
    """The user's copy, of OGB under either spelling.

    Raises:
        InputError: when it is not there.
    """
    for name in (graph.folder, graph.folder.replace("_", "-")):
        if data is not None and (Path(data) / name).is_dir():
            return Path(data) / name
    raise InputError(
        f"{graph.folder}: not in {data or 'HONGTU_DATA, which is not set'}; pass --data, the directory that has it, or "
        "--stand-in (docs/recipes.md says how to get it)"
    )


def stand_in(graph: Graph, folder: Path) -> Path:
    """A small graph with as many columns and classes as the real one."""
    path = folder / f"{graph.folder}-stand-in"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    vertices, edges, classes = 60 * graph.classes, 500 * graph.classes, graph.classes
    generate("citation", path, vertices=vertices, edges=edges, features=graph.features, classes=classes, seed=1)
    if graph.edge_features:  # proteins: each vertex may be in any class
        rng = np.random.default_rng(1)
        np.save(path / "edge_features.npy", rng.random((edges, graph.edge_features), dtype=np.float32))
        np.save(path / "labels.npy", (rng.random((vertices, classes)) < 0.3).astype(np.float32))
    return path


if __name__ == "__main__":
    raise SystemExit(main())
