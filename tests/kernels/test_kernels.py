"""Every kernel against its numpy twin, at awkward sizes."""

import numpy as np
import pytest

from hongtu import compiled, parallel
from hongtu.kernels import (
    attention,
    exponential,
    parts,
    reductions,
    reference,
    sums,
)

WIDTHS = [1, 3, 47, 128, 130, 16]
NO_SLOTS = np.empty(0, np.int32)
DEGREES = {
    "empty": [],
    "one_vertex": [0],
    "one_edge": [1],
    "no_edges": [0] * 5,
    "mixed": [0, 3, 1, 0, 7, 4, 5, 2, 0],
    "hub": [1, 400, 0, 2, 3],
    "large": [int(k) for k in np.random.default_rng(0).integers(0, 9, 600)],
}


def graph_of(degrees):
    """(indptr, local_source, number of sources)"""
    degrees = np.array(degrees, np.int64)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    num_src = max(1, int(indptr[-1]) // 3)
    local_source = np.random.default_rng(1).integers(0, num_src, indptr[-1]).astype(np.int32)
    return indptr, local_source, num_src


@pytest.fixture(params=DEGREES)
def graph(request):
    return graph_of(DEGREES[request.param])


def random(*shape, dtype=np.float64):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def close(found, expected):
    tolerance = 1e-4 if found.dtype == np.float32 else 1e-11
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def both(name, arguments, outputs, module=sums):
    """Run kernel and twin on copies of ``outputs`` (the last arguments) and compare them."""
    found, expected = [out.copy() for out in outputs], [out.copy() for out in outputs]
    getattr(module, name)(*arguments, *found)
    getattr(reference, name)(*arguments, *expected)
    for a, b in zip(found, expected, strict=True):
        close(a, b)
    return found


@pytest.mark.most(16)
@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_csc_aggregate(graph, width, dtype):
    indptr, local_source, num_src = graph
    num_dst, cache_rows = len(indptr) - 1, num_src + 5
    slots = np.random.default_rng(2).permutation(cache_rows)[:num_src]
    for slot_of_source in (NO_SLOTS, slots.astype(np.int32), slots.astype(np.int64)):
        for weight in (np.empty(0, dtype), random(len(local_source), dtype=dtype)):
            for mean in (False, True):
                arguments = (indptr, local_source, slot_of_source, weight, mean)
                rows, grad = random(cache_rows, width, dtype=dtype), random(num_dst, width, dtype=dtype)
                both("csc_aggregate", (*arguments, rows), [np.full((num_dst, width), np.nan, dtype)])
                back = random(cache_rows, width, dtype=dtype)
                both("csc_aggregate_transpose", (*arguments, grad), [back], sums)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plain_mean_is_the_sum_divided(graph, width):
    """To the bit, as compiled; and the gradient is added to what is there edge by edge, as compiled, not at once."""
    indptr, local_source, num_src = graph
    num_dst, no_weights = len(indptr) - 1, np.empty(0, np.float32)
    rows, grad = random(num_src, width, dtype=np.float32), random(num_dst, width, dtype=np.float32)
    total, mean = np.empty((2, num_dst, width), np.float32)
    reference.csc_aggregate(indptr, local_source, NO_SLOTS, no_weights, False, rows, total)
    reference.csc_aggregate(indptr, local_source, NO_SLOTS, no_weights, True, rows, mean)
    np.testing.assert_array_equal(mean, total / np.maximum(np.diff(indptr), 1).astype(np.float32)[:, None])
    found, compiled = (random(num_src, width, dtype=np.float32) for _ in range(2))
    arguments = (indptr, local_source, NO_SLOTS, no_weights, True, grad)
    reference.csc_aggregate_transpose(*arguments, found)
    sums.add_by_edge(*arguments, compiled)
    np.testing.assert_array_equal(found, compiled)


@pytest.mark.parametrize("width", WIDTHS)
def test_segments(graph, width):
    indptr, local_source, num_src = graph
    num_dst, num_edges = len(indptr) - 1, len(local_source)
    both("segment_sum", (indptr, random(num_edges, width)), [np.full((num_dst, width), np.nan)])
    both("expand_rows", (indptr, random(num_dst, width)), [np.full((num_edges, width), np.nan)])
    both("scatter_add_edges", (local_source, random(num_edges, width)), [random(num_src, width)])


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_extremum(graph, width, dtype):
    """Rows of few different numbers: most extrema tie, some are 0."""
    indptr, local_source, num_src = graph
    num_dst = len(indptr) - 1
    rows, grad = random(num_src, width, dtype=dtype).round(), random(num_dst, width, dtype=dtype)
    for weight in (np.empty(0, dtype), random(len(local_source), dtype=dtype).round(1)):
        arguments = (indptr, local_source, weight)
        for largest in (True, False):
            out = [np.full((num_dst, width), np.nan, dtype)]
            [extremum] = both("csc_extremum", (*arguments, largest, rows), out, reductions)
            [shares] = both("csc_extremum_shares", (*arguments, rows, extremum, grad), out, reductions)
            back = [random(num_src, width, dtype=dtype)]
            both("csc_extremum_transpose", (*arguments, rows, extremum, shares), back, reductions)


@pytest.mark.pairs
@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS[::2])
def test_softmax_sum(graph, width, dtype):
    indptr, local_source, num_src = graph
    num_dst = len(indptr) - 1
    rows, grad = 20 * random(num_src, width, dtype=dtype), random(num_dst, width, dtype=dtype)
    graph_and_t = (indptr, local_source, random(width, dtype=dtype), rows)
    empty = np.full((num_dst, width), np.nan, dtype)
    given = (*graph_and_t, *both("csc_softmax_sum", graph_and_t, [empty, empty, empty], reductions), grad)
    both("csc_softmax_sum_t_gradient", given, [empty], reductions)
    for semi_grad in (False, True):
        back = [random(num_src, width, dtype=dtype)]
        both("csc_softmax_sum_transpose", (*given, semi_grad), back, reductions)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("heads,channels", [(1, 1), (1, 130), (3, 5)])
def test_additive_logits(graph, heads, channels, dtype):
    indptr, local_source, num_src = graph
    num_dst, num_edges, width = len(indptr) - 1, len(local_source), heads * channels
    rows, query = random(num_src, width, dtype=dtype), random(num_dst, width, dtype=dtype)
    given = (indptr, local_source, rows, query, random(width, dtype=dtype), dtype(0.2))
    module, grad = attention, random(num_edges, heads, dtype=dtype)
    both("additive_logits", given, [np.full((num_edges, heads), np.nan, dtype)], module)
    own = [np.full((num_dst, width), np.nan, dtype)] * 2
    both("additive_logits_gradients", (*given, grad), own, module)
    both("additive_logits_transpose", (*given, grad), [random(num_src, width, dtype=dtype)], module)


@pytest.mark.long
@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("heads,channels", [(1, 1), (1, 130), (3, 5)])
@pytest.mark.parametrize("loops", [False, True])
def test_graph_attention(graph, loops, heads, channels, dtype):
    indptr, local_source, num_src = graph
    num_dst, num_edges, width = len(indptr) - 1, len(local_source), heads * channels
    rows, own = (random(count, width + heads, dtype=dtype) for count in (num_src, num_dst if loops else 0))
    query, grad, slope = random(num_dst, heads, dtype=dtype), random(num_dst, width, dtype=dtype), dtype(0.2)
    edges, module = (indptr, local_source), attention
    some = np.random.default_rng(3).random(num_edges) < 0.3
    for mask in (np.empty(0, np.bool_), *[some] * loops):
        shares = [np.full((len(own), heads), np.nan, dtype), np.full((num_edges, heads), np.nan, dtype)]
        key = np.ascontiguousarray(rows[:, width:])
        own_alpha, alpha = both("gat_logits", (*edges, query, key, own, slope), shares, module)
        attention.segment_softmax(indptr, alpha, mask, own_alpha, alpha, own_alpha)
        [out] = both("attend", (*edges, alpha, rows), [np.full((num_dst, width), np.nan, dtype)], attention)
        [out] = both("gat_add_own", (own_alpha, own), [out], module)
        given = [np.full(x.shape, np.nan, dtype) for x in (query, query, own)]
        inner, *_ = both("gat_own_gradients", (own_alpha, query, own, slope, out, grad), given, module)
        back = [alpha, random(num_src, width + heads, dtype=dtype)]
        both("gat_transpose", (*edges, inner, query, grad, slope, rows), back, module)


def test_extremum_of_nan_and_infinities():
    indptr, local_source = np.array([0, 2, 4, 6], np.int64), np.array([0, 1, 1, 2, 2, 3], np.int32)
    rows, none = np.array([[1.0], [np.nan], [-np.inf], [-np.inf]]), np.empty(0)
    out = np.empty((3, 1))
    for largest in (True, False):
        reductions.csc_extremum(indptr, local_source, none, largest, rows, out)
        np.testing.assert_array_equal(out[:, 0], [np.nan, np.nan, -np.inf])


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("with_extra", [False, True])
def test_softmax(graph, heads, masked, with_extra, dtype):
    indptr, local_source, _ = graph
    num_dst, num_edges = len(indptr) - 1, len(local_source)
    mask = np.random.default_rng(3).random(num_edges if masked else 0) < 0.4
    logits = 30 * random(num_edges, heads, dtype=dtype)
    extra = 30 * random(num_dst if with_extra else 0, heads, dtype=dtype)
    out = [np.full_like(logits, np.nan), np.full_like(extra, np.nan)]
    alpha, alpha_extra = both("segment_softmax", (indptr, logits, mask, extra), out, attention)
    grad, grad_extra = random(*alpha.shape, dtype=dtype), random(*extra.shape, dtype=dtype)
    both("segment_softmax_backward", (indptr, alpha, alpha_extra, grad, grad_extra), out, attention)


def test_softmax_of_large_logits_and_of_nothing_is_finite():
    indptr = np.array([0, 2, 4, 4], np.int64)
    logits = np.array([[1e4], [-1e4], [3.0], [4.0]], np.float32)
    mask = np.array([False, False, True, True])
    out = np.full_like(logits, np.nan)
    attention.segment_softmax(indptr, logits, mask, np.empty((0, 1), np.float32), out, np.empty((0, 1), "f4"))
    assert out[:, 0].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("heads,channels", [(1, 1), (1, 130), (3, 5), (8, 16)])
def test_attend(graph, heads, channels):
    indptr, local_source, num_src = graph
    num_dst, num_edges, width = len(indptr) - 1, len(local_source), heads * channels
    rows, grad, alpha = random(num_src, width + heads), random(num_dst, width), random(num_edges, heads)
    both("attend", (indptr, local_source, alpha, rows), [np.full((num_dst, width), np.nan)], attention)
    both("attend_transpose", (indptr, local_source, alpha, grad), [random(num_src, width + heads)], attention)
    out = np.full((num_edges, heads), np.nan)
    both("attend_alpha_gradient", (indptr, local_source, rows, grad), [out], attention)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_gated_sum(graph, width, dtype):
    indptr, local_source, num_src = graph
    num_dst = len(indptr) - 1
    arguments = (indptr, local_source, random(num_dst, width, dtype=dtype), random(num_src, 2 * width, dtype=dtype))
    grad, out = random(num_dst, width + 1, dtype=dtype)[:, 1:].copy(), np.full((num_dst, width), np.nan, dtype)
    both("gated_sum", arguments, [out], reductions)
    both("gated_sum_key_gradient", (*arguments, grad), [out], reductions)
    both("gated_sum_transpose", (*arguments, grad), [random(num_src, 2 * width, dtype=dtype)], reductions)


def test_loop_mask(graph):
    indptr, local_source, num_src = graph
    sources, destinations = (np.arange(count, dtype=np.int32) for count in (num_src, len(indptr) - 1))
    both(
        "loop_mask",
        (indptr, local_source, sources, destinations),
        [np.ones(len(local_source), bool)],
        attention,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponential(dtype):
    limit, exact = (60, np.float64) if dtype == np.float32 else (600, np.longdouble)
    x = np.concatenate([np.linspace(-limit, limit, 4001), np.linspace(-1e-3, 1e-3, 101)]).astype(dtype)
    found, right = np.array([exponential.exp(value) for value in x], dtype), np.exp(x.astype(exact))
    assert np.abs(found / right - 1).max() < 2 * np.finfo(dtype).eps
    assert np.isnan(exponential.exp(dtype(np.nan)))
    for x in (800, 1e30, np.inf):
        assert exponential.exp(dtype(-x)) == 0 and exponential.exp(dtype(x)) == np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gates_of_large_keys_and_nan(dtype):
    indptr, source, nan = np.array([0, 1, 2, 3], np.int64), np.zeros(3, np.int32), np.nan
    keys, rows = np.array([[-1e4, -np.inf], [1e4, np.inf], [nan, 0]], dtype), np.array([[0, 0, 2, 3]], dtype)
    out = np.full((3, 2), 7, dtype)
    reductions.gated_sum(indptr, source, keys, rows, out)
    np.testing.assert_array_equal(out, [[0, 0], [2, 3], [nan, 1.5]])  # not next to 0: that would be slow


@pytest.mark.pairs
@pytest.mark.parametrize("count", [0, 1, 300])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_row_operations(count, width, index_dtype):
    index = np.random.default_rng(4).permutation(count + 1)[:count].astype(index_dtype)
    rows, changes = random(count + 1, width), random(count, width)
    both("gather_rows", (rows, index), [np.full((count, width), np.nan)])
    found, expected = rows.copy(), rows.copy()
    sums.scatter_add_rows(found, index, changes)
    reference.scatter_add_rows(expected, index, changes)
    close(found, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    "test, given",
    [
        (test_csc_aggregate, (3, np.float32)), (test_segments, (3,)), (test_extremum, (3, np.float32)),
        (test_softmax_sum, (3, np.float32)), (test_additive_logits, (3, 5, np.float32)),
        (test_graph_attention, (True, 3, 5, np.float32)), (test_softmax, (4, True, True, np.float32)),
        (test_attend, (3, 5)), (test_gated_sum, (3, np.float32)), (test_loop_mask, ()),
    ],
)  # fmt: skip
def test_a_graph_that_plain_kernels_are_too_slow_for(test, given):
    degrees = np.random.default_rng(6).integers(0, 16, 9000)
    assert degrees.sum() + len(degrees) > compiled.SMALL
    test(graph_of(degrees), *given)


@pytest.mark.long
def test_rows_that_plain_kernels_are_too_slow_for():
    test_row_operations(compiled.SMALL + 1, 3, np.int32)


@pytest.mark.long
@pytest.mark.parametrize("counter", [np.int32, np.int64])
def test_results_do_not_depend_on_the_thread_count(counter, monkeypatch):
    monkeypatch.setattr(parts, "LEAST", 1)
    rng = np.random.default_rng(5)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 30, 500))]).astype(np.int64)
    local_source = (300 * rng.random(indptr[-1]) ** 3).astype(np.int32)
    rows, grad = random(300, 33, dtype=np.float32), random(500, 33, dtype=np.float32)
    graph = (indptr, local_source, NO_SLOTS, rng.random(indptr[-1]).astype(np.float32), True)

    def run(threads):
        for module in (parts, parallel):
            monkeypatch.setattr(module, "num_threads", lambda: threads)
        out, back = np.empty((500, 33), np.float32), np.zeros((300, 33), np.float32)
        sums.csc_aggregate(*graph, rows, out)
        sums.add_by_edge(*graph, grad, back)
        indptr, local_source, slots, weight, mean = graph
        next_RS, destination = np.empty((2, 301), counter), np.empty(len(local_source), np.int32)
        scale, ordered = np.empty(len(local_source), np.float32), np.zeros((300, 33), np.float32)
        sums.order_by_source(indptr, local_source, weight, mean, next_RS, destination, scale)
        sums.add_by_source(next_RS[-1], destination, slots, scale, grad, ordered)
        return out, back, next_RS[-1], destination, scale, ordered

    first = run(1)
    for threads in (2, 3, 7):
        for a, b in zip(first, run(threads), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("width,threads", [(1, 8), (64, 3), (64, 16)])
def test_source_bounds_cover_every_source_once_and_balance_edges(width, threads, monkeypatch):
    monkeypatch.setattr(parts, "num_threads", lambda: threads)
    monkeypatch.setattr(parts, "LEAST", 8192)
    local_source = (5000 * np.random.default_rng(6).random(40_000) ** 2).astype(np.int32)
    bounds = parts.source_bounds(local_source, width)
    assert bounds[0] == 0 and np.all(np.diff(bounds) >= 0) and bounds[-1] > local_source.max()
    edges = np.histogram(local_source, np.minimum(bounds, 5000))[0]
    assert edges.sum() == len(local_source) and edges.max() <= 1.3 * edges.mean()


def test_balanced_bounds_cover_every_destination_once():
    indptr = np.array([0, 0, 100, 101, 102, 102, 110], np.int64)
    for count in (1, 2, 5, 20):
        bounds = parts.balanced_bounds(indptr, count)
        assert bounds[0] == 0 and bounds[-1] == 6 and np.all(np.diff(bounds) >= 0) and len(bounds) == count + 1
