"""The notebooks run, also a second time in the same directory, and stand in the repository as they were executed."""

from __future__ import annotations

import copy
import os
import re
import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_they_are_there_and_executed():
    assert [path.stem for path in NOTEBOOKS] == ["first_hour", "mesh", "out_of_memory"]
    for path in NOTEBOOKS:
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), path.name
        assert any("image/png" in out.get("data", {}) for cell in cells for out in cell.outputs), path.name


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_twice(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    book = nbformat.read(path, as_version=4)
    again = copy.deepcopy(book.cells)
    for cell in again:
        cell.source = re.sub(r"epochs=\d\d+", "epochs=3", cell.source)  # which is not enough for what is asserted
        cell.source = re.sub(r"^assert ", "", cell.source, flags=re.MULTILINE)
    book.cells += again
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
