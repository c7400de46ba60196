"""How well edges are told from pairs that are none: means over edges of what each one's rank says.

Legend: P edges, K negatives of each, Q pairs that are negatives of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hongtu.config import HITS
from hongtu.errors import InputError

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
