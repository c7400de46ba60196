"""The differentiable operations: gradients by finite differences, and the CUDA kernels beside the CPU's."""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd import gradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from hongtu.cuda_ext.compile import KernelError
from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.kernels.dispatch import CudaKernels, using, watching
from hongtu.nn.ops import aggregates
from hongtu.nn.ops.attention import graph_attention

INDPTR = torch.tensor([0, 2, 2, 7, 8])
LOCAL_SOURCE = torch.tensor([1, 0, 2, 2, 0, 1, 2, 1], dtype=torch.int32)
NUM_SRC, NUM_DST, NUM_EDGES = 4, 4, 8  # the last source is read by nobody


def leaf(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


def edge_weight():
    return torch.linspace(0.5, 2, NUM_EDGES, dtype=torch.float64)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_aggregate(weighted, mean, width):
    weight, rows = edge_weight() if weighted else None, leaf(NUM_SRC, width)
    assert gradcheck(lambda x: aggregates.aggregate(x, INDPTR, LOCAL_SOURCE, weight, mean), (rows,))


@pytest.mark.parametrize("excluded", [False, True])
def test_edge_softmax(excluded):
    exclude = torch.tensor([True, False, False, True, False, False, False, True]) if excluded else None
    logits, extra = leaf(NUM_EDGES, 2), leaf(NUM_DST, 2)
    assert gradcheck(lambda x: aggregates.edge_softmax(x, INDPTR, exclude)[0], (logits,))
    assert gradcheck(lambda x, y: aggregates.edge_softmax(x, INDPTR, exclude, y), (logits, extra))


def test_shares_sum_to_one():
    alpha_EH, alpha_DH = aggregates.edge_softmax(leaf(NUM_EDGES, 3), INDPTR, None, leaf(NUM_DST, 3))
    torch.testing.assert_close(aggregates.segment_sum(alpha_EH, INDPTR) + alpha_DH, torch.ones_like(alpha_DH))


def test_gathers_and_sums():
    assert gradcheck(lambda x: aggregates.segment_sum(x, INDPTR), (leaf(NUM_EDGES, 3),))
    assert gradcheck(lambda x: aggregates.edge_gather(x, LOCAL_SOURCE), (leaf(NUM_SRC, 3),))
    assert gradcheck(lambda x: aggregates.destination_gather(x, INDPTR, NUM_EDGES), (leaf(NUM_DST, 3),))


@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)], ids=str)
def test_columns_apart(used):
    """Their gradient is added to that of the rows, where either is used."""

    def sums(x):
        rows, behind = aggregates.apart(x, 3)
        return sum(part for part, wanted in zip(((rows**2).sum(), (behind**3).sum()), used) if wanted)

    assert gradcheck(sums, (leaf(NUM_SRC, 5),))
    assert [part.shape[1] for part in aggregates.apart(leaf(NUM_SRC, 5), 3)] == [5, 2]


def test_attend():
    rows, alpha = leaf(NUM_SRC, 8), leaf(NUM_EDGES, 2)
    assert gradcheck(lambda x, a: aggregates.attend(x, a, INDPTR, LOCAL_SOURCE, 6), (rows, alpha))


@pytest.mark.parametrize("loops", [False, True])
def test_graph_attention(loops):
    exclude = torch.tensor([True, False, False, True, False, False, False, True]) if loops else None
    given = leaf(NUM_SRC, 8), leaf(NUM_DST, 2), *[leaf(NUM_DST, 8)] * loops

    def attend(rows, query, own=None):
        return graph_attention(rows, query, own, exclude, INDPTR, LOCAL_SOURCE, 0.2)

    assert gradcheck(attend, given)


def test_gated_sum():
    assert gradcheck(
        lambda x, k: aggregates.gated_sum(x, k, INDPTR, LOCAL_SOURCE), (leaf(NUM_SRC, 6), leaf(NUM_DST, 3))
    )


KEY = torch.linspace(-2, 2, NUM_DST * 3, dtype=torch.float64).view(NUM_DST, 3)
OPERATIONS = {
    "aggregate": (lambda x: aggregates.aggregate(x, INDPTR, LOCAL_SOURCE, edge_weight(), True), (NUM_SRC, 3)),
    "segment_sum": (lambda x: aggregates.segment_sum(x, INDPTR), (NUM_EDGES, 3)),
    "edge_gather": (lambda x: aggregates.edge_gather(x, LOCAL_SOURCE), (NUM_SRC, 3)),
    "destination_gather": (lambda x: aggregates.destination_gather(x, INDPTR, NUM_EDGES), (NUM_DST, 3)),
    "edge_softmax": (lambda x: aggregates.edge_softmax(x, INDPTR)[0], (NUM_EDGES, 3)),
    "attend": (lambda x: aggregates.attend(x, edge_weight().unsqueeze(1), INDPTR, LOCAL_SOURCE, 3), (NUM_SRC, 3)),
    "gated_sum": (lambda x: aggregates.gated_sum(x, KEY, INDPTR, LOCAL_SOURCE), (NUM_SRC, 6)),
    "graph_attention": (lambda x: graph_attention(x, KEY, None, None, INDPTR, LOCAL_SOURCE, 0.2), (NUM_SRC, 12)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_inputs_of_any_stride(name):
    operation, shape = OPERATIONS[name]
    x = leaf(*shape)
    strided = x.detach().t().contiguous().t()
    torch.testing.assert_close(operation(strided), operation(x))
    (gradient,) = torch.autograd.grad(operation(x).sum(), x)  # the gradient of sum() has stride 0
    assert gradient.shape == x.shape


MAKING = [getattr(torch.ops.aten, name) for name in ("empty", "empty_like", "new_empty", "new_zeros")]


@pytest.mark.parametrize("name", OPERATIONS)
def test_outputs_and_gradients_are_seen_by_a_dispatch_mode(name):
    class Allocations(TorchDispatchMode):
        shapes: list

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if function.overloadpacket in MAKING:
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


@pytest.fixture(scope="module")
def cuda_kernels():
    try:
        return CudaKernels(HostLauncher())
    except KernelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "graph_attention"])  # which only the CPU has
def test_cuda_kernels_give_the_same(name, cuda_kernels):
    """Their own sources, run on the CPU."""
    operation, shape = OPERATIONS[name]
    x = leaf(*shape)
    expected = operation(x)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)
    with using(cuda_kernels):
        found = operation(x)
        (gradient,) = torch.autograd.grad(found.square().sum(), x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_cuda_softmax_with_excluded_edges(cuda_kernels):
    exclude = torch.tensor([True, True, False, True, False, False, False, True])
    logits, extra = leaf(NUM_EDGES, 2), leaf(NUM_DST, 2)
    expected, (alone, _) = (
        aggregates.edge_softmax(logits, INDPTR, exclude, extra),
        aggregates.edge_softmax(logits, INDPTR, exclude),
    )
    with using(cuda_kernels):
        torch.testing.assert_close(aggregates.edge_softmax(logits, INDPTR, exclude, extra), expected)
        torch.testing.assert_close(aggregates.edge_softmax(logits, INDPTR, exclude)[0], alone)


@pytest.mark.parametrize("own", [False, True], ids=["no loops", "loops"])
@pytest.mark.parametrize("taken", [False, True], ids=["at once", "in another pass"])
def test_shares_are_computed_once_where_backward_follows(own, taken):
    """Where what is saved stays until another pass they are not kept, and computed twice; the bits are the same."""
    indptr, source = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 0, 1], dtype=torch.int32)
    rows, query = (torch.randn(3, columns).requires_grad_() for columns in (10, 2))
    own_rows = torch.randn(3, 10).requires_grad_() if own else None
    inputs = [x for x in (rows, query, own_rows) if x is not None]

    def gradients(hooks) -> tuple[list[torch.Tensor], int]:
        calls: list[str] = []
        with watching(lambda name, _: calls.append(name)):
            with hooks:
                out = graph_attention(rows, query, own_rows, None, indptr, source, 0.2)
            found = [torch.autograd.grad(out.sin().sum(), inputs, retain_graph=True) for _ in range(2)]
        assert all(map(torch.equal, *found)), "a second backward finds other numbers"
        return list(found[0]), calls.count("gat_logits")

    found, times = gradients(saved_tensors_hooks(lambda x: x, lambda x: x) if taken else nullcontext())
    assert times == (3 if taken else 2)  # the second backward finds none
    assert all(map(torch.equal, found, gradients(saved_tensors_hooks(lambda x: x, lambda x: x))[0]))
