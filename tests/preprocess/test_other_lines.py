"""Lines that are no edges as they stand: each is refused with what mends it, and what mends it is read."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.open import read_input
from tests.preprocess.test_text import read

WEIGHTED = ("source", "destination", "weight")
PAIR, NAMED = [(0, 1), (1, 0)], [("a", "b"), ("b", "a")]
RDF = "<a:1> <p:k> <a:2> .\n<a:2> <p:k> <a:1> .\n"
JSON = '{"source": 0, "target": 1}\n{"source": 1, "target": 0}\n'


def tabs(between):
    return lambda text: re.sub(rf" ?{re.escape(between)} ?", "\t", text)


def plain(text):
    return re.sub(r"[^\w\n ,]", "", text).replace(", \n", "\n")


# lines -> what the message says, what mends them, the columns to name, the edges that come of it
OTHERS = {
    "(0, 1)\n(1, 0)\n": ("without brackets and quotes", plain, None, PAIR),
    "[0, 1]\n[1, 0]\n": ("without brackets and quotes", plain, None, PAIR),
    "[[0, 1],\n[1, 0]]\n": ("without brackets and quotes", lambda text: plain(text).replace(",\n", "\n"), None, PAIR),
    "('a', 'b')\n('b', 'a')\n": ("without brackets and quotes", plain, None, NAMED),
    "{0 1}\n{1 0}\n": ("without brackets and quotes", plain, None, PAIR),
    "0 -> 1\n1 -> 0\n": ("if '->' separates them", tabs("->"), None, PAIR),
    "New York -> b\nb -> New York\n": ("'->' sep", tabs("->"), None, [("New York", "b"), ("b", "New York")]),
    "0--1\n1--0\n": ("if '--' separates them", tabs("--"), None, PAIR),
    "0::1::5\n1::0::5\n": ("if '::' separates them", tabs("::"), WEIGHTED, [(0, 1, 5.0), (1, 0, 5.0)]),
    "0~1\n1~0\n": ("if '~' separates them", tabs("~"), None, PAIR),
    "a : b\nb : a\n": ("if ':' separates them", tabs(":"), None, NAMED),
    "0\x011\n1\x010\n": (r"if '\x01' separates them", tabs("\x01"), None, PAIR),
    "a -> b;\nb -> a;\n": ("; leave out ';'", lambda text: tabs("->")(text).replace(";", ""), None, NAMED),
    "digraph {\na -> b;\nb -> a;\n}\n": ("is of Graphviz", lambda _: "a b\nb a\n", None, NAMED),
    "*Vertices 2\n1 a\n2 b\n*Arcs\n1 2\n2 1\n": ("is of pajek; write an edge a", lambda _: "0 1\n1 0\n", None, PAIR),
    "graph [\n node [\n id 0\n]\n]\n": ("networkx.read_gml(path)", lambda _: "0 1\n1 0\n", None, PAIR),
    "<?xml version='1.0'?>\n<graphml>\n": ("networkx.read_graphml(path)", lambda _: "0 1\n1 0\n", None, PAIR),
    JSON: ("read_json(path, lines=True).to_csv", lambda text: "source,target\n0,1\n1,0\n", None, PAIR),
    RDF: (
        "leave out '.' at the end of lines", lambda text: "subject predicate object\n" + text.replace(" .", ""), None,
        [("<a:1>", "<a:2>"), ("<a:2>", "<a:1>")],
    ),
    "0 1 # x\n1 0 # y z\n": ("leave out comments at the end", lambda t: re.sub(" #.*", "", t), None, PAIR),
    "a b % x\nb a\n": ("leave out comments at the end", lambda t: re.sub(" %.*", "", t), None, NAMED),
    "0 1 // x\n1 0\n": ("leave out comments at the end", lambda t: re.sub(" //.*", "", t), None, PAIR),
    "0 1 1,5\n1 0 2,5\n": (
        "--columns source,destination,weight where", lambda text: text.replace(",", "."), WEIGHTED,
        [(0, 1, 1.5), (1, 0, 2.5)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("content", OTHERS)
@pytest.mark.parametrize("ending", [".txt", ".edges.gz"])
def test_lines_that_are_no_edges(content, ending, tmp_path):
    expected, mend, columns, edges = OTHERS[content]
    packed = __import__("gzip").compress if ending.endswith("gz") else bytes
    for relabel in (False, True):
        with pytest.raises(InputError, match=re.escape(expected)):
            read(tmp_path, f"e{ending}", packed(content.encode()), relabel=relabel)
    mended = mend(content)
    name = "e.tsv" if "\t" in mended else "e.txt"
    assert read(tmp_path, name, mended, relabel=isinstance(edges[0][0], str), columns=columns) == edges


def test_comments_behind_numbers_between_commas(tmp_path):
    with pytest.raises(InputError, match="line 1: id '1 # x', expected an integer; leave out comments"):
        read(tmp_path, "e.csv", "0,1 # x\n1,0\n")


@pytest.mark.parametrize(("name", "edges"), [
    ("e.csv", [("Smith & Co", "A & B"), ("A & B", "Smith & Co")]), ("e.csv", [("a:1", "a:2"), ("a:2", "a:1")]),
    ("e.txt", [("a::1", "b::2"), ("b::2", "a::1")]), ("e.txt", [("a--b", "c->d"), ("c->d", "a--b")]),
    ("e.txt", [("(a)", "(b)"), ("(b)", "(a)")]), ("e.txt", [("graph", "theory"), ("theory", "graph")]),
    ("e.txt", [("<a>", "<b>"), ("<b>", "<a>")]), ("e.csv", [("f(x)", "g(y)"), ("g(y)", "f(x)")]),
])  # fmt: skip
def test_names_that_hold_such_signs(name, edges, tmp_path):
    between = "," if name == "e.csv" else " "
    assert read(tmp_path, name, "".join(between.join(edge) + "\n" for edge in edges), relabel=True) == edges


def test_a_sign_behind_the_ends_is_a_column(tmp_path):
    assert read(tmp_path, "e.txt", "0 1 - 5\n1 0 - 7\n", columns=("source", "destination")) == PAIR


def test_the_columns_of_triples_are_named_in_their_order(tmp_path):
    for content in ("A knows B\nB likes A\n", "A knows B now\nB likes A now\n"):
        with pytest.raises(InputError, match="names the columns in their order, such as") as refused:
            read(tmp_path, "e.txt", content, relabel=True)
        line = str(refused.value).rpartition("such as '")[2].rstrip("'")
        assert read(tmp_path, "e.txt", f"{line}\n{content}", relabel=True) == [("A", "B"), ("B", "A")]


@pytest.mark.parametrize("third", ["2004-01-01", "new", "x y"])
def test_what_follows_two_numbers_is_behind_the_ends(third, tmp_path):
    """The line that is advised names the first two columns as the ends, as the columns that are advised do."""
    content = f"0,1,{third}\n1,0,{third}\n"
    with pytest.raises(
        InputError, match="pass --columns source,destination to ignore what follows the ends, or"
    ) as refused:
        read(tmp_path, "e.csv", content)
    line = str(refused.value).rpartition("such as '")[2].rstrip("'")
    assert read(tmp_path, "e.csv", f"{line}\n{content}") == PAIR
    assert read(tmp_path, "e.csv", content, columns=("source", "destination")) == PAIR


@pytest.mark.parametrize("header", ["u,v,w", "gene,other,score", "a_id,b_id,n"])
def test_a_line_that_may_name_text_columns_is_none_of_three(header, tmp_path):
    """To put another line of names before it would make it an edge."""
    content = f"{header}\na,b,1\nb,a,2\n"
    with pytest.raises(
        InputError, match="line 1: 3 columns, expected 2; pass --relabel to read names as they are, and"
    ):
        read(tmp_path, "e.csv", content)
    names = tuple(header.split(","))
    assert read(tmp_path, "e.csv", content, relabel=True, columns=names) == [("a", "b", 1.0), ("b", "a", 2.0)]


@pytest.mark.parametrize("width", [2, 3, 4])
def test_columns_that_pandas_numbers(width, capsys, tmp_path):
    """A first line 0, 1, ... is no edge between names; between numbers it is one, unless its columns are asked for."""
    row = ",".join(map(str, range(width)))
    named = "".join(",".join([a, b, *"xyz"][:width]) + "\n" for a, b in NAMED)
    columns = ("0", "1") if width > 2 else None
    assert read(tmp_path, "e.csv", f"{row}\n{named}", relabel=True, columns=columns) == NAMED
    assert "taken for" in capsys.readouterr().err
    numbers = "".join(",".join([str(a), str(b), *"567"][:width]) + "\n" for a, b in PAIR)
    assert read(tmp_path, "e.csv", f"{row}\n{numbers}", columns=("source", "destination")) == [(0, 1), *PAIR]
    capsys.readouterr()
    assert read(tmp_path, "e.csv", f"{row}\n{numbers}", columns=("0", "1")) == PAIR
    assert "if they are an edge, pass --columns source,destination" in capsys.readouterr().err


@pytest.mark.parametrize("names", ["", "source target\n", "# tags\n\nsrc dst\n", '"from" "to"\n'])
@pytest.mark.parametrize("sign", "#%")
def test_ids_that_all_start_as_comments(sign, names, tmp_path):
    content = f"{names}{sign}a {sign}b\n{sign}b {sign}c\n{sign}c {sign}a\n"
    with pytest.raises(InputError, match="all its lines start with # or % and are taken for comments; pass --relabel"):
        read(tmp_path, "e.txt", content)
    edges = [(f"{sign}a", f"{sign}b"), (f"{sign}b", f"{sign}c"), (f"{sign}c", f"{sign}a")]
    assert read(tmp_path, "e.txt", content, relabel=True) == edges


@pytest.mark.parametrize("name", ["e.csv", "e.txt", "e.tsv.gz"])
@pytest.mark.parametrize("ids", [("01001", "1001"), ("+5", "5"), ("-0", "0"), ("7", "007")])
def test_integers_of_other_spelling_are_names(ids, name, tmp_path):
    """Zip codes, CAS numbers and the like: two texts are two vertices, in any block and beside weights."""
    between = "," if name == "e.csv" else "\t"
    edges = [ids, (ids[1], "2"), ("2", ids[0])]
    content = "".join(between.join(edge) + "\n" for edge in edges).encode()
    assert read(tmp_path, name, gzip.compress(content) if name.endswith(".gz") else content, relabel=True) == edges
    weighted = "source,destination,weight\n3,4,0.5\n" + "".join(f"{s},{d},07\n" for s, d in edges)
    assert read(tmp_path, "w.csv", weighted, relabel=True) == [("3", "4", 0.5), *((*edge, 7) for edge in edges)]
    assert read(tmp_path, "w.csv", "source,destination,weight\n3,4,00.5\n", relabel=True) == [(3, 4, 0.5)]


def test_ids_of_rows_that_are_integers_where_the_edges_have_zeros_before_them(tmp_path):
    (tmp_path / "edges.csv").write_text("01001,2\n2,1001\n")
    np.save(tmp_path / "features.npy", np.zeros((2, 1), np.float32))
    config = PreprocessConfig(relabel=True, labels="random:2", random_split=(0.5, 0.2, 0.3), partitions=1, chunks=1)
    np.save(tmp_path / "ids.npy", [1001, 2])
    with pytest.raises(InputError, match=r"ids.npy are integers \(.*line 1: id '01001' is not how the integer 1001"):
        read_input(tmp_path, config, tmp_path)
    np.save(tmp_path / "ids.npy", ["01001", "2", "1001"])
    np.save(tmp_path / "features.npy", np.zeros((3, 1), np.float32))
    assert np.array(read_input(tmp_path, config, tmp_path).edges).tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize("between", [",", "\t"])
@pytest.mark.parametrize("columns", [(), ("w",)])
@pytest.mark.parametrize("index", ["", "Unnamed: 0", None])
@pytest.mark.parametrize("names", [("0", "1"), ("foo", "bar"), ("V1", "V2")])
def test_the_headers_that_pandas_and_r_write(names, index, columns, between, tmp_path, capsys):
    """Beside numbers of rows or not, over integers and text: read as names, or a message has what reads them so."""
    names = (*names, *(("2",) if names == ("0", "1") else columns) * len(columns))
    for ids in (("5", "6"), ("x", "y")):
        rows = [(*ids, "0.5"), (*ids[::-1], "0.25")]
        lines = [[*([] if index is None else [index]), *names]]
        lines += [[*([] if index is None else [str(k)]), *row[: len(names)]] for k, row in enumerate(rows)]
        content = "".join(between.join(line) + "\n" for line in lines)
        name, given = ("e.csv" if between == "," else "e.tsv"), {"relabel": True}
        try:
            read(tmp_path, name, content, **given)
            said = capsys.readouterr().err
        except InputError as error:
            said = str(error)
        if advice := re.search(
            r"pass --columns ((?:0|foo|V1),\S+?)(?:;| where|$)|as --columns (\S+)", said, re.MULTILINE
        ):
            given["columns"] = tuple((advice[1] or advice[2]).split(","))
        numbers = ids[0] == "5"
        expected = [tuple(int(end) if numbers else end for end in row[:2]) for row in rows]
        assert [edge[:2] for edge in read(tmp_path, name, content, **given)] == expected


@pytest.mark.parametrize("content", [" 0 1\n0 5 6\n1 6 7\n", '"V1" "V2"\n"1" 5 6\n"2" 6 7\n', "a b\n0 x y\n1 y x\n"])
def test_numbers_of_rows_without_a_name_are_told(content, tmp_path):
    with pytest.raises(
        InputError, match=r"and so has the first line alone; .* \(of pandas index=False, of R row.names"
    ):
        read(tmp_path, "e.txt", content, relabel=True)
    mended = "".join(line.split(" ", 1)[1] + "\n" for line in content.splitlines()[1:])
    assert len(read(tmp_path, "e.txt", mended, relabel=True)) == 2
