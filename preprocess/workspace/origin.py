"""What an artifact was made of, so that the same call finds it: ``origin.json`` beside the manifest, no part of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.files import read_json
from hongtu.graph.format import ORIGIN

_STEP = 1 << 24  # elements that are hashed at a time


def input_hash(pieces: dict[str, Any]) -> str:
    """Hexadecimal BLAKE2b-256 of a graph that was read: names, forms and contents of its arrays, and its values."""
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(pieces):
        piece = pieces[name]
        if isinstance(piece, np.ndarray):
            digest.update(f"{name} {piece.dtype.str} {piece.shape}".encode())
            flat = piece.reshape(-1)
            for lo in range(0, len(flat), _STEP):
                digest.update(np.ascontiguousarray(flat[lo : lo + _STEP]).view(np.uint8).data)
        else:
            digest.update(f"{name} {json.dumps(piece)}".encode())
    return digest.hexdigest()


def check_origin(path: Path, origin: dict[str, Any]) -> None:
    """Refuse an artifact that was made of something else.

    Args:
        origin: "input", "settings" and "version" of what would be made there now, JSON.
    """
    now = json.loads(json.dumps(origin))
    try:
        before = read_json(path / ORIGIN, "")
        old, new = before["settings"], now["settings"]
        changed = [f"{name} {old.get(name)!r} (now {new[name]!r})" for name in new if old.get(name) != new[name]]
        why = f"made with {', '.join(changed)}" if changed else "made of another input"
    except (InputError, KeyError, TypeError, AttributeError):
        before, why = None, "and does not say what it was made of"
    if before != now:
        raise InputError(f"{path}: already exists, {why}; choose another path or pass --force to replace it")
