"""What ranks do together, over torch.distributed; one process alone does the same with itself.

Everything here is called by all ranks, in the same order. What they get is the same on each, to the bit.
"""

from __future__ import annotations

import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hongtu.errors import InputError, RankLost
from hongtu.ranks.words import Heard, own_pulse

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

    def add_gradients(self, parameters: Iterable[nn.Parameter], loss: float) -> float:
        """Make gradients those of the sum of all ranks' losses, and return that."""
        self.add_up(p.grad for p in parameters if p.grad is not None)
        return self.sum(loss)

    def take_model(self, modules: nn.Module) -> None:
        """Begin with rank 0's parameters and buffers."""
        if self.size > 1:
            for tensor in modules.state_dict().values():
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
            InputError: for another rank's, or a RuntimeError where that one is no InputError.
        """
        if self.size == 1:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except Exception as error:
            own = error
        failed = self.gather(None if own is None else (str(own), isinstance(own, InputError)))
        if own is not None:
            raise own
        for rank, other in enumerate(failed):
            if other is not None:
                raise (InputError if other[1] else RuntimeError)(f"rank {rank}: {other[0]}")

    def check_same(self, what: Mapping[str, Any]) -> None:
        """Refuse ranks that were given something else than rank 0.

        Raises:
            InputError: on every rank, naming the first that differs.
        """
        if self.size == 1:
            return
        shown = {name: _ADDRESS.sub("", str(value)) for name, value in what.items()}
        first, *others = self.gather(shown)
        for rank, other in enumerate(others, 1):
            for name in dict.fromkeys((*first, *other)):
                if first.get(name) != other.get(name):
                    raise InputError(
                        f"{name}: rank {rank} has {other.get(name)}, rank 0 has {first.get(name)}; give every rank the "
                        "same"
                    )


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


class Ranks(Together):
    """The processes of a group of torch.distributed.

    Args:
        group: made by ``torch.distributed.new_group``; None: all processes. What ranks exchange is in host memory:
            where the group's backend cannot send that, a gloo group of the same processes is made beside it.

    Raises:
        InputError: when torch.distributed is not initialised.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "hongtu.Ranks: no process group; call torch.distributed.init_process_group('gloo') first, in a script "
                "that torchrun starts"
            )
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InputError("hongtu.Ranks: this process is not in the group")
        self._members = [dist.get_global_rank(group, r) if group is not None else r for r in range(self.size)]
        if "gloo" not in dist.get_backend(group):
            group = dist.new_group(self._members, backend="gloo")
        self._weakly = None if group is None else weakref.ref(group)
        self._pulse = own_pulse(dist.get_rank(), dist.get_world_size()) if self.size > 1 else None
        self._names = [f"rank {rank}" for rank in range(self.size)]
        self._names = self.gather(self._names[self.rank] if self._pulse is None else self._pulse.who)

    @property
    def _group(self) -> dist.ProcessGroup | None:
        """torch.distributed holds it until it is destroyed; its threads must not outlive Python, as they would if a
        trainer held it, too."""
        return self._weakly() if self._weakly is not None else None

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        with self._there():
            dist.all_gather_object(found, value, group=self._group)
        return found

    def each(self, tensor: Tensor) -> Iterator[Tensor]:
        tensor = tensor.detach().cpu().contiguous()
        for rank, shape in enumerate(self.gather(tuple(tensor.shape))):
            part = tensor if rank == self.rank else tensor.new_empty(shape)
            if part.numel():
                with self._there():
                    dist.broadcast(part, self._members[rank], group=self._group)
            yield part

    def told(self, value: T) -> T:
        found: list[Any] = [value]
        with self._there():
            dist.broadcast_object_list(found, self._members[0], group=self._group)
        return found[0]

    def take_from_first(self, tensor: Tensor) -> None:
        there = tensor.detach().cpu().contiguous()
        with self._there():
            dist.broadcast(there, self._members[0], group=self._group)
        tensor.detach().copy_(there)

    def begin(self, out: Iterable[tuple[int, Tensor]], into: Iterable[tuple[int, Tensor]]) -> list[Any]:
        begun: list[tuple[int, Any]] = []
        for call, parts in ((dist.irecv, into), (dist.isend, out)):
            for rank, tensor in parts:
                if tensor.numel():
                    with self._there(rank):
                        begun.append((rank, call(tensor, self._members[rank], group=self._group)))
        return begun

    def end(self, begun: Iterable[tuple[int, Any]]) -> None:
        for rank, work in begun:
            with self._there(rank):
                work.wait()

    @property
    def where(self) -> str:
        return "" if self._pulse is None else self._pulse.where

    @where.setter
    def where(self, text: str) -> None:
        if self._pulse is not None:
            self._pulse.where = text

    def reason(self, error: BaseException) -> BaseException:
        if self._pulse is None or not isinstance(error, KeyboardInterrupt):
            return error
        lost = self._pulse.missed(interrupted=True)
        return RankLost(self._said(lost, "", "was")) if lost else error

    def leave(self, error: BaseException | None) -> None:
        """Say good-bye to the others: this process ends, with an error that they should know or without."""
        if self._pulse is None:
            return
        cause = error and (error.__cause__ or error)
        if error is not None and not isinstance(cause, RankLost):
            text = str(error) or type(error).__name__
            self._pulse.leave_words(text, interrupted=isinstance(cause, KeyboardInterrupt))
        self._pulse.end()

    @contextmanager
    def _there(self, rank: int | None = None) -> Iterator[None]:
        """Say what became of the others where the network fails.

        Args:
            rank: that this one waits for, where it is one.
        """
        if self._pulse is not None:
            self._pulse.waits = True
        try:
            yield
        except RuntimeError as error:
            lost = [] if self._pulse is None else self._pulse.missed()
            text = self._said(lost, f", or its network ({error})", "waited for it", rank)
            if self._pulse is not None:
                self._pulse.end()  # none that is lost
            raise RankLost(text) from error
        if self._pulse is not None:
            self._pulse.waits = False

    def _said(self, lost: str | list[Heard], why: str, did: str, rank: int | None = None) -> str:
        """Who is lost, and what this rank did then.

        Args:
            lost: what the pulse missed.
            rank: that this one waited for.
        """
        own = self.where and f"; this rank {did} {self.where}"
        if isinstance(lost, str):
            return lost + own
        known = [heard.who for heard in lost] or ([] if rank is None else [self._names[rank]])
        last = {heard.where for heard in lost if heard.where}
        was = f"; it was {' and '.join(sorted(last))}" if last else ""
        return f"{' and '.join(known) or 'another rank'} does not answer{why}{was}{own}"


def current() -> Together:
    """The default process group, where there is one of several processes."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Ranks()
    return Alone()
