"""Files for other programs: rows of every vertex, and weights alone, as torch's state dicts and as safetensors. Each is
complete or absent; loading executes no code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from hongtu.errors import InputError
from hongtu.files import create_array, whole_file
from hongtu.graph.given import as_path
from hongtu.model.embedding import NAME
from hongtu.model.link_loss import DECODER
from hongtu.ranks.together import Together

BLOCK = 1 << 22  # numbers copied in one step


def check_rows_file(path: str | os.PathLike[str]) -> Path:
    """Refuse a file that cannot be made, before any work.

    Raises:
        InputError: with the remedy.
    """
    path = as_path("out", path, "a .npy file")
    if path.suffix != ".npy":
        raise InputError(f"{path}: expected a name that ends in .npy")
    if path.is_dir() or not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{path}: expected a file in a directory that exists and can be written")
    return path


def write_rows(
    path: Path, rows: Tensor, ids: Tensor, ranks: Together, let_go: Callable[[], None] = lambda: None
) -> np.ndarray:
    """Store ``rows[k]`` as row ``ids[k]``, block by block: no second copy is made in memory. Rank 0 writes all ranks'
    rows, one rank after the other.

    Args:
        path: the file, replaced when it is there.
        rows: [R, C] on the CPU, this rank's.
        ids: int64 [R], on the CPU; of all ranks together each number once.
        let_go: is called behind each block of rows, which are not read again.

    Returns:
        a read-only memory map of the file.

    Raises:
        OutputError: when it cannot be written.
    """
    vertices = int(ranks.sum(len(rows)))
    parts = zip(ranks.each(rows), ranks.each(ids), strict=True)
    with ranks.agreed():
        try:
            if ranks.rank == 0:
                _write(path, parts, (vertices, rows.shape[1]), rows.numpy().dtype, let_go)
        finally:
            for _ in parts:  # the others are sending
                pass
    return np.load(path, mmap_mode="r")


def _write(
    path: Path,
    parts: Iterable[tuple[Tensor, Tensor]],
    shape: tuple[int, int],
    dtype: np.dtype,
    let_go: Callable[[], None],
) -> None:
    step = max(1, BLOCK // max(shape[1], 1))
    with whole_file(path) as partial:
        into = create_array(partial, dtype, shape)
        with tqdm(total=shape[0], desc=path.name, delay=2, disable=None) as bar:
            for rows, ids in parts:
                found, order = rows.numpy(), ids.numpy()
                for lo in range(0, len(found), step):
                    into[order[lo : lo + step]] = found[lo : lo + step]
                    let_go()
                    bar.update(len(order[lo : lo + step]))
        into.flush()


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
