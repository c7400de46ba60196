"""The CUDA kernels without a GPU: their sources, compiled by a C++ compiler, against the references."""

import pytest

from hongtu.cuda_ext.dry import DryLauncher, compiler
from hongtu.cuda_ext.sources import KernelError
from tests.kernel_parity import CscParity, Machine, RowParity


@pytest.fixture(scope="module")
def launcher():
    try:
        compiler()
    except KernelError as error:
        pytest.skip(str(error))
    return DryLauncher()


@pytest.fixture
def machine(launcher):
    return Machine(launcher, stream=None, device="cpu")


class TestRows(RowParity):
    pass


class TestCsc(CscParity):
    pass
