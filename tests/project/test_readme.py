"""The code blocks of the README and of docs/ do what they say.

Blocks of one page run in order, in a directory with the README's ``graph`` and ``artifact``; shell blocks run their
``hongtu`` lines. What cannot run here (a GPU, hours) is marked ``text`` or ``console`` on its page.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import pytest
import torch

import hongtu
from hongtu.cli.main import COMMANDS, build_parser
from hongtu.cli.main import main as command
from hongtu.model.named import MODELS

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [
    page
    for page in sorted((ROOT / "docs").glob("*.md"))
    if "```sh\n" in page.read_text() or "```python\n" in page.read_text()
]
ELSEWHERE = (
    "planetoid-",
    " ogbn-arxiv",
    " cora",
    " citeseer",
    "--measure",
    "my-machine.json",
)  # graphs and measurements that only a reader's machine has
SHORTER = (
    ("epochs=10", "epochs=2"),
    ("epochs=200", "epochs=2"),
    ("epochs=500", "epochs=2"),
    ("eval_every=5", "eval_every=1"),
    ("--epochs 20", "--epochs 2"),
    ("--accuracy 2s", "--accuracy 1 --together"),
)


def blocks(page):
    """Language and text of every block that runs."""
    return re.findall(r"```(sh|python)\n(.*?)```", page.read_text(), flags=re.DOTALL)


def shortened(text):
    for long, short in SHORTER:
        text = text.replace(long, short)
    return text


def run_shell(text):
    for line in shortened(text).replace("\\\n", " ").splitlines():
        if line.startswith("hongtu ") and not any(word in line for word in ELSEWHERE):
            words = shlex.split(line, comments=True)
            into = Path(words.pop()) if words[-2] == ">" else None
            with into.open("w") if into else nullcontext(sys.stdout) as out, redirect_stdout(out):
                assert command([word for word in words[1:] if word != ">"]) == 0, line


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory in which the README's first commands have run."""
    path = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        (quickstart,) = [text for language, text in blocks(README) if "hongtu generate" in text]
        assert sum(line.startswith("hongtu ") for line in quickstart.splitlines()) == 3
        run_shell(quickstart)
    return path


@pytest.fixture
def beside(made, tmp_path, monkeypatch):
    """A copy of it to run in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_page(page, skip=()):
    names: dict = {}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(shortened(text), str(page), "exec"), names)
        elif not any(word in text for word in skip):
            run_shell(text)
    return names


@pytest.mark.long
def test_readme_blocks_run(beside, capsys, monkeypatch):
    from torch_geometric import datasets

    monkeypatch.syspath_prepend(ROOT / "examples")
    from graphs import citation

    monkeypatch.setattr(datasets, "Planetoid", lambda root, name: [citation(210, classes=7)])  # no download
    run_page(README, skip=["hongtu generate"])
    assert "device 0" in capsys.readouterr().out
    assert (beside / "snapshot.pt").exists() and (beside / "traffic.svg").exists()


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_of_docs_run(page, beside):
    names = run_page(page)
    if page.stem == "layers":
        check_user_layer(names["MaxPool"], "artifact")


def check_user_layer(layer, path):
    """The user layer trains inside a budget as it does without one."""
    artifact = hongtu.open_artifact(path)

    def losses(budget):
        torch.manual_seed(0)
        layers = [layer(artifact.feature_width, 16), torch.nn.ReLU(), layer(16, artifact.num_classes)]
        trainer = hongtu.Trainer(artifact, layers, device_memory=budget, dtype=torch.float64)
        return [record.loss for record in trainer.fit(2, progress=False)]

    torch.testing.assert_close(losses("24MiB"), losses(None), rtol=1e-12, atol=0)


def test_the_first_block_is_the_first_example():
    (first,) = [text for language, text in blocks(README) if "Planetoid" in text]
    assert (ROOT / "examples" / "cora.py").read_text().endswith(first)


def test_the_quickstart_says_which_graph_the_other_pages_use():
    (making,) = [text for language, text in blocks(README) if "hongtu generate" in text]
    assert "".join(making.splitlines(keepends=True)[:2]) in (ROOT / "docs" / "quickstart.md").read_text()


def commands_table():
    """What the README's table of commands runs, and what it says of each."""
    text = README.read_text().split("[start:commands]")[1].split("[end:commands]")[0]
    return {command: does for command, does in re.findall(r"^\| `(hongtu .*?)` \| (.*?) \|", text, flags=re.MULTILINE)}


def test_the_table_of_commands_has_every_command_with_its_help(capsys):
    assert [line.split()[1] for line in commands_table()] == list(COMMANDS)
    assert command(["--help"]) == 0
    helped = " ".join(capsys.readouterr().out.split())
    for line, does in commands_table().items():
        assert f"{line.split()[1]} {does}" in helped
        build_parser().parse_args(shlex.split(line)[1:])


@pytest.mark.long
def test_the_commands_of_the_table_run(beside):
    run_shell("\n".join(line for line in commands_table() if "hongtu bench" not in line))  # tests/bench run it
    assert (beside / "rows.npy").exists() and (beside / "report.html").exists()


def models_table():
    """The rows of the README's table of models: what the first two cells name, and the whole text."""
    text = README.read_text().split("[start:models]")[1].split("[end:models]")[0]
    _, *lines = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `"))
    names = [[re.findall(r"`([\w.]+)", cell) for cell in line[:2]] for line in lines]
    return names, text


def test_the_table_of_models_names_every_public_class():
    names, text = models_table()
    ours = {name for first, _ in names for name in first}
    public = {name for name in hongtu.nn.__all__ if isinstance(getattr(hongtu.nn, name), type)}
    public |= {"hongtu.LabelPropagation", "hongtu.CorrectAndSmooth", "hongtu.LossTerm", "hongtu.LinkLoss"}
    assert ours == public
    assert all(f"`{name}" in text for name in MODELS)


def test_what_the_table_of_models_names_exists():
    import torch_geometric.nn as pyg
    from torch_geometric import transforms

    names, _ = models_table()
    for first, second in names:
        for name in second:
            place = transforms if name.startswith("transforms.") else pyg
            assert name == "aggr." or hasattr(place, name.split(".")[-1])
        for name in first if second == ["aggr."] else ():
            assert hasattr(pyg.aggr, name)
        for name in first:
            assert hasattr(hongtu if name.startswith("hongtu.") else hongtu.nn, name.split(".")[-1])
