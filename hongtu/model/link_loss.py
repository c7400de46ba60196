"""A loss over edges, by the output rows of both ends: of each edge's target, or against sampled pairs that are none;
and how well edges are told from these: means over edges of what each one's rank says.

Legend: P edges, B edges of a block, K negatives per edge, Q pairs that are negatives of all, C columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.config import HITS
from hongtu.errors import InputError, names_known

DECODER = "decoder"  # what its weights are called, before their own names
CORRUPT = ("destination", "both")  # ends of an edge that its uniform negatives have anew
Decoder = Callable[..., Tensor]
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
    """A training loss: the mean over positive edges of ``loss(score of the edge, scores of its negatives)``; with
    ``targets`` there are no negatives, and it is a loss of what the decoder gives for each edge and of its target.

    The negatives of edge u -> v are u -> w for K uniform vertices w (which may by chance be neighbours), or with
    ``corrupt="both"`` K uniform pairs of all vertices: new in every epoch, decided by the trainer's seed, the epoch and
    the edge alone; or they are yours.

    Attributes:
        edges: integers [2, P] in the original ids; None: every edge of the graph.
        negatives: how many uniform ones per positive edge, at least 1; or integers [P, K], the vertices w of each of
            ``edges``, or [2, P, K], sources and destinations; or a function (sources [B], destinations [B], epoch) ->
            integers [B, K] or [2, B, K].
        corrupt: "destination" or "both", of uniform negatives.
        decoder: rows of sources and destinations [B, C] each -> scores [B], or with ``targets`` [B, D]; one of three
            arguments is given the relations [B], too: those of ``edge_type``, or of the graph's own edges. Parameters
            of a ``torch.nn.Module`` are trained with the model's, on the host.
        loss: scores [B] and [B, K] -> losses [B]; of ``targets`` any loss of vertices (of :class:`hongtu.Trainer`).
            Left out: binary cross-entropy; of targets cross-entropy of classes, mean squared error of numbers.
        targets, val_targets, test_targets: of the edges of a split: classes, integers [P], or numbers [P] or [P, D].
        edge_type, val_edge_type, test_edge_type: integers [P], the relation of each edge of a split.
        filtered: ``evaluate`` ranks the destination of each val and test edge among all vertices but those to which its
            source has an edge of its relation in any split, as is usual for knowledge graphs; not those of train.
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
    loss: Any = logistic
    val_edges: Any = None
    test_edges: Any = None
    val_negatives: Any = None
    test_negatives: Any = None
    val_negative_edges: Any = None
    test_negative_edges: Any = None
    block: int = 1 << 16
    corrupt: str = "destination"
    targets: Any = None
    val_targets: Any = None
    test_targets: Any = None
    edge_type: Any = None
    val_edge_type: Any = None
    test_edge_type: Any = None
    filtered: bool = False

    def __post_init__(self) -> None:
        for name, takes, default in (
            ("decoder", "rows [B, C] of sources and destinations", "inner products"),
            ("loss", "scores [B] of edges and [B, K] of their negatives", "binary cross-entropy"),
        ):
            given = getattr(self, name)
            of_targets = name == "loss" and self.targets is not None  # checked as one of vertices is
            if not of_targets and (not callable(given) or isinstance(given, type)):
                raise InputError(
                    f"LinkLoss: {name} is {given!r}, expected a function of {takes}; leave it out for {default}"
                )
        if not isinstance(self.block, Integral) or self.block < 1:
            raise InputError(f"LinkLoss: block is {self.block!r}, expected a whole number of at least 1; leave it out")

    @property
    def sees_relations(self) -> bool:
        """Whether the decoder is given the relation of every edge."""
        try:
            parameters = inspect.signature(getattr(self.decoder, "forward", self.decoder)).parameters.values()
        except ValueError:  # a function of torch's own has none
            return False
        places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = sum(p.default is p.empty for p in places)
        return needed == 3 or (self.edge_type is not None and needed < 3 <= len(places))

    @classmethod
    def from_split(
        cls, train: Any, val: Any = None, test: Any = None, *, targets: bool | None = None, **options: Any
    ) -> LinkLoss:
        """Of what torch_geometric's ``RandomLinkSplit`` gives: its edges, and the negatives of val and test, which each
        edge of the split is ranked among; those of train are drawn in every epoch. The artifact is made of ``train``,
        whose ``edge_index`` lacks the edges that are to be predicted.

        Args:
            targets: True: ``edge_label`` is the target of every edge, a class or a number; False: what is above 0 is an
                edge; None: that, and there must be no numbers but 0 and 1, or integers.
            **options: of ``LinkLoss``.

        Raises:
            InputError: where there are no ``edge_label_index`` and ``edge_label``.
        """
        pieces: dict[str, Any] = {}
        for name, data in (("", train), ("val_", val), ("test_", test)):
            if data is None:
                continue
            if targets:
                pieces[f"{name}edges"], pieces[f"{name}targets"] = _labelled(data, name[:-1] or "train")
                continue
            pieces[f"{name}edges"], none = split_edges(data, name[:-1] or "train", refuse_numbers=targets is None)
            pieces |= {f"{name}negative_edges": none} if name else {}
        return cls(**pieces | options)


def link_loss_in(loss: Any) -> LinkLoss | None:
    """The ``LinkLoss`` that a loss is, or has among its terms."""
    if isinstance(loss, list | tuple):
        return next(filter(None, map(link_loss_in, loss)), None)
    inner = getattr(loss, "loss", None)  # of a LossTerm
    return loss if isinstance(loss, LinkLoss) else inner if isinstance(inner, LinkLoss) else None


def target_task(targets: Any) -> str:
    """What the targets of edges are: "multiclass" of integers; else "multilabel", where all are 0 or 1 (or missing), or
    "regression"."""
    given = np.asarray(targets)
    if given.ndim == 1 and given.dtype.kind in "iu":
        return "multiclass"
    numbers = given.astype(np.float64)
    return "multilabel" if np.all((numbers == 0) | (numbers == 1) | np.isnan(numbers)) else "regression"


def trained_decoder(loss: Any) -> nn.Module | None:
    """The decoder of a ``LinkLoss`` that is a module, whose parameters are trained."""
    link = link_loss_in(loss)
    return link.decoder if link is not None and isinstance(link.decoder, nn.Module) else None


def _labelled(data: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """``edge_label_index`` [2, P] and ``edge_label`` [P, ...] of a ``Data``."""
    pairs, labels = (getattr(data, field, None) for field in ("edge_label_index", "edge_label"))
    if pairs is None or labels is None:
        whole = ", as from_split(*split)" if isinstance(data, tuple) else ""
        raise InputError(
            f"from_split: {name} has no edge_label_index and edge_label; pass what RandomLinkSplit gives{whole}"
        )
    return np.asarray(pairs), np.asarray(labels)


def split_edges(data: Any, name: str, refuse_numbers: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
    """Edges and pairs that are none, [2, P] and [2, Q] or None, of a ``Data`` of torch_geometric's ``RandomLinkSplit``.

    Raises:
        InputError: when it is no such.
    """
    own = [getattr(data, f"{kind}_edge_label_index", None) for kind in ("pos", "neg")]
    if own[0] is not None:  # split_labels=True
        return np.asarray(own[0]), None if own[1] is None else np.asarray(own[1])
    pairs, labels = _labelled(data, name)
    if refuse_numbers and labels.dtype.kind == "f" and not np.isin(labels, (0, 1)).all():
        raise InputError(
            f"from_split: edge_label of {name} has numbers other than 0 and 1; pass targets=True to train on them, or "
            "targets=False where all above 0 are edges"
        )
    is_edge = labels > 0
    return pairs[:, is_edge], None if is_edge.all() else pairs[:, ~is_edge]


Score = Callable[[Tensor, int], Tensor]  # ranks float64 [P] among so many negatives -> [P]


def ranks(positive_P: Tensor, negative_PK: Tensor) -> Tensor:
    """float64 [P], from 1: one more than the negatives of an edge with a higher score; equal ones count half.

    >>> ranks(torch.tensor([2.0, 1.0]), torch.tensor([[3.0, 1.0], [1.0, 1.0]])).tolist()
    [2.0, 2.0]
    """
    own_P1 = positive_P.unsqueeze(1)
    return 1 + (negative_PK > own_P1).sum(1) + 0.5 * (negative_PK == own_P1).sum(1).double()


def ranks_among(positive_P: Tensor, negative_Q: Tensor) -> Tensor:
    """The same among negatives that all edges share.

    >>> ranks_among(torch.tensor([2.0, 1.0]), torch.tensor([3.0, 1.0, 1.0])).tolist()
    [2.0, 3.0]
    """
    ascending_Q = negative_Q.sort().values
    below, up_to = (torch.searchsorted(ascending_Q, positive_P, right=right).double() for right in (False, True))
    return 1 + len(negative_Q) - up_to + 0.5 * (up_to - below)


def by_name(metric: Any) -> Mapping[str, Any]:
    """Several metrics by their names: those of a mapping, or of a list of names; one alone has none.

    >>> by_name(["auc", "mrr"]), by_name("mrr")
    ({'auc': 'auc', 'mrr': 'mrr'}, {'': 'mrr'})
    """
    if isinstance(metric, list | tuple) and all(isinstance(name, str) for name in metric):
        return {name: name for name in metric}
    return metric if isinstance(metric, Mapping) else {"": metric}


def link_scores(metric: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, Score]:
    """What to compute, by name; the name of the first is empty.

    Args:
        metric: "auc" (None: that), "mrr" or "hits@K", a list of these, or a dictionary of them.

    Raises:
        InputError: for anything else.
    """
    named = by_name("auc" if metric is None else metric)
    found = {name if k else "": _score(given) for k, (name, given) in enumerate(named.items())}
    if not found:
        raise InputError("metric: none; leave it out for the AUC")
    return found


def _score(given: object) -> Score:
    if given == "auc":
        return lambda ranks_P, count: (count - (ranks_P - 1)) / count
    if given == "mrr":
        return lambda ranks_P, count: 1 / ranks_P
    match = HITS.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise InputError(f"metric {given!r}: a LinkLoss takes 'auc', 'mrr' or 'hits@K' ('hits@10'), or a list of these")
    most = int(match[1])

    def hits(ranks_P: Tensor, count: int) -> Tensor:
        if most > count:
            raise InputError(
                f"metric 'hits@{most}': each edge has {count} negatives, so that all are hits; pass more negatives"
            )
        return (ranks_P <= most).double()

    return hits
