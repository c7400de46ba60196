"""The rooms of hongtu, and who may import whom. ``make lint`` runs this file.

A room is a folder of ``hongtu/``; the files beside them are one room, too, named "" here. A room imports itself and the
rooms in its line of the table, nothing else. Inside a room, and between its folders, imports only have to run one way.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "": "",
    "cuda_ext": "",
    "graph": "",
    "kernels": "cuda_ext",
    "ranks": "graph",
    "preprocess": "graph",
    "plan": "graph",
    "nn": "graph kernels",
    "device": "cuda_ext kernels",
    "model": "graph kernels nn",
    "pyg": "graph ranks nn",
    "engine": "graph kernels ranks plan nn device model",
    "train": "graph kernels ranks plan nn device model engine",
    "bench": "graph kernels ranks preprocess plan nn device model pyg engine train",
    "cli": "graph kernels ranks preprocess plan nn pyg device model engine train bench",
}
DOORS = {
    "hongtu",
    "hongtu.__main__",
}  # the public names and ``python -m hongtu``: they open any room; nobody needs them
NO_TORCH = ("", "graph", "preprocess", "plan")
MAY_IMPORT_TORCH = {"hongtu.preprocess.read.formats.torch_file"}  # to read a .pt file, inside the function that does
MOST_AT_THE_TOP = 11  # modules
MOST_FLOORS = 8  # of rooms
OURS = {"preprocess", "cuda_ext", "tests", "experiments"}  # folders, never importable names inside hongtu
# the stages of preprocessing are siblings: only these put them together
COMPOSERS = {"", "entry", "pipeline", "generate"}
SHARED = {
    "bucket_sort",
    "parts",
}  # what several stages use, no stage itself


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file of Python, read once."""
    return ast.parse(path.read_text(), str(path))


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, by name; ``hongtu/preprocess`` and ``hongtu/cuda_ext`` are symlinks."""
    found = {}
    for folder, _, files in os.walk(ROOT / "hongtu", followlinks=True):
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                found[name] = parsed(path)
    return found


@functools.cache
def packages() -> set[str]:
    """Those of the modules that hold others."""
    return {name for name in modules() if any(other.startswith(f"{name}.") for other in modules())}


def imports(name: str) -> Iterator[str]:
    """All that a module imports, at the top or inside functions, in absolute names."""
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = name.split(".")
            base = parents[: len(parents) - node.level + (name in packages())] if node.level else []
            base += [node.module] if node.module else []
            for alias in node.names:
                full = ".".join([*base, alias.name])
                yield full if full in modules() else ".".join(base)


@functools.cache
def own_imports() -> dict[str, list[str]]:
    """Of every module but the doors, those that it imports."""
    return {
        name: sorted({other for other in imports(name) if other in modules() and other != name})
        for name in modules()
        if name not in DOORS
    }


def room(name: str) -> str:
    """``hongtu.plan.passes.shapes`` is in the room ``plan``, ``hongtu.errors`` in ``""``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 2 or name in packages() - {"hongtu"} else ""


def folder(name: str) -> str:
    """``hongtu.plan.passes`` of ``hongtu.plan.passes.shapes``; a file right inside a room stands by itself."""
    return ".".join(name.split(".")[:3])


def stage(name: str) -> str:
    """``hongtu.preprocess.read.check`` is in the stage ``read``."""
    return "".join(name.split(".")[2:3])


def floors(above: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each: one more than the highest that it stands on.

    >>> floors({"roof": {"wall", "floor"}, "wall": {"floor"}, "floor": set()})
    {'floor': 1, 'wall': 2, 'roof': 3}
    """
    found: dict[str, int] = {}
    for name in TopologicalSorter(above).static_order():
        found[name] = 1 + max((found[below] for below in above.get(name, ())), default=0)
    return found


def joined(groups: dict[str, str]) -> dict[str, set[str]]:
    """Which group of modules imports which others."""
    found: dict[str, set[str]] = {group: set() for group in groups.values()}
    for name, others in own_imports().items():
        found[groups[name]] |= {groups[other] for other in others if other not in DOORS} - {groups[name]}
    return found


def test_every_folder_is_a_package():
    missing = {name.rpartition(".")[0] for name in modules()} - set(modules()) - {""}
    assert not missing, f"without an __init__.py, and so without a place in the wheel: {sorted(missing)}"


def test_every_room_says_what_it_is_for():
    silent = [name for name in packages() if not ast.get_docstring(modules()[name])]
    assert not silent, f"no opening comment: {sorted(silent)}"
    unlisted = {room(name) for name in own_imports()} - set(MAY_IMPORT)
    assert not unlisted, f"give the rooms {sorted(unlisted)} a line in MAY_IMPORT"
    for name in MAY_IMPORT.keys() - {""}:
        uses = ast.get_docstring(modules()[f"hongtu.{name}"]).partition("\nUses: the top")[2]
        assert re.findall(r"``(\w+)``", uses) == MAY_IMPORT[name].split(), (
            f"hongtu/{name}/__init__.py: its line of uses"
        )


def test_the_tree_in_the_text_is_the_rooms():
    for text in ((ROOT / file).read_text() for file in ("README.md", "CONTRIBUTING.md")):
        for name in sorted(MAY_IMPORT.keys() - {""}):
            sentence = (ast.get_docstring(modules()[f"hongtu.{name}"]) or "").partition("\n")[0].replace("``", "`")
            assert f"{name + '/':<12} {sentence}\n" in text, f"{name}: {sentence}"


def test_the_top_is_small():
    top = sorted(name for name in modules() if name not in packages() and room(name) == "")
    assert len(top) < MOST_AT_THE_TOP, f"{len(top)} modules beside hongtu/__init__.py: {top}"


def test_a_room_imports_only_what_it_may():
    wrong = []
    for name, others in own_imports().items():
        allowed = {"", room(name), *MAY_IMPORT[room(name)].split()}
        wrong += [f"{name} imports {other}" for other in others if room(other) not in allowed]
    assert not wrong, "\n".join(wrong)


def test_nothing_runs_in_a_circle():
    files = {name: set(others) for name, others in own_imports().items()}
    try:
        floors(files)
        floors(joined({name: folder(name) for name in own_imports()}))
        found = floors(joined({name: room(name) for name in own_imports()}))
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")
    assert max(found.values()) <= MOST_FLOORS, found


def test_imports_of_others():
    for name in own_imports():
        for imported in imports(name):
            top = imported.split(".")[0]
            assert top not in OURS, f"{name} imports {imported}: nothing in hongtu imports that folder"
            if room(name) in NO_TORCH and name not in MAY_IMPORT_TORCH:
                assert not top.startswith("torch"), f"{name} imports {imported}: {room(name)!r} runs without torch"


def test_stages_of_preprocessing_are_siblings():
    for name, others in own_imports().items():
        if room(name) == "preprocess" and stage(name) not in COMPOSERS:
            beside = {stage(other) for other in others if room(other) == "preprocess"} - {stage(name)} - SHARED
            assert not beside, (
                f"{name} imports the stages {sorted(beside)}: only entry, pipeline and generate join them"
            )


def test_what_needs_no_torch_runs_without():
    names = sorted(name for name in own_imports() if room(name) in NO_TORCH)
    code = f"import sys; sys.modules['torch'] = None; import importlib; [importlib.import_module(n) for n in {names}]"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_engine_decides_nothing():
    """What the search weighs is decided before the engine runs; it knows instructions and their operands."""
    sources = {path.name: path.read_text() for path in (ROOT / "hongtu/engine").glob("*.py")}
    assert {name for name, text in sources.items() if re.search("strategy|choice|resident", text)} == set()
