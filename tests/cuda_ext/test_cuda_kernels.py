"""The CUDA kernels without a GPU: their sources, compiled by a C++ compiler, against the references."""

import os
from pathlib import Path

import numpy as np
import pytest

from hongtu.cuda_ext import kernels
from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.cuda_ext.sources import FOLDER
from tests.kernel_machine import Machine, skip_without_compiler
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


@pytest.mark.parametrize("width", [1, 3, 4, 33, 128])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_read_past_an_end(launcher, width, dtype):
    machine = Machine(launcher, stream=None, device="cpu", fenced=True)
    RowParity().test_copy_rows(machine, width, dtype, 0)
    RowParity().test_add_rows(machine, width, dtype, 0, "plain")
    RowParity().test_scatter_add(machine, width, dtype, 0)
    RowParity().test_zero_rows(machine, width, dtype, 0)
    for graph in ("mixed", "one_hub", "isolated"):
        CscParity().test_csc_aggregate(machine, graph, width, dtype, 0)
        CscParity().test_segments(machine, graph, width, dtype, 0)
        AttentionParity().test_softmax(machine, graph, width, dtype, 0)
        AttentionParity().test_gated_sum(machine, graph, width, dtype, 0)
    AttentionParity().test_attend(machine, 1, width, 0, dtype, 0)
    DropoutParity().test_dropout(machine, width, 0.5, dtype, 0)


def test_nothing_is_read_past_the_last_of_rows_that_start_between_lines(launcher):
    machine = Machine(launcher, stream=None, device="cpu", fenced=True)
    for count in range(1, 70):
        src = random(count, 63, dtype=np.float32)  # the last row starts closer to a line than those beside it
        given = machine.tensor(src), None, machine.tensor(np.zeros_like(src)), None
        kernels.copy_rows(launcher, None, *given)
        np.testing.assert_array_equal(given[2].numpy(), src)
