"""Files that somebody hands over: they run no code, write nothing outside of the run, and keep no secrets."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import resource
import secrets
import stat
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

import hongtu
from hongtu.cli.build import layers_without_weights
from hongtu.cli.main import main
from hongtu.cli.train_config import ModelConfig, TrainConfig
from hongtu.cli.trust import without_secrets
from hongtu.errors import InputError, OutputError, note, printable
from hongtu.files import whole_file
from hongtu.hardware import CPU
from hongtu.train.snapshot import read_snapshot, write_snapshot
from tests import problems
from tests.faults.fuzz import work_limit

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--hidden", "4", "--epochs", "1"]
OWN = """
import pathlib
from hongtu import nn
pathlib.Path("executed").touch()
def layers(artifact): return [nn.GCNConv(6, 4, activation="relu"), nn.GCNConv(4, 3)]
def squares(out, target): return (out.softmax(1).gather(1, target[:, None])[:, 0] - 1) ** 2
def least(out, target): return -target.max()
"""
FUNCTIONS = {"model": "layers", "loss": "squares", "metric": "least"}


@pytest.fixture(scope="module")
def artifact():
    return str(problems.prepare(problems.awkward(), 2, 3).path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, *argv):
    assert main([*argv]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", ["model", "loss", "metric"])
def test_a_run_file_names_no_code(name, artifact, here, capsys):
    (here / f"own_{name}_of_a_file.py").write_text(OWN)
    code = f"own_{name}_of_a_file:{FUNCTIONS[name]}"
    (here / "run.toml").write_text(f"artifact = '{artifact}'\nepochs = 1\nhidden = 4\n{name} = '{code}'")
    for command in ("train", "plan") if name == "model" else ("train",):
        err = refused(capsys, command, "run.toml")
        assert f"run.toml: {name} is {code!r}, code that a file may not have run" in err
        assert f"pass --{name} {code}" in err and not (here / "executed").exists()
    assert main(["train", "run.toml", f"--{name}", code]) == 0
    assert (here / "executed").exists()


@pytest.mark.parametrize("name", ["model", "loss"])
def test_a_run_directory_names_no_code(name, artifact, here, capsys):
    (here / f"given_{name}.py").write_text(OWN)
    assert main(["train", artifact, *SHORT, "--run", "given"]) == 0
    code = f"given_{name}:{FUNCTIONS[name]}"
    options = json.loads((here / "given" / "options.json").read_text())
    (here / "given" / "options.json").write_text(json.dumps(options | {name: code}))
    capsys.readouterr()
    assert f"pass --{name} {code}" in refused(capsys, "embed", artifact, "given", "out.npy")
    assert not (here / "executed").exists()
    assert main(["embed", artifact, "given", "out.npy", f"--{name}", code]) == 0
    assert np.load("out.npy").shape[1] == 3


@pytest.mark.parametrize(
    ("logger", "words"),
    [
        ("CSVLogger('epochs.csv')", "writes to 'epochs.csv', outside of the run directory run"),
        ("CSVLogger('run/../epochs.csv')", "outside of the run directory"),
        ("CSVLogger('run/away/epochs.csv')", "outside of the run directory"),
        ("CSVLogger(path='/tmp/hongtu-outside.csv')", "outside of the run directory"),
        ("CSVLogger('run')", "outside of the run directory"),
        ("TensorBoardLogger('events')", "outside of the run directory"),
        ("MLflowLogger('x', 'sqlite:///elsewhere.db')", "outside of the run directory"),
        ("MLflowLogger(tracking_uri='https://example.org')", "outside of the run directory"),
        ("WandbLogger(dir='..')", "outside of the run directory"),
        ("WandbLogger(settings={'x': 1})", "settings is not taken from a file"),
        ("CSVLogger()", "missing a required argument"),
        ("WandbLogger(project='x', mode='offline')", "says no dir, and may write anywhere"),
        ("MLflowLogger('x')", "says no tracking_uri, and may write anywhere"),
        ("WandbLogger(dir='run/wandb')", "outside of the run directory"),
        ("MLflowLogger('x', 'run/runs')", "outside of the run directory"),
        ("TensorBoardLogger('run/events')", "outside of the run directory"),
        ("CSVLogger('run/other-name.csv')", "outside of the run directory"),
    ],
)
def test_loggers_of_a_run_file_stay_in_the_run(logger, words, artifact, here, capsys):
    (here / "away").mkdir()
    (here / "mine").write_text("precious")
    (here / "run.toml").write_text(f'artifact = "{artifact}"\nepochs = 1\nhidden = 4\nloggers = ["{logger}"]')
    if "run/" in logger:  # what somebody has put there before
        for folder in ("wandb", "runs/0", "events"):
            (here / "run" / folder).mkdir(parents=True)
        for link in ("away", "wandb/wandb", "runs/0/x"):
            (here / "run" / link).symlink_to(here / "away")
        for name in ("other-name.csv", "events/events.out"):
            os.link(here / "mine", here / "run" / name)
    err = refused(capsys, "train", "run.toml", "--run", "run")
    assert (here / "mine").read_text() == "precious"
    assert words in err and not (here / "epochs.csv").exists() and not list((here / "away").iterdir())
    assert main(["plan", "run.toml"]) == 0  # writes nothing
    assert "no run directory (--run)" in refused(capsys, "train", "run.toml") or "is not" in words or "missing" in words


def test_loggers_that_are_typed_write_where_they_say(artifact, here, capsys):
    (here / "run.toml").write_text(f"artifact = '{artifact}'\nepochs = 2\nhidden = 4\nloggers = ['CSVLogger(\"x\")']")
    assert main(["train", "run.toml", "--loggers", "CSVLogger('epochs.csv')"]) == 0
    assert len((here / "epochs.csv").read_text().splitlines()) == 3
    (here / "run.toml").write_text(f"artifact = '{artifact}'\nepochs = 2\nloggers = ['CSVLogger(\"run/log/x.csv\")']")
    assert main(["train", "run.toml", "--run", "run"]) == 0
    assert len((here / "run" / "log" / "x.csv").read_text().splitlines()) == 3
    (here / "run" / "log" / "last.csv").symlink_to("x.csv")  # of the run itself, as wandb makes some
    assert main(["train", "run.toml", "--run", "run", "--epochs", "3", "--resume"]) == 0
    assert len((here / "run" / "log" / "x.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("CSVLogger( \"monkeys.csv\")", "CSVLogger( \"monkeys.csv\")"),
        ("WandbLogger(project='x', api_key = \"a'WORD\")", "WandbLogger(project='x', api_key='***')"),
        ("WandbLogger(config={'password': 'WORD', 'lr': 1})", "WandbLogger(config={'password': '***', 'lr': 1})"),
        ("MLflowLogger('e', 'https://u:WORD@host/a')", "MLflowLogger('e', 'https://***@host/a')"),
        ("MLflowLogger('e', 'sql://u:a@/WORD@host/a')", "MLflowLogger('e', 'sql://***@host/a')"),
        ("MLflowLogger('e', 'https:' '//u:WO' 'RD@host/a')", "MLflowLogger('e', 'https://***@host/a')"),
        ("MLflowLogger('e', 'https://host/a?token=WORD&b=1')", "MLflowLogger('e', 'https://host/a?token=***&b=1')"),
        (r"WandbLogger(password='a\'WORD', mode='offline')", "WandbLogger(password='***', mode='offline')"),
        ("WandbLogger(password=('WORD'))", "WandbLogger(password='***')"),
        ("WandbLogger(token=b'WORD')", "WandbLogger(token='***')"),
        ("WandbLogger(config={'keys': ['WORD', 'WORD']})", "WandbLogger(config={'keys': '***'})"),
        ("WandbLogger(config={'token': {'value': 'WORD'}})", "WandbLogger(config={'token': '***'})"),
        ("WandbLogger(config={'secret': '''a\"'WORD'''})", "WandbLogger(config={'secret': '***'})"),
        (r"WandbLogger(config={'to\x6ben': 'WORD'})", "WandbLogger(config={'token': '***'})"),
        ("WandbLogger(config=[('token', 'WORD')])", "WandbLogger(config=[('token', '***')])"),
        ("WandbLogger(notes='Authorization: Bearer WORD')", "WandbLogger(notes='Authorization: ***')"),
    ],
)  # fmt: skip
def test_secrets_are_not_kept(text, kept):
    assert without_secrets(text) == kept and "WORD" not in kept


def test_a_run_keeps_no_secrets(artifact, here, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "of-the-environment")
    logger = "CSVLogger('run/x.csv', metrics=('token=1234',))"
    assert main(["train", artifact, *SHORT, "--run", "run", "--loggers", logger]) == 0
    assert "1234" not in (here / "run" / "options.json").read_text()
    assert not [file for file in (here / "run").iterdir() if b"of-the-environment" in file.read_bytes()]
    capsys.readouterr()
    assert "does not keep secrets; pass --loggers" in refused(capsys, "train", "run/options.json", "--run", "again")
    assert main(["report", "run"]) == 0
    assert "1234" not in (here / "report.html").read_text() and "CSVLogger" not in (here / "report.html").read_text()


def test_the_command_takes_no_module_of_the_current_directory(artifact, here):
    """What pip installs as `hongtu` and `python -m hongtu` differ in that."""
    (here / "numpy.py").write_text("open('executed', 'w')")
    (here / "bin").mkdir()
    (here / "bin" / "hongtu").write_text("import sys\nfrom hongtu.cli.main import program\nsys.exit(program())\n")
    words, environment = ["info", artifact], {**os.environ, "PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(here / "bin" / "hongtu"), *words]
    assert subprocess.run(script, env=environment, capture_output=True).returncode == 0
    assert not (here / "executed").exists()
    subprocess.run([sys.executable, "-m", "hongtu", *words], env=environment, capture_output=True)
    assert (here / "executed").exists()


def test_a_file_in_the_making_has_a_name_that_nobody_can_prepare(here, monkeypatch):
    names = set()
    for _ in range(9):
        with whole_file(here / "new") as partial:
            names.add(partial.name)
            assert not (here / "new").exists()
            partial.write_text("x")
        (here / "new").unlink()
    assert len(names) == 9
    (here / "victim").write_text("precious")
    (here / ".new.partial-known").symlink_to("victim")  # as if somebody knew it
    monkeypatch.setattr(secrets, "token_hex", lambda size: "known")
    with pytest.raises(OutputError), whole_file(here / "new"):
        pass
    assert (here / "victim").read_text() == "precious" and (here / ".new.partial-known").is_symlink()


def test_a_page_is_written_through_no_link_that_nobody_named(artifact, here, capsys, monkeypatch):
    assert main(["train", artifact, *SHORT, "--run", "run"]) == 0
    (here / "victim").write_text("precious")
    (here / "report.html").symlink_to("victim")
    assert main(["report", "run"]) == 1
    assert "report.html: cannot be written" in capsys.readouterr().err and (here / "victim").read_text() == "precious"
    monkeypatch.setattr("hongtu.bench.profile.measure_cpu", lambda name, path: CPU)
    (here / "hardware.json").symlink_to("victim")
    assert main(["doctor", "--measure"]) == 1
    assert "hardware.json: cannot be written" in capsys.readouterr().err
    assert (here / "victim").read_text() == "precious"
    (here / "named.html").symlink_to("mine")  # as /dev/stdout is one
    assert main(["report", "run", "-o", "named.html"]) == 0 and "<html" in (here / "mine").read_text()


def test_terminals_get_no_control_characters(here, capsys):
    assert printable("a\x1b]0;x\x07\tb\n\u202ec\udc80é图") == r"a\x1b]0;x\x07" + "\tb\n" + r"\u202ec\udc80é图"
    assert r"\x1b[2J" in refused(capsys, "info", "\x1b[2Jartifact")
    assert printable("a\u200eb\u200fc\u061cd") == r"a\u200eb\u200fc\u061cd"
    note("a name\nhongtu: done\x1b[2J")
    assert capsys.readouterr().err == "hongtu: note: a name hongtu: done\\x1b[2J\n"


@pytest.mark.parametrize("what", ["pipe", "device", "hole"])
def test_files_of_settings_are_files_and_small(what, artifact, here, capsys):
    """A pipe that nobody writes to, a device without an end, a hole of many GiB."""
    assert main(["train", artifact, *SHORT, "--run", "given"]) == 0
    for file, command in (
        ("given/options.json", ["embed", artifact, "given", "out.npy"]),
        ("run.toml", ["train", "run.toml"]),
        ("topology.json", ["plan", artifact, "--ranks", "2", "--topology", "topology.json"]),
    ):
        (here / file).unlink(missing_ok=True)
        if what == "pipe":
            os.mkfifo(here / file)
        elif what == "device":
            (here / file).symlink_to("/dev/zero")
        else:
            (here / file).touch()
            os.truncate(here / file, 8 << 30)
        capsys.readouterr()
        assert ("expected at most" if what == "hole" else "not a file") in refused(capsys, *command)


ASKED = {
    "hidden": {"hidden": 2**20, "layers": 3},
    "layers": {"hidden": 20_000, "layers": 100, "model": "sage"},
    "one module": {"modules": ["Linear(100000, 100000)"]},
    "modules": {"modules": ["GCNConv(features, 8)", "Linear(8, 1000000000)", "Linear(1000000000, classes)"]},
    "beyond all numbers": {"modules": ["Linear(10000000000000, 10000000000000)"]},
    "relations": {"modules": ["RGCNConv(features, classes, 500000000)"]},
    "heads": {"modules": ["GATConv(features, 8, heads=100000000)"]},
    "attention": {"model": "gat", "hidden": 2**20, "heads": 2**19, "layers": 3},
    "hops": {"modules": ["SGConv(features, classes, K=100000000)"]},
    "steps": {"modules": ["Linear(features, classes)", "APPNP(K=1000000000, alpha=0.1)"]},
    "one's own network": {"modules": ["LSTM(20000, 20000, num_layers=4)"]},
    "copies": {"modules": ["Transformer(8, 2, num_encoder_layers=100000000)"]},
    "a list": {"modules": ["MeshBlock(features, hidden_layers=100000000000)"]},
}


@pytest.mark.parametrize("what", ASKED)
def test_a_file_asks_for_no_more_weights_than_there_is_memory(what, artifact, here, capsys, monkeypatch):
    """Before any of it is taken."""
    monkeypatch.setenv("HONGTU_HOST_MEMORY", "4GiB")
    (here / "run.json").write_text(json.dumps({"artifact": artifact, "epochs": 1, **ASKED[what]}))
    for command in ("train", "plan"):
        with work_limit():
            err = refused(capsys, command, "run.json")
        assert "host memory: the run needs" in err or "overflow" in err or "that take minutes to make" in err


CLASSES = [(module, name) for module in (hongtu.nn, torch.nn) for name, made in sorted(vars(module).items())
           if isinstance(made, type) and issubclass(made, torch.nn.Module)]  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize(("module", "name"), CLASSES, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_no_number_takes_long(module, name, artifact):
    """Of any argument of any class: its layers are made within seconds and a gigabyte, or refused."""
    opened = hongtu.open_artifact(artifact)
    parameters = list(inspect.signature(getattr(module, name)).parameters.values())
    base = {p.name: 8 for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        for number in (10**8, 10**12):
            given = ", ".join(f"{key}={value}" for key, value in (base | {parameter.name: number}).items())
            config = ModelConfig(artifact=artifact, modules=(f"{name}({given})",))
            with contextlib.suppress(InputError), work_limit():
                layers_without_weights(config, opened)


def test_a_list_that_a_number_asks_for_is_refused_before_it_is_made(artifact, monkeypatch):
    """Also where nothing limits the process."""
    monkeypatch.setattr("hongtu.cli.build.ROOM", 1 << 28)
    config = ModelConfig(artifact=artifact, modules=("MeshBlock(features, hidden_layers=100000000)",))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(InputError, match="that take minutes to make, or memory"):
        layers_without_weights(config, hongtu.open_artifact(artifact))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


TEXTS = [name for name, hint in get_type_hints(TrainConfig).items() if str in (hint, *get_args(hint))]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.every
@pytest.mark.parametrize("value", ["\ud800", "x" * 5000, "x/" * 3000, "", "~", "-", "\n", "/dev/null/x", "../" * 2000])
@pytest.mark.parametrize("name", TEXTS)
def test_no_text_of_a_run_file_is_an_error_of_python(name, value, artifact, here, capsys):
    given = {"artifact": artifact, "epochs": 1, "hidden": 4, "loss": "cross_entropy"} | {name: value}
    (here / "run.json").write_text(json.dumps(given))
    with work_limit():
        code = main(["train", "run.json"])
    err = capsys.readouterr().err
    assert code in (0, 2) and sum("note:" not in line for line in err.splitlines()) == (code == 2), err


LONG = {
    "a word": "a" * 10**6,
    "secrets": "key" * 300_000,
    "addresses": "://" * 300_000,
    "white space": "key " + " " * 10**6,
    "spaces": "key = " * 150_000,
}


@pytest.mark.parametrize("what", LONG)
def test_texts_of_a_run_file_take_no_time(what, artifact, here, capsys):
    text = f"CSVLogger('run/x.csv', metrics=('{LONG[what]}',))"
    with work_limit():
        assert without_secrets(text)
    (here / "run.json").write_text(json.dumps({"artifact": artifact, "loggers": [text, text]}))
    with work_limit():
        assert "characters, expected at most 1048576" in refused(capsys, "train", "run.json", "--run", "run")


KEYS = {
    "key": "a." * 10**6 + "a = 1",
    "table": "[" + "'!'." * 10**6 + "a]\nb = 1",
    "keys": "[" + "a." * 3000 + "a]\n" + "\n".join(f"a{k} = 1" for k in range(10**5)),
}


@pytest.mark.parametrize("text", KEYS)
def test_keys_of_many_parts_take_no_time(text, here, capsys):
    (here / "run.toml").write_text(KEYS[text])
    with work_limit():
        assert "run.toml: not a run file" in refused(capsys, "train", "run.toml")


def test_a_file_asks_for_no_more_negatives_than_there_is_memory(here, capsys):
    given = {"edges": np.random.default_rng(0).integers(0, 24, (2, 60)), "num_vertices": 24, "features": "random:4"}
    hongtu.preprocess_graph(**given, task="links", partitions=2, chunks=2, artifact=here / "links")
    for number in (10**8, 10**12):
        (here / "run.json").write_text(json.dumps({"artifact": "links", "epochs": 1, "negatives": number}))
        with work_limit():
            assert "host memory: the run needs" in refused(capsys, "train", "run.json")


def test_an_artifact_asks_for_no_more_weights_than_there_is_memory(here, capsys, monkeypatch):
    monkeypatch.setenv("HONGTU_HOST_MEMORY", "4GiB")
    for name, key, model in (("types", "edge_types", "rgcn"), ("learned", "feature_width", "gcn")):
        given = {"edge_type": np.arange(60) % 3} if name == "types" else {"features": "embedding:5"}
        graph = {"edges": np.random.default_rng(0).integers(0, 24, (2, 60)), "num_vertices": 24, "labels": "random:3"}
        graph |= {"features": "random:4", "random_split": (0.5, 0.2, 0.3), "partitions": 2, "chunks": 2, **given}
        made = hongtu.preprocess_graph(**graph, artifact=here / name).path
        manifest = json.loads((made / "manifest.json").read_text())
        (made / "manifest.json").write_text(json.dumps(manifest | {key: 2**31 - 1}))
        with work_limit():
            assert "host memory: " in refused(capsys, "train", str(made), "--model", model, *SHORT)


def test_a_snapshot_asks_for_no_more_weights_than_there_is_memory(artifact, here, capsys):
    """`hongtu embed` looks for the number of classes among the widths of its weights."""
    assert main(["train", artifact, *SHORT, "--run", "run"]) == 0
    state = read_snapshot("run/snapshot-1.pt")
    for wrong in ({"wide": torch.empty(0, 2**33)}, {"none": 5}):
        write_snapshot("run/snapshot-1.pt", state | {"model": state["model"] | wrong, "identity": {"layers": []}})
        capsys.readouterr()
        with work_limit():
            assert "run/snapshot-1.pt: " in refused(capsys, "embed", artifact, "run/snapshot-1.pt", "out.npy")


@pytest.mark.parametrize("mask", [0o077, 0o002, 0o022])
def test_modes_follow_the_umask(mask, artifact, here):
    before = os.umask(mask)
    try:
        assert main(["generate", "citation", "graph", "--vertices", "30", "--edges", "90", "--features", "4"]) == 0
        assert main(["preprocess", "graph", "artifact", "--partitions", "2", "--chunks", "2"]) == 0
        assert main(["train", artifact, *SHORT, "--run", "run"]) == 0
    finally:
        os.umask(before)
    for path in (here, *here.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert path == here or mode == (0o777 if path.is_dir() else 0o666) & ~mask, path
