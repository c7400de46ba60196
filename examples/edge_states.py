# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""Edge states: MeshGraphNet's steps on a mesh, in which every edge has features that each layer updates."""

import torch
from torch.nn import LayerNorm, Linear, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.utils import grid

import hongtu
from hongtu.nn import MeshBlock

edge_index, place = grid(40, 40)  # vertices of a square mesh, each linked to its neighbours
source, destination = edge_index
data = Data(
    x=place / 40, edge_index=edge_index, edge_attr=(place[destination] - place[source]).float(),
    y=torch.sin(place / 6), train_mask=torch.ones(len(place), dtype=torch.bool),
)  # fmt: skip
artifact = hongtu.preprocess_graph(data=data, artifact="mesh", partitions=2, chunks=8, task="regression")


def encoder(columns: int) -> Sequential:
    """Rows of 16 columns, of vertices or of edges."""
    return Sequential(Linear(columns, 16), ReLU(), Linear(16, 16), LayerNorm(16))


layers = [
    (encoder(artifact.feature_width), "x -> x"),  # x: rows of vertices
    (encoder(artifact.edge_feature_width), "e -> e"),  # e: rows of edges
    *[MeshBlock(16) for _ in range(3)],  # each takes and returns both
    Linear(16, 2),
]
trainer = hongtu.Trainer(artifact, layers, loss="mse", device_memory="4MiB")
for record in trainer.fit(epochs=50, eval_every=10):
    if record.metrics:
        print(record.epoch, record.loss, record.metrics["train_rmse"])
