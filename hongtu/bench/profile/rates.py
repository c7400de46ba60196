"""What copies of rows and dense products take on this machine, each measured alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
import torch

from hongtu.bench.profile.fitting import explained
from hongtu.kernels.dense import substitutes
from hongtu.kernels.rows import add_rows, copy_rows

COLUMNS, NARROW = 128, 16  # rows of 512 bytes, and of 64
HOST_ROWS = 2**18  # 128 MiB: more than a cache holds
MOVED = 2**16
ROWS = 2**14  # of a dense product
MATRICES = ((32, 48), (64, 32), (48, 96), (64, 64), (96, 80), (128, 128), (128, 256), (256, 64), (256, 256), (512, 128))
REPEATS = 5
NOTHING = 1e-15  # seconds


def rates_alone() -> dict[str, float]:
    """Rows copied to, and added to, random places: bytes per second, and seconds per row; contiguous ones; products."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(HOST_ROWS)[:MOVED]).astype(np.int32)  # a plan's loads are sorted by row
    slots = rng.permutation(MOVED).astype(np.int32)

    def seconds(move: Callable[..., None], columns: int, *, back: bool) -> float:
        host, cache = np.ones((HOST_ROWS, columns), np.float32), np.ones((MOVED, columns), np.float32)
        given = (cache, slots, host, rows) if back else (host, rows, cache, slots)
        return best_seconds(lambda: move(*given)) / MOVED

    narrow, wide = (seconds(copy_rows, columns, back=False) for columns in (NARROW, COLUMNS))
    per_byte = max(wide - narrow, wide / 10) / (4 * (COLUMNS - NARROW))
    per_row = max(narrow - 4 * NARROW * per_byte, 1e-12)
    # a flush adds where a load copies: the adding itself is what the copy's time leaves over
    added = seconds(add_rows, COLUMNS, back=True)
    more = max(added - wide, wide / 100) / (4 * COLUMNS)
    contiguous = _contiguous_rate()
    return {
        "host_link": 1 / per_byte,
        "row_seconds": per_row,
        "host_add": 1 / more,
        "contiguous_link": contiguous,
        "structure_link": contiguous,
        "fresh_bandwidth": _fresh_rate(),
        **_product_rates(),
    }


def best_seconds(call: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, after one that compiles and warms up."""
    call()
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def _contiguous_rate() -> float:
    """A chunk's rows from the host to a buffer that is used again and again, and back."""
    host, buffer = torch.ones(2**24), torch.ones(2**20)
    parts = host.split(len(buffer))
    there = best_seconds(lambda: [buffer.copy_(part) for part in parts])
    back = best_seconds(lambda: [part.copy_(buffer) for part in parts])
    return 2 * host.nbytes / (there + back)


def _fresh_rate() -> float:
    """Rows read, and written to memory that is cleared first."""
    source = torch.ones(2**25)
    return 2 * source.nbytes / best_seconds(source.clone)


def _product_rates() -> dict[str, float]:
    """Dense products of rows, and gradients of weights: operations, and bytes of rows, per second."""
    multiply = substitutes().get(torch.ops.aten.mm.default, torch.mm)
    amounts, of_rows, of_weights = [], [], []
    for inner, outer in MATRICES:
        given, weight, gradient = torch.ones(ROWS, inner), torch.ones(outer, inner), torch.ones(ROWS, outer)
        amounts.append((2 * ROWS * inner * outer, 4 * ROWS * (inner + outer)))
        there, back = (
            best_seconds(partial(multiply, given, weight.t())),
            best_seconds(partial(multiply, gradient, weight)),
        )
        of_rows.append((there + back) / 2)
        of_weights.append(best_seconds(partial(multiply, given.t(), gradient)))
    found: dict[str, float] = {}
    for rate, bandwidth, seconds in (
        ("flops", "product_bandwidth", of_rows),
        ("weight_flops", "weight_bandwidth", of_weights),
    ):
        each, _ = explained(np.array(amounts, dtype=np.float64), np.array(seconds))
        found |= {name: 1 / max(cost, NOTHING) for name, cost in zip((rate, bandwidth), each, strict=True)}
    return found
