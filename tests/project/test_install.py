"""What is installed: a wheel and a source distribution with every module and kernel source, and a light import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import hongtu

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {".py", ".cu", ".cuh", ".html", ".typed"}


def run(code, cwd, **environment):
    """Isolated from the repository and its editable install."""
    found = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel and a source distribution of a clean copy of the tree."""
    pytest.importorskip("setuptools", minversion="77")  # as pyproject.toml needs
    tree, out = tmp_path_factory.mktemp("build") / "tree", tmp_path_factory.mktemp("dist")
    tree.mkdir()
    for name in ("hongtu", "preprocess", "cuda_ext"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    code = f"from setuptools import build_meta as b; out = {str(out)!r}; print(b.build_wheel(out), b.build_sdist(out))"
    wheel, source = run(code, tree, PATH="").split()  # no compiler, no nvcc
    return out / wheel, out / source


def expected():
    """Every source of the package, by its name in it."""
    return {
        str(Path(folder, file).relative_to(ROOT))
        for folder, _, files in os.walk(ROOT / "hongtu", followlinks=True)
        for file in files
        if Path(file).suffix in SOURCES
    }


@pytest.mark.long
def test_the_wheel_holds_every_source_and_runs_alone(built, tmp_path):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
        assert names == expected(), names ^ expected()
        wheel.extractall(tmp_path)
    assert built[0].name.endswith("-py3-none-any.whl"), "one wheel for every machine: nothing is compiled"
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "import hongtu, hongtu.preprocess.pipeline, hongtu.cli.main;"
        "from hongtu.cuda_ext import compile; print(hongtu.__file__, 'torch' in sys.modules)"
    )
    assert run(code, tmp_path) == f"{tmp_path}/hongtu/__init__.py False"


def test_the_source_distribution_holds_every_source(built):
    with tarfile.open(built[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
        assert expected() <= names, expected() - names
        assert not [member.name for member in source.getmembers() if member.issym()]


def test_the_version_is_that_of_the_citation_and_the_changelog(built):
    version = hongtu.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    unreleased, _, released = (ROOT / "CHANGELOG.md").read_text().partition(f"\n## [{version}]")
    assert "\n## [" not in unreleased.replace("\n## [Unreleased]\n", "") and released.startswith(" - 20")
    assert [path.name.split("-")[1] for path in built] == [version, f"{version}.tar.gz"]


def test_importing_hongtu_loads_neither_torch_nor_numba():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import hongtu; dir(hongtu);"
        "print(sorted({'torch', 'numba', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    assert run(code, ROOT) == "[]"


@pytest.mark.long
def test_every_public_name_is_there_for_type_checkers_and_at_run_time():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import hongtu;"
        "missing = [name for name in hongtu.__all__ if not hasattr(hongtu, name)];"
        "print(missing, sorted(set(hongtu._LAZY) ^ (set(hongtu.__all__) - {'__version__'})))"
    )
    assert run(code, ROOT) == "[] []"
