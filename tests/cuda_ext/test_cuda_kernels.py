"""The CUDA kernels without a GPU: their sources, compiled by a C++ compiler, against the references."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from hongtu.cuda_ext import kernels
from hongtu.cuda_ext.compile import FOLDER
from hongtu.cuda_ext.host_build import HostLauncher
from tests.kernel_machine import APART, Machine, before_a_fence, skip_without_compiler
from tests.kernel_parity import AttentionParity, CscParity, DropoutParity, RowParity, random


@pytest.fixture(scope="module")
def launcher():
    skip_without_compiler()
    return HostLauncher(folder=Path(os.environ.get("HONGTU_MUTANT", FOLDER)))  # see tests/kernel_mutations.py


@pytest.fixture
def machine(launcher):
    return Machine(launcher, stream=None, device="cpu")


class TestRows(RowParity):
    pass


class TestCsc(CscParity):
    pass


class TestAttention(AttentionParity):
    pass


class TestDropout(DropoutParity):
    pass


@pytest.mark.parametrize("shift", [0, APART])
@pytest.mark.parametrize("width", [1, 3, 4, 34, 128])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.pairs
def test_nothing_is_read_past_an_end(launcher, width, dtype, shift):
    machine = Machine(launcher, stream=None, device="cpu", fenced=True)
    RowParity().test_copy_rows(machine, width, dtype, shift)
    RowParity().test_add_rows(machine, width, dtype, shift, "plain")
    RowParity().test_scatter_add(machine, width, dtype, shift)
    RowParity().test_zero_rows(machine, width, dtype, shift)
    for graph in ("mixed", "one_hub", "isolated"):
        CscParity().test_csc_aggregate(machine, graph, width, dtype, shift)
        CscParity().test_segments(machine, graph, width, dtype, shift)
        AttentionParity().test_softmax(machine, graph, width, dtype, shift)
        AttentionParity().test_gated_sum(machine, graph, width, dtype, shift)
    AttentionParity().test_attend(machine, 1, width, 0, dtype, shift)
    DropoutParity().test_dropout(machine, width, 0.5, dtype, shift)


def test_nothing_is_read_past_the_last_of_rows_that_start_between_lines(launcher):
    machine = Machine(launcher, stream=None, device="cpu", fenced=True)
    for count in range(1, 70):
        src = random(count, 63, dtype=np.float32)  # the last row starts closer to a line than those beside it
        given = machine.tensor(src), None, machine.tensor(np.zeros_like(src)), None
        kernels.copy_rows(launcher, None, *given)
        np.testing.assert_array_equal(given[2].numpy(), src)


def test_padding_that_is_not_there_is_not_read(launcher):
    """Rows that are apart in memory that ends with the last of them."""
    whole = before_a_fence(torch.arange(5 * 52 + 47.0))
    rows, index = whole.as_strided((6, 47), (52, 1)), torch.arange(6, dtype=torch.int32)
    for last in (5, 6):
        out = torch.zeros(last, 48)[:, :47]
        kernels.gather_rows(launcher, None, rows[:last], index[:last], out)
        assert torch.equal(out, rows[:last])
