"""Link prediction: a ``LinkLoss`` on an artifact.

It is evaluated on the host, where the output is, in blocks of edges; what is held beside the output and its gradient
is bounded by the block.

Legend: V vertices, B edges of a block, K negatives per edge, Q pairs that are negatives of all, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.errors import InputError, refused_as
from hongtu.graph.artifact import Artifact
from hongtu.host import check_host
from hongtu.kernels.dispatch import NUMBA
from hongtu.kernels.torch_private import leaves_of
from hongtu.model.checks import check_embedding, drops
from hongtu.model.link_loss import LinkLoss, Score, link_scores, ranks, ranks_among, trained_decoder
from hongtu.model.link_pairs import EdgesOfSplit, LinkPairs
from hongtu.model.loss_terms import check_alone
from hongtu.model.rows_alone import ROWS
from hongtu.model.vertex_loss import MeanLoss
from hongtu.nn.dropout import dropout_key

_EVALUATION = 1  # a stream of its own: scores do not depend on the epoch


class EdgeLoss:
    """A ``LinkLoss`` on an artifact, and a loss over vertices beside it.

    Args:
        weight: what it is multiplied by.
        beside: what is added to it, or None.

    Raises:
        InputError: for edges that are none, or a decoder with parameters.
    """

    repeats = False  # the host evaluates it

    label_bytes = 0
    remedy = "a decoder takes rows [B, C] of both ends, a loss scores [B] and [B, K]; both give [B]"
    watch: Any = None  # it is one number, of whole vertex rows: nobody is shown its parts

    def __init__(
        self, given: LinkLoss, artifact: Artifact, weight: float = 1.0, beside: MeanLoss | None = None
    ) -> None:
        self._weight, self.beside = weight, beside
        self._vertices: tuple[Tensor, ...] | None = None  # with a loss beside: which, their labels, their terms
        self._decoder = trained_decoder(given)
        if self._decoder is not None and drops(self._decoder):
            raise InputError("LinkLoss: its decoder drops at random, by block of pairs; leave dropout to the layers")
        for part in self._decoder.modules() if self._decoder is not None else ():
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                check_embedding(f"LinkLoss: its decoder's {type(part).__name__}", part)
        self._given, self._artifact = given, artifact
        self._pairs = LinkPairs(given, artifact)
        self._trained: list[nn.Parameter] = []  # of the decoder's parameters those that its scores depend on

    @property
    def nbytes(self) -> int:
        """Bytes that it holds for the whole run."""
        return self._pairs.nbytes + self._own_bytes

    @property
    def predicted_bytes(self) -> int:
        """``nbytes`` by sizes alone."""
        return self._pairs.predicted_bytes + self._own_bytes

    @property
    def _own_bytes(self) -> int:
        """Of a decoder its parameters and their gradients; of the loss over vertices labels, a byte of terms, and a
        number of each row that has some."""
        decoder = sum(p.nbytes * (2 if p.requires_grad else 1) for p in self._learned)
        if self.beside is None:
            return decoder
        return decoder + int(np.count_nonzero(self.beside.bits)) * (self.beside.label_bytes + 9)

    @property
    def trains(self) -> bool:
        """Whether there is a vertex with a loss, where there is one over vertices; edges there are."""
        return self.beside is None or self.beside.trains

    @property
    def _learned(self) -> list[nn.Parameter]:
        return [] if self._decoder is None else list(self._decoder.parameters())

    @property
    def validates(self) -> bool:
        return self._pairs.has("val")

    @property
    def modules(self) -> list[nn.Module]:
        """Those of which copies compute the losses."""
        return [] if self.beside is None else self.beside.modules

    threshold = 0.0

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
        if self.beside is not None:
            self.beside.check_output(columns, dtype)
        self._check_relations(columns, dtype)
        ends, negatives = self._pairs.form("train")
        counts = [ROWS * count for count in (1, 1, *[negatives] * ends)]
        check_host(4 * sum(counts) * columns * dtype.itemsize)  # with gradients, and what a decoder makes of them
        numbers = torch.sin(torch.arange(sum(counts) * columns, dtype=dtype)).reshape(-1, columns)
        one = next(self._pairs.blocks("train")).relation

        def losses(*rows: Tensor) -> Tensor:
            return self._losses(None if one is None else one[:1].expand(len(rows[0])), *rows)

        leaves = [x.requires_grad_() for x in numbers.split(counts)]
        with torch.enable_grad(), refused_as("LinkLoss: its decoder or loss", self.remedy):
            found = losses(*leaves)
        self._check_leaves(found, leaves)
        self._check_shape(found, ROWS)
        check_alone("LinkLoss: its decoder or loss", losses, *numbers.split(counts))

    def _check_relations(self, columns: int, dtype: torch.dtype) -> None:
        """Refuse relations that the decoder has no rows for."""
        for name, most in self._pairs.most_relations.items():
            try:
                with torch.no_grad():
                    rows = torch.zeros((1, columns), dtype=dtype)
                    self._decode(rows, rows, torch.tensor([most]))
            except IndexError as error:
                parts = self._decoder.modules() if self._decoder is not None else ()
                tables = [str(part.num_embeddings) for part in parts if isinstance(part, nn.Embedding)]
                has = f"has {' and '.join(tables)} rows in its Embedding" if tables else f"fails: {error}"
                raise InputError(
                    f"LinkLoss: {name} holds relations up to {most}, for which its decoder {has}, expected at least "
                    f"{most + 1} rows; make it of so many, or number relations from 0 on"
                ) from None
            except Exception:  # whatever else it does not take is refused with what it is given
                return

    @staticmethod
    def _check_shape(losses: Tensor, count: int) -> None:
        if losses.shape != (count,):
            remedy = (
                "have the decoder give a score for each pair, [B], and a loss of your own bring scores, [B], and those "
                "of negatives, [B, K], to one shape, as (some[:, None] - others).mean(1)"
            )
            raise InputError(
                f"LinkLoss: its loss gives shape {tuple(losses.shape)}, expected one loss per edge: ({count},); "
                f"{remedy if losses.ndim else 'return it without a mean'}"
            )

    def _check_leaves(self, losses: Tensor, rows: Sequence[Tensor]) -> None:
        """That nothing but rows and the decoder's own parameters would be trained."""
        leaves = list(leaves_of(losses))
        self._trained = [p for p in self._learned if any(p is leaf for leaf in leaves)]
        for leaf in leaves:
            if not any(leaf is given for given in (*rows, *self._learned)):
                raise InputError(
                    f"LinkLoss: its decoder or loss has parameters, one of shape {tuple(leaf.shape)}, which would not "
                    "be trained; pass the torch.nn.Module that has them as decoder, or give them to a layer"
                )

    def backward(self, out_VC: Tensor, grad_VC: Tensor, seed: int, epoch: int, turn: tuple[int, int] = (0, 1)) -> float:
        """Add the gradient of the loss by the output to ``grad_VC``; both on the host, in new order.

        Args:
            turn: a rank, and of how many: it takes every so many-th block of pairs, the first the loss beside, too.

        Returns:
            the loss.
        """
        total, key = 0.0, dropout_key(seed, epoch, 0, 0)
        for parameter in self._learned:
            parameter.grad = None
        for parameter in self._trained if turn[1] > 1 else ():  # those of a rank without a block, too
            parameter.grad = torch.zeros_like(parameter)
        for block in islice(self._pairs.blocks("train"), turn[0], None, turn[1]):
            ends = [torch.from_numpy(x) for x in self._ends(block, key, epoch)]
            with torch.enable_grad():
                rows = [out_VC.index_select(0, end).requires_grad_() for end in ends]
                total += self._differentiate(block, rows)
            for end, part in zip(ends, rows, strict=True):
                if part.grad is not None:
                    NUMBA.scatter_add_edges(end, part.grad.contiguous(), grad_VC)
        return total if turn[0] else total + self._add_beside(out_VC, grad_VC)

    def _ends(self, block: EdgesOfSplit, key: int, epoch: int) -> list[np.ndarray]:
        """The vertices whose rows a block's losses are made of."""
        others = self._pairs.negatives("train", block, key, epoch)
        return [block.source, block.destination, *others.reshape(len(others), -1)]

    def _differentiate(self, block: EdgesOfSplit, rows: Sequence[Tensor]) -> float:
        """Give rows and parameters their gradients of a block's part of the loss, which is returned."""
        losses, count = self._losses(block.relation, *rows), self._pairs.count
        self._check_shape(losses, len(block.ids))
        (losses.sum() / count * self._weight).backward()
        return float(losses.detach().double().sum()) / count * self._weight

    def _add_beside(self, out_VC: Tensor, grad_VC: Tensor) -> float:
        """The loss over vertices; adds its gradient."""
        if self.beside is None:
            return 0.0
        if self._vertices is None:
            chosen = np.flatnonzero(self.beside.bits)
            part = self.beside.of_rows(chosen, np.ones(len(chosen), dtype=bool))
            self._vertices = tuple(map(torch.from_numpy, (chosen, part.label_rows(), part.bits)))
        total = 0.0
        for rows, labels, bits in zip(*(x.split(self._given.block) for x in self._vertices), strict=True):
            gradient, loss = self.beside.gradient(out_VC.index_select(0, rows), labels, bits)
            grad_VC.index_add_(0, rows, gradient)
            total += float(loss)
        return total

    def scores(self, out_VC: Tensor, seed: int, metrics: Mapping[str, Score] | None = None) -> dict[str, float]:
        """By split, and of metrics with a name by "SPLIT NAME", the mean over its edges: NaN for a split without edges.

        Args:
            metrics: of :func:`hongtu.model.link_loss.link_scores`; None: its default.
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
        """Refuse metrics that look further than there are negatives; where only those of train are too few, its edges
        are ranked among those of val, where all edges of that share them."""
        for split in ("val", "test", "train"):
            if not self._given.filtered if split == "train" else self._pairs.has(split):
                for score in metrics.values():
                    try:
                        score(torch.ones(1), self._pairs.rivals(split))
                    except InputError as error:
                        if split != "train" or not self._pairs.share_with_train():
                            raise InputError(f"{error} for the {split} edges") from None

    def negatives(self, ids: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """int64 [B, K], or [2, B, K] with ``corrupt="both"``: original ids of the uniform negatives of edges, given by
        number: their position in ``edges``, or the edge id of a graph's own."""
        drawn = self._pairs.drawn(ids, dropout_key(seed, epoch, 0, 0))
        return self._artifact.original_id[drawn if len(drawn) == 2 else drawn[0]].astype(np.int64)

    def _losses(self, relation: Tensor | None, source: Tensor, destination: Tensor, *others: Tensor) -> Tensor:
        positive = self._decode(source, destination, relation)
        return self._given.loss(positive, self._decode_negatives(relation, source, *others))

    def _decode(self, source: Tensor, destination: Tensor, relation: Tensor | None) -> Tensor:
        """[B]: scores, which a module such as torch.nn.Bilinear gives as a column."""
        scores = self._given.decoder(source, destination, *(() if relation is None else (relation,)))
        return scores.squeeze(1) if scores.shape == (len(source), 1) else scores

    def _decode_negatives(self, relation: Tensor | None, source: Tensor, *others: Tensor) -> Tensor:
        """[B, K]: of destinations [B K, C], or of sources and destinations, under the relations of their edges."""
        each = len(others[-1]) // len(source)
        first = others[0] if len(others) == 2 else source.repeat_interleave(each, dim=0)
        kinds = None if relation is None else relation.repeat_interleave(each)
        return self._decode(first, others[-1], kinds).view(-1, each)

    @torch.no_grad()
    def _ranks(self, split: str, out_VC: Tensor, seed: int) -> Iterator[Tensor]:
        """float64 [B]: of each edge among its negatives."""

        def rows(ends: np.ndarray) -> Tensor:
            return out_VC.index_select(0, torch.from_numpy(ends.ravel()))

        if self._given.filtered:
            yield from self._filtered_ranks(split, out_VC)
            return
        shared_Q = self._shared_scores(split, out_VC)
        key = dropout_key(seed, 0, _EVALUATION, ("train", "val", "test").index(split))
        for block in self._pairs.blocks(split):
            source, destination = map(rows, (block.source, block.destination))
            own = self._decode(source, destination, block.relation)
            if shared_Q is not None:
                yield ranks_among(own, shared_Q)
                continue
            others = map(rows, self._pairs.negatives(split, block, key, 0))
            yield ranks(own, self._decode_negatives(block.relation, source, *others))

    def _filtered_ranks(self, split: str, out_VC: Tensor) -> Iterator[Tensor]:
        """As ``_ranks``, among all vertices but those that are known to be destinations."""
        vertices = len(out_VC)
        for block in self._pairs.blocks(split) if split != "train" else ():
            source, destination = (out_VC.index_select(0, torch.from_numpy(ends)) for ends in block[:2])
            own, known = self._decode(source, destination, block.relation).unsqueeze(1), self._pairs.known(block)
            found = torch.ones(len(source), dtype=torch.float64)
            for first in range(0, vertices, self._given.block):
                rows = out_VC[first : first + self._given.block].repeat(len(source), 1)
                scores = self._decode_negatives(block.relation, source, rows)
                for k, ends in enumerate(known):
                    here = ends[(ends >= first) & (ends < first + self._given.block)] - first
                    scores[k, torch.from_numpy(here).long()] = torch.nan  # neither higher nor equal
                found += (scores > own).sum(1) + 0.5 * (scores == own).sum(1).double()
            yield found

    def _shared_scores(self, split: str, out_VC: Tensor) -> Tensor | None:
        """[Q]: of the pairs that are negatives of all edges of a split; None where each edge has its own."""
        shared = self._pairs.shared(split)
        if shared is None:
            return None
        blocks = torch.from_numpy(shared).split(self._given.block, dim=1)
        ends = ([out_VC.index_select(0, end) for end in block] for block in blocks)
        return torch.cat([self._decode(source, destination, None) for source, destination in ends])
