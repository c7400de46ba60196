"""What ranks tell each other beside what they exchange, by way of the store in which torchrun let them meet: that they
live and where they are, at short intervals, and why one stops."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from hongtu.errors import Interrupted, RankLost
from hongtu.ranks.parent import torchruns

if TYPE_CHECKING:
    import torch.distributed as dist

GO = "all go on"
STOPPED, INTERRUPTED = "hongtu: why a rank stopped", "hongtu: which rank was interrupted"
PULSE = "hongtu: pulse of rank {}"
BEGUN, ENDED_EARLY = "hongtu: rank {} has begun, attempt {}", "hongtu: why a rank never began, attempt {}"
PATIENCE = timedelta(seconds=2)  # with the store
BEAT, WATCHED = 0.2, 1.0  # seconds from one word to the next; in which a rank that lives says some
QUIET = 5.0  # seconds until a person is told for whom this process waits
LAST = 30.0  # seconds that a process waits for its own thread before it ends
GONE = (KeyError, ValueError, RuntimeError)  # raised where the store is

Doing = Literal["works", "waits", "ended", "lost"]  # lost: it ended because of another


class Heard(NamedTuple):
    """What a process said last: how often it has, who and where it is, and what it does there."""

    times: int
    who: str
    where: str
    doing: Doing


@dataclass
class Pulse:
    """This process's side.

    Args:
        rank, size: its number in torch.distributed, and how many there are.

    Attributes:
        where: it is, for people: "in pass 'forward 1'".
        method: of which method that is: " of fit (call 2)"; "" in none.
        waits: for others.
    """

    rank: int
    size: int
    where: str = ""
    method: str = ""
    waits: bool = False
    _times: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._store: dist.TCPStore | None = None
        with suppress(*GONE):
            self._store = _store()  # of whoever asks; the thread has its own, and none waits for the other
        self.who = _who(self.rank)
        self._thread = threading.Thread(target=self._beat, name="hongtu pulse", daemon=True)
        self._thread.start()
        atexit.register(self._last)

    def _beat(self) -> None:
        with suppress(*GONE):
            store = _store()
            while not self._over.is_set():
                self._say(store, "waits" if self.waits else "works")
                self._over.wait(BEAT)

    def _say(self, store: dist.TCPStore, doing: Doing) -> None:
        self._times += 1
        said = Heard(self._times, self.who, self.where + self.method, doing)
        store.set(PULSE.format(self.rank), json.dumps(said))

    def end(self, *, lost: bool = False) -> None:
        """Say that this process ends, because of another or not, and nothing from then on."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join(PATIENCE.total_seconds())
        with suppress(*GONE):
            if self._store is not None:
                self._say(self._store, "lost" if lost else "ended")

    def _last(self) -> None:
        """Say why Python ends, where an error was not caught. A thread that outlives Python in torch's code, the
        store's or the group's, would end the process with SIGABRT; on a crowded machine the store may take seconds to
        answer."""
        import torch.distributed as dist

        error = getattr(sys, "last_value", None)
        if error is not None and not self._over.is_set() and not isinstance(error, RankLost):
            self.leave_words(str(error) or type(error).__name__, interrupted=isinstance(error, KeyboardInterrupt))
        self.end(lost=isinstance(error, RankLost))
        self._thread.join(LAST)
        if dist.is_initialized() and not hasattr(sys, "last_value"):  # an error may leave what the group waits for
            dist.destroy_process_group()

    def leave_words(self, text: str, *, interrupted: bool = False) -> None:
        """Say why this process stops; of several the first is heard."""
        words = f"{self.who} stopped{self.where and f' {self.where}'}: {text}"
        with suppress(*GONE):  # nobody is there to listen
            if self._store is not None:
                self._store.compare_set(INTERRUPTED if interrupted else STOPPED, "", words)

    def missed(self, *, interrupted: bool = False) -> str | list[Heard]:
        """Why this process cannot go on: the words of the first that stopped; or those that say nothing any more; or
        those that have ended; or those that work while others wait for them. Takes a second, and hears nothing where
        the store is gone, too.

        Args:
            interrupted: so was this process, as others may have been; it does not wait.
        """
        keys = (STOPPED,) if interrupted else (STOPPED, INTERRUPTED)
        until, store = time.monotonic() + WATCHED, self._store
        if store is None:
            return []
        try:
            before = self._heard(store)
            while time.monotonic() < until:
                for key in keys:
                    if store.check([key]):
                        return _text(store.get(key))
                time.sleep(BEAT / 4)
            now = self._heard(store)
        except GONE:
            return []
        others = {rank: heard for rank, heard in now.items() if heard.doing != "lost" and rank != self.rank}
        ended = [heard for heard in others.values() if heard.doing == "ended"]
        living = {rank: heard for rank, heard in others.items() if heard.doing != "ended"}
        silent = [heard for rank, heard in living.items() if rank in before and before[rank].times == heard.times]
        hung = [] if interrupted else [heard for heard in living.values() if heard.doing == "works"]
        return silent or ([] if interrupted else ended) or hung

    def _heard(self, store: dist.TCPStore) -> dict[int, Heard]:
        keys = {rank: PULSE.format(rank) for rank in range(self.size)}
        said = {rank: _heard(store.get(key)) for rank, key in keys.items() if store.check([key])}
        return {rank: heard for rank, heard in said.items() if heard is not None}


def printable(text: str) -> str:
    """It, without what would steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _text(content: bytes) -> str:
    """What somebody said, for a terminal."""
    return printable(str(content, "utf-8", "replace"))


def _heard(content: bytes) -> Heard | None:
    """None where it is no word of a pulse."""
    try:
        times, who, where, doing = json.loads(_text(content))
    except (ValueError, TypeError, RecursionError):
        return None
    right = isinstance(times, int) and isinstance(who, str) and isinstance(where, str) and doing in get_args(Doing)
    return Heard(times, printable(who), printable(where), doing) if right else None


def begins(rank: int, size: int, timeout: float, say: Callable[[str], None], interrupts: Sequence[int] = ()) -> None:
    """Wait until all processes have come so far, where an interrupt is heard; torch's own wait hears none. Either all
    go on, or none does: whoever goes on first, or ends first, says so for all.

    Args:
        timeout: seconds.
        say: to a person, whom rank 0 waits for.
        interrupts: signals that have come.

    Raises:
        RankLost: where one ended before, with its words, or does not come; or where this one is interrupted.
    """
    until, said = time.monotonic() + timeout, time.monotonic() + QUIET
    store = _store(timedelta(seconds=timeout))  # a crowded machine takes its time to answer
    early, missing = ENDED_EARLY.format(_attempt()), [*range(size)]
    store.set(BEGUN.format(rank, _attempt()), "")
    while missing := [k for k in missing if not store.check([BEGUN.format(k, _attempt())])]:
        who = " and ".join(f"rank {k}" for k in missing)
        if store.check([early]) or interrupts:
            break
        if time.monotonic() > until:
            raise RankLost(f"{who} did not come within {timeout:g} seconds")
        if time.monotonic() > said and rank == 0:
            said = float("inf")
            say(f"waiting for {who} of {size}")
        time.sleep(BEAT)
    words = _early_words(rank, str(Interrupted(interrupts[0]))) if interrupts else GO
    if (first := _text(store.compare_set(early, "", words))) != GO:
        raise RankLost(first)


def end_early(text: str) -> None:
    """Say why this process, which torchrun started beside others, ends before it joined them."""
    with suppress(*GONE, OSError):
        if torchruns("WORLD_SIZE", "1") > 1 and _own is None:
            words = _early_words(torchruns("RANK", "0"), text)
            _store().compare_set(ENDED_EARLY.format(_attempt()), "", words)


def _early_words(rank: int, text: str) -> str:
    return f"{_who(rank)} stopped before the first pass: {text}"


def _who(rank: int) -> str:
    """This process, for people."""
    return f"rank {rank} ({socket.gethostname()}, pid {os.getpid()})"


def _attempt() -> str:
    """Torchrun may start all anew."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


_own: Pulse | None = None


def own_pulse(rank: int, size: int) -> Pulse:
    """Of this process, which has one for all its groups."""
    global _own
    if _own is None or not _own._thread.is_alive():
        _own = Pulse(rank, size)
    return _own


def _store(patience: timedelta = PATIENCE) -> dist.TCPStore:
    import torch.distributed as dist

    address, port = os.environ["MASTER_ADDR"], torchruns("MASTER_PORT")
    return dist.TCPStore(address, port, is_master=False, timeout=patience)
