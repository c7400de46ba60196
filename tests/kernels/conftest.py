"""Kernels run in several parts on several threads, however little there is to do: a race can show itself."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def several_threads(monkeypatch):
    from hongtu import parallel
    from hongtu.kernels import parts

    monkeypatch.setattr(parts, "LEAST", 64)
    for module in (parts, parallel):
        monkeypatch.setattr(module, "num_threads", lambda: 3)
