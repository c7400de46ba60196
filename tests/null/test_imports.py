"""The layering: who may import whom. ``make lint`` runs this file.

A module may import the layers it sits on and whatever those sit on. Every module of hongtu belongs to one layer; a new
one needs a line in the table.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SITS_ON = {
    "errors": "",
    "kernels": "",
    "exponential": "",
    "attention_kernels": "kernels exponential",
    "gate_kernels": "kernels exponential",
    "reduction_kernels": "kernels",
    "transposes": "kernels",
    "reference": "",
    "row_copies": "",
    "workspace": "",
    "metrics": "errors",
    "host_memory": "errors",
    "malloc": "",
    "host_load": "",
    "config": "errors",
    "loss_terms": "errors",
    "losses": "errors loss_terms",
    "scores": "",
    "bits": "",
    "bitmap": "bits",
    "neighbour_sets": "bitmap bits",
    "locality": "",
    "topology": "errors neighbour_sets locality",
    "statistics": "topology",
    "output": "errors",
    "npy": "errors",
    "vertex_ids": "errors",
    "sparse_rows": "topology",
    "artifact_check": "topology sparse_rows",
    "artifact_format": "npy sparse_rows",
    "artifact_writer": "artifact_format output",
    "artifact": "artifact_format topology artifact_check vertex_ids",
    "preprocess": "artifact artifact_writer config host_memory",
    "plan": "artifact config metrics",
    "cuda_ext": "errors",
    "dispatch": "kernels transposes attention_kernels gate_kernels reduction_kernels row_copies cuda_ext",
    "ops": "dispatch",
    "reduction_ops": "ops",
    "attention_ops": "ops",
    "reductions": "reduction_ops",
    "streams": "",
    "block": "attention_ops reductions topology",
    "nn": "block",
    "models": "nn config",
    "pyg_names": "errors",
    "convert": "nn pyg_names connections",
    "modules": "nn",
    "connections": "errors",
    "network": "modules nn connections",
    "tracing": "network plan",  # what the planner must know of the layers
    "host_store": "artifact row_copies pool host_memory",
    "device": "pool artifact metrics workspace dispatch streams",
    "cpu_device": "device products kept_memory row_copies",
    "host_threads": "",
    "staged_device": "device host_threads host_memory",
    "transfer": "host_store device plan",
    "structure": "device host_store plan",
    "chunk_inputs": "block structure",
    "moments": "",
    "kept": "",
    "links": "nn artifact statistics",
    "chunk_run": "transfer network losses links chunk_inputs kept moments",
    "executor": "chunk_run",
    "embedding": "errors",
    "host_rows": "host_store plan embedding losses links",
    "probe": "executor host_rows tracing cpu_device",
    "snapshot": "errors",
    "random_state": "",
    "run_directory": "snapshot metrics",
    "pool": "",
    "products": "",
    "kept_memory": "",
    "dry": "staged_device plan",
    "pinned": "host_threads",
    "cuda": "staged_device plan pinned",
    "backends": "dry cuda cpu_device",
    "replicas": "backends network",
    "engine": "executor host_rows host_memory malloc replicas",
    "anomaly": "engine",
    "pressure": "engine",
    "callbacks": "metrics",
    "evaluators": "errors scores",
    "rows_file": "output",
    "fit": "run_directory callbacks",
    "embed": "planning engine",
    "edge_sweeps": "block plan dispatch",
    "sweeps": "tracing edge_sweeps",
    "planning": "probe config embedding sweeps",
    "trainer": "evaluators planning anomaly pressure fit random_state embed rows_file",
    "propagation": "engine probe embedding",
    "postprocess": "propagation",
    "fitting": "",
    "rates_alone": "row_copies products fitting",
    "measure": "rates_alone trainer models preprocess host_load",
    "hongtu": "trainer postprocess models convert preprocess",  # hongtu/__init__.py, the public names
    "bench": "hongtu measure",  # timing, and the page about it
    "cli": "bench",
    "__main__": "cli",  # any __main__.py, a way in: nothing imports it
}
NO_TORCH = (
    "errors",
    "kernels",
    "metrics",
    "config",
    "bits",
    "bitmap",
    "neighbour_sets",
    "topology",
    "artifact",
    "preprocess",
    "plan",
)
MAY_IMPORT_TORCH = {"hongtu.preprocess.read.formats.torch_file"}  # to read a .pt file, inside the function that does
SHARED = {
    "blocks",
    "bucket_sort",
    "kaminpar",
    "undirected",
    "vertex_blocks",
}  # what several stages of preprocessing use, no stage itself
COMPOSERS = {"", "pipeline", "generate"}  # the stages of preprocessing are siblings: only these put them together
OURS = {"preprocess", "cuda_ext", "tests", "experiments"}  # folders, never importable names inside hongtu


def modules() -> dict[str, ast.Module]:
    """Every module of the package, by name; ``hongtu/preprocess`` and ``hongtu/cuda_ext`` are symlinks."""
    found = {}
    for folder, _, files in os.walk(ROOT / "hongtu", followlinks=True):
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                found[name] = ast.parse(path.read_text(), str(path))
    return found


MODULES = modules()


def imports(name: str) -> Iterator[str]:
    """All that a module imports, at the top or inside functions, in absolute names."""
    is_package = any(other.startswith(f"{name}.") for other in MODULES)
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = name.split(".")
            base = parents[: len(parents) - node.level + is_package] if node.level else []
            base += [node.module] if node.module else []
            for alias in node.names:
                full = ".".join([*base, alias.name])
                yield full if full in MODULES else ".".join(base)


def layer(name: str) -> str:
    """``hongtu.plan.passes`` is in the layer ``plan``."""
    parts = name.split(".")
    return "__main__" if parts[-1] == "__main__" else parts[1] if len(parts) > 1 else parts[0]


def stage(name: str) -> str:
    """``hongtu.preprocess.read.check`` is in the stage ``read``."""
    return "".join(name.split(".")[2:3])


def beneath(above: str) -> set[str]:
    direct = set(SITS_ON[above].split())
    return direct.union(*(beneath(below) for below in direct))


def test_every_folder_is_a_package():
    missing = {name.rpartition(".")[0] for name in MODULES} - set(MODULES) - {""}
    assert not missing, f"without an __init__.py, and so without a place in the wheel: {sorted(missing)}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_what_it_sits_on(name):
    own = layer(name)
    assert own in SITS_ON, f"{name}: give the layer {own!r} a line in SITS_ON"
    allowed = {own} | beneath(own)
    for imported in imports(name):
        top = imported.split(".")[0]
        assert top not in OURS, f"{name} imports {imported}: nothing in hongtu imports that folder"
        reads_torch = name in MAY_IMPORT_TORCH
        assert not top.startswith("torch") or own not in NO_TORCH or reads_torch, (
            f"{name} imports {imported}: {own} runs without torch"
        )
        if top == "hongtu":
            assert layer(imported) in allowed, f"{name} imports {imported}: {own} sits on {sorted(beneath(own))}"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if layer(name) == "preprocess"))
def test_stages_of_preprocessing_are_siblings(name):
    own = stage(name)
    if own not in COMPOSERS:
        others = {stage(imported) for imported in imports(name) if layer(imported) == "preprocess"} - {own} - SHARED
        assert not others, f"{name} imports the stages {sorted(others)}: only pipeline and generate put them together"


@pytest.mark.parametrize("own", NO_TORCH)
def test_import_runs_without_torch(own):
    names = sorted(name for name in MODULES if layer(name) == own)
    code = f"import sys; sys.modules['torch'] = None; import importlib; [importlib.import_module(n) for n in {names}]"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
