"""What is imported is declared in pyproject.toml, and what needs no torch runs where there is none."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from hongtu.cli.settings import _toml
from tests.project.test_rooms import ROOT, modules, parsed

PROJECT = _toml((ROOT / "pyproject.toml").read_text())
# packages whose import has another name
NAMED = {
    "cuda": "cuda_bindings",
    "google": "tensorboard",
    "sklearn": "scikit_learn",
}
STANDARD = {*sys.stdlib_module_names, "tomllib"}  # the last since 3.11
OF_GIT = {"sar"}  # a baseline that no registry has; docs/benchmarks.md says how to install it
# imported at the top of a file that is only reached where the package is there
GUARDED = {
    **{f"hongtu.bench.{name}": {"dgl"} for name in ("dgl", "sar")},
    **{f"hongtu.pyg.{name}": {"torch_geometric"} for name in ("loader", "stores")},
}


def packages(entries):
    """Import names of requirements, and of the groups that they include.

    >>> sorted(packages(["torch_geometric>=2.6", "cuda-bindings>=13; sys_platform == 'linux'"]))
    ['cuda_bindings', 'torch_geometric']
    """
    found = set()
    for entry in entries:
        if isinstance(entry, dict):
            found |= packages(PROJECT["dependency-groups"][entry["include-group"]])
        else:
            found.add(re.match(r"[\w.-]+", entry)[0].replace("-", "_").lower())
    return found


RUNTIME = packages(PROJECT["project"]["dependencies"])
EXTRAS = set().union(*map(packages, PROJECT["project"]["optional-dependencies"].values()))
GROUPS = packages(PROJECT["dependency-groups"]["dev"] + PROJECT["build-system"]["requires"])


def imported(tree, *, at_the_top):
    """Packages that a file imports, of others; only as it is itself imported, or anywhere. What stands in ``try`` or
    behind ``TYPE_CHECKING`` is not asked for at the top; modules named in ``import_module`` are asked for.

    >>> text = "import a.b\\ntry:\\n    import c\\nexcept ImportError: pass\\ndef f():\\n    import d"
    >>> [sorted(imported(ast.parse(text), at_the_top=at)) for at in (True, False)]
    [['a'], ['a', 'c', 'd']]
    """
    found, left = set(), list(tree.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "importorskip"):
            names = [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
            found |= {name.split(".")[0] for name in names if isinstance(name, str)}
        elif not at_the_top or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try | ast.If):
            left += ast.iter_child_nodes(node)
    return {NAMED.get(name, name) for name in found - STANDARD if name.isidentifier()}


def undeclared(name, tree):
    """Of a module of the package: what pyproject does not name, and what it imports at once that only an extra has."""
    anywhere = imported(tree, at_the_top=False) - RUNTIME - EXTRAS - OF_GIT - {"hongtu"}
    at_once = imported(tree, at_the_top=True) - RUNTIME - GUARDED.get(name, set()) - OF_GIT - {"hongtu"}
    return (anywhere - GROUPS) | at_once


def test_the_package_imports_what_is_declared():
    wrong = {name: found for name, tree in modules().items() if (found := undeclared(name, tree))}
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "import pandas", "import sklearn.metrics", "from yaml import load", "import torchmetrics.text as text",
        "import pyarrow", "class A:\n    import networkx", "x = importlib.import_module('requests')",
        "def f():\n    from rich import print",
    ],
)  # fmt: skip
def test_an_import_that_is_not_declared_is_found(text):
    assert undeclared("hongtu.train.trainer", ast.parse(text))


@pytest.mark.parametrize(
    "text", ["import json, numpy", "def f():\n    import pyarrow.csv", "if TYPE_CHECKING:\n    import torch_geometric",
             "try:\n    import kaminpar\nexcept ImportError:\n    pass", "from . import rows", "import hongtu.nn"],
)  # fmt: skip
def test_an_import_that_is_declared_is_not(text):
    assert not undeclared("hongtu.train.trainer", ast.parse(text))


def test_tests_and_experiments_import_what_is_declared():
    local = {"hongtu", "tests", "experiments", "graphs"}
    for folder in ("tests", "experiments", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            wrong = imported(parsed(path), at_the_top=False) - RUNTIME - EXTRAS - GROUPS - OF_GIT - local
            assert not wrong, f"{path}: {wrong}"


def test_what_is_declared_is_imported():
    everything = set().union(*(imported(tree, at_the_top=False) for tree in modules().values()))
    built_upon = {"torch_scatter"}  # by torch_sparse
    named = {"tensorboard", "wandb", "mlflow"}  # by hongtu.callbacks, as arguments
    assert (RUNTIME | EXTRAS) - everything - built_upon - named - {"tomli"} == set()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it is a ModuleNotFoundError
from hongtu.cli.main import main
for line in (
    "generate citation g --vertices 200 --edges 900 --features 8 --classes 3",
    "preprocess g a --partitions 2 --chunks 4",
    "info a --verify --json",
):
    assert main(line.split()) == 0, line
import importlib, pkgutil
for room in ("graph", "preprocess", "plan"):
    package = importlib.import_module(f"hongtu.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
from hongtu.graph.artifact import open_artifact
from hongtu.plan.report import lookahead_summary
print(sorted(lookahead_summary(open_artifact("a").topology)))
from hongtu.hardware import CPU
from hongtu.plan.cost.seconds import predict_seconds
from tests import tiny
for shape in (tiny.GCN, tiny.GAT):
    plan = tiny.plan(shape, "full")
    assert plan.program.train and plan.bytes and plan.peak_bytes and predict_seconds(plan, CPU).total
from hongtu.cuda_ext import compile, driver
try:
    assert compile.cubin("rows.cu", "sm_90")[:4] == b"\\x7fELF"
except compile.KernelError as error:
    assert "pip install 'hongtu[cuda]'" in str(error)
"""


def test_graphs_preprocessing_plans_and_kernels_run_without_torch(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


def names_of(path):
    """What a module has at its top, whatever of it runs."""
    found = {file.stem for file in path.parent.glob("*.py")} if path.name == "__init__.py" else set()
    found |= {folder.name for folder in path.parent.iterdir() if folder.is_dir()} if found else set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_whatever_is_imported_of_the_project_is_there():
    """In experiments, too, which few tests run."""
    known, missing = {}, []
    for path in [*ROOT.glob("experiments/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/*.py")]:
        for node in ast.walk(parsed(path)):
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            if module is None or module.split(".")[0] not in ("hongtu", "experiments", "tests"):
                continue
            file = ROOT.joinpath(*module.split("."))
            package = file / "__init__.py"  # not a folder of compiled files that an earlier commit left
            file = package if package.is_file() else file.with_suffix(".py")
            if file not in known:
                known[file] = names_of(file) if file.is_file() else None
            names = {name.name for name in node.names}
            if known[file] is None or ("__getattr__" not in known[file] and not names <= known[file]):
                missing.append(f"{path.relative_to(ROOT)}: {module} {sorted(names)}")
    assert not missing
