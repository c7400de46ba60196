"""Test accuracy of models written for torch_geometric, trained there and here: a new user's first hour.

    python -m experiments.first_hour [--graphs A,B] [--models A,B] [--seeds 5] [--first 0] [--device-memory 2MiB]
                                     [--out FILE.jsonl]

Every graph is given as people have it: a sparse matrix with sparse features, ten splits at once, no features, labels
for some vertices only. Every model is a torch_geometric module, taken by `hongtu.from_pyg`; both sides begin with the
same weights, and train by the same optimizer for as many epochs. The table has mean and standard deviation over the
seeds, and says where the means are further apart than the larger of both deviations.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

import hongtu
from experiments.options import make_parser
from hongtu.bench.records import append, machine

VERTICES, CLASSES, WIDTH = 1500, 5, 24
EPOCHS = 60
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A graph for both sides.

    Attributes:
        given: arguments of ``hongtu.preprocess_graph``.
        data: x [N, F] (None: an embedding of WIDTH columns is learned), edge_index, y and masks of torch_geometric.
        width: columns of features.
    """

    given: dict[str, Any]
    data: Data
    width: int = WIDTH


def planted(seed: int, inside: float) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Edges [2, E], half of which (``inside``) join vertices of one class, both ways; labels [N]; a generator."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, VERTICES)
    source, other = rng.integers(0, VERTICES, (2, 4 * VERTICES))
    alike = np.argsort(labels, kind="stable")
    start = np.searchsorted(labels[alike], np.arange(CLASSES + 1))
    same = alike[start[labels[source]] + other % np.diff(start)[labels[source]]]
    edges = np.stack([source, np.where(rng.random(len(source)) < inside, same, other)])
    edges = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
    return edges[:, edges[0] != edges[1]], labels, rng


def noisy(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """float32 [N, WIDTH]: a little of the class, and much noise."""
    means = rng.normal(size=(CLASSES, WIDTH))
    return (0.4 * means[labels] + rng.normal(size=(len(labels), WIDTH))).astype(np.float32)


def split_of(vertices: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """bool [N]: a fifth of some vertices trains, a fifth validates, the others test."""
    masks = {name: np.zeros(VERTICES, dtype=bool) for name in SPLITS}
    parts = np.split(rng.permutation(vertices), [len(vertices) // 5, 2 * len(vertices) // 5])
    for name, part in zip(SPLITS, parts, strict=True):
        masks[name][part] = True
    return masks


def to_data(edges: np.ndarray, labels: np.ndarray, masks: dict[str, np.ndarray], x: np.ndarray | None) -> Data:
    rows = None if x is None else torch.from_numpy(x)
    flags = {f"{name}_mask": torch.from_numpy(mask) for name, mask in masks.items()}
    return Data(x=rows, edge_index=torch.from_numpy(edges), y=torch.from_numpy(labels), num_nodes=VERTICES, **flags)


def sparse_words() -> Problem:
    """A scipy adjacency matrix, and words of texts as a scipy matrix."""
    edges, labels, rng = planted(1, 0.5)
    often = rng.random((CLASSES, 300)) ** 6 / 8
    words = (rng.random((VERTICES, 300)) < often[labels]).astype(np.float32)
    masks = split_of(np.arange(VERTICES), rng)
    matrix = scipy.sparse.coo_matrix((np.ones(edges.shape[1]), edges), (VERTICES, VERTICES)).tocsr()
    given = {"edges": matrix, "features": scipy.sparse.csr_matrix(words), "labels": labels, "masks": masks}
    return Problem(given=given, data=to_data(edges, labels, masks, words), width=300)


def several_splits() -> Problem:
    """A ``Data`` whose masks are [N, 10], as those of many benchmarks; the fourth is used."""
    edges, labels, rng = planted(2, 0.4)
    every = [split_of(np.arange(VERTICES), rng) for _ in range(10)]
    x = noisy(labels, rng)
    stacked = {name: np.stack([masks[name] for masks in every], axis=1) for name in SPLITS}
    given = {"data": to_data(edges, labels, stacked, x), "split": 3}
    return Problem(given=given, data=to_data(edges, labels, every[3], x))


def no_features() -> Problem:
    """Edges and labels alone: a row per vertex is learned."""
    edges, labels, rng = planted(3, 0.8)
    masks = split_of(np.arange(VERTICES), rng)
    given = {"edges": edges, "num_vertices": VERTICES, "labels": labels, "masks": masks}
    return Problem(given=given | {"features": f"embedding:{WIDTH}"}, data=to_data(edges, labels, masks, None))


def some_labels() -> Problem:
    """Labels as a column of numbers, NaN where there is none, as pandas has them."""
    edges, labels, rng = planted(4, 0.5)
    known = np.sort(rng.permutation(VERTICES)[: VERTICES // 2])
    x, masks = noisy(labels, rng), split_of(known, rng)
    column = np.full(VERTICES, np.nan)
    column[known] = labels[known]
    given = {"edges": edges, "num_vertices": VERTICES, "features": x, "labels": column, "masks": masks}
    return Problem(given=given, data=to_data(edges, labels, masks, x))


class Plain(nn.Module):
    """Two convolutions in a module, as in torch_geometric's first tutorial."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(width, 32)
        self.conv2 = pyg.GCNConv(32, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(x, p=0.3, training=self.training)
        x = self.conv1(x, edge_index).relu()
        x = functional.dropout(x, p=0.3, training=self.training)
        return self.conv2(x, edge_index)


class Attentive(nn.Module):
    """Attention of queries and keys, with layer normalisation and a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = pyg.TransformerConv(width, 16, heads=2)
        self.norm = nn.LayerNorm(32)
        self.second = pyg.TransformerConv(32, 16, heads=2)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.first(x, edge_index)).relu()
        return self.out(x + self.second(x, edge_index).relu())


def with_skip(width: int) -> nn.Module:
    """torch_geometric's Sequential, with a value that is used twice."""
    return pyg.Sequential("x, edge_index", [
        (pyg.SAGEConv(width, 32), "x, edge_index -> x1"), nn.ReLU(inplace=True), (nn.Dropout(0.3), "x1 -> x1"),
        (pyg.SAGEConv(32, 32), "x1, edge_index -> x2"), nn.ReLU(inplace=True),
        (lambda x1, x2: x1 + x2, "x1, x2 -> x"), nn.Linear(32, CLASSES),
    ])  # fmt: skip


GRAPHS: dict[str, Callable[[], Problem]] = {
    "sparse-words": sparse_words, "several-splits": several_splits, "no-features": no_features,
    "some-labels": some_labels,
}  # fmt: skip
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "module of GCNConv": Plain,
    "Sequential with a skip": with_skip,
    "GAT v2": lambda width: pyg.GAT(width, 32, 2, CLASSES, dropout=0.3, v2=True, heads=4),
    "GCN jk=cat": lambda width: pyg.GCN(width, 32, 3, CLASSES, dropout=0.3, jk="cat"),
    "GIN with BatchNorm": lambda width: pyg.GIN(width, 32, 2, CLASSES, norm="batch_norm"),
    "TransformerConv": Attentive,
}


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4)


def theirs(problem: Problem, model: nn.Module, seed: int) -> float:
    """Test accuracy after full-batch training in torch_geometric."""
    data, learned = problem.data, list(model.parameters())
    x = data.x
    if x is None:
        x = nn.Parameter(torch.randn((VERTICES, WIDTH), generator=torch.Generator().manual_seed(seed)))
        learned.append(x)
    optimizer = optimizer_of(learned)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        out = model(x, data.edge_index)[data.train_mask]
        functional.cross_entropy(out, data.y[data.train_mask]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(x, data.edge_index).argmax(1) == data.y
    return float(right[data.test_mask].double().mean())


def ours(artifact: Any, model: nn.Module, seed: int, device_memory: str | None) -> float:
    """The same on the artifact, within a budget."""
    layers = hongtu.from_pyg(model)
    trainer = hongtu.Trainer(artifact, layers, optimizer=optimizer_of, device_memory=device_memory, seed=seed)
    trainer.fit(EPOCHS, progress=False)
    return trainer.evaluate()["test"]


def main() -> int:
    parser = make_parser(__doc__, seeds=5, device_memory="2MiB")
    parser.add_argument("--graphs", type=lambda text: text.split(","), default=list(GRAPHS))
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    far = 0
    with tempfile.TemporaryDirectory() as folder:
        for graph in options.graphs:
            problem = GRAPHS[graph]()
            artifact = hongtu.preprocess_graph(**problem.given, artifact=Path(folder) / graph, partitions=2, chunks=8)
            for name in options.models:
                scores: dict[str, list[float]] = {"torch_geometric": [], "hongtu": []}
                for seed in range(options.first, options.first + options.seeds):
                    torch.manual_seed(seed)
                    model = MODELS[name](problem.width)
                    scores["hongtu"].append(ours(artifact, model, seed, options.device_memory))
                    scores["torch_geometric"].append(theirs(problem, model, seed))
                mean, deviation = (
                    {side: float(of(found)) for side, found in scores.items()} for of in (np.mean, np.std)
                )
                apart = abs(mean["hongtu"] - mean["torch_geometric"]) > max(deviation.values())
                far += apart
                sides = "  ".join(f"{side} {mean[side]:.4f} +- {deviation[side]:.4f}" for side in scores)
                print(f"{graph:16}{name:24}{sides}{'  APART' if apart else ''}", flush=True)
                append(options.out, machine("first_hour") | {"graph": graph, "model": name, "test": scores})
    print(f"{far} of {len(options.graphs) * len(options.models)} further apart than a standard deviation")
    return far


if __name__ == "__main__":
    raise SystemExit(main())
