"""Sampled training in several processes: steps, and bytes of features fetched, beside those of each step alone.

    torchrun --nproc-per-node 4 -m experiments.sampled_ranks ARTIFACT [--fanouts 15,10] [--epochs 2] [--out FILE.jsonl]

GraphSAGE in torch's DistributedDataParallel, by SGD, on batches of ``hongtu.pyg.NeighborLoader``. The row has every
rank's counts, seconds of each epoch, and how evenly the partitions divide vertices, in-edges and train vertices
(the largest over the mean). ``--weights`` keeps what was learned.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import hongtu
from experiments.options import make_parser
from hongtu.bench.records import append, machine
from hongtu.pyg import NeighborLoader


def main() -> None:
    parser = make_parser(__doc__, window=16, cache_memory="256MiB", hidden=64, epochs=2)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--fanouts", type=lambda text: [int(word) for word in text.split(",")], default=[15, 10])
    parser.add_argument("--batch-size", type=int, default=1024, help="of all ranks together")
    parser.add_argument("--weights", type=Path)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    artifact = hongtu.open_artifact(options.artifact)
    row = machine("sampled_ranks") | {"graph": artifact.path.name, "ranks": dist.get_world_size()}
    row |= {name: getattr(options, name) for name in ("fanouts", "batch_size", "window", "cache_memory", "hidden")}
    row |= {"balance": artifact.manifest["statistics"]["balance"]} | train(artifact, options)
    if dist.get_rank() == 0:
        for rank, counts in enumerate(row["of_ranks"]):
            print(f"rank {rank}: {counts['steps']} steps, {counts['bytes_fetched'] / 2**20:.1f} MiB fetched, "
                  f"{counts['bytes_fetched'] / max(counts['bytes_alone'], 1):.2f} of each step alone")  # fmt: skip
        append(options.out, row)
    dist.destroy_process_group()


def train(artifact: hongtu.Artifact, options: argparse.Namespace) -> dict:
    """Seconds of each epoch, and every rank's counts."""
    loader = NeighborLoader(
        artifact, options.fanouts, batch_size=options.batch_size, window=options.window,
        cache_memory=options.cache_memory,
    )  # fmt: skip
    torch.manual_seed(0)
    layers = len(options.fanouts)
    model = DistributedDataParallel(
        GraphSAGE(artifact.feature_width, options.hidden, layers, artifact.num_classes)
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds, steps = [], 0
    for epoch in range(1, options.epochs + 1):
        begin = perf_counter()
        for batch in loader:
            optimizer.zero_grad()
            size = batch.batch_size
            loss = cross_entropy(model(batch.x, batch.edge_index)[:size], batch.y[:size])
            (loss * batch.loss_weight).backward()
            optimizer.step()
            steps += 1
        seconds.append(perf_counter() - begin)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {seconds[-1]:.2f} s", flush=True)
            if options.weights is not None:
                torch.save(model.module.state_dict(), options.weights)
    counts: list[dict] = [{}] * dist.get_world_size()
    windows = loader.windows
    assert windows is not None
    own = {"steps": steps, "bytes_fetched": windows.bytes_fetched, "bytes_alone": windows.bytes_alone}
    dist.all_gather_object(counts, own)
    return {"seconds": seconds, "of_ranks": counts}


if __name__ == "__main__":
    main()
