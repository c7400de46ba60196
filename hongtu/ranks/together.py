"""What ranks do together, over torch.distributed; one process alone does the same with itself.

Everything here is called by all ranks, in the same order. What they get is the same on each, to the bit. With every
exchange but ``begin`` and ``end`` a rank says where it is (``Calls.here``), and all refuse to go on where one is
elsewhere.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from hongtu.errors import InputError, OutputError
from hongtu.ranks.wire import Whereabouts

P = ParamSpec("P")
T = TypeVar("T")
ERRORS = {"InputError": InputError, "OutputError": OutputError, "RuntimeError": RuntimeError}  # that ranks tell
BEFORE, OUTSIDE = "before the first pass", "in none of hongtu's methods"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of functions; another in every process


@dataclass
class Calls:
    """The methods that a process has called, of everything in one group; all ranks call the same.

    Attributes:
        number: how many, without those that others call.
        exchanges: that the latest has begun.
        inside: those that are not over, the outermost first.
        trainers: that were made.
        names: of the ranks, where they have been exchanged.
    """

    number: int = 0
    exchanges: int = 0
    inside: list[str] = field(default_factory=list)
    trainers: int = 0
    names: list[str] = field(default_factory=list)

    def here(self, what: str) -> Whereabouts:
        """Where this process is, at its next exchange."""
        self.exchanges += 1
        return Whereabouts(" inside ".join(reversed(self.inside)), self.number, self.exchanges, what)

    @property
    def outermost(self) -> str:
        return f"{self.inside[0]} (call {self.number})"


class Together(ABC):
    """One process's end of it.

    Attributes:
        rank: its number, from 0.
        size: how many there are.
        where: this process is, for people: "in pass 'forward 1'"; "" before it is anywhere.
        method: of which method that is, for people: " of fit (call 2)"; "" outside of all.
    """

    rank: int
    size: int
    where: str = ""
    method: str = ""
    _calls: Calls | None = None

    @property
    def calls(self) -> Calls:
        """What this process has called."""
        self._calls = self._calls or Calls()
        return self._calls

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """A small value of every rank, by rank."""

    @abstractmethod
    def each(self, tensor: Tensor) -> Iterator[Tensor]:
        """Every rank's tensor, by rank, one after the other; they may differ in length. All have to be taken."""

    @abstractmethod
    def told(self, value: T) -> T:
        """Rank 0's value."""

    @abstractmethod
    def take_from_first(self, tensor: Tensor) -> None:
        """Make it rank 0's."""

    @abstractmethod
    def begin(self, out: Iterable[tuple[int, Tensor]], into: Iterable[tuple[int, Tensor]]) -> list[Any]:
        """Begin to send tensors, and to receive some, each with the rank that it goes to or comes from.

        What one rank sends another arrives in the order in which it was sent. What is empty is left out.

        Args:
            out, into: on the CPU and contiguous, as long as the other rank expects or sends.
        """

    @abstractmethod
    def end(self, begun: Iterable[Any]) -> None:
        """Wait for what ``begin`` gave."""

    def exchange(self, out: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Send every rank a tensor and receive one of each, by rank, as ``begin``."""
        self.end(self.begin(enumerate(out), enumerate(into)))

    def reason(self, error: BaseException) -> BaseException:
        """Why this process stops: an interrupt may have come because another rank is lost."""
        return error

    @contextmanager
    def call(self, method: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Inside is a method that all ranks call; none begins with it before all have.

        Args:
            method: its name, for people.
            check: raises what is wrong on this rank; then all raise it.

        Raises:
            InputError: on every rank, where one is in another method.
        """
        if self.size == 1:
            check()
            yield
            return
        calls = self.calls
        if not calls.inside:
            calls.number, calls.exchanges = calls.number + 1, 0
        calls.inside.append(method)
        outermost = calls.outermost
        try:
            if len(calls.inside) == 1:
                self.where, self.method = BEFORE, f" of {outermost}"
            with self.agreed():
                check()
            yield
            if len(calls.inside) == 1:
                self.where, self.method = f"{OUTSIDE}, the last was {outermost}", ""
        finally:
            calls.inside.pop()

    def add_up(self, parts: Iterable[Tensor]) -> None:
        """Make tensors the sums of all ranks', added by rank in float64."""
        tensors = list(parts)
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors])
        total = torch.zeros(len(flat), dtype=torch.float64)
        for part in self.each(flat):
            total += part
        with torch.no_grad():
            for tensor, found in zip(tensors, total.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(found.view(tensor.shape))

    def sum(self, value: float) -> float:
        """Of all ranks' numbers, added by rank."""
        return sum(self.gather(value)) if self.size > 1 else value

    def add_gradients(self, parameters: Iterable[nn.Parameter], loss: float) -> float:
        """Make gradients those of the sum of all ranks' losses, and return that."""
        self.add_up(p.grad for p in parameters if p.grad is not None)
        return self.sum(loss)

    def take_model(self, modules: nn.Module) -> None:
        """Begin with rank 0's parameters and buffers."""
        if self.size > 1:
            for tensor in (*modules.parameters(), *modules.buffers()):
                self.take_from_first(tensor)

    def first(self, work: Callable[[], T]) -> T:
        """Let rank 0 do something; all get what it returns, or raise what it raises."""
        found: Any = None
        with self.agreed():
            if self.rank == 0:
                found = work()
        return self.told(found)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """What is raised inside on one rank is raised on all, where the block ends; inside, each works by itself.

        Raises:
            InputError: for another rank's; OutputError for one, and RuntimeError for any other.
        """
        if self.size == 1:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except Exception as error:
            own = error
        _raise_first(own, self.gather(_told(own)))

    def check_same(self, what: Mapping[str, Any], **where: Any) -> None:
        """Refuse ranks that were given something else than rank 0.

        Args:
            where: paths, by names in ``what``; they may differ.

        Raises:
            InputError: on every rank, naming the first that differs, and where it is.
        """
        if self.size > 1:
            same = {name: _ADDRESS.sub("", str(value)) for name, value in what.items()}
            _compare(*zip(*self.gather((same, {name: f" in {path}" for name, path in where.items()})), strict=True))


def called_by_all(
    check: Callable[[Any], None] = lambda self: None,
) -> Callable[[Callable[Concatenate[Any, P], T]], Callable[Concatenate[Any, P], T]]:
    """Makes a method, of something with ``ranks`` and a ``title`` behind the method's name, one that all ranks call.

    Args:
        check: as for ``Together.call``, given the object.
    """

    def made(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
        @wraps(method)
        def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            with self.ranks.call(f"{method.__name__}{self.title}", partial(check, self)):
                return method(self, *args, **kwargs)

        return call

    return made


def _told(error: Exception | None) -> tuple[str, str] | None:
    """What other ranks are told of it."""
    if error is None:
        return None
    return next(name for name, kind in ERRORS.items() if isinstance(error, kind) or kind is RuntimeError), str(error)


def _raise_first(own: Exception | None, told: Sequence[tuple[str, str] | None]) -> None:
    """Raise this rank's error, or the first that another was told of."""
    if own is not None:
        raise own
    for rank, other in enumerate(told):
        if other is not None:
            kind: type[Exception] = ERRORS.get(str(other[0]), RuntimeError)
            again = kind.__new__(kind)
            again.args = (f"rank {rank}: {other[1]}",)
            raise again


def _compare(of_ranks: Sequence[Mapping[str, Any]], where: Sequence[Mapping[str, str]]) -> None:
    first, *others = of_ranks
    for rank, other in enumerate(others, 1):
        for name in dict.fromkeys((*first, *other)):
            if first.get(name) != other.get(name):
                said = zip(_apart(str(other.get(name)), str(first.get(name))), (where[rank], where[0]), strict=True)
                theirs, own = (line + at.get(name, "") for line, at in said)
                raise InputError(f"{name}: rank {rank} has {theirs}, rank 0 has {own}; give every rank the same")


def _apart(one: str, other: str) -> tuple[str, str]:
    """The first line in which they differ.

    >>> _apart("GCN(1, 2)\\n  bias", "GCN(1, 2)\\n  no bias")
    ('bias', 'no bias')
    """
    lines = itertools.zip_longest(one.splitlines(), other.splitlines(), fillvalue="nothing more")
    return next(((a.strip(), b.strip()) for a, b in lines if a != b), (one, other))


class Alone(Together):
    """One process that has no others beside it."""

    rank, size = 0, 1

    def gather(self, value: T) -> list[T]:
        return [value]

    def each(self, tensor: Tensor) -> Iterator[Tensor]:
        yield tensor

    def told(self, value: T) -> T:
        return value

    def take_from_first(self, tensor: Tensor) -> None:
        pass

    def begin(self, out: Iterable[tuple[int, Tensor]], into: Iterable[tuple[int, Tensor]]) -> list[Any]:
        return []

    def end(self, begun: Iterable[Any]) -> None:
        pass
