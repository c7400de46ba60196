"""Nothing is captured where that is asked for, and a process whose GPU fails every call runs no more tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--eager", action="store_true", help="capture no pass of a training")


@pytest.fixture(autouse=True)
def _eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.config.getoption("--eager"):
        monkeypatch.setattr("hongtu.device.cuda.CudaBackend.recorder", lambda self, devices: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """After a fault every call fails. So that one test is blamed, and not all that follow, a worker ends, for
    pytest-xdist to begin another; without workers the run ends."""
    done = yield
    import torch

    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)
        item.session.shouldfail = f"the GPU fails every call after {item.nodeid}: {error}"
    return done
