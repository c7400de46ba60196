"""The published recipes of Cora and Citeseer with an evaluation behind every epoch, beside torch_geometric and DGL.

    python -m experiments.small_graphs [--data FOLDER] [--graphs cora citeseer] [--models gcn gat] [--out FILE]

FOLDER (default: HONGTU_DATA) holds planetoid-cora and planetoid-citeseer in the neutral input format. In every round
each system trains a new model, in turns and in one process; what is timed are its epochs, without what it does once
(planning, normalisation that it remembers). Dropout draws other numbers in each, so that test accuracies are printed
beside the seconds in place of losses. DGL takes part where it is installed. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.utils import to_torch_csr_tensor

import hongtu
import hongtu.nn as hnn
from experiments.options import make_parser
from hongtu.bench.baselines import edge_index, whole_graph
from hongtu.bench.records import append, machine
from hongtu.config import PreprocessConfig
from hongtu.preprocess.entry import preprocess_directory

HIDDEN, EPOCHS, SPLITS = 16, 200, ("train", "val", "test")
RATE, DROPOUT = {"gcn": 0.01, "gat": 0.005}, {"gcn": 0.5, "gat": 0.6}
Run = Callable[[], dict[str, float]]  # some epochs, and the accuracies behind the last


def of_hongtu(kind: str, artifact: hongtu.Artifact, epochs: int, seed: int) -> Run:
    f, c, p = artifact.feature_width, artifact.num_classes, DROPOUT[kind]
    torch.manual_seed(seed)
    if kind == "gcn":
        layers = [hnn.GCNConv(f, HIDDEN, activation="relu", input_dropout=p), hnn.GCNConv(HIDDEN, c, input_dropout=p)]
    else:
        first = hnn.GATConv(f, 8, heads=8, dropout=p, activation="elu", input_dropout=p)
        layers = [first, hnn.GATConv(64, c, dropout=p, input_dropout=p)]
    adam = partial(torch.optim.Adam, lr=RATE[kind], weight_decay=5e-4)
    trainer = hongtu.Trainer(artifact, layers, optimizer=adam, seed=seed)
    trainer.fit(1, eval_every=1)

    def run() -> dict[str, float]:
        return trainer.fit(epochs - 1, eval_every=1)[-1].metrics

    return run


class Whole(nn.Module):
    """Two layers on the whole graph, called as ``call`` does."""

    def __init__(self, layers: list[nn.Module], call: Callable[..., Tensor], kind: str) -> None:
        super().__init__()
        self.layers, self.call, self.kind = nn.ModuleList(layers), call, kind

    def forward(self, x: Tensor) -> Tensor:
        h, p = F.dropout(x, DROPOUT[self.kind], self.training), DROPOUT[self.kind]
        h = self.call(self.layers[0], h)
        h = F.relu(h) if self.kind == "gcn" else F.elu(h)
        return self.call(self.layers[1], F.dropout(h, p, self.training))


def of_torch_geometric(kind: str, graph: dict[str, Any], matrix: bool) -> Whole:
    (f, c), edges, p = graph["widths"], graph["edges"], DROPOUT[kind]
    adjacency = to_torch_csr_tensor(edges.flip(0), size=2 * (len(graph["x"]),)) if matrix else edges
    if kind == "gcn":
        layers = [pyg.GCNConv(f, HIDDEN, cached=True), pyg.GCNConv(HIDDEN, c, cached=True)]
    else:
        layers = [pyg.GATConv(f, 8, heads=8, dropout=p), pyg.GATConv(64, c, dropout=p)]
    return Whole(layers, lambda layer, h: layer(h, adjacency), kind)


def of_dgl(kind: str, graph: dict[str, Any]) -> Whole:
    import dgl
    import dgl.nn.pytorch as dnn

    (f, c), p = graph["widths"], DROPOUT[kind]
    whole = dgl.add_self_loop(dgl.remove_self_loop(dgl.graph(tuple(graph["edges"]), num_nodes=len(graph["x"]))))
    if kind == "gcn":
        layers = [dnn.GraphConv(f, HIDDEN), dnn.GraphConv(HIDDEN, c)]
    else:
        layers = [dnn.GATConv(f, 8, 8, attn_drop=p), dnn.GATConv(64, c, 1, attn_drop=p)]
    return Whole(layers, lambda layer, h: layer(whole, h).flatten(1), kind)


def of_torch(kind: str, make: Callable[..., Whole], graph: dict[str, Any], epochs: int, seed: int) -> Run:
    """The loop of torch_geometric's examples."""
    torch.manual_seed(seed)
    model, x, y, masks = make(kind, graph), graph["x"], graph["y"], graph["masks"]
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE[kind], weight_decay=5e-4)

    def epoch() -> dict[str, float]:
        model.train()
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out[masks["train"]], y[masks["train"]])
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()} | test()

    @torch.no_grad()
    def test() -> dict[str, float]:
        model.eval()
        right = model(x).argmax(-1) == y
        return {split: right[masks[split]].float().mean().item() for split in SPLITS}

    def run() -> dict[str, float]:
        return [epoch() for _ in range(epochs - 1)][-1]

    epoch()
    return run


def main() -> None:
    parser = make_parser(__doc__, graphs=["cora", "citeseer"], models=["gcn", "gat"], epochs=EPOCHS, rounds=5)
    parser.add_argument("--data", type=Path, default=os.environ.get("HONGTU_DATA"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.graphs:
            given = options.data / f"planetoid-{name}"
            config = PreprocessConfig(partitions=1, chunks=1, undirected=True, normalize_features=True)
            artifact = preprocess_directory(given, Path(folder) / name, config)
            for kind in options.models:
                row = race(kind, artifact, options) | {"graph": name, "model": kind}
                seconds = row["seconds"]
                ratio = seconds["hongtu"] / min(of for system, of in seconds.items() if system != "hongtu")
                found = (f"{system} {of:.2f} s ({row['test'][system]:.3f})" for system, of in seconds.items())
                print(f"{name} {kind}: {', '.join(found)}; {ratio:.2f} of the fastest other", flush=True)
                append(options.out, machine("small_graphs") | row | {"ratio": round(ratio, 3)})


def race(kind: str, artifact: hongtu.Artifact, options: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of all epochs but the first, and mean test accuracies, by system."""
    x, y, masks = whole_graph(artifact)
    widths, edges = (artifact.feature_width, artifact.num_classes), torch.from_numpy(edge_index(artifact))
    graph = {"widths": widths, "edges": edges, "x": x, "y": y.long(), "masks": masks}
    others: dict[str, Callable[..., Whole]] = {"torch_geometric": partial(of_torch_geometric, matrix=False)}
    if kind == "gcn":
        others["torch_geometric CSR"] = partial(of_torch_geometric, matrix=True)
    if find_spec("dgl") is not None:
        others["dgl"] = of_dgl
    seconds: dict[str, list[float]] = {system: [] for system in ("hongtu", *others)}
    tests: dict[str, list[float]] = {system: [] for system in seconds}
    for seed in range(options.rounds):
        for system in seconds:
            if system == "hongtu":
                run = of_hongtu(kind, artifact, options.epochs, seed)
            else:
                run = of_torch(kind, others[system], graph, options.epochs, seed)
            start = time.perf_counter()
            found = run()
            seconds[system].append(time.perf_counter() - start)
            tests[system].append(found["test"])
    return {
        "epochs": options.epochs,
        "seconds": {system: round(median(x), 3) for system, x in seconds.items()},
        "test": {system: round(mean(x), 4) for system, x in tests.items()},
    }


if __name__ == "__main__":
    main()
