"""The edits of tests/mutations.txt belong to the code as it is."""

from __future__ import annotations

from collections import Counter

from tests.mutations import FIRST, LIST, REPOSITORY, edited, edits


def test_every_edit_replaces_what_stands_once_in_its_file():
    found = list(edits(LIST.read_text()))
    for edit in found:
        compile(edited(REPOSITORY, edit), edit.file, "exec")
        assert any(edit.file.startswith(folder) for folder in FIRST), edit.file
    assert len(found) >= 60 and not [edit for edit, times in Counter(found).items() if times > 1]
    assert {edit.file.split("/")[1] for edit in found} == {"graph", "plan", "engine", "ranks"}
