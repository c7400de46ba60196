"""What one device computes in one pass: bytes, operations and chunks, without the seconds that they take."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES, Pass
from hongtu.plan.passes.shapes import Counts, Products, StageWork

LOSS_SWEEPS = 8  # times that the loss and its gradient touch the output: picked, its logarithm, back, put in place
FRESH = 3  # times as long, where a tensor's memory is mapped anew and its pages are cleared
FINDING = 192  # bytes of memory that could be read while an edge finds its row, in a cache or not


@dataclass(frozen=True, kw_only=True)
class Work(Counts):
    """What one device computes in one pass.

    Attributes:
        found: bytes that aggregates read from memory, and write, row by row as edges name them: ``FINDING`` for every
            edge, and its row where no cache has it.
        swept: bytes of rows that everything else reads and writes in order; of these ``product_bytes``: dense products.
        flops: multiplications and additions of these products, in those of 4-byte numbers.
        chunks: those that run, and again for every tensor whose rows they get from, or send, elsewhere.
        calls: operations of row-wise stages and of functions of edges.
    """

    found: float = 0.0
    swept: float = 0.0
    product_bytes: float = 0.0
    flops: float = 0.0
    chunks: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Extent:
    """Of what the chunks of a device have together: destinations, in-edges, sources (each once a chunk); and how many
    chunks there are."""

    vertices: int
    edges: int
    sources: int
    chunks: int = 0


def partition_work(
    plan: ExecutionPlan, p: Pass, i: int, cache: int | None = None, largest_reused: int | None = None
) -> Work:
    """What partition ``i`` computes in a pass.

    Args:
        cache: bytes of the device's, None for none.
        largest_reused: bytes of a tensor that its allocator hands out again, None for any.
    """
    view = plan.view(p)
    chunks = slice(i * view.chunks, (i + 1) * view.chunks)
    num_dst, edges, sources = view.num_dst[chunks], view.chunk_edges[chunks], view.num_sources[chunks]
    extent = Extent(int(num_dst.sum()), int(edges.sum()), int(sources.sum()), int(np.count_nonzero(num_dst)))
    work = pass_work(plan, p, extent, cache)
    if largest_reused is None:
        return work
    widths = (
        plan.passes.width[name] for name in (*p.inputs, *p.gradients, *p.written) if name not in plan.passes.of_edges
    )
    largest = num_dst * max(widths, default=0)
    if p.layer is not None and plan.shape.layers[p.layer].reduce is None:
        largest = np.maximum(largest, sources * _exchanged_columns(plan, p))
    fresh = int(num_dst[largest * plan.shape.itemsize > largest_reused].sum()) / max(extent.vertices, 1)
    return replace(work, swept=work.swept * (1 + (FRESH - 1) * fresh))


def missed_share(view: Topology, sources: int, edges: int, rows: float) -> float:
    """The share of accesses that find their row in no cache of so many rows: every source's first in a chunk at
    least."""
    share = float(np.interp(np.log2(max(rows, 1.0)), np.arange(len(view.miss_ratio)), view.miss_ratio))
    return max(share, sources / max(edges, 1))


def pass_work(plan: ExecutionPlan, p: Pass, extent: Extent, cache: int | None = None) -> Work:
    """What a pass computes over so much."""
    known = plan.shape.stage_work
    work = _rowwise(plan, p, extent, known[p.stage] if known and p.stage is not None else StageWork())
    if p.layer is None:
        return work
    of_layer = known[p.layer + 1] if known else StageWork()
    row = plan.shape.itemsize * _exchanged_columns(plan, p)
    missed = 1.0 if cache is None else missed_share(plan.view(p), extent.sources, extent.edges, cache / max(row, 1))
    if plan.shape.layers[p.layer].reduce is not None:
        return work + _sum(plan, p, extent, of_layer, missed)
    return work + _function(plan, p, extent, of_layer, missed)


def _rowwise(plan: ExecutionPlan, p: Pass, extent: Extent, stage: StageWork) -> Work:
    """Per vertex and parameter of a stage a multiplication and an addition; backward does twice that, once where the
    input gets no gradient, and first forward again where nothing was kept."""
    width = plan.passes.width
    backward, again = p.direction != "forward", p.direction != "forward" and not p.saves
    forward = not backward or again
    swept = forward * stage.sweeps.forward + backward * stage.sweeps.backward
    swept += LOSS_SWEEPS * plan.shape.output * p.loss
    copied = sum(width[name] for name in p.written if name in plan.resident)
    if p.saves and p.direction == "forward":
        copied += stage.sweeps.saved
    products = stage.products.times(forward + 2 * backward)
    products += stage.entry.times(-(backward and not _input_wanted(plan, p)))
    products += stage.mapped.times(-(again and p.direction == "backward"))
    linked = [name for name in (p.exchange, p.flush) if name is not None and _moves(plan, name)]
    calls = forward * stage.sweeps.forward_calls + backward * stage.sweeps.backward_calls
    rows = Work(
        swept=extent.vertices * (swept + 2 * copied) * plan.shape.itemsize,
        chunks=extent.chunks * (1 + len(linked)),
        calls=extent.chunks * calls,
    )
    return rows + _multiplied(plan, extent.vertices, products)


def _multiplied(plan: ExecutionPlan, rows: int, products: Products) -> Work:
    """Dense products of so many rows, beside what they take and give."""
    nbytes = rows * products.columns * plan.shape.itemsize
    flops = 2 * rows * products.parameters * plan.shape.itemsize / 4  # rates are of 4-byte numbers
    return Work(flops=flops, product_bytes=nbytes, swept=nbytes)


def _sum(plan: ExecutionPlan, p: Pass, extent: Extent, stage: StageWork, missed: float) -> Work:
    """Row accesses per edge: a sum reads, its transpose reads and writes."""
    item, combine = plan.shape.itemsize, stage.combine
    brings, sends = p.exchange is not None, p.flush is not None
    row = item * _exchanged_columns(plan, p)
    swept = brings * combine.forward + sends * combine.backward + (brings + sends) * plan.shape.layers[p.layer].a
    return Work(
        found=extent.edges * (FINDING * (brings + sends) + missed * row * (brings + 2 * sends)),
        swept=extent.vertices * swept * item,
        calls=extent.chunks * (brings * combine.forward_calls + sends * combine.backward_calls),
    )


def _function(plan: ExecutionPlan, p: Pass, extent: Extent, stage: StageWork, missed: float) -> Work:
    """Sources' rows are put side by side for it, and their gradients from there added to the others'. Gradients of
    linear ones begin with running it on nothing."""
    item, width = plan.shape.itemsize, plan.passes.width
    brings, sends = p.exchange is not None, p.flush is not None
    forward, backward = stage.function
    done = forward.times(brings + (sends and plan.shape.layers[p.layer].linear)) + backward.times(sends)
    moved = 2 * width[p.exchange] if p.exchange is not None else 0
    moved += 3 * width[p.flush] if p.flush is not None else 0
    swept = extent.vertices * done.destinations + extent.sources * (done.sources + moved) + extent.edges * done.edges
    found = Work(
        found=extent.edges * (FINDING * done.walks + missed * item * done.rows),
        swept=swept * item,
        calls=extent.chunks * done.calls,
    )
    return found + _multiplied(plan, extent.sources, stage.replicas.times(brings + 2 * sends))


def _exchanged_columns(plan: ExecutionPlan, p: Pass) -> int:
    """Of the rows that go through the caches, or of their gradients, those of the wider."""
    return max((plan.passes.width[name] for name in (p.exchange, p.flush) if name is not None), default=0)


def _moves(plan: ExecutionPlan, name: str) -> bool:
    """Whether rows of a vertex tensor that is exchanged come from the host, or from other devices."""
    return name not in plan.resident or plan.topology.partitions > 1


def _input_wanted(plan: ExecutionPlan, p: Pass) -> bool:
    """Whether what a pass's stage begins with gets a gradient."""
    names = (FEATURES,) if p.layer is None else plan.passes.layer_inputs[p.layer]
    return not plan.passes.wanted.isdisjoint(names)
