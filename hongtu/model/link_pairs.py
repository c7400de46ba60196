"""The pairs of a ``LinkLoss`` on an artifact, in new ids: its edges, block by block, and the negatives of each.

Legend: V vertices, P edges, B edges of a block, K negatives of each, Q pairs that are negatives of all; L is 1 where
negatives have their edge's source, 2 where they are pairs of their own (row 0 = sources, row 1 = destinations).
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.degrees import edge_id_starts
from hongtu.graph.given import as_array
from hongtu.model.link_loss import CORRUPT, LinkLoss
from hongtu.nn.dropout import hashes


class EdgesOfSplit(NamedTuple):
    """Some edges: int32 [B] twice, their numbers int64 [B], and where a decoder sees them their relations int64 [B]."""

    source: np.ndarray
    destination: np.ndarray
    ids: np.ndarray
    relation: Tensor | None


class LinkPairs:
    """What a loss over edges looks at.

    Attributes:
        count: P of the train edges.
        most_relations: the largest that a decoder sees, by what holds it.

    Raises:
        InputError: for edges or negatives that are none.
    """

    def __init__(self, given: LinkLoss, artifact: Artifact) -> None:
        drawn = isinstance(given.negatives, Integral)
        if drawn and given.negatives < 1:
            raise InputError(f"LinkLoss: negatives {given.negatives}, expected at least 1")
        if not (drawn or callable(given.negatives) or np.ndim(given.negatives)):
            raise InputError(
                f"LinkLoss: negatives {given.negatives!r}, expected a whole number, integers [P, K] of P edges, or a "
                "function"
            )
        if given.corrupt not in CORRUPT:
            raise InputError(f"LinkLoss: corrupt {given.corrupt!r}, expected {' or '.join(map(repr, CORRUPT))}")
        self._given, self._artifact = given, artifact
        vertices = artifact.num_vertices
        self._new_id = np.empty(vertices, dtype=np.int32)
        self._new_id[artifact.original_id] = np.arange(vertices, dtype=np.int32)
        pieces = {"train": given.edges, "val": given.val_edges, "test": given.test_edges}
        self._edges = {split: self._renumbered(split, edges) for split, edges in pieces.items() if edges is not None}
        own = "train" not in self._edges
        if own and not artifact.num_edges:
            raise InputError("LinkLoss: the graph has no edges; pass edges=")
        kinds = {"train": given.edge_type, "val": given.val_edge_type, "test": given.test_edge_type}
        self.most_relations: dict[str, int] = {}
        self._relation = self._relations(kinds) if given.sees_relations else {}
        in_edge_start = artifact.topology.in_edge_start
        self._first_id = edge_id_starts(in_edge_start, artifact.original_id) if own else np.empty(0, np.int64)
        self.count = artifact.num_edges if own else self._edges["train"].shape[1]
        others = {"val": given.val_negatives, "test": given.test_negatives}
        others |= {} if drawn or callable(given.negatives) else {"train": given.negatives}
        self._fixed = {split: self._fix(split, others[split]) for split in others if others[split] is not None}
        shared = {"val": given.val_negative_edges, "test": given.test_negative_edges}
        self._shared = {split: self._share(split, pairs) for split, pairs in shared.items() if pairs is not None}
        self._known: tuple[np.ndarray, np.ndarray] | None = None
        self._train_shares = False
        if given.filtered and (self._shared or "val" in self._fixed or "test" in self._fixed):
            raise InputError(
                "LinkLoss: both filtered, which ranks among all vertices, and negatives of val or test; leave one out"
            )
        if self._shared and given.sees_relations:
            raise InputError(
                "LinkLoss: negative edges of a split are of all its edges, whose relations differ, and the decoder "
                "takes one; pass val_negatives and test_negatives, or filtered=True"
            )
        self._uniform = 2 if given.corrupt == "both" else 1, int(given.negatives) if drawn else 1
        self._form = {split: (len(rows), rows.shape[2]) for split, rows in self._fixed.items()}
        if callable(given.negatives):
            first = next(self.blocks("train"))
            found = self._called(first.source[:2], first.destination[:2], 0)
            self._form["train"] = len(found), found.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes that are held for the whole run."""
        arrays = (self._new_id, self._first_id, *self._edges.values(), *self._fixed.values(), *self._shared.values())
        return sum(array.nbytes for array in (*arrays, *self._relation.values())) + self._known_bytes

    @property
    def _known_bytes(self) -> int:
        """Of what ``known`` looks in, once it is needed."""
        held = self.count + sum(edges.shape[1] for split, edges in self._edges.items() if split != "train")
        return 12 * held * self._given.filtered

    @property
    def predicted_bytes(self) -> int:
        """``nbytes`` by sizes alone: a new id per vertex, two per given edge, one or two per given negative; an edge id
        per vertex for own edges."""
        given = self._given
        edges = (given.edges, given.val_edges, given.test_edges, given.val_negative_edges, given.test_negative_edges)
        pairs = [np.shape(rows)[1] for rows in edges if rows is not None]
        negatives = (given.negatives, given.val_negatives, given.test_negatives)
        fixed = [int(np.prod(np.shape(rows))) for rows in negatives if np.ndim(rows) > 1]
        vertices = self._artifact.num_vertices * (12 if given.edges is None else 4)
        kinds = [len(kind) for kind in (given.edge_type, given.val_edge_type, given.test_edge_type) if kind is not None]
        return vertices + 8 * sum(pairs) + 4 * sum(fixed) + 8 * sum(kinds) * given.sees_relations + self._known_bytes

    def has(self, split: str) -> bool:
        """Whether a split's edges are given."""
        return split in self._edges

    def edges(self, split: str) -> int:
        """How many edges are given of a split."""
        return self._edges[split].shape[1]

    def form(self, split: str) -> tuple[int, int]:
        """L and K of a split's negatives."""
        return self._form.get(split, self._uniform)

    def rivals(self, split: str) -> int:
        """How many negatives an edge is ranked among, at most."""
        if self.ranks_all(split):
            return self._artifact.num_vertices - 1
        shared = self.shared(split)
        return self.form(split)[1] if shared is None else shared.shape[1]

    def ranks_all(self, split: str) -> bool:
        """Whether the edges of a split are ranked among all vertices."""
        return self._given.filtered and split != "train"

    def known(self, block: EdgesOfSplit) -> list[np.ndarray]:
        """The vertices to which each edge's source has an edge of its relation, in any split: int32, in no order."""
        if self._known is None:
            found = [
                (self._keys(block), block.destination)
                for split in ("train", "val", "test")
                for block in self.blocks(split)
            ]
            keys, ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
            order = np.argsort(keys, kind="stable")
            self._known = keys[order], ends[order]
        keys, ends = self._known
        first, last = (np.searchsorted(keys, self._keys(block), side=side) for side in ("left", "right"))
        return [ends[lo:hi] for lo, hi in zip(first, last, strict=True)]

    def _keys(self, block: EdgesOfSplit) -> np.ndarray:
        """int64 [B]: one number for every source and relation."""
        kind = 0 if block.relation is None else block.relation.numpy()
        return kind * np.int64(self._artifact.num_vertices) + block.source

    def share_with_train(self) -> bool:
        """Have train edges be ranked among the val edges' shared negatives, as OGB's examples do; whether there are."""
        self._train_shares = "val" in self._shared
        return self._train_shares

    def shared(self, split: str) -> np.ndarray | None:
        """int32 [2, Q]: the pairs that are negatives of all edges of a split; None where each edge has its own."""
        return self._shared.get("val" if split == "train" and self._train_shares else split)

    def blocks(self, split: str) -> Iterator[EdgesOfSplit]:
        """Sources and destinations int32 [B] and numbers int64 [B] of edges, ``block`` pairs at a time."""
        pairs = self._artifact.num_vertices if self.ranks_all(split) else 1 + self._form.get(split, self._uniform)[1]
        step = max(1, self._given.block // pairs)
        if split not in self._edges:
            yield from self._own_blocks(step) if split == "train" else ()
            return
        edges = self._edges[split]
        for first in range(0, edges.shape[1], step):
            part = np.ascontiguousarray(edges[:, first : first + step])
            kind = self._relation.get(split)
            relation = None if kind is None else torch.from_numpy(kind[first : first + step])
            yield EdgesOfSplit(part[0], part[1], np.arange(first, first + part.shape[1]), relation)

    def negatives(self, split: str, block: EdgesOfSplit, key: int, epoch: int) -> np.ndarray:
        """int32 [L, B, K]: those of a block's edges.

        Args:
            key: of the uniform ones.
            epoch: which a function of the caller's is told.
        """
        if split in self._fixed:
            return self._fixed[split][:, block.ids]
        if split == "train" and callable(self._given.negatives):
            return self._called(block.source, block.destination, epoch)
        return self.drawn(block.ids, key)

    def drawn(self, ids: np.ndarray, key: int) -> np.ndarray:
        """int32 [L, B, K]: uniform ones, decided by the numbers of their edges."""
        ends, columns = self._uniform
        found = hashes(ids, ends * columns, key)
        vertex = self._new_id[found % np.uint64(self._artifact.num_vertices)]
        return vertex.reshape(len(ids), ends, columns).transpose(1, 0, 2)

    def _called(self, source: np.ndarray, destination: np.ndarray, epoch: int) -> np.ndarray:
        """What the caller's function gives for edges."""
        ends = (torch.from_numpy(self._artifact.original_id[side].astype(np.int64)) for side in (source, destination))
        found = self._given.negatives(*ends, epoch)
        return self._checked("what negatives returns", found, len(source), self._form.get("train"))

    def _fix(self, split: str, negatives: Any) -> np.ndarray:
        if split not in self._edges:
            name = "edges" if split == "train" else f"{split}_edges"
            raise InputError(f"LinkLoss: negatives of {split} edges, which are not given; pass {name}, too")
        return self._checked(f"negatives of {split} edges", negatives, self._edges[split].shape[1])

    def _share(self, split: str, pairs: Any) -> np.ndarray:
        if split not in self._edges or split in self._fixed:
            given = "together with its own negatives" if split in self._fixed else "without its edges"
            raise InputError(f"LinkLoss: negative edges of {split} {given}; pass edges, and one kind of negatives")
        return self._renumbered(f"negative {split}", pairs)

    def _relations(self, kinds: dict[str, Any]) -> dict[str, np.ndarray]:
        """int64 [P] of every split whose edges are given."""
        found = {}
        for split, edges in self._edges.items():
            name = "edge_type" if split == "train" else f"{split}_edge_type"
            kind = as_array(f"LinkLoss: {name}", [] if kinds[split] is None else kinds[split])
            if kind.dtype.kind not in "iu" or kind.shape != (edges.shape[1],):
                found_kind = f"{kind.dtype} {kind.shape}" if kinds[split] is not None else "is not given"
                raise InputError(
                    f"LinkLoss: {name} {found_kind}, and its decoder takes the relation of every edge; pass {name}, "
                    f"integers ({edges.shape[1]},)"
                )
            found[split] = kind.astype(np.int64)
            if kind.min() < 0:
                raise InputError(f"LinkLoss: {name} holds {kind.min()}, expected relations from 0 on")
            self.most_relations[name] = int(kind.max())
        if "train" not in self._edges and self._artifact.stored.edge_type is None:
            raise InputError(
                "LinkLoss: its decoder takes the relation of every edge, and the graph's have none; preprocess it with "
                "edge_type, or pass edges and edge_type"
            )
        if "train" not in self._edges:
            self.most_relations["the graph's edge_type"] = self._artifact.num_edge_types - 1
        return found

    def _checked(self, title: str, negatives: Any, edges: int, form: tuple[int, int] | None = None) -> np.ndarray:
        """int32 [L, edges, K] of original ids [edges, K] or [2, edges, K]."""
        found = as_array(f"LinkLoss: {title}", negatives)
        ends, columns = form or (2 if found.ndim == 3 else 1, found.shape[-1] if found.ndim in (2, 3) else 0)
        shape = (2,) * (ends == 2) + (edges, columns)
        if found.dtype.kind not in "iu" or found.shape != shape or not columns:
            expected = ", ".join(map(str, (*shape[:-1], columns if form else "K")))
            raise InputError(f"LinkLoss: {title}: {found.dtype} {found.shape}, expected integers [{expected}]")
        self._check_vertices(f"{title}:", found)
        return self._new_id[found].reshape(ends, edges, columns)

    def _renumbered(self, split: str, edges: Any) -> np.ndarray:
        """int32 [2, P]."""
        given = as_array(f"LinkLoss: {split} edges", edges)
        if given.dtype.kind not in "iu" or given.ndim != 2 or given.shape[0] != 2 or not given.shape[1]:
            turned = "; transpose it, edges.T" if given.ndim == given.shape[-1] == 2 else ""
            raise InputError(
                f"LinkLoss: {split} edges {given.dtype} {given.shape}, expected integers [2, P], P > 0{turned}"
            )
        self._check_vertices(f"{split} edges hold", given)
        return self._new_id[given]

    def _check_vertices(self, title: str, found: np.ndarray) -> None:
        vertices, bad = self._artifact.num_vertices, (found.min(), found.max())
        if bad[0] < 0 or bad[1] >= vertices:
            raise InputError(f"LinkLoss: {title} vertex {bad[0 if bad[0] < 0 else 1]}, expected 0 to {vertices - 1}")

    def _own_blocks(self, step: int) -> Iterator[EdgesOfSplit]:
        topology = self._artifact.topology
        starts = np.asarray(topology.in_edge_start)
        for chunk in range(len(topology.chunk_start) - 1):
            end = int(starts[topology.chunk_start[chunk + 1]])
            for first in range(int(starts[topology.chunk_start[chunk]]), end, step):
                at = np.arange(first, min(first + step, end))
                destination = np.searchsorted(starts, at, side="right") - 1
                local = np.asarray(topology.local_source[first : first + len(at)])
                source = topology.sources[int(topology.source_start[chunk]) + local]
                ids = self._first_id[destination] + at - starts[destination]
                kind = self._artifact.stored.edge_type if self._given.sees_relations else None
                relation = None if kind is None else torch.from_numpy(kind[first : first + len(at)].astype(np.int64))
                yield EdgesOfSplit(np.ascontiguousarray(source, np.int32), destination.astype(np.int32), ids, relation)
