"""The loop over epochs: when to evaluate, to step the scheduler, to write, and to stop."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from hongtu.errors import InputError, uninterrupted
from hongtu.graph.given import as_path
from hongtu.metrics import EpochRecord
from hongtu.model.random_state import random_state, set_random_state
from hongtu.train.callbacks import check_callbacks, tell
from hongtu.train.inferring import Inferring
from hongtu.train.progress import bar, hidden
from hongtu.train.run_directory import RunDirectory
from hongtu.train.snapshot import read_snapshot

SPLITS = ("train", "val", "test")
COMMON = ("epochs", "eval_every", "patience", "save_every", "keep_best", "restore_best")  # alike on all ranks


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
    keep_best: bool = False
    restore_best: bool = False
    progress: bool | None = None
    on_epoch: Callable[[EpochRecord], None] | None = None
    callbacks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        least = {"epochs": 1, "eval_every": 0, "patience": 1, "save_every": 0, "keep": 1}
        for name, number in least.items():
            value = getattr(self, name)
            if name == "patience" and value is None:
                continue
            if not isinstance(value, Integral) or value < number:
                raise InputError(f"fit: {name} is {value!r}, expected a whole number of at least {number}")
        if self.run_dir is not None:
            as_path("fit: run_dir", self.run_dir, "a directory")
        if not (self.on_epoch is None or callable(self.on_epoch)):
            raise InputError(f"fit: on_epoch is {self.on_epoch!r}, expected a function of an epoch's record")
        if self.looks_at_scores and not self.eval_every:
            raise InputError("patience, keep_best and restore_best need eval_every: they look at the validation score")
        for name in ("save_every", "keep_best"):
            if getattr(self, name) and self.run_dir is None:
                raise InputError(f"{name} needs run_dir, the directory for the snapshots")

    @property
    def keeps_best(self) -> bool:
        return self.keep_best or self.restore_best

    @property
    def looks_at_scores(self) -> bool:
        return self.keeps_best or self.patience is not None


def fit(trainer: Inferring, options: FitOptions) -> list[EpochRecord]:
    """Train ``options.epochs`` more epochs; one record per epoch.

    An interrupt (SIGINT; in a command also SIGTERM and SIGHUP) first finishes what an epoch that was trained still
    needs, and writes its snapshot; so does an error, of a callback or of a print that nobody reads.
    """
    if options.looks_at_scores and not trainer.validates:
        raise InputError(
            "patience, keep_best and restore_best need a validation score, and the artifact's val mask is empty (for "
            "links: no val_edges)"
        )
    trainer.check_trains()
    _check_scheduler(trainer, options.epochs, scores=bool(options.eval_every) and trainer.validates)
    trainer.ranks.check_same({name: getattr(options, name) for name in COMMON})
    others = trainer.ranks.rank > 0  # the first rank writes
    directory = None if options.run_dir is None or others else RunDirectory(options.run_dir, options.keep)
    with ExitStack() as held:
        with trainer.ranks.agreed():
            if directory is not None:
                held.enter_context(directory.held())
                directory.check_newest(trainer.epoch)
        loop = _Loop(trainer, options, directory)
        tell(loop.callbacks, "on_fit_begin", trainer)
        try:
            loop.run()
        finally:
            tell(loop.callbacks, "on_fit_end", trainer)
    return loop.records


class _Loop:
    """One call of ``fit``."""

    def __init__(self, trainer: Inferring, options: FitOptions, directory: RunDirectory | None) -> None:
        self.trainer, self.options, self.directory = trainer, options, directory
        self.callbacks, self.records = check_callbacks(options.callbacks), list[EpochRecord]()
        self._last = trainer.epoch + options.epochs
        self._booked = self._saved = trainer.epoch
        self._before: tuple[int, dict[str, Any]] | None = None  # generators, before what is done again if it is stopped
        self._behind: dict[str, Any] | None = None  # the state that the last epoch began with
        self._best: dict[str, Any] | None = None  # weights, where no directory keeps them

    def run(self) -> None:
        """Every epoch, and then the best weights where they are wanted."""
        trainer, options = self.trainer, self.options
        with bar(
            total=options.epochs, unit="epoch", disable=trainer.ranks.rank > 0 or hidden(options.progress)
        ) as shown:
            try:
                self._run_epochs(shown)
            except BaseException as error:
                try:
                    self._save_stopped(error)
                except KeyboardInterrupt:  # it came on the way there, behind an error; no other does
                    self._save_stopped(error)
                    raise
                raise
        if options.restore_best:
            self._restore_best()

    def _run_epochs(self, shown: Any) -> None:
        trainer, options = self.trainer, self.options
        while not self._is_over():
            self._note_generators()
            self._note_state()
            trainer.train_epoch()
            record = self._book()
            if options.save_every and (self._is_over() or trainer.epoch % options.save_every == 0):
                self._save()
            if options.on_epoch is not None:
                options.on_epoch(record)
            wanted = [answer is True for answer in tell(self.callbacks, "on_epoch_end", trainer, record)]
            if any(trainer.ranks.gather(any(wanted))):
                self._last = trainer.epoch
            shown.update()
            scores = {split: f"{record.metrics[split]:.4f}" for split in SPLITS if split in record.metrics}
            shown.set_postfix(loss=f"{record.loss:.4f}", **scores)
        if options.save_every and self._saved < trainer.epoch:  # a callback ended it
            self._save()

    def _note_generators(self) -> None:
        self._before = (self.trainer.epoch, random_state()) if self.options.save_every else None

    def _note_state(self) -> None:
        """Hold what the first of several ranks can write alone, where an epoch is stopped that was trained and not yet
        scored: that takes all of them."""
        if self.trainer.ranks.size > 1 and self._saves_stopped:
            self._behind = copy.deepcopy({name: x for name, x in self.trainer.state().items() if name != "history"})

    @property
    def _saves_stopped(self) -> bool:
        """Whether a run that is stopped can write a snapshot here: other ranks may be elsewhere, and help with nothing
        then, and learned rows are on all of them."""
        trainer = self.trainer
        return bool(self.options.save_every and self.directory) and (trainer.ranks.size == 1 or not trainer.embedding)

    def _save_stopped(self, error: BaseException) -> None:
        """Write the snapshot of the last epoch that is in the books, or was trained and can be entered now."""
        with uninterrupted():
            trainer, interrupted = self.trainer, not isinstance(error, Exception)
            if self._before is not None and self._before[0] == trainer.epoch:
                set_random_state(self._before[1])
            if interrupted and trainer.ranks.size == 1 and trainer.epoch > self._booked:
                with suppress(Exception):  # of a metric; the epoch is in the books all the same
                    self._book()
            if self._saves_stopped and self._saved < self._booked:
                with suppress(*(() if interrupted else (Exception,))):  # the first error is the one to tell
                    self._save_booked()

    def _save_booked(self) -> None:
        if self._behind is not None and self._behind["epoch"] == self._booked:
            history = [entry for entry in self.trainer.history if entry["epoch"] <= self._booked]
            self.directory.save(self._booked, self._behind | {"history": history})  # type: ignore[union-attr]
        elif self.trainer.epoch == self._booked:
            self._save()

    def _is_over(self) -> bool:
        return self.trainer.epoch >= self._last

    def _book(self) -> EpochRecord:
        """Score an epoch that was trained, then write down what it was: all of it, or nothing."""
        trainer, options, record = self.trainer, self.options, self.trainer.record
        assert record is not None
        regular = bool(options.eval_every) and trainer.epoch % options.eval_every == 0
        try:
            if regular or (options.eval_every and self._is_over()):
                self._note_generators()
                record.metrics = trainer.evaluate()
        except Exception:
            if trainer.ranks.size == 1:  # a metric's; the epoch was trained all the same
                self._enter(record, regular=False)
            raise
        return self._enter(record, regular=regular)

    @uninterrupted()
    def _enter(self, record: EpochRecord, *, regular: bool) -> EpochRecord:
        trainer, options = self.trainer, self.options
        self._before = None
        better = regular and options.looks_at_scores and self._see(record.metrics["val"])
        with trainer._of_snapshot():
            self._step_scheduler(record, regular=regular)
        trainer.history.append(record.summary())
        self.records.append(record)
        if self.directory is not None:
            self.directory.log(record)
        self._booked = trainer.epoch
        if better and options.keeps_best:
            self._keep_best()
        return record

    def _see(self, score: float) -> bool:
        waiting, patience = self.trainer.waiting, self.options.patience
        better = waiting.see(score if self.trainer.higher_is_better else -score)
        if patience is None:
            waiting.since = 0
        elif waiting.since >= patience:
            self._last = self.trainer.epoch
        return better

    def _keep_best(self) -> None:
        if self.options.run_dir is None:
            self._best = self.trainer.weights()
            return
        state = self.trainer.state()
        if self.directory is not None:
            self.directory.save_best(state)

    def _restore_best(self) -> None:
        best = self.trainer.ranks.first(self._read_best)
        if best is not None:
            self.trainer.set_weights(best)

    def _read_best(self) -> dict[str, Any] | None:
        there = self.directory is not None and self.directory.best.is_file()
        return read_snapshot(self.directory.best) if self.directory is not None and there else self._best

    @uninterrupted()
    def _save(self) -> None:
        state = self.trainer.state()
        if self.directory is not None:
            self.directory.save(self.trainer.epoch, state)
        self._saved = self.trainer.epoch

    def _step_scheduler(self, record: EpochRecord, *, regular: bool) -> None:
        trainer = self.trainer
        if not isinstance(trainer.scheduler, ReduceLROnPlateau):
            if trainer.scheduler is not None:
                trainer.scheduler.step()
        elif not (self.options.eval_every and trainer.validates):
            trainer.scheduler.step(record.loss)
        elif regular:
            trainer.scheduler.step(record.metrics[trainer.watched])  # type: ignore[index]


def _check_scheduler(trainer: Inferring, epochs: int, *, scores: bool) -> None:
    """Refuse a ReduceLROnPlateau for whose mode there is nothing to step it with, and a OneCycleLR that ends before."""
    if isinstance(trainer.scheduler, OneCycleLR):
        done, most = trainer.scheduler.last_epoch, trainer.scheduler.total_steps
        if done + epochs > most:
            raise InputError(
                f"scheduler: OneCycleLR with total_steps={most}, and fit steps it once per epoch, {done + epochs} "
                f"times in all; make it with total_steps={done + epochs}, or train fewer epochs"
            )
    if not isinstance(trainer.scheduler, ReduceLROnPlateau):
        return
    mode = trainer.scheduler.mode
    if scores and trainer.watched is None:
        better, other = ("higher", "max") if trainer.higher_is_better else ("smaller", "min")
        raise InputError(
            f"scheduler: ReduceLROnPlateau with mode={mode!r}, and the validation score is the better the {better} it "
            f"is; make it with mode={other!r}"
        )
    if not scores and mode == "max":
        raise InputError(
            "scheduler: ReduceLROnPlateau with mode='max', and fit has no validation score to step it with; pass "
            "eval_every=1 to fit, with vertices in the val mask, or mode='min' for the training loss"
        )
