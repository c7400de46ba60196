"""The CUDA kernels on a GPU: the same cases as in tests/cuda_ext, and what only many threads at once can show."""

import numpy as np
import pytest
import torch

from hongtu.cuda_ext import kernels
from hongtu.cuda_ext.launch import CudaLauncher
from tests.kernel_machine import APART, Machine
from tests.kernel_parity import AttentionParity, CscParity, DropoutParity, RowParity, agrees, nan, random


@pytest.fixture(scope="module")
def launcher():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("cuda.bindings", reason="cuda-bindings not installed")
    return CudaLauncher(torch.cuda.current_device())


@pytest.fixture
def machine(launcher):
    return Machine(launcher, torch.cuda.current_stream().cuda_stream, "cuda")


class TestRows(RowParity):
    pass


class TestCsc(CscParity):
    pass


class TestAttention(AttentionParity):
    pass


class TestDropout(DropoutParity):
    pass


@pytest.mark.parametrize("width", [1, 47, 128, 602])
def test_a_power_law_graph(machine, width):
    rng = np.random.default_rng(0)
    degrees = np.minimum(rng.zipf(1.6, 20_000), 100_000)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)[:20_001]
    indptr = np.minimum(indptr, 600_000)
    local_source = (5000 * rng.random(indptr[-1]) ** 3).astype(np.int32)
    none, weight = np.empty(0, np.int32), rng.random(indptr[-1])
    inputs = [indptr, local_source, none, weight, True]
    agrees(machine, "csc_aggregate", [*inputs, random(5000, width)], [nan(20_000, width, dtype=np.float64)], APART)
    agrees(machine, "csc_aggregate_transpose", [*inputs, random(20_000, width)], [random(5000, width)], APART)


def test_every_row_of_a_large_host_tensor_arrives(machine):
    src = torch.randn(200_000, 130).pin_memory()
    index = torch.randperm(200_000, dtype=torch.int32, device="cuda")
    for max_blocks in (2, 2**31 - 1):
        out = torch.empty(200_000, 130, device="cuda")
        kernels.copy_rows(machine.launcher, machine.stream, src, None, out, index, max_blocks)
        assert torch.equal(out[index.long()].cpu(), src)


def test_kernels_of_one_stream_run_in_order(launcher):
    stream = torch.cuda.Stream()
    rows, copy = torch.ones(100_000, 33, device="cuda"), torch.zeros(100_000, 33, device="cuda")
    torch.cuda.synchronize()
    for _ in range(20):  # each doubles what the one before left
        kernels.copy_rows(launcher, stream.cuda_stream, rows, None, copy, None)
        kernels.add_rows(launcher, stream.cuda_stream, copy, None, rows, None)
    stream.synchronize()
    assert (rows == 2**20).all()
