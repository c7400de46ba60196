"""Writes an artifact directory.

Arrays first, ``manifest.json`` last, written to a temporary sibling and renamed: an artifact is complete or absent.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.files import check_new_directory, check_replaceable, create_array, replace_directory, sync, whole_directory
from hongtu.graph.format import (
    ARRAYS,
    FORMAT,
    MANIFEST,
    ORIGIN,
    STAGES,
    VERSION,
    file_hash,
    manifest_text,
    text_hash,
)


def check_output(path: Path, *, force: bool) -> None:
    """Refuse a path where no artifact can be made.

    Raises:
        InputError: when it exists, unless ``force`` is true and it is an artifact, or empty; with the remedy.
    """
    if not force or not os.path.lexists(path):
        check_new_directory(path)
    else:
        check_replaceable(path, "artifacts", MANIFEST, _own_files)


def _own_files(file: Path) -> list[str] | None:
    try:
        manifest = json.loads(file.read_bytes())
        if manifest["format"] == FORMAT:
            return [ORIGIN, STAGES, *(f"{name}.npy" for name in manifest["arrays"])]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return None


class ArtifactWriter:
    """Writes arrays into a temporary directory beside ``path``; ``commit`` adds the manifest and renames it into place.

    Use as a context manager: leaving it without ``commit`` removes everything that was written.

    Args:
        path: the artifact to make.
        force: replace one that is there.
        directory: an existing directory to write into, on the same file system; whoever gives it removes it. None: a
            new sibling of ``path``.

    Raises:
        InputError: when ``path`` exists and ``force`` is false.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False, directory: Path | None = None) -> None:
        self.path = Path(path)
        check_output(self.path, force=force)
        self._made = ExitStack()
        self._directory = directory or self._made.enter_context(whole_directory(self.path))
        self._names: set[str] = set()

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def create(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """A writable memory map for array ``name``; fill it before ``commit``."""
        self.adopt(name)
        return create_array(self._directory / f"{name}.npy", dtype, shape)

    def adopt(self, name: str) -> None:
        """Take an array that is in the directory already."""
        assert name in ARRAYS, name
        self._names.add(name)

    def add(self, name: str, array: np.ndarray) -> None:
        """Store a whole array."""
        self.create(name, str(array.dtype), array.shape)[...] = array

    def commit(self, header: dict[str, Any]) -> None:
        """Write the manifest and move the artifact into place; ``header`` holds everything but the array table."""
        names = [name for name in ARRAYS if name in self._names]
        files = [self._directory / f"{name}.npy" for name in names]
        forms = [_form(file) for file in files]  # here: reading a header in two threads fails at times in Python 3.11
        with ThreadPoolExecutor() as pool:
            entries = [form | {"hash": digest} for form, digest in zip(forms, pool.map(_store, files), strict=True)]
        manifest = {"format": FORMAT, "version": VERSION, "hash": "", **header, "arrays": dict(zip(names, entries))}
        manifest["hash"] = text_hash(manifest_text(manifest))
        (self._directory / MANIFEST).write_bytes(manifest_text(manifest))
        for name in (STAGES, ORIGIN, MANIFEST):
            if (self._directory / name).exists():
                sync(self._directory / name)
        replace_directory(self._directory, self.path)


def _form(file: Path) -> dict[str, Any]:
    """The manifest's entry of a file, but for its hash."""
    array = np.load(file, mmap_mode=None if file.stat().st_size < 4096 else "r", allow_pickle=False)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": file.stat().st_size}


def _store(file: Path) -> str:
    """Have a file on disk; returns its hash."""
    sync(file)
    return file_hash(file)
