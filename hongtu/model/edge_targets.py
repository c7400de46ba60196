"""A ``LinkLoss`` with targets: what is decoded of each edge's two ends, against its class or its numbers.

Legend: P edges of a split, B of a block, C columns of the output, D of what a decoder gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.errors import InputError, refused_as
from hongtu.graph.artifact import Artifact
from hongtu.graph.given import as_array
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.link_loss import LinkLoss, logistic, target_task
from hongtu.model.link_pairs import EdgesOfSplit
from hongtu.model.loss_terms import DEFAULT, check_alone
from hongtu.model.rows_alone import ROWS
from hongtu.model.vertex_loss import MeanLoss

_SPLITS = ("train", "val", "test")


class EdgeTargets(EdgeLoss):
    """A ``LinkLoss`` with targets on an artifact, and a loss over vertices beside it.

    Args:
        given, artifact, weight, beside: as for an ``EdgeLoss``.

    Attributes:
        task: of the targets, as of an artifact.

    Raises:
        InputError: for targets that do not fit their edges, or the loss.
    """

    remedy = "a decoder takes rows [B, C] of both ends and gives [B], or [B, D] columns for classes or several targets"

    def __init__(
        self, given: LinkLoss, artifact: Artifact, weight: float = 1.0, beside: MeanLoss | None = None
    ) -> None:
        super().__init__(given, artifact, weight, beside)
        if not self._pairs.has("train"):
            raise InputError("LinkLoss: targets without edges; pass the edges that have them, in their order")
        if not isinstance(given.negatives, Integral) or given.negatives != LinkLoss.negatives:
            raise InputError("LinkLoss: both negatives and targets, which replace negatives; leave one of them out")
        self.task = target_task(given.targets)
        whole = {"train": given.targets, "val": given.val_targets, "test": given.test_targets}
        self._targets = {split: self._checked(split, x) for split, x in whole.items() if self._pairs.has(split)}
        found = np.concatenate(list(self._targets.values()))
        classes = int(found.max(initial=0)) + 1 if self.task == "multiclass" else found.shape[1]
        ends = np.cumsum([0, *map(len, self._targets.values())])
        masks = {split: np.zeros(len(found), dtype=bool) for split in _SPLITS}
        for split, first, end in zip(self._targets, ends, ends[1:], strict=False):
            masks[split][first:end] = True
        self.labels, self.masks = torch.from_numpy(found), {name: torch.from_numpy(m) for name, m in masks.items()}
        self._mean = MeanLoss(
            DEFAULT[self.task] if given.loss is logistic else given.loss, labels=found, masks=masks, task=self.task,
            num_classes=classes, original_id=np.arange(len(found)), of_edges=True,
        )  # fmt: skip
        self.threshold = self._mean.threshold
        self._bytes = torch.from_numpy(self._mean.label_rows())
        self._bits = torch.from_numpy(self._mean.bits)

    @property
    def modules(self) -> list[nn.Module]:
        return [*super().modules, *self._mean.modules]

    @property
    def _own_bytes(self) -> int:
        """Of labels, too, of what each brings to the loss, and of three masks."""
        own = self.labels.element_size() * self.labels[:1].numel()
        return super()._own_bytes + len(self.labels) * (own + self._mean.label_bytes + 4)

    def check_output(self, columns: int, dtype: torch.dtype) -> None:
        if self.beside is not None:
            self.beside.check_output(columns, dtype)
        self._check_relations(columns, dtype)
        numbers = torch.sin(torch.arange(2 * ROWS * columns, dtype=dtype)).reshape(-1, columns).requires_grad_()
        one = next(self._pairs.blocks("train")).relation

        def decoded(source: Tensor, destination: Tensor) -> Tensor:
            return self._decoded(source, destination, None if one is None else one[:1].expand(len(source)))

        with torch.enable_grad(), refused_as("LinkLoss: its decoder", self.remedy):
            found = decoded(*numbers.split(ROWS))
        self._check_leaves(found, [numbers])
        check_alone("LinkLoss: its decoder", lambda *ends: decoded(*ends).sum(dim=1), *numbers.detach().split(ROWS))
        self._mean.check_output(found.shape[1], dtype)

    def scores(self, out_VC: Tensor, seed: int, metrics: Any = None) -> dict[str, float]:
        """As of an ``EdgeLoss``, by what ``metrics`` makes of what is decoded, the targets and the masks of splits."""
        return metrics(self._all_decoded(out_VC), self.labels, self.masks)

    def check_scores(self, metrics: Any) -> None:
        """Any metric of vertices does."""

    @torch.no_grad()
    def _all_decoded(self, out_VC: Tensor) -> Tensor:
        """[P, D], of all splits one after another."""
        found = []
        for block in (block for split in self._targets for block in self._pairs.blocks(split)):
            source, destination = (out_VC.index_select(0, torch.from_numpy(x)) for x in block[:2])
            found.append(self._decoded(source, destination, block.relation))
        return torch.cat(found)

    def _ends(self, block: EdgesOfSplit, key: int, epoch: int) -> list[np.ndarray]:
        return [block.source, block.destination]

    def _differentiate(self, block: EdgesOfSplit, rows: Sequence[Tensor]) -> float:
        source, destination = rows
        decoded, own = self._decoded(source, destination, block.relation), torch.from_numpy(block.ids)  # train is first
        gradient, loss = self._mean.gradient(decoded.detach(), self._bytes[own], self._bits[own])
        decoded.backward(gradient * self._weight)
        return float(loss) * self._weight

    def _decoded(self, source: Tensor, destination: Tensor, relation: Tensor | None) -> Tensor:
        """[B, D]."""
        found = self._decode(source, destination, relation)
        if not isinstance(found, Tensor) or found.ndim not in (1, 2) or len(found) != len(source):
            shown = tuple(found.shape) if isinstance(found, Tensor) else found
            raise InputError(f"LinkLoss: its decoder gave {shown}, expected [B] or [B, D] for B={len(source)} edges")
        return found.unsqueeze(1) if found.ndim == 1 else found

    def _checked(self, split: str, targets: Any) -> np.ndarray:
        """int64 [P], or float32 [P, D]."""
        name, count = "targets" if split == "train" else f"{split}_targets", self._pairs.edges(split)
        given = as_array(f"LinkLoss: {name}", [] if targets is None else targets)
        classes = self.task == "multiclass"
        good = given.ndim == 1 and given.dtype.kind in "iu" if classes else given.dtype.kind in "fbiu"
        if not good or given.ndim not in (1, 2) or len(given) != count:
            expected = "classes, integers" if classes else "numbers"
            shown = "is not given" if targets is None else f"{given.dtype} {given.shape}"
            raise InputError(f"LinkLoss: {name} {shown}, expected {expected} for {count} edges")
        return given.astype(np.int64) if classes else given.reshape(count, -1).astype(np.float32)
