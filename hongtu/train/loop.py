"""The loop over epochs: when to evaluate, to step the scheduler, to write, and to stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import torch
from tqdm import tqdm

from hongtu.errors import InputError
from hongtu.metrics import EpochRecord
from hongtu.train.callbacks import Callbacks
from hongtu.train.run_directory import RunDirectory


@dataclass
class Waiting:
    """Early stopping: the best validation score, and the regular evaluations since."""

    best: float = float("-inf")
    since: int = 0

    def see(self, score: float) -> None:
        better = score > self.best
        self.best = max(self.best, score)
        self.since = 0 if better else self.since + 1


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The arguments of ``Trainer.fit``, checked.

    Raises:
        InputError: for numbers that make no run.
    """

    epochs: int
    eval_every: int = 0
    patience: int | None = None
    run_dir: str | os.PathLike[str] | None = None
    save_every: int = 0
    keep: int = 3
    progress: bool | None = None
    on_epoch: Callable[[EpochRecord], None] | None = None
    callbacks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        for name in ("epochs", "eval_every", "patience", "save_every", "keep"):
            value = getattr(self, name)
            if not isinstance(value, Integral) and not (name == "patience" and value is None):
                raise InputError(f"fit: {name} is {value!r}, expected a whole number")
        if self.epochs < 1 or self.eval_every < 0 or (self.patience is not None and self.patience < 1):
            raise InputError(
                f"fit: epochs {self.epochs}, eval_every {self.eval_every}, patience {self.patience}; expected at "
                "least 1, 0 and 1"
            )
        if self.save_every < 0 or self.keep < 1:
            raise InputError(f"fit: save_every {self.save_every}, keep {self.keep}; expected at least 0 and 1")
        if self.patience is not None and not self.eval_every:
            raise InputError("patience needs eval_every: early stopping looks at the validation score")
        if self.save_every and self.run_dir is None:
            raise InputError("save_every needs run_dir, the directory for the snapshots")


class Trainable(Protocol):
    """What the loop needs of the Trainer."""

    scheduler: Any
    epoch: int
    history: list[dict[str, Any]]
    waiting: Waiting

    @property
    def validates(self) -> bool: ...

    def train_epoch(self) -> EpochRecord: ...

    def evaluate(self) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]: ...


def fit(trainer: Trainable, options: FitOptions) -> list[EpochRecord]:
    """Train ``options.epochs`` more epochs; one record per epoch."""
    if options.patience is not None and not trainer.validates:
        raise InputError(
            "patience needs a validation score, and the artifact's val mask is empty (for links: no val_edges)"
        )
    directory = None if options.run_dir is None else RunDirectory(options.run_dir, options.keep)
    if directory is not None and options.save_every:
        directory.check_newest(trainer.epoch)
    callbacks = Callbacks(options.callbacks)
    records: list[EpochRecord] = []
    callbacks.begin(trainer)
    try:
        _run(trainer, options, directory, callbacks, records)
    finally:
        callbacks.end(trainer)
    return records


def _run(
    trainer: Trainable,
    options: FitOptions,
    directory: RunDirectory | None,
    callbacks: Callbacks,
    records: list[EpochRecord],
) -> None:
    with tqdm(total=options.epochs, unit="epoch", disable=_hidden(options.progress)) as bar:
        for k in range(options.epochs):
            record = trainer.train_epoch()
            last = k + 1 == options.epochs
            regular = bool(options.eval_every) and trainer.epoch % options.eval_every == 0
            if regular or (options.eval_every and last):
                record.metrics = trainer.evaluate()
            if regular and options.patience is not None:
                trainer.waiting.see(record.metrics["val"])
                last = last or trainer.waiting.since >= options.patience
            _step_scheduler(trainer.scheduler, record, regular=regular, scored=bool(options.eval_every))
            trainer.history.append(record.summary())
            records.append(record)
            if directory is not None:
                directory.log(record)
                if options.save_every and (last or trainer.epoch % options.save_every == 0):
                    directory.save(trainer.epoch, trainer.state())
            if options.on_epoch is not None:
                options.on_epoch(record)
            last = callbacks.epoch(trainer, record) or last
            bar.update()
            shown = {
                split: f"{record.metrics[split]:.4f}" for split in ("train", "val", "test") if split in record.metrics
            }
            bar.set_postfix(loss=f"{record.loss:.4f}", **shown)
            if last:
                break


def _step_scheduler(scheduler: Any, record: EpochRecord, *, regular: bool, scored: bool) -> None:
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        if not scored:
            scheduler.step(record.loss)
        elif regular:
            scheduler.step(record.metrics["val"])
    elif scheduler is not None:
        scheduler.step()


def _hidden(progress: bool | None) -> bool | None:
    """As tqdm says it: None for "only on a terminal"."""
    return None if progress is None else not progress
