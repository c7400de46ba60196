"""Random graph models: each ``(V, E, C, rng) -> edges int32 [2, E], labels int64 [V]``, in numba after numpy draws.

The kernels draw from splitmix64 with the state in a one-element array, so that a seed decides every edge.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled

RMAT_A, RMAT_B, RMAT_C = 0.57, 0.19, 0.19
TRIES = 8  # draws before an unused target is searched for one by one
VERTICES_PER_COMMUNITY, VERTICES_PER_HOST = 400, 150
SAME_COMMUNITY, SAME_LABEL, COPY = 0.88, 0.08, 0.5  # where a citation goes; how often it is copied from the cited


def citation(vertices: int, edges: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Vertices arrive one by one and cite older ones: of their community, of their label, or any.

    Copying a citation of the vertex found, instead of citing it, gives preferential attachment.
    """
    communities = max(classes, vertices // VERTICES_PER_COMMUNITY)
    share = rng.gamma(1.0, size=communities) + 0.05
    community = rng.choice(communities, size=vertices, p=share / share.sum())
    label = community % classes
    want = rng.multinomial(edges, _shares(rng.gamma(1.5, size=vertices)))
    out_start = _starts(_spread(want, np.arange(vertices)))
    by_community, by_label = _grouped(community, communities), _grouped(label, classes)
    target = _cite(out_start, community, label, *by_community, *by_label, _state(rng))
    new_id = rng.permutation(vertices).astype(np.int32)
    found = np.empty((2, len(target)), dtype=np.int32)
    np.take(new_id, target, out=found[1], mode="clip")  # which buffers nothing
    del target
    found[0] = np.repeat(new_id, np.diff(out_start))
    return found, _renumbered(label, new_id)


def rmat(vertices: int, edges: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """R-MAT; ids beyond V are drawn again. The label is the block of the recursive matrix; ids are then shuffled."""
    levels = max(vertices - 1, 0).bit_length()
    thresholds = (np.cumsum([RMAT_A, RMAT_B, RMAT_C]) * 65536).astype(np.int64)
    found = _rmat(vertices, edges, levels, thresholds, _state(rng))
    label = np.arange(vertices) * classes // vertices
    new_id = rng.permutation(vertices).astype(np.int32)
    return new_id[found], _renumbered(label, new_id)


def web(vertices: int, edges: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pages of a host are neighbours in the order; links stay near, copy the page before, or go to front pages."""
    hosts = max(1, vertices // VERTICES_PER_HOST)
    size = rng.pareto(1.3, size=hosts) + 0.1
    bounds = np.unique(np.concatenate([[0], (np.cumsum(_shares(size)) * vertices).astype(np.int64)]))
    bounds[-1] = vertices
    host = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    want = rng.multinomial(edges, _shares(rng.gamma(0.8, size=vertices)))
    out_start = _starts(_spread(want, np.full(vertices, vertices - 1)))
    popular = rng.permutation(len(bounds) - 1)
    target = _link(out_start, host, bounds, popular, _state(rng))
    found = np.empty((2, len(target)), dtype=np.int32)
    found[1] = target
    del target
    found[0] = np.repeat(np.arange(vertices, dtype=np.int32), np.diff(out_start))
    return found, rng.integers(0, classes, len(bounds) - 1)[host]


def _shares(weight: np.ndarray) -> np.ndarray:
    weight = weight + 1e-9
    return weight / weight.sum()


def _state(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2**63, size=1, dtype=np.uint64)


def _starts(count: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(count)]).astype(np.int64)


def _grouped(group: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Members of every group in ascending order: starts [K + 1] and members [V]."""
    return _starts(np.bincount(group, minlength=groups)), np.argsort(group, kind="stable")


def _renumbered(label: np.ndarray, new_id: np.ndarray) -> np.ndarray:
    shuffled = np.empty(len(label), dtype=np.int64)
    shuffled[new_id] = label
    return shuffled


@compiled(plain=True)
def _spread(want, capacity):
    """Counts of the same total with ``count <= capacity``: what is too much moves to the next, then to the last."""
    count = np.empty(len(want), dtype=np.int64)
    carry = 0
    for v in range(len(want)):
        count[v] = min(want[v] + carry, capacity[v])
        carry += want[v] - count[v]
    for v in range(len(want) - 1, -1, -1):
        more = min(carry, capacity[v] - count[v])
        count[v] += more
        carry -= more
    return count


@compiled(inline="always")
def _next(state):
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled(inline="always")
def _uniform(state):
    return (_next(state) >> np.uint64(11)) * (1.0 / (1 << 53))


@compiled
def _cite(out_start, community, label, community_start, community_members, label_start, label_members, state):
    num_vertices = len(community)
    target = np.empty(out_start[num_vertices], dtype=np.int32)
    born_community = np.zeros(len(community_start) - 1, dtype=np.int64)  # members that arrived before t
    born_label = np.zeros(len(label_start) - 1, dtype=np.int64)
    cited_by = np.full(num_vertices, -1, dtype=np.int32)
    for t in range(num_vertices):
        c, g = community[t], label[t]
        for e in range(out_start[t], out_start[t + 1]):
            v = 0
            for _ in range(TRIES):
                u = _uniform(state)
                if u < SAME_COMMUNITY and born_community[c] > 0:
                    v = community_members[community_start[c] + int(_uniform(state) * born_community[c])]
                elif u < SAME_COMMUNITY + SAME_LABEL and born_label[g] > 0:
                    v = label_members[label_start[g] + int(_uniform(state) * born_label[g])]
                else:
                    v = int(_uniform(state) * t)
                degree = out_start[v + 1] - out_start[v]
                if degree > 0 and _uniform(state) < COPY:
                    v = target[out_start[v] + int(_uniform(state) * degree)]
                if cited_by[v] != t:
                    break
            while cited_by[v] == t:
                v = v + 1 if v + 1 < t else 0
            cited_by[v] = t
            target[e] = v
        born_community[c] += 1
        born_label[g] += 1
    return target


@compiled
def _rmat(num_vertices, num_edges, levels, thresholds, state):
    edges = np.empty((2, num_edges), dtype=np.int32)
    a, ab, abc = thresholds
    for e in range(num_edges):
        row, column = num_vertices, 0
        while row >= num_vertices or column >= num_vertices:
            row, column = 0, 0
            bits = np.uint64(0)
            for level in range(levels):
                bits = _next(state) if level % 4 == 0 else bits >> np.uint64(16)
                u = np.int64(bits & np.uint64(0xFFFF))
                row = 2 * row + (u >= ab)
                column = 2 * column + ((u >= a and u < ab) or u >= abc)
        edges[0, e] = row
        edges[1, e] = column
    return edges


@compiled
def _link(out_start, host, bounds, popular, state):
    num_vertices, num_hosts = len(host), len(popular)
    target = np.empty(out_start[num_vertices], dtype=np.int32)
    linked_by = np.full(num_vertices, -1, dtype=np.int32)
    for page in range(num_vertices):
        linked_by[page] = page  # no self-loops
        first, end = bounds[host[page]], bounds[host[page] + 1]
        for e in range(out_start[page], out_start[page + 1]):
            v = page
            for _ in range(TRIES):
                kind, u = _uniform(state), _uniform(state)
                before = out_start[page] - out_start[page - 1] if page > first else 0
                if kind < 0.4:  # a page nearby
                    step = 1 + int(-np.log(1.0 - u) * 6.0)
                    v = page + step if kind < 0.2 else page - step
                    v = min(max(v, first), end - 1)
                elif kind < 0.7 and before > 0:  # what the page before links to
                    v = target[out_start[page - 1] + int(u * before)]
                elif kind < 0.9:  # the first pages of the host
                    v = first + int((end - first) * u**4)
                else:  # the first pages of a popular host
                    other = popular[int(num_hosts * u**3)]
                    v = bounds[other] + int((bounds[other + 1] - bounds[other]) * _uniform(state) ** 6)
                if linked_by[v] != page:
                    break
            while linked_by[v] == page:
                v = v + 1 if v + 1 < num_vertices else 0
            linked_by[v] = page
            target[e] = v
    return target
