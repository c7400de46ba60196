"""Epochs of SAR itself (``hongtu.bench.sar``) on an artifact; torchrun starts its ranks.

    torchrun --nproc-per-node K -m experiments.sar ARTIFACT --hidden 256 --layers 2 [--epochs 4] [--model gcn]

Rank 0 prints a line of JSON for every epoch.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

import hongtu
from experiments.options import make_parser
from hongtu.bench.sar import SAR
from hongtu.bench.spec import Model
from hongtu.model.named import build_layers


def main() -> None:
    parser = make_parser(__doc__, out=False, hidden=256, layers=2, epochs=4)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--model", default="gcn", choices=("gcn", "sage", "gat"))
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
