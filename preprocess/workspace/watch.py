"""What is seen of a run: the anonymous memory that it takes, watched from a thread, and a bar over its stages."""

from __future__ import annotations

import threading
from types import TracebackType

from tqdm import tqdm

from hongtu.errors import has_stderr
from hongtu.host import anonymous_bytes

INTERVAL = 0.02  # seconds
# about how long each stage takes, relative to the others, for the time that is left
SHARES = {
    "read": 2, "csc": 3, "partition": 10, "order": 30, "renumber": 4, "chunks": 4, "reorganise": 2,
    "volume": 1, "write": 10,
}  # fmt: skip


class Watch:
    """The peak of ``anonymous_bytes`` since the last ``restart``."""

    def __enter__(self) -> Watch:
        self._peak = anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def restart(self) -> None:
        """Forget the peak."""
        self._peak = anonymous_bytes()

    @property
    def peak(self) -> int:
        """Bytes, to the watch's interval."""
        self._peak = max(self._peak, anonymous_bytes())
        return self._peak

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._peak = max(self._peak, anonymous_bytes())


class Progress:
    """One bar on stderr, only on a terminal. Use as a context manager; ``enter`` and ``finish`` the stages in order,
    any may be left out."""

    def __enter__(self) -> Progress:
        form = "{desc:<12} {bar} {elapsed}, about {remaining} left{postfix}"
        unseen = None if has_stderr() else True  # tqdm asks whether it is a terminal
        self._bar = tqdm(total=sum(SHARES.values()), disable=unseen, leave=False, bar_format=form)
        return self

    def enter(self, stage: str) -> None:
        """A stage begins; those before it are done."""
        self.within(stage, 0)
        self._bar.set_description_str(stage)

    def within(self, stage: str, share: float) -> None:
        """This share of the stage is done."""
        done = sum(list(SHARES.values())[: list(SHARES).index(stage)])
        self._bar.update(done + share * SHARES[stage] - self._bar.n)

    def finish(self, stage: str, rate: float) -> None:
        """A stage is done, at so many edges per second (0: unknown)."""
        if rate:
            self._bar.set_postfix_str(f"{stage} {rate / 1e6:.1f}M edges/s")

    def __exit__(self, *_: object) -> None:
        self._bar.close()
