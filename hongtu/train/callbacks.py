"""What ``Trainer.fit`` tells others: a plain protocol, and loggers that follow it."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Iterable, Sequence
from typing import Any

from hongtu.errors import InputError, OutputError
from hongtu.graph.given import as_path
from hongtu.metrics import EpochRecord

HOOKS = ("on_fit_begin", "on_epoch_end", "on_fit_end")


class Callback:
    """Does nothing at each moment; a subclass, or any object with some of these methods, does what it likes."""

    def on_fit_begin(self, trainer: Any) -> None:
        """Before the first epoch of ``fit``."""

    def on_epoch_end(self, trainer: Any, record: EpochRecord) -> bool | None:
        """After an epoch, its evaluation and its snapshot; True ends ``fit``, of several ranks on any."""

    def on_fit_end(self, trainer: Any) -> None:
        """After the last epoch, also where an error ended ``fit``."""


def check_callbacks(callbacks: Sequence[Any]) -> list[Any]:
    """Those that are given.

    Raises:
        InputError: for an object with none of the methods.
    """
    if not isinstance(callbacks, Iterable) or any(hasattr(callbacks, hook) for hook in HOOKS):
        raise InputError(f"callbacks: one {type(callbacks).__name__}, expected a list; pass [it]")
    for callback in callbacks:
        if isinstance(callback, type):
            raise InputError(f"callbacks: the class {callback.__name__}, expected an object of it")
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            raise InputError(f"callbacks: {callback!r} has none of the methods {', '.join(HOOKS)}")
    return list(callbacks)


def tell(callbacks: Iterable[Any], hook: str, *given: Any) -> list[Any]:
    """What those say that have the method, all of which are told."""
    return [getattr(callback, hook)(*given) for callback in callbacks if hasattr(callback, hook)]


class CSVLogger(Callback):
    """One line per epoch: epoch, loss, seconds, then bytes per link, and scores where the epoch was evaluated.

    Args:
        path: the file; a run that goes on appends to it.
        metrics: names of the scores that have a column.
    """

    def __init__(self, path: str | os.PathLike[str], metrics: Sequence[str] = ("train", "val", "test")) -> None:
        self.path, self._metrics = as_path("CSVLogger: path", path), tuple(metrics)

    def on_epoch_end(self, trainer: Any, record: EpochRecord) -> None:
        """Append the epoch's line, and the head before the first."""
        values: dict[str, Any] = {"epoch": record.epoch, "loss": record.loss, "seconds": record.seconds}
        values |= {f"{link} bytes": count for link, count in record.bytes.items()}
        values |= {name: record.metrics.get(name, "") for name in self._metrics}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", newline="", encoding="utf-8") as stream:
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
        _optional("TensorBoardLogger", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(os.fspath(as_path("TensorBoardLogger: directory", directory, "a directory")))

    def on_epoch_end(self, trainer: Any, record: EpochRecord) -> None:
        """Add the epoch's numbers."""
        for name, value in _numbers(record).items():
            self._writer.add_scalar(name, value, record.epoch)

    def on_fit_end(self, trainer: Any) -> None:
        """Have everything on disk."""
        self._writer.flush()


class WandbLogger(Callback):
    """The same numbers for Weights & Biases; ``run.finish()`` ends its run, or the end of the process does.

    Args:
        **options: of ``wandb.init``, such as project, name, config, or mode="offline".

    Attributes:
        run: of wandb.

    Raises:
        InputError: when wandb is not installed.
    """

    def __init__(self, **options: Any) -> None:
        self.run = _optional("WandbLogger", "wandb").init(**options)

    def on_epoch_end(self, trainer: Any, record: EpochRecord) -> None:
        """Log the epoch's numbers."""
        self.run.log(_numbers(record), step=record.epoch)


class MLflowLogger(Callback):
    """The same numbers for MLflow, in a run of its own.

    Args:
        experiment: its name; made where it is not there.
        tracking_uri: of a server or a database; None: as MLflow is set.
        run_name: of the run.

    Attributes:
        run_id: of MLflow.

    Raises:
        InputError: when mlflow is not installed.
    """

    def __init__(
        self, experiment: str = "hongtu", tracking_uri: str | None = None, run_name: str | None = None
    ) -> None:
        self._client: Any = _optional("MLflowLogger", "mlflow").MlflowClient(tracking_uri)
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self.run_id: str = self._client.create_run(number, run_name=run_name).info.run_id

    def on_epoch_end(self, trainer: Any, record: EpochRecord) -> None:
        """Log the epoch's numbers."""
        for name, value in _numbers(record).items():
            self._client.log_metric(self.run_id, name, value, step=record.epoch)

    def on_fit_end(self, trainer: Any) -> None:
        """Mark the run as finished; another ``fit`` adds to it."""
        self._client.set_terminated(self.run_id)


def _numbers(record: EpochRecord) -> dict[str, float]:
    """Of an epoch, by the names that the loggers of other programs show."""
    numbers = {"loss": record.loss, "seconds": record.seconds}
    numbers |= {f"score/{name}": value for name, value in record.metrics.items()}
    numbers |= {f"bytes/{link}": count for link, count in record.bytes.items()}
    return numbers | {f"peak bytes/{memory}": count for memory, count in record.peak_bytes.items()}


def _optional(who: str, package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(f"{who}: {error}; run `pip install 'hongtu[{package}]'`") from None
