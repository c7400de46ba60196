"""``options.json`` of a run directory: every setting that the run was begun with, so that it can be made again, but
secrets."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hongtu.cli.settings import read_run_file
from hongtu.cli.train_config import DECIDING, TrainConfig
from hongtu.cli.trust import without_secrets
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
    there = next(path for path in (directory, *directory.absolute().parents) if os.path.lexists(path))
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
