"""Whether a function treats each row alone, judged from outside: what it gives for one must not change with the others.

A function is called with tensors that have a row, or as many for each, for every one of R rows, and gives tensors
[R, ...]. What it does inside, and in which shapes, does not matter. Calls of the same shapes, in which a row is the
same at the same place, are compared to the bit; where shapes or places differ, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hongtu.kernels.torch_private import leaves_of
from hongtu.model.row_operations import Bounds, Draws, Flips, Holds, Indices

Given = tuple[Tensor, ...]
Kept = tuple[int, ...]

ROWS = 7  # that a function is judged on
MANY = 97  # that it is looked at, too: those that few take from 7 or more places away are their own, or none
FEWER = 5  # that it is given to see what it draws
ROUNDING = 64  # units in the last place, which rows may differ by where they lie elsewhere
ABOVE, BELOW, ALIKE, MOVED, UNKNOWN = range(5)


class Look(NamedTuple):
    """What the rows that are not kept become.

    Attributes:
        brief: one of the few that modules known to train and evaluate alike could do with.
        gradients: those of the kept rows are compared, too.
    """

    kept: Kept
    others: int
    brief: bool = False
    gradients: bool = False


LOOKS = (  # of rows as ``varied`` makes them
    Look((0, 2, 5), ABOVE, brief=True, gradients=True),
    Look((4,), BELOW, brief=True),  # all are negative
    Look((6,), ABOVE),  # all are positive
    Look((0,), ALIKE, gradients=True),
    Look((1, 3, 5), MOVED),
    Look((2,), UNKNOWN, brief=True),
)
PLACED = 2  # the row that is looked at in other places
LITTLE = 1e-3  # of what is given: what is less in all rows may be rounding alone, as a sum of what layer norm gives
MOST = 1 << 24  # numbers that are taken to look at one there
COUNTED = 0.05  # of a gradient of twice the rows: more than rounding, in any precision
MOST_OF_MANY = 1 << 22  # numbers of as many rows; else fewer are taken
MOST_COMPARISONS = 1 << 10  # of one call


@dataclass(frozen=True)
class Result:
    """What a call gave.

    Attributes:
        rows: tensors [R, ...].
        draws: states of random generators behind the call, torch's and then the others; none where nothing drew.
    """

    rows: Sequence[Tensor]
    draws: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Function:
    """A function and what it is judged on.

    Attributes:
        call: of as many rows as its tensors have; leaves these as they are.
        given: tensors with one row, or as many, for each of ``ROWS``, in order; those of bools stay as they are.
        leaves: so many of them, from the first on, get gradients.
        near: how far results may be apart, of the largest; 0: not a bit.
        brief: only the brief looks, and one for numbers that rows are counted off by.
        codes: whole numbers are read off numbers of rows, and are not places of rows or edges.
        others: the tensors with other rows in them, as they were made before.
    """

    call: Callable[[Given], Result]
    given: Given
    leaves: int = 0
    near: float = 0.0
    brief: bool = False
    codes: bool = False
    others: dict[Look, Given] = field(default_factory=dict)


@dataclass(frozen=True)
class Mixture:
    """Two calls that should have given the same for a row.

    Attributes:
        first, second: what was given.
        rows: the places of the row there.
        size: how far the results are apart, of the largest.
        place: it was the row's place, or how many there are, that made the difference, and not the others' numbers.
        shared: random numbers are drawn that are not those of one row.
        counted: a parameter whose gradient is no sum over rows.
    """

    first: Given
    second: Given
    rows: tuple[int, int]
    size: float
    place: bool = False
    shared: bool = False
    counted: Tensor | None = None


def find_mixture(function: Function) -> Mixture | None:
    """What shows that rows mix, or None. Where random numbers are drawn by what is given, nothing does.

    Raises:
        Exception: the function's own, for what it is given.
    """
    base = _Trial(function, function.given)
    if not base.has(ROWS):
        return Mixture(function.given, function.given, (0, 0), torch.inf)
    return (
        _find_mixture(function, base)
        or _find_far(function, base)
        or _find_counted(function, base)
        or _find_chosen(function)
    )


def _find_chosen(function: Function) -> Mixture | None:
    """The same where every comparison of numbers holds, so that rows are chosen which have a value that none here has,
    as those with a flag; None where no comparison fails."""
    holding = Holds(function.codes)

    def call(given: Given) -> Result:
        holding.left = MOST_COMPARISONS
        with holding:
            return function.call(given)

    with suppress(Exception):
        base = _Trial(held := replace(function, call=call, leaves=0, brief=True), function.given)
        if holding.found and base.has(ROWS):
            return _find_mixture(held, base)
    return None


def _find_mixture(function: Function, base: _Trial) -> Mixture | None:
    whole = base.gradients(torch.ones(ROWS, dtype=torch.bool))
    for look in LOOKS:
        if function.brief and not look.brief:
            continue
        if look not in function.others:
            function.others[look] = tuple(_changed(x, look) for x in function.given)
        given = function.others[look]
        flips = Flips()
        try:
            with flips if look.others == UNKNOWN else nullcontext():
                trial = _Trial(function, given)
            trials = [trial, _Trial(function, given)] if flips.found else [trial]
        except Exception:  # such as a draw with probabilities above 1
            continue
        lost = look.others == UNKNOWN and not flips.found
        sizes = [base.apart(row, other, row, lost=lost) for other in trials for row in look.kept]
        if look.gradients and whole:
            lost = any(not x.isfinite().all() for x in trial.rows if x.is_floating_point())
            kept = torch.isin(torch.arange(ROWS), torch.tensor(look.kept))
            sizes.append(_gradients_apart(whole, trial.gradients(kept), kept, lost=lost))
        if (size := max(sizes)) > function.near and base.draws_like(trial):
            return Mixture(function.given, given, (look.kept[sizes.index(size) % len(look.kept)],) * 2, size)
    return _find_shared(function) if base.draws else _find_place(function, base)


def _find_far(function: Function, base: _Trial) -> Mixture | None:
    """The same among more rows, of the same kinds in random order, than any number that some are taken by: about half
    of them change places. What their whole numbers point at stays: the first ``ROWS``."""
    size, many = max(1, sum(x.numel() for x in function.given) // ROWS), _many(function)
    counts, bounds = [many] if many > ROWS else [], Bounds(many)
    for count in counts:
        random = torch.Generator().manual_seed(count)
        of = torch.cat([torch.arange(ROWS), torch.randint(ROWS, (count - ROWS,), generator=random)])
        moved = ROWS + torch.randperm(count - ROWS, generator=random)[: (count - ROWS) // 2]
        places = torch.arange(count)
        places[moved], kept = moved.roll(1), torch.isin(places, moved, invert=True)
        given = tuple(_parts(x)[of].flatten(0, 1) for x in function.given)
        other = tuple(x if x.dtype is torch.bool else _parts(x, count)[places].flatten(0, 1) for x in given)
        found = Mixture(given, other, (0, 0), torch.inf)
        try:
            with bounds if count == many else nullcontext(), Indices(bounds) if count == many else nullcontext():
                first = _Trial(function, given)
                whole = first.gradients(torch.ones_like(kept)) if first.has(count) else []
            second = _Trial(function, other)
        except Exception:
            return replace(found, second=function.given, place=True)
        if not first.has(count) or not second.has(count):
            return replace(found, second=function.given, place=True)
        if first.draws_like(second):
            if (row := _differing(first, second, torch.arange(count), kept, function.near)) is not None:
                return replace(found, rows=(row, row), size=first.apart(row, second, row))
            ends, some = kept[ROWS:], second.gradients(kept) if whole else []
            apart = _gradients_apart([x[ROWS:] for x in whole], [x[ROWS:] for x in some], ends, lost=False)
            if apart > function.near:
                return replace(found, size=apart)
        every = torch.ones_like(kept)
        if not base.draws and (row := _differing(base, first, of, every, base.slack(function))) is not None:
            rows = int(of[row]), row
            return Mixture(function.given, given, rows, base.apart(rows[0], first, row), place=True)
        if count == many:
            counts += sorted(bound + many for bound in bounds.found if (bound + many) * size <= MOST)[-1:]
    return None


def _find_counted(function: Function, base: _Trial) -> Mixture | None:
    """What shows that the gradient of a parameter is no sum over rows, as with ``scale_grad_by_freq``: of all rows
    twice it is not twice as large."""
    twice = tuple(x.repeat(2, *[1] * (x.ndim - 1)) for x in function.given)
    if base.draws:
        return None
    with suppress(Exception):  # a function without gradients is refused where it trains
        first, second = (_Trial(function, given, grad=True).of_parameters() for given in (function.given, twice))
        for parameter, once in first.items():
            if parameter in second and distance(2 * once, second[parameter], once, torch.tensor(LITTLE)) > COUNTED:
                return Mixture(function.given, twice, (0, 0), torch.inf, counted=parameter)
    return None


def _many(function: Function) -> int:
    """How many rows to look at: ``MANY``, fewer of wide ones, and of those that are too wide for that ``ROWS``."""
    fit = MOST_OF_MANY * ROWS // max(1, sum(x.numel() for x in function.given))
    return min(MANY, fit) if fit > ROWS and fit % ROWS else ROWS


def _find_shared(function: Function) -> Mixture | None:
    """What shows that as many random numbers are drawn for fewer rows: every chunk draws others, for all its rows. Of
    generators beside torch's, that they are behind these where they are behind all, or that none at all draw some."""
    fewer = tuple(x[: len(x) // ROWS * FEWER] for x in function.given)
    shapes, states = [], []
    for given in (function.given, fewer):
        with Draws() as draws:
            states.append(_Trial(replace(function, leaves=0), given).draws)
        shapes.append(draws.shapes)
    same = len(shapes[0]) == len(shapes[1]) and any(x == y for x, y in zip(*shapes, strict=True))
    first = 1 if shapes[0] else 0  # of the generators whose draws nobody has seen
    if any(map(len, states[0][first:])):
        same |= len(states[0]) == len(states[1]) and all(map(torch.equal, states[0][first:], states[1][first:]))
        with suppress(Exception):  # which no rows are too few for
            none = _Trial(replace(function, leaves=0), tuple(x[:0] for x in function.given))
            same |= any(map(len, none.draws[first:]))
    return Mixture(function.given, fewer, (0, 0), torch.inf, shared=True) if same else None


def _find_place(function: Function, base: _Trial) -> Mixture | None:
    """The same for a row among copies of itself, alone, and among more than any number that rows are counted off by."""
    slack = base.slack(function)
    one = tuple(_parts(x)[PLACED] for x in function.given)
    many = _many(function)
    counts, bounds = [many, 1], Bounds(many)
    for count in counts:
        given = tuple(x.repeat(count, *[1] * (x.ndim - 1)) for x in one)
        found = Mixture(function.given, given, (PLACED, 0), torch.inf, place=True)
        try:
            looks = function.brief and count == many
            with bounds if looks else nullcontext(), Indices(bounds) if looks else nullcontext():
                trial = _Trial(replace(function, leaves=0), given)
        except Exception:  # as functional.batch_norm does for one row
            return found
        if not trial.has(count):
            return found
        for k, out in enumerate(trial.rows):  # all places at once, then one by one
            if distance(base.rows[k][PLACED].expand_as(out), out, base.rows[k], *base.little) > slack:
                places = ((place, base.apart(PLACED, trial, place)) for place in range(count))
                place, size = next(found for found in places if found[1] > slack)
                return replace(found, rows=(PLACED, place), size=size)
        if count == 1:
            most = MOST // sum(x.numel() for x in one)
            if max(bounds.found, default=0) + 2 > most:  # too many rows to look at
                return found
            counts += sorted(bound + 2 for bound in bounds.found)
    return None


class _Trial:
    """One call, and gradients of what it gave."""

    def __init__(self, function: Function, given: Given, *, grad: bool = False) -> None:
        self._leaves = [x.detach().requires_grad_() for x in given[: function.leaves]]
        with torch.set_grad_enabled(grad or function.leaves > 0):
            result = function.call((*self._leaves, *given[function.leaves :]))
        self.rows, self.draws = result.rows, result.draws
        self.little = [LITTLE * x.detach() for x in given if x.is_floating_point()]

    def has(self, count: int) -> bool:
        """Whether it gave so many rows."""
        return all(out.ndim > 0 and len(out) == count for out in self.rows)

    def draws_like(self, other: _Trial) -> bool:
        """Whether both drew the same random numbers."""
        return len(self.draws) == len(other.draws) and all(map(torch.equal, self.draws, other.draws))

    def slack(self, function: Function) -> float:
        """How far a row may be from itself at another place."""
        return max([function.near, *(ROUNDING * torch.finfo(x.dtype).eps for x in self.rows if x.is_floating_point())])

    def apart(self, row: int, other: _Trial, its: int, *, lost: bool = False) -> float:
        """How far a row of the results is from one of another's, of the largest number here. With ``lost`` only numbers
        that are none any more count."""
        found = 0.0
        for x, y in zip(self.rows, other.rows, strict=True):
            if len(y) <= its:
                return torch.inf
            if not lost:
                found = max(found, distance(x[row], y[its], x, *self.little))
            elif bool((y[its].isnan() & ~x[row].isnan()).any()):
                return torch.inf
        return found

    def _differentiable(self) -> list[Tensor]:
        return list({id(out): out for out in self.rows if out.requires_grad}.values())

    def of_parameters(self) -> dict[Tensor, Tensor]:
        """Gradients of what is no row, of the results of all rows, which may be there several times."""
        outs = self._differentiable()
        own = {leaf: None for out in outs for leaf in leaves_of(out) if not any(leaf is x for x in self._leaves)}
        if not own:
            return {}
        weights = [torch.cos(torch.arange(out[:ROWS].numel())).repeat(len(out) // ROWS) for out in outs]
        shaped = [weight.view(out.shape).to(out.dtype) for weight, out in zip(weights, outs, strict=True)]
        found = torch.autograd.grad(outs, list(own), shaped, allow_unused=True)
        return {x: grad.to_dense() for x, grad in zip(own, found, strict=True) if grad is not None}

    def gradients(self, kept: Tensor) -> list[Tensor]:
        """By the leaves, [R, rows of one, ...], of the results of some rows, bool [R]; none where there are none."""
        outs = self._differentiable()
        if not outs or not self._leaves:
            return []
        count, only = len(kept), kept.float().unsqueeze(1)
        weights = [
            (torch.cos(torch.arange(out.numel())).view(count, -1) * only).view(out.shape).to(out.dtype) for out in outs
        ]
        with suppress(RuntimeError):  # a function without gradients is refused where it trains
            found = torch.autograd.grad(outs, self._leaves, weights, allow_unused=True)
            pairs = zip(self._leaves, found, strict=True)
            return [_parts(torch.zeros_like(x) if grad is None else grad, count) for x, grad in pairs]
        return []


def distance(x: Tensor, y: Tensor, *whole: Tensor) -> float:
    """How far two tensors are apart, of the largest number in others; 0 where they are the same, NaN included."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return torch.inf
    x, y = x.detach(), y.detach()
    if torch.equal(x, y):
        return 0.0
    same = (x == y) | ((x != x) & (y != y))
    if bool(same.all()):
        return 0.0
    if not x.is_floating_point() or not bool((same | (x.isfinite() & y.isfinite())).all()):
        return torch.inf
    largest = max(float(of.detach().nan_to_num(0, 0, 0).abs().max()) for of in whole if of.numel())
    return float((x - y)[~same].abs().max()) / max(largest, 1e-300)


def _gradients_apart(whole: Sequence[Tensor], some: Sequence[Tensor], kept: Tensor, *, lost: bool) -> float:
    """How far gradients of all rows' results are, for the kept rows, from those of these rows' results alone; and how
    far the latter are from 0 for the others. What is not finite comes from 0 times infinity: in kept rows, too, where
    results of others are ``lost``, as those of 1 / x are in rows of zeros."""
    found, little = 0.0, torch.tensor(LITTLE)  # of weights up to 1
    for one, other in zip(whole, some):
        if bool((rest := other[~kept]).any()):
            rest = rest.nan_to_num(0, 0, 0)
            found = max(found, distance(torch.zeros_like(rest), rest, one, little))
        x, y = one[kept], other[kept]
        y = torch.where(y.isfinite(), y, x) if lost else y
        found = max(found, distance(x, y, one, little))
    return found


def _differing(first: _Trial, second: _Trial, of: Tensor, kept: Tensor, slack: float) -> int | None:
    """The number of a row, of the kept ones, that the second call gave something else for than the first gave for the
    row whose number is ``of`` it."""
    pairs = zip(first.rows, second.rows, strict=True)
    if all(distance(x[of[kept]], y[kept], x, *first.little) <= slack for x, y in pairs):
        return None
    rows = kept.nonzero().view(-1).tolist()
    return next((row for row in rows if first.apart(int(of[row]), second, row) > slack), None)


def varied(x: Tensor) -> Tensor:
    """Rows of which those that are kept differ in kind: the first as it is, then random, negative, zero, and positive
    ones of about the same size."""
    numbers = torch.randn(x.shape, generator=torch.Generator().manual_seed(ROWS)).to(x.dtype)
    size = float(x.detach().square().mean().sqrt()) if x.numel() else 1.0
    numbers *= size if 0 < size < torch.inf else 1.0
    out, numbers = _parts(x.detach()).clone(), _parts(numbers)
    out[2], out[4], out[5], out[6] = numbers[2], -numbers[4].abs(), 0, numbers[6].abs()
    return out.view(x.shape)


def _parts(x: Tensor, count: int = ROWS) -> Tensor:
    """[R, rows of one, ...]: what belongs to each of so many rows.

    >>> _parts(torch.arange(14))[2].tolist()
    [4, 5]
    """
    return x.reshape(count, len(x) // count, *x.shape[1:])


def _changed(x: Tensor, look: Look) -> Tensor:
    """A tensor in which all but the kept rows' parts became something else."""
    if x.dtype is torch.bool:
        return x
    parts = _parts(x)
    new = (_other_numbers if x.is_floating_point() else _other_integers)(parts, look.others)
    new[list(look.kept)] = parts[list(look.kept)]
    return new.view(x.shape)


def _other_numbers(parts: Tensor, others: int) -> Tensor:
    if others == MOVED:
        return parts.neg().roll(1, 0)
    if others in (ALIKE, UNKNOWN):
        return torch.full_like(parts, 0 if others == ALIKE else torch.nan)
    far = 3 + 8 * float(parts.nan_to_num(0, 0, 0).abs().max()) if parts.numel() else 0
    steps = (1 + torch.arange(ROWS, dtype=parts.dtype) / 8).view(-1, *[1] * (parts.ndim - 1))
    return parts + (far if others == ABOVE else -far) * steps


def _other_integers(parts: Tensor, others: int) -> Tensor:
    """As those of the first row, such as the sources of its edges, or of one another."""
    if others == ALIKE:
        return parts[:1].expand_as(parts).clone()
    return parts.roll(1, 0) if others == MOVED else parts.clone()
