"""Link prediction: a loss over edges and sampled pairs that are none, scored by the output rows of their two ends.

Legend: P positive edges, B edges of a block, K negatives per edge, Q pairs that are negatives of all, C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor, nn

from hongtu.errors import InputError, names_known

DECODER = "decoder"  # what its weights are called, before their own names
CORRUPT = ("destination", "both")  # ends of an edge that its uniform negatives have anew
Decoder = Callable[[Tensor, Tensor], Tensor]
PairLoss = Callable[[Tensor, Tensor], Tensor]


def dot(source: Tensor, destination: Tensor) -> Tensor:
    """[B]: inner product of rows [B, C]."""
    return (source * destination).sum(dim=1)


def logistic(positive: Tensor, negative: Tensor) -> Tensor:
    """[B]: mean over an edge and its negatives of the binary cross-entropy of their scores [B] and [B, K]."""
    # torch's softplus takes what is above 20 for itself, which is off by 2e-9
    losses = nn.functional.logsigmoid(positive) + nn.functional.logsigmoid(-negative).sum(dim=1)
    return -losses / (1 + negative.shape[1])


@names_known
@dataclass(frozen=True)
class LinkLoss:
    """A training loss: the mean over positive edges of ``loss(score of the edge, scores of its negatives)``.

    The negatives of edge u -> v are u -> w for K uniform vertices w (which may by chance be neighbours), or with
    ``corrupt="both"`` K uniform pairs of all vertices: new in every epoch, decided by the trainer's seed, the epoch and
    the edge alone; or they are yours.

    Attributes:
        edges: integers [2, P] in the original ids; None: every edge of the graph.
        negatives: how many uniform ones per positive edge, at least 1; or integers [P, K], the vertices w of each of
            ``edges``, or [2, P, K], sources and destinations; or a function (sources [B], destinations [B], epoch) ->
            integers [B, K] or [2, B, K].
        corrupt: "destination" or "both", of uniform negatives.
        decoder: rows of sources and destinations [B, C] each -> scores [B]; parameters of a ``torch.nn.Module`` are
            trained with the model's, on the host.
        loss: scores [B] and [B, K] -> losses [B].
        val_edges, test_edges: integers [2, P'], which ``evaluate`` scores; not trained on.
        val_negatives, test_negatives: integers [P', K'] or [2, P', K'], their negatives; None: as many uniform ones.
        val_negative_edges, test_negative_edges: integers [2, Q], pairs that are negatives of all edges of the split.
        block: pairs scored at a time.

    Raises:
        InputError: for a decoder or a loss that is no function, a block that is no number.
    """

    edges: Any = None
    negatives: Any = 1
    decoder: Decoder = dot
    loss: PairLoss = logistic
    val_edges: Any = None
    test_edges: Any = None
    val_negatives: Any = None
    test_negatives: Any = None
    val_negative_edges: Any = None
    test_negative_edges: Any = None
    block: int = 1 << 16
    corrupt: str = "destination"

    def __post_init__(self) -> None:
        for name, takes, default in (
            ("decoder", "rows [B, C] of sources and destinations", "inner products"),
            ("loss", "scores [B] of edges and [B, K] of their negatives", "binary cross-entropy"),
        ):
            given = getattr(self, name)
            if not callable(given) or isinstance(given, type):
                raise InputError(
                    f"LinkLoss: {name} is {given!r}, expected a function of {takes}; leave it out for {default}"
                )
        if not isinstance(self.block, Integral) or self.block < 1:
            raise InputError(f"LinkLoss: block is {self.block!r}, expected a whole number of at least 1; leave it out")

    @classmethod
    def from_split(cls, train: Any, val: Any = None, test: Any = None, **options: Any) -> LinkLoss:
        """Of what torch_geometric's ``RandomLinkSplit`` gives: its edges, and the negatives of val and test, which each
        edge of the split is ranked among; those of train are drawn in every epoch. The artifact is made of ``train``,
        whose ``edge_index`` lacks the edges that are to be predicted.

        Args:
            **options: of ``LinkLoss``.

        Raises:
            InputError: where there are no ``edge_label_index`` and ``edge_label``.
        """
        pieces: dict[str, Any] = {"edges": split_edges(train, "train")[0]}
        for name, data in (("val", val), ("test", test)):
            if data is not None:
                pieces[f"{name}_edges"], pieces[f"{name}_negative_edges"] = split_edges(data, name)
        return cls(**pieces | options)


def trained_decoder(loss: Any) -> nn.Module | None:
    """The decoder of a ``LinkLoss`` that is a module, whose parameters are trained."""
    return loss.decoder if isinstance(loss, LinkLoss) and isinstance(loss.decoder, nn.Module) else None


def split_edges(data: Any, name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Edges and pairs that are none, [2, P] and [2, Q] or None, of a ``Data`` of torch_geometric's ``RandomLinkSplit``.

    Raises:
        InputError: when it is no such.
    """
    own = [getattr(data, f"{kind}_edge_label_index", None) for kind in ("pos", "neg")]
    if own[0] is not None:  # split_labels=True
        return np.asarray(own[0]), None if own[1] is None else np.asarray(own[1])
    pairs, labels = (getattr(data, field, None) for field in ("edge_label_index", "edge_label"))
    if pairs is None or labels is None:
        raise InputError(f"from_split: {name} has no edge_label_index and edge_label; pass what RandomLinkSplit gives")
    pairs, is_edge = np.asarray(pairs), np.asarray(labels) > 0
    return pairs[:, is_edge], None if is_edge.all() else pairs[:, ~is_edge]
