"""A dataclass as a command's options and as a run file: names, types, defaults and help come from it alone;
and ``options.json`` of a run directory: every setting that the run was begun with, so that it can be made again, but
secrets."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import os
import re
import reprlib
import sys
import types
import typing
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from hongtu.cli.train_config import DECIDING, TrainConfig
from hongtu.cli.trust import without_secrets
from hongtu.errors import InputError, nearest, note

Config = TypeVar("Config")
FILES, OPTIONS = (".toml", ".json"), "options.json"
LONGEST = 1 << 20  # characters of a run file
MOST_DOTS = 20_000_000  # of a line, times characters: Python's parser goes through all of a key for every part of it
_NO_TEXT = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # the others between are bytes of names that are no UTF-8
_FIELD = re.compile(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", re.MULTILINE | re.DOTALL)
_METAVAR = {int: "N", float: "X", str: "TEXT"}


def add_settings(parser: argparse.ArgumentParser, config: type) -> None:
    """An option for every field; those that are not given leave nothing in the namespace."""
    hints, texts = typing.get_type_hints(config), descriptions(config)
    for field in dataclasses.fields(config):
        unset = field.default in (None, "", ()) or field.default is False
        default = "" if unset else f" (default: {field.default})"
        text = f"{texts[field.name]}{default}".replace("%", "%%")
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, dest=field.name, default=argparse.SUPPRESS, help=text, **_form(hints[field.name]))


def descriptions(config: type) -> dict[str, str]:
    """What the docstrings of a dataclass and of its bases say of each field, in one line."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        found |= {name: " ".join(text.split()) for name, text in _FIELD.findall(inspect.cleandoc(base.__doc__ or ""))}
    return found


def configure(config: type[Config], options: argparse.Namespace, file: dict[str, Any] | None = None) -> Config:
    """The dataclass of what was typed, over what a run file says, over the defaults. An empty text sets nothing, where
    that is the default: so one leaves out what the file says."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    given = {name: value for name, value in (file or {}).items() if name in defaults}
    typed = {name: getattr(options, name) for name in defaults if hasattr(options, name)}
    return config(**given | {k: None if value == "" and defaults[k] is None else value for k, value in typed.items()})


def read_run_file(path: Path, config: type) -> dict[str, Any]:
    """The settings in a TOML or JSON file.

    Raises:
        InputError: for what is no such file, an unknown name, with the nearest known one, or a value of another type.
    """
    from hongtu.files import read_text  # numpy with it

    try:
        if len(text := read_text(path)) > LONGEST:
            raise ValueError(f"{len(text)} characters, expected at most {LONGEST}")
        found = _toml(text) if path.suffix == ".toml" else json.loads(text)
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: not a run file ({reason}); `hongtu train --write-config` prints one") from None
    hints = typing.get_type_hints(config)
    if not isinstance(found, dict):
        raise InputError(f"{path}: {type(found).__name__}, expected names and values")
    for name, value in found.items():
        if name not in hints:
            raise InputError(
                f"{path}: {name!r} is no setting{nearest(name, hints)}; expected some of {', '.join(hints)}"
            )
        found[name] = _checked(f"{path}: {name}", value, hints[name])
    return found


def _toml(text: str) -> Any:
    dots = max(line.count(".") for line in text.split("\n"))
    if dots * len(text) > MOST_DOTS:
        raise ValueError(f"a line with {dots} dots in a text of {len(text)} characters")
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads(text)


def to_toml(config: Any) -> str:
    """A run file, with what every field means; what is not set is a comment.

    >>> @dataclasses.dataclass
    ... class Run:
    ...     '''A run.
    ...
    ...     Attributes:
    ...         lr: learning rate
    ...         budget: bytes
    ...     '''
    ...     lr: float = 0.01
    ...     budget: str | None = None
    >>> print(to_toml(Run()))
    # learning rate
    lr = 0.01
    # bytes
    # budget =
    """
    texts, lines = descriptions(type(config)), []
    for name, value in dataclasses.asdict(config).items():
        lines.append(f"# {texts[name]}")
        lines.append(f"# {name} =" if value is None else f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a hint, without None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(one for one in typing.get_args(hint) if one is not type(None))
    return (hint,)


def _form(hint: Any) -> dict[str, Any]:
    """What argparse needs to know of a type."""
    kinds = _alternatives(hint)
    if kinds == (bool,):
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(kinds[0]) is typing.Literal:
        return {"choices": typing.get_args(kinds[0])}
    if int in kinds and str in kinds:
        return {"type": lambda text: int(text) if text.lstrip("-").isdecimal() else text, "metavar": "N"}
    if typing.get_origin(kinds[0]) is tuple:  # an optional one comes as one word, whose parts the config finds
        return {"metavar": "A,B,..."} if kinds != (hint,) else {"nargs": "+", "metavar": "TEXT"}
    return {"type": kinds[0], "metavar": _METAVAR[kinds[0]]}


def _checked(title: str, value: Any, hint: Any) -> Any:
    """A value of a run file as its field wants it."""
    if isinstance(value, str) and _NO_TEXT.search(value):
        raise InputError(f"{title} is {reprlib.repr(value)}, expected text without a zero byte or half a character")
    for kind in _alternatives(hint):
        if typing.get_origin(kind) is typing.Literal and value in typing.get_args(kind):
            return value
        if typing.get_origin(kind) is tuple and isinstance(value, list) and all(isinstance(x, str) for x in value):
            return tuple(value)
        if type(value) is kind:
            return value
        if kind is float and type(value) is int and abs(value) < 2**1023:
            return float(value)
    if value is None and type(None) in typing.get_args(hint):
        return None  # JSON has it
    known = typing.get_args(_alternatives(hint)[0])  # of a Literal or a tuple
    expected = known if all(isinstance(one, str) for one in known) else ()
    named = " or ".join(expected or [getattr(kind, "__name__", str(kind)) for kind in _alternatives(hint)])
    raise InputError(f"{title} is {reprlib.repr(value)}, expected {named}")


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
