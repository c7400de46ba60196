"""What ``Trainer.evaluate`` computes: the task's own scores, or any callable of outputs and labels.

A callable takes (out [T, C], target [T] or [T, C]) of one split and returns a number: a function, a metric of
torchmetrics (reset before every use), or an :class:`OGBEvaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hongtu.errors import InputError
from hongtu.train.scores import scores

Evaluator = Callable[[Tensor, Tensor], Any]
Metric = Evaluator | Mapping[str, Evaluator] | None


class Evaluation:
    """The scores of every split.

    Args:
        metric: None for the task's own (:mod:`hongtu.train.scores`); one callable; or several by name,
            of which the first is the score that early stopping watches.
        task: of the artifact.

    Raises:
        InputError: for anything else.
    """

    def __init__(self, metric: Metric, task: str) -> None:
        named = metric if isinstance(metric, Mapping) else {"": metric} if metric is not None else {}
        for name, evaluator in named.items():
            if not callable(evaluator):
                title = f"metric[{name!r}]" if name else "metric"
                raise InputError(f"{title} is {evaluator!r}: expected a callable (out, target) -> number")
        if isinstance(metric, Mapping) and not metric:
            raise InputError("metric: an empty mapping; leave it out for accuracy or micro-F1")
        self._evaluators, self._task = dict(named), task

    def __call__(self, out: Tensor, labels: Tensor, masks: Mapping[str, Tensor]) -> dict[str, float]:
        """``{"train": ..., "val": ..., "test": ...}`` by the first evaluator, and ``"val NAME"`` and so on by the
        others; NaN where a mask is empty.

        Args:
            out: [V, C], on the CPU.
            labels: int64 [V] or float32 [V, C].
            masks: bool [V] by split.
        """
        if not self._evaluators:
            return scores(out, labels, masks, self._task)
        found = {}
        for k, (name, evaluator) in enumerate(self._evaluators.items()):
            for split, mask in masks.items():
                found[split if k == 0 else f"{split} {name}"] = _evaluate(evaluator, name, out, labels, mask)
        return found


def _evaluate(evaluator: Evaluator, name: str, out: Tensor, labels: Tensor, mask: Tensor) -> float:
    if not bool(mask.any()):
        return float("nan")
    target = labels[mask]
    if target.is_floating_point() and bool(((target == 0) | (target == 1)).all()):
        target = target.long()  # what metrics of multi-label tasks expect
    reset = getattr(evaluator, "reset", None)
    if callable(reset):
        reset()
    value = evaluator(out[mask], target)
    if callable(reset):
        reset()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        title = f"metric {name!r}" if name else "metric"
        raise InputError(f"{title} returned {shown}, expected one number (torchmetrics: pass average=...)") from None


class OGBEvaluator:
    """The official evaluator of an OGB node-property dataset, as a metric.

    Args:
        name: of the dataset, such as "ogbn-arxiv".

    Raises:
        InputError: when ogb is not installed, or does not know the dataset.
    """

    def __init__(self, name: str) -> None:
        try:
            from ogb.nodeproppred import Evaluator as Official
        except ImportError as error:
            raise InputError(f"OGBEvaluator: {error}; run `pip install 'hongtu[ogb]'`") from None
        try:
            self._official = Official(name)
        except ValueError as error:
            raise InputError(f"OGBEvaluator({name!r}): {' '.join(str(error).split())[:200]}") from None
        self._key = self._official.eval_metric

    def __call__(self, out: Tensor, target: Tensor) -> float:
        """The dataset's own score of outputs [T, C]: accuracy of the largest, or ROC-AUC per column."""
        labels = target.unsqueeze(1) if target.ndim == 1 else target
        predicted = out.argmax(dim=1, keepdim=True) if self._key == "acc" else out
        result = self._official.eval({"y_true": labels.to(torch.int64), "y_pred": predicted})
        return float(result[self._key])
