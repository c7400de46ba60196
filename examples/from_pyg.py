# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""A torch_geometric model as it is: train it within 512 KiB of device memory, then use it in torch_geometric again."""

import torch
from graphs import citation
from torch_geometric.nn import GraphSAGE

import hongtu

data = citation()
artifact = hongtu.preprocess_graph(data=data, artifact="from-pyg", partitions=2, chunks=8)
model = GraphSAGE(data.num_features, 32, num_layers=2, out_channels=int(data.y.max()) + 1)

trainer = hongtu.Trainer(artifact, hongtu.from_pyg(model), device_memory="512KiB")
trainer.fit(epochs=20)
hongtu.to_pyg(trainer.model, model)

model.eval()
with torch.no_grad():
    theirs = model(data.x, data.edge_index)
ours = torch.as_tensor(trainer.predict())
print(f"largest difference of a prediction: {(theirs - ours).abs().max():.1e} of {theirs.abs().max():.1f}")
assert torch.allclose(theirs, ours, atol=1e-4)
