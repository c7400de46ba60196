"""``options.json`` of a run directory: every setting that the run was begun with, so that it can be made again, but
secrets; and what a file of settings that somebody hands over may not do: run code of its own, or write outside of its
run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hongtu.cli.settings import read_run_file
from hongtu.cli.train_config import DECIDING, TrainConfig
from hongtu.errors import InputError, note

OPTIONS = "options.json"


def check_run(directory: Path, config: TrainConfig, held: ExitStack) -> bool:
    """Whether there is a run to resume, which ``held`` keeps from others; nothing is written yet.

    Raises:
        InputError: with the remedy, for a run directory that cannot be used, or was begun with other options.
    """
    from hongtu.files import LOCK, PARTIAL
    from hongtu.train.run_directory import RunDirectory

    held.enter_context(RunDirectory(directory).held(make=False))
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{directory}: {there} is not a writable directory; choose another --run directory")
    own = LOCK, f".{OPTIONS}{PARTIAL}"
    empty = not directory.exists() or all(file.name.startswith(own) for file in directory.iterdir())
    if config.resume and not empty:
        _check_deciding(directory / OPTIONS, config)
    elif config.resume:
        note(f"{directory}: holds no run yet; this one begins")
    elif not empty:
        raise InputError(f"{directory}: already exists; choose another --run directory, or continue it with --resume")
    return not empty


def read_options(file: Path) -> dict[str, Any]:
    """The settings that a run was begun with.

    Raises:
        InputError: when there is no run, or its file is damaged.
    """
    if not file.exists():
        raise InputError(f"{file.parent}: holds no run (no {OPTIONS}); start it with `hongtu train --run`")
    try:
        found = read_run_file(file, TrainConfig)
        newer = ("host_dtype", "gradient_dtype")  # than some runs
        found = {name: getattr(TrainConfig, name) for name in newer} | found
        missing = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in found]
        if missing:
            raise InputError(f"{missing[0]} is missing")
        return found
    except InputError as error:
        raise InputError(f"{file}: not the options of a run ({error}); restore it, or start another run") from None


def _check_deciding(file: Path, config: TrainConfig) -> None:
    """Refuse to continue a run with options that give other numbers."""
    begun = read_options(file)
    for field in dataclasses.fields(TrainConfig):
        before, now = begun[field.name], getattr(config, field.name)
        if field.name in DECIDING and before != now:
            option = f"--{field.name.replace('_', '-')}"
            raise InputError(
                f"--resume: {option} is {now}, the run in {file.parent} was begun with {before}; "
                f"pass {option} {before}, or start another run"
            )


def begin_run(directory: Path, config: TrainConfig, held: ExitStack) -> None:
    """Make the run directory, which ``held`` keeps from others; from here on it can be resumed. Its options begin a
    run, in another directory anew."""
    from hongtu.files import whole_file
    from hongtu.train.run_directory import RunDirectory

    held.enter_context(RunDirectory(directory).held())
    if (directory / OPTIONS).exists():
        raise InputError(f"{directory}: another run has begun here meanwhile; choose another --run directory")
    options = dataclasses.asdict(config) | {"resume": False}
    options["loggers"] = [without_secrets(text) for text in config.loggers]
    with whole_file(directory / OPTIONS) as partial:
        partial.write_text(json.dumps(options, indent=1) + "\n", "utf-8")


CODE = ("model", "loss", "metric")  # may be module:function
# where loggers write, by the argument that says it; what else they take from a file, None: everything
PLACES = {"CSVLogger": "path", "TensorBoardLogger": "directory", "WandbLogger": "dir", "MLflowLogger": "tracking_uri"}
TAKES = {"WandbLogger": {"project", "name", "group", "job_type", "tags", "notes", "config", "mode", "dir"}}
HIDDEN = "***"
_LOGIN = re.compile(r"(://)[^/@\s'\"]+@")
_SECRET = re.compile(
    r"(\w*(?:key|token|secret|password|passwd|credential|authorization)\w*['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,'\")&]+)",
    re.I,
)


def check_trusted(file: Path, settings: dict[str, Any], typed: Collection[str] = ()) -> None:
    """Refuse a file's settings that only a command line may have.

    Args:
        typed: names of settings that the command line says instead.

    Raises:
        InputError: naming the setting, and what to type.
    """
    for name in CODE:
        value = settings.get(name)
        if name not in typed and isinstance(value, str) and ":" in value:
            raise InputError(
                f"{file}: {name} is {value!r}, code that a file may not have run; where you trust it, pass --{name} "
                f"{value}"
            )
    if "loggers" not in typed:
        for text in settings.get("loggers") or ():
            _check_logger(file, text, settings.get("run"))


def _check_logger(file: Path, text: str, run: str | None) -> None:
    from hongtu.cli.build import named_call
    from hongtu.train import callbacks

    if HIDDEN in text:
        raise InputError(f"{file}: loggers {text!r}: a run does not keep secrets; pass --loggers with it")
    call = named_call(text, (callbacks,), f"{file}: loggers")
    name = call.func.__name__
    try:
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords).arguments
    except TypeError as error:
        raise InputError(f"{file}: loggers {text!r}: {error}") from None
    given = bound | bound.get("options", {})
    place = given.get(PLACES[name]) if name in PLACES else None
    inside = run is not None and isinstance(place, str) and Path(run).resolve() in Path(place).resolve().parents
    unknown = given.keys() - {"options"} - TAKES.get(name, given.keys())
    if name not in PLACES or unknown or (place is not None and not inside):
        where = "no run directory (--run)" if run is None else f"outside of the run directory {run}"
        what = f"{min(unknown)} is not taken from a file" if unknown else f"writes to {place!r}, {where}"
        raise InputError(f"{file}: loggers {text!r}: {what}; where you trust it, pass --loggers {text!r}")


def without_secrets(text: str) -> str:
    """A logger's call, without passwords and keys.

    >>> without_secrets("MLflowLogger('x', tracking_uri='https://me:word@host')")
    "MLflowLogger('x', tracking_uri='https://***@host')"
    >>> without_secrets("WandbLogger(api_key='1a', project='x')")
    "WandbLogger(api_key='***', project='x')"
    """

    def hidden(found: re.Match[str]) -> str:
        quote = found[2][0] if found[2][0] in "'\"" else ""
        return f"{found[1]}{quote}{HIDDEN}{quote}"

    return _SECRET.sub(hidden, _LOGIN.sub(rf"\1{HIDDEN}@", text))
