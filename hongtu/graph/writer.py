"""Writes an artifact directory.

Arrays first, ``manifest.json`` last, written to a temporary sibling and renamed: an artifact is complete or absent.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.files import check_output, replace_directory, reserve, temporary_sibling
from hongtu.graph.format import ARRAYS, FORMAT, MANIFEST, VERSION, file_hash, manifest_text, text_hash


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
        check_output(self.path, force=force, marker=MANIFEST)
        self._given = directory is not None
        self._directory = directory or temporary_sibling(self.path)
        self._names: set[str] = set()

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._given:
            shutil.rmtree(self._directory, ignore_errors=True)

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
        replace_directory(self._directory, self.path)


def create_array(file: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A writable memory map of a new .npy file."""
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
    reserve(file)
    return array


def _form(file: Path) -> dict[str, Any]:
    """The manifest's entry of a file, but for its hash."""
    array = np.load(file, mmap_mode=None if file.stat().st_size < 4096 else "r", allow_pickle=False)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": file.stat().st_size}


def _store(file: Path) -> str:
    """Have a file on disk; returns its hash."""
    with open(file, "rb") as stream:
        os.fsync(stream.fileno())
    return file_hash(file)
