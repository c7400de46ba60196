"""Streams and waits: which stream does an operation, and what must be ordered between streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tests.ledger.folds import Key, end_of, units_of
from tests.ledger.form import Alloc, Call, Copy, Op

HERE = "dispatch", 0  # the thread that gives streams their work
ON = {  # the stream that copies between two spaces, of a device or of all
    ("host", "device"): "load", ("staging", "device"): "load", ("window", "device"): "load",
    ("device", "host"): "flush", ("device", "staging"): "flush", ("device", "window"): "flush",
    ("staging", "host"): "host", ("staging", "window"): "host", ("window", "host"): "host",
    ("host", "rank"): "host",
    ("window", "window"): "disk", ("host", "window"): "disk", ("disk", "window"): "disk", ("window", "disk"): "disk",
    ("host", "staging"): "dispatch", ("rank", "host"): "dispatch",
}  # fmt: skip


def stream_of(x: Copy | Call, *, staged: bool) -> tuple[str, int]:
    """Which stream does it. Where device and host share their memory, only the disk has one of its own."""
    if isinstance(x, Call):
        kind = x.where.kind
        name = "compute" if kind == "device" else "disk" if kind == "window" else "dispatch"
        number = x.where.number if kind == "device" else 0
    else:
        src, dst = x.src.space, x.dst.space
        if src.kind == dst.kind == "device":
            adds_here = x.src.space == x.dst.space or x.adds
            name, number = ("compute", src.number) if adds_here else ("load", dst.number)
        else:
            name = ON[src.kind, dst.kind]
            number = dst.number if name == "load" else src.number if name == "flush" else 0
    return (name, number) if staged or name == "disk" else HERE


# ---------------------------------------------------------------------------------------------------------------- waits


def waits(ops: Sequence[Op], *, staged: bool) -> tuple[np.ndarray, np.ndarray]:
    """What must be ordered between streams, from what every operation reads and writes.

    Returns:
        int64 [K, 2]: the first operation must be done before the second begins; and the same of two that add to the
        same rows of a device, which need no order if they add atomically.
    """
    sizes = _sizes(ops)
    written: dict[Key, np.ndarray] = {}
    read: dict[tuple[Key, tuple[str, int]], np.ndarray] = {}
    added: dict[tuple[Key, tuple[str, int]], np.ndarray] = {}
    streams: dict[Key, set[tuple[str, int]]] = defaultdict(set)
    pairs: set[tuple[int, int]] = set()
    adding: set[tuple[int, int]] = set()

    def last(table: dict, key: object, rows: object) -> set[int]:
        return set(np.unique(table[key][rows]).tolist()) - {-1} if key in table else set()

    for k, x in enumerate(ops):
        if not isinstance(x, Copy | Call):
            continue
        stream = stream_of(x, staged=staged)
        atomic = isinstance(x, Copy) and x.src.space.kind == x.dst.space.kind == "device" and x.adds
        for is_write, refs in ((False, x.reads), (True, x.writes)):
            for ref in refs:
                key, rows = ref.key, units_of(ref.rows)
                adds = atomic and ref is x.dst
                if adds and not is_write:
                    continue
                before = last(written, key, rows)
                for other in streams[key]:
                    before |= set() if adds else last(added, (key, other), rows)
                    before |= last(read, (key, other), rows) if is_write else set()
                    adding |= {(j, k) for j in last(added, (key, other), rows) if other != stream} if adds else set()
                pairs |= {(j, k) for j in before if j != k}
                streams[key].add(stream)
                table, at = (added, (key, stream)) if adds else (written, key) if is_write else (read, (key, stream))
                if at not in table:
                    table[at] = np.full(sizes[key], -1, dtype=np.int64)
                table[at][rows] = k
    apart = {(j, k) for j, k in pairs if stream_of(ops[j], staged=staged) != stream_of(ops[k], staged=staged)}
    return _pairs(apart), _pairs(adding)


def placed_waits(ops: Sequence[Op], pairs: np.ndarray, *, staged: bool) -> list[tuple[int, int]]:
    """Few waits that order all pairs: before the second operation its stream waits until the first is done."""
    found: list[tuple[int, int]] = []
    _run_streams(ops, pairs, found, staged=staged, places=True)
    return found


def unordered(
    ops: Sequence[Op], pairs: np.ndarray, placed: list[tuple[int, int]], *, staged: bool
) -> list[tuple[int, int]]:
    """The pairs that these waits do not order."""
    return _run_streams(ops, pairs, placed, staged=staged, places=False)


def _run_streams(
    ops: Sequence[Op], pairs: np.ndarray, placed: list[tuple[int, int]], *, staged: bool, places: bool
) -> list[tuple[int, int]]:
    """Vector clocks, by stream: how much each knows to be done. Work is given to streams by the dispatching thread."""
    on = {k: stream_of(x, staged=staged) for k, x in enumerate(ops) if isinstance(x, Copy | Call)}
    number = {stream: k for k, stream in enumerate({HERE: None} | dict.fromkeys(on.values()))}
    clock, done = np.zeros((len(number), len(number)), np.int64), dict[int, np.ndarray]()
    needs, held = defaultdict(list), defaultdict(list)
    for table, every in ((needs, pairs.tolist()), (held, placed)):
        for j, k in every:
            table[k].append(j)
    left = []
    for k, stream in on.items():
        own = clock[number[stream]]
        np.maximum(own, clock[0], out=own)
        for j in held[k]:
            np.maximum(own, done[j], out=own)
        for j in sorted(needs[k], reverse=True):
            other = number[on[j]]
            if own[other] < done[j][other]:
                left.append((j, k))
                if places:
                    placed.append((j, k))
                    np.maximum(own, done[j], out=own)
        own[number[stream]] += 1
        done[k] = own.copy()
    return left


def _pairs(found: set[tuple[int, int]]) -> np.ndarray:
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


def _sizes(ops: Sequence[Op]) -> dict[Key, int]:
    sizes: dict[Key, int] = defaultdict(lambda: 1)
    for x in ops:
        for ref in (*x.reads, *x.writes) if isinstance(x, Copy | Call) else (x.ref,):
            sizes[ref.key] = max(sizes[ref.key], end_of(ref.rows), x.rows if isinstance(x, Alloc) else 1)
    return sizes
