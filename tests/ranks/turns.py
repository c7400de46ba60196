"""Ranks as threads of one process that take turns: what one of them runs between two exchanges runs alone.

They exchange through the same calls as processes do, and the same bytes, so a Trainer cannot tell; a rank that ends
early, or asks for something else than the others, fails the test instead of waiting for ever.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch import Tensor

from hongtu.ranks.together import Together
from hongtu.ranks.wire import Whereabouts, check_whereabouts, decode, encode

T = TypeVar("T")


class Room:
    """Where k threads meet; one of them runs at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turn = threading.Condition()
        self.whose = 0
        self.left: set[int] = set()
        self.table: dict[int, tuple[Whereabouts, bytes]] = {}
        self.mail: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)  # what one sent another

    def wait_for_turn(self, rank: int) -> None:
        with self.turn:
            assert self.turn.wait_for(lambda: self.whose == rank, timeout=300)

    def pass_on(self, rank: int) -> None:
        with self.turn:
            self.whose = (rank + 1) % self.size
            self.turn.notify_all()


class TurnRanks(Together):
    """One thread's end."""

    def __init__(self, room: Room, rank: int) -> None:
        self.room, self.rank, self.size = room, rank, room.size

    def _meet(self, what: str, value: Any) -> list[Any]:
        """Everybody's values, once all have said what they came for."""
        room = self.room
        assert not room.left, f"rank {self.rank} waits in {what}, ranks {room.left} have left"
        room.table[self.rank] = self.calls.here(what), encode(value)
        room.pass_on(self.rank)
        room.wait_for_turn(self.rank)
        assert not room.left or len(room.table) == self.size, f"rank {self.rank} waits in {what}, {room.left} have left"
        found = [room.table[rank] for rank in range(self.size)]
        values = [decode(message, f"rank {rank}") for rank, (_, message) in enumerate(found)]
        room.pass_on(self.rank)  # nobody says the next thing before all have heard this one
        room.wait_for_turn(self.rank)
        check_whereabouts([place for place, _ in found])
        return values

    def gather(self, value: T) -> list[T]:
        return self._meet("gather", value)

    def each(self, tensor: Tensor) -> Iterator[Tensor]:
        yield from self._meet("each", tensor.detach().clone())

    def begin(self, out: Iterable[tuple[int, Tensor]], into: Iterable[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
        for rank, tensor in out:
            if tensor.numel():
                self.room.mail[self.rank, rank].append(tensor.clone())
        return [(rank, tensor) for rank, tensor in into if tensor.numel()]

    def end(self, begun: Iterable[tuple[int, Tensor]]) -> None:
        self._meet("end", None)
        for rank, tensor in begun:
            tensor.copy_(self.room.mail[rank, self.rank].popleft())

    def told(self, value: T) -> T:
        return self._meet("told", value if self.rank == 0 else None)[0]

    def take_from_first(self, tensor: Tensor) -> None:
        tensor.detach().copy_(self._meet("take", tensor.detach().clone())[0])


def run_ranks(size: int, work: Callable[[Any], T], kind: type[TurnRanks] = TurnRanks) -> list[T]:
    """What ``work`` returns on each of ``size`` ranks.

    Raises:
        Exception: the first rank's that raised something.
    """
    room = Room(size)
    found: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        room.wait_for_turn(rank)
        try:
            found[rank] = work(kind(room, rank))
        except BaseException as error:
            errors[rank] = error
        finally:
            room.left.add(rank)
            while len(room.left) < size:
                room.pass_on(rank)
                room.wait_for_turn(rank)
            room.pass_on(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    if errors:
        raise errors[min(errors)]
    return [found[rank] for rank in range(size)]
