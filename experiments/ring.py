"""GCN by SAR's rounds (Mostafa, Sequential Aggregation and Rematerialization, MLSys 2022), for comparison with ranks.

    torchrun --nproc-per-node 4 -m -- experiments.ring ARTIFACT [--hidden 256] [--layers 2] [--epochs 3] [--threads 1]

Each rank owns one partition. A layer sums over its own sources, then in k - 1 rounds over those of one other rank each,
whose rows cross the network: the narrower of what goes into the layer's product and what comes out. Sums are linear, so
backward fetches nothing again; the gradients of all rows but the features' go back the same way. Rank 0 prints a JSON
line an epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hongtu
from hongtu.graph.artifact import Artifact
from hongtu.model.named import build_layers


class Shard:
    """A rank's in-edges, by the rank that owns their sources, and what it needs of each and gives to each.

    Attributes:
        sums: [k] sparse [own, needed] matrices of GCN's weights; ``backs`` their transposes.
        needed, given: [k] rows of another rank that this one reads, and of this one that it reads.
    """

    def __init__(self, artifact: Artifact, rank: int, ranks: int) -> None:
        topology = artifact.topology
        if topology.partitions != ranks:
            raise SystemExit(f"{artifact.path} has {topology.partitions} partitions, expected one for each of {ranks}")
        self.rank, self.ranks, self.start = rank, ranks, topology.partition_start
        self.own = slice(int(self.start[rank]), int(self.start[rank + 1]))
        degree = 1.0 / np.sqrt(np.diff(topology.in_edge_start) + 1.0)
        targets = np.repeat(np.arange(artifact.num_vertices), np.diff(topology.in_edge_start))
        sources = topology.global_sources().astype(np.int64)
        loops = np.arange(artifact.num_vertices)
        targets, sources = np.concatenate([targets, loops]), np.concatenate([sources, loops])
        owner = np.searchsorted(self.start, sources, side="right") - 1
        reader = np.searchsorted(self.start, targets, side="right") - 1
        self.sums, self.backs, self.needed, self.given = [], [], [], []
        for other in range(ranks):
            mine = (reader == rank) & (owner == other)
            rows, local = np.unique(sources[mine], return_inverse=True)
            place = np.stack([targets[mine] - self.own.start, local])
            weight = degree[sources[mine]] * degree[targets[mine]]
            matrix = torch.sparse_coo_tensor(
                torch.from_numpy(place), torch.from_numpy(weight).float(), (self.own.stop - self.own.start, len(rows))
            )
            self.sums.append(matrix.coalesce().to_sparse_csr())
            self.backs.append(matrix.t().coalesce().to_sparse_csr())
            self.needed.append(torch.from_numpy(rows - self.start[other]))
            theirs = np.unique(sources[(reader == other) & (owner == rank)])
            self.given.append(torch.from_numpy(theirs - self.own.start))

    def swapped(self, send: Tensor, to: int, expected: tuple[int, int], source: int) -> Tensor:
        """What ``source`` sent while this rank sent to ``to``."""
        received = torch.empty(expected)
        asked = [dist.P2POp(dist.isend, send, to), dist.P2POp(dist.irecv, received, source)]
        for request in dist.batch_isend_irecv(asked):
            request.wait()
        return received


class Rounds(torch.autograd.Function):
    """The sum over all in-edges, rank by rank."""

    @staticmethod
    def forward(context: Any, rows: Tensor, shard: Shard) -> Tensor:
        context.shard = shard
        out = shard.sums[shard.rank] @ rows
        for step in range(1, shard.ranks):
            source, reader = (shard.rank + step) % shard.ranks, (shard.rank - step) % shard.ranks
            shape = len(shard.needed[source]), rows.shape[1]
            out += shard.sums[source] @ shard.swapped(rows[shard.given[reader]], reader, shape, source)
        return out

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        shard, gradient = context.shard, gradients[0].contiguous()
        out = shard.backs[shard.rank] @ gradient
        for step in range(1, shard.ranks):
            owner, reader = (shard.rank + step) % shard.ranks, (shard.rank - step) % shard.ranks
            shape = len(shard.given[reader]), gradient.shape[1]
            back = shard.swapped(shard.backs[owner] @ gradient, owner, shape, reader)
            out.index_add_(0, shard.given[reader], back)
        return out, None


def forward(layers: Sequence[nn.Module], rows: Tensor, shard: Shard) -> Tensor:
    """Logits of a rank's own vertices."""
    for k, layer in enumerate(layers):
        weight, bias = layer.lin.weight, layer.bias
        if weight.shape[0] < weight.shape[1]:
            rows = Rounds.apply(rows @ weight.t(), shard) + bias
        else:
            rows = Rounds.apply(rows, shard) @ weight.t() + bias
        rows = rows.relu() if k < len(layers) - 1 else rows
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo")
    rank, artifact = dist.get_rank(), hongtu.open_artifact(options.artifact)
    shard = Shard(artifact, rank, dist.get_world_size())
    torch.manual_seed(0)
    layers = build_layers("gcn", artifact.feature_width, options.hidden, artifact.num_classes, options.layers)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    features = torch.from_numpy(np.array(artifact.features[shard.own]))
    labels, mask = (torch.from_numpy(np.array(rows[shard.own])) for rows in (artifact.labels, artifact.masks["train"]))
    count = int(artifact.masks["train"].sum())
    for epoch in range(options.epochs):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = cross_entropy(forward(layers, features, shard)[mask], labels[mask], reduction="sum") / count
        loss.backward()
        total = loss.detach().clone()
        for tensor in (total, *(parameter.grad for parameter in parameters)):
            dist.all_reduce(tensor)
        optimizer.step()
        if rank == 0:
            line = {"epoch": epoch, "loss": total.item(), "seconds": time.perf_counter() - start}
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
