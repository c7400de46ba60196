"""A run that is killed or interrupted: nothing that opens, and what --resume makes of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.graph.format import MANIFEST
from hongtu.preprocess import pipeline
from hongtu.preprocess.workspace.directory import Workspace
from tests.faults.signals import Preprocessing, Sent, heard, lines_of, run, tracing
from tests.neutral import contents, pieces, write

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--partitions", "2", "--chunks", "3"]
STAGES = ["_csc", "_partition", "_order", "_renumber", "_chunks", "_reorganise", "_volumes", "_write", "_header"]
KILLS = 10


@pytest.fixture
def source(tmp_path):
    weight, rows = np.linspace(0.5, 2, 60).astype(np.float32), np.linspace(0, 1, 120).reshape(60, 2)
    return write(tmp_path / "in", {**pieces(), "edge_weight": weight, "edge_features": rows})


def preprocess(source, output, *arguments):
    return main(["preprocess", str(source), str(output), *SMALL, *arguments])


def interrupt(monkeypatch, at, error):
    def stop(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, at, stop)
        yield


@pytest.mark.parametrize("flags", [[], ["--undirected", "--self-loops", "--features", "degree"]])
@pytest.mark.parametrize("at", STAGES)
def test_an_interrupted_run_is_continued(at, flags, source, tmp_path, monkeypatch, capsys):
    assert preprocess(source, tmp_path / "whole", *flags) == 0
    done = STAGES.index(at) + 1  # reading comes before
    for _ in interrupt(monkeypatch, at, KeyboardInterrupt):
        assert preprocess(source, tmp_path / "out", *flags) == 130
    assert "pass --resume to continue" in capsys.readouterr().err
    left = tmp_path / ".out.partial"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.partial", "in", "whole"]
    with pytest.raises(InputError, match="not an artifact"):
        hongtu.open_artifact(left / "artifact")
    log = (left / "artifact" / "stages.jsonl").read_text().splitlines()
    assert len(log) == done
    assert preprocess(source, tmp_path / "out", *flags, "--resume") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert (tmp_path / "out" / "stages.jsonl").read_text().splitlines()[:done] == log  # those were not run again
    assert not left.exists()


@pytest.mark.parametrize("error, code", [(OSError("No space left on device"), 1), (InputError("bad"), 2)])
def test_a_failing_run_leaves_nothing(error, code, source, tmp_path, monkeypatch):
    for at in STAGES:
        for _ in interrupt(monkeypatch, at, error):
            assert preprocess(source, tmp_path / "out") == code
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")],
)
def test_every_signal_leaves_what_is_finished(number, code, words, source, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "_write", lambda *_: os.kill(os.getpid(), number))
        assert preprocess(source, tmp_path / "out") == code
    err = capsys.readouterr().err
    assert words in err and "pass --resume to continue" in err
    assert preprocess(source, tmp_path / "out", "--resume") == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in", "out"]


def test_an_interrupt_before_anything_is_finished_leaves_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setattr("hongtu.preprocess.entry.read_input", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert preprocess(source, tmp_path / "out") == 130
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_no_line_of_a_stage_loses_one_that_is_finished(tmp_path):
    """The first stage and the second, at every line of what keeps them."""
    command = Preprocessing(tmp_path)
    with heard():
        counts = lines_of(lambda: run(command.command(tmp_path / "whole")))
        lines = [line for line in counts if line[0] in (Workspace.stage.__code__, Workspace.log.__code__)]
        for k, (line, times) in enumerate((line, times) for line in lines for times in (1, 2)):
            place = tmp_path / f"out-{k}"
            sent = Sent(line, times, [signal.SIGTERM], 0.0, lambda place=place: command.look(place))
            code, said = run(command.command(place), sent)
            loss = "" if sent.at is None else command.loss(place, sent.at, said)
            assert code in (0, 143) and not loss, (line, times, loss)


@pytest.mark.parametrize("line", range(1, 9))
def test_an_interrupt_as_the_workspace_is_left_leaves_nothing_of_it(line, source, tmp_path):
    """Also before signals wait for what is done there."""
    left = [line]

    def inside(frame, event, arg):
        left[0] -= event == "line"
        if left[0] == 0:
            raise KeyboardInterrupt
        return inside

    def local(frame):
        above = frame.f_back
        while above is not None and above.f_code is not Workspace.__exit__.__code__:
            above = above.f_back
        return inside if above is not None and frame.f_code.co_name == "uninterrupted" and left[0] > 0 else None

    with tracing(local):
        assert preprocess(source, tmp_path / "out") == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def interrupted(source, tmp_path, monkeypatch, *arguments):
    for _ in interrupt(monkeypatch, "_write", KeyboardInterrupt):
        assert preprocess(source, tmp_path / "out", *arguments) == 130


def test_another_input_or_other_settings_are_refused(source, tmp_path, monkeypatch, capsys):
    interrupted(source, tmp_path, monkeypatch)
    for arguments in (["--seed", "1"], ["--features", "degree"], ["--undirected"]):
        assert preprocess(source, tmp_path / "out", *arguments, "--resume") == 2
        assert "the unfinished run is of another input or settings; leave --resume out" in capsys.readouterr().err
    labels = np.load(source / "labels.npy")
    labels[0] = (labels[0] + 1) % 3
    stat = (source / "labels.npy").stat()
    np.save(source / "labels.npy", labels)
    os.utime(source / "labels.npy", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if nothing had happened
    assert preprocess(source, tmp_path / "out", "--resume") == 2
    assert not (tmp_path / "out").exists()
    assert preprocess(source, tmp_path / "out") == 0  # starts again
    assert not (tmp_path / ".out.partial").exists()


@pytest.mark.parametrize("name", ["features", "labels", "train_mask", "edges"])
@pytest.mark.parametrize("at", ["pipeline._csc", "pipeline._partition", "pipeline._volumes", "Workspace.within"])
def test_an_input_that_is_cut_is_refused_before_it_is_read_on(at, name, source, tmp_path, monkeypatch, capsys):
    """Reading on would be a bus error, which no program survives."""
    place, _, function = at.partition(".")
    owner = pipeline if place == "pipeline" else pipeline.Workspace
    real = getattr(owner, function)

    def cut(*arguments):
        found = None if owner is not pipeline else real(*arguments)
        os.truncate(source / f"{name}.npy", 130)
        return real(*arguments) if found is None else found

    monkeypatch.setattr(owner, function, cut)
    assert preprocess(source, tmp_path / "out") == 2
    assert f"{name}.npy: changed while it was read; run it again" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_restart_of_the_machine_is_refused(source, tmp_path, monkeypatch, capsys):
    interrupted(source, tmp_path, monkeypatch)
    file = tmp_path / ".out.partial" / "identity.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "boot": "another"}))
    assert preprocess(source, tmp_path / "out", "--resume") == 2
    assert "the unfinished run is of a restart of the machine" in capsys.readouterr().err


def test_a_changing_input_is_refused(source, tmp_path, monkeypatch, capsys):
    header = pipeline._volumes

    def change(*arguments):
        (source / "features.npy").touch()
        return header(*arguments)

    monkeypatch.setattr(pipeline, "_volumes", change)
    assert preprocess(source, tmp_path / "out") == 2
    assert "changed while it was read" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_artifact_may_lie_inside_the_input(source, tmp_path):
    assert preprocess(source, source / "artifact") == 0
    assert preprocess(source, tmp_path / "out") == 0
    assert contents(source / "artifact") == contents(tmp_path / "out")


def test_a_refusal_leaves_no_parent_directories(source, tmp_path):
    (source / "labels.npy").unlink()
    assert preprocess(source, tmp_path / "new" / "deeper" / "out") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_two_processes_do_not_share_a_workspace(source, tmp_path, capsys):
    with Workspace(tmp_path / "out", {}, force=False, resume=False):
        assert preprocess(source, tmp_path / "out", "--resume") == 2
        assert "another process is making it" in capsys.readouterr().err
        assert (tmp_path / ".out.partial").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_nothing_to_resume_is_a_whole_run(source, tmp_path):
    assert preprocess(source, tmp_path / "out", "--resume") == 0
    assert preprocess(source, tmp_path / "whole") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_arrays_in_memory_cannot_be_resumed(tmp_path):
    with pytest.raises(InputError, match="only a graph on disk can be continued"):
        hongtu.preprocess_graph(pieces()["edges"], 24, tmp_path / "out", features="degree", resume=True)


def test_the_log(source, tmp_path):
    assert preprocess(source, tmp_path / "out") == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "stages.jsonl").read_text().splitlines()]
    names = ["read", "csc", "partition", "order", "renumber", "chunks", "reorganise", "volume", "write"]
    assert [line["stage"] for line in lines] == names
    assert all(line["seconds"] > 0 and line["peak_bytes"] > 0 for line in lines)
    assert all(line["predicted_bytes"] > 0 for line in lines[1:])
    assert "stages" not in (tmp_path / "out" / "manifest.json").read_text()


def test_text_is_not_read_again(tmp_path, monkeypatch):
    """The edges of other formats are kept with the stage that read them."""
    file = tmp_path / "edges.txt"
    file.write_text("".join(f"{s} {d}\n" for s, d in pieces()["edges"].T.tolist()))
    arguments = ["--relabel", "--features", "degree", "--labels", "random:2", "--random-split", "0.5,0.2,0.3"]
    assert preprocess(file, tmp_path / "whole", *arguments) == 0
    for at in ("_csc", "_write"):
        for _ in interrupt(monkeypatch, at, KeyboardInterrupt):
            assert preprocess(file, tmp_path / "out", *arguments) == 130
        with monkeypatch.context() as patched:
            patched.setattr("hongtu.preprocess.entry.read_input", None)
            assert preprocess(file, tmp_path / "out", *arguments, "--resume") == 0
        assert contents(tmp_path / "out") == contents(tmp_path / "whole")
        shutil.rmtree(tmp_path / "out")


@pytest.mark.long
def test_killed_at_random_moments(tmp_path):
    """kill -9, then --resume: the same bytes, or a refusal while the artifact is already whole."""
    generate = ["generate", "citation", str(tmp_path / "in"), "--vertices", "20000", "--edges", "150000"]
    assert main([*generate, "--features", "16", "--classes", "4"]) == 0
    flags = ["--partitions", "4", "--chunks", "8", "--partitioner", "streaming", "--order", "clusters", "--undirected"]
    command = [sys.executable, "-m", "hongtu", "preprocess", str(tmp_path / "in"), str(tmp_path / "out"), *flags]
    assert main(["preprocess", str(tmp_path / "in"), str(tmp_path / "whole"), *flags]) == 0
    subprocess.run([*command, "--force"], cwd=ROOT, check=True, capture_output=True)
    start = time.perf_counter()
    subprocess.run([*command, "--force"], cwd=ROOT, check=True, capture_output=True)
    whole, seconds = contents(tmp_path / "whole"), time.perf_counter() - start
    assert contents(tmp_path / "out") == whole
    rng = np.random.default_rng(0)
    found = {"nothing": 0, "stages": 0, "artifact": 0}
    for share in rng.uniform(0.2, 1.0, KILLS):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(share * seconds)
        process.kill()
        process.wait()
        finished = tmp_path / ".out.partial" / "finished.jsonl"
        if (tmp_path / "out").exists():
            found["artifact"] += 1
            assert contents(tmp_path / "out") == whole
            continue
        found["stages" if finished.is_file() and finished.read_text() else "nothing"] += 1
        inside = tmp_path / ".out.partial" / "artifact"
        if (inside / MANIFEST).exists():  # whole, and about to take its place
            assert contents(inside) == whole
        for path in (tmp_path / "out", tmp_path / ".out.partial", *(() if (inside / MANIFEST).exists() else (inside,))):
            with pytest.raises(InputError, match="not an artifact"):
                hongtu.open_artifact(path)
        assert main([*command[3:], "--resume"]) == 0
        hongtu.open_artifact(tmp_path / "out", verify=True)
        assert contents(tmp_path / "out") == whole
    assert found["stages"] >= 3, found
