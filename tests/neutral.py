"""Small graphs in the neutral format, and the command line in this process. No torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def pieces(num_vertices: int = 24, num_edges: int = 60, seed: int = 0) -> dict[str, Any]:
    """The arrays of a valid graph by file stem; change or remove one, then ``write`` it."""
    rng = np.random.default_rng(seed)
    masks = np.arange(num_vertices) % 3
    return {
        "edges": rng.integers(0, num_vertices, (2, num_edges)),
        "features": rng.standard_normal((num_vertices, 5)).astype(np.float32),
        "labels": rng.integers(0, 3, num_vertices),
        "train_mask": masks == 0,
        "val_mask": masks == 1,
        "test_mask": masks == 2,
    }


def write(directory: Path, arrays: dict[str, Any], meta: dict[str, Any] | None = None) -> Path:
    """Save the pieces that are not None as a directory in the neutral format."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        if array is not None:
            np.save(directory / f"{name}.npy", array)
    if meta is not None:
        (directory / "meta.json").write_text(json.dumps(meta))
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory, by name, less what is no part of an artifact: its log, and what it was made of."""
    beside = ("stages.jsonl", "origin.json")
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir()) if file.name not in beside}
