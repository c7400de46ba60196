# /// script
# requires-python = ">=3.10"
# dependencies = ["hongtu[pyg]", "torch", "torch_geometric"]
# [tool.uv.sources]
# hongtu = { path = ".." }
# ///
"""A graph with types: papers, their authors and three relations, in a model with a convolution for each relation."""

import torch
from graphs import citation
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, Linear, SAGEConv

import hongtu

cites = ("paper", "cites", "paper")
writes, written_by = ("author", "writes", "paper"), ("paper", "written_by", "author")
papers = citation()
data = HeteroData()
data["paper"].update({name: papers[name] for name in ("x", "y", "train_mask", "val_mask", "test_mask")})
data["author"].x = torch.randn(500, 8)
data[cites].edge_index = papers.edge_index
authors = torch.randint(500, (3 * papers.num_nodes,))
data[writes].edge_index = torch.stack([authors, torch.arange(papers.num_nodes).repeat(3)])
data[written_by].edge_index = data[writes].edge_index.flip(0)


class Net(torch.nn.Module):
    """Two layers, each with weights of its own for every relation; -1: as wide as the graph says."""

    def __init__(self, classes: int):
        super().__init__()
        relations = cites, writes, written_by
        self.convs = torch.nn.ModuleList(
            HeteroConv({relation: SAGEConv((-1, -1), 32) for relation in relations}) for _ in range(2)
        )
        self.lin = Linear(32, classes)

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = {kind: x.relu() for kind, x in conv(x_dict, edge_index_dict).items()}
        return self.lin(x_dict["paper"])


artifact = hongtu.preprocess_graph(data=data, artifact="typed-graphs", partitions=2, chunks=8)
trainer = hongtu.Trainer(artifact, hongtu.from_pyg(Net(classes=4)), device_memory="4MiB")
trainer.fit(epochs=20)
print(trainer.evaluate(), trainer.predict().shape)  # a row for each paper
