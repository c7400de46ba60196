"""Shared by all tests: threads, hypothesis profiles, rows that nobody wrote, and the real graphs.

Threads are set before torch is imported, so torch is imported in fixtures only.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Read by torch when it is first imported, hence set before. Workers share the cores. Threads that wait must sleep: a
# spinning one keeps a shared core from the thread it waits for, and tests with many small kernels take ten times as
# long.
_THREADS = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _THREADS)))
os.environ.setdefault("MKL_NUM_THREADS", str(max(1, _THREADS)))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:  # a shell has background jobs ignore one, `nohup` the other
        signal.signal(_number, _handler)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # processes that tests start would compile every source again

# HYPOTHESIS_PROFILE=thorough searches further, with a new seed each time. Compiling a kernel makes the first example
# slow: no deadline.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=50, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

MOST = 2  # cases of a grid in a sample
GOLDEN = 0.6180339887  # of a grid, steps of this part of it meet no period of its parameters


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="of each grid a few cases, of a long one one: `make test`")
    parser.addoption("--rest", action="store_true", help="what a sample leaves out")
    parser.addoption("--whole", action="store_true", help="every case of grids of which some are else enough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without ``--whole``, keep every value, or every pair of values, of a grid that is marked so, and of a grid as
    many spread cases as its mark says. With ``--sample``, keep of these a few of every test function, one of a long
    grid or as many as its mark says, and no long test that is no grid; with ``--rest`` all others."""
    grids: dict[str, list[pytest.Item]] = {}
    for item in items:
        grids.setdefault(item.nodeid.split("[")[0], []).append(item)
    kept = set()
    for grid in grids.values():
        for mark, values in () if config.getoption("--whole") else (("every", 1), ("pairs", 2)):
            if grid[0].get_closest_marker(mark) is not None:
                cases = [tuple(map(_known, item.callspec.params.values())) for item in grid]  # type: ignore[attr-defined]
                grid = [grid[k] for k in enough(cases, values)]
        if (most := grid[0].get_closest_marker("most")) is not None and not config.getoption("--whole"):
            grid = spread(grid, *most.args)
        long = grid[0].get_closest_marker("long")
        sample = {*spread(grid, MOST if long is None else long.kwargs.get("sample", int(len(grid) > 1)))}
        rest = {*grid} - sample if config.getoption("--rest") else {*grid}
        kept |= sample if config.getoption("--sample") else rest
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def spread(grid: list[pytest.Item], most: int) -> list[pytest.Item]:
    """So many cases of a grid, or a few less: the same again for a larger number, and others beside them."""
    return list(dict.fromkeys(grid[int(len(grid) * (k * GOLDEN % 1))] for k in range(min(len(grid), most))))


def _known(value: object) -> object:
    """What a value of a grid is told by: some have no hash."""
    return value if isinstance(value, (str, int, float, tuple)) else id(value)


def enough(cases: Sequence[tuple[object, ...]], values: int) -> list[int]:
    """Which few of a grid's cases are enough for any so many values to meet that meet in the grid; among others as good
    the choice goes around, so that no value is met with the same one of another parameter each time.

    >>> enough(list(itertools.product("abcd", "xy")), 1)
    [0, 2, 5, 7]
    >>> enough(list(itertools.product("ab", "xy", "12")), 2)
    [0, 3, 5, 6]
    """
    missing = [set(itertools.combinations(enumerate(case), min(values, len(case)))) for case in cases]
    found: list[int] = []
    while most := max(map(len, missing), default=0):
        good = [k for k, new in enumerate(missing) if len(new) == most]
        found.append(good[int(len(good) * (len(found) * GOLDEN % 1))])
        met = missing[found[-1]].copy()
        for new in missing:
            new -= met
    return sorted(found)


REPOSITORY = Path(__file__).resolve().parent.parent


@functools.cache
def plain_propagate() -> None:
    """torch_geometric writes a class's propagate() once, after the first instance: one with several aggregations has no
    fused form, which plain ones on a sparse matrix then lack."""
    import torch_geometric.nn

    torch_geometric.nn.SAGEConv(1, 1)


@pytest.fixture(autouse=True, scope="module")
def few_objects() -> None:
    """What earlier tests and their imports left stays: garbage is collected without a look at all of it each time."""
    gc.set_threshold(10_000)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def undefined_rows_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vertex rows that nobody has written are NaN, every time, and weights the same ones, whichever tests ran before.
    Tests without torch do not load it for that."""
    if "torch_geometric" in sys.modules:
        plain_propagate()
    if "torch" not in sys.modules:
        return
    import torch

    from hongtu.device.simulated import Poisonous
    from hongtu.engine import host_store

    monkeypatch.setattr(host_store, "Pool", Poisonous)
    torch.manual_seed(0)


@pytest.fixture
def forked_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a benchmark begin at once, with libraries loaded."""
    from tests.faults.processes import CONTEXT

    monkeypatch.setattr("hongtu.bench.process.get_context", lambda _: CONTEXT)


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Where the real graphs are: ``HONGTU_DATA``, by default ``../shared/data`` beside the repository."""
    return Path(os.environ.get("HONGTU_DATA") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(scope="session")
def data_graph(data_directory: Path) -> Callable[[str], Path]:
    """``data_graph(name)``: the directory of a real graph; skips the test where it is absent."""

    def find(name: str) -> Path:
        path = data_directory / name
        if not (path / "edges.npy").is_file():
            pytest.skip(f"graph {name!r} is not in {data_directory} (set HONGTU_DATA)")
        return path

    return find
