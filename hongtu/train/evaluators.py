"""What ``Trainer.evaluate`` computes: the task's own scores, by split, or any callable of outputs and labels.

A callable takes (out [T, C], target [T] or [T, C], NaN where there is none) of one split and returns a number: a
function, a metric of torchmetrics (reset before every use), or an :class:`OGBEvaluator`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hongtu.config import METRICS
from hongtu.errors import InputError, refused_as
from hongtu.model.link_loss import by_name
from hongtu.ranks.together import Alone, Together

AT_ONCE = 1 << 24  # outputs that are looked at


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
        right = _right(out, labels, masks, threshold)
        counts = {split: _totals(together, (right & mask).sum(), mask.sum()) for split, mask in masks.items()}
        return {split: float(hits / count) for split, (hits, count) in counts.items()}
    found = {}
    for split, mask in masks.items():
        picked = out[mask], labels[mask], together
        found[split] = _regression(*picked) if task == "regression" else _micro_f1(*picked, threshold)
    first = {split: of_split.pop("") for split, of_split in found.items()}
    return first | {f"{split}_{name}": x for split, of_split in found.items() for name, x in of_split.items()}


def _right(out: Tensor, labels: Tensor, masks: Mapping[str, Tensor], threshold: float) -> Tensor:
    """bool [V]: whose class is chosen, of vertices of some split; of a large output, which may lie on a disk, no others
    are read."""
    if out.numel() <= AT_ONCE or not masks:
        return _chosen_class(out, threshold) == labels
    right = torch.zeros_like(labels, dtype=torch.bool)
    for rows in torch.stack([*masks.values()]).any(0).nonzero().squeeze(1).split(AT_ONCE // out.shape[1]):
        right[rows] = _chosen_class(out[rows], threshold) == labels[rows]
    return right


def _chosen_class(out: Tensor, threshold: float) -> Tensor:
    """int64 [T]: the largest of outputs [T, C]; of one column 1 above the threshold, else 0."""
    return out.argmax(dim=1) if out.shape[1] > 1 else (out[:, 0] > threshold).long()


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


# Last words of names of scores that are the better the smaller they are.
_ERRORS = ("error", "loss", "mse", "rmse", "mae", "mape", "nll", "perplexity", "deviance")

Evaluator = Callable[[Tensor, Tensor], Any]
Metric = str | Evaluator | Sequence[str] | Mapping[str, str | Evaluator] | None


def accuracy(out: Tensor, target: Tensor, threshold: float = 0.0) -> float:
    """Share of classes [T] that are chosen: the largest of outputs [T, C], of one column 1 above the threshold; of
    multi-label [T, C] the share of entries that are right, of those that are not NaN."""
    if target.ndim == 1:
        return float((_chosen_class(out, threshold) == target).double().mean())
    chosen, true = _yes_or_no(out, target, threshold)
    return float((chosen == true)[~target.isnan()].double().mean())


def f1(out: Tensor, target: Tensor, threshold: float = 0.0) -> float:
    """F1 of class 1, where there are two; micro-averaged of more, which of one class per vertex is the accuracy, and of
    multi-label."""
    chosen, true = _yes_or_no(out, target, threshold)
    if target.ndim == 1 and chosen.shape[1] == 2:
        chosen, true = chosen[:, 1:], true[:, 1:]
    return float(_f1(chosen, true, dims=(0, 1)))


def macro_f1(out: Tensor, target: Tensor, threshold: float = 0.0) -> float:
    """Mean over classes of each one's F1, over those that are there or chosen; over all columns of multi-label."""
    chosen, true = _yes_or_no(out, target, threshold)
    met = (chosen | true).any(dim=0) if target.ndim == 1 else slice(None)
    return float(_f1(chosen, true, dims=(0,))[met].mean())


def auc(out: Tensor, target: Tensor) -> float:
    """Area under the ROC curve: of two classes by the difference of their outputs, or by the only one, else the mean
    over classes of each one against the others, over those with positives and negatives; by probabilities, a softmax of
    outputs that are none."""
    from scipy.stats import rankdata

    score = (out - out.flip(1))[:, 1:] if target.ndim == 1 and out.shape[1] == 2 else out
    if target.ndim == 1 and score.shape[1] > 1 and not ((score >= 0) & (score <= 1)).all():
        score = score.double().softmax(dim=1)
    _, true = _yes_or_no(out, target, 0.0)
    areas = []
    for k, (column, is_true) in enumerate(zip(score.T, true[:, -score.shape[1] :].T, strict=True)):
        known = slice(None) if target.ndim == 1 else ~target[:, k].isnan()
        column, is_true = column[known], is_true[known]
        ranks, positives = torch.from_numpy(rankdata(column.double().numpy())), int(is_true.sum())
        negatives = len(is_true) - positives
        if positives and negatives:
            wins = (ranks * is_true).sum() - positives * (positives + 1) / 2
            areas.append(wins / (positives * negatives))
    return float(torch.stack(areas).mean()) if areas else float("nan")


def _yes_or_no(out: Tensor, target: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """bool [T, C]: the classes that are chosen, and those that are true; neither where a label is NaN."""
    if target.ndim == 2:
        return (out > threshold) & ~target.isnan(), target > 0.5
    classes = torch.arange(max(out.shape[1], 2))
    return _chosen_class(out, threshold).unsqueeze(1) == classes, target.unsqueeze(1) == classes


def _f1(chosen: Tensor, true: Tensor, dims: tuple[int, ...]) -> Tensor:
    hits, both = (chosen & true).sum(dim=dims), chosen.sum(dim=dims) + true.sum(dim=dims)
    return 2 * hits.double() / both.clamp(min=1)


NAMED: dict[str, Evaluator] = dict(zip(METRICS, (accuracy, f1, macro_f1, auc), strict=True))


class Evaluation:
    """The scores of every split.

    Args:
        metric: None for the task's own (:mod:`hongtu.train.evaluators`); a callable, or one of ``NAMED``; or several: a
            list of these names, or a dictionary of either. The first is the score that early stopping watches.
        task: of the artifact.

    Attributes:
        higher_is_better: of the first one.
        threshold: above which an output is a yes.

    Raises:
        InputError: for anything else.
    """

    def __init__(self, metric: Metric, task: str) -> None:
        named = {} if metric is None else by_name(metric)
        self._evaluators: dict[str, Evaluator] = {}
        for name, given in named.items():
            evaluator = NAMED.get(given) if isinstance(given, str) else given
            if not callable(evaluator) or isinstance(evaluator, type) or not _takes_two(evaluator):
                title = f"metric[{name!r}]" if name else "metric"
                raise InputError(
                    f"{title} is {given!r}: expected a callable (out, target) -> number, or one of {', '.join(NAMED)}; "
                    "or several: a list of these names, or a dictionary of either"
                )
            if isinstance(given, str) and task == "regression":
                raise InputError(f"metric {given!r}: scores classes, and the labels are numbers; leave it out")
            self._evaluators[name] = evaluator
        if metric is not None and not named:
            raise InputError("metric: none; leave it out for accuracy or micro-F1")
        self._task, self.threshold = task, 0.0
        first = next(iter(self._evaluators.items()), None)
        self.higher_is_better = first is None or _higher_is_better(*first)

    def __call__(self, out: Tensor, labels: Tensor, masks: Mapping[str, Tensor], ranks: Together) -> dict[str, float]:
        """``{"train": ..., "val": ..., "test": ...}`` by the first evaluator, and ``"val NAME"`` and so on by the
        others; NaN where a mask is empty.

        Args:
            out: [V, C], on the CPU.
            labels: int64 [V] or float32 [V, C].
            masks: bool [V] by split.
            ranks: who has the other vertices, where these are not all.
        """
        if not self._evaluators:
            return scores(out, labels, masks, self._task, ranks, self.threshold)
        found = {}
        for split, mask in masks.items():
            whole = [torch.cat(list(ranks.each(rows[mask]))) for rows in (out, labels)]
            for k, (name, evaluator) in enumerate(self._evaluators.items()):
                if any(evaluator is own for own in (accuracy, f1, macro_f1)):
                    evaluator = partial(evaluator, threshold=self.threshold)  # type: ignore[call-arg]
                found[split if k == 0 else f"{split} {name}"] = self._evaluate(evaluator, name, *whole)
        return found

    def _evaluate(self, evaluator: Evaluator, name: str, out: Tensor, target: Tensor) -> float:
        if not len(target):
            return float("nan")
        if self._task == "multilabel" and not _is_loss(evaluator) and bool(((target == 0) | (target == 1)).all()):
            target = target.long()  # what metrics of multi-label tasks expect
        reset = getattr(evaluator, "reset", None)
        if callable(reset):
            reset()
        title = f"metric {name!r}" if name else "metric"
        outputs, targets = (f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in (out, target))
        first = "as lambda out, target: metric(out[:, 0], target)" if out.shape[1:] == (1,) else "in a function"
        remedy = f"it is called with outputs {outputs} and targets {targets}; bring them to its form first, {first}"
        try:
            value = evaluator(out, target)
        except ArithmeticError:  # its own, whatever it is given
            raise
        except Exception as error:
            with refused_as(title, remedy):
                raise error
        if callable(reset):
            reset()
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            several = 'several are a dictionary, metric={"a": ..., "b": ...}, or dict(metric) of a MetricCollection'
            remedy = several if isinstance(value, Mapping) else "torchmetrics: pass average=..."
            raise InputError(f"{title} returned {shown}, expected one number ({remedy})") from None


def _is_loss(evaluator: Any) -> bool:
    """Whether it is a loss of torch."""
    where = getattr(getattr(evaluator, "func", evaluator), "__module__", "")
    return "torch.nn" in where and where.endswith((".functional", ".loss"))


def _higher_is_better(name: str, evaluator: Any) -> bool:
    """What an evaluator says itself, as torchmetrics' do; else by its name, as scikit-learn has them: "..._error" and
    "..._loss" are the better the smaller they are, and so are torch's losses."""
    function = getattr(evaluator, "func", evaluator)  # of functools.partial
    said = getattr(evaluator, "higher_is_better", getattr(function, "higher_is_better", None))
    if said is not None:
        return bool(said)
    if _is_loss(evaluator):
        return False
    words = {name, getattr(function, "__name__", "")}
    return not any(word.lower().rpartition("_")[2] in _ERRORS for word in words)


def _takes_two(evaluator: Evaluator) -> bool:
    try:
        inspect.signature(evaluator).bind(None, None)
    except ValueError:  # it has none
        return True
    except TypeError:
        return False
    return True


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
        true = labels if labels.is_floating_point() and labels.isnan().any() else labels.to(torch.int64)
        result = self._official.eval({"y_true": true, "y_pred": predicted})
        return float(result[self._key])
