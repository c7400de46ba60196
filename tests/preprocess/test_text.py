"""Edge lists as text, as tools write them: headers, comments, delimiters, quotes and ends of lines."""

from __future__ import annotations

import ast
import gzip
import lzma
import re

import numpy as np
import pytest

import hongtu
from hongtu.cli.main import main
from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.formats import text_lines
from hongtu.preprocess.read.open import read_input

RING = "a,b\nb,c\nc,a\n"
NAMED = [("a", "b"), ("b", "c"), ("c", "a")]
NUMBERS = [(0, 1), (1, 2)]
HEADERS = (
    "src_id,dst_id", "source_id,target_id", "Source,Target", "from,to", "~from,~to", "_from,_to", ":START_ID,:END_ID",
    ":START_ID(User),:END_ID(User)", "head,tail", "subject,object", "node1,node2", "FromNodeId,ToNodeId", "src,trg",
    "node_1,node_2", "id_1,id_2", "citing_paper,cited_paper", "follower,followee", "sender,receiver", "u,v", "x,y",
    "protein1,protein2", "nodeA,nodeB", "mentor,pupil", '"src","dst"',
)  # fmt: skip


def read(tmp_path, name, content, **settings):
    """Edges by their ids, with weights where there are some."""
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    given = {"features": "degree", "labels": "random:2", "random_split": (0.5, 0.2, 0.3), "partitions": 1, "chunks": 1}
    raw = read_input(file, PreprocessConfig(**(given | settings)), tmp_path)
    ids = raw.ids if raw.ids is not None else list(range(raw.num_vertices))
    edges = [(ids[s], ids[d]) for s, d in np.array(raw.edges).T.tolist()]
    weight = raw.edge_weight
    return edges if weight is None else [(*ends, w) for ends, w in zip(edges, np.array(weight).tolist(), strict=True)]


@pytest.mark.parametrize("header", HEADERS)
def test_names_of_columns_are_no_edge(header, tmp_path):
    """Whether ids are text or integers, whatever delimits them, and where other columns stand beside."""
    assert read(tmp_path, "e.csv", f"{header}\n{RING}", relabel=True) == NAMED
    assert read(tmp_path, "e.csv", f"{header}\n0,1\n1,2\n") == NUMBERS
    assert read(tmp_path, "e.csv", f"{header}\n0,1\n1,2\n", relabel=True) == NUMBERS
    assert read(tmp_path, "e.tsv", f"{header}\n{RING}".replace(",", "\t"), relabel=True) == NAMED
    positions = "source", "destination"
    beside = "".join(f"{line},x{k}\n" for k, line in enumerate([header, *RING.split()]))
    assert read(tmp_path, "e.csv", beside, relabel=True, columns=positions) == NAMED


@pytest.mark.parametrize(("header", "columns"), [
    ("id,src_id,dst_id,since", (1, 2)), ("head,relation,tail", (0, 2)), ("dst,weight,src", (2, 0)),
    ("object,predicate,subject", (2, 0)), ("tail,head,n", (1, 0)), ("tail,relation,head", (2, 0)),
    ("tail_id,head_id,weight", (1, 0)),
])  # fmt: skip
def test_names_say_which_columns_are_the_ends(header, columns, tmp_path, capsys):
    rows = [[f"{k}" for k in range(row, row + header.count(",") + 1)] for row in range(3)]
    content = "\n".join([header, *map(",".join, rows)])
    found = read(tmp_path, "e.csv", content)
    assert [edge[:2] for edge in found] == [tuple(int(row[c]) for c in columns) for row in rows]
    found = re.search("go from tail to head pass --columns (.*)", capsys.readouterr().err)  # mathematicians' tail
    assert bool(found) == (header.startswith("tail") and "relation" not in header)
    if found:
        turned = read(tmp_path, "e.csv", content, columns=tuple(found[1].split(",")))
        assert [edge[:2] for edge in turned] == [tuple(int(row[c]) for c in columns[::-1]) for row in rows]


@pytest.mark.parametrize("first", ["a,d", "src,dst", "u,v", "mentor,pupil"])
def test_a_first_line_whose_words_stand_again_is_an_edge(first, tmp_path):
    a, b = first.split(",")
    content = f"{first}\n{b},{a}\n{a},x\n"
    if a == "src":
        with pytest.raises(InputError, match="line 1: 'src' and 'dst' may be an edge, or the names"):
            read(tmp_path, "e.csv", content, relabel=True)
        assert read(tmp_path, "e.csv", content, relabel=True, columns=("src", "dst")) == [(b, a), (a, "x")]
        content = "source,destination\n" + content
    assert read(tmp_path, "e.csv", content, relabel=True) == [(a, b), (b, a), (a, "x")]


def test_where_all_lines_stand_alone_the_first_is_not_guessed(tmp_path, capsys):
    with pytest.raises(InputError, match="'a' and 'b' may be an edge, or the names of the columns; pass --columns a,b"):
        read(tmp_path, "e.csv", "a,b\nc,d\ne,f\n", relabel=True)
    assert read(tmp_path, "e.csv", "a,b\nc,d\ne,f\n", relabel=True, columns=("a", "b")) == [("c", "d"), ("e", "f")]
    assert len(read(tmp_path, "e.csv", "source,destination\na,b\nc,d\ne,f\n", relabel=True)) == 3
    assert read(tmp_path, "e.csv", "a,b\n", relabel=True) == [("a", "b")]
    capsys.readouterr()
    read(tmp_path, "e.csv", f"mentor,pupil\n{RING}", relabel=True)
    assert "line 1: 'mentor,pupil' is taken for the names of the columns; if it is" in capsys.readouterr().err


@pytest.mark.parametrize("between", [",", "\t"])
@pytest.mark.parametrize("more", ["", "2020"])
def test_names_before_a_triple_are_as_many_as_its_columns(between, more, tmp_path):
    lines = [between.join([*line, *more.split()]) for line in ("arb", "cqd", "ese")]
    content, ending = "\n".join([*lines, ""]), ".csv" if between == "," else ".tsv"
    if not more:
        with pytest.raises(InputError, match="may be an edge, or the names of the columns") as refused:
            read(tmp_path, f"e{ending}", content, relabel=True)
    else:
        with pytest.raises(InputError, match="put a line before the first that names the columns") as refused:
            read(tmp_path, f"e{ending}", content, relabel=True)
    first = ast.literal_eval(re.search("such as ('.*?')", str(refused.value))[1])
    assert read(tmp_path, f"e{ending}", f"{first}\n{content}", relabel=True) == [("a", "b"), ("c", "d"), ("e", "e")]


def test_a_first_line_is_compared_with_whole_fields_of_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "HEAD", 64)
    monkeypatch.setattr(text_lines, "BLOCK", 100)
    rows = "".join(f"v{k},hub\n" for k in range(50))
    assert len(read(tmp_path, "e.csv", f"York,pupil\n{rows}New York,v1\npupils,v2\n", relabel=True)) == 52
    assert len(read(tmp_path, "e.csv", f"York,pupil\n{rows}York,v1\n", relabel=True)) == 52
    assert len(read(tmp_path, "e.csv", f"York,pupil\n{rows}v1,York", relabel=True)) == 52


HASHES = [("ann", "#covid"), ("#covid", "bob"), ("%E4", "ann"), ("bob", "ann")]


@pytest.mark.parametrize("header", ["", "user,hashtag\n", "# from Twitter\n\n", "#user,hashtag\n"])
def test_names_may_start_as_comments_do(header, tmp_path):
    content = header + "".join(f"{a},{b}\n" for a, b in HASHES)
    assert read(tmp_path, "e.csv", content, relabel=True) == HASHES
    turned = HASHES[1:] + HASHES[:1]
    if not header.startswith("user"):
        assert read(tmp_path, "e.csv", header + "".join(f"{a},{b}\n" for a, b in turned), relabel=True) == turned


def test_comments_among_edges_are_said(tmp_path, capsys):
    assert read(tmp_path, "e.txt", "# Nodes: 3\n0 1\n# more of\n% them\n1 2\n") == NUMBERS
    assert "lines after the first edge that start with # or % are taken for comments: 2" in capsys.readouterr().err
    assert read(tmp_path, "e.txt", "# Nodes: 3\n# Edges: 2\n0 1\n1 2\n") == NUMBERS
    assert not capsys.readouterr().err
    with pytest.raises(InputError, match="line 2: 4 columns, expected 2"):
        read(tmp_path, "e.txt", "a b\n# more of it\nb a\n", relabel=True)


@pytest.mark.parametrize(
    ("first", "said"),
    [("3 2", True), ("2 2", True), ("40 2", True), ("1 2", False), ("3 1", False), ("a b", False), ("# 3 2", False)],
)
def test_numbers_of_vertices_and_edges_are_read_as_an_edge_with_a_note(first, said, tmp_path, capsys, monkeypatch):
    """Of two edges, the largest vertex of which is 2."""
    for block in (1 << 20, 6):
        monkeypatch.setattr(text_lines, "BLOCK", block)
        edges = read(tmp_path, "e.txt", f"{first}\n0 1\n1 2\n")
        assert len(edges) == 2 + first[0].isdecimal()
        assert ("line 1: is read as an edge, and would be the numbers of" in capsys.readouterr().err) == said
    read(tmp_path, "e.txt", "3 3 2\n0 1 0.5\n1 2 0.5\n", columns=("source", "destination", "weight"))
    assert "line 1: is read as an edge" in capsys.readouterr().err


# file name -> content
FORMS = {
    "comma.txt": "0,1\n1,2\n", "space.txt": "0, 1\n1, 2\n", "semicolon.csv": "src;dst\n0;1\n1;2\n",
    "tab.csv": "0\t1\n1\t2\n", "space.csv": "0 1\n1 2\n", "bar.tsv": "0|1\n1|2\n",
    "comma.edges": "from,to\n0,1\n1,2\n", "space.tsv": "0  1\n1  2", "return.txt": "0 1\r1 2\r",
    "return.csv": "src,dst\r0,1\r1,2", "both.csv": "src,dst\r\n0,1\r\n1,2\r\n", "mixed.txt": "0 1\r1 2\n",
    "quoted.csv": '"src","dst"\n"0","1"\n1, "2"\n', "index.csv": ",src,dst\n0,0,1\n1,1,2\n",
    "r.csv": '"","src","dst"\n"1",0,1\n"2",1,2\n', "mark.csv": "\ufeffsrc,dst\n0,1\n1,2\n",
    "tabs.csv": "src\t,\tdst\n0\t,1\n1, \t2 \t\n", "spaces.tsv": "0 \t 1\n1 \t 2 \n",
    "gz.txt.gz": gzip.compress(b"0\t1\r\n1\t2"),
    "gz.txt": gzip.compress(b"0\t1\n1\t2\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("block", [16, 1 << 20])
def test_other_delimiters_quotes_and_ends_of_lines(name, block, tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "BLOCK", block + 20 * name.endswith("gz"))
    assert read(tmp_path, name, FORMS[name]) == NUMBERS
    assert read(tmp_path, name, FORMS[name], relabel=True) == NUMBERS


def test_values_between_semicolons_have_decimal_commas_that_are_refused(tmp_path):
    with pytest.raises(
        InputError, match="line 1: weight '0,5', expected a number; write a point in place of the comma"
    ):
        read(tmp_path, "e.csv", "0;1;0,5\n1;2;0,5\n", columns=("source", "destination", "weight"))


def test_quoted_names(tmp_path):
    assert read(tmp_path, "e.csv", '"Ann Lee","b"\nb,"Ann Lee"\n', relabel=True) == [("Ann Lee", "b"), ("b", "Ann Lee")]
    for wrong in ('"Lee, Ann",b\n', '"a""b",b\n', 'a "b",b\n', 'b,"\nc"\n', '"a,b\n'):
        with pytest.raises(InputError, match=r"line 1: a quoted field|line 2"):
            read(tmp_path, "e.csv", f"{wrong}b,c\n", relabel=True)


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("a.tsv", "A\tknows\tB\nB\tlikes\tC\n", r"line 1: 3 columns, .* a line .*'source\\trelation\\tdestination'"),
    ("a.txt", "0 1 {}\n1 2 {}\n", r"expected 2; write it with networkx.write_edgelist\(graph, path, data=False\)"),
    ("a.txt", "0 1 7\n1 2 9\n", "--columns source,destination,weight where the third is a weight"),
    ("a.csv", "0.0,1.0\n", "line 1: id '0.0', expected an integer; save the ids as int64"),
    ("a.csv", "src,dst\n0,1\n".encode("utf-16"), "line 1: a zero byte, expected UTF-8 text"),
    ("a.csv", lzma.compress(b"0,1\n"), "a zero byte, expected UTF-8 text; unpack it: unxz"),
    ("a.txt", b"PAR1\x00\x00", "rename it to .parquet"),
    ("a.csv", b"0,1\n0,\x00\n", "line 2: a zero byte"),
    ("a.txt", "0\n", "1 columns, expected 2 between commas"),
])  # fmt: skip
def test_what_is_refused_says_what_mends_it(name, content, expected, tmp_path):
    with pytest.raises(InputError, match=expected):
        read(tmp_path, name, content)


def test_remedies_give_the_right_graph(tmp_path):
    triples = "A\tknows\tB\nB\tlikes\tC\nC\tlikes\tA\n"
    assert read(tmp_path, "a.tsv", f"source\trelation\tdestination\n{triples}", relabel=True) == [
        ("A", "B"), ("B", "C"), ("C", "A"),
    ]  # fmt: skip
    weighted = ("source", "destination", "weight")
    assert read(tmp_path, "a.txt", "0 1 7\n1 2 9\n", columns=weighted) == [(0, 1, 7.0), (1, 2, 9.0)]
    assert read(tmp_path, "a.txt", "a b w\n0 1 7\n1 2 9\n", columns=weighted) == [(0, 1, 7.0), (1, 2, 9.0)]


RELATED = {
    "names": ("knows", "likes", "knows", "owns", [0, 1, 0, 2]),
    "numbers": ("7", "2", "7", "0", [7, 2, 7, 0]),
    "numbers and names": ("7", "x", "7", "0", [0, 1, 0, 2]),
}


@pytest.mark.parametrize("kind", RELATED)
@pytest.mark.parametrize("form", ["h.tsv", "names.csv", "typed.csv", "e.parquet"])
def test_relations_are_types_of_edges(kind, form, tmp_path, capsys):
    *relations, expected = RELATED[kind]
    rows = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")] if form == "h.tsv" else [(0, 1), (1, 2), (2, 0), (0, 2)]
    header = {"h.tsv": ("head", "relation", "tail"), "names.csv": ("subject", "predicate", "object")}.get(
        form, ("source", ":TYPE", "destination")
    )
    columns, file = (header[0], header[2], header[1]), tmp_path / form
    triples = [(source, relation, destination) for (source, destination), relation in zip(rows, relations, strict=True)]
    if form == "e.parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        named = dict(zip(header, map(list, zip(*triples, strict=True)), strict=True))
        if kind == "numbers":
            named[":TYPE"] = [int(relation) for relation in relations]
        parquet.write_table(pyarrow.table(named), file)
    else:
        between = "\t" if form == "h.tsv" else ","
        file.write_text("".join(between.join(map(str, line)) + "\n" for line in [header, *triples]))
    artifact = preprocess(tmp_path, form, "--columns", ",".join(columns), *["--relabel"] * (form == "h.tsv"))
    assert artifact.num_edge_types == max(expected) + 1 and artifact.topology.edge_weight is None
    found = dict(zip(ends_of(artifact), artifact.topology.edge_type.tolist(), strict=True))
    assert found == dict(zip([(0, 1), (1, 2), (2, 0), (0, 2)], expected, strict=True))
    said = capsys.readouterr().err
    assert ("3 relations, numbered in the order in which they come: 0 " in said) == (kind != "numbers")


def preprocess(tmp_path, name, *options):
    more = "--features", "random:2", "--task", "links", "--partitions", "1", "--chunks", "1"
    assert main(["preprocess", str(tmp_path / name), str(tmp_path / "out"), *more, *options]) == 0
    return hongtu.open_artifact(tmp_path / "out")


def ends_of(artifact):
    """Source and destination of every edge, in the artifact's order, by the numbers of the input."""
    destinations = np.repeat(np.arange(artifact.num_vertices), np.diff(artifact.topology.in_edge_start))
    own = artifact.original_id
    return zip(own[artifact.topology.global_sources()].tolist(), own[destinations].tolist(), strict=True)


def test_a_relation_that_is_not_read_is_named(tmp_path, capsys):
    file = tmp_path / "e.tsv"
    file.write_text("head\trelation\ttail\nA\tknows\tB\nB\tlikes\tA\n")
    artifact = preprocess(tmp_path, "e.tsv", "--relabel")
    assert artifact.num_edge_types == 0
    assert "column 'relation' is not read; --columns head,tail,relation takes it as" in capsys.readouterr().err


@pytest.mark.parametrize("line", ['""', ' ""', '"" ', '\t"" ', '""\n"7"'])
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_line_of_one_empty_text_is_no_blank_line(line, delimiter, tmp_path):
    with pytest.raises(InputError, match=r"e\.csv.*2"):
        read(tmp_path, "e.csv", f"1{delimiter}2\n{line}\n3{delimiter}4\n")


LIST = "write a line for each edge where a line is a vertex and its neighbours"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [("a.txt", "0 1 2 3\n1 2 3\n2 0 1\n", f"line 1: 4 columns, expected 2, and others have 3; {LIST}"),
     ("a.csv", "0,1\n1,2,3\n2,0,1,3\n", f"line 2: 3 columns, expected 2, and others have 2, 4; {LIST}"),
     ("a.tsv", "0\t1\t2\n1\t0\n", f"line 1: 3 columns, expected 2, and others have 2; {LIST}"),
     ("b.txt", "0 1\n" * 99 + "1 2 3\n", "line 100: 3 columns, expected 2; mend the line"),
     ("b.csv", "0,1\n" * 99 + "1,2,3,4\n", "line 100: 4 columns, expected 2; mend the line"),
     ("c.csv", "0,1,1,5\n", "line 1: 4 columns, expected 2; pass --columns source,destination,weight")],
)  # fmt: skip
def test_lines_of_other_lengths_are_told_apart_from_a_third_column(name, text, said, tmp_path):
    with pytest.raises(InputError, match=re.escape(said)):
        read(tmp_path, name, text)


@pytest.mark.parametrize("block", range(1, 9))
def test_lines_end_alike_wherever_a_block_does(block, tmp_path):
    for content in (b"0 1\r\n1 0\r\r\n2 0\n\r3 0\r", b"\r", b"\r\r\n", b"0 1\r\n", b"0 1", b"\r\n\r\n1 0\r\r\r"):
        (tmp_path / "e.txt").write_bytes(content)
        plain = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        found, line = b"", 1
        for data, first in text_lines.read_lines(tmp_path / "e.txt", block=block):
            assert first == line and data.endswith(b"\n")
            found, line = found + data, line + data.count(b"\n")
        assert found == (plain if plain.endswith(b"\n") else plain + b"\n")
