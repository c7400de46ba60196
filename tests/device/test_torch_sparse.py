"""Training with torch-sparse's products is training with our sums; where it is missing, a stand-in takes its place."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import hongtu
from hongtu.bench.baselines import importable
from hongtu.cli.main import main
from hongtu.kernels.dispatch import NUMBA, SparseProducts
from tests import problems, training
from tests.models import SIX

INSTALLED = importable("torch_sparse")


class SparseTensor:
    """As torch_sparse's, by what is used of it."""

    products = 0

    def __init__(self, *, rowptr, col, value, sparse_sizes, is_sorted, trust_data):
        assert is_sorted and trust_data and len(rowptr) == sparse_sizes[0] + 1
        row = torch.repeat_interleave(rowptr.diff())
        value = torch.ones(len(col), dtype=torch.float64) if value is None else value
        self.dense = torch.zeros(sparse_sizes, dtype=value.dtype).index_put((row, col), value, accumulate=True)

    def t(self):
        turned = object.__new__(SparseTensor)
        turned.dense = self.dense.t()
        return turned

    def matmul(self, rows):
        SparseTensor.products += 1
        return self.dense.to(rows.dtype) @ rows


@pytest.fixture
def torch_sparse(monkeypatch):
    if not INSTALLED:
        monkeypatch.setitem(sys.modules, "torch_sparse", SimpleNamespace(SparseTensor=SparseTensor))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("slots", [False, True])
def test_products_are_the_kernels(slots, mean, weighted, torch_sparse):
    indptr = torch.tensor([0, 3, 3, 4])  # the second destination has no edge, the first has one twice
    source = torch.tensor([1, 0, 1, 3], dtype=torch.int32)
    slot = torch.tensor([5, 0, 2, 4] if slots else [], dtype=torch.int32)
    weight = torch.tensor([0.5, 2.0, -1.0, 3.0] if weighted else [])
    rows, grad = torch.sin(torch.arange(18.0)).view(6, 3), torch.cos(torch.arange(9.0)).view(3, 3)
    csc, found = (indptr, source, slot, weight, mean), []
    for kernels in (NUMBA, SparseProducts()):
        out, back = torch.full((3, 3), torch.nan), torch.ones(6 if slots else 4, 3)
        kernels.csc_aggregate(*csc, rows, out)
        kernels.csc_aggregate_transpose(*csc, grad, back)
        found.append((out, back))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("budget", ["smallest", None])
def test_training_is_the_same(budget, torch_sparse):
    """What is counted is what was planned for these products."""
    problem, before = problems.awkward(), SparseTensor.products
    options = {"dtype": torch.float64, "optimizer": training.sgd}
    artifact = problems.prepare(problem, 2, 3)
    if budget is not None:
        with pytest.raises(hongtu.errors.BudgetError) as refused:
            hongtu.Trainer(artifact, SIX[0].build(problem), device="torch-sparse", device_memory=1, **options)
        budget = refused.value.smallest
    outcomes = []
    for device, memory in (("cpu", None), ("torch-sparse", budget)):
        torch.manual_seed(0)
        trainer = hongtu.Trainer(artifact, SIX[0].build(problem), device=device, device_memory=memory, **options)
        outcomes.append(training.train(trainer, 3))
    record = trainer.train_epoch()
    assert (record.bytes, record.arena_bytes) == (trainer.plan.bytes, trainer.plan.arena_bytes)
    if budget is not None:
        assert max(record.peak_bytes[f"device {i}"] for i in range(2)) <= budget
    assert INSTALLED or SparseTensor.products > before
    training.assert_same(outcomes[1], outcomes[0], 1e-9)


@pytest.mark.skipif(INSTALLED, reason="torch-sparse is installed")
def test_without_it_the_remedy_is_named(tmp_path, capsys):
    artifact = problems.prepare(problems.awkward(), 2, 3)
    assert main(["train", str(artifact.path), "--device", "torch-sparse"]) == 2
    assert "pip install --no-build-isolation torch-scatter torch-sparse" in capsys.readouterr().err
