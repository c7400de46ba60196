"""Work in parts: every row once, by several threads where it is much, and errors come through."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hongtu import host
from hongtu.host import LEAST, in_parts


@pytest.fixture(autouse=True)
def four_threads(monkeypatch):
    monkeypatch.setattr(host, "copy_threads", lambda: 4)


@pytest.mark.parametrize(
    ("rows", "nbytes", "parts"),
    [
        (0, 0, 1),
        (1, 100 * LEAST, 1),
        (3, 100 * LEAST, 3),
        (1000, LEAST, 1),
        (1000, 2 * LEAST, 2),
        (1001, 99 * LEAST, 4),
    ],
)
def test_every_row_is_in_one_part(rows, nbytes, parts):
    seen, lock, calls = np.zeros(rows, dtype=int), threading.Lock(), []

    def work(part):
        with lock:
            seen[part] += 1
            calls.append(part)

    in_parts(work, rows, nbytes)
    assert (seen == 1).all() and len(calls) == parts


def test_parts_run_at_the_same_time():
    together = threading.Barrier(4, timeout=10)
    in_parts(lambda part: together.wait(), 4, 4 * LEAST)
    assert not together.broken


@pytest.mark.parametrize("bad", [{0}, {3}, {1, 2}, {0, 1}])
def test_an_error_in_any_part_is_raised_when_all_are_through(bad):
    done = []

    def work(part):
        if part.start in bad:
            raise ZeroDivisionError
        time.sleep(0.2)
        done.append(part.start)

    with pytest.raises(ZeroDivisionError):
        in_parts(work, 4, 4 * LEAST)
    assert sorted(done) == sorted({0, 1, 2, 3} - bad)
    in_parts(done.append, 4, 4 * LEAST)  # and the threads are there for more
    assert len(done) == 8 - len(bad)
