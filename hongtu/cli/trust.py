"""What a file of settings that somebody hands over may not do: run code of its own, or write outside of its run; and
what a run's own file does not keep, secrets."""

from __future__ import annotations

import inspect
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
