"""What every thread of every CUDA kernel touches: nothing outside its tensors, nothing that another one races for, and
rows in whole sectors.

Legend: D destinations, S sources, E edges, F columns.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hongtu.cuda_ext import kernels
from hongtu.cuda_ext.sources import FOLDER, KERNELS_OF
from tests.kernel_machine import Machine, skip_without_compiler
from tests.kernel_parity import AttentionParity, CscParity, DropoutParity, RowParity
from tests.tracing import ACCESS, ADDS, READS, SECTOR, WRITES, TracingLauncher, inside, races, requests


@pytest.fixture(scope="module")
def launcher():
    skip_without_compiler()
    return TracingLauncher()


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("width", [1, 4, 33, 132])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.pairs
def test_no_thread_leaves_its_tensors_or_races(launcher, width, dtype, shift):
    """``TracingLauncher`` checks each launch."""
    machine = Machine(launcher, stream=None, device="cpu")
    launcher.seen.clear()
    RowParity().test_copy_rows(machine, width, dtype, shift)
    for how in ("plain", "atomic", "system"):
        RowParity().test_add_rows(machine, width, dtype, shift, how)
    RowParity().test_zero_rows(machine, width, dtype, shift)
    for graph in ("mixed", "one_hub") if width < 100 else ("mixed",):
        CscParity().test_csc_aggregate(machine, graph, width, dtype, shift)
        CscParity().test_segments(machine, graph, width, dtype, shift)
        AttentionParity().test_softmax(machine, graph, min(width, 8), dtype, shift)
        AttentionParity().test_gated_sum(machine, graph, width, dtype, shift)
    AttentionParity().test_attend(machine, 2, width, shift, dtype, shift)
    DropoutParity().test_dropout(machine, width, 0.5, dtype, shift)
    assert launcher.seen == {kernel for names in KERNELS_OF.values() for kernel in names}


D, S, E = 40, 60, 300


def lined_up(*shape):
    """Zeros that begin where a line of memory does."""
    whole = torch.zeros(int(np.prod(shape)) + 32)
    return whole[-whole.data_ptr() % 128 // 4 :][: int(np.prod(shape))].view(shape)


@pytest.mark.parametrize("width", [32, 47, 128, 129, 602])
def test_lanes_read_rows_side_by_side(launcher, width):
    """In as few requests as lanes allow, of one sector too many at most, where rows begin between sectors; copies, over
    the host link, of none."""
    rng = np.random.default_rng(0)
    indptr = torch.tensor(np.r_[0, np.cumsum(rng.multinomial(E, [1 / D] * D))])
    source, slots = (torch.tensor(x.astype(np.int32)) for x in (rng.integers(0, S, E), rng.permutation(S)))
    rows, gates, out, key = lined_up(S, width), lined_up(S, 2 * width), lined_up(D, width), lined_up(D, width)
    alpha, none, elements = lined_up(E, 1), torch.empty(0), 1 if width % 4 else 4

    def check(kernel, visits, of, row, elements, *given, past=1, set_of=32):
        kernel(launcher, None, *given)
        begin = of.data_ptr()
        nbytes, sectors = requests(launcher.accesses[inside(launcher.accesses, [(begin, of.nbytes)])], set_of)
        assert nbytes.sum() == 4 * visits * row
        if past:
            assert len(nbytes) == visits * (row // width) * -(-width // (min(set_of, 32) * elements))
        assert (sectors - -(-nbytes // SECTOR)).max() <= (past if width % 8 else 0)

    lanes = min(32, width // elements)  # of a row
    graph = indptr, source
    check(kernels.copy_rows, D, rows, width, elements, rows, slots[:D], out, None, past=0, set_of=lanes)
    check(kernels.add_rows, 2 * D, rows, width, elements, out, None, rows, slots[:D], set_of=lanes)
    check(kernels.zero_rows, D, rows, width, elements, rows, slots[:D], set_of=lanes)
    check(kernels.csc_aggregate, E, rows, width, elements, *graph, slots, none, False, rows, out, set_of=lanes)
    check(kernels.csc_aggregate_transpose, E, rows, width, 1, *graph, slots, none, False, out, rows)
    check(kernels.attend, E, rows, width, elements, *graph, alpha, rows, out, set_of=lanes)
    check(kernels.attend_transpose, E, rows, width, 1, *graph, alpha, out, rows)
    check(kernels.attend_alpha_gradient, E, rows, width, elements, *graph, rows, out, alpha, set_of=lanes)
    check(kernels.gated_sum, E, gates, 2 * width, elements, *graph, key, gates, out, set_of=lanes)
    check(kernels.gated_sum_transpose, E, gates, 2 * width, 1, *graph, key, gates, out, lined_up(S, 2 * width))


def accesses(*rows):
    return np.array([(address, 0, thread, nbytes, kind) for thread, kind, address, nbytes in rows], ACCESS)


@pytest.mark.parametrize(
    ("two", "race"),
    [
        ([(0, READS, 8, 4), (1, READS, 8, 4)], False),
        ([(0, ADDS, 8, 4), (1, ADDS, 8, 4)], False),
        ([(0, WRITES, 8, 4), (0, READS, 8, 4), (1, READS, 12, 4)], False),
        ([(0, WRITES, 8, 4), (1, READS, 8, 4)], True),
        ([(0, WRITES, 4, 8), (1, WRITES, 8, 4)], True),
        ([(0, ADDS, 8, 4), (1, READS, 8, 4)], True),
        ([(0, WRITES, 9, 1), (1, WRITES, 10, 1)], False),
        ([(0, WRITES, 9, 2), (1, READS, 10, 1)], True),
    ],
)
def test_races_are_told_from_what_is_none(two, race):
    assert (len(races(accesses(*two))) > 0) is race


def test_requests_are_told_apart():
    """Of two rows of two lanes: 16 bytes each, side by side, element by element; then apart."""
    lanes = accesses(*((t, READS, 16 * t + 4 * k, 4) for t in range(4) for k in range(4)))
    assert [found.tolist() for found in requests(lanes, 2)] == [[32, 32], [1, 1]]
    apart = accesses(*((t, READS, 40 * t, 4) for t in range(4)))
    assert [found.tolist() for found in requests(apart, 4)] == [[4] * 4, [1] * 4]


@pytest.mark.parametrize(("body", "message"), [("dst[0] = 0", "threads race"), ("dst[count * width] = 0", "outside")])
def test_a_kernel_that_is_wrong_is_refused(launcher, tmp_path, body, message):
    (tmp_path / "shared.cuh").write_text((FOLDER / "shared.cuh").read_text())
    kernel = f"KERNEL(zero_rows_f32x1, (float* dst, const int* dst_index, int64 count, int64 width), {body})"
    (tmp_path / "rows.cu").write_text(f'#include "shared.cuh"\n{kernel}\n')
    with pytest.raises(AssertionError, match=message):
        kernels.zero_rows(TracingLauncher(folder=tmp_path), None, torch.ones(3, 3)[:2], None)
