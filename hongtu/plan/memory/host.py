"""What the host has of vertex tensors: which rows, in what numbers, and which of them lie below it, as on a disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.memory.placement import Placement
from hongtu.plan.memory.structure import FLOAT, nbytes_of
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Pass, gradient, is_gradient


@dataclass(frozen=True, eq=False)
class Kept:
    """The rows of a tensor on the disk that are in host memory all the same, one partition's behind another's.

    Attributes:
        start, end: int64 [m], the first vertex of every partition, and the one behind those that are in memory.
        edges: the chunks whose in-edges the tensor has rows of; None: it has those of vertices.

    >>> kept = Kept(np.array([0, 10]), np.array([2, 13]))
    >>> kept.rows, kept.has(1, 12), kept.has(1, 13)
    (5, True, False)
    >>> kept.places(np.array([1, 2, 9, 10, 12, 13])).tolist()
    [1, 2, 4]
    """

    start: np.ndarray
    end: np.ndarray
    edges: Topology | None = None

    def at(self, vertex: Any) -> Any:
        """The row with which those of a vertex, or of several, begin, or would."""
        return vertex if self.edges is None else self.edges.in_edge_start[vertex]

    @property
    def rows(self) -> int:
        """How many there are."""
        return int((self.at(self.end) - self.at(self.start)).sum())

    def has(self, partition: int, first: int) -> bool:
        """Whether the rows of a chunk are among them, which begins with a vertex."""
        return first < int(self.end[partition])

    def places(self, rows: np.ndarray) -> np.ndarray:
        """int32, where those of some rows are that are among them."""
        start, end = self.at(self.start), self.at(self.end)
        partition = np.searchsorted(start, rows, side="right") - 1
        place = rows - (start - (np.cumsum(end - start) - (end - start)))[partition]
        return place[rows < end[partition]].astype(np.int32)


class HostPlacement(Placement):
    """Which rows of vertex tensors are on the host."""

    def below(self, name: str) -> str:
        """The memory in which the rows of a spilled tensor lie."""
        return self.choice.below.get(name, "disk")

    @cached_property
    def kept(self) -> dict[str, Kept]:
        """Of every spilled tensor the rows that are in host memory all the same."""
        first = np.arange(self.topology.partitions) * self.topology.chunks
        start, ends = self.topology.partition_start[:-1], self.topology.chunk_start
        edges = self.passes.of_edges
        return {
            name: Kept(start, ends[first + chunks], self.topology if name in edges else None)
            for name, chunks in self.spilled.items()
        }

    def in_memory(self, name: str, p: Pass | None = None) -> int:
        """How many rows of a host tensor, which a pass makes, are in its memory."""
        if name in self.kept:
            return self.kept[name].rows
        edges = None if p is None else self.edges_of(p, name)
        return self.topology.num_vertices if edges is None else edges.num_edges

    def host_dtype(self, name: str) -> str:
        """What the host has the rows of a vertex tensor in: values and their gradients may be narrower than what
        devices compute with; results, rows that are learned and sparse ones are not, nor gradients that come from the
        disk, which are added up then."""
        shape, narrow = self.shape, self._narrow(name)
        as_given = name in (OUTPUT, gradient(OUTPUT)) or (is_gradient(name) and name in self.spilled)
        if name in (FEATURES, gradient(FEATURES)):
            as_given |= shape.learned_input or shape.sparse_input is not None
        return FLOAT if as_given else narrow

    def disk_dtype(self, name: str) -> str:
        """What the disk has them in: gradients narrow, too."""
        return self._narrow(name) if is_gradient(name) else self.host_dtype(name)

    def _narrow(self, name: str) -> str:
        """What a run asks for."""
        return (self.shape.gradient_dtype if is_gradient(name) else self.shape.host_dtype) or FLOAT

    def disk_row(self, name: str) -> int:
        """Bytes of a row of a vertex tensor there."""
        return nbytes_of((self.passes.width[name],), self.disk_dtype(name), self.shape.itemsize)

    def host_row(self, name: str) -> int:
        """Bytes of a row of a vertex tensor on the host."""
        return nbytes_of((self.passes.width[name],), self.host_dtype(name), self.shape.itemsize)

    def has_memory(self, name: str) -> bool:
        """Whether a host tensor is there: all of its rows, if there are any, or those that are not on the disk."""
        return name not in self.kept or bool((self.kept[name].end > self.kept[name].start).any())
