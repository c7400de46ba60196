"""Label propagation, and Correct and Smooth: what torch_geometric.nn has under these names, on an artifact.

Source: Huang et al., Combining Label Propagation and Simple Models Out-performs Graph Neural Networks (ICLR 2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.errors import InputError
from hongtu.train.propagation import Propagation, RowStep


class LabelPropagation:
    """y <- post_step(alpha P y + (1 - alpha) y_0), ``num_layers`` times, from the labels y_0 of ``mask``.

    ``torch_geometric.nn.LabelPropagation`` without ``edge_weight`` has P of ``Propagation(normalize="symmetric")`` on a
    graph without weights; with ``edge_weight`` that of ``normalize="none"`` on a graph with these weights.

    Args:
        num_layers: steps.
        alpha: share of the neighbours.

    Raises:
        InputError: for a negative number of steps.
    """

    def __init__(self, num_layers: int, alpha: float) -> None:
        if num_layers < 0:
            raise InputError(f"num_layers {num_layers}: expected at least 0")
        self.num_layers, self.alpha = num_layers, alpha

    def __call__(
        self,
        propagation: Propagation,
        y: Tensor,
        mask: Any = None,
        post_step: RowStep | None = None,
        progress: bool | None = None,
    ) -> Tensor:
        """[N, C], original order.

        Args:
            propagation: P, with C columns.
            y: classes int64 [N] (of one of C; negative ones only outside the mask) or values float [N, C].
            mask: bool [N], whose labels are used; None: all.
            post_step: given y [N, C] after each step, in the original order; None: clamp to [0, 1].
        """
        rows = _columns(propagation, y, None if mask is None else _mask(propagation, mask))

        def user(new: Tensor) -> Tensor:
            assert post_step is not None
            return propagation.renumbered(post_step(propagation.ordered(new)))

        then = (lambda new: new.clamp_(0, 1)) if post_step is None else user
        return propagation.ordered(self.steps(propagation, propagation.renumbered(rows), then, progress))

    def steps(self, propagation: Propagation, rows: Tensor, then: RowStep, progress: bool | None) -> Tensor:
        """The same on rows in the artifact's order."""
        return propagation.run(rows, self.num_layers, self.alpha, then, progress=progress, title="propagation")


class CorrectAndSmooth:
    """Correct soft predictions by propagating their errors on labelled vertices, then smooth them along the edges.

    Args:
        num_correction_layers, correction_alpha: of the propagation of errors.
        num_smoothing_layers, smoothing_alpha: of the smoothing.
        autoscale: scale every vertex's propagated error to the mean absolute error of the labelled ones; else labelled
            errors stay fixed during propagation, and what comes out is multiplied by ``scale``.
    """

    def __init__(
        self,
        num_correction_layers: int,
        correction_alpha: float,
        num_smoothing_layers: int,
        smoothing_alpha: float,
        autoscale: bool = True,
        scale: float = 1.0,
    ) -> None:
        self.autoscale, self.scale = autoscale, scale
        self._correction = LabelPropagation(num_correction_layers, correction_alpha)
        self._smoothing = LabelPropagation(num_smoothing_layers, smoothing_alpha)

    def __call__(
        self, propagation: Propagation, y_soft: Tensor, y_true: Tensor, mask: Any, progress: bool | None = None
    ) -> Tensor:
        """``correct``, then ``smooth``; the same arguments."""
        corrected = self.correct(propagation, y_soft, y_true, mask, progress)
        return self.smooth(propagation, corrected, y_true, mask, progress)

    def correct(
        self, propagation: Propagation, y_soft: Tensor, y_true: Tensor, mask: Any, progress: bool | None = None
    ) -> Tensor:
        """[N, C], original order.

        Args:
            propagation: P, with C columns.
            y_soft: probabilities [N, C], such as ``trainer.predict().softmax(1)``.
            y_true: classes int64 [N] or values float [N, C]; those in the mask are used.
            mask: bool [N], the vertices whose labels are known: usually the train mask.
        """
        soft, known = _columns(propagation, y_soft, None), _mask(propagation, mask)
        error = torch.where(known.unsqueeze(1), _columns(propagation, y_true, known) - soft, 0.0)
        rows, here = propagation.renumbered(error), propagation.renumbered(known)
        if not self.autoscale:
            fixed = rows[here]

            def fix(new: Tensor) -> Tensor:
                new[here] = fixed
                return new

            return soft + self.scale * propagation.ordered(self._correction.steps(propagation, rows, fix, progress))
        smoothed = self._correction.steps(propagation, rows, lambda new: new.clamp_(-1, 1), progress)
        scale = error.abs().sum() / int(known.sum()) / smoothed.abs().sum(dim=1, keepdim=True)
        scale[scale.isinf() | (scale > 1000)] = 1.0
        return soft + propagation.ordered(scale * smoothed)

    def smooth(
        self, propagation: Propagation, y_soft: Tensor, y_true: Tensor, mask: Any, progress: bool | None = None
    ) -> Tensor:
        """[N, C], original order; arguments as of ``correct``."""
        soft, known = _columns(propagation, y_soft, None), _mask(propagation, mask)
        rows = torch.where(known.unsqueeze(1), _columns(propagation, y_true, known), soft)
        return self._smoothing(propagation, rows, progress=progress)


def _columns(propagation: Propagation, y: Any, mask: Tensor | None) -> Tensor:
    """[N, C] of the run's dtype, of numbers of classes [N] or [N, 1] or of values; rows outside the mask are 0."""
    vertices, columns = propagation.artifact.num_vertices, propagation.columns
    y = torch.as_tensor(y)
    if y.dtype in (torch.int64, torch.int32) and y.shape in ((vertices,), (vertices, 1)):
        y = y.long().reshape(vertices)
        used = y if mask is None else y[mask]
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < columns:
            raise InputError(f"classes from {int(used.min())} to {int(used.max())}, expected 0 to {columns - 1}")
        rows = torch.zeros((vertices, columns), dtype=propagation.dtype)
        where = torch.arange(vertices) if mask is None else mask.nonzero().squeeze(1)
        rows[where, used] = 1
        return rows
    if not y.is_floating_point() or y.shape != (vertices, columns):
        raise InputError(
            f"{y.dtype} {tuple(y.shape)}, expected classes int64 ({vertices},) or values ({vertices}, {columns})"
        )
    rows = y.detach().to(propagation.dtype)
    return rows if mask is None else torch.where(mask.unsqueeze(1), rows, 0.0)


def _mask(propagation: Propagation, mask: Any) -> Tensor:
    given = mask if isinstance(mask, Tensor) else torch.from_numpy(np.array(mask))
    if given.dtype != torch.bool or given.shape != (propagation.artifact.num_vertices,) or not given.any():
        raise InputError(
            f"mask {given.dtype} {tuple(given.shape)}, expected bool ({propagation.artifact.num_vertices},), not empty"
        )
    return given
