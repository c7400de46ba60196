"""Blocks: indices, reductions, and the view with the destinations as first sources."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hongtu import nn as hnn
from hongtu.kernels import dispatch
from hongtu.nn import aggr
from hongtu.nn.block import Block, Rows
from tests.graphs import Graph, awkward_graphs, by_destination, cut, loops, make_blocks

pyg_resolver = pytest.importorskip("torch_geometric.nn.resolver")


@pytest.fixture(params=awkward_graphs(), ids=str)
def graph(request):
    return request.param


def example() -> Block:
    """Vertices 0 to 4; destinations {1, 2}; edges 0->1, 2->1, 1->1, 2->2, 4->2."""
    return Block(
        indptr=torch.tensor([0, 3, 5]),
        local_source=torch.tensor([0, 2, 1, 2, 3], dtype=torch.int32),
        sources=torch.tensor([0, 1, 2, 4], dtype=torch.int32),
        first=1,
        edge_weight=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]),
        rows=Rows(torch.tensor([11, 12])),
        edge_id_start=torch.tensor([70, 90]),
        num_graph_edges=100,
    )


def test_indices():
    block = example()
    assert (block.num_dst, block.num_src, block.num_edges) == (2, 4, 5)
    assert block.edge_index.tolist() == [[0, 2, 1, 2, 3], [0, 0, 0, 1, 1]]
    assert block.edge_ids.tolist() == [70, 71, 72, 90, 91]
    assert block.loop_mask.tolist() == [False, False, True, True, False] and block.has_loops
    assert all(x.dtype == torch.int64 for x in (block.dst_of_edge, block.edge_index, block.edge_ids))


def test_reductions():
    block, x = example(), torch.tensor([[1.0], [10.0], [100.0], [1000.0]])
    assert block.sum(x).flatten().tolist() == [111, 1100]
    assert block.mean(x).flatten().tolist() == [37, 550]
    assert block.sum(x, weighted=True).flatten().tolist() == [231, 5400]
    assert block.mean(x, weighted=True).flatten().tolist() == pytest.approx([77, 2700], rel=1e-6)
    assert block.gather(x).flatten().tolist() == [1, 100, 10, 100, 1000]
    assert block.gather_destination(x[:2]).flatten().tolist() == [1, 1, 1, 10, 10]
    assert block.segment_sum(block.gather(x)).flatten().tolist() == [111, 1100]
    assert block.softmax(torch.zeros(5, 1)).flatten().tolist() == pytest.approx([1 / 3] * 3 + [1 / 2] * 2)
    shares, extra = block.softmax(torch.zeros(5, 1), block.loop_mask, torch.zeros(2, 1))
    assert shares.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, 0, 0, 1 / 2])
    assert extra.flatten().tolist() == pytest.approx([1 / 3, 1 / 2])


def test_reductions_of_more_and_fewer_dimensions():
    block, x = example(), torch.randn(4, 3, 2)
    for operation in (block.sum, block.mean, block.gather):
        torch.testing.assert_close(operation(x).flatten(1), operation(x.flatten(1)))
        torch.testing.assert_close(operation(x[:, 0, 0]), operation(x[:, 0, :1]).squeeze(1))


@pytest.mark.parametrize("how", aggr.NAMES)
def test_reductions_by_name_are_torch_geometrics(graph, how):
    """Values and gradients of source rows and of edge rows, ties and zeros among them."""
    aggregation = pyg_resolver.aggregation_resolver(how)
    x = torch.randn(graph.num_vertices, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x[:, :2] = x[:, :2].round()
    x.requires_grad_()
    expected = aggregation(x[graph.edge_index[0]], graph.edge_index[1], dim_size=graph.num_vertices)
    block = make_blocks(graph)[0]
    z = x[block.sources.long()]
    factor = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    [wanted] = torch.autograd.grad((expected * factor).sum(), x, materialize_grads=True)
    for out in (block.reduce(z, how), block.of_edges.reduce(block.gather(z), how)):
        torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)
        [found] = torch.autograd.grad((out * factor).sum(), x, retain_graph=True, materialize_grads=True)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("how", ["max", "min", "mean", "sum"])
def test_weighted_reductions(graph, how):
    aggregation, block = pyg_resolver.aggregation_resolver(how), make_blocks(graph)[0]
    x = torch.randn(graph.num_vertices, 4, dtype=torch.float64).round().requires_grad_()
    messages = x[graph.edge_index[0]]
    if graph.weights is not None:
        messages = messages * graph.edge_weight().unsqueeze(1)
    expected = aggregation(messages, graph.edge_index[1], dim_size=graph.num_vertices)
    out = block.reduce(x[block.sources.long()], how, weighted=True)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)
    sums = ((y * y).sum() for y in (out, expected))
    found, wanted = (torch.autograd.grad(total, x, materialize_grads=True)[0] for total in sums)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_several_reductions_and_more_dimensions():
    block, x = example(), torch.randn(4, 3, 2)
    both = block.reduce(x, ["max", "std"])
    assert both.shape == (2, 3, 4)
    torch.testing.assert_close(both[..., :2], block.reduce(x, "max"))
    torch.testing.assert_close(both[..., 2:].flatten(1), block.reduce(x.flatten(1), "std"))
    with pytest.raises(ValueError, match="reduction 'median': expected one of sum, add"):
        block.reduce(x, "median")
    with pytest.raises(ValueError, match="'var' has no weighted form"):
        block.reduce(x, "var", weighted=True)


def test_what_torch_does_where_there_is_no_kernel():
    """The forms that other devices run: as the kernels, values and gradients."""
    block = make_blocks(loops())[0]
    x, query, att = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((10, 6), (10, 6), (6,)))
    ties, learned = x.detach().round().requires_grad_(), aggr.SoftmaxAggregation()
    learned.t = att
    z, own, logits = (torch.randn(10, width, dtype=torch.float64).requires_grad_() for width in (9, 9, 3))
    gat, gat_without_loops = (hnn.GATConv(6, 2, heads=3, add_self_loops=added) for added in (True, False))
    calls = {
        "gat": (lambda: gat.aggregate(block, z, (own, logits)), [z, own, logits]),
        "gat without loops": (lambda: gat_without_loops.aggregate(block, z, logits), [z, logits]),
        "max": (lambda: block.reduce(ties, "max", weighted=True), [ties]),
        "min": (lambda: block.reduce(ties, "min"), [ties]),
        "softmax": (lambda: learned(block, x), [x, att]),
        "semi_grad": (lambda: aggr.SoftmaxAggregation(0.5, semi_grad=True)(block, x), [x]),
        "additive": (lambda: block.additive_logits(x, query, att, 3, 0.2), [x, query, att]),
    }
    for name, (call, inputs) in calls.items():
        found = []
        for on_gpu in (False, True):
            with dispatch.as_on_gpu(on_gpu):
                out = call()
                found.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
        torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_a_subclass_of_gat_attends_in_its_own_way():
    class Even(hnn.GATConv):
        def attend_with_loops(self, block, z, logits_EH, own_DF, own_logits_DH):
            return super().attend_with_loops(block, z, 0 * logits_EH, own_DF, 0 * own_logits_DH)

    block, (z, own, logits) = make_blocks(loops())[0], (torch.randn(10, width) for width in (9, 9, 3))
    even = Even(6, 2, heads=3).aggregate(block, z, (own, logits))
    torch.testing.assert_close(even, Even(6, 2, heads=3).aggregate(block, z, (own, 0 * logits)))


@given(st.data())
def test_extrema_of_small_numbers_are_torch_geometrics(data):
    """Random graphs and rows of few values: what ties, and what is 0, gets the same gradient."""
    v = data.draw(st.integers(1, 5))
    ends = st.tuples(st.integers(0, v - 1), st.integers(0, v - 1))
    edges = np.array(data.draw(st.lists(ends, max_size=12)), dtype=np.int64).reshape(-1, 2).T
    values = data.draw(st.lists(st.integers(-1, 1), min_size=2 * v, max_size=2 * v))
    x = torch.tensor(values, dtype=torch.float64).view(v, 2).requires_grad_()
    block = make_blocks(Graph("drawn", edges, None, v))[0]
    source, destination = torch.from_numpy(edges)
    for how in ("max", "min"):
        out = block.reduce(x[block.sources.long()], how)
        expected = pyg_resolver.aggregation_resolver(how)(x[source], destination, dim_size=v)
        factor = torch.arange(1.0, 2 * v + 1, dtype=torch.float64).view(v, 2)
        grads = [torch.autograd.grad((y * factor).sum(), x, materialize_grads=True)[0] for y in (out, expected)]
        torch.testing.assert_close([out, grads[0]], [expected, grads[1]], rtol=1e-12, atol=1e-12)


def test_with_destinations_example():
    block, others = example().with_destinations()
    assert block.sources.tolist() == [1, 2, 0, 4] and others.tolist() == [0, 3]
    assert block.local_source.tolist() == [2, 1, 0, 1, 3] and block.local_source.dtype == torch.int32
    assert block.loop_mask.tolist() == example().loop_mask.tolist()
    assert block.edge_ids.tolist() == example().edge_ids.tolist()


@pytest.mark.parametrize("parts", [1, 3])
def test_with_destinations_reads_the_same_rows(graph, parts):
    x = torch.randn(graph.num_vertices, 3, dtype=torch.float64)
    for block in make_blocks(graph, cut(graph.num_vertices, parts)):
        own = x[block.first : block.first + block.num_dst]
        z = x[block.sources.long()]
        second, others = block.with_destinations()
        h = torch.cat([own, z[others]])
        assert second.num_src == len(h) == len(second.sources) and second.num_edges == block.num_edges
        torch.testing.assert_close(second.gather(h), block.gather(z))
        torch.testing.assert_close(second.sum(h, weighted=True), block.sum(z, weighted=True))
        assert torch.equal(second.loop_mask, block.loop_mask)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_blocks_cover_the_graph(graph, parts):
    in_edge_start, source, _ = by_destination(graph)
    destination = np.repeat(np.arange(graph.num_vertices), np.diff(in_edge_start))
    ids, edges = [], []
    for block in make_blocks(graph, cut(graph.num_vertices, parts)):
        ids.append(block.edge_ids)
        pair = [block.sources[block.edge_index[0]].long(), block.edge_index[1] + block.first]
        edges.append(torch.stack(pair))
        assert torch.equal(block.loop_mask, pair[0] == pair[1])
    assert torch.cat(ids).tolist() == list(range(len(source)))
    assert torch.cat(edges, 1).tolist() == [source.tolist(), destination.tolist()]


def test_torch_sparse():
    block = example()
    try:
        import torch_sparse  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pip install --no-build-isolation torch-scatter torch-sparse"):
            block.to_torch_sparse()
        return
    dense = torch.zeros(2, 4).index_put(tuple(block.edge_index.flip(0)), block.edge_weight)
    torch.testing.assert_close(block.to_torch_sparse().to_dense(), dense)


def test_torch_sparse_arguments(monkeypatch):
    """Without torch-sparse: what it would be given."""

    class Module:
        SparseTensor = dict

    monkeypatch.setitem(sys.modules, "torch_sparse", Module)
    block = example()
    given = block.to_torch_sparse()
    assert given["rowptr"] is block.indptr and given["sparse_sizes"] == (2, 4) and given["is_sorted"]
    assert given["col"].tolist() == block.local_source.tolist() and given["value"] is block.edge_weight
