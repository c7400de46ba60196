"""What every thread of every CUDA kernel touches: nothing outside its tensors, nothing that another one races for, and
rows in whole sectors.

Legend: D destinations, S sources, E edges, F columns.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hongtu.cuda_ext import kernels
from hongtu.cuda_ext.arguments import block_of
from hongtu.cuda_ext.compile import FOLDER, KERNELS_OF
from hongtu.hardware import padded
from tests.kernel_machine import APART, MIXED, Machine, skip_without_compiler
from tests.kernel_parity import AttentionParity, CscParity, DropoutParity, RowParity
from tests.tracing import ACCESS, ADDS, READS, SECTOR, WRITES, TracingLauncher, inside, races, requests, span


@pytest.fixture(scope="module")
def launcher():
    skip_without_compiler()
    return TracingLauncher()


@pytest.mark.parametrize("shift", [0, 1, APART, MIXED])
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
    AttentionParity().test_attend(machine, 2, width, 0 if shift == 0 else 1, dtype, shift)
    DropoutParity().test_dropout(machine, width, 0.5, dtype, shift)
    assert launcher.seen == {kernel for names in KERNELS_OF.values() for kernel in names}


D, S, E = 40, 60, 300


def lined_up(count, columns, stride):
    """Zeros whose first row begins where a line of memory does."""
    whole = torch.zeros(count * stride + 32)
    return whole[-whole.data_ptr() % 128 // 4 :][: count * stride].view(count, stride)[:, :columns]


def edges():
    """(indptr, local_source) of E edges from S sources to D destinations."""
    rng = np.random.default_rng(0)
    indptr = torch.tensor(np.r_[0, np.cumsum(rng.multinomial(E, [1 / D] * D))])
    return indptr, torch.tensor(rng.integers(0, S, E).astype(np.int32))


@pytest.mark.parametrize(("heads", "channels"), [(3, 43), (2, 250), (8, 8)])
def test_lanes_that_end_in_another_head_are_read_once(launcher, heads, channels):
    """By a sum over all heads; a product of one head reads lanes at both ends that are others', too."""
    width, (indptr, source) = heads * channels, edges()
    rows, out = (lined_up(count, width, padded(width, 4)) for count in (S, D))
    alpha = torch.zeros(E, heads)
    for kernel, given, most in (
        (kernels.attend, (alpha, rows, out), -(-width // 4)),
        (kernels.attend_alpha_gradient, (rows, out, alpha), heads * -(-(channels + 6) // 4)),
    ):
        kernel(launcher, None, indptr, source, *given)
        lanes, _ = requests(launcher.accesses[inside(launcher.accesses, [span(rows)])], 1)
        assert set(lanes) == {16} and E * -(-width // 4) <= len(lanes) <= E * most


@pytest.mark.parametrize("width", [32, 47, 128, 129, 602])
def test_lanes_read_rows_side_by_side(launcher, width):
    """In 16-byte lanes and as few requests as these allow, of one sector too many at most, where rows begin between
    sectors; copies of rows that are not apart, over the host link, of none."""
    graph, slots = edges(), torch.tensor(np.random.default_rng(1).permutation(S).astype(np.int32))

    def apart(count, columns=width):
        return lined_up(count, columns, padded(columns, 4))

    rows, gates, out, x = apart(S), apart(S, 2 * width), apart(D), apart(E)
    alpha, none, sums = torch.zeros(E, 1), torch.empty(0), torch.zeros(D, width)

    def check(kernel, visits, of, *given, elements=4, kind=READS, moved=(width,), past=1):
        kernel(launcher, None, *given)
        lanes = block_of(-(-width // elements))[0]
        found = launcher.accesses[inside(launcher.accesses, [span(of)])]
        nbytes, sectors = requests(found[found["kind"] == kind], lanes)
        whole = [-(-columns // elements) * elements for columns in moved] if kind == READS else [width]
        assert nbytes.sum() == 4 * visits * sum(whole)  # padding is not written
        if past:
            tail = kind == WRITES and width % elements > 0 and width % (lanes * elements) > elements
            assert len(nbytes) == visits * (sum(-(-columns // (lanes * elements)) for columns in moved) + tail)
        assert (sectors - -(-nbytes // SECTOR)).max() <= past

    check(kernels.copy_rows, D, sums, sums, None, rows, slots[:D], elements=4 if width % 4 == 0 else 1, past=0)
    check(kernels.copy_rows, D, rows, rows, slots[:D], out, None, past=0 if padded(width, 4) % 8 == 0 else 1)
    check(kernels.add_rows, D, out, out, None, rows, slots[:D])
    check(kernels.add_rows, D, rows, out, None, rows, slots[:D])
    check(kernels.zero_rows, D, rows, rows, slots[:D], kind=WRITES)
    check(kernels.csc_aggregate, E, rows, *graph, slots, none, False, rows, sums)
    check(kernels.csc_aggregate_transpose, E, rows, *graph, slots, none, False, sums, rows, elements=1, kind=ADDS)
    check(kernels.segment_sum, E, x, graph[0], x, sums)
    check(kernels.expand_rows, E, x, graph[0], sums, x, kind=WRITES)
    check(kernels.attend, E, rows, *graph, alpha, rows, sums)
    check(kernels.attend_transpose, E, rows, *graph, alpha, sums, rows, elements=1, kind=ADDS)
    check(kernels.attend_alpha_gradient, E, rows, *graph, rows, out, alpha)
    check(kernels.attend_alpha_gradient, E, out, *graph, rows, out, alpha)
    second = sum(4 for f in range(0, width, 4) if width % 4 and width % 4 + min(4, width - f) > 4)
    moved = width, width, second  # lanes of a value that begins within one end in the next
    check(kernels.gated_sum, E, gates, *graph, sums, gates, out, moved=moved)
    check(kernels.gated_sum_key_gradient, E, gates, *graph, sums, gates, sums, out, moved=moved)
    given = *graph, sums, gates, out, apart(S, 2 * width)
    check(kernels.gated_sum_transpose, E, gates, *given, elements=1, moved=(width, width))


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


@pytest.mark.parametrize(
    ("body", "message"),
    [("dst[0] = 0", "threads race"), ("dst[count * width] = 0", "outside"), ("dst[3] = 0", "between rows")],
)
def test_a_kernel_that_is_wrong_is_refused(launcher, tmp_path, body, message):
    (tmp_path / "shared.cuh").write_text((FOLDER / "shared.cuh").read_text())
    given = "float* dst, const int* dst_index, int64 dst_stride, int64 count, int64 width"
    kernel = f"KERNEL(zero_rows_f32x1, ({given}), if (first_group() == 0 || dst_stride == width) {body})"
    (tmp_path / "rows.cu").write_text(f'#include "shared.cuh"\n{kernel}\n')
    with pytest.raises(AssertionError, match=message):
        rows = torch.ones(3, 5)[:2, :3] if "between" in message else torch.ones(3, 3)[:2]
        kernels.zero_rows(TracingLauncher(folder=tmp_path), None, rows, None)
