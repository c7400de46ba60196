"""Losses of torch.nn and torch.nn.functional per vertex, and what their mean over a mask divides by, known ahead.

Legend: T vertices with a loss, C columns of the output.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.errors import InputError, refused_as

# Torch's losses of outputs and targets, by the function that does the same.
FUNCTIONS: dict[Any, type[nn.Module]] = {
    nn.functional.cross_entropy: nn.CrossEntropyLoss,
    nn.functional.nll_loss: nn.NLLLoss,
    nn.functional.multi_margin_loss: nn.MultiMarginLoss,
    nn.functional.binary_cross_entropy: nn.BCELoss,
    nn.functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    nn.functional.mse_loss: nn.MSELoss,
    nn.functional.l1_loss: nn.L1Loss,
    nn.functional.huber_loss: nn.HuberLoss,
    nn.functional.smooth_l1_loss: nn.SmoothL1Loss,
    nn.functional.soft_margin_loss: nn.SoftMarginLoss,
    nn.functional.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    nn.functional.poisson_nll_loss: nn.PoissonNLLLoss,
    nn.functional.kl_div: nn.KLDivLoss,
    nn.functional.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
}
OF_CLASSES = nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss  # whose targets may be numbers of classes
DIVIDED_BY_WEIGHTS = nn.CrossEntropyLoss, nn.NLLLoss  # whose mean is over the sum of the weights of these


def as_module(loss: Any) -> Any:
    """The module of one of torch's functions, or of a functools.partial of it; other losses as they are."""
    function = getattr(loss, "func", loss)
    try:
        module = FUNCTIONS.get(function)
    except TypeError:  # no key
        return loss
    if module is None or getattr(loss, "args", None):
        return loss
    with refused_as(f"loss {function.__name__}", f"pass torch.nn.{module.__name__}(...) with its arguments"):
        return module(**getattr(loss, "keywords", {}))


def is_torchs(loss: Any) -> bool:
    """Whether a loss is one of torch's own modules."""
    return type(loss) in FUNCTIONS.values()


class PerVertex:
    """A torch loss module as losses [T] and the way in which it reduces them.

    Attributes:
        given: the module, of which a copy computes.
        has_holes: targets are NaN in some columns, which then have no loss and do not count in a mean.
    """

    def __init__(self, module: Any) -> None:
        self.given, self.module = module, copy.deepcopy(module)
        self.reduction = module.reduction
        self.module.reduction = "none"
        self.has_holes = False
        self._on: dict[tuple[torch.device, torch.dtype], nn.Module] = {}

    def __call__(self, out: Tensor, target: Tensor) -> Tensor:
        key = (out.device, out.dtype)
        if key not in self._on:
            self._on[key] = copy.deepcopy(self.module).to(*key)
        module, target = self._on[key], self._fitting(target, out)
        if self.has_holes:
            missing = target.isnan()
            losses = module(out, target.masked_fill(missing, 0))
            if losses.shape != target.shape:
                raise InputError(
                    f"loss {type(self.module).__name__}: some labels have holes (nan in some columns), and it gives no "
                    "loss of each column that could be left out there; pass one that does, such as "
                    "torch.nn.BCEWithLogitsLoss or MSELoss, or a function that looks at nan itself"
                )
            return losses.masked_fill(missing, 0).sum(dim=1)
        losses = module(out, target)
        averages = self.reduction in ("mean", "none")
        return losses if losses.ndim < 2 else losses.mean(dim=1) if averages else losses.sum(dim=1)

    @property
    def is_torchs(self) -> bool:
        return is_torchs(self.module)

    @property
    def of_probabilities(self) -> bool:
        return isinstance(self.module, nn.BCELoss)

    @property
    def compares_numbers(self) -> bool:
        """Whether targets have a number for each column of the output, whatever the labels are."""
        return not isinstance(self.module, OF_CLASSES)

    def whole(self, out: Tensor, target: Tensor) -> Tensor:
        """What the module itself makes of some rows, reduced."""
        module = copy.deepcopy(self.module).to(out.device, out.dtype)
        module.reduction = self.reduction
        return module(out, self._fitting(target, out))

    def _fitting(self, target: Tensor, out: Tensor) -> Tensor:
        """Classes 0 and 1 as numbers [T, 1] where the output has one column."""
        one_column = self.is_torchs and self.compares_numbers and target.ndim == 1 and out.shape[1] == 1
        return target.to(out.dtype).unsqueeze(1) if one_column else target

    def counts(self, labels: np.ndarray) -> np.ndarray:
        """float64 [T], what each vertex counts for in a mean.

        Args:
            labels: int64 [T] or float32 [T, C], of the vertices with a loss.
        """
        if labels.ndim == 2 and self.has_holes and self.reduction != "batchmean":
            return (~np.isnan(labels)).sum(axis=1).astype(np.float64)
        if labels.ndim == 2 or not isinstance(self.module, DIVIDED_BY_WEIGHTS) or self.reduction == "none":
            return np.ones(len(labels))
        counts = (labels != self.module.ignore_index).astype(np.float64)
        if self.module.weight is not None:
            of_class = self.module.weight.double().cpu().numpy()
            inside = (labels >= 0) & (labels < len(of_class))
            counts *= np.where(inside, of_class[np.where(inside, labels, 0)], 0)
        return counts

    def ignores(self, label: np.ndarray) -> np.ndarray:
        """bool: which classes have no loss."""
        return label == getattr(self.module, "ignore_index", None)
