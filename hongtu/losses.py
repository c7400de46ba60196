"""Losses and metrics: sums over vertices, so that chunks can be evaluated one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hongtu.errors import InputError

VertexLoss = Callable[[Tensor, Tensor], Tensor]


def _cross_entropy(out: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(out, target, reduction="none")


def _bce_with_logits(out: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(out, target, reduction="none").mean(dim=1)


LOSSES: dict[str, VertexLoss] = {"cross_entropy": _cross_entropy, "bce_with_logits": _bce_with_logits}


class MeanLoss:
    """The mean of per-vertex losses over the train mask, chunk by chunk.

    Args:
        loss: a name of ``LOSSES`` or a callable (out [T, C], target [T] or [T, C]) -> losses [T].
        multi_label: whether labels are float32 [V, C] instead of int64 [V].
        num_classes: width of multi-label rows, or number of classes.
        count: vertices in the train mask.

    Raises:
        InputError: for an unknown name or one that does not fit the labels.
    """

    def __init__(self, loss: str | VertexLoss, *, multi_label: bool, num_classes: int, count: int) -> None:
        if isinstance(loss, str):
            if loss not in LOSSES:
                raise InputError(f"loss {loss!r}: expected {' or '.join(map(repr, LOSSES))}, or a callable")
            if (loss == "bce_with_logits") != multi_label:
                kind, fit = (
                    ("multi-label", "bce_with_logits") if multi_label else ("one class per vertex", "cross_entropy")
                )
                raise InputError(f"loss {loss!r} does not fit the labels ({kind}): use loss={fit!r} or a callable")
        self._loss = LOSSES[loss] if isinstance(loss, str) else loss
        self._named = isinstance(loss, str)
        self._multi_label, self._num_classes, self._count = multi_label, num_classes, count

    def check_output(self, columns: int) -> None:
        """Refuse a model whose output does not fit the labels.

        Raises:
            InputError: naming both widths.
        """
        fits = columns == self._num_classes if self._multi_label else columns >= self._num_classes
        if self._named and not fits:
            raise InputError(f"the last layer has {columns} columns, the labels have {self._num_classes} classes")

    def gradient(
        self, out: Tensor, label_bytes: Tensor, mask: Tensor, chosen: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradient of the mean loss by one chunk's output, and the chunk's part of the mean.

        Args:
            out: [D, C].
            label_bytes: uint8 [D, B], raw labels of the chunk's rows.
            mask: bool [D], the chunk's part of the train mask.
            chosen: how many are True, where that is known: else a GPU is asked, which means waiting for it.

        Returns:
            gradient [D, C] and the part of the loss, float64, on the device of ``out``.
        """
        if chosen is None:
            rows = mask.nonzero().squeeze(1)
        else:
            rows = _positions(mask, chosen)
        gradient = torch.zeros_like(out)
        if len(rows) == 0:
            return gradient, out.new_zeros((), dtype=torch.float64)
        with torch.enable_grad():
            picked = out.detach().index_select(0, rows).requires_grad_()
            losses = self._loss(picked, self._targets(label_bytes.index_select(0, rows), out.dtype))
            if losses.shape != (len(rows),):
                raise InputError(
                    f"the loss returned shape {tuple(losses.shape)}, expected one loss per vertex: ({len(rows)},); "
                    "pass reduction='none', and a mean over columns where there are several"
                )
            total = losses.sum()
            (total / self._count).backward()
        assert picked.grad is not None
        gradient.index_copy_(0, rows, picked.grad)
        return gradient, losses.detach().double().sum() / self._count

    def _targets(self, label_bytes: Tensor, dtype: torch.dtype) -> Tensor:
        if self._multi_label:
            return label_bytes.view(torch.float32).to(dtype)
        return label_bytes.view(torch.int64).squeeze(1)


def _positions(mask: Tensor, count: int) -> Tensor:
    """int64 [count], where a mask is True, without waiting for a GPU where torch can."""
    try:
        return torch.nonzero_static(mask, size=count).squeeze(1)
    except NotImplementedError:  # older torch, on CUDA
        return mask.nonzero().squeeze(1)


def score(out: Tensor, labels: Tensor, mask: Tensor) -> float:
    """Accuracy over ``mask`` (one class per vertex) or micro-averaged F1 at logit 0 (multi-label); NaN if empty.

    Args:
        out: [V, C].
        labels: int64 [V] or float32 [V, C].
        mask: bool [V].
    """
    if not bool(mask.any()):
        return float("nan")
    out, labels = out[mask], labels[mask]
    if labels.ndim == 1:
        return float((out.argmax(dim=1) == labels).double().mean())
    chosen, true = out > 0, labels > 0.5
    hits = int((chosen & true).sum())
    return 2 * hits / max(int(chosen.sum()) + int(true.sum()), 1)
