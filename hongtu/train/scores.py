"""How good an output is, by split: what ``Trainer.evaluate`` says."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hongtu.ranks.together import Alone, Together


def scores(
    out: Tensor, labels: Tensor, masks: Mapping[str, Tensor], task: str, ranks: Together | None = None
) -> dict[str, float]:
    """Per split the score that is better the higher it is; NaN for a split without vertices.

    Accuracy for one class per vertex, micro-averaged F1 at logit 0 for multi-label, R2 for regression; there also
    "<split>_mae" and "<split>_rmse".

    Args:
        out: [V, C].
        labels: int64 [V] or float32 [V, C].
        masks: bool [V].
        task: "multiclass", "multilabel" or "regression".
        ranks: who has the other vertices, where these are not all; all ranks get the same.
    """
    score = {"multiclass": _accuracy, "multilabel": _micro_f1, "regression": _regression}[task]
    found = {split: score(out[mask], labels[mask], ranks or Alone()) for split, mask in masks.items()}
    first = {split: of_split.pop("") for split, of_split in found.items()}
    return first | {f"{split}_{name}": x for split, of_split in found.items() for name, x in of_split.items()}


def _accuracy(out: Tensor, labels: Tensor, ranks: Together) -> dict[str, float]:
    hits, count = _totals(ranks, (out.argmax(dim=1) == labels).sum(), len(out))
    return {"": float(hits / count)}


def _micro_f1(out: Tensor, labels: Tensor, ranks: Together) -> dict[str, float]:
    chosen, true = out > 0, labels > 0.5
    hits, marked, count = _totals(ranks, (chosen & true).sum(), chosen.sum() + true.sum(), len(out))
    return {"": float(2 * hits / marked.clamp(min=1)) if count else float("nan")}


def _regression(out: Tensor, labels: Tensor, ranks: Together) -> dict[str, float]:
    """Over all columns at once; R2 is NaN where labels do not vary."""
    error, true = out.double() - labels.double(), labels.double()
    *sums, count = _totals(ranks, *true.sum(dim=0), len(out))
    mean = torch.stack(sums) / count
    far, squares, off = _totals(ranks, (true - mean).square().sum(), error.square().sum(), error.abs().sum())
    numbers = count * true.shape[1]
    r2 = 1 - squares / far if far > 0 else torch.tensor(float("nan"))
    return {"": float(r2), "mae": float(off / numbers), "rmse": float((squares / numbers).sqrt())}


def _totals(ranks: Together, *parts: Tensor | float) -> Tensor:
    """float64: each number, over all ranks."""
    totals = torch.stack([torch.as_tensor(part).double() for part in parts])
    ranks.add_up([totals])
    return totals
