"""The graph of these examples: like citations, with communities; made here, so that nothing is downloaded."""

import torch
from torch_geometric.data import Data
from torch_geometric.utils import stochastic_blockmodel_graph


def citation(vertices: int = 2000, classes: int = 4, columns: int = 16) -> Data:
    """Vertices link mostly within their class, and their features tell a little of it."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    size = vertices // classes
    inside, between = 8 / size, 1 / size
    links = torch.full((classes, classes), between).fill_diagonal_(inside)
    edge_index = stochastic_blockmodel_graph([size] * classes, links)
    y = torch.arange(classes).repeat_interleave(size)
    x = torch.randn(vertices, columns, generator=generator)
    x[:, :classes] += torch.nn.functional.one_hot(y)
    split = torch.rand(vertices, generator=generator)
    return Data(
        x=x, edge_index=edge_index, y=y,
        train_mask=split < 0.6, val_mask=(split >= 0.6) & (split < 0.8), test_mask=split >= 0.8,
    )  # fmt: skip
