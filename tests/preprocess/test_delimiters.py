"""What stands between the columns of an edge list: found by the lines, or refused where it may be several things."""

from __future__ import annotations

import pytest

from hongtu.errors import InputError
from tests.preprocess.test_text import read

CITIES = [("Rome", "New York"), ("New York", "Rome"), ("Paris", "New York")]
WHOLE = [("New York", "San Jose"), ("San Jose", "New York")]

COLUMNS = ("source", "destination")


def lines(edges, between):
    return "".join(f"{a}{between}{b}\n" for a, b in edges)


# name of the file, edges, what is between them -> what the message says, the name and the lines that mend it
AMBIGUOUS = [
    ("e.txt", CITIES, ",", "name the file .csv to split at commas", "e.csv", ","),
    ("e.edges", CITIES, ", ", "", "e.edges", ", "),  # white space would leave a comma at the end of a word
    ("e.edges", CITIES, ",", "or write a tab between the columns and name it .tsv", "e.tsv", "\t"),
    ("e.txt", WHOLE, "\t", "name the file .tsv to split at tabs", "e.tsv", "\t"),
    ("e.txt", CITIES, ";", "write a tab between the columns and name the file .tsv", "e.tsv", "\t"),
    ("e.txt", CITIES, "|", "write a tab between the columns and name the file .tsv", "e.tsv", "\t"),
    ("e.csv", [("Rome, IT", "Oslo"), ("Bonn, DE", "Oslo")], ";", "write a tab between the columns", "e.tsv", "\t"),
    ("e.csv", [("Rome, IT", "Oslo"), ("Bonn, DE", "Oslo")], "\t", "name the file .tsv to split at tabs", "e.tsv", "\t"),
]


@pytest.mark.parametrize("case", range(len(AMBIGUOUS)))
@pytest.mark.parametrize("relabel", [True, False])
def test_names_that_two_delimiters_fit_are_refused(case, relabel, tmp_path):
    name, edges, between, remedy, mended, instead = AMBIGUOUS[case]
    if remedy:
        with pytest.raises(InputError, match=r"line 1: may be '.* split at .*, or '.* split at ") as refused:
            read(tmp_path, name, lines(edges, between), relabel=relabel)
        assert remedy in str(refused.value)
    assert read(tmp_path, mended, lines(edges, instead), relabel=True) == edges


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("e.txt", "0\t1\tNew York\n1\t2\tSan Jose\n", [(0, 1), (1, 2)]),
    ("e.csv", lines(CITIES, ","), CITIES),
    ("e.tsv", lines([("Rome, IT", "a"), ("a", "Rome, IT")], "\t"), [("Rome, IT", "a"), ("a", "Rome, IT")]),
    ("e.txt", "a b {'x': 1, 'y': 2}\nb a {'x': 1, 'y': 2}\n", None),
    ("e.txt", "a b 1,5\nb a 2,5\n", [("a", "b"), ("b", "a")]),
    ("e.csv", "a;b;1,5\nb;a;2,5\n", [("a", "b"), ("b", "a")]),
])  # fmt: skip
def test_what_only_looks_like_another_delimiter(name, content, expected, tmp_path):
    if expected is None:
        with pytest.raises(
            InputError,
            match=r"6 columns, expected 2; write it with networkx\.write_edgelist\(",
        ):
            read(tmp_path, name, content, relabel=True)
    else:
        assert read(tmp_path, name, content, relabel=True, columns=COLUMNS) == expected
