# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""A layer of your own: every vertex sends what a learned gate lets through."""

import torch
from graphs import citation

import hongtu


class Gated(hongtu.nn.Layer):
    """h' = W h + the sum of sigmoid(G h_source) * V h_source over in-edges."""

    reduce = "sum"

    def __init__(self, columns_in: int, columns_out: int):
        super().__init__()
        self.own = torch.nn.Linear(columns_in, columns_out)
        self.value = torch.nn.Linear(columns_in, columns_out)
        self.gate = torch.nn.Linear(columns_in, columns_out)

    def transform(self, h):  # once for every vertex: what its neighbours read, and what it needs itself
        return torch.sigmoid(self.gate(h)) * self.value(h), self.own(h)

    def update(self, a, s):  # the sum over in-edges, and what the vertex kept
        return a + s


artifact = hongtu.preprocess_graph(data=citation(), artifact="own-layer", partitions=2, chunks=8)
layers = [Gated(artifact.feature_width, 32), torch.nn.ReLU(), Gated(32, artifact.num_classes)]
trainer = hongtu.Trainer(artifact, layers, device_memory="512KiB")
for record in trainer.fit(epochs=20, eval_every=10):
    if record.metrics:
        print(record.epoch, record.loss, record.metrics)
