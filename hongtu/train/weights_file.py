"""Weights alone, as files that other programs read: torch's state dicts, and safetensors. Loading executes no code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hongtu.errors import InputError
from hongtu.files import whole_file
from hongtu.model.embedding import NAME
from hongtu.model.link_loss import DECODER

SAFETENSORS = ".safetensors"
_IDENTITY = "hongtu"  # in a file's metadata: which layers have these weights


def write_weights(
    path: str | os.PathLike[str], weights: Mapping[str, Tensor], identity: Mapping[str, Any] | None = None
) -> None:
    """Write ``{name: tensor}`` as safetensors where the name ends so, else as ``torch.save`` does.

    Args:
        identity: what the weights belong to, which safetensors keep beside them.

    Raises:
        InputError: when safetensors are not installed, or a weight is no tensor.
        OutputError: when the file cannot be written; one that was there before stays.
    """
    path = Path(path)
    if path.suffix != SAFETENSORS:
        with whole_file(path) as partial:
            torch.save(dict(weights), partial)
        return
    library = _safetensors(path)
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{path}: {name} is a {type(value).__name__}, and safetensors hold tensors; use torch's")
    apart = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}  # none shares memory
    with whole_file(path) as partial:
        library.save_file(apart, partial, None if identity is None else {_IDENTITY: json.dumps(identity)})


def read_weights(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file of safetensors says of a snapshot: "model", "embedding", "decoder" and "identity", which is {} where
    others wrote it.

    Raises:
        InputError: when it is absent or damaged.
    """
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file; trainer.save(path, format='safetensors') writes one")
    _safetensors(path)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as stream:
            identity = json.loads((stream.metadata() or {}).get(_IDENTITY, "{}"))
            weights = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - no mapping
            if not isinstance(identity, dict):
                raise ValueError(f"{_IDENTITY} is {identity!r:.100}")
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable file of safetensors ({error}); use another one") from None
    rows, prefix = weights.pop(NAME, None), f"{DECODER}."
    decoder = {name.removeprefix(prefix): weights.pop(name) for name in [*weights] if name.startswith(prefix)}
    embedding = None if rows is None else {"weight": rows}
    return {"model": weights, "embedding": embedding, "decoder": decoder or None, "identity": identity}


def _safetensors(path: object) -> ModuleType:
    try:
        import safetensors.torch
    except ImportError:
        raise InputError(f"{path}: safetensors is not installed; run `pip install 'hongtu[safetensors]'`") from None
    return safetensors.torch
