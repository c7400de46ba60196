"""What a file of settings that somebody hands over may not do: run code of its own, or write outside of its run; and
what a run's own file does not keep, secrets."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hongtu.errors import InputError

CODE = ("model", "loss", "metric")  # may be module:function
# where loggers write, by the argument that says it; what else they take from a file, None: everything
PLACES = {"CSVLogger": "path", "TensorBoardLogger": "directory", "WandbLogger": "dir", "MLflowLogger": "tracking_uri"}
TAKES = {"WandbLogger": {"project", "name", "group", "job_type", "tags", "notes", "config", "mode", "dir"}}
HIDDEN = "***"
_NAME = r"(?:key|token|secret|password|passwd|credential|authorization)"
# of bounded length, for else a text that somebody made long is gone through once for each of its letters
_CALLED, _SAID = re.compile(_NAME, re.I), re.compile(rf"({_NAME}\w{{0,99}}['\"]?\s{{0,99}}[=:]\s{{0,99}})[^&,;]+", re.I)
_LOGIN = re.compile(r"(://)\S{1,999}@")


def check_trusted(file: Path, settings: dict[str, Any], typed: Collection[str] = ()) -> None:
    """Refuse a file's settings that only a command line may have.

    Args:
        typed: names of settings that the command line says instead.
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
    unknown = given.keys() - {"options"} - TAKES.get(name, given.keys())
    if name not in PLACES or unknown or not _is_inside(place, run):
        where = "no run directory (--run)" if run is None else f"outside of the run directory {run}"
        writes = f"writes to {place!r}" if place is not None else f"says no {PLACES.get(name)}, and may write anywhere"
        what = f"{min(unknown)} is not taken from a file" if unknown else f"{writes}, {where}"
        raise InputError(f"{file}: loggers {text!r}: {what}; where you trust it, pass --loggers {text!r}")


def _is_inside(place: Any, run: str | None) -> bool:
    """Whether it lies in the run directory, and all that is there already does: no link leads elsewhere."""
    if run is None or not isinstance(place, str) or _real(run) not in _real(place).parents:
        return False
    inside = (Path(folder, name) for folder, *names in os.walk(place) for name in (*names[0], *names[1]))
    there = [Path(place), *inside]
    return all(_real(x).is_relative_to(_real(run)) and not (x.is_file() and x.stat().st_nlink > 1) for x in there)


def _real(path: str | Path) -> Path:
    """Where it leads, as far as it does."""
    return Path(os.path.realpath(path))


def without_secrets(text: str) -> str:
    """A logger's call, without passwords and keys.

    >>> without_secrets("MLflowLogger('x', tracking_uri='https://me:word@host')")
    "MLflowLogger('x', tracking_uri='https://***@host')"
    >>> without_secrets("WandbLogger(api_key='1a', project='x')")
    "WandbLogger(api_key='***', project='x')"
    """
    call = ast.parse(text.strip(), mode="eval")
    before = ast.dump(call)
    hidden = _Hiding().visit(call)
    return text if ast.dump(hidden) == before else ast.unparse(hidden)


class _Hiding(ast.NodeTransformer):
    """Of a call: the values of arguments, of keys of dictionaries and of pairs that are called secrets; texts lose what
    they say of one themselves."""

    def visit_keyword(self, part: ast.keyword) -> ast.keyword:
        part.value = self._named(part.arg or "", part.value)
        return part

    def visit_Dict(self, part: ast.Dict) -> ast.Dict:
        part.values = [self._named(ast.unparse(key or part), value) for key, value in zip(part.keys, part.values)]
        return part

    def visit_Tuple(self, part: ast.Tuple) -> ast.Tuple:
        return self._pair(part)

    def visit_List(self, part: ast.List) -> ast.List:
        return self._pair(part)

    def visit_Constant(self, part: ast.Constant) -> ast.Constant:
        if not isinstance(part.value, str):
            return part
        return ast.Constant(_SAID.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1{HIDDEN}@", part.value)))

    def _pair(self, part: Any) -> Any:
        if len(part.elts) == 2 and isinstance(part.elts[0], ast.Constant):
            part.elts = [self.visit(part.elts[0]), self._named(ast.unparse(part.elts[0]), part.elts[1])]
            return part
        return self.generic_visit(part)

    def _named(self, name: str, value: ast.expr) -> ast.expr:
        return ast.Constant(HIDDEN) if _CALLED.search(name) else self.visit(value)
