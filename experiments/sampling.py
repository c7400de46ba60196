"""How many seeds a second ``hongtu.pyg`` samples for on one core, beside torch_geometric's own sampler.

    python -m experiments.sampling ARTIFACT [--fanouts 15,10] [--batch-size 1024] [--out FILE.jsonl]

Theirs is torch-sparse's or pyg-lib's, whichever is installed (`pip install --no-build-isolation torch-scatter
torch-sparse`, a quarter of an hour of a core); where neither is, the row has ours alone, for torch_geometric has none
in Python. Both take the same seeds in turns, round by round; only sampling is timed, no features: by the clock, and in
seconds of the processor, which others on the machine change less. Both must draw about as many edges. ``uniform`` is
the p-value of a chi-square test: of seven in-edges every three should be drawn as often.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from scipy.stats import chisquare
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

import hongtu
from experiments.options import make_parser
from hongtu.bench.baselines import REMEDY, edge_index, importable
from hongtu.bench.records import append, machine
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.pyg import NeighborSampler

BATCHES = 20  # of a round
AGREE = 0.02  # of the edges that both draw; they draw others

STARS, DEGREE, TAKEN = 14_000, 7, 3  # vertices that draw, of so many in-edges

Sample = Callable[[torch.Tensor], SamplerOutput]  # for these seeds
Make = Callable[[Artifact, list[int]], Sample]


def main() -> None:
    parser = make_parser(__doc__, batch_size=1024, rounds=7)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--fanouts", type=lambda text: [int(word) for word in text.split(",")], default=[15, 10])
    options = parser.parse_args()
    torch.set_num_threads(1)
    artifact = open_artifact(options.artifact)
    makers: dict[str, Make] = {"hongtu": ours}
    there = [name for name in ("pyg_lib", "torch_sparse") if importable(name)]
    if there:
        makers[there[0]] = theirs
    else:
        print(f"neither pyg-lib nor torch-sparse is here, so hongtu alone: {REMEDY['torch_sparse']}")
    row = machine("sampling") | {"graph": artifact.path.name, "vertices": artifact.num_vertices}
    row |= {"edges": artifact.num_edges, "fanouts": options.fanouts, "batch_size": options.batch_size}
    samplers = {name: make(artifact, options.fanouts) for name, make in makers.items()}
    row |= measure(samplers, artifact, options.batch_size, options.rounds)
    row["uniform"] = uniform(makers)
    print(table(row), flush=True)
    append(options.out, row)


def ours(artifact: Artifact, fanouts: list[int]) -> Sample:
    """A batch with everything that torch_geometric's loaders want of a sampler."""
    sampler = NeighborSampler(artifact, fanouts)
    return lambda seeds: sampler.sample_from_nodes(NodeSamplerInput(None, seeds))


def theirs(artifact: Artifact, fanouts: list[int]) -> Sample:
    """torch_geometric's sampler on the same edges, by the vertices' original numbers."""
    from torch_geometric.sampler import NeighborSampler as Theirs

    data = Data(edge_index=torch.from_numpy(edge_index(artifact)), num_nodes=artifact.num_vertices)
    sampler = Theirs(data, fanouts, is_sorted=True)
    return lambda seeds: sampler.sample_from_nodes(NodeSamplerInput(None, seeds))


def measure(samplers: dict[str, Sample], artifact: Artifact, batch_size: int, rounds: int) -> dict[str, Any]:
    """Seeds per second of each in every round, and the edges that they drew."""
    rng = np.random.default_rng(0)
    count = min(batch_size, artifact.num_vertices)
    batches = [torch.from_numpy(rng.choice(artifact.num_vertices, count, replace=False)) for _ in range(BATCHES)]
    edges = {
        name: sum(sample(seeds).row.numel() for seeds in batches) for name, sample in samplers.items()
    }  # and warms up
    if max(edges.values()) > (1 + AGREE) * min(edges.values()):
        raise RuntimeError(f"the samplers differ in the edges that they draw: {edges}")
    rates: dict[str, dict[str, list[float]]] = {name: {"clock": [], "processor": []} for name in samplers}
    for _ in range(rounds):
        for name, sample in samplers.items():
            begin, used = perf_counter(), process_time()
            for seeds in batches:
                sample(seeds)
            rates[name]["processor"].append(count * BATCHES / (process_time() - used))
            rates[name]["clock"].append(count * BATCHES / (perf_counter() - begin))
    return {"edges_drawn": edges, "seeds_per_second": rates}


def uniform(makers: dict[str, Make]) -> dict[str, float]:
    """The p-value of every sampler."""
    edges = np.stack([STARS + np.arange(STARS * DEGREE), np.repeat(np.arange(STARS), DEGREE)])
    sets = [sum(1 << place for place in chosen) for chosen in combinations(range(DEGREE), TAKEN)]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        artifact = hongtu.preprocess_graph(
            edges, STARS * (DEGREE + 1), Path(folder, "stars"), features="degree", labels="random:2",
            random_split=(1.0, 0.0, 0.0), partitions=1, order="input",
        )  # fmt: skip
        for name, make in makers.items():
            drawn = make(artifact, [TAKEN])(torch.arange(STARS)).edge.view(STARS, TAKEN) % DEGREE
            found[name] = float(chisquare(np.bincount((1 << drawn).sum(dim=1), minlength=1 << DEGREE)[sets]).pvalue)
    return found


def table(row: dict[str, Any]) -> str:
    """A line each; how many times as fast hongtu is is the median of the rounds' ratios."""
    lines, own = [], row["seeds_per_second"]["hongtu"]
    for name, rates in row["seeds_per_second"].items():
        line = f"{row['graph']}, fan-outs {row['fanouts']}, one core, {name}:"
        for kind, rate in rates.items():
            times = median(mine / other for mine, other in zip(own[kind], rate, strict=True))
            line += (
                f" {median(rate):,.0f} seeds/s by the {kind} [{min(rate):,.0f}, {max(rate):,.0f}], hongtu {times:.2f}x;"
            )
        lines.append(f"{line} uniform: p {row['uniform'][name]:.2g}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
