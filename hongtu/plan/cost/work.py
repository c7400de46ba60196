"""What one device computes in one pass: rows, operations and chunks, without the seconds that they take."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES, Pass
from hongtu.plan.passes.shapes import StageWork

LOSS_SWEEPS = 8  # times that the loss and its gradient touch the output: picked, its logarithm, back, put in place


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one device computes in one pass.

    Attributes:
        summed, transposed: bytes of rows that sums over in-edges read, and that their transposes read and write.
        summed_edges, transposed_edges: edges that they look at.
        fetched: bytes of rows that they find in no cache; function_fetched: that functions of edges find in none.
        function: bytes of sources' rows that functions of edges and their gradients read, or add to, edge by edge;
            function_edges: edges whose rows they find; exponentials: those they take.
        flops: multiplications and additions of dense products of rows, in those of 4-byte numbers; product_bytes: of
            what these take and give; weight_flops and weight_bytes: the same for gradients of weights.
        loss_rows: rows of the output with a loss, once for each of its terms.
        swept: bytes of the chunks' own rows that row-wise stages touch, and of what functions of edges touch in order;
            swept_sources: of these, copies of sources' rows side by side, and making their gradients; fresh: in
            tensors that the allocator maps anew; largest: of one tensor of one chunk.
        chunks: chunks that run; of these aggregate_chunks have in-edges or their sums, gradient_chunks gradients,
            transpose_chunks those of an aggregate, loss_chunks the loss; exchange_chunks: of all, for every tensor
            whose rows they get from, or send, elsewhere; peer_chunks: where that may be another device.
        calls: operations of row-wise stages and of functions of edges.
    """

    summed: float = 0.0
    transposed: float = 0.0
    summed_edges: float = 0.0
    transposed_edges: float = 0.0
    fetched: float = 0.0
    function_fetched: float = 0.0
    function: float = 0.0
    function_edges: float = 0.0
    exponentials: float = 0.0
    flops: float = 0.0
    product_bytes: float = 0.0
    weight_flops: float = 0.0
    weight_bytes: float = 0.0
    loss_rows: float = 0.0
    swept: float = 0.0
    swept_sources: float = 0.0
    fresh: float = 0.0
    largest: int = 0
    calls: int = 0
    chunks: int = 0
    aggregate_chunks: int = 0
    gradient_chunks: int = 0
    transpose_chunks: int = 0
    loss_chunks: int = 0
    exchange_chunks: int = 0
    peer_chunks: int = 0

    def __add__(self, other: Work) -> Work:
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Work(**both | {"largest": max(self.largest, other.largest)})


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
    own = slice(i * view.chunks, (i + 1) * view.chunks)
    num_dst, edges, sources = view.num_dst[own], view.chunk_edges[own], view.num_sources[own]
    extent = Extent(int(num_dst.sum()), int(edges.sum()), int(sources.sum()), int(np.count_nonzero(num_dst)))
    work = pass_work(plan, p, extent)
    item, width = plan.shape.itemsize, plan.passes.width
    touched = (*p.inputs, *p.gradients, *p.written)
    widest = max((width[name] for name in touched if name not in plan.passes.of_edges), default=0)
    of_edges = max((width[name] for name in touched if name in plan.passes.of_edges), default=0)
    row = item * _exchanged_columns(plan, p)
    largest = max(int(num_dst.max()) * widest, int(edges.max()) * of_edges) * item
    if p.layer is not None and plan.shape.layers[p.layer].reduce is None:
        largest = max(largest, int(sources.max()) * row)
    fresh = _larger(num_dst, widest * item, largest_reused) * (work.swept - work.swept_sources)
    fresh += _larger(sources, row, largest_reused) * work.swept_sources
    work = replace(work, largest=largest, fresh=fresh)
    if cache is None:
        return work
    share = missed_share(view, own, cache / max(row, 1))
    return replace(work, fetched=share * (work.summed + work.transposed), function_fetched=share * work.function)


def _larger(rows: np.ndarray, nbytes: int, limit: int | None) -> float:
    """Of all chunks' rows of so many bytes, the share in chunks where they take more than a limit together."""
    if limit is None:
        return 0.0
    return int(rows[rows * nbytes > limit].sum()) / max(int(rows.sum()), 1)


def missed_share(view: Topology, own: slice, rows: float) -> float:
    """The share of accesses that find their row in no cache of so many rows: every source's first in a chunk at
    least."""
    share = float(np.interp(np.log2(max(rows, 1.0)), np.arange(len(view.miss_ratio)), view.miss_ratio))
    return max(share, int(view.num_sources[own].sum()) / max(int(view.chunk_edges[own].sum()), 1))


def pass_work(plan: ExecutionPlan, p: Pass, extent: Extent) -> Work:
    """What a pass computes over so much, less what depends on single chunks."""
    known = plan.shape.stage_work
    work = _rowwise(plan, p, extent, known[p.stage] if known and p.stage is not None else StageWork())
    if p.layer is None:
        return work
    of_layer = known[p.layer + 1] if known else StageWork()
    if plan.shape.layers[p.layer].reduce is not None:
        return work + _sum(plan, p, extent, of_layer)
    return work + _function(plan, p, extent, of_layer)


def _rowwise(plan: ExecutionPlan, p: Pass, extent: Extent, stage: StageWork) -> Work:
    """Per vertex and parameter of a stage a multiplication and an addition; backward does twice that, once where the
    input gets no gradient, and first forward again where nothing was kept."""
    item, width = plan.shape.itemsize, plan.passes.width
    backward, again = p.direction != "forward", p.direction != "forward" and not p.saves
    forward = not backward or again
    swept = forward * stage.sweeps.forward + backward * stage.sweeps.backward
    swept += LOSS_SWEEPS * plan.shape.output * p.loss
    copied = sum(width[name] for name in p.written if name in plan.resident)
    if p.saves and p.direction == "forward":
        copied += stage.sweeps.saved
    gradients = stage.products.times(backward)
    products = stage.products.times(forward) + gradients
    products += stage.entry.times(-(backward and not _input_wanted(plan, p)))
    products += stage.mapped.times(-(again and p.direction == "backward"))
    linked = [name for name in (p.exchange, p.flush) if name is not None and _moves(plan, name)]
    shares = plan.topology.partitions > 1 and plan.strategy.reuse != "none"
    return Work(
        flops=2 * extent.vertices * products.parameters * item / 4,  # rates are of 4-byte numbers
        product_bytes=extent.vertices * products.columns * item,
        weight_flops=2 * extent.vertices * gradients.parameters * item / 4,
        weight_bytes=extent.vertices * gradients.columns * item,
        loss_rows=p.loss * plan.shape.loss_rows * extent.vertices / max(int(plan.view(p).num_dst.sum()), 1),
        swept=extent.vertices * (swept + 2 * copied) * item,
        calls=extent.chunks * (forward * stage.sweeps.forward_calls + backward * stage.sweeps.backward_calls),
        chunks=extent.chunks,
        aggregate_chunks=extent.chunks if p.layer is not None else 0,
        gradient_chunks=extent.chunks if backward else 0,
        transpose_chunks=extent.chunks if backward and p.layer is not None else 0,
        loss_chunks=extent.chunks if p.loss else 0,
        exchange_chunks=extent.chunks * len(linked),
        peer_chunks=extent.chunks * len(linked) * shares,
    )


def _sum(plan: ExecutionPlan, p: Pass, extent: Extent, stage: StageWork) -> Work:
    """Row accesses per edge: a sum reads, its transpose reads and writes."""
    assert p.layer is not None
    item, combine = plan.shape.itemsize, stage.combine
    brings, sends = p.exchange is not None, p.flush is not None
    touched = extent.edges * item * _exchanged_columns(plan, p)
    swept = brings * combine.forward + sends * combine.backward + (brings + sends) * plan.shape.layers[p.layer].a
    return Work(
        summed=brings * touched,
        transposed=2 * sends * touched,
        summed_edges=brings * extent.edges,
        transposed_edges=sends * extent.edges,
        swept=extent.vertices * swept * item,
        calls=extent.chunks * (brings * combine.forward_calls + sends * combine.backward_calls),
    )


def _function(plan: ExecutionPlan, p: Pass, extent: Extent, stage: StageWork) -> Work:
    """Sources' rows are put side by side for it, and their gradients from there added to the others'. Gradients of
    linear ones begin with running it on nothing."""
    assert p.layer is not None
    item, width = plan.shape.itemsize, plan.passes.width
    brings, sends = p.exchange is not None, p.flush is not None
    forward, backward = stage.function
    done = forward.times(brings + (sends and plan.shape.layers[p.layer].linear)) + backward.times(sends)
    moved = 2 * width[p.exchange] if p.exchange is not None else 0
    moved += 3 * width[p.flush] if p.flush is not None else 0
    swept = extent.vertices * done.destinations + extent.sources * (done.sources + moved) + extent.edges * done.edges
    made = 2 * sum(width[name] for name in (p.exchange, p.flush) if name is not None)
    products, gradients = (stage.replicas.times(times) for times in (brings + sends, sends))
    return Work(
        flops=2 * extent.sources * products.parameters * item / 4,
        product_bytes=extent.sources * products.columns * item,
        weight_flops=2 * extent.sources * gradients.parameters * item / 4,
        weight_bytes=extent.sources * gradients.columns * item,
        function=extent.edges * done.rows * item,
        function_edges=extent.edges * done.walks,
        exponentials=extent.edges * done.exponentials,
        swept=swept * item,
        swept_sources=extent.sources * made * item,
        calls=extent.chunks * done.calls,
    )


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
