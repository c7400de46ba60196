# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""Ranks: several processes train one graph together. Start it by torchrun:

torchrun --standalone --nproc-per-node 2 examples/ranks.py
"""

import torch.distributed as dist
from graphs import citation

import hongtu
from hongtu.nn import GCNConv

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    hongtu.preprocess_graph(data=citation(), artifact="ranks", partitions=4, chunks=4)
dist.barrier()

artifact = hongtu.open_artifact("ranks")
layers = [GCNConv(artifact.feature_width, 32, activation="relu"), GCNConv(32, artifact.num_classes)]
trainer = hongtu.Trainer(artifact, layers)  # every rank makes the same calls, and gets the same numbers
for record in trainer.fit(epochs=10, eval_every=5, progress=False):
    if rank == 0 and record.metrics:
        print(record.epoch, record.loss, record.metrics)
dist.destroy_process_group()
