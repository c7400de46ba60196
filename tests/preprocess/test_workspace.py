"""Directories that preprocessing makes, empties and replaces: its own, and nobody else's."""

from __future__ import annotations

import json
import os
import shutil
from threading import Lock

import pytest

from hongtu.cli.main import main
from hongtu.graph.format import MANIFEST
from hongtu.preprocess.workspace.directory import Workspace
from tests.neutral import contents, pieces, write

SMALL = ["--partitions", "2", "--chunks", "3"]


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "in", pieces())


def preprocess(source, output, *arguments):
    return main(["preprocess", str(source), str(output), *SMALL, *arguments])


def fill(folder):
    (folder / "deeper").mkdir(parents=True)
    (folder / "precious").write_text("years of work")
    (folder / "deeper" / "more").write_text("and more")
    return folder


def everything(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def prepared_link(tmp_path):
    (tmp_path / ".out.partial").symlink_to("victim")


def prepared_directory(tmp_path):
    fill(tmp_path / ".out.partial")


def prepared_file(tmp_path):
    (tmp_path / ".out.partial").write_text("a file")


def link_to_nothing(tmp_path):
    (tmp_path / ".out.partial").symlink_to("nothing")


def link_to_marked(tmp_path):
    """The victim looks like a workspace."""
    (tmp_path / "victim" / "identity.json").write_text('{"format": "hongtu-workspace"}')
    (tmp_path / ".out.partial").symlink_to("victim")


def another_mark(tmp_path):
    fill(tmp_path / ".out.partial-1")
    (tmp_path / ".out.partial-1" / "identity.json").write_text('{"input": null, "boot": ""}')


def of_another_user(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs the right to give files away")
    fill(tmp_path / ".out.partial")
    (tmp_path / ".out.partial" / "identity.json").write_text('{"format": "hongtu-workspace"}')
    os.chown(tmp_path / ".out.partial", 65534, 65534)


PREPARED = [
    prepared_link, prepared_directory, prepared_file, link_to_nothing, link_to_marked, another_mark, of_another_user,
]  # fmt: skip


@pytest.mark.parametrize("flags", [[], ["--resume"]])
@pytest.mark.parametrize("prepare", PREPARED)
def test_what_others_have_prepared_stays(prepare, flags, source, tmp_path):
    fill(tmp_path / "victim")
    prepare(tmp_path)
    before = everything(tmp_path)
    assert preprocess(source, tmp_path / "out", *flags) == 0
    left = everything(tmp_path)
    assert {name: left.get(name) for name in before} == before
    assert {name.partition("/")[0] for name in left.keys() - before.keys()} == {"out"}


def test_links_inside_an_unfinished_run_are_not_followed(source, tmp_path):
    fill(tmp_path / "victim")
    before = everything(tmp_path / "victim")
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "identity.json").write_text('{"format": "hongtu-workspace"}')
    for name in ("scratch", "artifact"):
        (tmp_path / ".out.partial" / name).symlink_to("../victim")
    assert preprocess(source, tmp_path / "out") == 0
    assert everything(tmp_path / "victim") == before and not (tmp_path / ".out.partial").exists()


def test_an_unfinished_run_is_for_its_user_alone(source, tmp_path):
    with Workspace(tmp_path / "out", None, force=False, resume=False) as work:
        assert work.directory.stat().st_mode & 0o777 == 0o700
        assert json.loads((work.directory / "identity.json").read_text())["format"] == "hongtu-workspace"


def webapp(out, made):
    fill(out)
    (out / MANIFEST).write_text('{"name": "my extension"}')
    return "--force replaces artifacts only"


def no_json(out, made):
    fill(out)
    (out / MANIFEST).write_text("{")
    return "--force replaces artifacts only"


def a_list(out, made):
    fill(out)
    (out / MANIFEST).write_text("[]")
    return "--force replaces artifacts only"


def a_file(out, made):
    out.write_text("precious")
    return "--force replaces artifacts only"


def a_link(out, made):
    out.symlink_to(made)
    return f"is a link, and --force replaces no links; pass {made}"


def a_dangling_link(out, made):
    out.symlink_to("nothing")
    return "is a link"


def with_notes(out, made):
    shutil.copytree(made, out)
    (out / "notes.txt").write_text("years of work")
    return "holds what hongtu did not put there (notes.txt)"


def with_a_folder(out, made):
    shutil.copytree(made, out)
    fill(out / "features")
    return "holds what hongtu did not put there (features)"


def with_a_folder_of_an_arrays_name(out, made):
    shutil.copytree(made, out)
    (out / "labels.npy").unlink()
    fill(out / "labels.npy")
    return "holds what hongtu did not put there (labels.npy)"


def with_a_name_that_its_manifest_claims(out, made):
    shutil.copytree(made, out)
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["arrays"]["thesis"] = manifest["arrays"]["labels"]
    (out / MANIFEST).write_text(json.dumps(manifest))
    (out / "thesis.npy").write_text("years of work")
    return "holds what hongtu did not put there (thesis.npy)"


@pytest.mark.parametrize(
    "make",
    [
        webapp,
        no_json,
        a_list,
        a_file,
        a_link,
        a_dangling_link,
        with_notes,
        with_a_folder,
        with_a_folder_of_an_arrays_name,
        with_a_name_that_its_manifest_claims,
    ],
)
def test_force_removes_nothing_of_others(make, source, tmp_path, capsys):
    assert preprocess(source, tmp_path / "made") == 0
    words = make(tmp_path / "out", tmp_path / "made")
    before = everything(tmp_path)
    capsys.readouterr()
    assert preprocess(source, tmp_path / "out", "--force", "--seed", "1") == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1 and everything(tmp_path) == before


def test_force_replaces_what_is_ours(source, tmp_path):
    assert preprocess(source, tmp_path / "made") == 0
    (tmp_path / "out").mkdir()  # empty
    for _ in range(2):
        assert preprocess(source, tmp_path / "out", "--force") == 0
        assert contents(tmp_path / "out") == contents(tmp_path / "made")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    (tmp_path / "out" / MANIFEST).write_text(json.dumps(manifest | {"version": 0}))
    (tmp_path / "out" / "labels.npy").write_bytes(b"damaged")
    assert preprocess(source, tmp_path / "out", "--force") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "made")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "made", "out"]


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("command", ["preprocess", "generate"])
def test_what_somebody_puts_there_meanwhile_stays(command, force, source, tmp_path, monkeypatch, capsys):
    """While files are written and hashed, which takes its time."""
    lock = Lock()
    place = {"preprocess": "hongtu.graph.writer.sync", "generate": "hongtu.files.sync"}[command]

    def sync(file):
        with lock:  # files are written by several threads
            if not (tmp_path / "out").exists():
                fill(tmp_path / "out")

    monkeypatch.setattr(place, sync)
    if command == "preprocess":
        assert preprocess(source, tmp_path / "out", *force) == 2
    else:
        assert main(["generate", "citation", str(tmp_path / "out"), "--vertices", "9", "--edges", "9", *force]) == 2
    assert ("already exists" if not force else "--force replaces") in capsys.readouterr().err
    assert everything(tmp_path / "out") == everything(fill(tmp_path / "same"))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_force_replaces_generated_graphs_alone(tmp_path, capsys):
    command = ["generate", "web", str(tmp_path / "out"), "--vertices", "20", "--edges", "40", "--features", "2"]
    assert main(command) == 0 and main([*command, "--force", "--seed", "1"]) == 0
    (tmp_path / "out" / "edge_weight.npy").write_text("of the user's")
    before = everything(tmp_path)
    assert main([*command, "--force"]) == 2
    assert "(edge_weight.npy)" in capsys.readouterr().err and everything(tmp_path) == before


def test_empty_partitions_are_noted(source, tmp_path, capsys):
    options = ["--features", "degree", "--labels", "random:2", "--random-split", "0.1,0.2,rest"]
    dense = tmp_path / "dense"
    dense.mkdir()
    import numpy as np

    np.save(dense / "edges.npy", np.stack(np.nonzero(~np.eye(60, dtype=bool))))
    command = ["preprocess", str(dense), str(tmp_path / "out"), "--partitions", "40", "--chunks", "1", *options]
    assert main(command) == 0
    err = capsys.readouterr().err
    assert "of 40 partitions are empty" in err and "pass fewer --partitions, or --partitioner range" in err
    assert main([*command, "--force", "--partitioner", "range"]) == 0
    assert "empty" not in capsys.readouterr().err
