"""The least time that a model's epoch can take on this machine (Williams, Waterman and Patterson's roofline, 2009).

Every kernel is bound by its bytes or by its operations: a dense product reads and writes its rows in order, an
aggregate finds a row for every edge, forward and again for the gradient. What no exact system can leave out is counted:
everything stays in memory, nothing runs twice, the sum of the input's neighbours is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import torch
from torch.nn.functional import embedding_bag

from hongtu.bench.profile import best_seconds, memory_rate, product_rate
from hongtu.plan.cost.work import Extent, missed_share, pass_work
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import Pass

COLUMNS = 128  # rows of 512 bytes
FAR_ROWS = 2**19  # 256 MiB: more than a cache holds
NEAR_ROWS = 2**9  # 256 KiB: what a core keeps beside it
FOUND = 2**18  # rows found by one call
BAG = 64  # of them summed to one


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What this machine does at most.

    Attributes:
        stream: bytes per second of rows read and written in order.
        far_rows, near_rows: bytes per second of rows found by an index, in memory and in a cache.
        products: float32 operations per second of torch's dense products.
    """

    stream: float
    far_rows: float
    near_rows: float
    products: float


@cache
def measured_rates(device: str = "cpu") -> Rates:
    """The rates of a torch device, each measured alone, once in a process; about a second."""
    far = torch.ones(FAR_ROWS, COLUMNS, device=device)
    return Rates(
        stream=memory_rate(device),
        far_rows=_found_rate(far),
        near_rows=_found_rate(far[:NEAR_ROWS].clone()),
        products=product_rate(device),
    )


def least_seconds(plan: ExecutionPlan, rates: Rates, cache_bytes: int | None) -> float:
    """Seconds of an epoch that a model's kernels need at least, one after the other on one device.

    Args:
        plan: of the model in memory.
        cache_bytes: of rows that the device finds in its cache; None: it finds none.
    """
    return sum(_least_of_pass(plan, p, rates, cache_bytes) for p in plan.passes.train)


def _least_of_pass(plan: ExecutionPlan, p: Pass, rates: Rates, cache_bytes: int | None) -> float:
    item, view, width, wanted = plan.shape.itemsize, plan.view(p), plan.passes.width, plan.passes.wanted
    edges = int(view.chunk_edges.sum())
    extent = Extent(int(view.num_dst.sum()), edges, int(view.num_sources.sum()))
    work = pass_work(plan, p, extent)
    products = max(work.product_bytes / rates.stream, work.flops / rates.products)
    row = item * sum(  # what depends on nothing that is trained is the same in every epoch
        width[name] for name in (p.exchange, p.flush) if name is not None and (name == p.flush or name in wanted)
    )
    if not row:
        return products
    far = 1.0 if cache_bytes is None else missed_share(view, extent.sources, edges, cache_bytes / row)
    return products + edges * row * (far / rates.far_rows + (1 - far) / rates.near_rows)


def _found_rate(rows: torch.Tensor) -> float:
    """Bytes per second of a table's rows, summed in bags: next to nothing is written."""
    generator = torch.Generator(rows.device).manual_seed(0)
    index = torch.randint(len(rows), (FOUND // BAG, BAG), generator=generator, device=rows.device)
    return (
        index.numel() * rows[0].nbytes / best_seconds(partial(embedding_bag, index, rows, mode="sum"), str(rows.device))
    )
