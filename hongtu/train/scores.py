"""How good an output is, by split: what ``Trainer.evaluate`` says."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hongtu.ranks.together import Alone, Together


def scores(
    out: Tensor,
    labels: Tensor,
    masks: Mapping[str, Tensor],
    task: str,
    ranks: Together | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Per split the score that is better the higher it is; NaN for a split without vertices.

    Accuracy for one class per vertex, micro-averaged F1 for multi-label, R2 for regression; there also "<split>_mae"
    and "<split>_rmse". Labels that are NaN do not count.

    Args:
        out: [V, C].
        labels: int64 [V] or float32 [V, C].
        masks: bool [V].
        task: "multiclass", "multilabel" or "regression".
        ranks: who has the other vertices, where these are not all; all ranks get the same.
        threshold: above which an output is a yes.
    """
    together = ranks or Alone()
    if task == "multiclass":
        right = chosen_class(out, threshold) == labels
        return {split: _share(right, mask, together) for split, mask in masks.items()}
    found = {}
    for split, mask in masks.items():
        picked = out[mask], labels[mask], together
        found[split] = _regression(*picked) if task == "regression" else _micro_f1(*picked, threshold)
    first = {split: of_split.pop("") for split, of_split in found.items()}
    return first | {f"{split}_{name}": x for split, of_split in found.items() for name, x in of_split.items()}


def chosen_class(out: Tensor, threshold: float) -> Tensor:
    """int64 [T]: the largest of outputs [T, C]; of one column 1 above the threshold, else 0."""
    return out.argmax(dim=1) if out.shape[1] > 1 else (out[:, 0] > threshold).long()


def _share(right: Tensor, mask: Tensor, ranks: Together) -> float:
    """Of the vertices of a split, how many are right."""
    hits, count = _totals(ranks, (right & mask).sum(), mask.sum())
    return float(hits / count)


def _micro_f1(out: Tensor, labels: Tensor, ranks: Together, threshold: float) -> dict[str, float]:
    chosen, true = (out > threshold) & ~labels.isnan(), labels > 0.5
    hits, marked, count = _totals(ranks, (chosen & true).sum(), chosen.sum() + true.sum(), len(out))
    return {"": float(2 * hits / marked.clamp(min=1)) if count else float("nan")}


def _regression(out: Tensor, labels: Tensor, ranks: Together) -> dict[str, float]:
    """Over all columns at once; R2 is NaN where labels do not vary."""
    known = ~labels.isnan()
    error, true = ((x.double()).where(known, 0.0) for x in (out.double() - labels.double(), labels))
    columns = true.shape[1]
    totals = _totals(ranks, *true.sum(dim=0), *known.sum(dim=0))
    mean, numbers = totals[:columns] / totals[columns:], totals[columns:].sum()
    far, squares, off = _totals(
        ranks, (true - mean).where(known, 0.0).square().sum(), error.square().sum(), error.abs().sum()
    )
    r2 = 1 - squares / far if far > 0 else torch.tensor(float("nan"))
    return {"": float(r2), "mae": float(off / numbers), "rmse": float((squares / numbers).sqrt())}


def _totals(ranks: Together, *parts: Tensor | float) -> Tensor:
    """float64: each number, over all ranks."""
    totals = torch.stack([torch.as_tensor(part).double() for part in parts])
    ranks.add_up([totals])
    return totals
