"""Snapshots of a training run: parameters, optimizer, scheduler, epoch. Loading never executes code.

A snapshot file is what ``torch.save`` writes, followed by a line ``hongtu-snapshot VERSION HASH`` with its BLAKE2b
hash; ``torch.load`` reads it too.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from hongtu.errors import InputError

FORMAT = b"hongtu-snapshot"
VERSION = b"1"


def write_snapshot(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write ``state`` (tensors and plain values) atomically: the file is complete or as it was before."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(state, content)
    body = content.getvalue()
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(body)
            stream.write(_last_line(body))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
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
    content = path.read_bytes()
    body = content[: -len(_last_line(b""))]
    if content[len(body) :] != _last_line(body):
        raise InputError(
            f"{path}: not a snapshot of version {VERSION.decode()}, or damaged: its hash differs; use another snapshot"
        )
    return torch.load(io.BytesIO(body), weights_only=True)


def check_identity(path: str | os.PathLike[str], saved: dict[str, str], current: dict[str, str]) -> None:
    """Refuse a snapshot of another artifact or model.

    Raises:
        InputError: naming what differs.
    """
    for key, value in current.items():
        if saved[key] != value:
            raise InputError(f"{path}: the snapshot's {key} is {saved[key]!r}, this run's is {value!r}")


def _last_line(body: bytes) -> bytes:
    digest = hashlib.blake2b(body, digest_size=32).hexdigest().encode()
    return b"\n" + b" ".join((FORMAT, VERSION, digest)) + b"\n"
