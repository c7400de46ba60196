"""Models whose edges have states, ours and the same on the whole graph in plain torch."""

from __future__ import annotations

import torch
import torch_geometric.nn as pyg
from torch import nn

from hongtu import nn as hnn
from tests.models import Model


class EdgeModel(Model):
    """The reference's convolutions are called with rows, edges and states of edges, and give both."""

    def run_reference(self, modules, problem, dtype=torch.float64):
        given = {"x": torch.from_numpy(problem.features).to(dtype), "e": problem.edge_data(dtype)["edge_attr"]}
        x = "x"
        for module, header in zip(modules, modules.headers, strict=True):
            default = "x, e -> x, e" if isinstance(module, Whole) else f"{x} -> {x}"
            takes, gives = (part.split(", ") for part in (header or default).split(" -> "))
            found = [given[name] for name in takes]
            edges = (problem.edge_index,) if isinstance(module, Whole) else ()
            found = module(*found, *edges)
            given |= dict(zip(gives, found if isinstance(found, tuple) else (found,), strict=False))
            x = gives[0] if gives[0] in ("x", "y") else x
        return given[x]


class Whole(nn.Module):
    """On the whole graph."""


class MeshWhole(Whole):
    """As DeepMind's GraphNetBlock, with residuals."""

    def __init__(self, *given, **options):
        super().__init__()
        block = hnn.MeshBlock(*given, **options)
        self.edge_mlp, self.vertex_mlp, self.mean = block.edge_mlp, block.vertex_mlp, block.mean

    def forward(self, x, e, edge_index):
        source, destination = edge_index
        m = self.edge_mlp(torch.cat([e, x[source], x[destination]], dim=1))
        a = x.new_zeros(len(x), m.shape[1]).index_add(0, destination, m)
        if self.mean:
            a = a / torch.bincount(destination, minlength=len(x)).clamp(min=1).unsqueeze(1)
        return x + self.vertex_mlp(torch.cat([x, a], dim=1)), e + m


class Own(hnn.Layer):
    """A user's: states of another width than they had, several tensors in s, and softmax over in-edges of a state."""

    def __init__(self, columns, edges, out):
        super().__init__()
        self.source, self.target = nn.Linear(columns, out), nn.Linear(columns, out, bias=False)
        self.edge = nn.Linear(edges, out)

    def transform(self, h):
        return self.source(h), (self.target(h), h)

    def update_edges(self, block, z, s, e):
        return torch.tanh(self.edge(e) + block.gather(z) * block.gather_destination(s[0]))

    def aggregate(self, block, z, s):
        shares = block.softmax(block.edge_features)
        return block.segment_sum(shares * block.gather(z))

    def update(self, a, s):
        return torch.cat([a, s[1]], dim=1)


class OwnWhole(Whole):
    def __init__(self, columns, edges, out):
        super().__init__()
        self.source, self.target = nn.Linear(columns, out), nn.Linear(columns, out, bias=False)
        self.edge = nn.Linear(edges, out)

    def forward(self, x, e, edge_index):
        source, destination = edge_index
        e = torch.tanh(self.edge(e) + self.source(x)[source] * self.target(x)[destination])
        total = e.new_zeros(len(x), e.shape[1]).index_add(0, destination, e.exp())
        shares = e.exp() / total[destination]
        a = e.new_zeros(len(x), e.shape[1]).index_add(0, destination, shares * self.source(x)[source])
        return torch.cat([a, x], dim=1), e


class Pair(hnn.Layer):
    """One that gives only forward."""

    updates_edges = True

    def __init__(self, columns, edges, out):
        super().__init__()
        self.both = nn.Linear(2 * columns + edges, out)

    def forward(self, block, h):
        source, destination = block.edge_index
        e = self.both(torch.cat([h[source], h[destination], block.edge_features], dim=1)).relu()
        return block.segment_mean(e), e


class PairWhole(Whole):
    def __init__(self, columns, edges, out):
        super().__init__()
        self.both = nn.Linear(2 * columns + edges, out)

    def forward(self, x, e, edge_index):
        source, destination = edge_index
        e = self.both(torch.cat([x[source], x[destination], e], dim=1)).relu()
        a = e.new_zeros(len(x), e.shape[1]).index_add(0, destination, e)
        return a / torch.bincount(destination, minlength=len(x)).clamp(min=1).unsqueeze(1), e


class Gine(Whole, pyg.GINEConv):
    """torch_geometric's, which reads edges and gives none."""

    def __init__(self, inside):
        pyg.GINEConv.__init__(self, inside)

    def forward(self, x, e, edge_index):
        return pyg.GINEConv.forward(self, x, edge_index, e)


class Sum(nn.Module):
    def forward(self, *rows):
        return sum(rows)


class GatedWhole(Whole):
    """As GraphGPS's GatedGCNLayer, but for layer norm."""

    def __init__(self, *given, **options):
        super().__init__()
        conv = hnn.GatedGCNConv(*given, **options)
        for name, part in conv.named_children():
            setattr(self, name, part)
        self.residual, self.edge_residual = conv.residual, conv.edge_residual

    def forward(self, x, e, edge_index):
        j, i = edge_index
        e_ij = self.D(x)[i] + self.E(x)[j] + self.C(e)
        gate = torch.sigmoid(e_ij)
        total = torch.zeros_like(self.A(x)).index_add(0, i, gate * self.B(x)[j])
        out = self.A(x) + total / (torch.zeros_like(total).index_add(0, i, gate) + 1e-6)
        out, e_ij = self.norm_x(out).relu(), self.norm_e(e_ij).relu()
        return x + out if self.residual else out, e + e_ij if self.edge_residual else e_ij
