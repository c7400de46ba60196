"""The processes of a group of torch.distributed, as ``Together``."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hongtu.errors import InputError, RankLost
from hongtu.host import available_bytes
from hongtu.ranks.parent import end_with_torchrun, torchruns
from hongtu.ranks.together import OUTSIDE, Alone, Calls, Together
from hongtu.ranks.wire import FRAME, check_whereabouts, checked_shape, decode, encode, pack, unpack
from hongtu.ranks.words import Heard, own_pulse

T = TypeVar("T")
_calls: weakref.WeakKeyDictionary[dist.ProcessGroup, Calls] = weakref.WeakKeyDictionary()  # of every group


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
        _import_without_group()
        end_with_torchrun()
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InputError("hongtu.Ranks: this process is not in the group; make it on that group's ranks alone")
        self._members = [dist.get_global_rank(group, r) if group is not None else r for r in range(self.size)]
        if "gloo" not in dist.get_backend(group):
            group = dist.new_group(self._members, backend="gloo")
        self._calls = _calls.setdefault(group or dist.group.WORLD, Calls())  # type: ignore[arg-type]
        self._weakly = None if group is None else weakref.ref(group)
        self._pulse = own_pulse(dist.get_rank(), dist.get_world_size()) if self.size > 1 else None
        self._names = self._calls.names or [f"rank {rank}" for rank in range(self.size)]
        if not self._calls.names:  # later ones exchange nothing outside of the methods that are compared
            who = self._names[self.rank] if self._pulse is None else self._pulse.who
            self._names = self._calls.names = list(map(str, self.gather(who)))

    @property
    def _group(self) -> dist.ProcessGroup | None:
        """torch.distributed holds it until it is destroyed; its threads must not outlive Python, as they would if a
        trainer held it, too."""
        group = None if self._weakly is None else self._weakly()
        if not dist.is_initialized() or (group is None and self._weakly is not None):
            raise InputError(
                "this process has destroyed its process group; call torch.distributed.destroy_process_group() behind "
                "the last method that all ranks call"
            )
        return group

    def _meet(self, what: str, message: bytes | bytearray) -> list[bytes | memoryview]:
        """Every rank's message, by rank, where all are at the same place."""
        place = self.calls.here(what)
        frames = [torch.empty(FRAME, dtype=torch.uint8) for _ in range(self.size)]
        with self._there():
            dist.all_gather(frames, _bytes(pack(place, message)), group=self._group)
        said = [unpack(frame.numpy().data, who) for frame, who in zip(frames, self._names, strict=True)]
        check_whereabouts([place for place, _, _ in said])
        found: list[bytes | memoryview] = []
        for rank, (_, size, inside) in enumerate(said):
            if inside is None:  # it is sent by itself
                own = rank == self.rank
                rest = _bytes(message) if own else self._room(rank, torch.uint8, (size,))
                with self._there():
                    dist.broadcast(rest, self._members[rank], group=self._group)
                inside = rest.numpy().data
            found.append(inside)
        return found

    def _room(self, rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Memory for what a rank sends."""
        size, free = dtype.itemsize, available_bytes()
        for length in shape:
            size *= length
        if free is not None and size > free:
            raise InputError(f"{self._names[rank]} sends {size} bytes, and {free} are available on this rank's machine")
        return torch.empty(shape, dtype=dtype)

    def gather(self, value: T) -> list[T]:
        found = self._meet("gather", encode(value))
        return [decode(message, who) for message, who in zip(found, self._names, strict=True)]

    def told(self, value: T) -> T:
        found = self._meet("told", encode(value) if self.rank == 0 else b"")
        return value if self.rank == 0 else decode(found[0], self._names[0])

    def each(self, tensor: Tensor) -> Iterator[Tensor]:
        tensor = tensor.detach().cpu().contiguous()
        for rank, shape in enumerate(self._shapes(tensor)):
            part = tensor if rank == self.rank else self._room(rank, tensor.dtype, shape)
            if part.numel():
                with self._there():
                    dist.broadcast(part, self._members[rank], group=self._group)
            yield part

    def take_from_first(self, tensor: Tensor) -> None:
        there = tensor.detach().cpu().contiguous()
        if (first := self._shapes(there)[0]) != there.shape:
            raise InputError(f"a tensor of the model: rank 0 has {list(first)}, this rank {list(there.shape)}")
        with self._there():
            dist.broadcast(there, self._members[0], group=self._group)
        tensor.detach().copy_(there)

    def _shapes(self, tensor: Tensor) -> list[tuple[int, ...]]:
        """Of every rank's tensor; they differ in length at most."""
        found = []
        for who, said in zip(self._names, self.gather([str(tensor.dtype)[6:], list(tensor.shape)]), strict=True):
            try:
                dtype, shape = checked_shape(said)
            except (TypeError, ValueError) as error:
                raise InputError(f"{who} sends {error}, expected {tensor.dtype} {list(tensor.shape)}") from None
            if dtype != tensor.dtype or len(shape) != tensor.ndim or shape[1:] != tensor.shape[1:]:
                raise InputError(f"{who} sends {dtype} {list(shape)}, this rank {tensor.dtype} {list(tensor.shape)}")
            found.append(shape)
        return found

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

    @property
    def method(self) -> str:
        return "" if self._pulse is None else self._pulse.method

    @method.setter
    def method(self, text: str) -> None:
        if self._pulse is not None:
            self._pulse.method = text

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
        self._pulse.end(lost=isinstance(cause, RankLost))

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
            first = re.split(r"(?<=[^\s.])\. |\n", str(error), maxsplit=1)[0]  # gloo adds guesses, and wishes
            text = self._said(lost, f", or its network ({first})", "waited for it", rank)
            if self._pulse is not None:
                self._pulse.end(lost=True)
            raise RankLost(text) from error
        if self._pulse is not None:
            self._pulse.waits = False

    def _said(self, lost: str | list[Heard], why: str, did: str, rank: int | None = None) -> str:
        """Who is lost, and what this rank did then.

        Args:
            lost: what the pulse missed.
            rank: that this one waited for.
        """
        own = self.where and f"; this rank {did} {self.where}{self.method}"
        if isinstance(lost, str):
            return lost + own
        known = [heard.who for heard in lost] or ([] if rank is None else [self._names[rank]])
        last = {heard.where for heard in lost if heard.where}
        was = f"; it was {' and '.join(sorted(last))}" if last else ""
        gone = "has ended" if lost and all(heard.doing == "ended" for heard in lost) else f"does not answer{why}"
        advice = "; every rank must call the same methods in the same order: take the call out of `if rank == 0`"
        advice = advice if any(text.startswith(OUTSIDE) for text in last) else ""
        return f"{' and '.join(known) or 'another rank'} {gone}{was}{own}{advice}"


def _bytes(content: bytes | bytearray) -> Tensor:
    """As a tensor of uint8; nobody writes into it."""
    writable = content if isinstance(content, bytearray) else bytearray(content)
    return torch.frombuffer(writable, dtype=torch.uint8)


def _import_without_group() -> None:
    """Import a module of torch that keeps the default group for ever, as its functions' default argument, where there
    is one by then; None means the same to them. Torch itself imports it, with the first optimizer. The threads of a
    group that is kept outlive Python, and one that lets go of a tensor then ends the process with SIGABRT."""
    if "torch.distributed.nn.functional" not in sys.modules:
        world, dist.GroupMember.WORLD = dist.GroupMember.WORLD, None
        try:
            import torch.distributed.nn.functional  # noqa: F401
        finally:
            dist.GroupMember.WORLD = world


def current() -> Together:
    """The default process group, where there is one of several processes.

    Raises:
        InputError: where torchrun started several and this one has not joined them; each would train another model.
    """
    if dist.is_available() and dist.is_initialized():
        return Ranks() if dist.get_world_size() > 1 else Alone()
    if (processes := torchruns("WORLD_SIZE", "1")) > 1:
        raise InputError(
            f"torchrun started {processes} processes, and this one has not joined the others; call "
            "torch.distributed.init_process_group('gloo') first (or start one process: WORLD_SIZE=1)"
        )
    return Alone()
