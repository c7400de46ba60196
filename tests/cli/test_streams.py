"""Standard streams that are closed, of a narrow encoding, that nobody reads, or that C libraries print to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hongtu.train.run_directory import RunDirectory
from tests import problems

ROOT = Path(__file__).resolve().parents[2]
HONGTU = f"PYTHONPATH={ROOT} {sys.executable} -m hongtu"


@pytest.fixture(scope="module")
def artifact():
    return problems.prepare(problems.awkward(), 2, 3).path


def shell(script, folder, **environment):
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    "command", ["--version", "train --help", "--help >&-", "generate citation g --vertices 40 --edges 60"]
)
def test_a_command_leaves_nothing_open(command, tmp_path):
    done = shell(HONGTU.replace(" -m ", " -X dev -W error::ResourceWarning -m ") + f" {command}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.most(2)
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/null"])
def test_a_run_ends_well_where_streams_are_closed(closed, artifact, tmp_path):
    done = shell(f"{HONGTU} train {artifact} --hidden 4 --epochs 2 --run run {closed}", tmp_path)
    assert done.returncode == (1 if "full" in closed else 0)
    assert "Error" not in done.stderr
    kept = RunDirectory(tmp_path / "run")
    epoch = int(kept.snapshots()[-1].stem.partition("-")[2])
    assert epoch == (1 if "full" in closed else 2) == len(kept.history(9))  # nothing else was written into its files
    assert json.loads((tmp_path / "run" / "options.json").read_text())["hidden"] == 4


@pytest.mark.long
def test_a_reader_that_has_enough_costs_no_epoch(artifact, tmp_path):
    command = f"{HONGTU} train {artifact} --hidden 4 --epochs 300 --eval-every 1 --save-every 1000 --run run"
    done = shell(f"{command} | head -1; echo ${{PIPESTATUS[0]}}", tmp_path)
    first, code = done.stdout.splitlines()
    assert first.startswith("epoch    1") and code == "141"
    last = RunDirectory(tmp_path / "run").snapshots()[-1]
    epoch = int(last.stem.partition("-")[2])
    said = f"nobody reads the output any more; {epoch} epochs were trained; --resume continues from run/{last.name}"
    assert done.stderr == f"hongtu: {said}\n"
    assert len(RunDirectory(tmp_path / "run").history(10**6)) == epoch


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_names_that_the_encoding_cannot_say(encoding, tmp_path):
    size = "--vertices 30 --edges 60 --features 2 --classes 2"
    done = shell(f"{HONGTU} generate web 图 {size}", tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and done.stdout.startswith(r"\u56fe: web, 30 vertices") and done.stderr == ""


def test_a_name_gives_a_terminal_no_orders(tmp_path):
    size = "--vertices 30 --edges 60 --features 2 --classes 2"
    done = shell(f"{HONGTU} generate web $'a\\x1b[2Jb' {size} && {HONGTU} info $'a\\x1b[2Jb'", tmp_path)
    assert done.stdout.startswith(r"a\x1b[2Jb: web") and r"a\x1b[2Jb: not an artifact" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_json_is_alone_on_stdout(tmp_path):
    """METIS says there what it cannot bisect."""
    (tmp_path / "dense").mkdir()
    np.save(tmp_path / "dense" / "edges.npy", np.stack(np.nonzero(~np.eye(60, dtype=bool))))
    options = "--features degree --labels random:2 --random-split 0.1,0.2,rest --chunks 1 --json --force"
    for more in ("--partitions 40", "--partitions 30 --partitioner metis-balanced"):
        done = shell(f"{HONGTU} preprocess dense out {options} {more}", tmp_path)
        assert done.returncode == 0 and json.loads(done.stdout)["vertices"] == 60
