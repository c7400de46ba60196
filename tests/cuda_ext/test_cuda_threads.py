"""The CUDA kernels' threads at the same time, on a processor, under ThreadSanitizer. Lanes that exchange values run as
fibers, which it does not follow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hongtu.cuda_ext import kernels
from hongtu.cuda_ext.compile import FOLDER
from tests.kernel_machine import Machine, skip_without_compiler
from tests.kernel_parity import AttentionParity, CscParity, DropoutParity, RowParity, agrees, graph_of, random
from tests.sanitizing import SanitizingLauncher, works

DTYPE, GRAPHS = np.float32, ("mixed", "one_hub")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    skip_without_compiler()
    folder = tmp_path_factory.mktemp("sanitized")
    if why := works(folder):
        pytest.skip(why)
    return folder


def rows(machine, width):
    RowParity().test_copy_rows(machine, width, DTYPE, 0)
    for how in ("plain", "atomic", "system"):
        RowParity().test_add_rows(machine, width, DTYPE, 0, how)
    RowParity().test_scatter_add(machine, width, DTYPE, 0)
    RowParity().test_zero_rows(machine, width, DTYPE, 0)


def csc(machine, width):
    for graph in GRAPHS:
        CscParity().test_csc_aggregate(machine, graph, width, DTYPE, 0)
        CscParity().test_segments(machine, graph, width, DTYPE, 0)


def softmax(machine, width):
    for graph in GRAPHS:
        AttentionParity().test_softmax(machine, graph, 3, DTYPE, 0)


def gates(machine, width):
    for graph in GRAPHS:
        AttentionParity().test_gated_sum(machine, graph, width, DTYPE, 0)


def attention(machine, width):
    for graph in GRAPHS:
        indptr, local_source, num_src = graph_of(graph)
        alpha, x = random(len(local_source), 3, dtype=DTYPE), random(num_src, width, dtype=DTYPE)
        out = np.zeros((len(indptr) - 1, width), DTYPE)
        agrees(machine, "attend", [indptr, local_source, alpha, x], [out], 0)
        agrees(machine, "attend_transpose", [indptr, local_source, alpha, out], [x], 0)


def dropout(machine, width):
    DropoutParity().test_dropout(machine, width, 0.5, DTYPE, 0)


@pytest.mark.most(4)
@pytest.mark.long
@pytest.mark.parametrize("run", [rows, csc, softmax, gates, attention, dropout], ids=lambda run: run.__name__)
def test_no_threads_race_on_a_processor(programs, run):
    """And they compute what they should."""
    launcher = SanitizingLauncher(programs)
    try:
        for width in (3, 36):
            run(Machine(launcher, stream=None, device="cpu"), width)
    finally:
        launcher.close()


def test_threads_that_race_are_found(programs, tmp_path):
    (tmp_path / "shared.cuh").write_text((FOLDER / "shared.cuh").read_text())
    given = "float* dst, const int* dst_index, int64 dst_stride, int64 count, int64 width"
    kernel = f"KERNEL(zero_rows_f32x1, ({given}), dst[0] += 1)"
    (tmp_path / "rows.cu").write_text(f'#include "shared.cuh"\n{kernel}\n')
    launcher = SanitizingLauncher(tmp_path, tmp_path)
    with pytest.raises(AssertionError, match="data race"):
        kernels.zero_rows(launcher, None, torch.ones(3, 3), None)
    launcher.close()
