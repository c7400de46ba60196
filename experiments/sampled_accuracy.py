"""Test accuracy of GraphSAGE on sampled batches, by ``hongtu.pyg.NeighborLoader`` and by torch_geometric's own.

    HONGTU_DATA=DIR python -m experiments.sampled_accuracy [--graphs A,B] [--seeds 5] [--work FOLDER] [--out FILE.jsonl]

Both get the same graph, parameters to begin with, fan-outs, batch size, epochs, optimizer and test on the whole graph;
only the loader is another. Theirs needs torch-sparse or pyg-lib; where neither is, the row has ours alone. FOLDER keeps
the artifacts, which `hongtu bench` takes, too. ogbn-arxiv is here without its features: it gets structural ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data, TensorAttr
from torch_geometric.nn import GraphSAGE

import hongtu
from experiments.options import make_parser
from experiments.prepare import real_graph
from hongtu.bench.baselines import REMEDY, edge_index, importable
from hongtu.bench.records import append, machine
from hongtu.graph.artifact import Artifact
from hongtu.pyg import NeighborLoader, feature_store

FANOUTS = [10, 10]
SPLITS = ("train", "val", "test")
COLUMNS = 300  # of coauthor-physics, those that most vertices have
POWERS, WIDTH = 4, 64  # of the structural features
LEARNING_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a graph's model is made and trained."""

    hidden: int
    batch_size: int
    epochs: int
    dropout: float = 0.5
    weight_decay: float = 5e-4

    def model(self, artifact: Artifact, seed: int) -> GraphSAGE:
        torch.manual_seed(seed)
        return GraphSAGE(artifact.feature_width, self.hidden, 2, artifact.num_classes, dropout=self.dropout)

    def optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=LEARNING_RATE, weight_decay=self.weight_decay)


RECIPES = {
    "planetoid-citeseer": Recipe(hidden=32, batch_size=32, epochs=30),
    "coauthor-physics": Recipe(hidden=32, batch_size=256, epochs=10),
    "ogbn-arxiv": Recipe(hidden=64, batch_size=1024, epochs=3, dropout=0.2, weight_decay=0.0),
}


def main() -> None:
    parser = make_parser(__doc__, seeds=5)
    parser.add_argument("--graphs", type=lambda text: text.split(","), default=list(RECIPES))
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    loaders = ["hongtu"] + ["torch_geometric"] * (importable("torch_sparse") or importable("pyg_lib"))
    if len(loaders) == 1:
        print(f"neither pyg-lib nor torch-sparse is here, so hongtu alone: {REMEDY['torch_sparse']}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.graphs:
            graph = real_graph(name)
            if graph is None:
                parser.error(f"{name}: not there; HONGTU_DATA must name the directory that has it")
            artifact = prepared(graph, (options.work or Path(folder)) / name)
            row = machine("sampled_accuracy") | {"graph": name, "fanouts": FANOUTS, **asdict(RECIPES[name])}
            row |= {"accuracy": {}, "processor_seconds": {}}
            data = whole(artifact)
            for loader in loaders:
                begin = process_time()
                found = [sampled(artifact, data, RECIPES[name], loader, seed) for seed in range(options.seeds)]
                row["accuracy"][loader] = found
                row["processor_seconds"][loader] = process_time() - begin
                print(f"{name}, {loader}: test {np.mean(found):.4f} +- {np.std(found):.4f} of {len(found)} seeds",
                      flush=True)  # fmt: skip
            append(options.out, row)


def prepared(directory: Path, path: Path) -> Artifact:
    """A graph as the artifact ``path``, made where it is not there yet."""
    if path.exists():
        return hongtu.open_artifact(path)
    edges, labels = np.load(directory / "edges.npy"), np.load(directory / "labels.npy").reshape(-1)
    if (directory / "train_mask.npy").exists():
        masks = {split: np.load(directory / f"{split}_mask.npy") for split in SPLITS}
    else:  # a twentieth of the vertices trains
        split = np.random.default_rng(0).choice(3, size=len(labels), p=(0.05, 0.05, 0.9))
        masks = {name: split == k for k, name in enumerate(SPLITS)}
    undirected = not (directory / "features.npz").exists()
    features = structural(edges, len(labels)) if undirected else words(directory)
    return hongtu.preprocess_graph(
        edges, len(labels), path, features=features, labels=labels, masks=masks, undirected=undirected
    )


def words(directory: Path) -> np.ndarray:
    """float32 [V, F]: rows that sum to one, where there are many columns the most frequent ones as they are."""
    columns = scipy.sparse.load_npz(directory / "features.npz").tocsc().astype(np.float32)
    if directory.name == "coauthor-physics":
        often = np.sort(np.argsort(-columns.getnnz(axis=0), kind="stable")[:COLUMNS])
        return np.ascontiguousarray(columns[:, often].toarray())
    rows = columns.toarray()
    return rows / rows.sum(axis=1, keepdims=True).clip(min=1)


def structural(edges: np.ndarray, num_vertices: int) -> np.ndarray:
    """float32 [V, WIDTH]: random rows, each power of the normalised adjacency matrix on them scaled to length one, and
    summed: vertices that reach the same ones are near (as in FastRP)."""
    ones, ends = np.ones(2 * edges.shape[1], dtype=np.float32), np.concatenate([edges, edges[::-1]], axis=1)
    adjacency = scipy.sparse.csr_matrix((ones, ends), (num_vertices, num_vertices))
    adjacency.data[:] = 1
    scale = scipy.sparse.diags(np.float32(1) / np.sqrt(adjacency.sum(axis=1).A1.clip(min=1)))
    step = scale @ adjacency @ scale
    rows = np.random.default_rng(0).standard_normal((num_vertices, WIDTH), dtype=np.float32)
    total = np.zeros_like(rows)
    for _ in range(POWERS):
        rows = step @ rows
        total += rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)
    return total


def whole(artifact: Artifact) -> Data:
    """The graph by original numbers, edges by destination."""
    new_id = np.argsort(artifact.original_id)
    masks = {f"{name}_mask": torch.from_numpy(np.asarray(mask)[new_id]) for name, mask in artifact.masks.items()}
    x, y = (feature_store(artifact).get_tensor(TensorAttr(None, name, None)) for name in "xy")
    return Data(x=x, y=y, edge_index=torch.from_numpy(edge_index(artifact)), **masks)


def sampled(artifact: Artifact, data: Data, recipe: Recipe, loader: str, seed: int) -> float:
    """Test accuracy, on the whole graph, after training on sampled batches.

    Args:
        loader: "hongtu" or "torch_geometric".
    """
    model = recipe.model(artifact, seed)
    optimizer = recipe.optimizer(model.parameters())
    batches: Iterable[Any]
    if loader == "hongtu":
        batches = NeighborLoader(artifact, FANOUTS, batch_size=recipe.batch_size, seed=seed)
    else:
        from torch_geometric.loader import NeighborLoader as Theirs

        seeds = data.train_mask
        batches = Theirs(data, FANOUTS, seeds, batch_size=recipe.batch_size, shuffle=True, is_sorted=True)
    for _ in range(recipe.epochs):
        for batch in batches:
            optimizer.zero_grad()
            size = batch.batch_size
            cross_entropy(model(batch.x, batch.edge_index)[:size], batch.y[:size]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(data.x, data.edge_index).argmax(1) == data.y
    return float(right[data.test_mask].float().mean())


if __name__ == "__main__":
    main()
