"""``hongtu infer ARTIFACT MODEL OUT``: run a trained model on a graph, which needs no labels or masks."""

from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hongtu.cli.build import make_layers, own_model
from hongtu.cli.embed import MODEL, check_absent, trained_classes
from hongtu.cli.settings import OPTIONS, read_options
from hongtu.cli.train_config import ModelConfig
from hongtu.cli.trust import check_trusted
from hongtu.config import size
from hongtu.errors import InputError

if TYPE_CHECKING:
    from hongtu.graph.artifact import Artifact

LONGEST_NAME = 1 << 16  # characters


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    add = parser.add_argument
    add("artifact", metavar="ARTIFACT", help="directory written by `hongtu preprocess`; labels and masks are not read")
    add("model", metavar="MODEL", help="RUN or SNAPSHOT: of `hongtu train --run`; MODULE:FUNCTION: of your own, which "
        "is given the opened artifact and returns a model of torch_geometric or layers, with trained weights; FILE: "
        "what torch.save(model, FILE) wrote (with --trust)")  # fmt: skip
    add("out", metavar="OUT", help=".npy file to write: float32 [N, columns], rows in the original order")
    add("--weights", metavar="FILE", help="of MODULE:FUNCTION: a state dict of torch.save or of safetensors; of layers "
        "also a run or a snapshot")  # fmt: skip
    add("--trust", action="store_true", help="load a FILE that holds a whole model, which runs code that is in it")
    add("--vertices", metavar="FILE", help="compute these alone, and what they depend on: an .npy array, or a text "
        "file with one vertex a line, named as the input names them; OUT has their rows, in this order")  # fmt: skip
    add("--device", default="cpu", help="as for `train` (default: cpu)")
    add("--device-memory", metavar="SIZE", help="as for `train` (default: no limit)")
    add("--host-memory", metavar="SIZE", help="as for `train` (default: what there is)")
    add("--spill", metavar="DIR", help="directory for vertex rows that --host-memory cannot hold")
    add("--host-dtype", choices=("float32", "bfloat16", "bf16"), help="as for `train`; results stay float32")
    add("--hardware", metavar="NAME|FILE", help="what plans are compared for (default: the device's)")
    add("--force", action="store_true", help="replace OUT")
    add("--json", action="store_true", help="print one JSON object instead of a line")


def run(options: argparse.Namespace) -> None:
    """Load, run once, and write."""
    check_absent(options.out, force=options.force)
    from hongtu.graph.artifact import open_artifact
    from hongtu.train.inference import Inference
    from hongtu.train.outputs import check_rows_file

    check_rows_file(options.out)
    artifact = open_artifact(options.artifact)
    vertices = None if options.vertices is None else _read_vertices(Path(options.vertices), artifact)
    model, weights = _read_model(options, artifact)
    inference = Inference(
        artifact, model, vertices=vertices, device=options.device, device_memory=options.device_memory,
        host_memory=options.host_memory, spill=options.spill, hardware=options.hardware,
        host_dtype=options.host_dtype,
    )  # fmt: skip
    if weights is not None:
        inference.load_weights(weights)
    rows = inference.predict(out=options.out)
    record = inference.record
    assert record is not None
    if options.json:
        print(json.dumps({
            "out": options.out, "shape": list(rows.shape), "seconds": record.seconds, "bytes": record.bytes,
            "peak_bytes": inference.peak_bytes,
        }))  # fmt: skip
        return
    moved = size(sum(record.bytes.values()))
    print(f"{options.out}: {rows.dtype} {list(rows.shape)}, in {record.seconds:.2f} s, {moved} moved")


def _read_model(options: argparse.Namespace, artifact: Artifact) -> tuple[Any, str | Path | None]:
    """A model or layers, and the snapshot or run whose weights these are to take; None: they have theirs."""
    path = Path(options.model)
    if ":" in options.model and not path.exists():
        made = own_model(options.model, artifact, "MODEL")
        if options.weights is None:
            return made, None
        return made, _take_weights(made, Path(options.weights))
    if options.weights is not None:
        raise InputError(f"--weights: {path} has weights of its own; it is for MODULE:FUNCTION")
    if path.is_file() and _is_torchs(path):
        return _whole_model(path, trusted=options.trust), None
    return _of_run(path, artifact)


def _of_run(path: Path, artifact: Artifact) -> tuple[list[Any], Path]:
    """The layers of a run, for as many classes as it was trained with: the artifact need not have any."""
    from hongtu.train.run_directory import newest_snapshot

    snapshot = newest_snapshot(path)
    file = snapshot.parent / OPTIONS
    if not file.exists():
        raise InputError(
            f"{path}: begun from Python, so nothing says which layers it has; pass MODULE:FUNCTION, which makes them, "
            f"and --weights {path}"
        )
    begun = {name: value for name, value in read_options(file).items() if name in MODEL and name != "loss"}
    check_trusted(file, begun)
    config = ModelConfig(artifact=str(artifact.path), **begun)
    return make_layers(config, artifact, trained_classes(config, artifact, snapshot)), snapshot


def _is_torchs(path: Path) -> bool:
    """Whether a file is none of hongtu's snapshots."""
    from hongtu.train.snapshot import snapshot_version

    return snapshot_version(path) is None


def _whole_model(path: Path, *, trusted: bool) -> Any:
    """What ``torch.save(model, path)`` wrote."""
    import torch
    from torch import nn

    found = _load(path, "pass MODULE:FUNCTION and --weights", trusted=trusted)
    if isinstance(found, nn.Module):
        return found
    kind, remedy = f"holds a {type(found).__name__}", f"and --weights {path}"
    if isinstance(found, dict) and all(isinstance(value, torch.Tensor) for value in found.values()):
        kind = "a state dict, weights without a model"
    elif isinstance(found, dict):
        kind = f"a dictionary of {', '.join(map(str, found))[:100] or 'nothing'}"
    else:
        remedy = "and --weights FILE, a state dict"
        name = getattr(found, "__name__", "")
        kind = f"the class {name}" if isinstance(found, type) else f"the function {name}" if callable(found) else kind
    raise InputError(
        f"{path}: {kind}, expected a model of torch_geometric, as torch.save(model, FILE) writes it; pass "
        f"MODULE:FUNCTION, which makes the model, {remedy}"
    )


def _taken_out(state: dict[Any, Any], own: dict[str, Any], path: Path) -> str:
    """What makes a model's state dict of one that holds it, or whose names begin with more; "" where nothing does."""
    for name, inside in state.items():
        if isinstance(inside, dict) and own.keys() <= inside.keys():
            return f"it is in there: torch.save(torch.load({str(path)!r})[{name!r}], FILE) takes it out"
        more = str(name).removesuffix(next(iter(own), ""))
        if more != name and all(f"{more}{key}" in state for key in own):
            renamed = f"{{k.removeprefix({more!r}): v for k, v in torch.load({str(path)!r}).items()}}"
            return f"its names begin with {more}; torch.save({renamed}, FILE) takes that away"
    return ""


def _load(path: Path, remedy: str, *, trusted: bool, whole: bool = True) -> Any:
    """What torch.save wrote.

    Raises:
        InputError: with the remedy, for what cannot be read, or only by running code that is in it.
    """
    import torch

    from hongtu.files import check_stored

    try:
        check_stored(path)
        with path.open("rb") as stream:
            if stream.read(1) not in (b"P", b"\x80"):  # of an archive, or a pickle
                raise InputError(f"{path}: not a file of torch.save; {remedy}")
        return torch.load(path, map_location="cpu", weights_only=not trusted)
    except InputError:
        raise
    except Exception as error:  # of the file system, of zip, of pickle, of whatever the file runs
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        reason = (isinstance(error, OSError) and error.strerror) or reason
        if not trusted and isinstance(error, pickle.UnpicklingError):
            reason = "not weights alone, and loading a whole model runs code that is in its file"
            remedy = f"where you trust it, pass {'--trust' if whole else f'{path} --trust as MODEL'}; or {remedy}"
        raise InputError(f"{path}: {reason}; {remedy}") from None


def _take_weights(made: Any, path: Path) -> Path | None:
    """Load a state dict into a model, or into layers; or the path itself, of a run or a snapshot."""
    from torch import nn

    from hongtu.errors import refused_as
    from hongtu.train.outputs import SAFETENSORS, read_weights

    layers = isinstance(made, list | tuple)
    if layers and (path.suffix == SAFETENSORS or path.is_dir() or (path.is_file() and not _is_torchs(path))):
        return path
    remedy = "pass a state dict of the model, as torch.save(model.state_dict(), FILE) writes it"
    if path.is_dir() or (path.is_file() and not _is_torchs(path)):
        raise InputError(
            f"--weights {path}: expected a state dict of {type(made).__name__}; for a run's weights return "
            f"hongtu.from_pyg(model), or pass what `hongtu export {path} weights.pt` writes of a run of `hongtu train`"
        )
    safe = path.suffix == SAFETENSORS
    state = read_weights(path)["model"] if safe else _load(path, remedy, trusted=False, whole=False)
    if isinstance(state, dict) and not layers:
        remedy = _taken_out(state, made.state_dict(), path) or remedy
    with refused_as(f"--weights {path}", remedy):
        modules = [entry[0] if isinstance(entry, tuple) else entry for entry in made] if layers else made
        (nn.ModuleList(modules) if layers else made).load_state_dict(state)
    return None


def _read_vertices(path: Path, artifact: Artifact) -> Any:
    """Vertices as the input names them, from a file."""
    from hongtu.files import lines_of, open_npy

    if path.suffix == ".npy":
        return open_npy(path, "pass a .npy array or a text file")
    try:
        with path.open(encoding="utf-8") as stream:
            names = [line.strip() for line in lines_of(stream) if line.strip()]
        if max(map(len, names), default=0) > LONGEST_NAME:
            raise ValueError(f"a line of more than {LONGEST_NAME} characters")
    except (OSError, ValueError) as error:
        error = getattr(error, "strerror", None) or error  # which names the file again
        raise InputError(f"--vertices {path}: {error}; pass a .npy array or a text file with one a line") from None
    ids = artifact.vertex_ids
    if ids is not None and isinstance(ids[0], str):
        return names
    try:
        return [int(name) for name in names]
    except ValueError as error:
        raise InputError(f"--vertices {path}: {error}; expected whole numbers, one a line") from None
