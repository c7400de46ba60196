"""Damaged artifacts: `hongtu info --verify` refuses them with exit code 2, or they equal the artifact they were.

Four kinds of damage: to the bytes of a file; files of another artifact, or none; the manifest's values; and indices
that point out of what they index, with every hash made right again, as a broken writer would leave them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hongtu
from hongtu.graph import format as format_of
from tests.faults.fuzz import command, same, work_limit
from tests.faults.mutate import mutate
from tests.faults.outcome import Outcome
from tests.faults.structures import make
from tests.neutral import contents, pieces

VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 7, 2**31, 2**63, 10**400, 0.5, float("nan"), "", "x", "../x", "\ud800",
                           [], {}, [1], {"a": 1})  # fmt: skip
Damage = Callable[[Path, list[dict[str, bytes]], np.random.Generator], str]


def fuzz_artifacts(tries: int, seed: int = 0) -> Outcome:
    """Try damaged artifacts number ``seed`` to ``seed + tries``."""
    outcome = Outcome(
        "damaged artifact under `hongtu info --verify`", "equal to what it was, or exit code 2 and one line"
    )
    opened, by_kind = 0, {damage.__name__: 0 for damage in DAMAGES}
    with tempfile.TemporaryDirectory(prefix="hongtu-fuzz-") as folder:
        sources = [contents(path) for path in make_artifacts(Path(folder))]
        path = Path(folder) / "damaged"
        for number in range(seed, seed + tries):
            rng = np.random.default_rng((101, number))
            files = sources[int(rng.integers(len(sources)))]
            _restore(path, files)
            damage = DAMAGES[int(rng.integers(len(DAMAGES)))]
            what = damage(path, sources, rng)
            by_kind[damage.__name__] += 1
            try:
                with work_limit():
                    code, err = command(["info", str(path), "--verify", "--json"])
            except BaseException as error:
                code, err = -1, f"{type(error).__name__}: {error}"
            equal = code == 0 and damage is not crossed_index and equals(path, files)
            opened += code == 0
            good = equal or (code == 2 and err.count("\n") == 1)
            outcome.expect(good, f"artifact {number} ({what}): exit code {code}: {err[:200]}")
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in by_kind.items())
    outcome.note = f"seeds {seed} to {seed + tries - 1}: {kinds}; {opened} opened as what they were"
    return outcome


def make_artifacts(folder: Path) -> list[Path]:
    """Weighted and with edge types, multi-label, with embeddings, with vertex types: some of their files have the same
    shapes."""
    given = pieces()
    masks = {split: given.pop(f"{split}_mask") for split in ("train", "val", "test")}
    multi = (np.arange(72).reshape(24, 3) % 2).astype(np.float32)
    kinds: tuple[dict[str, Any], ...] = (
        {"edge_weight": np.linspace(0.1, 1, 60, dtype=np.float32), "edge_type": np.arange(60) % 4},
        {"labels": multi, "seed": 1, "partitioner": "random"},
        {"features": "embedding:5", "order": "clusters"},
        {"features": [np.ones((12, 2)), np.ones((12, 4))], "vertex_type": np.arange(24) % 2},
    )
    found = []
    for k, kind in enumerate(kinds):
        found.append(folder / f"source-{k}")
        hongtu.preprocess_graph(
            num_vertices=24, artifact=found[-1], masks=masks, **({"partitions": 2, "chunks": 3} | given | kind)
        )
    return found


def equals(path: Path, files: dict[str, bytes]) -> bool:
    """Whether an artifact that opens holds the arrays of these files and the sizes that they decide."""
    found = hongtu.open_artifact(path)
    manifest = json.loads(files["manifest.json"])
    sizes = ("vertices", "edges", "partitions", "chunks")
    if any(found.manifest[key] != manifest[key] for key in sizes):
        return False
    return found.manifest["arrays"].keys() == manifest["arrays"].keys() and all(
        same(np.load(path / name), np.load(_write(path.parent / "expected.npy", files[name])))
        for name in files
        if name.endswith(".npy")
    )


# ------------------------------------------------------------------------------------------------------------ damage


def file_bytes(path: Path, sources: list[dict[str, bytes]], rng: np.random.Generator) -> str:
    file = _choose(sorted(path.iterdir()), rng)
    damage = make if rng.random() < 0.5 else mutate
    file.write_bytes(damage(file.read_bytes(), rng))
    return file.name


def files_crossed(path: Path, sources: list[dict[str, bytes]], rng: np.random.Generator) -> str:
    """A file of another artifact, of another array, or none."""
    file = _choose(sorted(path.iterdir()), rng)
    other = sources[int(rng.integers(len(sources)))]
    name = file.name if rng.random() < 0.6 and file.name in other else _choose(sorted(other), rng)
    if rng.random() < 0.2:
        file.unlink()
        return f"{file.name} removed"
    file.write_bytes(other[name])
    return f"{file.name} from {name}"


def manifest_values(path: Path, sources: list[dict[str, bytes]], rng: np.random.Generator) -> str:
    """A value of the manifest is another, is gone, or is new; half of the time its hash is right again."""
    manifest = json.loads((path / "manifest.json").read_text())
    holder, key, where = manifest, _choose(sorted(manifest), rng), ""
    while isinstance(holder[key], dict) and holder[key] and rng.random() < 0.8:
        holder, where = holder[key], f"{where}{key}."
        key = _choose(sorted(holder), rng)
    value = VALUES[int(rng.integers(len(VALUES)))]
    if rng.random() < 0.2:
        del holder[key]
    elif rng.random() < 0.2:
        holder[str(value)] = value
    else:
        holder[key] = value
    _write_manifest(path, manifest, right=rng.random() < 0.5)
    return f"{where}{key} = {str(value)[:40]!r}"


def crossed_index(path: Path, sources: list[dict[str, bytes]], rng: np.random.Generator) -> str:
    """One element of an index array points somewhere else, out of bounds or to what is there twice then."""
    name = _choose(["original_id", "chunk_start", "in_edge_start", "source_start", "sources", "local_source",
                    "schedule_paper"], rng)  # fmt: skip
    file = path / f"{name}.npy"
    array = np.load(file)
    at = int(rng.integers(array.size))
    wrong = [-1, -(2**30), np.iinfo(array.dtype).max, np.iinfo(array.dtype).min, array.max() + 1000]
    if name in ("original_id", "schedule_paper"):
        row = array.ravel() if array.ndim == 1 else array[at // array.shape[1]]
        wrong += [other for other in row.tolist() if other != array.flat[at]]
    array.flat[at] = wrong[int(rng.integers(len(wrong)))]
    np.save(file, array)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["arrays"][name]["hash"] = format_of.file_hash(file)
    _write_manifest(path, manifest, right=True)
    return f"{name}[{at}] = {array.flat[at]}"


DAMAGES: tuple[Damage, ...] = (file_bytes, files_crossed, manifest_values, crossed_index)


def _restore(path: Path, files: dict[str, bytes]) -> None:
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)


def _write_manifest(path: Path, manifest: dict[str, Any], *, right: bool) -> None:
    if right:
        manifest["hash"] = ""
        manifest["hash"] = format_of.text_hash(format_of.manifest_text(manifest))
    (path / "manifest.json").write_bytes(format_of.manifest_text(manifest))


def _write(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def _choose(values: list[Any], rng: np.random.Generator) -> Any:
    return values[int(rng.integers(len(values)))]
