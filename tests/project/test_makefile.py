"""What the Makefile names is there, and so is each target of it that pages name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_every_target_that_is_named_is_there():
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "run", *sorted((ROOT / "docs").glob("*.md"))]
    pattern = r"(?:^(?:    )?|`)make (?:[A-Z]+=\S+ )?([a-z-]+)(?=`| +#|$| [A-Z]+=)"
    named = {target for page in pages for target in re.findall(pattern, page.read_text(), flags=re.MULTILINE)}
    assert named <= targets, named - targets
    assert {"demo", "test", "test-all", "bench", "lint", "torch-sparse"} <= named


def test_every_file_that_is_named_is_there():
    named = re.findall(r"\b(?:tests|hongtu)/[\w./]+", MAKEFILE)
    assert len(named) > 15 and not [path for path in named if not (ROOT / path).exists()]


def test_torch_sparse_has_its_tests_run():
    (of_sparse,) = re.findall(r"^SPARSE := (.*)$", MAKEFILE, flags=re.MULTILINE)
    marks = "import torch_sparse", 'importable("torch_sparse")', "torch-sparse is"
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    using = [path for path in files if any(mark in path.read_text() for mark in marks)]
    assert len(using) > 1
    assert all(any(p.is_relative_to(ROOT / path) for path in of_sparse.split()) for p in using)
