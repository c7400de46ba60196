"""The same models in DGL, the fastest in-memory system on CPUs beside ours, with torch_geometric's parameters."""

from __future__ import annotations

import contextlib
import io
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

with contextlib.redirect_stderr(io.StringIO()):  # it says where its settings are
    import dgl
    import dgl.nn.pytorch as dgl_nn


def make_graph(model: str, edges: Tensor, vertices: int) -> dgl.DGLGraph:
    """The graph as a model's layers take it, with self-loops instead of its own where torch_geometric's add them.

    Args:
        edges: int64 [2, E].
    """
    if model in ("gcn", "gat"):
        edges = edges[:, edges[0] != edges[1]]
        edges = torch.cat([edges, torch.arange(vertices, device=edges.device).expand(2, -1)], dim=1)
    graph = dgl.graph(tuple(edges.int()), num_nodes=vertices)
    graph.create_formats_()  # now, not in the first epoch
    return graph


class GCN(nn.Module):
    """``GCNConv`` as ``dgl.nn.GraphConv`` computes it, which takes two degrees where directed graphs need one; the
    narrower side of the linear map is summed."""

    def __init__(self, width: int, columns: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, columns, bias=False)
        self.bias = nn.Parameter(torch.empty(columns))
        self._scale: Tensor | None = None

    def forward(self, h: Tensor, graph: Any) -> Tensor:
        if self._scale is None:
            self._scale = graph.in_degrees().to(h.dtype).rsqrt()[:, None]
        first = self.lin.out_features < self.lin.in_features
        h = self.lin(h) if first else h
        h = self.sum_sources(graph, h * self._scale) * self._scale
        return (h if first else self.lin(h)) + self.bias

    def sum_sources(self, graph: Any, h: Tensor) -> Tensor:
        """Of every vertex the sum of its in-edges' sources."""
        return dgl.ops.copy_u_sum(graph, h)


class SAGE(dgl_nn.SAGEConv):
    """``SAGEConv`` with the mean."""

    NAMES: ClassVar = {
        "fc_neigh.weight": "lin_l.weight",
        "fc_self.bias": "lin_l.bias",
        "fc_self.weight": "lin_r.weight",
    }

    def __init__(self, width: int, columns: int) -> None:
        super().__init__(width, columns, "mean")

    def forward(self, h: Tensor, graph: Any) -> Tensor:
        return super().forward(graph, h)


class GAT(dgl_nn.GATConv):
    """``GATConv`` of one head."""

    NAMES: ClassVar = {"fc.weight": "lin.weight", "attn_l": "att_src", "attn_r": "att_dst", "bias": "bias"}

    def __init__(self, width: int, columns: int) -> None:
        super().__init__(width, columns, num_heads=1)

    def forward(self, h: Tensor, graph: Any) -> Tensor:
        return super().forward(graph, h).flatten(1)


LAYERS: dict[str, Any] = {"gcn": GCN, "sage": SAGE, "gat": GAT}


def load(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Give a layer the parameters of its torch_geometric namesake."""
    names = getattr(module, "NAMES", {name: name for name in state})
    module.load_state_dict({name: state[theirs].view_as(module.state_dict()[name]) for name, theirs in names.items()})
