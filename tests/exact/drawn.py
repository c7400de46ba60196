"""What a random training (``harness.py``) is of: a graph, its labels, a model with its reference, and a loss.

Legend: V vertices, E edges.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, SAGEConv

import hongtu
from tests import additions, graphs, problems
from tests.exact.drawn_edge_states import draw_edge_states
from tests.exact.drawn_types import TypedModelOf, draw_graph, draw_types
from tests.exact.labels import DrawnLoss, draw_labels, draw_loss
from tests.models import SIX, H, Model, Rowwise, Wrapped, vertex_losses
from tests.problems import Problem

LOSSES = {"classes": "cross_entropy", "labels": "bce_with_logits", "numbers": "mse"}


@dataclass
class Drawn:
    """A training.

    Attributes:
        kind: "classes", "one output", "labels" or "numbers".
        loss: over the vertices of a mask, and part of what is trained with, or all of it.
        validates: the loss of vertices is all of it, without weights of theirs.
        links: part of it is over edges.
        drops: the model has dropout, which the other side cannot draw: what is compared is hongtu on the whole graph.
        traits: what the training has that others have not.
    """

    kind: str
    problem: Problem
    model: Model
    loss: DrawnLoss
    validates: bool = False
    links: bool = False
    drops: bool = False
    traits: list[str] = field(default_factory=list)


def draw(rng: np.random.Generator) -> Drawn:
    if rng.random() < 0.1:
        return _of_types(rng)
    kind, problem = _problem(rng)
    which, traits, drops = rng.random(), [kind], False
    kinds = [*SIX, *additions.NORMS, *additions.CONNECTIONS, *additions.AGGREGATES]
    if which < 0.2:
        columns = int(rng.choice([1, 2, problems.EDGE_COLUMNS]))
        problem = problems.with_edge_data(problem, columns)
        kinds = [model for model in additions.EDGES if model.name != "tides"]
        kinds = kinds if columns == problems.EDGE_COLUMNS else _of_edge_columns(columns)
        kinds = [*kinds, additions.of(_relational, "relational")]
        traits.append(f"edge features of {columns} columns")
    elif which < 0.3:
        problem = _typed(problem, int(rng.integers(99)))
        kinds = [additions.TYPED]
        traits.append("vertex types")
    elif which < 0.42:
        problem = problems.with_edge_data(problem, int(rng.integers(1, 5)))
        drops = bool(rng.random() < 0.2)
        kinds = []
        traits += ["edge states", *["dropout of edge states"] * drops]
    elif which < 0.46:
        problem, drops = problems.with_edge_data(problem), True
        kinds = [additions.of(_dropping, "dropping")]
        traits.append("dropout in convolutions")
    if problem.vertex_type is None and rng.random() < 0.15:
        problem = _with_sparse_features(rng, problem)
        traits.append("sparse features")
    kinds = kinds or [draw_edge_states(rng, problem, drops=drops)]
    problem, odd = draw_labels(rng, "classes" if kind == "one output" else kind, problem)
    if problem.vertex_type is None and rng.random() < 0.3:
        problem, form = _as_data(rng, problem)
        odd.append(form)
    loss = draw_loss(rng, kind, problem)
    model = _fitting(rng, kinds, problem)
    drawn = Drawn(kind, problem, model, loss, drops=drops)
    drawn.traits = (
        traits + odd + ["an odd number of label columns"] * (problem.labels.ndim == 2 and problem.classes % 2)
    )
    written = rng.random() < 0.25
    if written:
        _give_another_field(rng, drawn)
    how = rng.random()
    if how < 1 / 5:
        _link(rng, drawn)
    elif how < 1 / 4 or how > 0.9 or (how < 0.4 and kind == "one output"):
        _train_with(drawn)
        _target_edges(rng, drawn, beside=how > 0.9)
    elif how < 0.4:
        _weigh_vertices(rng, drawn)
    else:
        _train_with(drawn)
        drawn.validates = True
    if written:
        _write_forward(rng, drawn)
    return drawn


class OfRelations(Wrapped):
    def forward(self, h: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:  # type: ignore[override]
        return self.conv(h, edge_index, edge_type=edge_type)


def _relational(lib: Any, f: int, c: int) -> list[nn.Module]:
    """Convolutions of relations that hongtu has by wrapping them."""
    wrap = hongtu.nn.PyGLayer if lib is hongtu.nn else OfRelations
    first = wrap(pyg.FastRGCNConv(f, H, problems.EDGE_TYPES, num_bases=2))
    return [first, nn.Tanh(), wrap(pyg.RGATConv(H, c, problems.EDGE_TYPES))]


def _dropping(lib: Any, f: int, c: int) -> list[nn.Module]:
    """Convolutions that drop messages, and rows."""
    wrap = hongtu.nn.PyGLayer if lib is hongtu.nn else OfRelations
    dropped = nn.Sequential(nn.Linear(2 * H, H), nn.Dropout(0.3), nn.Tanh())
    attends = pyg.SuperGATConv(H, H, dropout=0.4), pyg.RGATConv(H, c, problems.EDGE_TYPES, dropout=0.3)
    layers = [pyg.GATv2Conv(f, H, dropout=0.4), pyg.EdgeConv(dropped), *attends]
    return [x for layer in layers for x in (wrap(layer), nn.Tanh())][:-1]


def _of_types(rng: np.random.Generator) -> Drawn:
    """A model for a graph of several types."""
    kind, drops = str(rng.choice(["classes", "labels", "numbers"], p=[0.6, 0.2, 0.2])), bool(rng.random() < 0.2)
    problem, data = draw_graph(rng, kind)
    model = draw_types(rng, problem, data, drops=drops)
    drawn = Drawn(kind, problem, model, draw_loss(rng, kind, problem), drops=drops)
    drawn.traits = [kind, "typed graphs", f"typed {model.spec.kind}", *["dropout of typed rows"] * drops]
    _train_with(drawn)
    drawn.validates = True
    return drawn


def _problem(rng: np.random.Generator) -> tuple[str, Problem]:
    v = int(rng.integers(4, 70))
    e = int(rng.choice([0, rng.integers(1, 30), rng.integers(30, 400)], p=[0.04, 0.2, 0.76]))
    edges = rng.integers(0, v, (2, e))
    if rng.random() < 0.3 and e:
        edges[:, : e // 3] = edges[0, : e // 3]  # loops
    if rng.random() < 0.3 and e:
        edges[rng.integers(2), e // 2 :] = rng.integers(v)  # a hub
    weights = rng.uniform(0.1, 2, e) if rng.random() < 0.4 else None
    kind = str(rng.choice(["classes", "one output", "labels", "numbers"], p=[0.4, 0.1, 0.3, 0.2]))
    graph = graphs.Graph(f"{kind}-{'weighted' if weights is not None else 'plain'}", edges, weights, v)
    classes = int(rng.choice({"classes": [2, 3, 4], "one output": [2], "labels": [2, 3, 5, 7]}.get(kind, [1, 2, 5])))
    problem = problems.problem_of(
        graph, width=int(rng.integers(1, 9)), classes=classes, multi_label=kind == "labels",
        regression=kind == "numbers",
    )  # fmt: skip
    if rng.random() < 0.3:
        train = np.zeros(v, dtype=bool)
        train[rng.choice(v, size=int(rng.integers(1, 3)), replace=False)] = True
        problem = replace(problem, masks={"train": train, "val": ~train, "test": np.zeros_like(train)})
    return kind, replace(problem, columns=1) if kind == "one output" else problem


def _with_sparse_features(rng: np.random.Generator, problem: Problem) -> Problem:
    """Most of them zero, and given as a matrix in CSR."""
    features = rng.normal(size=(problem.num_vertices, int(rng.integers(20, 50)))).astype(np.float32)
    features[rng.random(features.shape) > 0.04] = 0
    return replace(problem, features=features, given=problem.given | {"features": scipy.sparse.csr_matrix(features)})


def _of_edge_columns(columns: int) -> list[Model]:
    """Models of so many edge features."""
    one, mlp = {"edge_dim": columns}, additions.mlp
    return [
        additions.two("GATConv", {"heads": 2, **one}, {"heads": 3, "concat": False, **one}, nn.ELU),
        additions.two("GATv2Conv", {"heads": 2, **one}, {"heads": 3, "concat": False, **one}, nn.ELU),
        additions.two("TransformerConv", {"heads": 2, **one}, {"concat": False, **one}),
        additions.two("GENConv", {"norm": None, **one}, {"norm": "layer", "aggr": "add", **one}),
        additions.of(
            lambda lib, f, c: [lib.GINEConv(mlp(f, H), **one), nn.ReLU(), lib.GINEConv(mlp(H, c), 0.3, **one)], "gine"
        ),
        additions.of(
            lambda lib, f, c: [
                lib.NNConv(f, H, mlp(columns, f * H)),
                lib.NNConv(H, c, mlp(columns, H * c), aggr="mean"),
            ],
            "nnconv",
        ),
        additions.of(lambda lib, f, c: [lib.CGConv(f, columns), nn.ReLU(), nn.Linear(f, c)], "cg"),
    ]


def _as_data(rng: np.random.Generator, problem: Problem) -> tuple[Problem, str]:
    """Given as torch_geometric's Data, its edges as a list or as a matrix whose row is the destination."""
    beside = {"y": problem.given.get("labels", problem.labels), "edge_weight": problem.weights}
    beside |= {"edge_attr": problem.edge_features, "edge_type": problem.edge_type}
    if problem.edge_features is not None and problem.edge_features.shape[1] == 1 and rng.random() < 0.5:
        beside["edge_attr"] = problem.edge_features[:, 0]
    beside |= {f"{split}_mask": mask for split, mask in problem.masks.items()}
    form = "a Data"
    if problem.edge_features is None and rng.random() < 0.5:
        form = "a Data with adj_t"
        _, first = np.unique(problem.edges[::-1], axis=1, return_index=True)  # by destination, then by source
        edges, weights = problem.edges[:, first], beside.pop("edge_weight")
        weights = None if weights is None else weights[first]
        problem = replace(problem, edges=np.ascontiguousarray(edges), weights=weights)
        values = torch.ones(len(first)) if weights is None else torch.from_numpy(weights)
        of_matrix = torch.sparse_coo_tensor(problem.edge_index.flip(0), values, 2 * (problem.num_vertices,))
        beside["adj_t"] = of_matrix.coalesce().to_sparse_csr()
    else:
        beside["edge_index"] = problem.edges
    as_tensors = {
        name: x if isinstance(x, Tensor) else torch.from_numpy(x) for name, x in beside.items() if x is not None
    }
    x = torch.from_numpy(problem.features)
    data = Data(x=x.to_sparse_csr() if "features" in problem.given else x, **as_tensors)
    return replace(problem, given={"data": data}), form


class Written(nn.Module):
    """A model of one's own: its convolutions in a row, called with what is there of edges.

    Args:
        modules: convolutions, and modules of rows.
        beside: names of what there is.
    """

    def __init__(self, modules: Sequence[nn.Module], beside: Iterable[str]) -> None:
        super().__init__()
        self.parts, self.beside = nn.ModuleList(modules), {*beside}

    def call(self, x: Tensor, edge_index: Tensor, **edges: Tensor) -> Tensor:
        for part in self.parts:
            taken = inspect.signature(part.forward).parameters
            beside = {name: value for name, value in edges.items() if name in taken and name in self.beside}
            x = part(x, edge_index, **beside) if "edge_index" in taken else part(x)
        return x


class AllAsked(Written):
    def forward(self, x: Any, edge_index: Any, edge_weight: Any, edge_attr: Any, edge_type: Any) -> Any:
        return self.call(x, edge_index, edge_weight=edge_weight, edge_attr=edge_attr, edge_type=edge_type)


class Optional(Written):
    def forward(
        self, x: Any, edge_index: Any, edge_weight: Any = None, edge_attr: Any = None, edge_type: Any = None
    ) -> Any:
        return self.call(x, edge_index, edge_weight=edge_weight, edge_attr=edge_attr, edge_type=edge_type)


class OfData(Written):
    def forward(self, data: Any) -> Any:
        edges = {name: getattr(data, name) for name in self.beside}
        return self.call(data.x, data.edge_index, **edges)


def _give_another_field(rng: np.random.Generator, drawn: Drawn) -> None:
    """Features of edges that nobody reads: of one column or more, numbers or codes."""
    data = drawn.problem.given.get("data")
    if data is None or drawn.problem.edge_features is not None or "edge_attr" in data:
        return
    columns = [(), (1,), (3,)][rng.integers(3)]
    data.edge_attr = torch.from_numpy(rng.integers(1, 9, (drawn.problem.edges.shape[1], *columns)))
    if rng.random() < 0.5:
        data.edge_attr = data.edge_attr * 0.7
    drawn.traits.append("features of edges that nobody reads")


def _write_forward(rng: np.random.Generator, drawn: Drawn) -> None:
    """The model as a forward of one's own, if one calls its modules in a row and their names stay."""
    model, problem = drawn.model, drawn.problem
    beside = [*problem.edge_data()]
    form = OfData if rng.random() < 0.5 else AllAsked if len(beside) == 3 else Optional

    def modules(f: int, c: int) -> list[nn.Module]:
        found = [*model.reference(f, c)]
        edged = [k for k, part in enumerate(found) if "edge_index" in inspect.signature(part.forward).parameters]
        after = [k for k in edged[:-1] if model.inner is not None]
        return [x for k, part in enumerate(found) for x in ([part, Rowwise(model.inner)] if k in after else [part])]

    def layers(f: int, c: int) -> list[Any]:
        return hongtu.from_pyg(form(modules(f, c), beside))

    own = replace(model, layers=layers, reference=modules, inner=None, name=f"{model.name}, {form.__name__}")
    plain = model.reference(problem.width, problem.classes)
    if model.frozen or any(type(part).__module__.startswith(("builtins", "tests")) for part in plain):  # headers, norms
        return
    of_matrix = "adj_t" in problem.given.get("data", ())
    weighed = of_matrix and problem.weights is not None
    if weighed and any(isinstance(part, GINConv | SAGEConv) for part in plain):  # its values weigh what they sum
        return
    by_matrix = of_matrix and (form is Optional or not weighed) and bool((problem.edges[0] == problem.edges[1]).any())
    if by_matrix and any(hasattr(part, "normalize") or hasattr(part, "add_self_loops") for part in plain):
        return  # the other side takes edges, among which self-loops count otherwise
    with contextlib.suppress(hongtu.errors.InputError, RuntimeError):
        own.build_reference(problem)
        drawn.model = own
        drawn.traits.append("a forward of one's own")


def _train_with(drawn: Drawn) -> None:
    """The drawn loss, over the train mask."""
    model, loss, last = drawn.model, drawn.loss, drawn.loss.last
    if last is not None:
        layers, reference = model.layers, model.reference
        model = replace(
            model, layers=lambda f, c: [*layers(f, c), last()], reference=lambda f, c: [*reference(f, c), last()]
        )

    if isinstance(model, TypedModelOf):
        model = replace(drawn.model, spec=replace(drawn.model.spec, last=last))

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        mask = torch.from_numpy(problem.masks["train"])
        return loss.whole(out[mask], torch.from_numpy(problem.labels)[mask])

    name = getattr(loss.given, "__name__", loss.given if isinstance(loss.given, str) else type(loss.given).__name__)
    drawn.model = additions.with_loss(f"{model.name} with {name}", loss.given, whole, model)
    drawn.traits.append(f"loss {name}")


def _typed(problem: Problem, seed: int) -> Problem:
    """With types of vertices, and of edges."""
    kind, parts = problems.typed(problem.num_vertices, seed)
    rows = np.zeros((len(kind), 1 + max(problems.TYPE_WIDTHS)), dtype=np.float32)
    rows[:, 0] = kind
    for k, part in enumerate(parts):
        rows[kind == k, 1 : 1 + part.shape[1]] = part
    return replace(problems.with_edge_data(problem), features=rows, vertex_type=kind, type_features=parts)


def _fitting(rng: np.random.Generator, kinds: list[Model], problem: Problem) -> Model:
    """One that takes these widths: towers divide them."""
    for k in rng.permutation(len(kinds)):
        with contextlib.suppress(ValueError):
            kinds[k].build(problem)
            return kinds[k]
    raise AssertionError("no model takes these widths")


def _link(rng: np.random.Generator, drawn: Drawn) -> None:
    """To a loss of links."""
    edges = additions.some_edges(int(rng.integers(1, 60)), int(rng.integers(99))) % drawn.problem.num_vertices
    negatives = int(rng.integers(1, 4))
    link = hongtu.LinkLoss(edges, negatives=negatives, block=int(rng.choice([8, 64])))
    if rng.random() < 0.5:
        link = hongtu.LinkLoss(edges, decoder=additions.distance, loss=additions.hinge, negatives=negatives)
    link = replace(link, corrupt="both" if negatives == 3 else "destination")
    drawn.links = True
    drawn.model = additions.linked(f"{drawn.model.name} with links", link, drawn.model)
    drawn.traits.append("links")


def _target_edges(rng: np.random.Generator, drawn: Drawn, *, beside: bool) -> None:
    """To a loss of targets of edges, or to this and the one there was."""
    count, columns = int(rng.integers(1, 60)), drawn.problem.classes
    edges = additions.some_edges(count, int(rng.integers(99))) % drawn.problem.num_vertices
    form = str(rng.choice(["numbers", "numbers with holes", "classes", "yes or no"]))
    form = "numbers" if columns == 1 and form == "numbers with holes" else form  # an edge without any is refused
    numbers = rng.normal(size=count if form == "numbers" else (count, columns)).astype(np.float32)
    if form == "numbers with holes":
        numbers[np.add.outer(np.arange(count), np.arange(columns)) % 3 == 0] = np.nan
    targets = {
        "classes": rng.integers(0, columns, count),
        "yes or no": numbers.reshape(count, -1)[:, 0] > 0,
    }.get(form, numbers)  # type: ignore[call-overload]
    of_one = form in ("numbers", "yes or no")
    decoder = additions.distance if of_one else torch.mul
    link = hongtu.LinkLoss(edges, targets=targets, decoder=decoder, block=int(rng.choice([8, 64])))
    weight, given, of_vertices = float(rng.choice([1, 0.3])), drawn.model.loss, drawn.model.whole_loss

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        decoded, truth = decoder(*(out[end] for end in edges)), torch.from_numpy(targets)
        if form == "classes":
            loss = nn.functional.cross_entropy(decoded, truth)
        elif form == "yes or no":
            loss = nn.functional.binary_cross_entropy_with_logits(decoded, truth.double())
        else:
            known = ~truth.isnan()
            loss = nn.functional.mse_loss(decoded[known], truth[known].double())
        if not beside:
            return loss
        return weight * loss + of_vertices(out, problem, epoch)

    drawn.links = True
    given = [given, hongtu.LossTerm(link, weight=weight)] if beside else link
    drawn.model = additions.with_loss(f"{drawn.model.name} with {form} of edges", given, whole, drawn.model)
    drawn.traits += [f"{form} of edges", *["a loss of vertices beside"] * beside]


def _weigh_vertices(rng: np.random.Generator, drawn: Drawn) -> None:
    """To a loss with a weight per vertex, some of them zero."""
    weight = rng.uniform(0.1, 3, drawn.problem.num_vertices)
    weight[rng.random(len(weight)) < 0.2] = 0
    weight[drawn.problem.masks["train"].argmax()] = 1
    name = LOSSES[drawn.kind]

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        mask, target = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
        own, target = torch.from_numpy(weight)[mask], target[mask]
        if target.ndim == 1:
            return (vertex_losses(name, out[mask], target) * own).sum() / own.sum()
        module = {"mse": nn.MSELoss, "bce_with_logits": nn.BCEWithLogitsLoss}[name](reduction="none")
        known = ~target.isnan() * own.unsqueeze(1)
        return (module(out[mask], target.nan_to_num().double()) * known).sum() / known.sum()

    term = hongtu.LossTerm(name, vertex_weight=weight)
    drawn.model = additions.with_loss(f"{drawn.model.name} with vertex weights", term, whole, drawn.model)
    drawn.traits.append("vertex weights")
