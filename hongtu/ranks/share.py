"""A rank's share of an artifact: consecutive partitions of it, and the rows beside them that these depend on.

To all that plans and runs it is an artifact. Its rows are, partition by partition, the own vertices, then adopted ones:
a *replica* is a vertex that another rank owns and that this one computes as well, with all its in-edges; those read at
the last hop have none, for only their features matter, and what other ranks send of them.
Legend: V vertices of the whole graph, R rows of the share.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact, Rows
from hongtu.graph.degrees import degree_statistics, edge_id_starts
from hongtu.graph.halo import Crossing, Halo, sources_of
from hongtu.graph.sparse_rows import positions
from hongtu.graph.topology import Topology, build_topology
from hongtu.ranks.fabric import Fabric
from hongtu.ranks.rounds import MOST, rounds_of
from hongtu.ranks.stages import Stages, adopters, edges_of, hops_from


def share_of(
    artifact: Artifact, rank: int, bounds: Sequence[int], stages: Stages, fabric: Fabric | None = None
) -> Artifact:
    """What a rank holds of an artifact: the whole where it is alone.

    Args:
        bounds: as ``deal_partitions`` gives them.
        stages: what it computes of other ranks' vertices; without stage 0 of any, features are those of own rows.
        fabric: what joins the ranks; None: each has a link for itself.

    Raises:
        InputError: when there are more ranks than can fetch rows of one another.
    """
    ranks = len(bounds) - 1
    if ranks == 1:
        return artifact
    share = Share(artifact, bounds[rank], bounds[rank + 1], stages)
    share.bounds = starts = artifact.topology.partition_start[list(bounds)]
    if stages.fetches:
        if ranks > MOST:
            raise InputError(f"{ranks} ranks: at most {MOST} fetch rows of one another; use dependencies 'cache'")
        share.halo = share.halo_of(rank, starts, stages, fabric)
    return share


def deal_partitions(artifact: Artifact, ranks: int, seconds: np.ndarray | None = None) -> list[int]:
    """The first partition of every rank, then their number: consecutive ones, one or more for each.

    Args:
        seconds: [m], what each takes, so that the slowest rank is as fast as can be; None: all the same.

    Raises:
        InputError: when there are more ranks than partitions.
    """
    partitions = artifact.topology.partitions
    if ranks > partitions:
        raise InputError(
            f"{artifact.path}: {partitions} partitions for {ranks} ranks; start at most {partitions} ranks, or run "
            f"`hongtu preprocess --partitions {ranks}` (or more) again"
        )
    if seconds is None:
        return [partitions * rank // ranks for rank in range(ranks + 1)]
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    slowest = before.copy()  # of as many ranks as were added, for the first 0, 1, ... partitions
    choices: list[np.ndarray] = []
    for k in range(1, ranks):  # one rank more: behind the first partitions, at least one for each rank
        tried = np.maximum(slowest[None, :], before[:, None] - before[None, :])
        allowed = np.tri(partitions + 1, k=-1, dtype=bool) & (np.arange(partitions + 1) >= k)[None, :]
        tried[~allowed] = np.inf
        choices.append(tried.argmin(axis=1))
        slowest = tried.min(axis=1)
    bounds = [partitions]
    for choice in reversed(choices):
        bounds.insert(0, int(choice[bounds[0]]))
    return [0, *bounds]


class Share(Artifact):
    """Partitions ``first`` to ``end - 1`` of an artifact, and what they depend on.

    Args:
        whole: the artifact.
        stages: what is computed of other ranks' vertices.

    Attributes:
        rows: int64 [R], the vertex of every row (its new id in ``whole``).
        stages: int16 [R], how many are computed of it.
        owned: bool [R], whether it is this rank's own.
        labels, masks: of the whole graph; a loss takes its rows of them.
    """

    def __init__(self, whole: Artifact, first: int, end: int, stages: Stages) -> None:
        topology, m = whole.topology, end - first
        starts = topology.partition_start[first : end + 1]
        computed = stages.of(topology, int(starts[0]), int(starts[-1]))
        depth = hops_from(topology, int(starts[0]), int(starts[-1]), through=computed >= 2)  # others need no in-edges
        partition = np.searchsorted(starts, np.arange(len(depth)), side="right").astype(np.int32) - 1
        home = adopters(topology, depth, partition, m)
        beside = [np.flatnonzero((home == i) & (depth > 0)) for i in range(m)]
        own = [np.arange(starts[i], starts[i + 1]) for i in range(m)]
        self.rows = np.concatenate([rows for pair in zip(own, beside, strict=True) for rows in pair])
        self.stages, self.owned = computed[self.rows], depth[self.rows] == 0
        self._whole = whole
        more = _chunks_of(beside, topology)
        chunk_start = np.concatenate([[0], np.cumsum(_sizes(topology, first, own, beside, more))])
        degree = np.diff(topology.in_edge_start)[self.rows]
        degree[self.stages < 2] = 0
        source, position = edges_of(topology, self.rows, degree)
        weight = None if topology.edge_weight is None else np.asarray(topology.edge_weight)[position]
        in_edge_start = np.concatenate([[0], np.cumsum(degree)])
        made = build_topology(m, chunk_start, in_edge_start, source, weight)
        arrays = self._arrays(made, self._schedule(first, end, more))
        super().__init__(whole.path, {**whole.manifest, **_counts(made)}, arrays)
        if topology.edge_features is not None or topology.edge_type is not None:
            made = made.picking(topology, position)
        self._opened = whole._opened
        self._gathered: Callable[[], np.ndarray | None] = lambda: None
        self._own_end = made.partition_start[:-1] + np.diff(starts)
        self.topology, self.span = made, slice(int(starts[0]), int(starts[-1]))

    @property
    def whole(self) -> Artifact:
        return self._whole

    @property
    def own_end(self) -> np.ndarray:
        return self._own_end

    @property
    def features(self) -> np.ndarray | None:
        """float32 [R, F], which are here only as long as somebody has them; or None."""
        found = self._gathered()
        if found is None and self.whole.features is not None:
            found = self.feature_rows(0, len(self.rows))
            self._gathered = weakref.ref(found)
        return found

    def feature_rows(self, first: int, end: int) -> np.ndarray:
        assert self.whole.features is not None
        return np.asarray(self.whole.features)[self.rows[first:end]]

    def spans(self, first: int, end: int) -> list[tuple[int, int]]:
        rows = self.rows[first:end]
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        return [(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]

    @property
    def held_bytes(self) -> int:
        """Bytes of what it knows of its rows."""
        return sum(array.nbytes for array in (self.rows, self.stages, self.owned, self.original_id))

    def halo_of(self, rank: int, bounds: np.ndarray, stages: Stages, fabric: Fabric | None) -> Halo | None:
        """The rows that this rank and the others read of one another; None where no rank reads any.

        Args:
            rank, stages, fabric: as for ``share_of``.
            bounds: int64 [k + 1], the first vertex of every rank, then V.
        """
        row_of = np.empty(self.whole.num_vertices, dtype=np.int64)
        row_of[self.rows] = np.arange(len(self.rows))
        fetched: list[tuple[Crossing, ...]] = []
        sent: list[tuple[Crossing, ...]] = []
        for readers in self._readers(stages, bounds):
            there, back = rounds_of(rank, readers, bounds, row_of, fabric)
            for rounds, found in ((fetched, there), (sent, back)):
                before = rounds[-1] if rounds else ()
                alike = len(found) == len(before) and all(map(Crossing.same_as, found, before))
                rounds.append(before if alike else found)
        if not any(fetched):
            return None
        fields: list[np.ndarray] = []
        behind: list[int | None] = []
        for layer in range(stages.layers + 1):
            field = self.stages > layer
            if not fields or not np.array_equal(field, fields[-1]):
                fields += [] if field.all() else [field]
            behind.append(None if field.all() else len(fields) - 1)
        return Halo(tuple(fields), tuple(behind), tuple(fetched), tuple(sent))

    def _readers(self, stages: Stages, bounds: np.ndarray) -> np.ndarray:
        """Unsigned [L, V], which ranks fetch what every layer exchanges of each vertex: bit r for rank r."""
        topology, bits = self.whole.topology, np.min_scalar_type((1 << len(bounds) - 1) - 1)
        found = np.zeros((stages.layers, topology.num_vertices), dtype=bits)
        for rank, (first, end) in enumerate(pairwise(bounds.tolist())):
            computed = stages.of(topology, first, end)
            for layer, readers in enumerate(found):
                read = sources_of(topology, computed >= layer + 2) & (computed <= layer)
                readers[read] |= bits.type(1 << rank)
        return found

    def own(self, rows: Rows) -> Rows:
        """Those of the rank's own vertices, in the artifact's order."""
        found: Rows = rows[self.owned]  # type: ignore[index]
        return found

    def degree_statistics(self, dtype: str = "float64", columns: int = 3) -> np.ndarray:
        """Of every row's vertex in the whole graph."""
        return degree_statistics(self.whole.topology, self.rows, dtype, columns)

    def edge_id_starts(self) -> np.ndarray:
        """Of every row's vertex in the whole graph."""
        return edge_id_starts(self.whole.topology.in_edge_start, self.whole.original_id)[self.rows]

    def _schedule(self, first: int, end: int, more: int) -> np.ndarray:
        """Algorithm 4's order of the own chunks, then the replicas' as they come."""
        n = self.whole.topology.chunks
        last = np.tile(np.arange(n, n + more, dtype=np.int32), (end - first, 1))
        return np.concatenate([self.whole.schedule_paper[first:end], last], axis=1)

    def _arrays(self, topology: Topology, schedule: np.ndarray) -> dict[str, np.ndarray]:
        """What an artifact is made of, by name."""
        whole, rows = self.whole, self.rows
        found = {name: np.asarray(getattr(topology, name)) for name in OF_TOPOLOGY}
        found |= {"original_id": np.asarray(whole.original_id)[rows], "schedule_paper": schedule}
        found |= {f"{split}_mask": mask for split, mask in whole.masks.items()} | {"labels": whole.labels}
        if topology.edge_weight is not None:
            found["edge_weight"] = topology.edge_weight
        if whole.sparse_features is not None:
            sparse = whole.sparse_features
            at = positions(np.asarray(sparse.start), rows)
            count = np.diff(sparse.start)[rows]
            found["feature_start"] = np.concatenate([[0], np.cumsum(count)])
            found["feature_column"], found["feature_value"] = sparse.column[at], sparse.value[at]
        return found


OF_TOPOLOGY = ("chunk_start", "in_edge_start", "source_start", "sources", "local_source")


def _counts(topology: Topology) -> dict[str, int]:
    """Of the manifest; its edges stay those of the whole graph, for which layers count ids."""
    return {"vertices": topology.num_vertices, "partitions": topology.partitions, "chunks": topology.chunks}


def _chunks_of(beside: list[np.ndarray], topology: Topology) -> int:
    """How many chunks every partition's adopted rows are cut into, each about as large as the artifact's."""
    size = -(-topology.num_vertices // (topology.partitions * topology.chunks))
    return -(-max(map(len, beside)) // size)


def _sizes(topology: Topology, first: int, own: list[np.ndarray], beside: list[np.ndarray], more: int) -> list[int]:
    """Rows of every chunk: the artifact's own, then ``more`` even ones of the rows beside, for each partition."""
    found: list[int] = []
    for i in range(len(own)):
        at = (first + i) * topology.chunks
        found += np.diff(topology.chunk_start[at : at + topology.chunks + 1]).tolist()
        found += np.diff(np.linspace(0, len(beside[i]), more + 1).astype(np.int64)).tolist() if more else []
    return found
