"""The same models by SAR (Mostafa, Sequential Aggregation and Rematerialization, MLSys 2022) on ranks, with DGL's
layers and torch_geometric's parameters. Each rank owns the vertices that ours would."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import dgl
import dgl.nn.pytorch as dgl_nn
import numpy as np
import sar
import torch
from sar.common_tuples import PartitionData, ShardEdgesAndFeatures
from torch import Tensor, nn

from hongtu.bench.dgl import GCN, LAYERS, load
from hongtu.bench.spec import Model
from hongtu.graph.artifact import Artifact
from hongtu.ranks.group import Ranks
from hongtu.ranks.share import deal_partitions
from hongtu.train.evaluators import scores

RELATION = ("_N", "_E", "_N")  # as DGL names what has one kind


class MessageGCN(GCN):
    """The same by messages, which SAR passes on."""

    def sum_sources(self, graph: Any, h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["h"] = h
            graph.update_all(dgl.function.copy_u("h", "m"), dgl.function.sum("m", "h"))
            return graph.dstdata["h"]


class SAR:
    """One rank of it; the process group is there."""

    def __init__(self, artifact: Artifact, model: Model, layers: Sequence[nn.Module]) -> None:
        self.ranks, self.model, self.artifact = Ranks(), model, artifact
        rank, size = self.ranks.rank, self.ranks.size
        sar.initialize_comms(rank, size, "", "gloo")
        dgl_nn.conv.gatconv.edge_softmax = sar.edge_softmax  # sar.patch_dgl() looks for another class
        bounds = artifact.topology.partition_start[deal_partitions(artifact, size)].tolist()
        own = slice(bounds[rank], bounds[rank + 1])
        rows: Any = artifact.features
        if artifact.sparse_features is not None:
            rows = artifact.sparse_features.dense()
        self.features = torch.from_numpy(np.array(rows[own]))
        self.labels = torch.from_numpy(np.array(artifact.labels[own])).long()
        self.mask = torch.from_numpy(np.array(artifact.masks["train"][own]))
        self.trained = int(np.asarray(artifact.masks["train"]).sum())
        self.graph = self._make_graph(bounds)
        kinds = LAYERS | {"gcn": MessageGCN}
        widths = model.widths(artifact)
        self.modules = nn.ModuleList(kinds[model.name](a, b) for a, b in pairwise(widths))
        for module, layer in zip(self.modules, layers, strict=True):
            load(module, layer.state_dict())
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=1e-2)

    def _make_graph(self, bounds: list[int]) -> Any:
        """The in-edges of own vertices, by the rank of their sources."""
        topology, rank = self.artifact.topology, self.ranks.rank
        first, end = bounds[rank], bounds[rank + 1]
        start = topology.in_edge_start
        source = topology.global_sources()[start[first] : start[end]].astype(np.int64)
        target = np.repeat(np.arange(first, end), np.diff(start[first : end + 1]))
        if self.model.name in ("gcn", "gat"):
            others = source != target
            loops = np.arange(first, end)
            source, target = np.concatenate([source[others], loops]), np.concatenate([target[others], loops])
        owner = np.searchsorted(bounds, source, side="right") - 1
        shards = []
        for other in range(self.ranks.size):
            pair = [torch.from_numpy(ends[owner == other]) for ends in (source, target)]
            shards.append(ShardEdgesAndFeatures((pair[0], pair[1]), {dgl.ETYPE: torch.zeros(len(pair[0]))}))
        book = SimpleNamespace(
            ntypes=[RELATION[0]],
            etypes=[RELATION[1]],
            canonical_etypes=[RELATION],
            _canonical_etypes=[RELATION],
            map_to_per_ntype=lambda ids: (None, ids),
            nid2localnid=lambda ids, part, kind: ids - bounds[part],
        )
        ranges, types = list(pairwise(bounds)), {dgl.NTYPE: torch.zeros(end - first)}
        return sar.construct_full_graph(PartitionData(shards, ranges, types, [RELATION[0]], [RELATION], book))

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self._loss(self.forward())
        loss.backward()
        sar.gather_grads(self.modules)
        self.optimizer.step()
        return self.ranks.sum(float(loss.detach()))

    def loss(self) -> float:
        with torch.no_grad():
            return self.ranks.sum(float(self._loss(self.forward())))

    def scores(self) -> dict[str, float]:
        with torch.no_grad():
            out = torch.cat(list(self.ranks.each(self.forward())))
        masks = {name: torch.from_numpy(np.array(mask)) for name, mask in self.artifact.masks.items()}
        return scores(out, torch.from_numpy(np.array(self.artifact.labels)), masks, "multiclass")

    def forward(self) -> Tensor:
        h, activation = self.features, nn.functional.elu if self.model.name == "gat" else torch.relu
        for index, module in enumerate(self.modules):
            h = module(h, self.graph)
            h = activation(h) if index + 1 < len(self.modules) else h
        return h

    def _loss(self, out: Tensor) -> Tensor:
        total = nn.functional.cross_entropy(out[self.mask], self.labels[self.mask], reduction="sum")
        return total / self.trained
