"""The differentiable operations: gradients by finite differences, and the CPU kernels against the plain torch path."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from hongtu import ops

INDPTR = torch.tensor([0, 2, 2, 7, 8])
LOCAL_SOURCE = torch.tensor([1, 0, 2, 2, 0, 1, 2, 1], dtype=torch.int32)
NUM_SRC, NUM_DST, NUM_EDGES = 4, 4, 8  # the last source is read by nobody


def leaf(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


def edge_weight():
    return torch.linspace(0.5, 2, NUM_EDGES, dtype=torch.float64)


@pytest.mark.parametrize("slots", [None, torch.tensor([5, 0, 3, 2]), torch.tensor([5, 0, 3, 2], dtype=torch.int32)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_aggregate(slots, weighted, mean, width):
    weight = edge_weight() if weighted else None
    rows = leaf(NUM_SRC if slots is None else 6, width)
    assert gradcheck(lambda x: ops.aggregate(x, INDPTR, LOCAL_SOURCE, slots, weight, mean), (rows,))


@pytest.mark.parametrize("excluded", [False, True])
def test_edge_softmax(excluded):
    exclude = torch.tensor([True, False, False, True, False, False, False, True]) if excluded else None
    logits, extra = leaf(NUM_EDGES, 2), leaf(NUM_DST, 2)
    assert gradcheck(lambda x: ops.edge_softmax(x, INDPTR, exclude)[0], (logits,))
    assert gradcheck(lambda x, y: ops.edge_softmax(x, INDPTR, exclude, y), (logits, extra))


def test_shares_sum_to_one():
    alpha_EH, alpha_DH = ops.edge_softmax(leaf(NUM_EDGES, 3), INDPTR, None, leaf(NUM_DST, 3))
    torch.testing.assert_close(ops.segment_sum(alpha_EH, INDPTR) + alpha_DH, torch.ones_like(alpha_DH))


def test_gathers_and_sums():
    assert gradcheck(lambda x: ops.segment_sum(x, INDPTR), (leaf(NUM_EDGES, 3),))
    assert gradcheck(lambda x: ops.edge_gather(x, LOCAL_SOURCE), (leaf(NUM_SRC, 3),))
    assert gradcheck(lambda x: ops.destination_gather(x, INDPTR), (leaf(NUM_DST, 3),))


def test_attend():
    rows, alpha = leaf(NUM_SRC, 8), leaf(NUM_EDGES, 2)
    assert gradcheck(lambda x, a: ops.attend(x, a, INDPTR, LOCAL_SOURCE, 6), (rows, alpha))


def test_gated_sum():
    assert gradcheck(lambda x, k: ops.gated_sum(x, k, INDPTR, LOCAL_SOURCE), (leaf(NUM_SRC, 6), leaf(NUM_DST, 3)))


KEY = torch.linspace(-2, 2, NUM_DST * 3, dtype=torch.float64).view(NUM_DST, 3)
OPERATIONS = {
    "aggregate": (lambda x: ops.aggregate(x, INDPTR, LOCAL_SOURCE, None, edge_weight(), True), (NUM_SRC, 3)),
    "segment_sum": (lambda x: ops.segment_sum(x, INDPTR), (NUM_EDGES, 3)),
    "edge_gather": (lambda x: ops.edge_gather(x, LOCAL_SOURCE), (NUM_SRC, 3)),
    "destination_gather": (lambda x: ops.destination_gather(x, INDPTR), (NUM_DST, 3)),
    "edge_softmax": (lambda x: ops.edge_softmax(x, INDPTR)[0], (NUM_EDGES, 3)),
    "attend": (lambda x: ops.attend(x, edge_weight().unsqueeze(1), INDPTR, LOCAL_SOURCE, 3), (NUM_SRC, 3)),
    "gated_sum": (lambda x: ops.gated_sum(x, KEY, INDPTR, LOCAL_SOURCE), (NUM_SRC, 6)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_inputs_of_any_stride(name):
    operation, shape = OPERATIONS[name]
    x = leaf(*shape)
    strided = x.detach().t().contiguous().t()
    torch.testing.assert_close(operation(strided), operation(x))
    (gradient,) = torch.autograd.grad(operation(x).sum(), x)  # the gradient of sum() has stride 0
    assert gradient.shape == x.shape


@pytest.mark.parametrize("name", OPERATIONS)
def test_outputs_and_gradients_are_seen_by_a_dispatch_mode(name):
    class Allocations(TorchDispatchMode):
        shapes: list

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if function in (torch.ops.aten.empty.memory_format, torch.ops.aten.zeros.default):
                self.shapes.append(tuple(out.shape))
            return out

    operation, shape = OPERATIONS[name]
    x, mode = leaf(*shape), Allocations()
    mode.shapes = []
    with mode:
        out = operation(x)
        assert tuple(out.shape) in mode.shapes
        mode.shapes.clear()
        torch.autograd.grad(out.sum(), x)
        assert tuple(x.shape) in mode.shapes


@pytest.mark.parametrize("name", OPERATIONS)
def test_plain_torch_path(name, monkeypatch):
    """Other devices run plain torch; here on CPU tensors that say they are elsewhere."""
    operation, shape = OPERATIONS[name]
    x = leaf(*shape)
    expected = operation(x)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)
    monkeypatch.setattr(ops, "_on_cpu", lambda tensor: False)
    found = operation(x)
    (gradient,) = torch.autograd.grad(found.square().sum(), x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_plain_torch_softmax_with_excluded_edges(monkeypatch):
    exclude = torch.tensor([True, True, False, True, False, False, False, True])
    logits, extra = leaf(NUM_EDGES, 2), leaf(NUM_DST, 2)
    expected, (alone, _) = ops.edge_softmax(logits, INDPTR, exclude, extra), ops.edge_softmax(logits, INDPTR, exclude)
    monkeypatch.setattr(ops, "_on_cpu", lambda tensor: False)
    torch.testing.assert_close(ops.edge_softmax(logits, INDPTR, exclude, extra), expected)
    torch.testing.assert_close(ops.edge_softmax(logits, INDPTR, exclude)[0], alone)
    assert gradcheck(lambda x, y: ops.edge_softmax(x, INDPTR, exclude, y), (logits, extra))
    assert gradcheck(lambda x: ops.edge_softmax(x, INDPTR, exclude)[0], (logits,))


def test_without_edges_or_destinations():
    for num_dst in (0, 3):
        indptr, local_source = torch.zeros(num_dst + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
        for num_src in (0, 2):
            rows = leaf(num_src, 2)
            out = ops.aggregate(rows, indptr, local_source, mean=True)
            assert out.shape == (num_dst, 2) and not out.any()
            assert not torch.autograd.grad(out.sum(), rows)[0].any()
        assert ops.edge_softmax(leaf(0, 2), indptr)[0].shape == (0, 2)
        assert ops.gated_sum(leaf(0, 4), leaf(num_dst, 2), indptr, local_source).shape == (num_dst, 2)
        assert ops.attend(leaf(0, 4), leaf(0, 2), indptr, local_source, 4).shape == (num_dst, 4)
