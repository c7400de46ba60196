"""One word per idea: the code's names are the words of the vocabulary in ``docs/concepts.md``."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.project.test_rooms import ROOT, modules

# Words that name nothing in the code, with those that do, and the modules where another library's own word is meant.
RETIRED = {
    "node": (
        "vertex",
        {
            "build",
            "traced",
            "tracer",
            "edge_functions",
            "expression",
            "in_place",
            "left_out",
            "questions",
            "root",
            "networkx_graph",
            "typed_answers",
            "typed_trace",
            "typed_cut",
            "typed_values",
            "typed_hop",
            "hetero_data",
        },
    ),
    "dry": ("simulated", set()),
}


def vocabulary() -> list[str]:
    """The words of the table in docs/concepts.md, as it writes them."""
    text = (ROOT / "docs" / "concepts.md").read_text().split("## Vocabulary")[1].split("\n## ")[0]
    cells = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)[2:]
    return [word.strip() for cell in cells for word in re.split(r",|/", re.sub("`.*?`", "", cell))]


def names() -> Iterator[tuple[str, str]]:
    """Every module with every name that it gives: of classes, functions, arguments, attributes and variables."""
    for module, tree in modules().items():
        for part in module.split("."):
            yield module, part
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield module, node.name
            elif isinstance(node, ast.arg):
                yield module, node.arg
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield module, node.id if isinstance(node, ast.Name) else node.attr


def words(name: str) -> list[str]:
    """
    >>> words("SlotsOfSources"), words("_num_dst")
    (['slots', 'of', 'sources'], ['num', 'dst'])
    """
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


@pytest.mark.parametrize("word", vocabulary())
def test_the_code_uses_the_vocabularys_word(word):
    first = word.lower().split()[0]  # of "transition set" the one that says which
    assert any({first, f"{first}s"} & set(words(name)) for _, name in names()), word


@pytest.mark.parametrize("word", RETIRED)
def test_no_name_has_a_retired_word(word):
    instead, allowed = RETIRED[word]
    found = {
        f"{module}: {name}"
        for module, name in names()
        if word in words(name) and module.rsplit(".", 1)[-1] not in allowed
    }
    assert not found, f"say {instead}: {sorted(found)}"


def test_a_class_name_names_one_class():
    where: defaultdict[str, set[str]] = defaultdict(set)
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add(module)
    assert not {name: sorted(found) for name, found in where.items() if len(found) > 1}
