"""Edge tables in Parquet, Arrow and Feather files, or folders of such parts as Spark writes them, read batch by batch
(needs pyarrow, an optional extra)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hongtu.config import size
from hongtu.errors import InputError
from hongtu.host import available_bytes, taking_at_most
from hongtu.preprocess.read.formats import column_names
from hongtu.preprocess.read.formats.text import ENDINGS as TEXT
from hongtu.preprocess.read.formats.text_lines import ending_of
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import EdgeBlock, NotIntegers, as_integers

ENDINGS = (".parquet", ".arrow", ".feather")
ROWS = 1 << 20  # of a batch
HIDDEN = ("_", ".")  # what Spark leaves beside parts, such as _SUCCESS, starts so


def is_parts(path: Path) -> bool:
    """Whether a folder holds the parts of one table and nothing else."""
    if not path.is_dir():
        return False
    files = _parts(path)
    named = ending_of(path) in ENDINGS or not any(file.stem == "edges" for file in files)
    return bool(files) and named and all(ending_of(file) in ENDINGS for file in files)


def explain_folder(path: Path) -> str | None:
    """Why a folder that holds tables or text is read as neither; None where it holds none."""
    if not path.is_dir():
        return None
    files = _parts(path)
    divided = [file.name for file in files if file.is_dir() and "=" in file.name]
    parts = [file.name for file in files if ending_of(file) in ENDINGS]
    others = [file.name for file in files if file.name not in parts]
    if divided:
        return (
            f"{divided[0]}: a folder of partitionBy; write the table as one file, "
            "pyarrow.parquet.write_table(pyarrow.parquet.read_table(path), 'edges.parquet')"
        )
    found = [name for name in (*parts, *others) if ending_of(Path(name)) in (*ENDINGS, *TEXT)]
    if not found:
        return None
    more = f"or leave only the parts of one table there, without {others[0]}" if parts else "with all parts in one"
    return f"expected a file edges{ending_of(Path(found[0]))}, found {found[0]}; rename it, {more}"


def _parts(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if not file.name.startswith(HIDDEN))


def open_table(path: Path, names: tuple[str, ...] | None) -> RawGraph:
    """A table with one row per edge, in one file or in a folder of parts, which follow one another by name.

    Args:
        path: the file, or the folder.
        names: of the source, destination and, with a third, weight or relation column. None: those that are named as
            the ends of an edge are (:func:`~.column_names.find_ends`), and "weight" where there is one.

    Raises:
        InputError: when pyarrow is absent, a file is unreadable, or a column is missing or of a wrong type.
    """
    try:
        import pyarrow  # noqa: F401 - only to say what is missing
    except ImportError:
        raise InputError(
            f"{path}: needs pyarrow; run `pip install 'hongtu[arrow]'`, or write the edges as .csv"
        ) from None
    column_names.check_order(path, names)
    files = _parts(path)
    first = _schema(files[0])
    table, present = _find_columns(files[0], first, list(names or ())), first.names
    for file in files[1:]:
        schema = _schema(file)
        if names is None and {*schema.names} != {*present}:
            raise InputError(
                f"{file}: columns {', '.join(schema.names)}, and {files[0].name} has {', '.join(present)}; write all "
                f"parts with the same columns, or pass --columns {','.join(table.names[:2])} to read these of each"
            )
        if _find_columns(file, schema, table.names).typed != table.typed:
            raise InputError(f"{file}: column {table.names[2]!r} is text in some parts and numbers in others; cast it")
    notes = column_names.say_third(path, table.names, typed=table.typed)
    notes += column_names.say_unread(path, present, table.names) if names is None else []
    return RawGraph(
        title=str(path),
        notes=notes,
        blocks=lambda as_text: itertools.chain(*(_blocks(f, table, as_text) for f in files)),
    )


class _Table(NamedTuple):
    names: list[str]  # of the columns that are read
    typed: bool  # whether the third has types of edges


def _schema(path: Path) -> Any:
    try:
        schema, _ = _open(path, [])
        schema.names  # noqa: B018 - may be no text
        return schema
    except Exception as error:  # Arrow's, but also of file systems and of names that are no text
        raise InputError(f"{path}: not a readable {ending_of(path)} file ({_reason(error)}); write it again") from None


def _find_columns(path: Path, schema: Any, names: list[str]) -> _Table:
    """The columns to read of a file: those of ``names``, or where there are none by their names."""
    present = schema.names
    if not names:
        ends = None if {*column_names.STANDARD[:2]} <= {*present} else column_names.find_ends(present)
        names = [*column_names.STANDARD[:2]] if ends is None else [present[end] for end in ends]
        names += column_names.find_weights(path, present)
    for name in names:
        column_names.position(path, present, name)
    kind = schema.field(names[2]).type if len(names) == 3 else None
    typed = column_names.is_relation(names, text=kind is not None and _holds_text(kind))
    if kind is not None and not typed and not _is_number(kind):
        raise InputError(
            f"{path}: column {names[2]!r} is {kind}, expected numbers for weights; cast it, or leave it out with "
            f"--columns {','.join(names[:2])}"
        )
    return _Table(names, typed)


def _holds_text(kind: Any) -> bool:
    import pyarrow

    return _is_text(kind.value_type if pyarrow.types.is_dictionary(kind) else kind)


def _is_number(kind: Any) -> bool:
    import pyarrow

    return pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)


def _open(path: Path, columns: list[str]) -> tuple[Any, Iterator[Any]]:
    """The schema, and the batches as a stream."""
    if ending_of(path) == ".parquet":
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        return file.schema_arrow, _parquet(path, columns, file.schema_arrow, file.metadata.num_rows)
    import pyarrow

    mapped = pyarrow.memory_map(str(path))
    try:
        table = pyarrow.ipc.open_file(mapped)
        return table.schema, (table.get_batch(k) for k in range(table.num_record_batches))
    except pyarrow.ArrowInvalid:
        mapped.seek(0)
        stream = pyarrow.ipc.open_stream(mapped)
        return stream.schema, iter(stream)


def _parquet(path: Path, columns: list[str], schema: Any, rows: int) -> Iterator[Any]:
    """Batches of a Parquet file, each column read on its own: where the counts of a damaged one disagree, Arrow takes
    values of different rows together, and ends the process where it is asked for the counts.

    Raises:
        ValueError: when the columns are not of so many rows each.
    """
    import pyarrow.parquet

    # text as dictionaries: a long one that stands in every row of a small file is not copied for each
    text = [name for name in columns if _is_text(schema.field(name).type)]
    files = [pyarrow.parquet.ParquetFile(path, memory_map=True, read_dictionary=text) for _ in columns]
    count = 0
    for parts in itertools.zip_longest(*(f.iter_batches(ROWS, columns=[name]) for f, name in zip(files, columns))):
        if len({0 if part is None else part.num_rows for part in parts}) > 1:
            raise ValueError("columns of different lengths")
        count += parts[0].num_rows
        yield pyarrow.RecordBatch.from_arrays([part.column(0) for part in parts], names=columns)
    if count != rows:
        raise ValueError(f"{count} rows where its end says {rows}")


def _blocks(path: Path, table: _Table, as_text: bool) -> Iterator[EdgeBlock]:
    first, (names, typed), available = 0, table, available_bytes()
    try:
        batches = _open(path, names)[1]
        while True:
            with taking_at_most(available):  # a batch may unpack to any size
                batch = next(batches, None)
            if batch is None:
                return
            given = batch.select(names)
            given.validate(full=True)  # mapped from the file as it is: offsets and indices may be anything
            for lo in range(0, given.num_rows, ROWS):
                arrays = given.slice(lo, ROWS).columns
                for name, array in zip(names, arrays, strict=True):
                    if array.null_count:
                        row = first + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
                        raise InputError(f"{path}: row {row}: {name!r} is null, expected a value; drop the row")

                def where(k: int, first: int = first) -> str:
                    return f"{path}: row {first + k}"

                ids = [_ids(path, name, array, as_text, where) for name, array in zip(names, arrays[:2])]
                weight = _plain(arrays[2]).to_numpy(zero_copy_only=False) if len(names) == 3 and not typed else None
                relation: Any = _ids(path, names[2], arrays[2], True, where) if typed else None
                yield EdgeBlock(ids[0], ids[1], weight, where, relation)
                first += len(arrays[0])
    except InputError:
        raise
    except MemoryError:
        raise InputError(
            f"{path}: what follows row {first} takes more than the {size(available or 0)} of memory that is there; "
            "write it in smaller batches"
        ) from None
    except Exception as error:
        raise InputError(f"{path}: damaged after row {first} ({_reason(error)}); write it again") from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _plain(array: Any) -> Any:
    import pyarrow

    return array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array


def _ids(path: Path, name: str, array: Any, as_text: bool, where: Callable[[int], str]) -> np.ndarray | list[str]:
    import pyarrow

    kind, values = array.type, array
    if pyarrow.types.is_dictionary(kind):
        kind, values = kind.value_type, array.dictionary
    if pyarrow.types.is_integer(kind) and not as_text:
        return as_integers(f"{path}: column {name!r}", _plain(array).to_numpy(zero_copy_only=False), where)
    if not as_text or not (pyarrow.types.is_integer(kind) or _is_text(kind)):
        remedy = "pass --relabel to read names" if _is_text(kind) else "cast it to int64"
        if pyarrow.types.is_nested(kind) or pyarrow.types.is_temporal(kind):
            remedy = "write an id in each row, as an integer, or as text with --relabel"
        raise (NotIntegers if _is_text(kind) else InputError)(
            f"{path}: column {name!r} is {kind}, expected integers; {remedy}"
        )
    try:
        names = _as_string(values).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{where(0)}: {name!r} holds an id that is not UTF-8 ({_reason(error)}); convert it") from None
    if None in names:  # of a dictionary; rows without a value were refused
        raise ValueError(f"{name!r} has a null among its values")
    return names if values is array else [names[k] for k in array.indices.to_pylist()]


def _as_string(values: Any) -> Any:
    """Text, or bytes that are checked to be UTF-8, as Arrow's text."""
    import pyarrow

    fixed = pyarrow.types.is_fixed_size_binary(values.type)
    return (values.cast(pyarrow.large_binary()) if fixed else values).cast(pyarrow.large_string())


def _is_text(kind: Any) -> bool:
    return str(kind).startswith(("string", "large_string", "binary", "large_binary", "fixed_size_binary"))
