# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""Link prediction: which papers cite each other, from torch_geometric's own split of the edges."""

from graphs import citation
from torch_geometric.transforms import RandomLinkSplit

import hongtu
from hongtu.nn import GCNConv

split = RandomLinkSplit(is_undirected=True, neg_sampling_ratio=0.0, add_negative_train_samples=False)
train, val, test = split(citation())
artifact = hongtu.preprocess_graph(data=train, artifact="links", partitions=2, chunks=8, task="links")
layers = [GCNConv(artifact.feature_width, 32, activation="relu"), GCNConv(32, 16)]
loss = hongtu.LinkLoss.from_split(train, val, test)
trainer = hongtu.Trainer(artifact, layers, loss=loss, metric="auc", device_memory="1MiB")
trainer.fit(epochs=20)
print(trainer.evaluate())
