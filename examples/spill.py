# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""Less host memory than training needs: of 518 MiB Python has 512, so most vertex rows lie on a disk."""

import torch
from graphs import citation

import hongtu
from hongtu.nn import SAGEConv

artifact = hongtu.preprocess_graph(data=citation(5000), artifact="spill", partitions=1, chunks=16)


def train(**limits):
    """The loss of three epochs, and the bytes that went to the disk and came back in the last."""
    torch.manual_seed(0)
    layers = [
        SAGEConv(artifact.feature_width, 64, activation="relu"), SAGEConv(64, 64, activation="relu"),
        SAGEConv(64, artifact.num_classes),
    ]  # fmt: skip
    trainer = hongtu.Trainer(artifact, layers, device_memory="2MiB", **limits)
    records = list(trainer.fit(epochs=3))
    return [record.loss for record in records], records[-1].bytes.get("disk", 0)


free, _ = train()
spilled, disk = train(host_memory="518MiB", spill=".")
print(f"{disk:,} bytes over the link to the disk in an epoch; losses {free} without it, {spilled} with it")
assert disk > 0 and torch.allclose(torch.tensor(free), torch.tensor(spilled), rtol=1e-6)
