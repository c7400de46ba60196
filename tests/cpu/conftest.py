"""What every test beside torch_geometric needs."""

import torch_geometric.nn

# torch_geometric writes a class's propagate() once, after the first instance: one with several aggregations has no
# fused form, which plain ones on a sparse matrix then lack.
torch_geometric.nn.SAGEConv(1, 1)
