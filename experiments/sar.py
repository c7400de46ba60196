"""Epochs of SAR itself (``hongtu.bench.sar``) on an artifact; torchrun starts its ranks.

    torchrun --nproc-per-node K -m experiments.sar ARTIFACT --hidden 256 --layers 2 [--epochs 4] [--model gcn]

Rank 0 prints a line of JSON for every epoch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

import hongtu
from hongtu.bench.sar import SAR
from hongtu.bench.spec import Model
from hongtu.model.named import build_layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--model", default="gcn", choices=("gcn", "sage", "gat"))
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    artifact, model = hongtu.open_artifact(options.artifact), Model(
        name=options.model, hidden=options.hidden, layers=options.layers
    )  # fmt: skip
    layers = build_layers(model.name, artifact.feature_width, model.hidden, artifact.num_classes, model.layers)
    system = SAR(artifact, model, layers)
    for epoch in range(options.epochs):
        start = perf_counter()
        loss = system.step()
        if dist.get_rank() == 0:
            print(json.dumps({"epoch": epoch, "seconds": perf_counter() - start, "loss": loss}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
