"""``hongtu train ARTIFACT``: train a model on an artifact."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hongtu.cli.build import make_loggers, make_trainer
from hongtu.cli.settings import FILES, add_settings, begin_run, check_run, configure, read_run_file, to_toml
from hongtu.cli.stopping import Stopped
from hongtu.cli.train_config import ModelConfig, TrainConfig
from hongtu.cli.trust import check_trusted
from hongtu.config import size
from hongtu.errors import note

if TYPE_CHECKING:
    from hongtu.ranks.together import Together


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    add_source(parser)
    add_settings(parser, TrainConfig)
    parser.add_argument("--write-config", action="store_true", help="print the run file of these options, and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")


def add_source(parser: argparse.ArgumentParser) -> None:
    """What ``train`` and ``plan`` read."""
    parser.add_argument(
        "source", nargs="?", metavar="ARTIFACT|RUN.toml",
        help="directory written by `hongtu preprocess`, or a run file; options go over what it says",
    )  # fmt: skip


def settings_of(options: argparse.Namespace, config: type[ModelConfig]) -> dict[str, Any]:
    """What the command's first argument says: those settings of a run file that the command takes, or the artifact."""
    if options.source is None:
        return {}
    source = Path(options.source)
    if source.suffix not in FILES:
        return {"artifact": options.source}
    names, typed = {field.name for field in fields(config)}, vars(options)
    found = {name: value for name, value in read_run_file(source, TrainConfig).items() if name in names}
    check_trusted(source, found | {name: typed[name] for name in ("run",) if name in typed}, typed)
    return found


def run(options: argparse.Namespace) -> None:
    """Train, print as it goes, and print the summary; of ranks that torchrun started the first writes and prints."""
    config = configure(TrainConfig, options, settings_of(options, TrainConfig))
    if options.write_config:
        print(to_toml(config))
        return
    from hongtu.ranks.launch import joined

    with joined(config.rank_timeout, note) as ranks:
        ranks.check_same(vars(config))
        with ExitStack() as held:
            _run(config, ranks, held, json_only=options.json)


def _run(config: TrainConfig, ranks: Together, held: ExitStack, *, json_only: bool) -> None:
    """Train in a run directory, of which ``held`` takes the first rank's hold, or without one."""
    directory = None if config.run is None else Path(config.run)
    resumes = directory is not None and ranks.first(partial(check_run, directory, config, held))
    trainer = make_trainer(config)
    trainer.check_trains()
    if directory is not None and resumes and not trainer.resume(directory) and ranks.rank == 0:
        note(f"{directory}: holds no snapshot; the run begins again")
    stopped = config.patience is not None and trainer.waiting.since >= config.patience
    left = 0 if stopped else config.epochs - trainer.epoch
    with ranks.agreed():
        loggers = [] if left < 1 or ranks.rank > 0 else make_loggers(config)
    if directory is not None and not resumes:
        ranks.first(partial(begin_run, directory, config, held))
    result = _train(trainer, config, left, loggers, quiet=json_only or ranks.rank > 0)
    if ranks.size > 1:
        result["ranks"] = ranks.gather({name: result[name] for name in ("peak_bytes", "bytes", "rows")})
    if ranks.rank == 0:
        print(json.dumps(result, allow_nan=False) if json_only else _summary(result))


def _train(trainer: Any, config: TrainConfig, left: int, loggers: list[Any], *, quiet: bool) -> dict[str, Any]:
    """The epochs that are left, and what there is to say of the run."""
    if left < 1:
        note(f"{config.run}: its {trainer.epoch} epochs are trained already")
    try:
        same = {name: getattr(config, name) for name in ("eval_every", "patience", "keep", "keep_best", "restore_best")}
        records = [] if left < 1 else trainer.fit(
            left, run_dir=config.run, save_every=0 if config.run is None else config.save_every,
            on_epoch=None if quiet else _print_epoch, callbacks=loggers, **same,
        )  # fmt: skip
        asked = records[-1].metrics if records and not config.restore_best else {}
        scores = asked or trainer.evaluate()
    except (Exception, KeyboardInterrupt) as error:
        reason = trainer.ranks.reason(error)
        raise Stopped(reason, _kept(trainer.epoch, config.run)) from reason
    history = trainer.history[-max(left, 1) :]
    seconds = [entry["seconds"] for entry in history if entry["seconds"] is not None]
    return {
        "epochs": trainer.epoch,
        "loss": history[-1]["loss"] if history else None,  # where the log of a run that was trained is lost
        **{split: None if score != score else score for split, score in scores.items()},
        "seconds_per_epoch": statistics.median(seconds) if seconds else None,
        "peak_bytes": trainer.peak_bytes,
        "bytes": records[-1].bytes if records else trainer.plan.bytes,
        "rows": records[-1].rows if records else trainer.plan.rows,
    }


def _kept(epoch: int, run: str | None) -> str:
    """What is left of a run that was stopped, for its last line."""
    from hongtu.train.run_directory import RunDirectory

    if run is None and epoch == 0:
        return "no epoch was trained"
    if run is None:
        return f"{epoch} epochs were trained and are lost: --run DIR keeps snapshots"
    snapshots = RunDirectory(run).snapshots()
    if not snapshots:
        return f"{epoch} epochs were trained, no snapshot was written; --resume begins again"
    return f"{epoch} epochs were trained; --resume continues from {snapshots[-1]}"


def _print_epoch(record: Any) -> None:
    from hongtu.train.progress import bar

    scores = scores_of(record.metrics)
    if scores or record.epoch == 1:
        bar.write(f"epoch {record.epoch:4d}  loss {record.loss:.4f}{scores}  {record.seconds:.3f} s")
        sys.stdout.flush()


def scores_of(metrics: dict[str, Any]) -> str:
    """Those that exist: a graph may have no validation or test vertices."""
    scores = {split: metrics.get(split) for split in ("train", "val", "test")}
    return "".join(f"  {split} {score:.4f}" for split, score in scores.items() if score is not None and score == score)


def bytes_of(result: dict[str, Any], step: str) -> str:
    """Peaks of memory, and what a step moved, in two lines."""
    peak = "  ".join(f"{name} {size(nbytes)}" for name, nbytes in result["peak_bytes"].items())
    moved = "  ".join(f"{link} {size(nbytes)}" for link, nbytes in result["bytes"].items() if nbytes)
    return f"peak bytes: {peak}\nmoved per {step}: {moved}"


def _summary(result: dict[str, Any]) -> str:
    of_ranks = result.get("ranks", [result])
    seconds, loss = result["seconds_per_epoch"], result["loss"]
    each = "" if seconds is None else f", {seconds:.3f} s each (median)"
    return (
        f"{result['epochs']} epochs{each}\nloss {'unknown' if loss is None else f'{loss:.4f}'}{scores_of(result)}\n"
    ) + "\n".join(
        (f"rank {rank}, " if len(of_ranks) > 1 else "") + bytes_of(of_rank, "epoch")
        for rank, of_rank in enumerate(of_ranks)
    )
