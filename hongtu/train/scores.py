"""How good an output is, by split: what ``Trainer.evaluate`` says."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def scores(out: Tensor, labels: Tensor, masks: Mapping[str, Tensor], task: str) -> dict[str, float]:
    """Per split the score that is better the higher it is; NaN for a split without vertices.

    Accuracy for one class per vertex, micro-averaged F1 at logit 0 for multi-label, R2 for regression; there also
    "<split>_mae" and "<split>_rmse".

    Args:
        out: [V, C].
        labels: int64 [V] or float32 [V, C].
        masks: bool [V].
        task: "multiclass", "multilabel" or "regression".
    """
    picked = {split: (out[mask], labels[mask]) for split, mask in masks.items()}
    if task == "regression":
        errors = {split: _regression(*pair) for split, pair in picked.items()}
        first = {split: found.pop("r2") for split, found in errors.items()}
        return first | {f"{split}_{name}": x for split, found in errors.items() for name, x in found.items()}
    score = _accuracy if task == "multiclass" else _micro_f1
    return {split: score(*pair) if len(pair[0]) else float("nan") for split, pair in picked.items()}


def _accuracy(out: Tensor, labels: Tensor) -> float:
    return float((out.argmax(dim=1) == labels).double().mean())


def _micro_f1(out: Tensor, labels: Tensor) -> float:
    chosen, true = out > 0, labels > 0.5
    hits = int((chosen & true).sum())
    return 2 * hits / max(int(chosen.sum()) + int(true.sum()), 1)


def _regression(out: Tensor, labels: Tensor) -> dict[str, float]:
    """Over all columns at once; R2 is NaN where labels do not vary."""
    error, true = out.double() - labels.double(), labels.double()
    spread = (true - true.mean(dim=0)).square().sum()
    r2 = 1 - error.square().sum() / spread if spread > 0 else torch.tensor(float("nan"))
    return {"r2": float(r2), "mae": float(error.abs().mean()), "rmse": float(error.square().mean().sqrt())}
