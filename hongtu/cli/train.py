"""``hongtu train ARTIFACT``: train a named model on an artifact."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hongtu.cli.stopping import Stopped
from hongtu.config import MODELS, parse_bytes
from hongtu.errors import InputError, OutputError

if TYPE_CHECKING:
    from torch import nn

    from hongtu.graph.artifact import Artifact

OPTIONS = "options.json"
PARTIAL = f".{OPTIONS}"  # until it is complete
DECIDING = (
    "model", "hidden", "layers", "dropout", "heads", "loss", "class_weights", "label_smoothing", "lr", "weight_decay",
    "clip_grad_norm", "seed",
)  # which numbers come out  # fmt: skip


def add_parser(subparsers: Any) -> None:
    """Add ``train`` to the command line."""
    parser = subparsers.add_parser("train", help="train a model on an artifact")
    parser.add_argument("artifact", metavar="ARTIFACT", help="directory written by `hongtu preprocess`")
    add_model_arguments(parser)
    add = parser.add_argument
    add("--epochs", type=int, default=50, help="epochs to train, those of a resumed run included (default: 50)")
    add("--lr", type=float, default=0.01, help="learning rate of Adam (default: 0.01)")
    add("--weight-decay", type=float, default=0.0, help="default: 0")
    add("--loss", choices=("cross_entropy", "bce_with_logits", "mse", "l1", "huber", "smooth_l1"),
        help="default: cross_entropy, bce_with_logits for multi-label, mse for regression")  # fmt: skip
    add("--class-weights", choices=("balanced",), help="weigh every class by how few train vertices it has")
    add("--label-smoothing", type=float, default=0.0, metavar="X", help="of cross_entropy (default: 0)")
    add("--clip-grad-norm", type=float, metavar="X", help="clip the gradient's total norm (default: do not)")
    add("--seed", type=int, default=0, help="of initial parameters and dropout (default: 0)")
    add(
        "--device",
        default="cpu",
        help="cpu, cuda (all GPUs), cuda:K, or simulated (CUDA's engine on the CPU); default: cpu",
    )
    add("--deterministic", action="store_true", help="refuse operations whose result may differ from run to run")
    add("--on-oom", choices=("raise", "replan"), default="raise", help="when layers take more device memory than when "
        "they were planned: stop, or run the epoch again with smaller groups of chunks (default: raise)")  # fmt: skip
    add("--eval-every", type=int, default=10, metavar="K", help="evaluate every K epochs and at the end (default: 10)")
    add("--run", dest="run_dir", metavar="DIR", help="write epochs.jsonl and snapshot-EPOCH.pt here")
    add("--save-every", type=int, default=10, metavar="K", help="write a snapshot every K epochs and at the end; "
        "0: never (default: 10)")  # fmt: skip
    add("--keep", type=int, default=3, metavar="K", help="snapshots to keep (default: 3)")
    add("--resume", action="store_true", help="continue the run in --run DIR from its newest snapshot")
    add("--json", action="store_true", help="print one JSON object instead of lines")
    parser.set_defaults(run=run)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that describe a model and how it is planned; shared by ``train`` and ``plan``."""
    add = parser.add_argument
    add("--model", choices=MODELS, default="gcn", help="default: gcn")
    add("--hidden", type=int, default=128, help="columns between layers, over all heads (default: 128)")
    add("--layers", type=int, default=2, help="for sgc hops, for appnp linear maps (default: 2)")
    add("--dropout", type=float, default=0.0, help="before every layer; also of attention (default: 0)")
    add("--heads", type=int, default=1, help="attention heads of gat, gatv2 and transformer (default: 1)")
    add(
        "--device-memory",
        metavar="SIZE",
        help="bytes per partition, like 2GiB (default: no limit; `plan`: what --hardware has, less a margin)",
    )
    add("--strategy", choices=("full", "paper", "none"), default="full", help="default: full")
    add("--hardware", metavar="NAME|FILE",
        help="what plans are compared for: cpu, a100x4, h200 or a profile (default: --device; plan: cpu)")  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Train, print as it goes, and print the summary."""
    check_options(options)
    run_dir = None if options.run_dir is None else Path(options.run_dir)
    if run_dir is not None:
        _check_run(run_dir, options)
    budget = None if options.device_memory is None else parse_bytes(options.device_memory)
    trainer = make_trainer(options, budget)
    if run_dir is not None:
        if options.resume:
            trainer.resume(run_dir)
        else:
            _begin_run(run_dir, options)
    remaining = options.epochs - trainer.epoch
    if remaining < 1:
        raise InputError(f"--epochs {options.epochs}: the snapshot has {trainer.epoch} already")
    try:
        records = trainer.fit(
            remaining,
            eval_every=options.eval_every,
            run_dir=run_dir,
            save_every=0 if run_dir is None else options.save_every,
            keep=options.keep,
            on_epoch=None if options.json else _print_epoch,
        )
    except (Exception, KeyboardInterrupt) as error:
        raise Stopped(error, _kept(trainer.epoch, run_dir)) from error
    last = records[-1]
    scores = last.metrics or trainer.evaluate()
    result = {
        "epochs": trainer.epoch,
        "loss": last.loss,
        **{split: None if score != score else score for split, score in scores.items()},
        "seconds_per_epoch": statistics.median(record.seconds for record in records),
        "peak_bytes": trainer.peak_bytes,
        "bytes": last.bytes,
        "rows": last.rows,
    }
    print(json.dumps(result, allow_nan=False) if options.json else _summary(result))


def check_options(options: argparse.Namespace) -> None:
    """Refuse numbers that make no run.

    Raises:
        InputError: naming the option.
    """
    least = {"epochs": 1, "eval_every": 0, "save_every": 0, "keep": 1, "seed": 0, "lr": 0, "weight_decay": 0,
             "label_smoothing": 0, "clip_grad_norm": 0}  # fmt: skip
    most = {"seed": 2**63 - 1, "label_smoothing": 1}
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and not bound <= value <= most.get(name, 1e18):
            raise InputError(
                f"--{name.replace('_', '-')} {value}: expected at least {bound} and not more than makes sense"
            )
    if options.resume and options.run_dir is None:
        raise InputError("--resume needs --run DIR, the directory of the run to continue")


def _check_run(directory: Path, options: argparse.Namespace) -> None:
    """Refuse a run directory that cannot be used; nothing is written yet.

    Raises:
        InputError: with the remedy.
    """
    if options.resume:
        _check_deciding(directory / OPTIONS, options)
    elif directory.exists() and (not directory.is_dir() or {file.name for file in directory.iterdir()} - {PARTIAL}):
        raise InputError(f"{directory}: already exists; choose another --run directory, or continue it with --resume")
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{directory}: {there} is not a writable directory; choose another --run directory")


def read_options(file: Path) -> dict[str, Any]:
    """The options that a run was begun with, as far as they decide its numbers.

    Raises:
        InputError: when there is no run, or its file is damaged.
    """
    try:
        begun = json.loads(file.read_text())
        return {name: begun[name] for name in DECIDING}
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{file.parent}: holds no run (no {OPTIONS}); start it with `hongtu train --run`") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{file}: not the options of a run ({error}); restore it, or start another run") from None


def _check_deciding(file: Path, options: argparse.Namespace) -> None:
    """Refuse to continue a run with options that give other numbers."""
    if not file.exists():
        raise InputError(f"{file.parent}: holds no run to resume; start it without --resume")
    begun = read_options(file)
    for name, value in begun.items():
        if getattr(options, name) != value:
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"--resume: {option} is {getattr(options, name)}, the run in {file.parent} was begun with {value}; "
                f"pass {option} {value}, or start another run"
            )


def _begin_run(directory: Path, options: argparse.Namespace) -> None:
    """Make the run directory; from here on it can be resumed."""
    deciding = {name: getattr(options, name) for name in DECIDING}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / PARTIAL).write_text(json.dumps(deciding) + "\n")
        os.replace(directory / PARTIAL, directory / OPTIONS)
    except OSError as error:
        raise OutputError(directory, error) from error


def _kept(epoch: int, run_dir: Path | None) -> str:
    """What is left of a run that was stopped, for its last line."""
    from hongtu.train.run_directory import RunDirectory

    if run_dir is None:
        return f"{epoch} epochs were trained and are lost: --run DIR keeps snapshots"
    snapshots = RunDirectory(run_dir).snapshots()
    if not snapshots:
        return f"{epoch} epochs were trained, no snapshot was written; --resume begins again"
    return f"{epoch} epochs were trained; --resume continues from {snapshots[-1]}"


def make_layers(options: argparse.Namespace, artifact: Artifact) -> list[nn.Module]:
    """The layers that the options describe; shared by ``train`` and ``plan``."""
    from hongtu.model.named import build_layers
    from hongtu.nn import TypedLinear, degree_histogram

    degrees = degree_histogram(artifact.topology) if options.model == "pna" else None
    widths = artifact.vertex_type_widths
    layers = build_layers(
        options.model, options.hidden if widths else artifact.feature_width, options.hidden, artifact.num_classes,
        options.layers, dropout=options.dropout, heads=options.heads, degrees=degrees,
        edge_features=artifact.edge_feature_width, edge_types=artifact.num_edge_types,
    )  # fmt: skip
    return [TypedLinear(widths, options.hidden), *layers] if widths else layers


def make_loss(options: argparse.Namespace, artifact: Artifact) -> Any:
    """The loss that the options describe.

    Raises:
        InputError: for class weights or label smoothing without classes.
    """
    import torch

    from hongtu.model.loss_terms import DEFAULT, balanced_weights

    if options.class_weights is None and not options.label_smoothing:
        return options.loss or DEFAULT[artifact.task]
    if artifact.task != "multiclass" or options.loss not in (None, "cross_entropy"):
        raise InputError("--class-weights and --label-smoothing are for one class per vertex and cross_entropy")
    weight = None
    if options.class_weights is not None:
        weight = balanced_weights(artifact.labels, artifact.masks["train"], artifact.num_classes)
    return torch.nn.CrossEntropyLoss(weight, label_smoothing=options.label_smoothing)


def make_trainer(options: argparse.Namespace, budget: int | None) -> Any:
    """A Trainer for the model that the options describe."""
    import torch

    from hongtu.graph.artifact import open_artifact
    from hongtu.hardware import load_hardware
    from hongtu.train.random_state import seed_generators
    from hongtu.train.trainer import Trainer

    artifact = open_artifact(options.artifact)
    seed_generators(options.seed)
    layers = make_layers(options, artifact)
    return Trainer(
        artifact,
        layers,
        loss=make_loss(options, artifact),
        optimizer=lambda p: torch.optim.Adam(p, lr=options.lr, weight_decay=options.weight_decay),
        device=options.device,
        device_memory=budget,
        strategy=options.strategy,
        seed=options.seed,
        hardware=None if options.hardware is None else load_hardware(options.hardware),
        clip_grad_norm=options.clip_grad_norm,
        deterministic=options.deterministic,
        on_oom=options.on_oom,
    )


def _print_epoch(record: Any) -> None:
    scores = _scores(record.metrics)
    if scores or record.epoch == 1:
        print(f"epoch {record.epoch:4d}  loss {record.loss:.4f}{scores}  {record.seconds:.3f} s", flush=True)


def _scores(metrics: dict[str, Any]) -> str:
    """Those that exist: a graph may have no validation or test vertices."""
    scores = {split: metrics.get(split) for split in ("train", "val", "test")}
    return "".join(f"  {split} {score:.4f}" for split, score in scores.items() if score is not None and score == score)


def _summary(result: dict[str, Any]) -> str:
    peak = "  ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in result["peak_bytes"].items())
    moved = "  ".join(f"{link} {size / 2**20:.1f} MiB" for link, size in result["bytes"].items() if size)
    return (
        f"{result['epochs']} epochs, {result['seconds_per_epoch']:.3f} s each (median)\n"
        f"loss {result['loss']:.4f}{_scores(result)}\n"
        f"peak bytes: {peak}\nmoved per epoch: {moved}"
    )
