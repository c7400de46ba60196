"""Forwards as people write them: taken exactly, or refused with what they say and what mends it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
import torch_geometric.utils
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.utils import mask_feature

import hongtu
from hongtu.errors import InputError
from hongtu.nn import GINEConv
from tests import graphs, problems, training
from tests.problems import EDGE_COLUMNS as P


class Written(torch.nn.Module):
    """A forward of two convolutions, however it is written."""

    def __init__(self, write, features=4, classes=3):
        super().__init__()
        self.first, self.last = pyg.SAGEConv(features, 8), pyg.SAGEConv(8, classes, aggr="max")
        self.write, self.calls, self.norm = write, 0, None
        self.register_buffer("columns", torch.tensor([5, 0, 2, 7, 1, 1, 3, 4]))
        self.register_buffer("edges", torch.tensor([[0, 1], [1, 0]]))

    def forward(self, x, edge_index):
        return self.write(self, x, edge_index)


class WrittenOfData(Written):
    def forward(self, data):
        return self.write(self, data, data["edge_index"])


def without_gradients(self, x, edge_index):
    with torch.no_grad():
        h = self.first(x, edge_index)
    return self.last(h, edge_index)


def gradients_in_training(self, x, edge_index):
    with torch.set_grad_enabled(self.training):
        h = self.first(x, edge_index)
    return self.last(h, edge_index)


@torch.no_grad()
def halved(x):
    return x / 2


def in_less_precision(self, x, edge_index):
    with torch.autocast("cpu", torch.bfloat16):
        return self.last(self.first(x, edge_index), edge_index)


def counts_calls(self, x, edge_index):
    self.calls += self.training
    return self.last(self.first(x, edge_index) / (1 + self.calls), edge_index)


def keeps_rows(self, x, edge_index):
    self.norm = self.first(x, edge_index)
    return self.last(self.norm, edge_index)


def as_pairs(self, x, edge_index):
    h = self.first((x, x), edge_index, size=(x.size(0), x.shape[0]))
    return self.last((h, h), edge_index)


def picks_columns(self, x, edge_index):
    h = self.first(x, edge_index)
    h = torch.index_select(input=h, dim=1, index=self.columns) + torch.select(h, 1, 3).unsqueeze(1)
    return self.last(h, edge_index)


def of_a_data(self, data, edge_index):
    h = self.first(data["x"], data.edge_index).view(data.num_nodes, 2, 4).flatten(1)
    return self.last(h if data.batch is None else -h, edge_index)


class Reversed(torch.autograd.Function):
    """Rows as they are, and less of their gradients the other way."""

    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -ctx.share * grad, None


def of_own_gradients(self, x, edge_index):
    return self.last(Reversed.apply(self.first(x, edge_index), 0.3), edge_index)


def checkpointed(self, x, edge_index):
    h = checkpoint(lambda h: self.first(h, edge_index).relu(), x, use_reentrant=False)
    return self.last(checkpoint(torch.tanh, h, use_reentrant=True), edge_index)


def copies(self, x, edge_index):
    h = self.first(x, edge_index)  # of which torch copies the numbers, and not where they come from
    return self.last(copy.copy(h).relu() + copy.copy(h) * h, edge_index)


def says_what_it_has(self, x, edge_index):
    h = self.first(x, edge_index)
    self.said = f"{h.mean():.2f} {h.mean().item():8.3f} {h.size(1):4d} {h.sum():.1f}"
    return self.last(h * float(f"{h.size(1):.1f}"), edge_index)


def sizes_as_tensors(self, x, edge_index):
    h = self.first(x, edge_index) / torch.sqrt(torch.tensor(x.size(-1), dtype=x.dtype))
    return self.last(h * torch.tensor([h.size(1), 2]).sum() * torch.tensor(0.5), edge_index)


def asks_what_is_learned(self, x, edge_index):
    h = self.first(x, edge_index) * (2 if self.last.lin_l.weight.requires_grad else 1)
    h = checkpoint(torch.tanh, h, use_reentrant=False) if h.requires_grad else torch.tanh(h)
    return self.last(h, edge_index)


@pytest.mark.parametrize(
    "write",
    [
        copies,
        says_what_it_has,
        sizes_as_tensors,
        asks_what_is_learned,
        gradients_in_training,
        keeps_rows,
        as_pairs,
        picks_columns,
        of_a_data,
        of_own_gradients,
        checkpointed,
    ],
)
def test_however_a_forward_is_written(write):
    trains_as_in_torch(write, of_data=write is of_a_data)


def trains_as_in_torch(write, prepare=lambda model: None, *, of_data=False, kind=Written, by_name=True):
    """Losses and predictions of two epochs are those of the same module on the whole graph."""
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    model = (WrittenOfData if of_data else kind)(write, problem.width, problem.classes).double()
    prepare(model)
    trainer = hongtu.Trainer(
        problems.prepare(problem, 2, 3), hongtu.from_pyg(model), optimizer=training.sgd, dtype=torch.float64
    )
    found = training.train(trainer, 2).losses
    data = Data(x=torch.from_numpy(problem.features).double(), edge_index=problem.edge_index)
    mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
    given = {"data": data} if of_data else {"x": data.x, "edge_index": data.edge_index}
    in_order = () if by_name else tuple(given.values())
    given = given if by_name else {}
    optimizer = training.sgd(model.parameters())
    model.train()
    for loss in found:
        optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(model(*in_order, **given)[mask], labels[mask])
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(trainer.predict(), model.eval()(*in_order, **given), rtol=1e-9, atol=1e-9)


WRITTEN = {  # and what is said of it
    without_gradients: r"calls first under torch.no_grad, which .*; take it out, and .detach\(\) what",
    (lambda self, x, e: self.last(self.first(halved(x), e), e)): r"calls truediv under torch.no_grad",
    in_less_precision: r"calls first under torch.autocast, .* pass autocast=torch.bfloat16",
    counts_calls: r"changes calls of its own, from 0, and layers keep",
    (lambda self, x, e: self.last(self.first(e, x), x)): r"calls first with x in place of edges, .*forward\(self, x, e",
    (lambda self, x, e: self.last(self.first(x, self.edges), e)): r"calls first with edges in place of edges, ",
    (lambda self, x, e: self.last((h := self.first(x, e), h.relu()), e)): r"with a pair, first and relu, as its x, and",
    (lambda self, x, e: self.first(x, e)[e[0]]): r"takes edges apart \(edge_index\[0\]\), .* a MessagePassing with",
    (lambda self, x, e: self.first(x, e) / e.size(1)): r"takes edges apart \(size\), .* a number, .* of __init__",
    (lambda self, x, e: self.first(x, e) / e.shape[1]): r"takes edges apart \(shape\), .* a number, .* of __init__",
    (lambda self, x, e: self.first(x, e) * torch_geometric.utils.degree(e[1])[:, None]): r"columns of x of it",
    (lambda self, x, e: (self.last(h := self.first(x, e), e), h)): r"returns \(last, first\), .*rows of one tensor;",
    (lambda self, x, e: self.first(x, e) / len(x)): r"\('len' is not supported .* by default.; in line",
}


class Drops(torch.nn.Module):
    def forward(self, edge_index):
        return torch_geometric.utils.dropout_edge(edge_index, 0.3, training=self.training)[0]


@pytest.mark.parametrize("inside", [Drops, torch.nn.Identity, lambda: torch.nn.Sequential(Drops(), Drops())])
def test_what_modules_do_to_edges_belongs_into_forward(inside):
    model = Written(lambda self, x, e: self.last(self.first(x, self.drop(e)), e), 6, 3)
    model.drop = inside()
    with pytest.raises(
        InputError, match=r"forward calls drop with edges alone, .*; write it into forward itself, as dropout_edge"
    ):
        hongtu.from_pyg(model)


def hooks_rows(self, x, e):
    h = self.first(x, e)
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient / 2)
    return self.last(h, e)


def sets_data(self, x, e):
    h = self.first(x, e)
    h.data = h.data * 2
    return self.last(h, e)


def goes_on_without_numpy(self, x, e):
    h = self.first(x, e)
    try:
        return self.last(h * h.numpy(), e)
    except (RuntimeError, TypeError, ValueError):
        return self.last(h, e)


def takes_gradients(self, x, e):
    h = self.first(x, e)
    return self.last(h + torch.autograd.grad(h.sum(), self.first.lin_l.bias, create_graph=True)[0], e)


def goes_backward(self, x, e):
    h = self.first(x, e)
    h.square().sum().backward(retain_graph=True)
    return self.last(h, e)


EVALUATION = r"something else in evaluation \(self.training, h.requires_grad\)"
WRITTEN |= {
    goes_on_without_numpy: "it makes an array, or a list, of rows; .*h.numpy",
    takes_gradients: "takes gradients itself, which its trace does not show; return what the loss is taken of",
    goes_backward: "takes gradients itself, which its trace does not show; return what the loss is taken of",
    (lambda self, x, e: self.last(self.first(x, e) * (1 + torch.is_grad_enabled()), e)): EVALUATION,
    (lambda self, x, e: self.last(h * 2 if (h := self.first(x, e)).requires_grad else h, e)): EVALUATION,
    (lambda self, x, e: self.first(x, e) if int(x.mean().item()) else x): r"\(it depends on numbers; .* prints or",
    (lambda self, x, e: self.first(x, e) * round(x.max().item(), 2)): r"\(it depends on numbers; in line",
    (lambda self, x, e: self.first(x, e) / torch.tensor(x.size(0))): r"\(it depends on how many vertices or edges",
    hooks_rows: r"registers a hook on rows, .*; write a torch.autograd.Function with that backward",
    sets_data: r"sets the data of rows, .*; make new ones",
    (lambda self, x, e: self.last(self.first(x * torch.rand(x.size(1)), e), e)): r"draws as many .* \(rand\) whatever",
    (lambda self, x, e: self.last(self.first(x, e) * torch.rand_like(self.last.lin_l.weight[0]), e)): r"\(rand_like\)",
    (lambda self, x, e: self.last(self.first(mask_feature(x)[0], e), e)): r"\(rand\) whatever the rows are",
    (lambda self, x, e: self.first(x, e) if x.grad is None else x): r"depends on numbers",
    (lambda self, x, e: self.last(self.first(x, e) @ self.first.lin_l.weight, e)): r"its weights alone, as torch.nn.fu",
    (lambda self, x, e: self.first(x, e) if getattr(x, "__class__") is torch.Tensor else x): r"; ask type\(...\)",  # noqa: B009
}


@pytest.mark.parametrize("signature", ["x=None, edge_index=None", "edge_index=None, x=None", "*, x, edge_index"])
def test_arguments_by_whatever_signature(signature):
    space = {}
    exec(f"def forward(self, {signature}): return self.last(self.first(x, edge_index), edge_index)", space)
    kind = type("Kind", (Written,), {"forward": space["forward"]})
    trains_as_in_torch(None, kind=kind)


@pytest.mark.parametrize("signature", ["**given", "x, **given", "x, *given", "", "inputs"])
def test_arguments_that_say_nothing_are_named(signature):
    body = {"": "self.x", "inputs": "[*inputs][0]"}.get(
        signature, "given['x'] if isinstance(given, dict) else given[0]"
    )
    space = {}
    exec(f"def forward(self, {signature}): return self.first({body}, self.edges)", space)
    kind = type("Kind", (Written,), {"forward": space["forward"]})
    with pytest.raises(
        InputError, match=r"; (read these|name them|have it take rows)?.*as forward\(self, x, edge_index\)"
    ):
        hongtu.from_pyg(kind(None))


@pytest.mark.parametrize("write", WRITTEN)
def test_what_a_forward_may_not_do_is_said_in_its_words(write):
    with pytest.raises(InputError, match=WRITTEN[write]):
        hongtu.from_pyg(Written(write))


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (
            lambda self, data, e: self.first(data, e),
            r"its one argument data is a Data, of x, .*; read these",
        ),
        (lambda self, data, e: self.first(data.x, e)[data.train_mask], r"asks for 'train_mask'\); .* of all vertices"),
    ],
)
def test_what_a_forward_may_not_do_with_a_data(write, found):
    with pytest.raises(InputError, match=found):
        hongtu.from_pyg(WrittenOfData(write))


def test_gradients_that_are_off_already_are_no_matter():
    with torch.no_grad():
        assert len(hongtu.from_pyg(pyg.GCN(6, 8, 2, 3))) == 3


def chain(features, classes):
    return torch.nn.Sequential(
        torch.nn.Linear(features, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, classes)
    )


class Gine(torch.nn.Module):
    """Two of them: edge features by a map of its own, and by one of the model."""

    def __init__(self, make, features, classes):
        super().__init__()
        self.encoder = torch.nn.Linear(P, features)
        self.first = pyg.GINEConv(make(features, 8), eps=0.2, train_eps=True)
        self.last = pyg.GINEConv(make(8, classes), edge_dim=P)

    def forward(self, x, edge_index, edge_attr):
        return self.last(self.first(x, edge_index, self.encoder(edge_attr)).relu(), edge_index, edge_attr)


@pytest.mark.parametrize("make", [chain, torch.nn.Linear, lambda f, c: pyg.MLP([f, 8, c], norm="batch_norm")])
def test_edge_features_and_a_network_that_normalises(make):
    """Statistics inside a GINEConv's network are those of the whole graph, and what is frozen stays so."""
    problem = problems.edge_data()
    model = Gine(make, problem.width, problem.classes).double()
    model.last.lin.bias.requires_grad_(False)
    own = copy.deepcopy(model)
    layers = hongtu.from_pyg(model)
    assert sum(isinstance(layer, GINEConv) for layer in layers) == 2
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), layers, optimizer=training.sgd, dtype=torch.float64)
    found = training.train(trainer, 2).losses
    given = torch.from_numpy(problem.features).double(), problem.edge_index, problem.edge_data()["edge_attr"].double()
    mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
    optimizer = training.sgd(own.parameters())
    for loss in found:
        optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(own(*given)[mask], labels[mask])
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-10)
    hongtu.to_pyg(trainer.model, model)
    for name, value in own.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-8, atol=1e-8)


class Counting(pyg.MessagePassing):
    """Remembers how often it was called, in a buffer or beside."""

    def __init__(self, buffer):
        super().__init__(aggr="mean")
        self.lin, self.calls = torch.nn.Linear(6, 3), 0
        if buffer:
            del self.calls
            self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, edge_index):
        self.calls += 1
        return self.propagate(edge_index, x=self.lin(x)) / self.calls


@pytest.mark.parametrize("buffer", [True, False])
def test_a_convolution_that_keeps_something_is_named(buffer):
    with pytest.raises(InputError, match=r"PyGLayer\(Counting\): gives other numbers when it is called again; keep"):
        hongtu.Trainer(problems.prepare(problems.awkward()), hongtu.from_pyg(Counting(buffer)))


class NormsInside(pyg.EdgeConv):
    def __init__(self):
        super().__init__(chain(12, 3))


def test_a_norm_along_edges_is_not_about_edge_attr():
    with pytest.raises(
        InputError, match=r"the BatchNorm1d inside .*; torch.nn.LayerNorm can stand there, which is another model$"
    ):
        hongtu.Trainer(problems.prepare(problems.awkward()), hongtu.from_pyg(NormsInside()))


class OfTypes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv((4, 4), 3)

    def forward(self, x_dict, edge_index_dict, edge_weight_dict=None):
        return self.conv((x_dict["a"], x_dict["b"]), edge_index_dict["a", "to", "b"])


def test_what_is_left_out_of_a_model_of_types_is_refused():
    with pytest.raises(InputError, match=r"without=\['edge_weight'\]: OfTypes.forward takes dictionaries by type, and"):
        hongtu.from_pyg(OfTypes(), without=["edge_weight"])
    assert len(hongtu.from_pyg(OfTypes(), without=[])) == 1
