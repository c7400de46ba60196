"""How OpenMP's threads wait for one another: spinning while they have the cores to themselves, asleep while others
use them, too.

Torch's threads spin for milliseconds where they wait, which is fastest on a quiet machine. Where a core is
shared, the thread that they wait for may not be running, and those that spin keep it from its core: an epoch can take
twenty times as long. GNU's OpenMP sleeps almost at once where it has more threads than there are processors (see
``GOMP_SPINCOUNT`` in its manual), and looks anew at every wait. So while the machine is crowded a thread of ours holds
a team of idle ones, which makes them more. What the user has said of waiting stays: ``OMP_WAIT_POLICY``,
``GOMP_SPINCOUNT``. So does the number of threads: ``OMP_NUM_THREADS``, ``torch.set_num_threads``.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from hongtu.errors import InputError

STAT, MAPS = Path("/proc/stat"), Path("/proc/self/maps")
CGROUP, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
OUR_POLICY = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "30000"}  # some microseconds, then sleep
PERIOD = 0.2  # seconds between two looks at the machine
LINGER = 2.0  # seconds that the watch goes on after the last work
LIBRARIES_EVERY = 10  # looks; a library may be loaded later
CROWDED, CALM = 0.3, 0.1  # cores that others use of those that our threads need


def set_wait_policy() -> None:
    """Say how OpenMP's threads wait, where the user has not; before torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.update(OUR_POLICY | {name: os.environ[name] for name in OUR_POLICY if name in os.environ})


def usable_cores() -> int:
    """Cores that this process may use: by its affinity, and by the quota of its control group (version 2) and of those
    around it, rounded up."""
    cores = len(os.sched_getaffinity(0))
    for group in control_groups():
        try:
            quota, period = (group / "cpu.max").read_text().split()
            cores = min(cores, -(-int(quota) // int(period)))
        except (OSError, ValueError):  # no such group, or no limit
            pass
    return max(1, cores)


def control_groups(controller: str = "") -> list[Path]:
    """Folders of this process's control group and of those around it: version 2's, or version 1's of a controller."""
    try:
        lines = [line.split(":", 2) for line in OWN_CGROUP.read_text().splitlines()]
    except OSError:
        lines = []
    root = CGROUP / controller
    own = [root / path.lstrip("/") for _, names, path in lines if controller in names.split(",")]
    return [root, *(group for inner in own for group in (inner, *inner.parents) if root in group.parents)]


def num_threads() -> int:
    """Threads that work at a time: torch's, where it is loaded; else ``OMP_NUM_THREADS``, or the usable cores."""
    torch = _torch()
    return _without_torch() if torch is None else int(torch.get_num_threads())


@cache
def _without_torch() -> int:
    stated = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(stated) if stated.isdecimal() and int(stated) else usable_cores()


def follow_quota() -> None:
    """Let torch have no more threads than the process may use cores; it knows of affinity alone."""
    torch, cores = _torch(), usable_cores()
    if torch is not None and torch.get_num_threads() > cores and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores)


def _torch() -> Any:
    """The library, if it is there, and not just being imported."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None


_looked = threading.local()  # at the quota


class SharedCores:
    """Inside, a thread watches how crowded the machine is, and says how OpenMP's threads wait. May be entered again,
    and by several threads.

    Attributes:
        crowded: whether others use cores that our threads need.
    """

    def __init__(self) -> None:
        self._inside: list[bool] = []  # no lock: an interrupt may keep one from being released
        self.crowded = False
        self._left = 0.0
        self._watch: threading.Thread | None = None
        self._over = threading.Event()
        self._process = os.getpid()
        self._worked = False

    def __enter__(self) -> None:
        if self._worked and self._process != os.getpid():
            raise InputError(
                "this process was forked from one in which hongtu has worked: OpenMP's threads are not here, and it "
                "would wait for them for ever; start it anew, by multiprocessing.get_context('spawn')"
            )
        self._process, self._worked = os.getpid(), True
        if time.monotonic() - getattr(_looked, "at", -LINGER) >= LINGER:
            follow_quota()
            _looked.at = time.monotonic()
        self._inside.append(True)
        if not ((self._watch is not None and self._watch.is_alive()) or chosen_by_user()):
            self._watch = threading.Thread(target=self._look, name="hongtu threads", daemon=True)
            self._watch.start()

    def __exit__(self, *error: object) -> None:
        self._inside.pop()
        self._left = time.monotonic()

    def _look(self) -> None:
        team: IdleTeam | None = None
        crowd, looks = Crowd(), 0
        mine = self._watch
        while (self._inside or time.monotonic() - self._left < LINGER) and not self._over.wait(PERIOD):
            if self._watch is not mine:  # another thread has begun one at the same time
                break
            others, looks = crowd.others(), looks + 1
            if team is not None and (others < CALM or (looks % LIBRARIES_EVERY == 0 and team.libraries != openmp())):
                team.release()
                team, self.crowded = None, False
            if team is None and others > CROWDED:
                team, self.crowded = IdleTeam(), True
        self.crowded = False
        if team is not None:
            team.release()

    def close(self) -> None:
        """End the watch before Python ends: a thread that Python stops while it is in C++ ends the process."""
        self._over.set()
        if (watch := self._watch) is not None and watch.is_alive():
            watch.join()


shared_cores = SharedCores()
atexit.register(shared_cores.close)


def chosen_by_user() -> bool:
    """Whether the environment says how threads wait, and not because ``set_wait_policy`` put it there."""
    return any(os.environ.get(name, ours) != ours for name, ours in OUR_POLICY.items()) or (
        "OMP_WAIT_POLICY" in os.environ and "GOMP_SPINCOUNT" not in os.environ
    )


class Crowd:
    """What others use of the processors that this process may run on, from one call to the next."""

    def __init__(self) -> None:
        self._before = self._seconds()

    def others(self) -> float:
        """Cores that others use of those that our threads need."""
        before, after = self._before, self._seconds()
        self._before = after
        wall, busy, own = (b - a for a, b in zip(before, after))
        free = max(0, len(os.sched_getaffinity(0)) - num_threads())
        return (busy - own) / max(wall, 1e-3) - free

    @staticmethod
    def _seconds() -> tuple[float, float, float]:
        """The time; seconds that these processors have been busy, for anybody; those of this process."""
        return time.monotonic(), busy_seconds(os.sched_getaffinity(0)), sum(os.times()[:2])


def busy_seconds(processors: Collection[int] | None = None) -> float:
    """What some processors, or all, have done since they started, time that a hypervisor took included; 0 where the
    system does not tell."""
    try:
        lines = [line.split() for line in STAT.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return 0.0
    wanted = {"cpu"} if processors is None else {f"cpu{k}" for k in processors}
    ticks = 0
    for name, *fields in lines:
        if name in wanted:
            user, nice, system, _idle, _waiting, *others = map(int, fields[:8])
            ticks += user + nice + system + sum(others)
    return ticks / os.sysconf("SC_CLK_TCK")


def openmp() -> list[str]:
    """The files of GNU's OpenMP that this process has loaded: torch and other libraries may each bring their own."""
    try:
        return sorted({line.split()[-1] for line in MAPS.read_text().splitlines() if "/libgomp" in line})
    except OSError:
        return []


class IdleTeam:
    """As many idle threads for each OpenMP as there are processors, and one more.

    Attributes:
        libraries: the files that they belong to.
    """

    def __init__(self) -> None:
        self.libraries = openmp()
        self._made, self._released = threading.Event(), threading.Event()
        self._holder = threading.Thread(target=self._hold, name="hongtu idle team", daemon=True)
        self._holder.start()
        self._made.wait()

    def _hold(self) -> None:
        """OpenMP keeps a team until the thread that made it ends."""
        size = len(os.sched_getaffinity(0)) + 1
        nothing = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p)  # every thread calls it once
        for library in self.libraries:
            ctypes.CDLL(library).GOMP_parallel(nothing, None, size, 0)
        self._made.set()
        self._released.wait()

    def release(self) -> None:
        """End them."""
        self._released.set()
        self._holder.join()
