"""Makes a directory of arrays an artifact: the manifest comes last, then a rename, so that it is complete or absent."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.files import check_new_directory, check_replaceable, read_json, replace_directory, sync
from hongtu.graph.format import ARRAYS, FORMAT, MANIFEST, ORIGIN, STAGES, VERSION, file_hash, manifest_text, text_hash


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
        manifest = read_json(file, "")
        if manifest["format"] == FORMAT:
            return [ORIGIN, STAGES, *(f"{name}.npy" for name in manifest["arrays"] if name in ARRAYS)]
    except (InputError, LookupError, TypeError):
        pass
    return None


def commit_artifact(directory: Path, path: Path, header: dict[str, Any], *, force: bool) -> None:
    """Write the manifest of the arrays in a directory, and move that into place.

    Args:
        directory: on the file system of ``path``.
        header: all of the manifest but the table of arrays.
        force: replace an artifact that is there.
    """
    check_output(path, force=force)
    files = [file for file in (directory / f"{name}.npy" for name in ARRAYS) if file.is_file()]
    forms = [_form(file) for file in files]  # here: reading a header in two threads fails at times in Python 3.11
    with ThreadPoolExecutor() as pool:
        entries = [form | {"hash": digest} for form, digest in zip(forms, pool.map(_store, files), strict=True)]
    arrays = {file.stem: entry for file, entry in zip(files, entries, strict=True)}
    manifest = {"format": FORMAT, "version": VERSION, "hash": "", **header, "arrays": arrays}
    manifest["hash"] = text_hash(manifest_text(manifest))
    (directory / MANIFEST).write_bytes(manifest_text(manifest))
    for name in (STAGES, ORIGIN, MANIFEST):
        if (directory / name).exists():
            sync(directory / name)
    replace_directory(directory, path, lambda: check_output(path, force=force))


def _form(file: Path) -> dict[str, Any]:
    """The manifest's entry of a file, but for its hash."""
    array = np.load(file, mmap_mode=None if file.stat().st_size < 4096 else "r", allow_pickle=False)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": file.stat().st_size}


def _store(file: Path) -> str:
    """Have a file on disk; returns its hash."""
    sync(file)
    return file_hash(file)
