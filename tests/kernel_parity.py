"""What every CUDA kernel must do, at awkward sizes; run on the CPU (tests/cuda_ext) and on a GPU (tests/gpu).

``machine`` is a ``tests.kernel_machine.Machine``; ``shift`` puts tensors that many elements past an aligned address, or
rows apart.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hongtu.cuda_ext import arguments, kernels
from hongtu.kernels import reference
from hongtu.nn.dropout import dropout_key
from tests.kernel_machine import APART, MIXED, lies
from tests.layer_oracle import keep_mask

WIDTHS = [1, 2, 3, 4, 5, 7, 16, 31, 32, 33, 64, 100, 128, 257, 1024]
FLOATS = [np.float32, np.float64]
SHIFTS = [0, 1, APART, MIXED]
DEGREES = {
    "empty": [],
    "one_vertex": [0],
    "one_edge": [1],
    "isolated": [0] * 5,
    "mixed": [0, 3, 1, 0, 7, 4, 5, 2, 0],
    "many": [int(k) for k in np.random.default_rng(0).integers(0, 9, 300)],
    # hubs have more than 512 in-edges and are cut into slices of 512: slices with two hubs, with many others, a hub at
    # the start of a slice (edge 4608), and a destination that is just none
    "hubs": [1300, 0, 513, 3, 0, 512, 511, 0, 0, 1025, 2, 600, 142, 700],
    "no_hub": [0, 512],
    "one_hub": [1, 0, 515],
}
LARGE = ("many", "hubs")  # at few widths
GRAPHS_AND_WIDTHS = [(graph, width) for graph in DEGREES for width in ([1, 3, 33, 64] if graph in LARGE else WIDTHS)]


def over(names, values):
    """Decorates a test with all values in float32 and every third in float64, at aligned addresses and others, and
    apart, of which those are run in which every two meet."""
    pairs = [(np.float32, value) for value in values] + [(np.float64, value) for value in values[::3]]
    cases = [(value if isinstance(value, tuple) else (value,), dtype) for dtype, value in pairs]
    grid = pytest.mark.parametrize(
        f"{names},dtype,shift", [(*v, dtype, shift) for v, dtype in cases for shift in SHIFTS]
    )
    return lambda test: pytest.mark.pairs(grid(test))


def random(*shape, dtype=np.float64, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def unique(count, total, seed=1):
    return np.random.default_rng(seed).permutation(total)[:count].astype(np.int32)


def graph_of(name):
    """(indptr, local_source, number of sources)"""
    degrees = np.array(DEGREES[name], np.int64)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    num_src = max(1, int(indptr[-1]) // 3)
    local_source = np.random.default_rng(2).integers(0, num_src, indptr[-1]).astype(np.int32)
    return indptr, local_source, num_src


def close(found, expected):
    tolerance = 2e-4 if found.dtype == np.float32 else 1e-11
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def nan(*shape, dtype):
    return np.full(shape, np.nan, dtype)


def agrees(machine, name, inputs, outputs, shift):
    """The kernel does what its reference does; ``inputs`` may hold length-0 arrays for "none"."""
    expected = [out.astype(np.float64) for out in outputs]
    wide = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in inputs]
    with np.errstate(all="ignore"):  # as where it is called
        getattr(reference, name)(*wide, *expected)
    kernel = getattr(kernels, name)
    rows = {k: p.name in kernel.lanes.split() for k, p in enumerate(kernel.parameters) if p.is_matrix}
    found = machine.run(kernel, inputs, outputs, shift, rows)
    for a, b in zip(found, expected, strict=True):
        close(a, b)


class RowParity:
    @over("width", WIDTHS)
    def test_copy_rows(self, machine, width, dtype, shift):
        for count in (0, 1, 2, 37):
            src, dst = random(50, width, dtype=dtype), random(60, width, dtype=dtype, seed=1)
            rows, slots = unique(count, 50), unique(count, 60, seed=2)
            expected = dst.copy()
            expected[slots] = src[rows]
            out = machine.tensor(dst, **lies(dst, shift, moved=False), output=True)
            there = machine.tensor(src, **lies(src, shift), host=True)
            given = (there, machine.tensor(rows), out, machine.tensor(slots))
            kernels.copy_rows(machine.launcher, machine.stream, *given)
            machine.check()
            np.testing.assert_array_equal(out.cpu().numpy(), expected)
            [found] = machine.run(kernels.gather_rows, [src, rows], [nan(count, width, dtype=dtype)], shift)
            np.testing.assert_array_equal(found, src[rows])

    @pytest.mark.pairs
    @pytest.mark.parametrize("width", [1, 3, 4, 8, 12, 33, 64, 128, 258])
    @pytest.mark.parametrize("shift", SHIFTS)
    def test_copy_rows_to_and_from_bfloat16(self, machine, width, shift):
        src, rows, slots = random(50, width, dtype=np.float32), unique(37, 50), unique(37, 60, seed=2)
        src[rows[:6], 0] = np.nan, np.inf, -0.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3e38  # halves of steps go to even
        halves = torch.from_numpy(src).bfloat16()
        bits, out = halves.view(torch.int16).numpy(), random(60, width, dtype=np.float32, seed=1)

        def at(array, **options):
            output = options.get("output", False)
            made = machine.tensor(array, **lies(array, shift, moved=not output), **options)
            return made.view(torch.bfloat16) if array.dtype == np.int16 else made

        index, places = machine.tensor(rows), machine.tensor(slots)
        for given, into in ((bits, out), (src, np.zeros((60, width), np.int16))):
            found = at(into, output=True, host=given is src)
            expected = found.cpu().clone()
            expected[slots] = halves[rows].to(found.dtype)
            there = at(given, host=given is bits)
            kernels.copy_rows(machine.launcher, machine.stream, there, index, found, places)
            machine.check()
            torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("width", [1, 4, 7, 128, 257])
    def test_copy_rows_in_order_and_in_few_blocks(self, machine, width):
        src, slots = random(700, width, dtype=np.float32), unique(700, 701)
        scattered = random(701, width, dtype=np.float32, seed=1)
        for options in ({}, {"max_blocks": 1}):
            dst, index = machine.tensor(scattered, output=True), machine.tensor(slots)
            kernels.copy_rows(machine.launcher, machine.stream, machine.tensor(src), None, dst, index, **options)
            machine.check()
            expected = scattered.copy()
            expected[slots] = src
            np.testing.assert_array_equal(dst.cpu().numpy(), expected)
        out = machine.tensor(nan(700, width, dtype=np.float32), output=True)
        kernels.copy_rows(machine.launcher, machine.stream, machine.tensor(src), None, out, None)
        machine.check()
        np.testing.assert_array_equal(out.cpu().numpy(), src)

    @pytest.mark.parametrize("width", [4, 33])
    def test_add_and_zero_rows_in_few_blocks(self, machine, width, monkeypatch):
        monkeypatch.setattr(kernels, "MAX_BLOCKS", 1)
        src, dst = random(2000, width, dtype=np.float32), random(2000, width, dtype=np.float32, seed=1)
        for how in ("plain", "atomic", "system"):
            out = machine.tensor(dst, output=True)
            given = machine.tensor(src), None, out, None
            kernels.add_rows(machine.launcher, machine.stream, *given, how=how, max_blocks=2)
            machine.check()
            np.testing.assert_array_equal(out.cpu().numpy(), src + dst)
        out = machine.tensor(dst, output=True)
        kernels.zero_rows(machine.launcher, machine.stream, out, None)
        machine.check()
        assert not out.any()

    @pytest.mark.parametrize("how", ["plain", "atomic", "system"])
    @over("width", WIDTHS)
    def test_add_rows(self, machine, width, dtype, shift, how):
        for count in (0, 1, 37):
            src, dst = random(50, width, dtype=dtype), random(60, width, dtype=dtype, seed=1)
            rows, slots = unique(count, 50), unique(count, 60, seed=2)
            expected = dst.copy()
            expected[slots] += src[rows]
            out = machine.tensor(dst, **lies(dst, shift, moved=False), output=True)
            there = machine.tensor(src, **lies(src, shift))
            given = (there, machine.tensor(rows), out, machine.tensor(slots))
            kernels.add_rows(machine.launcher, machine.stream, *given, how=how)
            machine.check()
            np.testing.assert_array_equal(out.cpu().numpy(), expected)

    @over("width", WIDTHS)
    def test_scatter_add(self, machine, width, dtype, shift):
        src, dst = random(90, width, dtype=dtype), random(120, width, dtype=dtype, seed=1)
        slots, repeated = unique(90, 120), (unique(90, 120) // 7).astype(np.int32)
        for name, index in (("scatter_add_rows", slots), ("scatter_add_edges", slots), ("scatter_add_edges", repeated)):
            expected, out = dst.copy(), machine.tensor(dst, **lies(dst, shift), output=True)
            given = machine.tensor(index), machine.tensor(src, **lies(src, shift))
            if name == "scatter_add_rows":
                reference.scatter_add_rows(expected, index, src)
                kernels.scatter_add_rows(machine.launcher, machine.stream, out, *given)
            else:
                reference.scatter_add_edges(index, src, expected)
                kernels.scatter_add_edges(machine.launcher, machine.stream, *given, out)
            machine.check()
            close(out.cpu().numpy(), expected)

    @over("width", WIDTHS)
    def test_zero_rows(self, machine, width, dtype, shift):
        for count in (0, 1, 37):
            dst, slots = random(60, width, dtype=dtype), unique(count, 60)
            out = machine.tensor(dst, **lies(dst, shift), output=True)
            kernels.zero_rows(machine.launcher, machine.stream, out, machine.tensor(slots))
            machine.check()
            dst[slots] = 0
            np.testing.assert_array_equal(out.cpu().numpy(), dst)
            again = machine.tensor(dst, **lies(dst, shift), output=True)
            kernels.zero_rows(machine.launcher, machine.stream, again, None)
            machine.check()
            assert not again.any()


class CscParity:
    @over("graph,width", GRAPHS_AND_WIDTHS)
    def test_csc_aggregate(self, machine, graph, width, dtype, shift):
        indptr, local_source, num_src = graph_of(graph)
        num_dst, num_edges, cache_rows = len(indptr) - 1, len(local_source), num_src + 5
        slots, weights = unique(num_src, cache_rows), random(num_edges, dtype=dtype)
        none_slots, none_weights = np.empty(0, np.int32), np.empty(0, dtype)
        rows, grad = random(cache_rows, width, dtype=dtype), random(num_dst, width, dtype=dtype)
        before = random(cache_rows, width, dtype=dtype, seed=1)
        for mean, slot_of_source, weight in (
            (False, none_slots, none_weights),
            (True, slots, none_weights),
            (False, slots, weights),
            (True, none_slots, weights),
        ):
            inputs = [indptr, local_source, slot_of_source, weight, mean]
            out = nan(num_dst, width, dtype=dtype)
            agrees(machine, "csc_aggregate", [*inputs, rows], [out], shift)
            agrees(machine, "csc_aggregate_transpose", [*inputs, grad], [before], shift)

    @over("graph,width", GRAPHS_AND_WIDTHS)
    def test_segments(self, machine, graph, width, dtype, shift):
        indptr, local_source, _ = graph_of(graph)
        num_dst, num_edges = len(indptr) - 1, len(local_source)
        x_EF, x_DF = random(num_edges, width, dtype=dtype), random(num_dst, width, dtype=dtype)
        agrees(machine, "segment_sum", [indptr, x_EF], [nan(num_dst, width, dtype=dtype)], shift)
        agrees(machine, "expand_rows", [indptr, x_DF], [nan(num_edges, width, dtype=dtype)], shift)

    @pytest.mark.parametrize("graph", ["many", "hubs"])
    def test_csc_aggregate_in_few_blocks(self, machine, graph, monkeypatch):
        monkeypatch.setattr(arguments, "MAX_BLOCKS", 1)
        self.test_csc_aggregate(machine, graph, 33, np.float32, 0)
        self.test_segments(machine, graph, 64, np.float32, 0)


class AttentionParity:
    @pytest.mark.parametrize("heads", [1, 3, 8, 33])
    @over("graph", list(DEGREES))
    def test_softmax(self, machine, graph, heads, dtype, shift):
        indptr, local_source, _ = graph_of(graph)
        num_dst, num_edges = len(indptr) - 1, len(local_source)
        for masked, with_extra in ((False, False), (True, False), (False, True), (True, True)):
            mask = np.random.default_rng(3).random(num_edges if masked else 0) < 0.4
            mask[indptr[-2] if num_dst else 0 :] = True  # a destination without any edge that is kept
            logits = 30 * random(num_edges, heads, dtype=dtype)
            extra = 30 * random(num_dst if with_extra else 0, heads, dtype=dtype, seed=1)
            out = [np.full_like(logits, np.nan), np.full_like(extra, np.nan)]
            agrees(machine, "segment_softmax", [indptr, logits, mask, extra], out, shift)
            alpha = random(num_edges, heads, dtype=dtype, seed=2)
            alpha_extra = random(len(extra), heads, dtype=dtype, seed=3)
            grad, grad_extra = random(num_edges, heads, dtype=dtype, seed=4), random(len(extra), heads, dtype=dtype)
            inputs = [indptr, alpha, alpha_extra, grad, grad_extra]
            agrees(machine, "segment_softmax_backward", inputs, out, shift)

    @pytest.mark.parametrize("graph", ["many", "hubs"])
    def test_attention_in_few_blocks(self, machine, graph, monkeypatch):
        monkeypatch.setattr(arguments, "MAX_BLOCKS", 1)
        self.test_softmax(machine, graph, 8, np.float32, 0)
        self.test_gated_sum(machine, graph, 33, np.float32, 0)

    @pytest.mark.parametrize("logit", [-0.0, -5.0, 7.0, 80.0, -1e4])
    @pytest.mark.parametrize("degree", [2, 1500])
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_softmax_of_logits_far_from_zero(self, machine, degree, logit, dtype):
        indptr, logits = np.array([0, degree], np.int64), np.full((degree, 1), logit, dtype)
        inputs = [indptr, logits, np.empty(0, bool), np.empty((0, 1), dtype)]
        out = [np.full_like(logits, np.nan), np.empty((0, 1), dtype)]
        [share, _] = machine.run(kernels.segment_softmax, inputs, out)
        np.testing.assert_allclose(share, 1 / degree, rtol=1e-5)
        logits[0] = logit + 1000  # far above the others, which other slices hold
        [share, _] = machine.run(kernels.segment_softmax, inputs, out)
        np.testing.assert_array_equal(share[:, 0], [1] + [0] * (degree - 1))

    @pytest.mark.parametrize("further", [0, 1, 4])
    @over(
        "heads,channels",
        [(1, 1), (1, 4), (2, 2), (3, 5), (5, 4), (5, 2), (4, 3), (3, 7), (8, 16), (33, 1), (1, 257), (4, 256)],
    )
    def test_attend(self, machine, heads, channels, further, dtype, shift):
        width = heads * channels
        for graph in DEGREES if width < 33 else ("empty", "isolated", "mixed", "one_hub"):
            indptr, local_source, num_src = graph_of(graph)
            num_dst, num_edges = len(indptr) - 1, len(local_source)
            rows, alpha = random(num_src, width + further, dtype=dtype), random(num_edges, heads, dtype=dtype)
            grad, before = random(num_dst, width, dtype=dtype), random(num_src, width + further, dtype=dtype, seed=1)
            edges = [indptr, local_source]
            agrees(machine, "attend", [*edges, alpha, rows], [nan(num_dst, width, dtype=dtype)], shift)
            agrees(machine, "attend_transpose", [*edges, alpha, grad], [before], shift)
            out = nan(num_edges, heads, dtype=dtype)
            agrees(machine, "attend_alpha_gradient", [*edges, rows, grad], [out], shift)

    @over("graph,width", GRAPHS_AND_WIDTHS)
    def test_gated_sum(self, machine, graph, width, dtype, shift):
        indptr, local_source, num_src = graph_of(graph)
        num_dst = len(indptr) - 1
        key, grad = random(num_dst, width, dtype=dtype), random(num_dst, width, dtype=dtype, seed=1)
        rows, before = random(num_src, 2 * width, dtype=dtype), random(num_src, 2 * width, dtype=dtype, seed=1)
        inputs, out = [indptr, local_source, key, rows], nan(num_dst, width, dtype=dtype)
        agrees(machine, "gated_sum", inputs, [out], shift)
        agrees(machine, "gated_sum_key_gradient", [*inputs, grad], [out], shift)
        agrees(machine, "gated_sum_transpose", [*inputs, grad], [before], shift)


class DropoutParity:
    def test_dropout_in_few_blocks(self, machine, monkeypatch):
        monkeypatch.setattr(kernels, "MAX_BLOCKS", 1)
        self.test_dropout(machine, 257, 0.5, np.float32, 0)

    @pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
    @over("width", WIDTHS)
    def test_dropout(self, machine, width, p, dtype, shift):
        for count in (0, 1, 37):
            x, ids = random(count, width, dtype=dtype), np.arange(count) * 2**33 + np.arange(count) % 5
            seed, scale = 2**64 - width, 0.0 if p == 1 else 1 / (1 - p)  # its first bit is set
            keep = keep_mask(torch.from_numpy(ids), width, dropout_key(3, 2**40 + width, key=seed), p).numpy()
            inputs = [x, ids, np.array([-width]), 3, 2**40 + width, round(p * 2**32), scale]
            [found] = machine.run(kernels.dropout, inputs, [np.full_like(x, np.nan)], shift)
            np.testing.assert_array_equal(found, np.where(keep, x * dtype(scale), dtype(0)))
