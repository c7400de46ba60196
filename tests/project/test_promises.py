"""Every sentence of what hongtu promises has a test: tests/promises.txt says which.

A document's name, then pieces of its sentences ("- "), each with the tests that would fail if it were not so ("+ ") or
the reason why nothing can be tested ("= ").
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "promises.txt"
PROMISING = {  # sections of documents
    "SECURITY.md": ("What is trusted", "Files"),
    "docs/reliability.md": ("What is promised", "What is not"),
    "docs/machines.md": (
        "Methods that all ranks call", "What a rank holds and does", "How fast the network is",
        "Ranks that share a network card", "What is refused", "When a rank stops", "Who can reach these ports",
    ),
}  # fmt: skip
LEAST = 8  # letters of a piece
SENTENCE = re.compile(r'(?:(?<=[.!?])|(?<=[.!?]["*)]))\s+(?=[A-Z`"*(]|hongtu\b|torchrun\b)')


class Piece(NamedTuple):
    document: str
    words: str
    tests: list[str]
    reasons: list[str]


def pieces(text: str) -> list[Piece]:
    """What the list says.

    >>> pieces("A.md\\n- it holds\\n+ tests/test_a.py::test_b\\n")
    [Piece(document='A.md', words='it holds', tests=['tests/test_a.py::test_b'], reasons=[])]
    """
    document, found = "", list[Piece]()
    for line in filter(None, text.splitlines()):
        if line.startswith("- "):
            found.append(Piece(document, line[2:], [], []))
        elif line.startswith("+ "):
            found[-1].tests.append(line[2:])
        elif line.startswith("= "):
            found[-1].reasons.append(line[2:])
        else:
            document = line
    return found


def sentences(text: str, section: str) -> list[str]:
    """Of a section of a document: of its paragraphs and items, and the rows of its tables, on one line each.

    >>> sentences("\\n## B\\n\\nOne thing\\nholds. So does `x`.\\n\\n- First\\n- second.\\n\\n## C\\n\\nMore.\\n", "B")
    ['One thing holds.', 'So does `x`.', 'First', 'second.']
    """
    _, begun, rest = text.partition(f"\n## {section}\n")
    assert begun, f"no section {section!r}"
    inside = re.sub(r"```.*?```", "", re.split(r"\n## ", rest)[0], flags=re.DOTALL)
    inside = re.sub(r"(?m)^\|.*\n\|[-:| ]+\|$|^#+ .*$", "", inside)  # heads of tables, headings
    blocks = re.split(r"\n\s*\n|\n(?=- |\|)", inside)
    return [one for block in blocks for one in SENTENCE.split(" ".join(block.split()).removeprefix("- ")) if one]


def is_there(test: str) -> bool:
    """Whether a file has a test: ``tests/project/test_promises.py::test_every_sentence_has_a_test``."""
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and bool(re.search(rf"(?m)^def {re.escape(name)}\(", (ROOT / file).read_text()))


def complaints(documents: dict[str, str], listed: list[Piece]) -> list[str]:
    """What does not fit, in words."""
    found = []
    for document, sections in PROMISING.items():
        said = [one for section in sections for one in sentences(documents[document], section)]
        words = [piece.words for piece in listed if piece.document == document]
        found += [f"{document}: no test of {one!r}" for one in said if not any(word in one for word in words)]
        found += [f"{document} does not say {word!r}" for word in words if not any(word in one for one in said)]
    for piece in listed:
        found += [f"{piece.document}: {piece.words!r} names {test}" for test in piece.tests if not is_there(test)]
        if len(piece.words) < LEAST or bool(piece.tests) == bool(piece.reasons):
            found.append(f"{piece.document}: {piece.words!r} needs tests, or a reason why there is none")
    return found


@pytest.fixture
def documents():
    return {document: (ROOT / document).read_text() for document in PROMISING}


def test_every_sentence_has_a_test(documents):
    listed = pieces(LIST.read_text())
    assert {piece.document for piece in listed} == {*PROMISING}
    assert not complaints(documents, listed)


@pytest.mark.parametrize("document, section", [(name, at) for name in PROMISING for at in PROMISING[name]])
def test_a_sentence_without_a_test_is_found(document, section, documents):
    for added in ("It also cooks.", "- another thing is promised", "| 7 | it cooks |"):
        changed = documents[document].replace(f"\n## {section}\n", f"\n## {section}\n\n{added}\n")
        found = complaints(documents | {document: changed}, pieces(LIST.read_text()))
        assert len(found) == 1 and "no test of" in found[0] and added.strip("- \n") in found[0]


def test_a_test_that_goes_and_a_piece_that_nobody_says_are_found(documents):
    listed = pieces(LIST.read_text())
    first = next(piece for piece in listed if piece.tests)
    for more, said in (
        (first._replace(tests=["tests/project/test_promises.py::test_of_another_name"]), "test_of_another_name"),
        (first._replace(tests=["tests/project/test_absent.py::test_every_sentence_has_a_test"]), "test_absent.py"),
        (first._replace(tests=[]), "or a reason"),
        (first._replace(words="what no document says"), "does not say 'what no document says'"),
    ):
        found = complaints(documents, [*listed, more])
        assert len(found) == 1 and said in found[0]
