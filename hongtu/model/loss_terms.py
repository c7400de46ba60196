"""One term of a training loss: what it is per vertex, the vertices that it is over, and what each of them counts.

Legend: V vertices, T those with a loss, C columns of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.config import LOSSES
from hongtu.errors import InputError, names_known
from hongtu.graph.given import as_array
from hongtu.model.link_loss import LinkLoss
from hongtu.model.random_state import draws_since, kept_random_state, random_state, seed_generators, set_random_state
from hongtu.model.rows_alone import Function, Result, distance, find_mixture
from hongtu.model.torch_losses import PerVertex, as_module, is_torchs

VertexLoss = Callable[[Tensor, Tensor], Tensor]
Loss = str | VertexLoss  # modules are callables

_MODULES = nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss
MODULES: dict[str, type[nn.Module]] = dict(zip(LOSSES, _MODULES, strict=True))
DEFAULT: dict[str, Any] = {
    "multiclass": "cross_entropy", "multilabel": "bce_with_logits", "regression": "mse", "links": LinkLoss(),
}  # by task  # fmt: skip
KINDS = {"multiclass": "one class per vertex", "multilabel": "multi-label", "regression": "numbers"}


@names_known
@dataclass(frozen=True)
class LossTerm:
    """One part of a training loss.

    Attributes:
        loss: "cross_entropy", "bce_with_logits", "mse", "l1", "huber" or "smooth_l1"; a loss of torch.nn or
            torch.nn.functional, or a functools.partial of it, whose reduction over the vertices of the mask is torch's
            own; or a callable (out [T, C], target [T] or [T, C]) -> losses [T], whose plain mean is taken.
        weight: what the term is multiplied by.
        mask: the vertices it is over: "train", "val", "test" or bool [N] in the original order.
        vertex_weight: [N] in the original order, at least 0: multiplies each vertex's loss; a mean is then divided by
            the sum of these weights (times the class weights, where there are any) instead of the vertices. It is
            copied, as the mask is: a Trainer does not see what changes in them later.

    Raises:
        InputError: for a weight that is no number.
    """

    loss: Loss
    weight: float = 1.0
    mask: Any = "train"
    vertex_weight: Any = None

    def __post_init__(self) -> None:
        weight = self.weight
        if not isinstance(weight, Real) or not math.isfinite(weight):
            raise InputError(f"LossTerm: weight is {weight!r}, expected a finite number; pass one, such as 0.5")


@dataclass(frozen=True)
class Unscored(LossTerm):
    """In place of a loss: nothing is trained, and the model's output is wanted of the vertices of the mask; None: of
    all."""

    loss: Any = None
    mask: Any = None


Losses = Loss | LossTerm | Sequence[Loss | LossTerm]
MOST_TERMS = 8  # bits of a byte
PLACED = "what it gives for one must not depend on the others, or on its place"
AT_RANDOM = (
    "rows that it chooses or orders at random, as by torch.randperm, would be a chunk's, not the whole graph's; draw "
    "a number for each instead: losses * (torch.rand(len(out)) < 0.5) / 0.5 of reduction='none' takes half of them"
)


def terms_of(loss: Losses) -> list[LossTerm]:
    """Those of which a loss is the weighted sum.

    Raises:
        InputError: for more or fewer than there may be.
    """
    given: list[Any] = list(loss) if isinstance(loss, list | tuple) else [loss]
    if not 1 <= len(given) <= MOST_TERMS:
        raise InputError(f"loss: a list of {len(given)} losses, expected 1 to {MOST_TERMS}")
    return [term if isinstance(term, LossTerm) else LossTerm(term) for term in given]


def parts_of(loss: Any) -> tuple[LossTerm | None, list[LossTerm]]:
    """The term over edges, where there is one, and those over vertices.

    Raises:
        InputError: for two terms over edges, and for one with a mask or weights of vertices.
    """
    terms = terms_of(loss)
    over_edges = [term for term in terms if isinstance(term.loss, LinkLoss)]
    if len(over_edges) > 1:
        raise InputError(f"loss: {len(over_edges)} LinkLosses, expected one; put the edges of all into it")
    if over_edges and (over_edges[0].vertex_weight is not None or not np.array_equal(over_edges[0].mask, "train")):
        raise InputError("loss: a LossTerm of a LinkLoss has a mask or vertex_weight; pass its edges to the LinkLoss")
    return next(iter(over_edges), None), [term for term in terms if term not in over_edges]


def balanced_weights(labels: np.ndarray, mask: np.ndarray, classes: int) -> Tensor:
    """float32 [classes]: vertices / (classes * vertices of the class), over ``mask``; 0 for a class without any.

    >>> balanced_weights(np.array([0, 0, 0, 1]), np.array([True, True, True, True]), 3).tolist()
    [0.4444444477558136, 1.3333333730697632, 0.0]
    """
    count = np.bincount(labels[mask], minlength=classes)
    return torch.from_numpy(np.where(count, count.sum() / (classes * np.maximum(count, 1)), 0).astype(np.float32))


def vertex_loss(loss: Any, task: str) -> VertexLoss:
    """What a term's loss is per vertex.

    Raises:
        InputError: for what is no loss or does not fit the labels.
    """
    if task == "links":
        raise InputError("loss: the artifact has no labels; pass loss=hongtu.LinkLoss(), or preprocess it with labels")
    if isinstance(loss, str):
        if loss not in MODULES:
            raise InputError(f"loss {loss!r}: expected {', '.join(map(repr, MODULES))}, a torch loss or a callable")
        numbers = loss not in ("cross_entropy", "bce_with_logits")
        if task != "multiclass" and loss != DEFAULT[task] and not (numbers and task == "regression"):
            raise InputError(
                f"loss {loss!r} does not fit the labels ({KINDS[task]}): use loss={DEFAULT[task]!r} or a callable"
            )
        return PerVertex(MODULES[loss]())
    loss = as_module(loss)
    if isinstance(loss, nn.Module):
        if any(x.requires_grad for x in (*loss.parameters(), *loss.buffers())):
            raise InputError(
                f"loss {type(loss).__name__}: has parameters, which nothing would train; give them to a layer, or "
                "freeze them (requires_grad_(False), or detach() of what is computed)"
            )
        reduces = getattr(loss, "reduction", None) in ("mean", "sum")
        if reduces and isinstance(loss, torch.jit.ScriptModule):
            raise InputError(
                f"loss {loss.original_name}: it is scripted, so that its reduction cannot be set; pass it as it was "
                "before torch.jit.script"
            )
        if reduces or is_torchs(loss):
            return PerVertex(loss)
    if isinstance(loss, type):
        raise InputError(f"loss is the class {loss.__name__}: expected a loss; pass {loss.__name__}()")
    if not callable(loss):
        raise InputError(f"loss {loss!r}: expected a name, a torch loss, a callable, a LossTerm or a list of these")
    return loss


def checked(title: str, losses: Any, count: int, *, draws: bool = False) -> Tensor:
    """Losses [T], one for each of ``count`` vertices.

    Args:
        draws: random numbers were drawn for them.

    Raises:
        InputError: for anything else, and for those that do not depend on the output.
    """
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        what = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else repr(losses)
        remedy = "return losses per vertex, whose plain mean over the mask is taken"
        if draws:
            remedy = f"{remedy}, as of reduction='none'; {AT_RANDOM}"
        elif isinstance(losses, Tensor) and losses.ndim == 0:
            remedy = (
                "pass torch's loss itself, such as torch.nn.CrossEntropyLoss(weight=...), whose mean over the mask is "
                f"then as torch takes it; or {remedy}"
            )
        elif isinstance(losses, Tensor) and losses.ndim == 2 and len(losses) == count:
            remedy = "return their mean(dim=1)"
        raise InputError(f"{title} returned {what}, expected one loss per vertex: ({count},); {remedy}")
    if not losses.requires_grad:
        raise InputError(
            f"{title} does not depend on the output, so that nothing would be trained; leave out detach(), .data and "
            "no_grad()"
        )
    return losses


def mask_of(mask: Any, masks: Mapping[str, np.ndarray], original_id: np.ndarray) -> np.ndarray:
    """bool [V], in new order."""
    if isinstance(mask, str):
        if mask not in masks:
            raise InputError(f"loss: mask {mask!r}, expected {', '.join(map(repr, masks))} or bool [N]")
        chosen = np.asarray(masks[mask])
    else:
        given = as_array("loss: mask", mask)
        if given.dtype != bool or given.shape != original_id.shape:
            raise InputError(f"loss: a mask {given.dtype} {given.shape}, expected bool ({len(original_id)},)")
        chosen = given[original_id]
    if not chosen.any():
        raise InputError("loss: its mask is empty, expected at least one vertex")
    return chosen


def vertex_weight_of(weight: Any, original_id: np.ndarray) -> np.ndarray | None:
    """float64 [V], in new order."""
    if weight is None:
        return None
    given = as_array("loss: vertex_weight", weight)
    good = given.dtype.kind in "fiub" and given.shape == original_id.shape
    if not good or not np.isfinite(given).all() or (given < 0).any():
        raise InputError(
            f"loss: vertex_weight {given.dtype} {given.shape}, expected finite numbers of at least 0, "
            f"({len(original_id)},)"
        )
    return given.astype(np.float64)[original_id]


def check_alone(title: str, losses: Callable[..., Tensor], *given: Tensor) -> None:
    """Refuse losses that mix rows, or that change with their calls.

    Args:
        title: what they are called.
        losses: gives those of as many rows as it is given, [R]; may draw from generators of torch, numpy and Python.
        given: what losses of ``ROWS`` rows are computed from: one row for each, or several; the floats first.

    Raises:
        InputError: with the title.
    """
    before, seeds = random_state(), False

    def call(given: Sequence[Tensor]) -> Result:
        set_random_state(before)
        found = losses(*given)
        return Result([found], [] if seeds else draws_since(before))

    leaves = sum(x.is_floating_point() for x in given)
    with kept_random_state(), torch.enable_grad():
        both = [call([x.detach().requires_grad_(x.is_floating_point()) for x in given]) for _ in range(2)]
        first, again = (found.rows[0] for found in both)
        if distance(first, again, first):
            raise InputError(
                f"{title} gives something else when it is called again with the same rows, as it is for each chunk; "
                "keep nothing between calls, and draw from the generators of torch, numpy or Python"
            )
        others = []
        for seed in range(8) if both[0].draws else ():
            seed_generators(seed)
            others.append(losses(*given).detach())
        seeds = all(torch.equal(others[0], other) for other in others)  # itself: what it draws goes by a row's place
        mixture = find_mixture(Function(call, tuple(given), leaves))
        if mixture is not None and mixture.counted is not None:
            raise InputError(
                f"{title} gives a parameter of shape {tuple(mixture.counted.shape)} a gradient that is no sum over "
                "rows, as an Embedding does that counts those of a chunk (scale_grad_by_freq=True); make it without"
            )
        if mixture is not None and mixture.shared:
            raise InputError(
                f"{title} draws random numbers that are not those of one row, as np.random.rand() and torch.rand(1) "
                "do, and every chunk would draw others; draw some for each row, as torch.rand(len(out)) does"
            )
        if mixture is not None and (why := _fails_alone(losses, given)):
            raise InputError(
                f"{title} of one row, which may be all of a chunk's, it {why}, expected shape (1,); name the dimension "
                "where it takes one away, as out.squeeze(1)"
            )
        if mixture is not None:
            raise InputError(
                f"{title} mixes the rows that it is given, which would be those of a chunk instead of all; "
                f"{PLACED if seeds else AT_RANDOM}"
            )


def _fails_alone(losses: Callable[..., Tensor], given: Sequence[Tensor]) -> str:
    """What becomes of a single row, where that is no loss and two rows do not mix; "" elsewhere."""
    whole, two = losses(*given), losses(*(x[:2] for x in given))
    if two.shape != (2,) or distance(whole[:2], two, whole[:2]):
        return ""
    try:
        shape = tuple(losses(*(x[:1] for x in given)).shape)
    except Exception as error:
        return f"fails ({' '.join(str(error).split())[:200] or type(error).__name__})"
    return "" if shape == (1,) else f"returns shape {shape}"
