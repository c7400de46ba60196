"""What ranks do together, over torch.distributed; one process alone does the same with itself.

Everything here is called by all ranks, in the same order. What they get is the same on each, to the bit.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hongtu.errors import InputError, OutputError

T = TypeVar("T")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of functions; another in every process


class Together(ABC):
    """One process's end of it.

    Attributes:
        rank: its number, from 0.
        size: how many there are.
        where: this process is, for people: "in pass 'forward 1'"; "" before it is anywhere.
    """

    rank: int
    size: int
    where: str = ""

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

    def add_gradients(self, parameters: Iterable[nn.Parameter], loss: float, alike: Callable[[], Any]) -> float:
        """Make gradients those of the sum of all ranks' losses, and return that.

        Args:
            alike: what must be the same on every rank, by name, as for ``check_same``.
        """
        if self.size == 1:
            return loss
        found = self.gather((loss, alike()))
        _compare([others for _, others in found])
        self.add_up(p.grad for p in parameters if p.grad is not None)
        return sum(loss for loss, _ in found)

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
        kind = next((kind for kind in (InputError, OutputError) if isinstance(own, kind)), RuntimeError)
        failed = self.gather(None if own is None else (str(own), kind))
        if own is not None:
            raise own
        for rank, other in enumerate(failed):
            if other is not None:
                again = other[1].__new__(other[1])
                again.args = (f"rank {rank}: {other[0]}",)
                raise again

    def check_same(self, what: Mapping[str, Any]) -> None:
        """Refuse ranks that were given something else than rank 0.

        Raises:
            InputError: on every rank, naming the first that differs.
        """
        if self.size > 1:
            _compare(self.gather({name: _ADDRESS.sub("", str(value)) for name, value in what.items()}))


def _compare(of_ranks: Sequence[Mapping[str, Any]]) -> None:
    first, *others = of_ranks
    for rank, other in enumerate(others, 1):
        for name in dict.fromkeys((*first, *other)):
            if first.get(name) != other.get(name):
                theirs, own = _apart(str(other.get(name)), str(first.get(name)))
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
