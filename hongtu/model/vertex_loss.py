"""Losses: weighted sums of means over vertices, each over a mask of its own, evaluated chunk by chunk.

Legend: V vertices, D those of a chunk, T those of them with a loss, C columns of the output.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.errors import InputError, refused_as
from hongtu.kernels.torch_private import leaves_of, run_backward
from hongtu.model.loss_terms import (
    DEFAULT,
    KINDS,
    Losses,
    Unscored,
    check_alone,
    checked,
    mask_of,
    terms_of,
    vertex_loss,
    vertex_weight_of,
)
from hongtu.model.random_state import draws_since, kept_random_state, random_state
from hongtu.model.rows_alone import ROWS
from hongtu.model.torch_losses import PerVertex

FEW, MOST_CLASSES = 6, 64  # vertices and classes on which a loss is tried


class MeanLoss:
    """The training loss: per term the mean (or sum) of per-vertex losses over a mask, times the term's weight.

    Args:
        loss: a loss, a ``LossTerm``, or up to eight of these in a list, whose weighted sum is meant.
        labels: int64 [V] or float32 [V, C], in new order.
        masks: bool [V] by split, in new order.
        task: "multiclass", "multilabel" or "regression".
        num_classes: number of classes, or columns of the labels.
        original_id: int32 [V].
        of_edges: they are edges, and outputs a decoder's; messages say so.
        may_be_nan: the loss over a mask whose weights add up to 0, which is refused else.

    Attributes:
        bits: uint8 [V], bit k set where term k has a loss; 1 where nothing is trained and an output is wanted.
        trains: there is a vertex with a loss; there need be none for a loss over the train mask, whose artifact is then
            one to predict on.
        watch: sees every gradient, where it is set: how one is computed, of what, and what came of it.

    Raises:
        InputError: for what is no loss or does not fit the labels.
    """

    def __init__(
        self,
        loss: Losses,
        *,
        labels: np.ndarray,
        masks: Mapping[str, np.ndarray],
        task: str,
        num_classes: int,
        original_id: np.ndarray,
        of_edges: bool = False,
        may_be_nan: bool = False,
    ) -> None:
        self._may_be_nan = may_be_nan
        self._of_edges, self._giver = of_edges, "the decoder" if of_edges else "the last layer"
        given = terms_of(loss)
        self._terms = [term for term in given if not isinstance(term, Unscored)]
        self._labels, self._task, self._num_classes = labels, task, num_classes
        self._rows: np.ndarray | None = None  # which of the labels these are; None: all
        self._names = [_name(term.loss) for term in self._terms]
        self._weights = [vertex_weight_of(term.vertex_weight, original_id) for term in self._terms]
        self.bits = np.zeros(len(labels), dtype=np.uint8)
        self.watch: Callable[..., None] | None = None
        elsewhere = any(not isinstance(term.mask, str) or term.mask != "train" for term in self._terms)
        self.trains = elsewhere or bool(self._terms and np.any(masks["train"]))
        self._chosen = [term.mask for term in given if isinstance(term, Unscored) and term.mask is not None]
        judged = task if self.trains or task == "links" else "multiclass"  # whose losses are judged by the output alone
        self._losses = [vertex_loss(term.loss, judged) for term in self._terms]
        self._scale = list[float]()
        held = dict(masks)
        for k, term in enumerate(self._terms if self.trains else ()):
            mask = mask_of(term.mask, masks, original_id)
            if isinstance(loss := self._losses[k], PerVertex):
                self._check_labelled(loss, mask, original_id)
                loss.has_holes = labels.ndim == 2 and bool(np.isnan(labels[mask]).any())
                held["loss's" if not isinstance(term.mask, str) else term.mask] = mask
            self._scale.append(self._scale_of(k, mask))
            self.bits[mask] |= 1 << k
        for chosen in self._chosen:
            self.bits[mask_of(chosen, masks, original_id)] = 1
        of_classes = labels.ndim == 1 and bool(self._terms)
        counts = {split: labels[mask & (labels >= 0)] for split, mask in held.items()} if of_classes else {}
        self._held = {split: np.bincount(own) for split, own in counts.items()}  # vertices of each class

    def of_rows(self, rows: np.ndarray, owned: np.ndarray) -> MeanLoss:
        """The part of the loss that some vertices have; means stay those over the whole graph.

        Args:
            rows: int64 [R], the vertex of every row of the part.
            owned: bool [R], the rows that count; the others' loss is another part's.
        """
        part = copy.copy(self)
        part._rows = rows if self._rows is None else self._rows[rows]
        part._weights = [None if weight is None else weight[rows] for weight in self._weights]
        part.bits = np.where(owned, self.bits[rows], np.uint8(0))
        return part

    def value(self, out: Tensor, first: int) -> Tensor:
        """float64: the loss of consecutive vertices, from number ``first`` on, whose output is [D, C]."""
        chosen = np.flatnonzero(self.bits[first : first + len(out)])
        part = self.of_rows(first + chosen, np.ones(len(chosen), dtype=bool))
        picked = out.index_select(0, torch.from_numpy(chosen))
        return part.gradient(picked, torch.from_numpy(part.label_rows()), torch.from_numpy(part.bits))[1]

    predicted_bytes = 0  # beside what every vertex brings

    @property
    def loss_vertices(self) -> np.ndarray | None:
        """bool [V], in new order: those with a loss of any term, or whose output alone is wanted; None for all, where
        nothing is trained."""
        return self.bits != 0 if self.trains or self._chosen else None

    @property
    def threshold(self) -> float:
        """Above which an output is a yes: probabilities, where a loss takes such, or logits."""
        return 0.5 if self.of_probabilities else 0.0

    @property
    def of_probabilities(self) -> bool:
        """Whether a loss takes outputs from 0 to 1 alone."""
        return any(isinstance(loss, PerVertex) and loss.of_probabilities for loss in self._losses)

    @property
    def label_bytes(self) -> int:
        """Bytes that one vertex brings to its loss: its label, then its weight in every term that has some."""
        own = self._labels.dtype.itemsize * (self._labels.shape[1] if self._labels.ndim == 2 else 1)
        return own + 8 * sum(weight is not None for weight in self._weights)

    def _labels_of(self, vertices: np.ndarray | slice) -> np.ndarray:
        return np.asarray(self._labels)[vertices if self._rows is None else self._rows[vertices]]

    def label_rows(self) -> np.ndarray:
        """uint8 [V, label_bytes], in new order."""
        parts = [self._labels_of(slice(None)), *(weight for weight in self._weights if weight is not None)]
        rows = [np.ascontiguousarray(part).reshape(len(part), prod(part.shape[1:])).view(np.uint8) for part in parts]
        return np.concatenate(rows, axis=1)

    @property
    def repeats(self) -> bool:
        """Whether every epoch does the same operations: the losses are torch's, and nobody looks."""
        return self.watch is None and all(isinstance(loss, PerVertex) and loss.is_torchs for loss in self._losses)

    @property
    def known(self) -> list[Any] | None:
        """What tells losses apart where all are torch's, else None: modules, which targets have holes, what labels are,
        and the terms that weigh vertices."""
        if not self.repeats:
            return None
        losses = [(loss.given, loss.has_holes) for loss in self._losses if isinstance(loss, PerVertex)]
        return [self._task, self.trains, losses, [weight is not None for weight in self._weights]]

    @property
    def modules(self) -> list[nn.Module]:
        """Those of which copies compute the losses; of a function with its arguments, the one that has these."""
        return [loss.given for loss in self._losses if isinstance(loss, PerVertex)]

    def check_output(self, columns: int, dtype: torch.dtype) -> None:
        """Refuse a model whose output does not fit the labels or the loss, and a loss that gives no losses of vertices,
        mixes them, or reduces them in a way of its own: by running it on a few vertices.

        Raises:
            InputError: naming both widths, or the loss.
        """
        for k, loss in enumerate(self._losses if self.trains else ()):
            title = f"loss {self._names[k]}:"
            if isinstance(loss, PerVertex):
                self._check_columns(title, loss, columns)
            labels = torch.from_numpy(self._various(np.flatnonzero(self.bits & (1 << k))))
            if not (count := len(labels)):
                continue
            labels = labels.to(dtype) if labels.is_floating_point() else labels
            given = _outputs(count, columns, dtype).requires_grad_(), labels
            shown = " and ".join(f"{name} {_form(x)}" for name, x in zip(("outputs", "targets"), given, strict=True))
            of_two = columns == 1 and self._task == "multiclass"
            remedy = (
                f"it is called with {shown}, and gives {count} losses; "
                f"loss={'bce_with_logits' if of_two else DEFAULT[self._task]!r} fits the labels, and docs/training.md "
                "names others"
            )
            with kept_random_state(), torch.enable_grad(), refused_as(title.rstrip(":"), remedy):
                before, losses = random_state(), loss(*given)
                if isinstance(losses, Tensor) and losses.shape == (count, count) != given[0].shape:
                    raise InputError(
                        f"{title} compares each output with each target: of {shown} it gives {count} x {count}; bring "
                        "both to one shape first, as out.view(-1) and target.view(-1)"
                    )
                losses = checked(title, losses, count, draws=bool(draws_since(before)))
            _check_holes(title, losses, *given)
            if others := [leaf for leaf in leaves_of(losses) if leaf is not given[0]]:
                raise InputError(
                    f"{title} is computed of a parameter, too, of shape {tuple(others[0].shape)}, which gets no "
                    "gradient of it; leave that out: an optimizer's weight_decay adds the squares of parameters, and a "
                    "module of the model trains others"
                )
            two = given[1][torch.arange(ROWS) % min(2, count)]
            check_alone(
                title, lambda out, row, own=loss, two=two: own(out, two[row]), _outputs(ROWS, columns, dtype),
                torch.arange(ROWS),
            )  # fmt: skip
            if isinstance(loss, PerVertex):
                self._check_reduction(title, loss, losses, *given)

    def _various(self, vertices: np.ndarray) -> np.ndarray:
        """Labels of a few of these vertices, again and again if there are fewer: of each of up to ``MOST_CLASSES``, or
        one with each label and one without it; then the first ones."""
        labels = self._labels_of(vertices)
        if labels.ndim == 1:
            _, first = np.unique(labels, return_index=True)
        else:
            yes = labels[:, :MOST_CLASSES] > 0
            holes = np.isnan(labels).any(axis=1, keepdims=True)
            found = [x for of in (yes, holes) for x in (of.argmax(axis=0), of.argmin(axis=0))] if len(labels) else []
            first = np.unique(np.concatenate(found)) if found else np.array([])
        picked = labels[np.concatenate([first[:MOST_CLASSES], np.arange(len(labels))[:FEW]]).astype(np.int64)]
        return np.resize(picked, (max(len(picked), FEW), *labels.shape[1:])) if len(labels) else labels

    def _check_reduction(self, title: str, loss: PerVertex, losses: Tensor, out: Tensor, target: Tensor) -> None:
        """That the reduced loss is what the losses of vertices make."""
        if loss.has_holes or loss.reduction == "none":
            return
        whole = loss.whole(out, target).detach()
        if loss.reduction == "mean" and whole.shape == losses.shape:
            return  # it gives losses of vertices whatever its reduction says
        own = losses.detach().sum()
        if loss.reduction != "sum":
            own = own / float(loss.counts(target.numpy()).sum())
        if whole.shape != () or not torch.allclose(own, whole, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise InputError(
                f"{title} with reduction={loss.reduction!r} it is no mean or sum of what it gives with "
                "reduction='none'; pass a function that returns losses per vertex, whose plain mean is taken"
            )

    def _check_columns(self, title: str, loss: PerVertex, columns: int) -> None:
        classes = self._num_classes
        if self._labels.ndim == 2 and columns != classes:
            what = "columns" if self._task == "regression" else "classes"
            raise InputError(f"{self._giver} has {columns} columns, the labels have {classes} {what}")
        if self._labels.ndim == 1:
            self._check_classes(title, loss, columns)
        for name, fits in (("weight", (columns,)), ("pos_weight", (1, columns))):
            weight = getattr(loss.module, name, None)
            if isinstance(weight, Tensor) and weight.numel() not in fits:
                raise InputError(
                    f"loss {type(loss.module).__name__}: {name} has {weight.numel()} numbers, expected one for each of "
                    f"{self._giver}'s {columns} columns"
                )

    def _check_classes(self, title: str, loss: PerVertex, columns: int) -> None:
        """Refuse outputs that cannot be a label of some mask; labels that no mask holds do not count."""
        binary = loss.compares_numbers and columns == 1
        edges, labels = self._of_edges, f"the labels ({KINDS[self._task]})"
        of_numbers = "; to predict numbers preprocess with task='regression' (--task regression)"
        if edges:
            labels, of_numbers = "targets that are classes, integers", "; to predict numbers pass targets as floats"
        if loss.compares_numbers and not binary and loss.is_torchs:
            raise InputError(
                f"{title} does not fit {labels}: use loss='cross_entropy' or "
                f"torch.nn.CrossEntropyLoss; for classes 0 and 1 one column from {self._giver} does, too{of_numbers}"
            )
        end = 2 if binary else columns
        beyond = {
            split: int(count[end:].sum())
            for split, held in self._held.items()
            for count in [np.where(loss.ignores(np.arange(len(held))), 0, held)]
        }
        of = "of the {} edges" if edges else "vertices of the {} mask"
        found = " and ".join(f"{count} {of.format(split)}" for split, count in beyond.items() if count)
        if found:
            of_one = "; with one column use classes 0 and 1, and loss='bce_with_logits'" if columns == 1 else ""
            out = "leave these edges out" if edges else "take these vertices out of the masks"
            raise InputError(
                f"{self._giver} has {columns} columns, the {'targets' if edges else 'labels'} have {self._num_classes} "
                f"classes, and {found} have one of {end} or above; give it more columns, or {out}{of_one}"
                f"{of_numbers if columns == 1 else ''}"
            )

    def gradient(
        self, out: Tensor, label_bytes: Tensor, bits: Tensor, known: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradient of the loss by one chunk's output, and the chunk's part of the loss.

        Args:
            out: [D, C].
            label_bytes: uint8 [D, label_bytes], of the chunk's rows.
            bits: uint8 [D], which terms each row has a loss of.
            known: the same on the host, if it is there: else a GPU is asked, which means waiting for it.

        Returns:
            gradient [D, C] and the part of the loss, float64, on the device of ``out``.
        """
        found = self._gradient(out, label_bytes, bits, known)
        if self.watch is not None:
            self.watch(self._gradient, (out, label_bytes, bits), found)
        return found

    def _gradient(
        self, out: Tensor, label_bytes: Tensor, bits: Tensor, known: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        gradient, parts = torch.zeros_like(out), []
        for k in range(len(self._terms)):
            chosen = bits if len(self._terms) == 1 else bits & (1 << k)
            if known is None:
                rows = chosen.nonzero().squeeze(1)
            else:
                rows = _positions(chosen, (known & (1 << k)) != 0)
            if len(rows) == 0:
                continue
            found, loss = self._term(k, out, label_bytes, rows)
            gradient.index_copy_(0, rows, found if k == 0 else gradient.index_select(0, rows).add_(found))
            parts.append(loss)
        return gradient, sum(parts[1:], start=parts[0]) if parts else out.new_zeros((), dtype=torch.float64)

    def _term(self, k: int, out: Tensor, label_bytes: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            picked = out.detach().index_select(0, rows).requires_grad_()
            own = label_bytes.index_select(0, rows)
            losses = self._losses[k](picked, self._targets(own, out.dtype))
            losses = checked(f"loss {self._names[k]}:", losses, len(rows))
            if self._weights[k] is not None:
                losses = losses * self._weights_of(k, own).to(losses.dtype)
            (found,) = run_backward([losses], [torch.full_like(losses, self._scale[k])], [picked])
        loss = losses.detach().sum(dtype=torch.float64) * self._scale[k]
        return torch.zeros_like(picked) if found is None else found, loss

    def _targets(self, label_bytes: Tensor, dtype: torch.dtype) -> Tensor:
        if self._labels.ndim == 1:
            return label_bytes[:, :8].contiguous().view(torch.int64).squeeze(1)
        return label_bytes[:, : 4 * self._labels.shape[1]].contiguous().view(torch.float32).to(dtype)

    def _weights_of(self, k: int, label_bytes: Tensor) -> Tensor:
        end = -8 * sum(weight is not None for weight in self._weights[k + 1 :])
        numbers = label_bytes[:, end - 8 : end or None]
        return numbers.clone(memory_format=torch.contiguous_format).view(torch.float64).squeeze(1)  # at its own address

    def _scale_of(self, k: int, mask: np.ndarray) -> float:
        """What the sum of the losses over a mask is multiplied by."""
        loss, weight = self._losses[k], self._weights[k]
        if isinstance(loss, PerVertex) and loss.reduction == "sum":
            return self._terms[k].weight
        counts = np.ones(int(mask.sum())) if weight is None else weight[mask]
        if isinstance(loss, PerVertex):
            counts = counts * loss.counts(self._labels[mask])
        total = float(counts.sum())
        if total <= 0:
            if self._may_be_nan:
                return float("nan")
            raise InputError("loss: the weights of the vertices in its mask add up to 0; expected more")
        return self._terms[k].weight / total

    def _check_labelled(self, loss: PerVertex, mask: np.ndarray, original_id: np.ndarray) -> None:
        labels = self._labels[mask]
        bad = np.flatnonzero((labels < 0) & ~loss.ignores(labels) if labels.ndim == 1 else np.isnan(labels).all(axis=1))
        if len(bad):
            vertex = int(original_id[np.flatnonzero(mask)[bad[0]]])
            if self._of_edges:
                what = "target, nan in all columns" if labels.ndim > 1 else "class, a number below 0"
                signs = "" if labels.ndim > 1 else " (of targets -1 and 1 pass targets > 0)"
                raise InputError(
                    f"LinkLoss: edge {vertex} (and {len(bad) - 1} more) has no {what}{signs}; leave these edges out of "
                    "edges and targets"
                )
            raise InputError(
                f"loss: its mask contains vertex {vertex} (and {len(bad) - 1} more) without a label; "
                "clear the mask there, or use a callable that looks at no target"
            )


def _check_holes(title: str, losses: Tensor, out: Tensor, target: Tensor) -> None:
    """Refuse losses that are nan, or have gradients that are, where targets have holes and nowhere else."""
    holes = target.isnan().any(1) if target.ndim == 2 else target.new_zeros(len(target), dtype=torch.bool)
    if bool(holes.any()):
        (gradient,) = torch.autograd.grad(losses.sum(), out, retain_graph=True)
        lost = losses.detach().isnan() | gradient.isnan().any(1)
        if bool(lost[holes].any()) and not bool(lost[~holes].any()):
            raise InputError(
                f"{title} is nan, or its gradient is, where a target has holes (nan in some columns); have it replace "
                "these before it computes with them, as target.nan_to_num(), and leave out what comes of them "
                "(torch.where), or pass one of torch's losses, which leave them out, as torch.nn.MSELoss()"
            )


def _name(loss: Any) -> str:
    function = getattr(loss, "func", loss)
    return repr(loss) if isinstance(loss, str) else getattr(function, "__name__", type(function).__name__)


def _outputs(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Probabilities."""
    return torch.arange(rows * columns, dtype=dtype).sin().reshape(rows, columns) * 0.4 + 0.5


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _positions(chosen: Tensor, known: np.ndarray) -> Tensor:
    """int64 [R], where ``chosen`` is not 0, or the same on the host, ``known`` (bool [D]), is True: without waiting for
    a GPU where torch can."""
    count = int(np.count_nonzero(known))
    if chosen.device.type == "cpu":
        rows = chosen.new_empty(count, dtype=torch.int64)
        rows.numpy()[:] = known.nonzero()[0]
        return rows
    try:
        return torch.nonzero_static(chosen, size=count).squeeze(1)
    except NotImplementedError:  # older torch, on CUDA
        return chosen.nonzero().squeeze(1)
