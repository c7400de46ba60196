"""How much anonymous memory this process takes, watched from a thread."""

from __future__ import annotations

import threading
from types import TracebackType

from hongtu.host import anonymous_bytes

INTERVAL = 0.02  # seconds


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
