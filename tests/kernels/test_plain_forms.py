"""Rows are moved by numpy or by compiled loops, with the same bits; a graph's size says which kernels it gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hongtu import compiled
from hongtu.kernels import dispatch, reference, rows, sums
from tests.plain_forms import assert_each_same, assert_same


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count, width", [(0, 3), (1, 1), (6, 47), (40, 130)])
def test_rows(count, width, dtype):
    rng = np.random.default_rng(count)
    src, dst = (rng.standard_normal((50, width)).astype(dtype) for _ in range(2))
    src[0], dst[1] = -0.0, np.inf
    index, at = (rng.permutation(50)[:count].astype(np.int32) for _ in range(2))
    bounds = np.array([0, count // 2, count])
    assert_each_same(rows.zero_rows.kernel, 2, bounds, dst, at)
    for stores in (rng.random(count) < 0.5, np.ones(count, np.bool_), np.zeros(count, np.bool_)):
        assert_each_same(rows.put_rows.kernel, 2, bounds, src, index, dst, at, stores)
        assert_same(rows.put_rows_alone, src[:count].copy(), dst, at, stores)
    again = rng.integers(0, 5, count).astype(np.int32)  # several of one row, the first of which stores
    first = np.isin(np.arange(count), np.unique(again, return_index=True)[1])
    assert_same(rows.put_rows_alone, src[:count].copy(), dst, again, first)
    for name, given in (("copy_rows", (src, index)), ("add_rows", (src, index))):
        found, expected = dst.copy(), dst.copy()
        getattr(rows, name)(*given, found, at)
        getattr(reference, name)(*given, expected, at)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("count, width", [(0, 3), (1, 1), (6, 47), (40, 130)])
def test_rows_in_bfloat16_are_torchs(count, width):
    """By their bits, of which those of a number that is none may differ."""
    rng = np.random.default_rng(count)
    wide = torch.from_numpy(rng.standard_normal((50, width)).astype(np.float32))
    wide[:3, 0] = torch.tensor([np.inf, np.nan, 3.4e38])
    wide[4:, -1] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8] * 23)  # halves between two numbers
    narrow = torch.from_numpy(rng.standard_normal((50, width)).astype(np.float32)).bfloat16()
    index, at = (rng.permutation(50)[:count].astype(np.int32) for _ in range(2))
    bounds, bits = np.array([0, count // 2, count]), narrow.view(torch.int16).numpy()
    assert_each_same(rows.widen_rows.kernel, 2, bounds, bits, index, wide.numpy(), at)
    found = wide.clone()
    rows.widen_rows(bits, index, found.numpy(), at)
    assert torch.equal(found[at], narrow.float()[index])
    for stores in (rng.random(count) < 0.5, np.ones(count, np.bool_), np.zeros(count, np.bool_)):
        found, expected = narrow.clone(), narrow.clone()
        rows.put_rounded_rows(wide.numpy(), index, found.view(torch.int16).numpy(), at, stores)
        kept = torch.where(torch.from_numpy(stores)[:, None], 0, narrow[at].float())
        expected[at] = (wide[index] + kept).bfloat16()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        reference.put_rounded_rows(wide.numpy(), index, narrow.clone().view(torch.int16).numpy(), at, stores)


@pytest.mark.parametrize("count", [0, 5, 100_001])
def test_casts_on_one_thread_are_torchs(count):
    wide = torch.from_numpy(np.random.default_rng(count).standard_normal(count).astype(np.float32))
    wide[1:4] = torch.tensor([np.inf, -1 - 2.0**-8, 1 + 3 * 2.0**-8])[: max(count - 1, 0)]
    narrow = wide.bfloat16()
    assert_same(rows.round_to_halves, wide.numpy(), torch.empty_like(narrow).view(torch.int16).numpy())
    assert_same(rows.widen, narrow.view(torch.int16).numpy(), torch.empty_like(wide).numpy())
    for src, kind in ((wide, torch.bfloat16), (narrow, torch.float32), (wide, torch.float64)):
        dst = torch.empty(count, dtype=kind)
        rows.cast_alone(src, dst)
        assert torch.equal(dst, src.to(kind))


def test_the_size_of_a_graph_chooses_once_for_all_its_chunks(monkeypatch):
    calls = []
    monkeypatch.setattr(sums, "gather_rows", lambda *args: calls.append("compiled"))
    monkeypatch.setattr(reference, "gather_rows", lambda *args: calls.append("plain"))

    def gather(kernels, length):
        kernels.gather_rows(torch.ones(2, 3), torch.zeros(length, dtype=torch.int32), torch.empty(length, 3))
        return calls.pop()

    limit = dispatch.SMALL
    expected = "compiled" if compiled.ALWAYS else "plain"
    for length in (0, 1, limit, limit + 1):
        assert gather(dispatch.NumbaKernels.of_graph(limit), length) == expected
        assert gather(dispatch.NumbaKernels.of_graph(limit + 1), length) == "compiled"
        assert gather(dispatch.NumbaKernels.of_graph(None), length) == (expected if length <= limit else "compiled")
