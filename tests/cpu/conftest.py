"""What every test beside torch_geometric needs."""

import pytest
import torch_geometric.nn

from hongtu.device.simulated import Fresh
from hongtu.engine import host_store

# torch_geometric writes a class's propagate() once, after the first instance: one with several aggregations has no
# fused form, which plain ones on a sparse matrix then lack.
torch_geometric.nn.SAGEConv(1, 1)


@pytest.fixture(autouse=True)
def undefined_rows_show(monkeypatch):
    """Vertex rows that nobody has written are NaN, every time."""
    monkeypatch.setattr(host_store, "Pool", Fresh)
