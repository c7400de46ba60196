"""Models of the recipes, as `hongtu train --model experiments.recipes.models:NAME` takes them.

Legend: R rows, S sources, D destinations, E edges, H heads, K channels per head, C classes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu, one_hot

from hongtu.graph.artifact import Artifact
from hongtu.model.wiring import Entry
from hongtu.nn import SIGN, Dropout, GCN2Conv, GCNConv, Layer, SAGEConv, SGConv

EPSILON = 1 - math.log(2)


def rows_between(width: int, dropout: float, norm: bool) -> list[Entry]:
    """What stands between two layers."""
    return [*([nn.BatchNorm1d(width)] if norm else []), nn.ReLU(), Dropout(dropout)]


def stack(artifact: Artifact, layer: Any, norm: bool) -> list[Entry]:
    """Three layers, as OGB's baselines have them."""
    first, last = layer(artifact.feature_width, 256), layer(256, artifact.num_classes)
    return [first, *rows_between(256, 0.5, norm), layer(256, 256), *rows_between(256, 0.5, norm), last]


arxiv_gcn = partial(stack, layer=GCNConv, norm=True)
arxiv_sage = partial(stack, layer=SAGEConv, norm=True)
products_gcn = partial(stack, layer=GCNConv, norm=False)
products_sage = partial(stack, layer=SAGEConv, norm=False)


class EdgeMean(Layer):
    """The mean features of a vertex's in-edges, in place of its own."""

    uses_edge_features = True

    def transform(self, h: Tensor) -> tuple[Tensor, None]:
        return h[:, :1], None

    def aggregate(self, block: Any, z: Tensor, s: None) -> Tensor:
        return block.segment_mean(block.edge_features)


def proteins(artifact: Artifact, layer: Any) -> list[Entry]:
    """Three layers on what the edges say."""
    edges, width = artifact.edge_feature_width, 256
    last = layer(width, artifact.num_classes)
    return [EdgeMean(), layer(edges, width), nn.ReLU(), layer(width, width), nn.ReLU(), last]


proteins_gcn = partial(proteins, layer=GCNConv)
proteins_sage = partial(proteins, layer=SAGEConv)


def papers_sgc(artifact: Artifact) -> list[Entry]:
    """Three hops, then three linear maps."""
    hops = SGConv(artifact.feature_width, 256, K=3)
    rest = [nn.Linear(256, 256), *rows_between(256, 0.5, norm=True), nn.Linear(256, artifact.num_classes)]
    return [hops, *rows_between(256, 0.5, norm=True), *rest]


def papers_sign(artifact: Artifact) -> list[Entry]:
    """Three hops side by side, then three linear maps."""
    rest = [nn.Linear(512, 512), *rows_between(512, 0.3, norm=True), nn.Linear(512, artifact.num_classes)]
    return [SIGN(3), nn.Linear(4 * artifact.feature_width, 512), *rows_between(512, 0.3, norm=True), *rest]


def tuned_gcn(artifact: Artifact) -> list[Entry]:
    """Five layers of width 512, each beside a linear map."""
    entries: list[Entry] = [Dropout(0.15)]
    width = artifact.feature_width
    for _ in range(5):
        beside = [(GCNConv(width, 512), "x -> a"), (nn.Linear(width, 512), "x -> b")]
        entries += [*beside, (torch.add, "a, b -> x"), *rows_between(512, 0.5, norm=True)]
        width = 512
    return [*entries, nn.Linear(512, artifact.num_classes)]


class DenseGCN2Conv(GCN2Conv):
    """GCNII's layer on ogbn-arxiv: h' = P (h + h W_1) + alpha x_0 + x_0 W_2."""

    def __init__(self, channels: int, alpha: float) -> None:
        super().__init__(channels, alpha, shared_weights=False)

    def transform(self, h: Tensor) -> tuple[Tensor, Any]:
        return self.spread(torch.addmm(h, h, self.weight1))

    def update(self, a: Tensor, s: Any, x_0: Tensor) -> Tensor:  # type: ignore[override]
        return a + self.alpha * x_0 + x_0 @ self.weight2


def arxiv_gcnii(artifact: Artifact) -> list[Entry]:
    """Sixteen layers of width 256."""
    entries: list[Entry] = [Dropout(0.1), (nn.Linear(artifact.feature_width, 256), "x -> x0"), nn.ReLU()]
    entries.append((nn.Identity(), "x0 -> x"))
    for _ in range(16):
        layer = [(Dropout(0.1), "x -> h"), (DenseGCN2Conv(256, 0.5), "h, x0 -> h"), nn.BatchNorm1d(256), nn.ReLU()]
        entries += [*layer, (torch.add, "h, x -> x")]
    return [*entries, Dropout(0.1), nn.Linear(256, artifact.num_classes)]


class NormalizedGATConv(Layer):
    """Attention that looks at the source alone, between D^1/2 and D^-1/2, beside a linear map of the destination.

    Self-loops are edges of the graph. An edge is dropped before the softmax.
    """

    uses_statistics = True

    def __init__(self, in_channels: int, out_channels: int, heads: int, *, mean: bool, edge_drop: float) -> None:
        super().__init__()
        self.heads, self.out_channels, self.mean = heads, out_channels, mean
        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.residual = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.edge_drop = Dropout(edge_drop)
        for weight in self.parameters():
            nn.init.xavier_normal_(weight, gain=nn.init.calculate_gain("relu"))

    def _root_degree_R1(self) -> Tensor:
        return self.rows.statistics[:, :1].clamp(min=1).sqrt()

    def transform(self, h: Tensor) -> tuple[Tensor, Tensor]:
        z = self.lin(h) / self._root_degree_R1()
        logits_RH = (z.view(-1, self.heads, self.out_channels) * self.att).sum(2)
        return torch.cat([z, logits_RH], dim=1), self.residual(h)

    def aggregate(self, block: Any, z: Tensor, s: Tensor) -> Tensor:
        width = self.heads * self.out_channels
        logits_EH = leaky_relu(block.gather(z[:, width:]), 0.2)
        kept_E1 = self.edge_drop(logits_EH.new_ones(len(logits_EH), 1), block.edge_ids) > 0
        share_EH = block.softmax(logits_EH.masked_fill(~kept_E1, -1e4)) * kept_E1
        return block.attend(z, share_EH, width)

    def update(self, a: Tensor, s: Tensor) -> Tensor:
        h = a * self._root_degree_R1() + s
        return h.view(-1, self.heads, self.out_channels).mean(1) if self.mean else h


class Bias(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Alone(Layer):
    """Every vertex by itself: what its neighbours say is not heard."""

    reduce = "sum"

    def transform(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return h[:, :1], h

    def update(self, a: Tensor, s: Tensor) -> Tensor:
        return s


class Labels(Alone):
    """[h | the label as one of C, where it is shown | whether it would be]: in training half of the train vertices show
    theirs, others in each epoch; in evaluation all of them."""

    def __init__(self, artifact: Artifact) -> None:
        super().__init__()
        train, self.classes = artifact.masks["train"], artifact.num_classes
        labels = torch.full((artifact.num_vertices,), self.classes)
        ids = torch.from_numpy(artifact.original_id[train].astype(np.int64))
        labels[ids] = torch.from_numpy(np.array(artifact.labels[train]))
        self.register_buffer("labels", labels)
        self.hidden = Dropout(0.5)

    def update(self, a: Tensor, s: Tensor) -> Tensor:
        shown = (self.hidden(s.new_ones(len(s), 1)) > 0).to(s.dtype)
        own = one_hot(self.labels[self.rows.ids], self.classes + 1)[:, :-1] * shown
        return torch.cat([s, own, shown], dim=1)


def arxiv_gat(artifact: Artifact) -> list[Entry]:
    """Three layers of three heads, on features and labels. The output has one column more than there are classes:
    whether the label was shown, for ``of_hidden`` and ``accuracy``."""
    width, classes = artifact.feature_width + artifact.num_classes, artifact.num_classes
    entries: list[Entry] = [
        (Labels(artifact), "x -> both"), (lambda both: both[:, -1:], "both -> shown"),
        (lambda both: both[:, :-1], "both -> x"), Dropout(0.1),
    ]  # fmt: skip
    for _ in range(2):
        layer = NormalizedGATConv(width, 250, 3, mean=False, edge_drop=0.1)
        entries += [layer, *rows_between(750, 0.75, norm=True)]
        width = 750
    entries += [NormalizedGATConv(width, classes, 1, mean=True, edge_drop=0.1), Bias(classes)]
    return [*entries, (lambda x, shown: torch.cat([x, shown], dim=1), "x, shown -> x")]


def of_hidden(out: Tensor, target: Tensor) -> Tensor:
    """Losses [T] of the vertices whose label was hidden, half of them, by a logarithm that forgives outliers."""
    loss = cross_entropy(out[:, :-1], target, reduction="none")
    return 2 * (1 - out[:, -1].detach()) * (torch.log(EPSILON + loss) - math.log(EPSILON))


def accuracy(out: Tensor, target: Tensor) -> float:
    """Of the classes' columns."""
    return float((out[:, :-1].argmax(1) == target).double().mean())


def linear(artifact: Artifact) -> list[Entry]:
    """A linear map of the features, for Correct and Smooth behind it."""
    return [Alone(), nn.Linear(artifact.feature_width, artifact.num_classes)]


def physics_gcn(artifact: Artifact) -> list[Entry]:
    """No dropout of the features, which are sparse."""
    return [GCNConv(artifact.feature_width, 64), nn.ReLU(), Dropout(0.8), GCNConv(64, artifact.num_classes)]
