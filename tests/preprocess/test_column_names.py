"""What a table's third column holds: by its name weights or the types of edges, else as a note says."""

from __future__ import annotations

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.open import read_input
from tests.preprocess.test_text import read

TYPED = (
    "head,tail,relation_id", "head,tail,rel_id", "h,t,r", "head,tail,r", "s,o,p", "src,dst,pred", "from,to,property",
    "src,dst,label", "src,dst,edge_label", "source,target,relationType", "src,dst,rel_type", "source,target,edge_kind",
    "_from,_to,relationship_id", "src,dst,predicate_uri", "src,dst,etype_id", "src,dst,typeId",
)  # fmt: skip
WEIGHTED = (
    "src,dst,w", "src,dst,value", "protein1,protein2,combined_score", "from,to,distance", "u,v,edge_weight",
    "src,dst,count", "source,target,wt",
)  # fmt: skip
UNKNOWN = ("src,dst,year", "src,dst,edge_id", "gene_a,gene_b,r", "src,dst,timestamp")
THIRD = [5, 7, 5]


def load(tmp_path, ending, header, third=THIRD, columns=None, **settings):
    """Weights and types of edges of the ring, from a table of that ending."""
    table = pyarrow.table(dict(zip(header.split(","), ([0, 1, 2], [1, 2, 0], third), strict=True)))
    file = tmp_path / f"e{ending}"
    if ending == ".csv":
        rows = zip(*table.to_pydict().values(), strict=True)
        file.write_text("".join(",".join(map(str, row)) + "\n" for row in [header.split(","), *rows]))
    elif ending == ".parquet":
        pyarrow.parquet.write_table(table, file)
    else:
        pyarrow.feather.write_feather(table, file)
    given = {"features": "degree", "labels": "random:2", "random_split": (0.5, 0.2, 0.3), "partitions": 1, "chunks": 1}
    raw = read_input(
        file, PreprocessConfig(columns=columns and tuple(columns.split(",")), **given, **settings), tmp_path
    )
    assert np.array(raw.edges).tolist() == [[0, 1, 2], [1, 2, 0]]
    return [None if piece is None else np.array(piece).tolist() for piece in (raw.edge_weight, raw.edge_type)]


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".feather"])
@pytest.mark.parametrize("header", [*TYPED, *WEIGHTED, *UNKNOWN])
def test_the_third_column_is_what_its_name_says(header, ending, tmp_path, capsys):
    weight, kind = load(tmp_path, ending, header, columns=header)
    said = capsys.readouterr().err
    assert (weight, kind) == ((None, THIRD) if header in TYPED else (THIRD, None))
    name = header.split(",")[2]
    expected = f"column {name!r} is read as weights; if it has the type of each edge, rename it to 'relation'"
    assert (expected in said) == (header in UNKNOWN) and said.count("\n") == (header in UNKNOWN)


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("header", ["head,tail,relation_id", "src,dst,label", "src,dst,w", "src,dst,year"])
def test_a_third_column_that_is_not_read_is_named(header, ending, tmp_path, capsys):
    assert load(tmp_path, ending, header) == [None, None]
    said, name = capsys.readouterr().err, header.split(",")[2]
    what = {"w": "weights", "year": None}.get(name, "the type of each edge")
    assert (f"column {name!r} is not read; --columns {header} takes it as {what}" in said) == (what is not None)
    assert what or not said


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".feather"])
@pytest.mark.parametrize("name", ["r", "c", "relation"])
def test_text_under_any_other_name_is_types_of_edges(ending, name, tmp_path, capsys):
    header, third = f"src,dst,{name}", ["x", "y", "x"]
    given = third if ending == ".csv" else pyarrow.array(third).dictionary_encode()
    assert load(tmp_path, ending, header, given, columns=header) == [None, [0, 1, 0]]
    said = capsys.readouterr().err
    assert (f"column {name!r} holds text, and is read as the type of each edge" in said) == (name != "relation")
    with pytest.raises(InputError, match=r"weight 'x', expected a number|'w' is .*, expected numbers for weights"):
        load(tmp_path, ending, "src,dst,w", given, columns="src,dst,w")


def test_relations_are_not_taken_for_weights_by_position(tmp_path):
    with pytest.raises(InputError, match=r"column 'r' has the type of each edge, expected weights; .*, h,t,r where"):
        load(tmp_path, ".csv", "h,t,r", columns="source,destination,weight")
    with pytest.raises(InputError, match="column 'relation_id' has the type of each edge"):
        load(tmp_path, ".csv", "a,b,relation_id", columns="source,destination,weight")


@pytest.mark.parametrize(("content", "header"), [
    ("a,x,b\nb,y,a\n", "head,relation,tail"), ("a,b,x\nb,a,y\n", "head,tail,relation"), ("a,5,b\nb,7,a\n", "h,r,t"),
])  # fmt: skip
def test_triples_without_names_need_a_line_of_them(content, header, tmp_path):
    columns = ("h", "t", "r") if header.startswith("h,") else ("head", "tail", "relation")
    with pytest.raises(InputError, match="put one before the first that does, in the order of the columns, such as"):
        read(tmp_path, "e.csv", content, relabel=True, columns=columns)
    assert read(tmp_path, "e.csv", f"{header}\n{content}", relabel=True, columns=columns) == [("a", "b"), ("b", "a")]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize(("columns", "order"), [
    ("head,relation,tail", "head,tail,relation"), ("subject,predicate,object", "subject,object,predicate"),
    ("h,r,t", "h,t,r"), ("src,weight,dst", "src,dst,weight"), ("weight,source,target", "source,target,weight"),
])  # fmt: skip
def test_an_end_of_an_edge_is_not_read_as_its_type(columns, order, ending, tmp_path):
    with pytest.raises(InputError, match=f"the type or weight of each edge, .*; pass --columns {order}"):
        load(tmp_path, ending, order, columns=columns)
    assert load(tmp_path, ending, order, columns=order) in ([THIRD, None], [None, THIRD])


def test_single_letters_name_the_ends_of_triples(tmp_path):
    for header in ("h,r,t", "s,p,o"):
        assert read(tmp_path, "e.csv", f"{header}\na,x,b\nb,y,a\n", relabel=True) == [("a", "b"), ("b", "a")]
    assert read(tmp_path, "e.csv", "h,t\nt,h\n", relabel=True) == [("h", "t"), ("t", "h")]


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".feather"])
@pytest.mark.parametrize("name", ["weight", "Weight", "WEIGHT", " weight"])
def test_weights_are_found_in_whatever_case(name, ending, tmp_path):
    assert load(tmp_path, ending, f"Source,Target,{name}") == [THIRD, None]


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".tsv"])
def test_several_columns_of_weights_are_refused_unless_one_has_the_name(ending, tmp_path):
    """By their names as they stand in the file; the line that the message has reads one."""

    def table(first, second):
        path = tmp_path / f"e{ending}"
        if ending == ".parquet":
            pyarrow.parquet.write_table(
                pyarrow.table({"src": [0, 1], "dst": [1, 0], first: [1, 2], second: [3, 4]}), path
            )
        else:
            between = "," if ending == ".csv" else "\t"
            path.write_text(
                "".join(between.join(row) + "\n" for row in (("src", "dst", first, second), "0113", "1024"))
            )
        return path

    def weights(path, columns=None):
        return np.array(read_input(path, PreprocessConfig(features="degree", columns=columns), tmp_path).edge_weight)

    with pytest.raises(InputError, match=r"2 columns 'Weight' and 'WEIGHT', expected one.*,Weight takes the first"):
        weights(table("Weight", "WEIGHT"))
    assert weights(table("Weight", "WEIGHT"), ("src", "dst", "Weight")).tolist() == [1, 2]
    assert weights(table("Weight", "weight")).tolist() == [3, 4]
