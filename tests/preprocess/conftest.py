"""Preprocessing runs on several threads: a race can show itself."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def several_threads(monkeypatch):
    from hongtu import parallel, threads
    from hongtu.preprocess import bucket_sort, csc

    for module in (parallel, threads, bucket_sort, csc):
        monkeypatch.setattr(module, "num_threads", lambda: 3)
