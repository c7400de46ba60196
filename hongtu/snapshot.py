"""Snapshots of a training run: parameters, optimizer, scheduler, epoch. Loading never executes code."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

from hongtu.errors import InputError

FORMAT = "hongtu-snapshot"
VERSION = 1


def write_snapshot(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write ``state`` (tensors and plain values) atomically: the file is complete or as it was before."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            torch.save({"format": FORMAT, "version": VERSION, **state}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_snapshot(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a snapshot.

    Raises:
        InputError: when it is absent, damaged or of another version.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such snapshot; trainer.save(path) writes one")
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        raise InputError(f"{path}: not a readable snapshot ({str(error).splitlines()[0]})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT or state.get("version") != VERSION:
        raise InputError(f"{path}: expected a {FORMAT} of version {VERSION}")
    return state


def check_identity(path: str | os.PathLike[str], saved: dict[str, str], current: dict[str, str]) -> None:
    """Refuse a snapshot of another artifact or model.

    Raises:
        InputError: naming what differs.
    """
    for key, value in current.items():
        if saved.get(key) != value:
            raise InputError(f"{path}: the snapshot's {key} is {saved.get(key)!r}, this run's is {value!r}")
