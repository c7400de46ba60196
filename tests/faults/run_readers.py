"""The files that need torch to be read: those that a run writes, and saved graphs; as ``tests.faults.readers``."""

from __future__ import annotations

import io
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from hongtu.cli.settings import read_options, read_run_file, to_toml
from hongtu.cli.train_config import TrainConfig
from hongtu.config import PreprocessConfig
from hongtu.hardware import PROFILES
from hongtu.preprocess.read.graph import SPLITS
from hongtu.preprocess.read.open import read_input
from hongtu.ranks.fabric import load_fabric
from hongtu.train import snapshot
from hongtu.train.run_directory import RunDirectory
from hongtu.train.snapshot import read_snapshot
from tests.faults.fuzz import fuzz_reader
from tests.faults.outcome import Outcome
from tests.faults.readers import Reader
from tests.faults.run import hashed, make_trainer, prepare
from tests.neutral import pieces


def _snapshot() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(prepare(Path(folder) / "artifact"))
        trainer.train_epoch()
        trainer.save(Path(folder) / "snapshot")
        return ((Path(folder) / "snapshot").read_bytes(),)


def _flat(state: Any) -> str:
    torch.set_printoptions(threshold=10_000)
    return repr(state)


def _graph() -> dict[str, torch.Tensor]:
    given = {name: torch.from_numpy(np.array(array)) for name, array in pieces().items()}
    return {"edge_index": given.pop("edges"), "x": given.pop("features"), "y": given.pop("labels"), **given}


def _saved_graphs() -> tuple[bytes, ...]:
    found = []
    for graph in (_graph(), _graph() | {"edge_weight": torch.linspace(0, 1, 60), "num_nodes": 24}):
        stream = io.BytesIO()
        torch.save(graph, stream)
        found.append(stream.getvalue())
    return tuple(found)


def _read_graph(file: Path) -> Any:
    with tempfile.TemporaryDirectory(prefix="hongtu-fuzz-") as scratch:
        raw = read_input(file, PreprocessConfig(partitions=2, chunks=3), Path(scratch))
        weight = raw.edge_weight if raw.edges.size else None
        found = [raw.edges, weight, raw.features, raw.labels, *(raw.masks[split] for split in SPLITS)]
        return tuple(None if piece is None else np.array(piece) for piece in found)


def _graph_of(content: bytes) -> Any:
    found = torch.load(io.BytesIO(content), weights_only=True)
    masks = [found.get(f"{split}_mask", torch.zeros(len(found["x"]), dtype=torch.bool)) for split in SPLITS]
    weight = found.get("edge_weight") if found["edge_index"].numel() else None
    fields = [
        found["edge_index"],
        None if weight is None else weight.flatten().float(),
        found["x"].float(),
        found["y"],
        *masks,
    ]
    return tuple(None if field is None else field.numpy() for field in fields)


def _options(content: bytes) -> Any:
    hints, given = get_type_hints(TrainConfig), json.loads(content.decode())
    real = {name for name, hint in hints.items() if float in (hint, *get_args(hint))}  # whole numbers do for these
    given |= {name: float(x) for name, x in given.items() if name in real and type(x) is int}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}


def _older_options(content: bytes) -> Any:
    """Without settings that some runs did not have yet."""
    return {name: getattr(TrainConfig, name) for name in ("host_dtype", "gradient_dtype")} | _options(content)


def _rewound(file: Path) -> Any:
    """The lines that are left."""
    RunDirectory(file.parent).rewind(3)
    return file.read_bytes()


def _lines(content: bytes) -> bytes:
    kept = []
    for line in io.BytesIO(content):
        try:
            said = json.loads(line)
            number, scores = said["epoch"], {} if said.get("metrics") is None else said["metrics"]
            numbers = {type(x) for x in (said.get("loss"), said.get("seconds"), *scores.values())}
            sizes = [abs(x) for x in (said["epoch"], said.get("loss"), said.get("seconds"), *scores.values()) if x]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        plain = not numbers - {int, float, type(None)} and type(number) is int and max(sizes, default=0) < 2**1023
        if line.endswith(b"\n") and plain and number <= 3 and not any(x != x for x in sizes):
            kept.append(line)
    return b"".join(kept)


def _setting(content: bytes) -> Any:
    toml = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    return _options(json.dumps(toml.loads(content.decode())).encode())


def _topology(content: bytes) -> bool:
    return isinstance(json.loads(content.decode()), dict)


_SNAPSHOT = _snapshot()
_TOPOLOGIES = (
    b'{"hosts": ["a", "a", "b", "b"]}',
    b'{"hosts": ["a", "b", "b", "c"], "hops": {"bus": 1e10}, "paths": {"0 1": ["bus"], "1 0": ["bus", "bus"]}}',
)
_OPTIONS = json.dumps(asdict(TrainConfig(artifact="artifact")), indent=1).encode()
_LOG = "".join(json.dumps({"epoch": epoch, "loss": 1.5, "metrics": {}}) + "\n" for epoch in range(5)).encode()

RUN_READERS = {
    "snapshot": Reader(
        "snapshot.pt",
        _SNAPSHOT,
        lambda file: _flat(read_snapshot(file)),
        lambda content: _flat(torch.load(io.BytesIO(content), weights_only=True)),
        arguments=None,
    ),
    "snapshot with its hash": Reader(
        "snapshot.pt",
        tuple(whole.rpartition(b"\n" + snapshot.FORMAT.encode())[0] for whole in _SNAPSHOT),
        lambda file: _flat(read_snapshot(file)),
        lambda content: _flat(torch.load(io.BytesIO(content), weights_only=True)),
        pack=hashed,
        arguments=None,
    ),
    "run file": Reader(
        "run.toml",
        (to_toml(TrainConfig(artifact="artifact", loggers=("CSVLogger('x.csv')",))).encode(),),
        lambda file: read_run_file(file, TrainConfig),
        _setting,
        arguments=None,
    ),
    "topology file": Reader(
        "topology.json",
        _TOPOLOGIES,
        lambda file: load_fabric(file, 4, PROFILES["h200"]) is not None,
        _topology,
        arguments=None,
    ),
    "options.json": Reader("options.json", (_OPTIONS,), read_options, _older_options, arguments=None),
    "epochs.jsonl": Reader("epochs.jsonl", (_LOG,), _rewound, _lines, arguments=None),
    "graph.pt": Reader("graph.pt", _saved_graphs(), _read_graph, _graph_of, graph=Path.mkdir, arguments=None),
}


def fuzz_run_reader(name: str, tries: int, seed: int = 0) -> Outcome:
    """As ``fuzz_reader``, for this table."""
    return fuzz_reader(name, tries, seed, RUN_READERS)
