"""What ``Trainer.fit`` tells others: a plain protocol, and loggers that follow it."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hongtu.errors import InputError, OutputError
from hongtu.metrics import EpochRecord

HOOKS = ("on_fit_begin", "on_epoch_end", "on_fit_end")


class Callback:
    """Does nothing at each moment; a subclass, or any object with some of these methods, does what it likes."""

    def on_fit_begin(self, trainer: Any) -> None:
        """Before the first epoch of ``fit``."""

    def on_epoch_end(self, trainer: Any, record: EpochRecord) -> bool | None:
        """After an epoch, its evaluation and its snapshot; True ends ``fit``."""

    def on_fit_end(self, trainer: Any) -> None:
        """After the last epoch, also where an error ended ``fit``."""


class Callbacks:
    """Several callbacks as one.

    Raises:
        InputError: for an object with none of the methods.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        for callback in callbacks:
            if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
                raise InputError(f"callbacks: {callback!r} has none of the methods {', '.join(HOOKS)}")
        self._callbacks = list(callbacks)

    def begin(self, trainer: Any) -> None:
        for call in self._methods("on_fit_begin"):
            call(trainer)

    def epoch(self, trainer: Any, record: EpochRecord) -> bool:
        """Whether one of them wants to stop; all of them are told."""
        return any([call(trainer, record) is True for call in self._methods("on_epoch_end")])

    def end(self, trainer: Any) -> None:
        for call in self._methods("on_fit_end"):
            call(trainer)

    def _methods(self, hook: str) -> list[Any]:
        return [getattr(callback, hook) for callback in self._callbacks if hasattr(callback, hook)]


class CSVLogger(Callback):
    """One line per epoch: epoch, loss, seconds, then bytes per link, and scores where the epoch was evaluated.

    Args:
        path: the file; a run that goes on appends to it.
        metrics: names of the scores that have a column.
    """

    def __init__(self, path: str | os.PathLike[str], metrics: Sequence[str] = ("train", "val", "test")) -> None:
        self.path, self._metrics = Path(path), tuple(metrics)

    def on_epoch_end(self, trainer: Any, record: EpochRecord) -> None:
        """Append the epoch's line, and the head before the first."""
        values: dict[str, Any] = {"epoch": record.epoch, "loss": record.loss, "seconds": record.seconds}
        values |= {f"{link} bytes": count for link, count in record.bytes.items()}
        values |= {name: record.metrics.get(name, "") for name in self._metrics}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", newline="") as stream:
                writer = csv.DictWriter(stream, values)
                if stream.tell() == 0:
                    writer.writeheader()
                writer.writerow(values)
        except OSError as error:
            raise OutputError(self.path, error) from error


class TensorBoardLogger(Callback):
    """Loss, scores, seconds, bytes per link and peak bytes per memory, for TensorBoard.

    Args:
        directory: of the event files.

    Raises:
        InputError: when tensorboard is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError(f"TensorBoardLogger: {error}; run `pip install 'hongtu[tensorboard]'`") from None
        self._writer: Any = SummaryWriter(os.fspath(directory))

    def on_epoch_end(self, trainer: Any, record: EpochRecord) -> None:
        """Add the epoch's numbers."""
        numbers = {"loss": record.loss, "seconds": record.seconds}
        numbers |= {f"score/{name}": value for name, value in record.metrics.items()}
        numbers |= {f"bytes/{link}": count for link, count in record.bytes.items()}
        numbers |= {f"peak bytes/{memory}": count for memory, count in record.peak_bytes.items()}
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, record.epoch)

    def on_fit_end(self, trainer: Any) -> None:
        """Have everything on disk."""
        self._writer.flush()
