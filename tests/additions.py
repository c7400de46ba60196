"""Every layer, normalisation, connection and loss beyond the first six layers, as models to train.

Each is a model of ours, its reference, and a problem. What a row covers is read off its modules:
``tests/exact/test_additions.py`` refuses a public class that no row has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import hongtu
from hongtu import nn as hnn
from hongtu.model.edge_loss import EdgeLoss
from tests import problems
from tests.models import DEEP, SIX, H, Model, Wrapped
from tests.problems import EDGE_COLUMNS, EDGE_TYPES, TYPE_WIDTHS, Problem

Row = tuple[Model, Callable[[], Problem]]


def of(make: Callable[..., list], name: str, **options: object) -> Model:
    """From (library, features, classes) to a list of its modules; torch's own stand in both lists."""
    return Model(name, lambda f, c: make(hnn, f, c), lambda f, c: make(pyg, f, c), **options)


# ------------------------------------------------------------------------------------------------------- normalisations


class Standardised(hnn.Normalization):
    """One of the user's own."""

    def normalize(self, x, mean, var):
        return (x - mean.to(x.dtype)) / (1 + var.sum().sqrt().to(x.dtype))


class StandardisedWhole(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / (1 + x.var(0, correction=0).sum().sqrt())


def between(lib, f, c):
    """Normalisations between three layers."""
    return [
        lib.GCNConv(f, H), nn.BatchNorm1d(H), nn.ReLU(), lib.SAGEConv(H, H), lib.BatchNorm(H), nn.ReLU(),
        lib.GATConv(H, c),
    ]  # fmt: skip


def everywhere(lib, f, c):
    """First and last in the list, several in a row, between row-wise modules."""
    own = Standardised if lib is hnn else StandardisedWhole
    return [
        lib.GraphNorm(f), lib.GCNConv(f, 4), lib.PairNorm(), lib.GraphNorm(4), nn.ELU(), nn.Linear(4, H),
        lib.LayerNorm(H), nn.Linear(H, H), lib.SAGEConv(H, c), lib.PairNorm(2.0, True), own(),
        lib.LayerNorm(c, affine=False), lib.LayerNorm(c, mode="node"),
    ]  # fmt: skip


def inside(lib, f, c):
    """Inside of layers, two of them in one."""
    return [lib.GENConv(f, H, num_layers=3, learn_t=True, bias=True), nn.ELU(), lib.GENConv(H, c, aggr="add")]


NORMS = (of(between, "norms-between"), of(everywhere, "norms-everywhere"), of(inside, "norms-inside"))


# ---------------------------------------------------------------------------------------------------------- connections


class Sum(nn.Module):
    """Any number of rows."""

    def forward(self, *rows):
        return sum(rows)


def gcnii(lib, f, c):
    """Initial residual and identity map."""
    return [
        (nn.Linear(f, H), "x -> x0"), nn.ReLU(),
        (lib.GCN2Conv(H, 0.1, 0.5, 1), "x0, x0 -> x"), nn.ReLU(),
        (lib.GCN2Conv(H, 0.2, 0.5, 2, shared_weights=False), "x, x0 -> x"), nn.ReLU(),
        (lib.GCN2Conv(H, 0.3, normalize=False), "x, x0 -> x"), nn.Linear(H, c),
    ]  # fmt: skip


def jumping(lib, f, c):
    """BatchNorm and every kind of jumping knowledge: earlier layers' rows are read by later layers and at the end."""
    return [
        (lib.SAGEConv(f, H), "x -> x1"), nn.BatchNorm1d(H), nn.ReLU(),
        (lib.GATConv(H, H, residual=True), "x1 -> x2"), nn.ReLU(),
        (lib.SAGEConv(H, H), "x2 -> x3"), (lib.JumpingKnowledge("max"), "x1, x2, x3 -> most"),
        (lib.JumpingKnowledge("lstm", H, 3), "x1, x2, x3 -> weighed"),
        (lib.JumpingKnowledge("cat"), "most, x2, weighed -> x"), nn.Linear(3 * H, c),
    ]  # fmt: skip


def dense(lib, f, c):
    """The features and every layer's rows reach all later ones; the last is a residual around a normalisation. What
    works in place (ours) leaves the rows that others read alone."""
    inplace, knowledge = lib is hnn, lib.JumpingKnowledge
    return [
        (lib.GCNConv(f, 4), "x -> a"), nn.Tanh(), (knowledge("cat"), "x, a -> h"), (lib.SAGEConv(f + 4, 4), "h -> b"),
        (nn.ReLU(inplace=inplace), "b -> r"), (knowledge("cat"), "x, a, r -> h"),
        (lib.GINConv(nn.Linear(f + 8, H)), "h -> g"), (nn.BatchNorm1d(H), "g -> n"), (Sum(), "n, g, n -> y"),
        (lib.SAGEConv(H, H), "y -> y"), (Sum(), "g, y -> y"), (nn.ELU(inplace=inplace), "a -> e"),
        (knowledge("cat"), "y, b, e -> y"), nn.Linear(H + 8, c),
    ]  # fmt: skip


CONNECTIONS = (of(gcnii, "gcnii"), of(jumping, "jumping"), of(dense, "dense"))


# ----------------------------------------------------------------------------------------------------------- aggregates


class Sign(nn.Module):
    """[h, B h, ..., B^K h], without self-loops."""

    def __init__(self, K: int) -> None:
        super().__init__()
        self.hop, self.K = pyg.APPNP(1, 0.0, add_self_loops=False), K

    def forward(self, h, edge_index, edge_weight=None):
        hops = [h]
        for _ in range(self.K):
            hops.append(self.hop(hops[-1], edge_index, edge_weight))
        return torch.cat(hops, dim=1)


DEGREES = torch.tensor([9, 7, 2, 0, 1, 3])
PNA = {"aggregators": ["mean", "std", "max", "min"], "scalers": ["identity", "amplification"], "deg": DEGREES}


def two(name: str, first: dict, second: dict, inner: Callable[[], nn.Module] = nn.ReLU) -> Model:
    """Two layers of one kind by their options, where the heads of the first are side by side."""

    def layers(lib, f, c):
        kind = getattr(lib, name)
        return [kind(f, H, **first), inner(), kind(H * first.get("heads", 1), c, **second)]

    return of(layers, name)


def learned(lib, f, c):
    """Aggregates with parameters, alone and several at once."""
    aggr = hnn if lib is hnn else pyg.aggr
    several = [aggr.SoftmaxAggregation(learn=True), aggr.VarAggregation(), aggr.StdAggregation()]
    return [lib.SAGEConv(f, H, aggr=several), nn.ReLU(), lib.SAGEConv(H, c, aggr=aggr.PowerMeanAggregation(learn=True))]


def hops(lib, f, c):
    """Constant ones first, then some that depend on what is trained."""
    return [lib.SGConv(f, H, K=3), nn.ReLU(), lib.SGConv(H, c, K=2, add_self_loops=False), lib.APPNP(3, 0.2)]


def sign(lib, f, c):
    return [hnn.SIGN(2) if lib is hnn else Sign(2), nn.Linear(3 * f, c)]


def polynomials(lib, f, c):
    return [lib.SSGConv(f, H, 0.2), nn.ReLU(), lib.TAGConv(H, c, K=2)]


def chebyshev(lib, f, c):
    """Degrees of sources beside those of destinations."""
    return [lib.ChebConv(f, H, 3), nn.ReLU(), lib.ChebConv(H, c, 2, normalization="rw", bias=False)]


def mixed_hops(lib, f, c):
    return [lib.MixHopConv(f, H, [1, 0]), nn.ReLU(), lib.MixHopConv(2 * H, c, [2], add_self_loops=False, bias=False)]


def recurrent(lib, f, c):
    return [lib.ARMAConv(f, H, 2, 2, act=nn.Tanh()), lib.GatedGraphConv(H + 2, 1), nn.Linear(H + 2, c)]


AGGREGATES = (
    two("SAGEConv", {"aggr": "max", "project": True}, {"aggr": ["min", "std", "mul"]}),
    of(learned, "learned"),
    two("GraphConv", {"aggr": "mean"}, {"aggr": "max"}),
    two("GENConv", {"norm": "layer", "learn_t": True}, {"norm": None, "aggr": "powermean", "p": 2.0, "learn_p": True}),
    two("GATv2Conv", {"heads": 2}, {"heads": 3, "concat": False, "residual": True}, nn.ELU),
    two("TransformerConv", {"heads": 2, "beta": True}, {"heads": 3, "concat": False}),
    two("PNAConv", PNA | {"towers": 5}, PNA | {"pre_layers": 2}),
    of(hops, "hops"),
    of(polynomials, "polynomials"),
    of(chebyshev, "chebyshev"),
    of(mixed_hops, "mixed hops"),
    of(recurrent, "recurrent"),
    of(sign, "sign"),
)


# ---------------------------------------------------------------------------------------------- edges, typed vertices

P, T = EDGE_COLUMNS, EDGE_TYPES


def mlp(columns: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, 7), nn.ReLU(), nn.Linear(7, out))


def edge_gat(lib, f, c):
    first = lib.GATConv(f, H, heads=3, edge_dim=P)
    return [first, nn.ELU(), lib.GATConv(3 * H, c, heads=2, concat=False, residual=True, fill_value=0.7, edge_dim=P)]


def edge_gatv2(lib, f, c):
    first = lib.GATv2Conv(f, H, heads=2, concat=False, edge_dim=P)
    return [first, nn.ReLU(), lib.GATv2Conv(H, c, 2, False, fill_value=0.7, edge_dim=P)]


def edge_transformer(lib, f, c):
    first = lib.TransformerConv(f, H, 2, False, beta=True, edge_dim=P)
    return [first, nn.ReLU(), lib.TransformerConv(H, c, edge_dim=P)]


def edge_pna(lib, f, c):
    options = {"aggregators": ["mean", "std", "max"], "scalers": ["identity", "attenuation"], "deg": DEGREES}
    first = lib.PNAConv(f, 6, **options, edge_dim=P)
    return [first, nn.ReLU(), lib.PNAConv(6, c, **options, pre_layers=2, towers=3, edge_dim=P)]


def edge_gen(lib, f, c):
    first = lib.GENConv(f, P, norm=None, edge_dim=P)
    return [first, nn.ReLU(), lib.GENConv(P, c, aggr="add", norm="layer", edge_dim=P)]


def gine(lib, f, c):
    return [lib.GINEConv(mlp(f, H), train_eps=True, edge_dim=P), nn.ReLU(), lib.GINEConv(mlp(H, c), 0.3, edge_dim=P)]


def nnconv(lib, f, c):
    first = lib.NNConv(f, H, mlp(P, f * H))
    return [first, nn.ReLU(), lib.NNConv(H, c, mlp(P, H * c), aggr="mean", root_weight=False)]


def gmm(lib, f, c):
    return [lib.GMMConv(f, H, dim=P, kernel_size=2), nn.ReLU(), lib.GMMConv(H, c, dim=P, kernel_size=3, aggr="add")]


def cg(lib, f, c):
    return [lib.CGConv(f, P), nn.ReLU(), lib.CGConv(f, P, aggr="mean"), nn.Linear(f, c)]


def rgcn(lib, f, c):
    first = lib.RGCNConv(f, 6, T)
    blocks = lib.RGCNConv(6, 6, T, num_blocks=3)
    return [first, nn.ReLU(), blocks, nn.ReLU(), lib.RGCNConv(6, c, T + 2, num_bases=2, aggr="add")]


class TypedReference(pyg.HeteroDictLinear):
    """Rows of an artifact to a dictionary and back."""

    def __init__(self, widths: tuple[int, ...], out: int) -> None:
        super().__init__({str(k): width for k, width in enumerate(widths)}, out)
        self.widths = widths

    def forward(self, rows):
        kind = rows[:, 0].long()
        given = {str(k): rows[kind == k, 1 : 1 + width] for k, width in enumerate(self.widths)}
        found = torch.cat([part for _, part in sorted(super().forward(given).items())])
        return found[kind.argsort(stable=True).argsort()]


def typed(lib, f, c):
    first = hnn.TypedLinear(TYPE_WIDTHS, 6) if lib is hnn else TypedReference(TYPE_WIDTHS, 6)
    return [first, lib.RGCNConv(6, H, T, num_bases=2), nn.ReLU(), lib.RGCNConv(H, c, T)]


class WrappedWithEdgeData(Wrapped):
    def forward(self, h, edge_index, edge_attr, edge_type):
        given = {"edge_type": edge_type} if isinstance(self.conv, pyg.RGCNConv) else {"edge_attr": edge_attr}
        return self.conv(h, edge_index, **given)


def wrapped(lib, f, c):
    wrap = hnn.PyGLayer if lib is hnn else WrappedWithEdgeData
    first = wrap(pyg.GENConv(f, H, norm=None, edge_dim=P))
    return [first, nn.ReLU(), wrap(pyg.RGCNConv(H, H, T, aggr="max")), wrap(pyg.TransformerConv(H, c, edge_dim=P))]


class Tides(hnn.Layer):
    """Two outputs: how far a vertex is from its neighbours, and what flows in, through channels of learned width.

    An edge's flow is tanh(A h_s) times strength * sigmoid(B e), with a strength of its own and its features e. Written
    from docs/layers.md alone, all in ``forward(block, h)``.
    """

    uses_edge_features = True

    def __init__(self, columns_in: int, columns_out: int, num_edges: int) -> None:
        super().__init__()
        self.a = nn.Linear(columns_in, columns_out)
        self.b = nn.Linear(P, columns_out)
        self.root = nn.Linear(columns_in, columns_out)
        self.strength = nn.Parameter(torch.linspace(-1, 1, num_edges))

    def forward(self, block, h):
        strength = self.strength[block.edge_ids].unsqueeze(1)
        flow = block.gather(torch.tanh(self.a(h))) * strength * torch.sigmoid(self.b(block.edge_features))
        own = h[: block.num_dst]
        distance = (block.gather(h) - block.gather_destination(own)).square()
        return torch.cat([block.segment_mean(distance), self.root(own) + block.segment_sum(flow)], dim=1)


class Parted(hnn.Layer):
    """Takes its two inputs apart: the first says how much of the second passes."""

    def __init__(self, first: int, columns_in: int, columns_out: int) -> None:
        super().__init__()
        self.first = first
        self.gate, self.lin = nn.Linear(first, columns_in - first), nn.Linear(columns_in - first, columns_out)

    def forward(self, block, h):
        distance, tide = h[:, : self.first], h[:, self.first :]
        return self.lin(block.sum(torch.sigmoid(self.gate(distance)) * tide))


class TidesWhole(Tides):
    """The same on the whole graph, in plain torch."""

    def forward(self, h, edge_index, edge_attr):
        source, destination = edge_index
        strength = torch.empty_like(self.strength)
        strength[destination.argsort(stable=True)] = self.strength  # edge k of docs/layers.md
        flow = torch.tanh(self.a(h))[source] * strength.unsqueeze(1) * torch.sigmoid(self.b(edge_attr))
        distance = (h[source] - h[destination]).square()
        count = torch.bincount(destination, minlength=len(h)).clamp(min=1).unsqueeze(1)
        mean = torch.zeros_like(h).index_add(0, destination, distance) / count
        return torch.cat([mean, self.root(h).index_add(0, destination, flow)], dim=1)


class PartedWhole(Parted):
    def forward(self, h, edge_index):
        distance, tide = h[:, : self.first], h[:, self.first :]
        passed = torch.sigmoid(self.gate(distance)) * tide
        return self.lin(torch.zeros_like(passed).index_add(0, edge_index[1], passed[edge_index[0]]))


def tides(lib, f, c):
    """A kind of layer that nobody thought of, with parameters on edges."""
    flows, parts = (Tides, Parted) if lib is hnn else (TidesWhole, PartedWhole)
    edges = problems.edge_data().edges.shape[1]
    return [flows(f, 4, edges), parts(f, f + 4, 5), nn.ReLU(), flows(5, c, edges), nn.Linear(5 + c, c)]


EDGES = (
    of(edge_gat, "edge-gat"), of(edge_gatv2, "edge-gatv2"), of(edge_transformer, "edge-transformer"),
    of(edge_pna, "edge-pna"), of(edge_gen, "edge-gen"), of(gine, "gine"), of(nnconv, "nnconv"), of(gmm, "gmm"),
    of(cg, "cg"), of(rgcn, "rgcn"), of(wrapped, "wrapped"), of(tides, "tides"),
)  # fmt: skip
TYPED = of(typed, "typed")


# --------------------------------------------------------------------------------------------------------------- losses

GCN, GAT = SIX[0], SIX[4]
THREE = torch.tensor([0.5, 2.0, 0.25])
FOUR = torch.tensor([0.5, 2.0, 0.25, 3.0])
TWO = torch.tensor([0.5, 3.0])
SEED = 3


def with_loss(name: str, loss: object, whole: Callable[[Tensor, Problem, int], Tensor], model: Model = GCN) -> Model:
    return replace(model, name=name, loss=loss, whole_loss=whole)


def masked(loss: nn.Module) -> Callable[[Tensor, Problem, int], Tensor]:
    """The loss of the whole output as the torch module computes it on the train rows."""

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        mask, target = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
        target = target.double() if target.is_floating_point() else target
        return loss.double()(out[mask], target[mask])  # weights, too

    return whole


def entropy(out: Tensor, target: Tensor | None) -> Tensor:
    """A loss that needs no label."""
    return -(out.log_softmax(1) * out.softmax(1)).sum(1)


LOSSES: dict[str, tuple[nn.Module, Callable[[], Problem]]] = {
    "class weights": (nn.CrossEntropyLoss(THREE), problems.awkward),
    "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.2), problems.awkward),
    "weights and smoothing": (nn.CrossEntropyLoss(THREE, label_smoothing=0.1), problems.awkward),
    "sum of both": (nn.CrossEntropyLoss(THREE, label_smoothing=0.1, reduction="sum"), problems.awkward),
    "a class that does not count": (nn.CrossEntropyLoss(THREE, ignore_index=1), problems.awkward),
    "positive weights": (nn.BCEWithLogitsLoss(pos_weight=FOUR), problems.multi_label),
    "weights of labels": (nn.BCEWithLogitsLoss(FOUR, pos_weight=2 * FOUR, reduction="sum"), problems.multi_label),
    "classes with probabilities": (nn.CrossEntropyLoss(FOUR), problems.multi_label),
    "mse": (nn.MSELoss(), problems.regression),
    "sum of l1": (nn.L1Loss(reduction="sum"), problems.regression),
    "huber": (nn.HuberLoss(delta=0.3), problems.regression),
    "smooth l1": (nn.SmoothL1Loss(beta=0.4), problems.regression),
}


def all_of(name: str, problem: Callable[[], Problem]) -> Row:
    """A weighted sum of all the losses above that fit a problem's labels."""
    fitting = [loss for loss, where in LOSSES.values() if where is problem]
    terms = [hongtu.LossTerm(loss, weight=0.3 + 0.2 * k) for k, loss in enumerate(fitting)]

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        return sum(term.weight * masked(term.loss)(out, problem, epoch) for term in terms)

    return with_loss(name, terms, whole), problem


@functools.cache
def vertex_weights() -> np.ndarray:
    weights = np.random.default_rng(5).uniform(0, 3, problems.awkward().num_vertices)
    weights[::7] = 0
    return weights


@functools.cache
def own_mask() -> np.ndarray:
    return np.random.default_rng(6).random(problems.awkward().num_vertices) < 0.3


def over_masks() -> Model:
    """Terms over the train mask, the validation mask and one of its own, with weights of vertices; frozen layers."""
    weights, mask = vertex_weights(), own_mask()
    terms = [
        nn.CrossEntropyLoss(THREE, label_smoothing=0.1),
        hongtu.LossTerm(entropy, weight=0.3, mask="val"),
        hongtu.LossTerm("cross_entropy", weight=0.5, vertex_weight=weights),
        hongtu.LossTerm(nn.CrossEntropyLoss(THREE), weight=-0.2, mask=mask, vertex_weight=weights[::-1]),
        hongtu.LossTerm(entropy, weight=0.1, mask=mask),
    ]

    def weighed(out, target, chosen, weight, of_class=None):
        weight = torch.from_numpy(weight.copy())[chosen]
        losses = nn.functional.cross_entropy(out[chosen], target[chosen], reduction="none", weight=of_class)
        counts = weight if of_class is None else weight * of_class[target[chosen]]
        return (losses * weight).sum() / counts.sum()

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        train, val, own = (torch.from_numpy(m) for m in (problem.masks["train"], problem.masks["val"], mask))
        target = torch.from_numpy(problem.labels)
        first = nn.functional.cross_entropy(out[train], target[train], THREE.double(), label_smoothing=0.1)
        third = weighed(out, target, train, weights)
        fourth = weighed(out, target, own, weights[::-1], THREE.double())
        spread = 0.3 * entropy(out[val], None).mean() + 0.1 * entropy(out[own], None).mean()
        return first + spread + 0.5 * third - 0.2 * fourth

    return with_loss("over-masks", terms, whole)


def by_destination(edges: np.ndarray) -> np.ndarray:
    """A graph's own edges in the order of their ids."""
    return edges[:, np.argsort(edges[1], kind="stable")]


def hinge(positive: Tensor, negative: Tensor) -> Tensor:
    """[B]: how far every negative is above the edge less a margin."""
    return (0.3 + negative - positive.unsqueeze(1)).relu().sum(1)


def distance(source: Tensor, destination: Tensor) -> Tensor:
    return -(source - destination).square().sum(1)


def linked(name: str, link: hongtu.LinkLoss, model: Model) -> Model:
    """Pairs of vertices, with the negatives that one chunk samples."""

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        edges = by_destination(problem.edges) if link.edges is None else np.asarray(link.edges)
        sampler = EdgeLoss(link, problems.prepare(problem, 1, 1))
        negative = torch.from_numpy(sampler.negatives(np.arange(edges.shape[1]), SEED, epoch))
        source, destination = torch.from_numpy(edges)
        positive = link.decoder(out[source], out[destination])
        heads, tails = negative if negative.ndim == 3 else (source.unsqueeze(1).expand_as(negative), negative)
        columns = zip(heads.T, tails.T, strict=True)
        others = torch.stack([link.decoder(out[first], out[second]) for first, second in columns], dim=1)
        if link.loss is not hongtu.model.link_loss.logistic:
            return link.loss(positive, others).mean()
        scores = torch.cat([positive.unsqueeze(1), others], dim=1)
        truth = torch.zeros_like(scores).index_fill(1, torch.tensor([0]), 1)
        return nn.functional.binary_cross_entropy_with_logits(scores, truth)

    return with_loss(name, link, whole, model)


@functools.cache
def some_edges(count: int = 90, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (2, count))


LINKS = (
    linked("own-links", hongtu.LinkLoss(negatives=3, block=64), DEEP),
    linked(
        "given-links", hongtu.LinkLoss(some_edges(), decoder=distance, loss=hinge, negatives=2, corrupt="both"), GAT
    ),
)


# --------------------------------------------------------------------------------------------------------------- frozen

THREE_GCN = Model(
    "three-gcn",
    lambda f, c: [hnn.GCNConv(f, H, activation="relu"), hnn.GCNConv(H, H, activation="relu"), hnn.GCNConv(H, c)],
    lambda f, c: [pyg.GCNConv(f, H), pyg.GCNConv(H, H), pyg.GCNConv(H, c)],
    torch.relu,
)


def frozen(model: Model, *layers: int) -> Model:
    name = f"{model.name}-without-{'-'.join(map(str, layers))}"
    return Model(name, model.layers, model.reference, model.inner, frozen=layers)


FROZEN = (frozen(DEEP, 0, 1), frozen(THREE_GCN, 1), frozen(DEEP, 2))


def rows() -> Iterator[Row]:
    """Everything, each with the problem that it trains on."""
    yield from ((model, problems.awkward) for model in (*NORMS, *CONNECTIONS, *AGGREGATES))
    yield from ((model, problems.edge_data) for model in EDGES)
    yield TYPED, problems.typed_vertices
    yield all_of("losses-of-classes", problems.awkward)
    yield all_of("losses-of-labels", problems.multi_label)
    yield all_of("losses-of-numbers", problems.regression)
    yield from ((model, problems.awkward) for model in (over_masks(), *LINKS, *FROZEN))


ROWS = tuple(rows())
