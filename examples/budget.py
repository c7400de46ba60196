# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""A budget: what training would take is known before, a budget that cannot work is refused, and the losses stay."""

import torch
from graphs import citation

import hongtu
from hongtu.nn import GATConv

artifact = hongtu.preprocess_graph(data=citation(), artifact="budget", partitions=2, chunks=16)


def train(device_memory):
    """Losses of five epochs and the peak that was counted, from the same initial weights."""
    torch.manual_seed(0)
    layers = [
        GATConv(artifact.feature_width, 8, heads=4), torch.nn.ELU(),
        GATConv(32, artifact.num_classes, heads=4, concat=False),
    ]  # fmt: skip
    trainer = hongtu.Trainer(artifact, layers, device_memory=device_memory)
    records = list(trainer.fit(epochs=5))
    assert records[-1].bytes == trainer.plan.bytes, "counted is what was predicted"
    return [record.loss for record in records], records[-1]


free, without = train(None)
try:
    train("1KiB")
except hongtu.errors.BudgetError as refused:
    print(refused)
    tight, within = train(refused.smallest)
print("no limit:", free, dict(without.peak_bytes))
print("smallest:", tight, dict(within.peak_bytes))
assert torch.allclose(torch.tensor(free), torch.tensor(tight), rtol=1e-4)
