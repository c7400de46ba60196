"""Files made up by their own structure, decided by a random generator: headers that claim, bombs, pickles by their
instructions, JSON with values of other types, lines of text as tools write them."""

from __future__ import annotations

import copy
import gzip
import io
import json
import pickletools
import re
import struct
import zipfile
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from tests.faults.mutate import mutate

SIZES = (0, 1, 2, 3, 23, 24, 25, 60, 1000, 10**6, 10**8, 2**31 - 1, 2**31, 10**10, 2**62, 2**63, 10**25, -1)
KINDS = (
    "<i4",
    "<i8",
    ">i4",
    "<u8",
    "|b1",
    "|u1",
    "<f2",
    "<f4",
    "<f8",
    ">f8",
    "<c8",
    "|O",
    "<U3",
    "|S1",
    "|V8",
    "<M8[s]",
)
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 10**8, 2**63, 10**400, 0.5, float("nan"), "", "x", "\ud800", [], {},
                           [1], [[]], {"a": 1}, "x" * 10_000, 1e308)  # fmt: skip
NAMED = (
    "numpy dtype", "numpy ndarray", "numpy.core.multiarray scalar", "numpy.core.multiarray _reconstruct",
    "collections defaultdict", "_codecs encode", "builtins list", "builtins object", "builtins getattr", "os system",
    "copy_reg _reconstructor", "scipy.sparse.csr csr_matrix", "torch._utils _rebuild_tensor_v2", "numpy load",
    "torch._utils _rebuild_sparse_tensor", "torch FloatStorage", "collections OrderedDict",
)  # fmt: skip
INSTRUCTIONS = (
    *(b"c" + name.replace(" ", "\n").encode() + b"\n" for name in NAMED),
    *(bytes([code]) for code in b"(tldesuab}])NR02.1Q\x81\x85\x86\x87\x88\x89\x92\x93\x94"),
    b"h\x00", b"h\x05", b"q\x00", b"q\x07", b"r\xff\xff\xff\x7f", b"K\x01", b"J\xff\xff\xff\xff", b"M\xe8\x03",
    b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"G?\xf0" + bytes(6), b"U\x02i8", b"U\x02V8", b"U\x02O8", b"U\x01|", b"U\x01>",
    b"U\x08AAAAAAAA", b"T\xff\xff\xff\x7f", b"X\x02\x00\x00\x00f4", b"X\xff\xff\xff\xff", b"I01\n", b"L5L\n", b"F1.5\n",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f", b"C\x03abc", b"B\xff\xff\xff\xff", b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR",
    b"(K\x03U\x01|N(U\x01atN}K\x08K\x01K\x00tb",
)  # fmt: skip
WORDS = (
    "source", "dst", "src_id", "target", "weight", "head", "tail", "u", "v", "a", "b", "ä", "0", "1", "23", "24", "-1",
    "7", "1.0", "0.5", "1e3", "nan", "9" * 20, "2147483647", "100000000", "#a", "%b", "#", '"0"', '"a b"', '"a,b"',
    '""', "", "a b", "x" * 300, "\u00a0", "1_0", "{}", "None",
)  # fmt: skip
BETWEEN, ENDS = (",", "\t", ";", "|", " ", "  ", ", "), ("\n", "\r\n", "\r", "\n\n", " \n")
BOMB = 1 << 25  # bytes that a small gzip file unpacks to


def make(sample: bytes, rng: np.random.Generator) -> bytes:
    """A file with the structure of a valid one, and some of it otherwise."""
    if sample.startswith(b"\x93NUMPY"):
        return _array(sample, rng)
    if sample.startswith(b"PK"):
        return _archive(sample, rng)
    if sample.startswith(b"\x1f\x8b"):
        return gzip.compress(_bomb(rng) if rng.random() < 0.02 else make(gzip.decompress(sample), rng), 1)
    if sample.startswith(b"\x80"):
        return _pickle(sample, rng)
    if sample.startswith(b"{"):
        lines = sample.splitlines(keepends=True)
        if len(lines) == 1 or not lines[0].rstrip().endswith(b"}"):
            return _json(sample, rng)
        at = int(rng.integers(len(lines)))
        return b"".join([*lines[:at], _json(lines[at], rng) + b"\n", *lines[at + 1 :]])
    if sample.startswith(b"%%MatrixMarket"):
        return _market(sample, rng)
    if sample.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
        return _table(sample, rng)
    try:
        return _text(sample.decode(), rng)
    except UnicodeDecodeError:  # parts of archives
        return mutate(sample, rng)


def _choose(values: Any, rng: np.random.Generator) -> Any:
    return values[int(rng.integers(len(values)))]


def _array(sample: bytes, rng: np.random.Generator) -> bytes:
    """A header that claims another type or shape, over the same bytes."""
    length = struct.unpack("<H", sample[8:10])[0]
    header = eval(sample[10 : 10 + length], {"__builtins__": {}})  # of numpy's own writing
    shape = list(header["shape"])
    for _ in range(int(rng.integers(1, 3))):
        what = rng.random()
        if what < 0.3:
            header["descr"] = _choose(KINDS, rng)
        elif what < 0.8 and shape:
            shape[int(rng.integers(len(shape)))] = _choose(SIZES, rng)
        elif what < 0.9:
            shape.insert(int(rng.integers(len(shape) + 1)), _choose(SIZES, rng))
        else:
            header["fortran_order"] = _choose((True, False, 1, None), rng)
    text = repr(header | {"shape": tuple(shape)}).encode() + b"\n"
    return sample[:8] + struct.pack("<H", len(text)) + text + sample[10 + length :]


def _archive(sample: bytes, rng: np.random.Generator) -> bytes:
    """One member made up, left out, or a bomb."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(sample)) as before, zipfile.ZipFile(stream, "w") as after:
        names = before.namelist()
        changed, compression = _choose(names, rng), _choose((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), rng)
        for name in names:
            content = before.read(name)
            if name == changed and rng.random() < 0.05:
                continue
            if name == changed:
                bomb = rng.random() < 0.02
                content = _zeros(content) if bomb else make(content, rng)
            after.writestr(name, content, zipfile.ZIP_DEFLATED if len(content) > BOMB else compression)
    return stream.getvalue()


def _zeros(content: bytes) -> bytes:
    if not content.startswith(b"\x93NUMPY"):
        return bytes(BOMB)
    stream = io.BytesIO()
    np.save(stream, np.zeros(BOMB // 8))
    return stream.getvalue()


def _table(sample: bytes, rng: np.random.Generator) -> bytes:
    """Columns of other types, or with nothing in places, under other names; a million rows in few bytes."""
    rows = 10**6 if rng.random() < 0.02 else int(_choose((0, 1, 24, 60), rng))
    numbers = np.zeros(rows, np.int64) if rows > 60 else rng.integers(0, 24, rows)
    kinds = (
        *(numbers.astype(kind) for kind in ("i8", "i4", "u8", "i1", "f4", "f8", "b1", "M8[s]", "m8[ms]")),
        pyarrow.array(numbers, mask=numbers == 3), pyarrow.array(numbers).dictionary_encode(), pyarrow.nulls(rows),
        pyarrow.array(numbers).cast(pyarrow.string()), pyarrow.array(numbers).cast(pyarrow.decimal128(30)),
        pyarrow.array([[1]] * rows, pyarrow.list_(pyarrow.int64())), pyarrow.array([{"a": 1}] * rows),
        pyarrow.array(numbers - 1), pyarrow.array(numbers * 2**58, pyarrow.int64()), pyarrow.array([b"1"] * rows),
    )  # fmt: skip
    names = [name if rng.random() < 0.9 else _choose(WORDS, rng) for name in ("source", "destination", "weight")]
    columns = [numbers if rng.random() < 0.6 else _choose(kinds, rng) for _ in names]
    table = pyarrow.table(columns, names)
    stream = io.BytesIO()
    if sample.startswith(b"PAR1"):
        pyarrow.parquet.write_table(table, stream)
    else:
        form = pyarrow.ipc.new_file if sample.startswith(b"ARROW1") else pyarrow.ipc.new_stream
        with form(stream, table.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    return stream.getvalue() if rng.random() < 0.8 else mutate(stream.getvalue(), rng)


def _pickle(sample: bytes, rng: np.random.Generator) -> bytes:
    """Instructions left out, twice, exchanged, or others between them."""
    starts = [at for _, _, at in pickletools.genops(sample)]
    steps = [sample[a:b] for a, b in zip(starts, [*starts[1:], len(sample)], strict=True)]
    for _ in range(int(rng.integers(1, 5))):
        at, what = int(rng.integers(1, max(2, len(steps)))), rng.random()
        if what < 0.5:
            steps.insert(at, _choose(INSTRUCTIONS, rng))
        elif what < 0.65:
            del steps[at : at + int(rng.integers(1, 4))]
        elif what < 0.8:
            steps[at:at] = steps[at : at + int(rng.integers(1, 9))] * int(rng.integers(1, 4))
        elif at < len(steps):
            steps[at] = _choose((*INSTRUCTIONS, mutate(steps[at], rng)), rng)
    return b"".join(steps)


def _json(sample: bytes, rng: np.random.Generator) -> bytes:
    """Values of other types, names that are gone or new."""
    whole = {"": json.loads(sample)}
    for _ in range(int(rng.integers(1, 4))):
        holder: Any = whole
        key: Any = ""
        while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.9:
            holder = holder[key]
            key = _choose(sorted(holder) if isinstance(holder, dict) else range(len(holder)), rng)
        what = rng.random()
        if what < 0.1 and holder is not whole:
            del holder[key]
        elif what < 0.2 and isinstance(holder, dict) and holder is not whole:
            holder[str(_choose(VALUES, rng))] = copy.deepcopy(_choose(VALUES, rng))
        else:
            holder[key] = copy.deepcopy(_choose(VALUES, rng))  # what lies inside one is changed in turn
    return json.dumps(whole[""], ensure_ascii=bool(rng.random() < 0.5)).encode(errors="surrogatepass")


def _market(sample: bytes, rng: np.random.Generator) -> bytes:
    """Another banner, other sizes, other entries."""
    lines = sample.split(b"\n")
    for _ in range(int(rng.integers(1, 3))):
        at = int(rng.integers(min(len(lines), 6)))
        words = lines[at].split() or [b"1"]
        words[int(rng.integers(len(words)))] = _choose(
            (b"symmetric", b"general", b"hermitian", b"array", b"integer", b"%", *(str(n).encode() for n in SIZES)), rng
        )
        lines[at] = _choose((b" ", b"\t", b"  "), rng).join(words)
    return b"\n".join(lines)


def _text(text: str, rng: np.random.Generator) -> bytes:
    """Some lines of the sample, by another delimiter perhaps, among comments, names and words that tools write."""
    own = next((byte for byte in ",\t;" if byte in text), " ")
    between, end = _choose((own, own, *BETWEEN), rng), _choose(ENDS, rng)
    rows = [re.split(r"[,\t ]+", line) for line in text.splitlines()[: int(rng.integers(1, 70))] if line[:1] != "#"]
    for _ in range(int(rng.integers(0, 4))):
        at = int(rng.integers(len(rows) + 1)) if rng.random() < 0.6 else 0
        width = int(rng.integers(1, 5)) if rng.random() < 0.3 or not rows else len(rows[0])
        new = [_choose(WORDS, rng) for _ in range(width)]
        rows[at : at + int(rng.integers(0, 2))] = [
            [f"{_choose('#%', rng)}{new[0]}", *new[1:]] if rng.random() < 0.3 else new
        ]
    content = end.join(between.join(row) for row in rows).encode()
    return content if rng.random() < 0.8 else mutate(content, rng)


def _bomb(rng: np.random.Generator) -> bytes:
    """One long line, or many lines of nothing or next to it."""
    unit = _choose((b"0", b" ", b"\n", b"#\n", b"# a\n", b"\r", b"0,", b"\t", b"\x00", b'"', b"0 1"), rng)
    return b"0 1\n" * int(rng.integers(0, 3)) + unit * (BOMB // len(unit))
