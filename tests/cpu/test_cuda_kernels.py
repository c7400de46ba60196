"""The CUDA kernels without a GPU: their sources, compiled by a C++ compiler, against the references."""

import os
from pathlib import Path

import pytest

from hongtu.cuda_ext.dry import DryLauncher, compiler
from hongtu.cuda_ext.sources import FOLDER, KernelError
from tests.kernel_parity import AttentionParity, CscParity, DropoutParity, Machine, RowParity


@pytest.fixture(scope="module")
def launcher():
    try:
        compiler()
    except KernelError as error:
        pytest.skip(str(error))
    return DryLauncher(folder=Path(os.environ.get("HONGTU_MUTANT", FOLDER)))  # see tests/kernel_mutations.py


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
