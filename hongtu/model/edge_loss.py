"""Link prediction: a loss over edges and sampled pairs that are none, scored by the output rows of their two ends.

It is evaluated on the host, where the output is, in blocks of edges; what is held beside the output and its gradient
is bounded by the block.

Legend: V vertices, P positive edges, B edges of a block, K negatives per edge, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.degrees import edge_id_starts
from hongtu.kernels.dispatch import NUMBA
from hongtu.model.loss_terms import check_alone
from hongtu.nn.dropout import dropout_key, hashes

_EVALUATION = 1  # a stream of its own: scores do not depend on the epoch

Decoder = Callable[[Tensor, Tensor], Tensor]
PairLoss = Callable[[Tensor, Tensor], Tensor]
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


def dot(source: Tensor, destination: Tensor) -> Tensor:
    """[B]: inner product of rows [B, C]."""
    return (source * destination).sum(dim=1)


def logistic(positive: Tensor, negative: Tensor) -> Tensor:
    """[B]: mean over an edge and its negatives of the binary cross-entropy of their scores [B] and [B, K]."""
    # torch's softplus takes what is above 20 for itself, which is off by 2e-9
    losses = nn.functional.logsigmoid(positive) + nn.functional.logsigmoid(-negative).sum(dim=1)
    return -losses / (1 + negative.shape[1])


@dataclass(frozen=True)
class LinkLoss:
    """A training loss: the mean over positive edges of ``loss(score of the edge, scores of its negatives)``.

    The negatives of edge u -> v are u -> w for ``negatives`` uniform vertices w (which may by chance be neighbours),
    new ones in every epoch, decided by the trainer's seed, the epoch and the edge alone.

    Attributes:
        edges: integers [2, P] in the original ids; None: every edge of the graph.
        negatives: per positive edge, at least 1.
        decoder: rows of sources and destinations [B, C] each -> scores [B]; without parameters.
        loss: scores [B] and [B, K] -> losses [B].
        val_edges, test_edges: integers [2, P'], which ``evaluate`` scores; not trained on.
        block: pairs scored at a time.
    """

    edges: Any = None
    negatives: int = 1
    decoder: Decoder = dot
    loss: PairLoss = logistic
    val_edges: Any = None
    test_edges: Any = None
    block: int = 1 << 16


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
        if given.negatives < 1 or given.block < 1:
            raise InputError(f"LinkLoss: negatives {given.negatives}, block {given.block}; expected at least 1")
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

    @property
    def nbytes(self) -> int:
        return self._new_id.nbytes + self._first_id.nbytes + sum(edges.nbytes for edges in self._edges.values())

    @property
    def predicted_bytes(self) -> int:
        """``nbytes`` by sizes alone: a new id per vertex, two per given edge; an edge id per vertex for own edges."""
        given = (self._given.edges, self._given.val_edges, self._given.test_edges)
        pairs = sum(np.shape(edges)[1] for edges in given if edges is not None)
        return self._artifact.num_vertices * (12 if given[0] is None else 4) + 8 * pairs

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
        rows = [torch.zeros(count, columns, dtype=dtype, requires_grad=True) for count in (1, 1, self._given.negatives)]
        with torch.enable_grad():
            losses = self._losses(*rows)
        for leaf in _leaves(losses):
            if not any(leaf is given for given in rows):
                raise InputError(
                    f"LinkLoss: its decoder or loss has parameters, one of shape {tuple(leaf.shape)}, which would not "
                    "be trained; give them to a layer"
                )
        ends = [2, 2, 2 * self._given.negatives]
        numbers = torch.sin(torch.arange(sum(ends) * columns, dtype=dtype)).reshape(-1, columns).requires_grad_()
        check_alone("LinkLoss: its decoder or loss", self._losses, *numbers.split(ends))

    def backward(self, out_VC: Tensor, grad_VC: Tensor, seed: int, epoch: int) -> float:
        """Add the gradient of the loss by the output to ``grad_VC``; both on the host, in new order.

        Returns:
            the loss.
        """
        total, key = 0.0, dropout_key(seed, epoch, 0, 0)
        for source, destination, ids in self._blocks("train"):
            ends = [torch.from_numpy(x) for x in (source, destination, self._negatives(ids, key).ravel())]
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

    def scores(self, out_VC: Tensor, seed: int) -> dict[str, float]:
        """By split, the probability that an edge has a higher score than one of its negatives (ties count half): NaN
        for a split without edges."""
        return {split: self._auc(split, out_VC, seed) for split in ("train", "val", "test")}

    def negatives(self, ids: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """int64 [B, K]: original ids of the negative destinations of edges, given by number: their position in
        ``edges``, or the edge id of a graph's own."""
        return self._artifact.original_id[self._negatives(ids, dropout_key(seed, epoch, 0, 0))].astype(np.int64)

    def _losses(self, source: Tensor, destination: Tensor, other: Tensor) -> Tensor:
        decode, k = self._given.decoder, self._given.negatives
        return self._given.loss(decode(source, destination), self._decode_negatives(source, other).view(-1, k))

    def _decode_negatives(self, source: Tensor, other: Tensor) -> Tensor:
        return self._given.decoder(source.repeat_interleave(self._given.negatives, dim=0), other)

    @torch.no_grad()
    def _auc(self, split: str, out_VC: Tensor, seed: int) -> float:
        key, wins, pairs = dropout_key(seed, 0, _EVALUATION, ("train", "val", "test").index(split)), 0.0, 0
        for source, destination, ids in self._blocks(split):
            ends = [torch.from_numpy(x) for x in (source, destination, self._negatives(ids, key).ravel())]
            first, second, other = (out_VC.index_select(0, end) for end in ends)
            positive = self._given.decoder(first, second).unsqueeze(1)
            negative = self._decode_negatives(first, other).view(len(source), -1)
            wins += float((positive > negative).sum()) + 0.5 * float((positive == negative).sum())
            pairs += negative.numel()
        return wins / pairs if pairs else float("nan")

    def _negatives(self, ids: np.ndarray, key: int) -> np.ndarray:
        """int32 [B, K], new ids."""
        drawn = hashes(torch.from_numpy(ids), self._given.negatives, key).numpy().view(np.uint64)
        return self._new_id[drawn % np.uint64(self._artifact.num_vertices)]

    def _blocks(self, split: str) -> Iterator[Pairs]:
        """Sources and destinations int32 [B] (new ids) and numbers int64 [B] of edges, ``block`` pairs at a time."""
        step = max(1, self._given.block // (1 + self._given.negatives))
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
