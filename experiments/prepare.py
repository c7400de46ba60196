"""Graphs and artifacts that several experiments need: made once, kept in the folder that they are given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hongtu
from hongtu.config import PreprocessConfig
from hongtu.preprocess.entry import preprocess_directory
from hongtu.preprocess.generate import generate


def real_graph(name: str) -> Path | None:
    """A graph of the directory that HONGTU_DATA names, where it is there."""
    folder = os.environ.get("HONGTU_DATA")
    found = None if folder is None else Path(folder) / name
    return found if found is not None and found.is_dir() else None


def generated(folder: Path, kind: str, vertices: int, *, features: int = 64, classes: int = 16) -> Path:
    """A generated graph with 15 edges a vertex."""
    path = folder / f"{kind}-{vertices}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        generate(kind, path, vertices=vertices, edges=15 * vertices, features=features, classes=classes, seed=1)
    return path


def prepared(graph: Path, path: Path, **settings: Any) -> hongtu.Artifact:
    """The artifact of a graph; ``settings`` are those of :class:`~hongtu.config.PreprocessConfig`."""
    if path.exists():
        return hongtu.open_artifact(path)
    return preprocess_directory(graph, path, PreprocessConfig(**settings))
