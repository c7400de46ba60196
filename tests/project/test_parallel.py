"""Parts of a loop: each once, on several threads at the same time; errors and interrupts come through; forks work."""

from __future__ import annotations

import os
import threading
import time

import pytest

from hongtu import parallel
from hongtu.parallel import parallel_for


@pytest.mark.parametrize("count", [0, 1, 2, 5, 1000])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_each_part_once(count, threads):
    done = [0] * count

    def add(part, by):
        done[part] += by

    parallel_for(add, count, 2, threads=threads)
    assert done == [2] * count


def test_the_number_of_threads_is_torch_s_unless_said(monkeypatch):
    monkeypatch.setattr(parallel, "num_threads", lambda: 3)
    together = threading.Barrier(3, timeout=10)
    parallel_for(lambda part: together.wait(), 3)
    assert not together.broken


@pytest.mark.parametrize("bad", [{0}, {3}, {1, 2}])
def test_an_error_is_raised_when_the_others_are_through(bad):
    done = []

    def work(part):
        if part in bad:
            raise ZeroDivisionError
        time.sleep(0.02)
        done.append(part)

    with pytest.raises(ZeroDivisionError):
        parallel_for(work, 4, threads=2)
    assert sorted(done) == sorted({0, 1, 2, 3} - bad)


def test_callers_do_not_wait_for_each_other_s_work():
    held, over = threading.Event(), threading.Event()

    def hold(part):
        held.set()
        over.wait(10)

    other = threading.Thread(target=parallel_for, args=(hold, 2), kwargs={"threads": 2})
    other.start()
    held.wait(10)
    done = []
    parallel_for(done.append, 50, threads=2)  # the helper may be held up: then the caller does it all
    assert sorted(done) == list(range(50)) and other.is_alive()
    over.set()
    other.join(10)
    assert not other.is_alive()


def test_nested_loops_end():
    done = []
    parallel_for(lambda a: parallel_for(lambda b: done.append((a, b)), 3, threads=2), 4, threads=2)
    assert sorted(done) == [(a, b) for a in range(4) for b in range(3)]


def test_a_forked_process_has_threads_of_its_own():
    parallel_for(lambda part: None, 2, threads=2)
    child = os.fork()
    if child == 0:
        done = []
        parallel_for(done.append, 9, threads=3)
        os._exit(0 if sorted(done) == list(range(9)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_closed_gives_nothing_out():
    """After an interrupt, helpers that took the job before do no part of it any more."""
    done = []
    job = parallel._Job(done.append, 5, ())
    parts = job._parts
    job.close()
    job.help()
    assert not done and next(parts, None) is None
