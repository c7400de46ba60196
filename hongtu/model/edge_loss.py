"""Link prediction: a ``LinkLoss`` on an artifact.

It is evaluated on the host, where the output is, in blocks of edges; what is held beside the output and its gradient
is bounded by the block.

Legend: V vertices, P positive edges, B edges of a block, K negatives per edge, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.degrees import edge_id_starts
from hongtu.kernels.dispatch import NUMBA
from hongtu.model.checks import drops
from hongtu.model.link_loss import LinkLoss, trained_decoder
from hongtu.model.link_scores import Score, link_scores, ranks, ranks_among
from hongtu.model.loss_terms import check_alone
from hongtu.nn.dropout import dropout_key, hashes

_EVALUATION = 1  # a stream of its own: scores do not depend on the epoch

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


class EdgeLoss:
    """A ``LinkLoss`` on an artifact.

    Attributes:
        nbytes: bytes that it holds for the whole run.

    Raises:
        InputError: for edges that are none, or a decoder with parameters.
    """

    label_bytes = 0
    watch: Any = None  # it is one number, of whole vertex rows: nobody is shown its parts

    def __init__(self, given: LinkLoss, artifact: Artifact) -> None:
        drawn = isinstance(given.negatives, Integral)
        if (drawn and given.negatives < 1) or given.block < 1:
            raise InputError(f"LinkLoss: negatives {given.negatives}, block {given.block}; expected at least 1")
        self._decoder = trained_decoder(given)
        if self._decoder is not None and drops(self._decoder):
            raise InputError("LinkLoss: its decoder drops at random, by block of pairs; leave dropout to the layers")
        self._given, self._artifact = given, artifact
        vertices = artifact.num_vertices
        self._new_id = np.empty(vertices, dtype=np.int32)
        self._new_id[artifact.original_id] = np.arange(vertices, dtype=np.int32)
        pieces = {"train": given.edges, "val": given.val_edges, "test": given.test_edges}
        self._edges = {split: self._renumbered(split, edges) for split, edges in pieces.items() if edges is not None}
        own = "train" not in self._edges
        if own and not artifact.num_edges:
            raise InputError("LinkLoss: the graph has no edges; pass edges=")
        in_edge_start = artifact.topology.in_edge_start
        self._first_id = edge_id_starts(in_edge_start, artifact.original_id) if own else np.empty(0, np.int64)
        self._count = artifact.num_edges if own else self._edges["train"].shape[1]
        others = {"val": given.val_negatives, "test": given.test_negatives}
        others |= {} if drawn or callable(given.negatives) else {"train": given.negatives}
        self._fixed = {split: self._fix(split, others[split]) for split in others if others[split] is not None}
        shared = {"val": given.val_negative_edges, "test": given.test_negative_edges}
        self._shared = {split: self._share(split, pairs) for split, pairs in shared.items() if pairs is not None}
        self._uniform = int(given.negatives) if drawn else 1
        self._columns: dict[str, int] = {split: rows.shape[1] for split, rows in self._fixed.items()}
        if callable(given.negatives):
            source, destination, _ = next(self._blocks("train"))
            self._columns["train"] = self._own(source[:2], destination[:2], 0).shape[1]

    @property
    def nbytes(self) -> int:
        arrays = (self._new_id, self._first_id, *self._edges.values(), *self._fixed.values(), *self._shared.values())
        return sum(array.nbytes for array in arrays) + self._decoder_bytes

    @property
    def predicted_bytes(self) -> int:
        """``nbytes`` by sizes alone: a new id per vertex, two per given edge, one per given negative; an edge id per
        vertex for own edges; a decoder's parameters and their gradients."""
        given = self._given
        edges = (given.edges, given.val_edges, given.test_edges, given.val_negative_edges, given.test_negative_edges)
        pairs = [np.shape(rows)[1] for rows in edges if rows is not None]
        negatives = (given.negatives, given.val_negatives, given.test_negatives)
        fixed = [int(np.prod(np.shape(rows))) for rows in negatives if len(np.shape(rows)) == 2]
        vertices = self._artifact.num_vertices * (12 if given.edges is None else 4)
        return vertices + 8 * sum(pairs) + 4 * sum(fixed) + self._decoder_bytes

    @property
    def _decoder_bytes(self) -> int:
        return sum(p.nbytes * (2 if p.requires_grad else 1) for p in self._learned)

    @property
    def _learned(self) -> list[nn.Parameter]:
        return [] if self._decoder is None else list(self._decoder.parameters())

    @property
    def validates(self) -> bool:
        return "val" in self._edges

    loss_rows = 0  # of the model's output: the loss is one of edges

    @property
    def loss_vertices(self) -> None:
        """Any vertex may be an end of a negative pair."""
        return None

    def check_output(self, columns: int, dtype: torch.dtype) -> None:
        """Any width does; what scores and loss depend on besides the rows would not be trained, and neither may mix
        edges.

        Raises:
            InputError: naming its shape, or what mixes.
        """
        negatives = self._columns.get("train", self._uniform)
        rows = [torch.zeros(count, columns, dtype=dtype, requires_grad=True) for count in (1, 1, negatives)]
        with torch.enable_grad():
            losses = self._losses(*rows)
        for leaf in _leaves(losses):
            if not any(leaf is given for given in (*rows, *self._learned)):
                raise InputError(
                    f"LinkLoss: its decoder or loss has parameters, one of shape {tuple(leaf.shape)}, which would not "
                    "be trained; pass the torch.nn.Module that has them as decoder, or give them to a layer"
                )
        ends = [2, 2, 2 * negatives]
        numbers = torch.sin(torch.arange(sum(ends) * columns, dtype=dtype)).reshape(-1, columns).requires_grad_()
        check_alone("LinkLoss: its decoder or loss", self._losses, *numbers.split(ends))

    def backward(self, out_VC: Tensor, grad_VC: Tensor, seed: int, epoch: int) -> float:
        """Add the gradient of the loss by the output to ``grad_VC``; both on the host, in new order.

        Returns:
            the loss.
        """
        total, key = 0.0, dropout_key(seed, epoch, 0, 0)
        for parameter in self._learned:
            parameter.grad = None
        for source, destination, ids in self._blocks("train"):
            others = self._negatives("train", (source, destination, ids), key, epoch)
            ends = [torch.from_numpy(x) for x in (source, destination, others.ravel())]
            with torch.enable_grad():
                rows = [out_VC.index_select(0, end).requires_grad_() for end in ends]
                losses = self._losses(*rows)
                if losses.shape != (len(source),):
                    raise InputError(
                        f"LinkLoss: shape {tuple(losses.shape)}, expected one loss per edge: ({len(source)},)"
                    )
                (losses.sum() / self._count).backward()
            total += float(losses.detach().double().sum()) / self._count
            for end, part in zip(ends, rows, strict=True):
                if part.grad is not None:
                    NUMBA.scatter_add_edges(end, part.grad.contiguous(), grad_VC)
        return total

    def scores(self, out_VC: Tensor, seed: int, metrics: Mapping[str, Score] | None = None) -> dict[str, float]:
        """By split, and of metrics with a name by "SPLIT NAME", the mean over its edges: NaN for a split without edges.

        Args:
            metrics: of :func:`hongtu.model.link_scores.link_scores`; None: its default.
        """
        metrics, found = metrics or link_scores(None), {}
        for split in ("train", "val", "test"):
            totals, edges = dict.fromkeys(metrics, 0.0), 0
            for ranks_B in self._ranks(split, out_VC, seed):
                edges += len(ranks_B)
                for name, score in metrics.items():
                    totals[name] += float(score(ranks_B, self._rivals(split)).sum())
            for name, total in totals.items():
                found[f"{split} {name}".strip()] = total / edges if edges else float("nan")
        return found

    def check_scores(self, metrics: Mapping[str, Score]) -> None:
        """Refuse metrics that look further than there are negatives."""
        for split in ("train", *self._edges):
            for score in metrics.values():
                score(torch.ones(1), self._rivals(split))

    def _rivals(self, split: str) -> int:
        """How many negatives an edge is ranked among."""
        if split in self._shared:
            return self._shared[split].shape[1]
        return self._columns.get(split, self._uniform)

    def negatives(self, ids: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """int64 [B, K]: original ids of the uniform negative destinations of edges, given by number: their position in
        ``edges``, or the edge id of a graph's own."""
        return self._artifact.original_id[self._drawn(ids, dropout_key(seed, epoch, 0, 0))].astype(np.int64)

    def _losses(self, source: Tensor, destination: Tensor, other: Tensor) -> Tensor:
        return self._given.loss(self._given.decoder(source, destination), self._decode_negatives(source, other))

    def _decode_negatives(self, source: Tensor, other: Tensor) -> Tensor:
        """[B, K]."""
        each = len(other) // len(source)
        return self._given.decoder(source.repeat_interleave(each, dim=0), other).view(-1, each)

    @torch.no_grad()
    def _ranks(self, split: str, out_VC: Tensor, seed: int) -> Iterator[Tensor]:
        """float64 [B]: of each edge among its negatives."""
        decode, shared_Q = self._given.decoder, self._shared_scores(split, out_VC)
        key = dropout_key(seed, 0, _EVALUATION, ("train", "val", "test").index(split))
        for source, destination, ids in self._blocks(split):
            first, second = (out_VC.index_select(0, torch.from_numpy(end)) for end in (source, destination))
            if shared_Q is not None:
                yield ranks_among(decode(first, second), shared_Q)
                continue
            others = self._negatives(split, (source, destination, ids), key, 0)
            other = out_VC.index_select(0, torch.from_numpy(others.ravel()))
            yield ranks(decode(first, second), self._decode_negatives(first, other))

    def _shared_scores(self, split: str, out_VC: Tensor) -> Tensor | None:
        """[Q]: of the pairs that are negatives of all edges of a split; None where each edge has its own."""
        if split not in self._shared:
            return None
        blocks = torch.from_numpy(self._shared[split]).split(self._given.block, dim=1)
        rows = ([out_VC.index_select(0, end) for end in block] for block in blocks)
        return torch.cat([self._given.decoder(*both) for both in rows])

    def _negatives(self, split: str, pairs: Pairs, key: int, epoch: int) -> np.ndarray:
        """int32 [B, K], new ids."""
        source, destination, ids = pairs
        if split in self._fixed:
            return self._fixed[split][ids]
        if split == "train" and callable(self._given.negatives):
            return self._own(source, destination, epoch)
        return self._drawn(ids, key)

    def _drawn(self, ids: np.ndarray, key: int) -> np.ndarray:
        drawn = hashes(torch.from_numpy(ids), self._uniform, key).numpy().view(np.uint64)
        return self._new_id[drawn % np.uint64(self._artifact.num_vertices)]

    def _own(self, source: np.ndarray, destination: np.ndarray, epoch: int) -> np.ndarray:
        """int32 [B, K], new ids: what the caller's function gives for edges in new ids."""
        ends = (torch.from_numpy(self._artifact.original_id[side].astype(np.int64)) for side in (source, destination))
        found = np.asarray(self._given.negatives(*ends, epoch))
        columns = self._columns.get("train", found.shape[1] if found.ndim == 2 else 0)
        return self._checked("what negatives returns", found, (len(source), columns))

    def _fix(self, split: str, negatives: Any) -> np.ndarray:
        if split not in self._edges:
            raise InputError(f"LinkLoss: negatives of {split} edges, which are not given; pass them, too")
        found = np.asarray(negatives)
        columns = found.shape[1] if found.ndim == 2 else 0
        return self._checked(f"negatives of {split} edges", found, (self._edges[split].shape[1], columns))

    def _share(self, split: str, pairs: Any) -> np.ndarray:
        if split not in self._edges or split in self._fixed:
            given = "beside its own negatives" if split in self._fixed else "without its edges"
            raise InputError(f"LinkLoss: negative edges of {split} {given}; pass edges, and one kind of negatives")
        return self._renumbered(f"negative {split}", pairs)

    def _checked(self, title: str, found: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        vertices = self._artifact.num_vertices
        if found.dtype.kind not in "iu" or found.shape != shape or not shape[1]:
            columns = shape[1] or "K"
            raise InputError(
                f"LinkLoss: {title}: {found.dtype} {found.shape}, expected integers [{shape[0]}, {columns}]"
            )
        if found.min() < 0 or found.max() >= vertices:
            bad = found.min() if found.min() < 0 else found.max()
            raise InputError(f"LinkLoss: {title}: vertex {bad}, expected 0 to {vertices - 1}")
        return self._new_id[found]

    def _blocks(self, split: str) -> Iterator[Pairs]:
        """Sources and destinations int32 [B] (new ids) and numbers int64 [B] of edges, ``block`` pairs at a time."""
        step = max(1, self._given.block // (1 + self._columns.get(split, self._uniform)))
        if split not in self._edges:
            yield from self._own_blocks(step) if split == "train" else ()
            return
        edges = self._edges[split]
        for first in range(0, edges.shape[1], step):
            part = np.ascontiguousarray(edges[:, first : first + step])
            yield part[0], part[1], np.arange(first, first + part.shape[1])

    def _own_blocks(self, step: int) -> Iterator[Pairs]:
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
                yield np.ascontiguousarray(source, np.int32), destination.astype(np.int32), ids

    def _renumbered(self, split: str, edges: Any) -> np.ndarray:
        """int32 [2, P], new ids."""
        given, vertices = np.asarray(edges), self._artifact.num_vertices
        if given.dtype.kind not in "iu" or given.ndim != 2 or given.shape[0] != 2 or not given.shape[1]:
            raise InputError(f"LinkLoss: {split} edges {given.dtype} {given.shape}, expected integers [2, P], P > 0")
        if given.min() < 0 or given.max() >= vertices:
            bad = given.min() if given.min() < 0 else given.max()
            raise InputError(f"LinkLoss: {split} edges hold vertex {bad}, expected 0 to {vertices - 1}")
        return self._new_id[given]


def _leaves(result: Tensor) -> Iterator[Tensor]:
    """The tensors with ``requires_grad`` that a result was computed from."""
    seen: set[Any] = set()
    functions = [result.grad_fn]
    while functions:
        function = functions.pop()
        if function is not None and function not in seen:
            seen.add(function)
            functions += [before for before, _ in function.next_functions]
            if hasattr(function, "variable"):
                yield function.variable
