"""Link prediction: a ``LinkLoss`` on an artifact.

It is evaluated on the host, where the output is, in blocks of edges; what is held beside the output and its gradient
is bounded by the block.

Legend: V vertices, B edges of a block, K negatives per edge, Q pairs that are negatives of all, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.errors import InputError, refused_as
from hongtu.graph.artifact import Artifact
from hongtu.kernels.dispatch import NUMBA
from hongtu.model.checks import drops
from hongtu.model.link_loss import LinkLoss, trained_decoder
from hongtu.model.link_pairs import LinkPairs
from hongtu.model.link_scores import Score, link_scores, ranks, ranks_among
from hongtu.model.loss_terms import check_alone
from hongtu.nn.dropout import dropout_key

_EVALUATION = 1  # a stream of its own: scores do not depend on the epoch


class EdgeLoss:
    """A ``LinkLoss`` on an artifact.

    Raises:
        InputError: for edges that are none, or a decoder with parameters.
    """

    repeats = False  # the host evaluates it

    label_bytes = 0
    trains = True
    watch: Any = None  # it is one number, of whole vertex rows: nobody is shown its parts

    def __init__(self, given: LinkLoss, artifact: Artifact) -> None:
        self._decoder = trained_decoder(given)
        if self._decoder is not None and drops(self._decoder):
            raise InputError("LinkLoss: its decoder drops at random, by block of pairs; leave dropout to the layers")
        self._given, self._artifact = given, artifact
        self._pairs = LinkPairs(given, artifact)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds for the whole run."""
        return self._pairs.nbytes + self._decoder_bytes

    @property
    def predicted_bytes(self) -> int:
        """``nbytes`` by sizes alone; of a decoder its parameters and their gradients."""
        return self._pairs.predicted_bytes + self._decoder_bytes

    @property
    def _decoder_bytes(self) -> int:
        return sum(p.nbytes * (2 if p.requires_grad else 1) for p in self._learned)

    @property
    def _learned(self) -> list[nn.Parameter]:
        return [] if self._decoder is None else list(self._decoder.parameters())

    @property
    def validates(self) -> bool:
        return self._pairs.has("val")

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
        ends, negatives = self._pairs.form("train")
        counts = [1, 1, *[negatives] * ends]
        rows = [torch.zeros(count, columns, dtype=dtype, requires_grad=True) for count in counts]
        remedy = "a decoder takes rows [B, C] of both ends, a loss scores [B] and [B, K]; both give [B]"
        with torch.enable_grad(), refused_as("LinkLoss: its decoder or loss", remedy):
            losses = self._losses(*rows)
        for leaf in _leaves(losses):
            if not any(leaf is given for given in (*rows, *self._learned)):
                raise InputError(
                    f"LinkLoss: its decoder or loss has parameters, one of shape {tuple(leaf.shape)}, which would not "
                    "be trained; pass the torch.nn.Module that has them as decoder, or give them to a layer"
                )
        of_two = [2 * count for count in counts]
        numbers = torch.sin(torch.arange(sum(of_two) * columns, dtype=dtype)).reshape(-1, columns).requires_grad_()
        check_alone("LinkLoss: its decoder or loss", self._losses, *numbers.split(of_two))

    def backward(self, out_VC: Tensor, grad_VC: Tensor, seed: int, epoch: int) -> float:
        """Add the gradient of the loss by the output to ``grad_VC``; both on the host, in new order.

        Returns:
            the loss.
        """
        total, key, count = 0.0, dropout_key(seed, epoch, 0, 0), self._pairs.count
        for parameter in self._learned:
            parameter.grad = None
        for block in self._pairs.blocks("train"):
            source, destination, _ = block
            others = self._pairs.negatives("train", block, key, epoch)
            ends = [torch.from_numpy(x) for x in (source, destination, *others.reshape(len(others), -1))]
            with torch.enable_grad():
                rows = [out_VC.index_select(0, end).requires_grad_() for end in ends]
                losses = self._losses(*rows)
                if losses.shape != (len(source),):
                    raise InputError(
                        f"LinkLoss: shape {tuple(losses.shape)}, expected one loss per edge: ({len(source)},)"
                    )
                (losses.sum() / count).backward()
            total += float(losses.detach().double().sum()) / count
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
                    totals[name] += float(score(ranks_B, self._pairs.rivals(split)).sum())
            for name, total in totals.items():
                found[f"{split} {name}".strip()] = total / edges if edges else float("nan")
        return found

    def check_scores(self, metrics: Mapping[str, Score]) -> None:
        """Refuse metrics that look further than there are negatives."""
        for split in ("train", "val", "test"):
            if split == "train" or self._pairs.has(split):
                for score in metrics.values():
                    score(torch.ones(1), self._pairs.rivals(split))

    def negatives(self, ids: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """int64 [B, K], or [2, B, K] with ``corrupt="both"``: original ids of the uniform negatives of edges, given by
        number: their position in ``edges``, or the edge id of a graph's own."""
        drawn = self._pairs.drawn(ids, dropout_key(seed, epoch, 0, 0))
        return self._artifact.original_id[drawn if len(drawn) == 2 else drawn[0]].astype(np.int64)

    def _losses(self, source: Tensor, destination: Tensor, *others: Tensor) -> Tensor:
        return self._given.loss(self._given.decoder(source, destination), self._decode_negatives(source, *others))

    def _decode_negatives(self, source: Tensor, *others: Tensor) -> Tensor:
        """[B, K]: of destinations [B K, C], or of sources and destinations."""
        each = len(others[-1]) // len(source)
        first = others[0] if len(others) == 2 else source.repeat_interleave(each, dim=0)
        return self._given.decoder(first, others[-1]).view(-1, each)

    @torch.no_grad()
    def _ranks(self, split: str, out_VC: Tensor, seed: int) -> Iterator[Tensor]:
        """float64 [B]: of each edge among its negatives."""

        def rows(ends: np.ndarray) -> Tensor:
            return out_VC.index_select(0, torch.from_numpy(ends.ravel()))

        decode, shared_Q = self._given.decoder, self._shared_scores(split, out_VC)
        key = dropout_key(seed, 0, _EVALUATION, ("train", "val", "test").index(split))
        for block in self._pairs.blocks(split):
            source, destination = map(rows, block[:2])
            if shared_Q is not None:
                yield ranks_among(decode(source, destination), shared_Q)
                continue
            others = map(rows, self._pairs.negatives(split, block, key, 0))
            yield ranks(decode(source, destination), self._decode_negatives(source, *others))

    def _shared_scores(self, split: str, out_VC: Tensor) -> Tensor | None:
        """[Q]: of the pairs that are negatives of all edges of a split; None where each edge has its own."""
        shared = self._pairs.shared(split)
        if shared is None:
            return None
        blocks = torch.from_numpy(shared).split(self._given.block, dim=1)
        return torch.cat([self._given.decoder(*(out_VC.index_select(0, end) for end in block)) for block in blocks])


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
