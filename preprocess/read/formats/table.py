"""Edge tables in Parquet, Arrow and Feather files, read batch by batch (needs pyarrow, an optional extra)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import EdgeBlock, NotIntegers, as_integers

ENDINGS = (".parquet", ".arrow", ".feather")
ROWS = 1 << 20  # of a batch
DEFAULT_COLUMNS = ("source", "destination")


def open_table(path: Path, names: tuple[str, ...] | None) -> RawGraph:
    """A table with one row per edge; arguments as of ``open_text``, by default the columns "source", "destination"
    and, where there is one, "weight".

    Raises:
        InputError: when pyarrow is absent, the file is unreadable, or a column is missing or of a wrong type.
    """
    try:
        import pyarrow  # noqa: F401 - only to say what is missing
    except ImportError:
        raise InputError(
            f"{path}: needs pyarrow; run `pip install 'hongtu[arrow]'`, or write the edges as .csv"
        ) from None
    try:
        schema, _ = _open(path, [])
        present = schema.names
    except Exception as error:  # Arrow's, but also of file systems and of names that are no text
        raise InputError(f"{path}: not a readable {path.suffix} file ({_reason(error)}); write it again") from None
    if names is None:
        names = (*DEFAULT_COLUMNS, "weight") if "weight" in present else DEFAULT_COLUMNS
    for name in names:
        if name not in present:
            found = ", ".join(present) or "none"
            raise InputError(
                f"{path}: no column {name!r}, found {found}; name others with --columns SOURCE,DESTINATION"
            )
        if present.count(name) > 1:
            raise InputError(f"{path}: {present.count(name)} columns {name!r}, expected one; rename the others")
    if len(names) == 3 and not _is_number(schema.field(names[2]).type):
        raise InputError(f"{path}: column {names[2]!r} is {schema.field(names[2]).type}, expected numbers for weights")
    return RawGraph(title=str(path), blocks=lambda as_text: _blocks(path, list(names), as_text))


def _is_number(kind: Any) -> bool:
    import pyarrow

    return pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)


def _open(path: Path, columns: list[str]) -> tuple[Any, Iterator[Any]]:
    """The schema, and the batches as a stream."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        return file.schema_arrow, _parquet(path, columns, file.metadata.num_rows)
    import pyarrow

    mapped = pyarrow.memory_map(str(path))
    try:
        table = pyarrow.ipc.open_file(mapped)
        return table.schema, (table.get_batch(k) for k in range(table.num_record_batches))
    except pyarrow.ArrowInvalid:
        mapped.seek(0)
        stream = pyarrow.ipc.open_stream(mapped)
        return stream.schema, iter(stream)


def _parquet(path: Path, columns: list[str], rows: int) -> Iterator[Any]:
    """Batches of a Parquet file, each column read on its own: where the counts of a damaged one disagree, Arrow takes
    values of different rows together, and ends the process where it is asked for the counts.

    Raises:
        ValueError: when the columns are not of so many rows each.
    """
    import pyarrow.parquet

    files = [pyarrow.parquet.ParquetFile(path, memory_map=True) for _ in columns]
    count = 0
    for parts in itertools.zip_longest(*(f.iter_batches(ROWS, columns=[name]) for f, name in zip(files, columns))):
        if len({0 if part is None else part.num_rows for part in parts}) > 1:
            raise ValueError("columns of different lengths")
        count += parts[0].num_rows
        yield pyarrow.RecordBatch.from_arrays([part.column(0) for part in parts], names=columns)
    if count != rows:
        raise ValueError(f"{count} rows where its end says {rows}")


def _blocks(path: Path, names: list[str], as_text: bool) -> Iterator[EdgeBlock]:
    first = 0
    try:
        for batch in _open(path, names)[1]:
            given = batch.select(names)
            given.validate(full=True)  # mapped from the file as it is: offsets and indices may be anything
            for lo in range(0, given.num_rows, ROWS):
                arrays = [_plain(array) for array in given.slice(lo, ROWS).columns]
                for name, array in zip(names, arrays, strict=True):
                    if array.null_count:
                        row = first + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
                        raise InputError(f"{path}: row {row}: {name!r} is null, expected a value; drop the row")

                def where(k: int, first: int = first) -> str:
                    return f"{path}: row {first + k}"

                ids = [_ids(path, name, array, as_text, where) for name, array in zip(names, arrays[:2])]
                weight = arrays[2].to_numpy(zero_copy_only=False) if len(names) == 3 else None
                yield EdgeBlock(ids[0], ids[1], weight, where)
                first += len(arrays[0])
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: damaged after row {first} ({_reason(error)}); write it again") from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _plain(array: Any) -> Any:
    import pyarrow

    return array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array


def _ids(path: Path, name: str, array: Any, as_text: bool, where: Callable[[int], str]) -> np.ndarray | list[str]:
    import pyarrow

    if pyarrow.types.is_integer(array.type) and not as_text:
        return as_integers(f"{path}: column {name!r}", array.to_numpy(zero_copy_only=False), where)
    if not as_text or not (pyarrow.types.is_integer(array.type) or _is_text(array.type)):
        remedy = "pass --relabel to read names" if _is_text(array.type) else "cast it to int64"
        raise (NotIntegers if _is_text(array.type) else InputError)(
            f"{path}: column {name!r} is {array.type}, expected integers; {remedy}"
        )
    return array.cast(pyarrow.large_string()).to_pylist()  # UTF-8, as Arrow has checked


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")
