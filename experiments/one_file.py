"""hongtu in one file: exact full-graph training of a GCN with a small cache, in numpy alone.

    python -m experiments.one_file

Rows of vertices live on the host. A device has room for a few of them, the slots of its cache. Chunks of destination
vertices come one after the other; every chunk needs the rows of all its sources. Which chunk comes when is known before
the first epoch, so that it is planned which row is loaded when, into which slot, and until when it stays. Backward is
the same plan read from its end: where a row was evicted, its gradient begins as zero, and where it was loaded, its
gradient is flushed and added on the host.

Legend: V vertices, E edges, C columns; m devices with n chunks each; D destinations and S sources of a chunk.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np


@dataclass
class Interval:
    """One stay of a row in a slot: from the batch that brings it to the last batch that reads it there."""

    row: int
    slot: int
    first: int
    last: int
    peer: "tuple[int, Interval] | None" = None  # the device that has the row already, and its stay; None: from the host


@dataclass
class Chunk:
    """Destinations in [first, end) with all their in-edges."""

    first: int
    end: int
    sources: np.ndarray  # int [S], distinct
    destination: np.ndarray  # int [E of the chunk], from 0 on
    source: np.ndarray  # int [E of the chunk], positions in ``sources``
    weight: np.ndarray  # float [E of the chunk]
    slots: np.ndarray = field(default_factory=lambda: np.empty(0, int))  # int [S], where the plan has them


def cut(edges, weight, bounds):
    """Two levels (paper 4.1): ``bounds[i]`` are the m partitions' ranges of vertices, cut into n chunks."""
    found = []
    for starts in bounds:
        found.append([])
        for first, end in pairwise(starts):
            own = (edges[1] >= first) & (edges[1] < end)
            sources, source = np.unique(edges[0, own], return_inverse=True)
            found[-1].append(Chunk(first, end, sources, edges[1, own] - first, source, weight[own]))
    return found


def plan(chunks, capacity):
    """Stays of rows in one device's slots: what is evicted is what is needed the latest (Belady)."""
    uses = {}
    for batch, chunk in enumerate(chunks):
        for row in chunk.sources:
            uses.setdefault(row, []).append(batch)
    here, free, stays = {}, list(range(capacity)), []
    for batch, chunk in enumerate(chunks):
        needed = set(chunk.sources)
        missing = [row for row in chunk.sources if row not in here]
        idle = [row for row in here if row not in needed]
        idle.sort(key=lambda row: next((use for use in uses[row] if use > batch), len(chunks)))
        while len(free) < len(missing):
            free.append(here.pop(idle.pop()).slot)  # an error here: the cache is smaller than a chunk's sources
        for row in missing:
            here[row] = Interval(row, free.pop(), batch, batch)
            stays.append(here[row])
        for row in needed:
            here[row].last = batch
        chunk.slots = np.array([here[row].slot for row in chunk.sources], int)
    return stays


def share(stays):
    """Rows that another device has at that time come from there, not from the host (paper 5.2)."""
    for i, own in enumerate(stays):
        for stay in own:
            for j, others in enumerate(stays):
                for other in others:
                    there = other.first < stay.first or (other.first == stay.first and j < i)
                    if stay.peer is None and j != i and other.row == stay.row and there and stay.first <= other.last:
                        stay.peer = j, other
    return stays


def sweep(chunks, stays, capacity, host, out, count):
    """out[d] = sum of weight x host[s] over the edges (s, d), through the caches."""
    caches = [np.full((capacity, host.shape[1]), np.nan) for _ in chunks]
    for batch in range(len(chunks[0])):
        for i, own in enumerate(stays):
            for stay in (stay for stay in own if stay.first == batch):
                if stay.peer is None:
                    caches[i][stay.slot] = host[stay.row]
                else:
                    caches[i][stay.slot] = caches[stay.peer[0]][stay.peer[1].slot]
                count["load" if stay.peer is None else "pull"] += 1
        for cache, (chunk, *_) in zip(caches, (own[batch:] for own in chunks)):
            a_DC = np.zeros((chunk.end - chunk.first, host.shape[1]))
            np.add.at(a_DC, chunk.destination, chunk.weight[:, None] * cache[chunk.slots[chunk.source]])
            out[chunk.first : chunk.end] = a_DC


def sweep_back(chunks, stays, capacity, grad_out, grad_host, count):
    """The transpose, from the last batch to the first: grad_host[s] += sum of weight x grad_out[d]."""
    caches = [np.full((capacity, grad_out.shape[1]), np.nan) for _ in chunks]
    for batch in reversed(range(len(chunks[0]))):
        for cache, own in zip(caches, stays):
            cache[[stay.slot for stay in own if stay.last == batch]] = 0
        for cache, (chunk, *_) in zip(caches, (own[batch:] for own in chunks)):
            grad_DC = grad_out[chunk.first : chunk.end]
            slots = chunk.slots[chunk.source]
            np.add.at(cache, slots, chunk.weight[:, None] * grad_DC[chunk.destination])
        for i, own in reversed(list(enumerate(stays))):  # who pulled pushes before its peer does
            for stay in (stay for stay in own if stay.first == batch):
                if stay.peer is None:
                    grad_host[stay.row] += caches[i][stay.slot]
                else:
                    caches[stay.peer[0]][stay.peer[1].slot] += caches[i][stay.slot]
                count["flush" if stay.peer is None else "push"] += 1


def epoch(chunks, stays, capacity, x, labels, weights):
    """Loss and gradients of a GCN: h = relu(A (h W)) layer by layer, cross entropy over all vertices; and the rows
    moved. Host rows that stay until backward are the aggregates alone: from them h is computed again (paper 6)."""
    count = dict.fromkeys(("load", "pull", "flush", "push"), 0)
    aggregates, h = [], x
    for w in weights:
        aggregates.append(np.empty((len(x), w.shape[1])))
        sweep(chunks, stays, capacity, h @ w, aggregates[-1], count)
        h = np.maximum(aggregates[-1], 0)
    loss, grad_a = cross_entropy(aggregates[-1], labels)
    grads = []
    for k in reversed(range(len(weights))):
        grad_z = np.zeros_like(grad_a)
        sweep_back(chunks, stays, capacity, grad_a, grad_z, count)
        h = x if k == 0 else np.maximum(aggregates[k - 1], 0)
        grads.insert(0, h.T @ grad_z)
        if k:
            grad_a = (grad_z @ weights[k].T) * (aggregates[k - 1] > 0)
    return loss, grads, count


def cross_entropy(out, labels):
    """Mean over the vertices, and its gradient."""
    rows, p = np.arange(len(out)), np.exp(out - out.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    return loss, p / len(out)


def problem(vertices=60, edges=400, m=2, n=5, seed=0):
    """A random graph in m partitions of n chunks, features, labels and the weights of two layers."""
    rng = np.random.default_rng(seed)
    graph, weight = rng.integers(0, vertices, (2, edges)), rng.random(edges)
    ends = np.linspace(0, vertices, m * n + 1).astype(int)
    chunks = cut(graph, weight, [ends[i * n : (i + 1) * n + 1] for i in range(m)])
    x, labels = rng.normal(size=(vertices, 6)), rng.integers(0, 3, vertices)
    return graph, weight, chunks, x, labels, [rng.normal(size=(6, 8)) / 3, rng.normal(size=(8, 3)) / 3]


def main():
    _, _, chunks, x, labels, weights = problem()
    needed = sum(len(chunk.sources) for own in chunks for chunk in own)
    most = max(len(chunk.sources) for own in chunks for chunk in own)
    print(f"every chunk loads its sources: {2 * needed} rows an epoch; the host has {len(x)} rows of a tensor")
    for capacity in (most, (most + len(x)) // 2, len(x)):
        stays = share([plan(own, capacity) for own in chunks])
        loss, _, count = epoch(chunks, stays, capacity, x, labels, weights)
        print(f"{capacity:3} slots: loss {loss:.12f}, " + ", ".join(f"{name} {n}" for name, n in count.items()))


if __name__ == "__main__":
    main()
