"""Saved torch_geometric ``Data`` (.pt): the one module of preprocessing that imports torch, and only when it runs.

The file is opened with ``weights_only=True``: it can hold tensors and torch_geometric's own classes, never code.
"""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.files import check_stored
from hongtu.preprocess.read.formats.hetero_data import from_dict, from_hetero, is_hetero
from hongtu.preprocess.read.formats.pyg_data import from_data
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.size import FREE, PER_ROW

ENDINGS = (".pt", ".pth")


def open_torch_file(path: Path, config: PreprocessConfig) -> RawGraph:
    """A ``Data``, its ``to_dict()`` or a ``HeteroData``'s, or a processed dataset of one graph."""
    found = load_torch_file(path)
    if isinstance(found, tuple) and found:  # a processed dataset: (data, slices, ...)
        found = found[0]
    if isinstance(found, dict) and isinstance(found.get("_store"), dict):
        found = found["_store"]
    typed = from_dict(found)
    return from_hetero(typed, config, name=str(path)) if is_hetero(typed) else from_data(found, str(path))


def load_torch_file(path: Path) -> Any:
    """Tensors, and what holds them."""
    import torch

    try:
        check_stored(path)
        checked = torch.sparse.check_sparse_tensor_invariants(True)  # else indices may point anywhere in memory
        with _torch_geometric_allowed(), checked, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other versions of pickle
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
            _check_tensors(found, path)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # pickle, zip, key and runtime errors alike
        said = str(error).splitlines() or [type(error).__name__]
        lines = [line.strip() for line in said if "rror: " in line] or [said[0][:200]]
        raise InputError(
            f"{path}: cannot be opened safely ({lines[0].split('. ')[0]}); save `data.to_dict()` with torch.save, "
            "or pass hongtu.preprocess_graph(data=...)"
        ) from None
    return found


def _check_tensors(found: Any, path: Path) -> None:
    """Refuse tensors, in whatever holds them, that have more elements than the file has bytes for: expanded ones, and
    sparse ones of a shape that few entries say nothing about.
    """
    import torch

    held = max(FREE, PER_ROW * path.stat().st_size)
    waiting, seen = [found], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            rows = value.shape[0] if value.ndim and value.layout != torch.strided else value.numel()
            if rows > held:
                raise InputError(
                    f"{path}: a tensor of shape {tuple(value.shape)} in a file of {path.stat().st_size} bytes; save it "
                    "whole, with .contiguous()"
                )
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif hasattr(value, "__dict__"):
            waiting.extend(vars(value).values())


def _torch_geometric_allowed() -> Any:
    """Lets the safe loader make a ``Data``: its classes hold tensors and nothing that runs."""
    import torch

    try:
        from torch_geometric.data import data, storage
    except ImportError:
        return contextlib.nullcontext()
    names = ((data, "Data"), (data, "DataEdgeAttr"), (data, "DataTensorAttr"), (storage, "GlobalStorage"))
    return torch.serialization.safe_globals([getattr(module, name) for module, name in names if hasattr(module, name)])
