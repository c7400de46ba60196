"""The scripts of examples/ run, with fewer epochs, and declare what they import (PEP 723)."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hongtu.cli.settings import _toml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if "# /// script" in path.read_text())
FEWER = re.compile(r"epochs=\d+")


def run(path, monkeypatch, directory):
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(EXAMPLES)
    text = FEWER.sub("epochs=2", path.read_text()).replace("eval_every=10", "eval_every=1")
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})


@pytest.mark.long
@pytest.mark.parametrize("path", [path for path in SCRIPTS if path.stem != "ranks"], ids=lambda path: path.stem)
def test_an_example_runs(path, monkeypatch, tmp_path, capsys):
    datasets = pytest.importorskip("torch_geometric.datasets")
    monkeypatch.syspath_prepend(EXAMPLES)
    from graphs import citation

    monkeypatch.setattr(datasets, "Planetoid", lambda root, name: [citation(210, classes=7)])  # no download
    run(path, monkeypatch, tmp_path)
    assert capsys.readouterr().out


def test_the_example_of_ranks_runs_in_a_group_of_one(monkeypatch, tmp_path, capsys):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    try:
        run(EXAMPLES / "ranks.py", monkeypatch, tmp_path)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert not torch.distributed.is_initialized() and capsys.readouterr().out


@pytest.mark.long
def test_the_example_of_ranks_runs_on_two(tmp_path):
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLES / "ranks.py")]
    found = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0 and found.stdout.count("train") == 2, found.stderr


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_declares_what_it_imports(path):
    text = path.read_text()
    script = text.partition("# /// script\n")[2].partition("# ///")[0]
    head = _toml("".join(re.findall(r"^# ?(.*\n)", script, re.MULTILINE)))
    declared = {re.match(r"[\w-]+", entry)[0].replace("-", "_") for entry in head["dependencies"]}
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                     [node.module] if isinstance(node, ast.ImportFrom) else [])
    }  # fmt: skip
    local = {"graphs"}
    if "graphs" in imported:
        imported |= {"torch", "torch_geometric"}
    assert imported - local - set(sys.stdlib_module_names) == declared
    assert head["tool"]["uv"]["sources"]["hongtu"]["path"] == ".."


def test_there_are_examples():
    wanted = {"cora", "from_pyg", "own_layer", "budget", "spill", "ranks", "links", "edge_states", "typed_graphs"}
    assert wanted <= {path.stem for path in SCRIPTS}
