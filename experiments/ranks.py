"""What ranks hold and what crosses the network, by where their dependencies come from; nothing is trained.

    python -m experiments.ranks ARTIFACT... [--ranks 4] [--hidden 256] [--network-link 1e9] [--out FILE.jsonl]

GCN of two and three layers. Bytes are those of all ranks in an epoch. ``halo_of_all_gather``: rows of all halos, of
those that ranks would get if each got all of the others'. ``of_sar``: of SAR's rounds (Mostafa, MLSys 2022) on the same
partitions, as they are counted here: forward, every layer fetches the rows that it reads of others, the narrower of
what goes into its product and what comes out, the features too; backward, the gradients of all but these go back.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import hongtu
from experiments.options import make_parser
from hongtu.bench.records import append, machine
from hongtu.graph.artifact import Artifact
from hongtu.hardware import CPU
from hongtu.model.loss_terms import DEFAULT
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.ranks.share import deal_partitions, share_of
from hongtu.ranks.stages import ByLayer
from hongtu.train.planning import plan_ranks
from hongtu.train.ranked import DEPENDENCIES

ITEM = 4  # bytes of a number
DEPTHS = (2, 3)


def main() -> None:
    parser = make_parser(__doc__, ranks=4, hidden=256)
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--network-link", type=float, default=1e9, help="bytes per second")
    options = parser.parse_args()
    for path in options.artifacts:
        artifact = hongtu.open_artifact(path)
        halo = [_halo_rows(artifact, rank, options.ranks) for rank in range(options.ranks)]
        for layers in DEPTHS:
            for dependencies in DEPENDENCIES:
                row = machine("ranks") | {"graph": path.name, "ranks": options.ranks, "hidden": options.hidden}
                row |= {"layers": layers, "network_link": options.network_link, "dependencies": dependencies}
                row |= planned(artifact, row, sum(halo))
                print(text(row), flush=True)
                append(options.out, row)


def _halo_rows(artifact: Artifact, rank: int, ranks: int) -> int:
    """Rows that a rank reads of others over one in-edge."""
    share = share_of(artifact, rank, deal_partitions(artifact, ranks), ByLayer(2, 1))
    assert share.halo is not None
    return share.halo.rows


def planned(artifact: Artifact, row: dict[str, Any], halo: int) -> dict[str, Any]:
    """What the plans say.

    Args:
        halo: rows of all ranks' halos.
    """
    hidden, classes, features = row["hidden"], artifact.num_classes, artifact.feature_width
    hardware = replace(CPU, network_link=row["network_link"])
    layers = build_layers("gcn", features, hidden, classes, row["layers"])
    plans = plan_ranks(
        artifact, layers, row["ranks"], row["dependencies"], loss=DEFAULT[artifact.task], device_memory=None,
        strategy="full", hardware=hardware,
    )  # fmt: skip
    moved = sum(plan.bytes["fetch"] + plan.bytes["send"] for _, plan in plans)
    everyone = (row["ranks"] - 1) * artifact.num_vertices
    widths = (features, *(row["layers"] - 1) * (hidden,), classes)
    narrower = [min(pair) for pair in pairwise(widths)]
    return {
        "first_fetched": None if plans[0][0].halo is None else plans[0][0].halo.first,
        "most_taken": max((share.halo.rows for share, _ in plans if share.halo is not None), default=0),
        "held": [share.num_vertices for share, _ in plans],
        "halo_of_all_gather": halo / everyone,
        "bytes": moved,
        "of_sar": moved / (halo * ITEM * (sum(narrower) + sum(narrower[1:]))),
        "seconds": [predict_seconds(plan, hardware).total for _, plan in plans],
    }


def text(row: dict[str, Any]) -> str:
    return (
        f"{row['graph']}, {row['layers']} layers, {row['dependencies']:6s}: fetched from layer {row['first_fetched']}, "
        f"{row['bytes'] / 2**20:.1f} MiB, {row['of_sar']:.3f} of SAR's rounds; halos are "
        f"{row['halo_of_all_gather']:.4f} of an all-gather; rows held {max(row['held']):,} at most; "
        f"{max(row['seconds']):.3f} s predicted"
    )


if __name__ == "__main__":
    main()
