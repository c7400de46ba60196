"""What a random training (``harness.py``) has as labels, in which form they are given, and losses that fit them.

Legend: V vertices, T those with a loss, C columns.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.problems import Problem


@dataclass(frozen=True)
class DrawnLoss:
    """A loss over the vertices of a mask.

    Attributes:
        given: to the Trainer.
        module: torch's, or a function of outputs [T, C] and targets: whose value that is.
        last: what the model ends with, for the loss to take: log-probabilities, or probabilities.
        weights: class weights that the loss was given, or None.
    """

    given: Any
    module: Callable[[Tensor, Tensor], Tensor]
    last: Callable[[], nn.Module] | None = None
    weights: Tensor | None = None

    def whole(self, out: Tensor, target: Tensor) -> Tensor:
        """float64: what torch makes of it, in plain words; of targets that are NaN in some columns, of the others."""
        module = copy.deepcopy(self.module)  # the weights may have changed
        module = module.double() if isinstance(module, nn.Module) else module
        if not target.is_floating_point():
            return module(out, target.double().unsqueeze(1) if out.shape[1] == 1 else target)
        target = target.double()
        known = ~target.isnan()
        if known.all():
            return module(out, target)
        how, module.reduction = module.reduction, "none"
        losses = module(out, target.nan_to_num())[known]
        return losses.sum() if how == "sum" else losses.mean()

    @property
    def threshold(self) -> float:
        """Above which an output is a yes."""
        return 0.5 if isinstance(self.module, nn.BCELoss) else 0.0


# --------------------------------------------------------------------------------------------------------------- labels


def draw_labels(rng: np.random.Generator, kind: str, problem: Problem) -> tuple[Problem, list[str]]:
    """The problem with labels as people have them, and what is odd about these."""
    labels, masks, odd = problem.labels, problem.masks, list[str]()
    if kind == "classes" and rng.random() < 0.4:
        out = rng.random(len(labels)) < 0.3
        out[masks["train"].argmax()] = False
        beyond, labels = rng.random() < 0.5, labels.copy()
        classes = problem.classes
        labels[out] = classes + 2 if beyond else -1
        masks = {split: mask & ~out for split, mask in masks.items()}
        problem = replace(problem, labels=labels, masks=masks, columns=classes)
        odd.append("classes that no mask holds" if beyond else "vertices without a class")
    elif kind != "classes" and rng.random() < 0.3:
        labels = labels.copy()
        labels[rng.random(labels.shape) < 0.3] = np.nan
        none = np.isnan(labels).all(axis=1)
        none[masks["train"].argmax()] = False
        labels[masks["train"].argmax(), 0] = 1
        masks = {split: mask & ~none for split, mask in masks.items()}
        problem = replace(problem, labels=labels, masks=masks)
        odd.append("labels with holes")
    if problem.vertex_type is None and rng.random() < 0.6:
        form = str(rng.choice([*_forms(kind, problem.labels)]))
        problem = replace(problem, given=problem.given | {"labels": _forms(kind, problem.labels)[form]})
        odd.append(f"{kind} as {form}")
    return problem, odd


def _forms(kind: str, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The same labels otherwise: of other dtypes and ranks."""
    holes = bool((labels == -1).any()) if labels.ndim == 1 else bool(np.isnan(labels).any())
    if kind == "numbers":
        return {"float64": labels.astype(np.float64)} | ({"[V]": labels[:, 0]} if labels.shape[1] == 1 else {})
    if kind == "labels":
        one_hot = not holes and bool((labels.sum(axis=1) == 1).all())  # is refused as integers: it may be classes
        forms = {"float64": labels.astype(np.float64)}
        forms |= {} if one_hot else {"integers": np.where(np.isnan(labels), -1, labels).astype(np.int64)}
        return forms | ({} if holes or one_hot else {"bool": labels > 0.5})
    forms = {"int32": labels.astype(np.int32), "[V, 1]": labels[:, None], "int8": labels.astype(np.int8)}
    forms["float32"] = np.where(labels == -1, np.nan, labels).astype(np.float32)
    return forms | ({} if holes or labels.max() > 1 else {"bool": labels == 1})


# --------------------------------------------------------------------------------------------------------------- losses


def draw_loss(rng: np.random.Generator, kind: str, problem: Problem) -> DrawnLoss:
    """One of torch's that fits the labels, as people write it."""
    draw = {"classes": _of_classes, "labels": _of_labels, "numbers": _of_numbers, "one output": _of_one}[kind]
    return draw(rng, problem)


def _of_classes(rng: np.random.Generator, problem: Problem) -> DrawnLoss:
    train = problem.labels[problem.masks["train"]]
    weights = _weights(rng, problem.classes)
    some = {"weight": weights} if rng.random() < 0.5 else {}
    reduction = {"reduction": str(rng.choice(["mean", "sum"]))} if rng.random() < 0.4 else {}
    rare = train.min() if len(np.unique(train)) > 1 and rng.random() < 0.3 else None
    ignored = {} if rare is None else {"ignore_index": int(rare)}
    which = rng.integers(6)
    if which == 0:
        return DrawnLoss("cross_entropy", nn.CrossEntropyLoss())
    if which == 1:
        module = nn.CrossEntropyLoss(**some, **reduction, **ignored, label_smoothing=float(rng.choice([0, 0.1])))
        return DrawnLoss(module, module, weights=module.weight)
    if which == 2:
        smooth = {"label_smoothing": 0.2} if rng.random() < 0.5 else {}
        given = functools.partial(functional.cross_entropy, **some, **ignored, **smooth)
        return DrawnLoss(given, nn.CrossEntropyLoss(**some, **ignored, **smooth), weights=some.get("weight"))
    if which == 3:
        module = nn.MultiMarginLoss(p=int(rng.choice([1, 2])), margin=0.7, **some, **reduction)
        return DrawnLoss(module, module, weights=module.weight)
    last = functools.partial(nn.LogSoftmax, dim=1)
    if which == 4:
        return DrawnLoss(functional.nll_loss, nn.NLLLoss(), last)
    module = nn.NLLLoss(**some, **reduction, **ignored)
    return DrawnLoss(module, module, last, module.weight)


def _of_labels(rng: np.random.Generator, problem: Problem) -> DrawnLoss:
    reduction = {"reduction": str(rng.choice(["mean", "sum"]))} if rng.random() < 0.4 else {}
    holes = bool(np.isnan(problem.labels).any())
    which = rng.integers(3 if holes else 5)
    if which == 0:
        return DrawnLoss("bce_with_logits", nn.BCEWithLogitsLoss())
    if which == 1:
        names = [name for name in ("weight", "pos_weight") if rng.random() < 0.5]
        module = nn.BCEWithLogitsLoss(**{name: _weights(rng, problem.classes) for name in names}, **reduction)
        return DrawnLoss(module, module, weights=module.pos_weight if module.weight is None else module.weight)
    if which == 2:
        return DrawnLoss(nn.BCELoss(**reduction), nn.BCELoss(**reduction), nn.Sigmoid)
    if which == 3:
        weights = _weights(rng, problem.classes)
        given = functools.partial(functional.binary_cross_entropy_with_logits, pos_weight=weights)
        return DrawnLoss(given, nn.BCEWithLogitsLoss(pos_weight=weights), weights=weights)
    module = nn.MultiLabelSoftMarginLoss(weight=_weights(rng, problem.classes), **reduction)
    return DrawnLoss(module, module, weights=module.weight)


def _of_one(rng: np.random.Generator, problem: Problem) -> DrawnLoss:
    which = rng.integers(3)
    if which == 0:
        return DrawnLoss("bce_with_logits", nn.BCEWithLogitsLoss())
    if which == 1:
        module = nn.BCEWithLogitsLoss(pos_weight=_weights(rng, 1))
        return DrawnLoss(module, module, weights=module.pos_weight)
    return DrawnLoss(functional.binary_cross_entropy, nn.BCELoss(), nn.Sigmoid)


def _of_numbers(rng: np.random.Generator, problem: Problem) -> DrawnLoss:
    reduction = {"reduction": str(rng.choice(["mean", "sum"]))} if rng.random() < 0.4 else {}
    modules = [
        nn.MSELoss(**reduction), nn.L1Loss(**reduction), nn.HuberLoss(delta=0.4, **reduction),
        nn.SmoothL1Loss(beta=0.3, **reduction), nn.PoissonNLLLoss(**reduction),
    ]  # fmt: skip
    named = {"mse": nn.MSELoss(), "l1": nn.L1Loss(), "huber": nn.HuberLoss(), "smooth_l1": nn.SmoothL1Loss()}
    functions = [(functional.mse_loss, nn.MSELoss()), (functional.smooth_l1_loss, nn.SmoothL1Loss())]
    both = [*((module, module) for module in modules), *named.items(), *functions]
    return DrawnLoss(*both[rng.integers(len(both))])


def _weights(rng: np.random.Generator, count: int) -> Tensor:
    return torch.from_numpy(rng.uniform(0.5, 2, count)).float()


# --------------------------------------------------------------------------------------------------------------- scores


def score(out: Tensor, target: Tensor, threshold: float, kind: str) -> float:
    """Accuracy, micro-averaged F1, or R2: as docs/training.md says."""
    if not target.is_floating_point():
        chosen = (out[:, 0] > threshold).long() if out.shape[1] == 1 else out.argmax(1)
        return float((chosen == target).double().mean())
    known = ~target.isnan()
    if kind == "labels":
        yes, true = (out > threshold) & known, target.nan_to_num() > 0.5
        return float(2 * (yes & true).sum() / (yes.sum() + true.sum()).clamp(min=1))
    mean = target.double().nanmean(dim=0)
    far = (target - mean)[known].square().sum()
    return float(1 - (out - target)[known].square().sum() / far) if far > 0 else float("nan")
