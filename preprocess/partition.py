"""Which device owns which vertex. A registry of pure functions, those of METIS and KaMinPar among them, which get the
graph made undirected, without duplicates and self-loops, and balance one weight per vertex: in-edges (work of the
aggregate) and train membership (work of the loss and of what ``prune`` leaves) combined into one integer;
``partition_statistics`` reports the balance of each. METIS also balances vertices, in-edges and train vertices each by
itself, which cuts about a third more edges.

Each has the signature ``(in_edge_start, source, partitions, *, train_mask, seed) -> int32 [V]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.compiled import compiled
from hongtu.errors import InputError
from hongtu.files import lines_of, open_npy
from hongtu.graph.given import as_array
from hongtu.parallel import parallel_for
from hongtu.preprocess.bucket_sort import even_blocks, symmetric_neighbours, transpose
from hongtu.preprocess.parts import cut_graph, kaminpar_installed

PASSES = 10  # of the stream; fewer when nearly nothing moves any more
SETTLED = 0.002  # share of the vertices
ALONE = 1e-3  # neighbours that any vertex has anywhere, so that one without any goes where there is room
SLACK = 1.2  # how full a partition may be, over the mean: less room costs a multiple of the cut, METIS takes more
EDGE_SHARE, TRAIN_SHARE = 0.8, 0.2  # of the combined weight
RESOLUTION = 100  # mean combined weight, so that the rounding to integers does not matter
MAX_TOTAL_WEIGHT = 1 << 30  # METIS may be built with 32-bit integers
FORMS = "expected integers [V], the partition of every vertex from 0, in the order of their numbers"
METIS_SECONDS = (4, 54)  # per 10M edges, by graph
METIS_BYTES = 170  # per edge
METIS_EDGES = 20_000_000  # beyond this many another one is the default


def streaming_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The partition of every vertex, int32 [V], by a stream of them; deterministic, the seed is not used.

    Restreamed linear deterministic greedy, in O(V) memory: edges are only ever read in turn. Every vertex in turn, in
    id order, goes to the partition that holds most of its neighbours, weighed by the room that is left there (Stanton
    and Kliot 2012); the stream is repeated from what the last pass gave (Nishimura and Ugander 2013), the first from
    contiguous ranges, so that locality in the ids is kept. Room counts vertices, in-edges and train vertices: the
    fullest of the three decides.

    >>> # 1->0, 2->0, 0->2 and 4->3, 9->4, 3->5
    >>> start, source = np.array([0, 2, 2, 3, 4, 5, 6, 6, 6, 6, 6]), np.int32([1, 2, 0, 4, 9, 3])
    >>> streaming_partition(start, source, 2, train_mask=np.zeros(10, dtype=bool), seed=0).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    """
    num_vertices = len(in_edge_start) - 1
    graph = (in_edge_start, source, *transpose(in_edge_start, source))
    ranges = range_partition(in_edge_start, source, partitions, train_mask=train_mask, seed=seed)
    part: np.ndarray = ranges.astype(_number(partitions))
    weights = (np.ones(num_vertices), np.diff(in_edge_start) + 1, train_mask)
    load = np.stack([np.bincount(part, weights=weight, minlength=partitions) for weight in weights], axis=1)
    share = np.maximum(load.sum(axis=0), 1) / partitions
    for _ in range(PASSES):
        moved = _stream(*graph, train_mask, part, load, share)
        if moved <= SETTLED * num_vertices:
            break
    return part.astype(np.int32)


def _number(partitions: int) -> type:
    """The smallest type that names a partition: the array of parts, which is read at random, stays in the cache."""
    return np.uint8 if partitions <= 256 else np.int32


@compiled(plain=True)
def _stream(in_edge_start, source, out_start, reader, train_mask, part, load, share):
    """One pass; returns how many vertices moved."""
    m = len(load)
    near = np.empty(m, dtype=np.int64)
    moved = 0
    for v in range(len(part)):
        own = np.int64(part[v])
        weight = (1.0, in_edge_start[v + 1] - in_edge_start[v] + 1.0, np.float64(train_mask[v]))
        for k in range(3):
            load[own, k] -= weight[k]
        near[:] = 0
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            near[part[source[e]]] += source[e] != v
        for e in range(out_start[v], out_start[v + 1]):
            near[part[reader[e]]] += reader[e] != v
        best, most, emptiest = -1, -1.0, 0
        for p in range(m):
            full, after = 0.0, 0.0
            for k in range(3):
                full = max(full, load[p, k] / share[k])
                after = max(after, (load[p, k] + weight[k]) / share[k])
            score = (near[p] + ALONE) * (SLACK - full)
            if after <= SLACK and (score > most or (score == most and p == own)):
                best, most = p, score
            if load[p, 1] < load[emptiest, 1]:
                emptiest = p
        if best < 0:  # too large for any: it goes where there is most room
            best = emptiest
        for k in range(3):
            load[best, k] += weight[k]
        moved += best != own
        part[v] = best
    return moved


def range_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The range of each vertex; deterministic, needs nothing but the degrees.

    >>> range_partition(np.array([0, 3, 3, 3, 3]), np.int32([1, 2, 3]), 2, train_mask=None, seed=0).tolist()
    [0, 1, 1, 1]
    """
    work_before = in_edge_start[:-1] + np.arange(len(in_edge_start) - 1)
    total = in_edge_start[-1] + len(in_edge_start) - 1
    return (work_before * partitions // total).astype(np.int32)


def random_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """A random partition of every vertex; sizes differ by at most one."""
    part = np.arange(len(in_edge_start) - 1, dtype=np.int32) % np.int32(partitions)
    return np.random.default_rng(seed).permutation(part)


def weighted_partition(
    library: str, in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The library's partition of every vertex, int32 [V]; the same seed gives the same partition."""
    weights = vertex_weights(np.diff(in_edge_start), train_mask)
    return cut_graph(library, *symmetric_neighbours(in_edge_start, source), partitions, seed, weights)


def balanced_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """As :func:`weighted_partition` by METIS, with three weights of every vertex."""
    weights = np.stack([np.ones(len(train_mask), dtype=np.int64), np.diff(in_edge_start), train_mask], axis=1)
    weights = weights[:, weights.any(axis=0)]
    return cut_graph("metis", *symmetric_neighbours(in_edge_start, source), partitions, seed, weights)


def vertex_weights(in_degree: np.ndarray, train_mask: np.ndarray) -> np.ndarray:
    """``resolution * (0.8 * (1 + in-degree) / mean + 0.2 * is_train / mean is_train)``, rounded, at least 1.

    >>> vertex_weights(np.array([0, 2]), np.array([True, False])).tolist()
    [80, 120]
    """
    resolution = min(RESOLUTION, MAX_TOTAL_WEIGHT / len(in_degree))
    edges = (1 + in_degree) / (1 + in_degree).mean()
    train = train_mask / max(train_mask.mean(), 1e-12)
    weight = np.rint(resolution * (EDGE_SHARE * edges + TRAIN_SHARE * train))
    return np.maximum(weight, 1).astype(np.int64)


PARTITIONERS: dict[str, Callable[..., np.ndarray]] = {
    "metis": partial(weighted_partition, "metis"),
    "metis-balanced": balanced_partition,
    "kaminpar": partial(weighted_partition, "kaminpar"),
    "streaming": streaming_partition,
    "range": range_partition,
    "random": random_partition,
}


def choose_partitioner(name: str, num_edges: int) -> tuple[str, str]:
    """The partitioner that ``name`` stands for on a graph of this size, and what to tell the user (may be empty).

    >>> choose_partitioner("auto", 1000)
    ('metis', '')
    """
    installed = kaminpar_installed()
    if name == "auto" and num_edges <= METIS_EDGES:
        return "metis", ""
    if name == "auto" and not installed:
        advice = "`pip install 'hongtu[kaminpar]'` gets one that cuts fewer edges"
        return "streaming", f"{num_edges:,} edges are many for METIS: the streaming partitioner is used; {advice}"
    if name.startswith("metis") and num_edges > METIS_EDGES:
        low, high = (seconds * num_edges // 10_000_000 for seconds in METIS_SECONDS)
        needed = METIS_BYTES * num_edges / 2**30
        faster = "kaminpar" if installed else "streaming (or kaminpar: `pip install 'hongtu[kaminpar]'`)"
        advice = f"--partitioner {faster} takes a fraction"
        return name, f"METIS takes {low:,} to {high:,} s and {needed:.0f} GiB for {num_edges:,} edges; {advice}"
    return ("kaminpar" if name == "auto" else name), ""


def partition_vertices(
    name: str, in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The partition of every vertex, int32 [V]; a partition may be empty."""
    if partitions == 1:
        return np.zeros(len(in_edge_start) - 1, dtype=np.int32)
    return PARTITIONERS[name](in_edge_start, source, partitions, train_mask=train_mask, seed=seed)


def partition_statistics(
    part: np.ndarray, in_edge_start: np.ndarray, source: np.ndarray, partitions: int, train_mask: np.ndarray
) -> dict[str, Any]:
    """Stored edges between partitions and, for vertices, in-edges and train vertices, largest share / mean share."""
    counts = {
        "vertices": np.bincount(part, minlength=partitions),
        "in_edges": np.bincount(part, weights=np.diff(in_edge_start), minlength=partitions),
        "train": np.bincount(part[train_mask], minlength=partitions),
    }
    balance = {name: round(float(c.max() / max(c.mean(), 1e-12)), 4) for name, c in counts.items()}
    return {"edge_cut": _edge_cut(in_edge_start, source, part), "balance": balance}


def _edge_cut(in_edge_start: np.ndarray, source: np.ndarray, part: np.ndarray) -> int:
    bounds = even_blocks(in_edge_start, max(1, len(source) >> 20))
    cut = np.zeros(len(bounds) - 1, dtype=np.int64)

    def count(k: int) -> None:
        own = part[bounds[k] : bounds[k + 1]].repeat(np.diff(in_edge_start[bounds[k] : bounds[k + 1] + 1]))
        cut[k] = np.count_nonzero(part[source[in_edge_start[bounds[k]] : in_edge_start[bounds[k + 1]]]] != own)

    parallel_for(count, len(cut))
    return int(cut.sum())


def read_partition(source: Any) -> tuple[np.ndarray, str]:
    """The partition of every vertex, int32 [V], and what messages call it.

    Args:
        source: integers [V], or the path of a .npy file of such, or of text with one integer a line, as METIS writes
            ``graph.part.8``.
    """
    if not isinstance(source, str | Path):
        found, name = as_array("partitioner", source), "partitioner"
    else:
        file, name = Path(source), str(source)
        if not file.is_file():
            raise InputError(f"{name}: no such file, {FORMS}, as .npy or one a line; or name a partitioner")
        found = np.asarray(open_npy(file, FORMS)) if file.suffix == ".npy" else _read_lines(file)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise InputError(f"{name}: {found.dtype} of shape {found.shape}, {FORMS}")
    bad = np.flatnonzero((found < 0) | (found >= len(found)))
    if len(bad):
        raise InputError(f"{name}: [{bad[0]}] is {found[bad[0]]}, expected a partition from 0 to {len(found) - 1}")
    return found.astype(np.int32), name


def check_partition(part: np.ndarray, name: str, vertices: int, partitions: int) -> None:
    """Refuse one of another graph, or of more partitions than there are to be."""
    if len(part) != vertices:
        raise InputError(f"{name}: {len(part)} vertices, the graph has {vertices}; give the partition of every vertex")
    most = int(part.max())
    if most >= partitions:
        raise InputError(
            f"{name}: [{int(part.argmax())}] is {most}, expected 0 to {partitions - 1}; pass --partitions {most + 1}, "
            "or leave --partitions out"
        )


def _read_lines(file: Path) -> np.ndarray:
    try:
        with file.open(encoding="ascii") as stream:
            return np.fromiter(map(int, lines_of(stream)), dtype=np.int64)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: not readable ({str(error)[:200]}), {FORMS}, one a line") from None
