"""Snapshot files: the whole state of a training run, written atomically. Loading never executes code.

A snapshot file is what ``torch.save`` writes, followed by a line ``hongtu-snapshot VERSION HASH`` with its BLAKE2b
hash; ``torch.load`` reads it too.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import reprlib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch

from hongtu.errors import InputError
from hongtu.files import check_stored, whole_file
from hongtu.model.wiring import Modules

FORMAT = "hongtu-snapshot"
VERSION = 2
SECTIONS: dict[str, Any] = {
    "identity": dict, "model": dict, "optimizer": dict, "scheduler": dict | None, "embedding": dict | None,
    "epoch": int, "history": list | None, "stopping": list, "seed": int, "rng": dict,
}  # fmt: skip
BLOCK = 1 << 20
FREE = 10_000  # values that any snapshot may hold
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of functions; another in every process

Identity = dict[str, "str | list[str]"]


def write_snapshot(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write ``state`` (tensors and plain values) atomically: the file is complete or as it was before.

    Raises:
        InputError: for a value that could not be loaded again without executing code.
        OutputError: when the file cannot be written.
    """
    for name, section in state.items():
        _check_plain(name, section)
    with whole_file(Path(path)) as partial, open(partial, "wb") as stream:
        body = _Hashed(stream)
        torch.save(state, cast(IO[bytes], body))
        if body.error is not None:
            raise body.error
        stream.write(_last_line(body.digest.hexdigest()))


def read_snapshot(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a snapshot.

    Raises:
        InputError: when it is absent, damaged or of another version.
        MemoryError: when there is no room for it.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such snapshot; trainer.save(path) writes one")
    if read_state_dict(path) is not None:
        raise InputError(
            f"{path}: a state dict, weights without optimizer and epoch; trainer.load_weights(path) takes it"
        )
    try:
        _check_hash(path)
        state = _load(path)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # of the file system, of zip, of a pickle with more than tensors and plain values
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: not a readable snapshot ({reason}); use another snapshot") from None
    if not isinstance(state, dict) or any(not isinstance(state.get(name, ...), SECTIONS[name]) for name in SECTIONS):
        raise InputError(f"{path}: not the state of a run; expected {', '.join(sorted(SECTIONS))}")
    return state


def read_state_dict(path: Path) -> dict[str, torch.Tensor] | None:
    """What ``torch.save(model.state_dict(), path)`` wrote; None for a file that may be a snapshot.

    Raises:
        InputError: when it holds something else that torch saved.
    """
    found, kind = None, "a model"
    remedy = "write its weights alone, torch.save(model.state_dict(), path), and pass that to trainer.load_weights"
    try:
        if snapshot_version(path) is not None or not zipfile.is_zipfile(path):
            return None
        found = _load(path)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # a damaged file, or a pickle with more than tensors and plain values
        if not isinstance(error, pickle.UnpicklingError):
            return None
    if isinstance(found, dict) and found and not {*SECTIONS} <= {*found}:
        if all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()):
            return dict(found)
        kind = f"a dictionary of {', '.join(map(str, found))}"[:200]
    elif found is not None:
        return None
    raise InputError(f"{path}: {kind}, which torch.save wrote, and no snapshot; {remedy}")


def _load(path: Path) -> Any:
    check_stored(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    waiting, left = [state], FREE + path.stat().st_size  # a pickle may hold one list, or itself, any number of times
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor) and value.nbytes > value.untyped_storage().nbytes():
            raise InputError(f"{path}: a tensor of shape {list(value.shape)} repeats its rows; use another snapshot")
        if isinstance(value, dict | list | tuple):
            left -= len(value)
            if left < 0:
                raise InputError(f"{path}: holds more values than bytes; use another snapshot")
            waiting += value.values() if isinstance(value, dict) else value
    return state


def check_identity(path: str | os.PathLike[str], saved: Identity, current: Identity) -> None:
    """Refuse a snapshot of another artifact or model.

    Raises:
        InputError: naming what differs.
    """
    for key, here in current.items():
        there = saved.get(key)
        if there == here:
            continue
        if isinstance(there, list) and isinstance(here, list):
            if len(there) != len(here):
                raise InputError(f"{path}: the snapshot has {len(there)} {key}, this run has {len(here)}")
            index = next(k for k, pair in enumerate(zip(there, here, strict=True)) if pair[0] != pair[1])
            key, there, here = f"{key}[{index}]", there[index], here[index]
        there = there if isinstance(there, str) else reprlib.repr(there)
        if key == "artifact":
            raise InputError(
                f"{path}: the snapshot is of another artifact; go on with that one, or take only its weights "
                f"(trainer.load_weights, `hongtu embed`); hashes {there} and {here}"
            )
        raise InputError(f"{path}: the snapshot's {key} is {there}, this run's is {here}")


def describe_layer(layer: torch.nn.Module) -> str:
    """A layer's type, options and parameter shapes, in one line.

    >>> describe_layer(torch.nn.Linear(3, 2))
    'Linear(in_features=3, out_features=2, bias=True) [weight 2x3, bias 2]'
    """
    shapes = [f"{name} {_shape(parameter)}" for name, parameter in layer.named_parameters()]
    return f"{' '.join(_ADDRESS.sub('', repr(layer)).split())} [{', '.join(shapes)}]"


def described_layers(model: Modules) -> list[str]:
    """What a snapshot's layers have in common with those that it may be loaded into."""
    return [
        describe_layer(layer) if header is None else f"{describe_layer(layer)} {header}"
        for layer, header in zip(model, model.headers, strict=True)
    ]


@contextmanager
def read_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """What is raised inside is a file's, whose hash may be right and whose values may be anything."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InputError(f"{path}: not the state of such a run ({reason}); use another snapshot") from error


def _shape(parameter: torch.nn.Parameter) -> str:
    if isinstance(parameter, torch.nn.UninitializedParameter):
        return "lazy"
    return "x".join(map(str, parameter.shape)) or "scalar"


class _Hashed:
    """What ``torch.save`` writes to: a file and its hash. Torch does not pass errors on, so the first is kept."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.digest = stream, hashlib.blake2b(digest_size=32)
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        if self.error is None:
            try:
                self.stream.write(content)
            except OSError as error:
                self.error = error
        return len(content)

    def flush(self) -> None:
        """Of the stream, at its end."""


def _check_plain(name: str, value: Any) -> None:
    """Refuse what only code could make again."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _check_plain(f"{name}[{key!r}]", entry)
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            _check_plain(f"{name}[{index}]", entry)
    elif not isinstance(value, torch.Tensor | str | bytes | int | float | complex | bool | None):
        raise InputError(
            f"snapshot: {name} is of {type(value)}, expected tensors and plain values; give the object a state_dict "
            "of these"
        )


def weights_of_version_1(path: Path) -> dict[str, torch.Tensor]:
    """The layers' weights of a snapshot of the first format, which has no generators and no history to go on with.

    Raises:
        InputError: when it is damaged, of another version, or holds learned rows of vertices.
    """
    _check_hash(path, version=1)
    state = _load(path)
    if state["embedding"] is not None:
        raise InputError(f"{path}: holds learned rows of vertices, which only its own run can use; train again")
    return dict(state["model"])


def snapshot_version(path: Path) -> int | None:
    """The format of a snapshot by its last line; None where it has none."""
    with open(path, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - 100))
        words = stream.read().rpartition(b"\n" + FORMAT.encode())[2].split()
    return int(words[0]) if len(words) == 2 and words[0].isdigit() else None


def _check_hash(path: Path, version: int = VERSION) -> None:
    there, found, digest = snapshot_version(path), b"", hashlib.blake2b(digest_size=32)
    if there not in (None, version):
        remedy = f"`hongtu migrate {path} OUT` takes its weights" if there == 1 else "use the hongtu that wrote it"
        raise InputError(f"{path}: snapshot version {there}, this hongtu reads version {version}; {remedy}")
    if there is not None:  # else it may be a hole of many GiB
        with open(path, "rb") as stream:
            left = max(0, os.fstat(stream.fileno()).st_size - len(_last_line("0" * 64, version)))
            while block := stream.read(min(BLOCK, left)):
                digest.update(block)
                left -= len(block)
            found = stream.read()
    if found != _last_line(digest.hexdigest(), version):
        raise InputError(f"{path}: not a snapshot, or damaged: its hash differs; use another snapshot")


def _last_line(digest: str, version: int = VERSION) -> bytes:
    return f"\n{FORMAT} {version} {digest}\n".encode()
