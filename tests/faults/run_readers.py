"""The files that a run writes and reads again, for the fuzzer; as ``tests.faults.readers``, but with torch."""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from hongtu.cli.train import DECIDING, _check_deciding
from hongtu.run_directory import RunDirectory
from hongtu.snapshot import read_snapshot
from tests.faults.fuzz import fuzz_reader
from tests.faults.outcome import Outcome
from tests.faults.readers import Reader
from tests.faults.run import make_trainer, prepare


def _snapshot() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(prepare(Path(folder) / "artifact"))
        trainer.train_epoch()
        trainer.save(Path(folder) / "snapshot")
        return ((Path(folder) / "snapshot").read_bytes(),)


def _flat(state: Any) -> str:
    torch.set_printoptions(threshold=10_000)
    return repr(state)


def _read_options(file: Path) -> Any:
    _check_deciding(file, argparse.Namespace(**_OPTIONS))
    return _OPTIONS


def _options(content: bytes) -> Any:
    found = json.loads(content.decode())
    return {name: found[name] for name in DECIDING}


def _rewound(file: Path) -> Any:
    """The lines that are left."""
    RunDirectory(file.parent).rewind(3)
    return file.read_bytes()


def _lines(content: bytes) -> bytes:
    kept = []
    for line in io.BytesIO(content):
        try:
            number = json.loads(line)["epoch"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if line.endswith(b"\n") and isinstance(number, int) and number < 3:
            kept.append(line)
    return b"".join(kept)


_OPTIONS = {"model": "gcn", "hidden": 8, "layers": 2, "dropout": 0.0, "heads": 1, "lr": 0.01, "weight_decay": 0.0,
            "seed": 0}  # fmt: skip
_LOG = "".join(json.dumps({"epoch": epoch, "loss": 1.5, "metrics": {}}) + "\n" for epoch in range(5)).encode()

RUN_READERS = {
    "snapshot": Reader(
        "snapshot.pt",
        _snapshot(),
        lambda file: _flat(read_snapshot(file)),
        lambda content: _flat(torch.load(io.BytesIO(content), weights_only=True)),
    ),
    "options.json": Reader("options.json", (json.dumps(_OPTIONS).encode(),), _read_options, _options),
    "epochs.jsonl": Reader("epochs.jsonl", (_LOG,), _rewound, _lines),
}


def fuzz_run_reader(name: str, tries: int) -> Outcome:
    """As ``fuzz_reader``, for this table."""
    return fuzz_reader(name, tries, readers=RUN_READERS)
