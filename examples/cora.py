# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""Cora in ten lines: a torch_geometric model, trained on the whole graph in 4 MiB of device memory.

``Planetoid`` downloads the graph. Any other ``Data`` of one graph goes the same way.
"""

import torch
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCN

import hongtu

data = Planetoid("data", "Cora")[0]
artifact = hongtu.preprocess_graph(data=data, artifact="cora", partitions=1, chunks=8, normalize_features=True)
model = GCN(data.num_features, 16, num_layers=2, out_channels=7, dropout=0.5)
trainer = hongtu.Trainer(
    artifact,
    hongtu.from_pyg(model),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4),
    device_memory="4MiB",
)
trainer.fit(epochs=200)
print(trainer.evaluate())
hongtu.to_pyg(trainer.model, model)  # the trained weights, back in the torch_geometric model
