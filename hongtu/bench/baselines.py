"""The same models in torch_geometric and DGL, one class per way of running them, and a model's dense products alone.

Each trains on an artifact's graph, features and masks, from the parameters of the layers that it is given, so that
losses can be compared with ours epoch by epoch. torch_geometric is imported where it is used only.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.bench.spec import SAMPLED, Model
from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.train.evaluators import scores

# how torch_geometric gets the edges, and what that needs beside it
FORMS = {
    "pyg": (),
    "pyg-csr": (),
    "pyg-sparse": ("torch_sparse",),
    "pyg-offload": (),
    "pyg-loader": ("pyg_lib|torch_sparse",),
    "loader": (),
    "dgl": ("dgl",),
    "sar": ("dgl", "sar"),
    "dense": (),
}
REMEDY = {
    "dgl": "pip install dgl==1.1.3, under Python 3.11 or older",
    "sar": "pip install git+https://github.com/IntelLabs/SAR",
    "torch_geometric": "pip install torch_geometric",
    "torch_sparse": "pip install --no-build-isolation torch-scatter torch-sparse",
    "pyg_lib|torch_sparse": "pip install --no-build-isolation torch-scatter torch-sparse",
}
MODELS = {  # which forms a model's layers can run in
    "gcn": tuple(FORMS),
    "sage": tuple(FORMS),
    "gin": tuple(form for form in FORMS if form not in ("dgl", "sar")),
    "gat": ("pyg", "pyg-offload", *SAMPLED, "dgl", "sar", "dense"),
    "ggcn": ("pyg", "pyg-offload", *SAMPLED),
}
MATRICES = ("pyg-csr", "pyg-sparse")  # forms that multiply by one
FAN_OUT, BATCH = 10, 1024  # neighbours per layer and vertices per mini-batch of NeighborLoader


def missing(form: str, model: str) -> str | None:
    """Why a form cannot run here, with the remedy; None where it can."""
    if form not in FORMS:
        return f"baseline {form!r}: expected one of {', '.join(FORMS)}"
    if model not in MODELS or form not in MODELS[model]:
        return f"baseline {form}: there is no {model} in that form"
    for package in (("torch_geometric",) if form.startswith("pyg") or form in SAMPLED else ()) + FORMS[form]:
        if not any(importable(name) for name in package.split("|")):
            return f"baseline {form} needs {package.replace('|', ' or ')}: {REMEDY[package]}"
    return None


def make_baseline(form: str, artifact: Artifact, model: Model, layers: Sequence[nn.Module], device: str) -> Any:
    """A baseline by name, which trains one epoch at a time: ``step()`` is one, and gives the loss before it, ``loss()``
    that over the whole graph, nothing learned, ``scores()`` the accuracy on train, val and test vertices.

    Args:
        layers: ours, whose parameters it starts from.
        device: where torch puts the whole graph.
    """
    why_not = missing(form, model.name)
    if why_not is not None:
        raise InputError(why_not)
    if form == "dense":
        return DenseProducts(artifact, model)
    if form == "sar":
        from hongtu.bench.sar import SAR

        return SAR(artifact, model, layers)
    kinds = {"pyg-loader": NeighborSampling, "loader": ArtifactSampling}
    return kinds.get(form, FullBatch)(form, artifact, model, layers, device)


class FullBatch:
    """torch_geometric's layers on the whole graph, in memory, its vertices numbered as they were given.

    Attributes:
        form: "pyg": ``edge_index``, its normalisation cached; "pyg-csr": torch's CSR matrix; "pyg-sparse":
            torch-sparse; "pyg-offload": as "pyg", what backward needs kept on the host by ``save_on_cpu``; "dgl".
    """

    def __init__(
        self, form: str, artifact: Artifact, model: Model, layers: Sequence[nn.Module], device: str = "cpu"
    ) -> None:
        self.form, self.model, self.device = form, model, device
        v = artifact.num_vertices
        if artifact.learns_features or artifact.task != "multiclass" or artifact.topology.edge_weight is not None:
            raise InputError("baselines: expected an artifact with features, one label a vertex and no edge weights")
        self.edges = torch.from_numpy(edge_index(artifact)).to(device)
        features, labels, masks = whole_graph(artifact)
        self.features, self.labels = features.to(device), labels.to(device)
        self.masks = {name: mask.to(device) for name, mask in masks.items()}
        self.modules, load = _modules(artifact, model, form)
        for module, layer in zip(self.modules, layers, strict=True):
            load(module, layer.state_dict())
        self.modules.to(device)
        self.graph = self._make_graph(v)
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=1e-2)

    def _make_graph(self, v: int) -> Any:
        if self.form == "dgl":
            from hongtu.bench.dgl import make_graph

            return make_graph(self.model.name, self.edges, v)
        if self.form not in MATRICES:
            return self.edges
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        edges, weight = self.edges, None
        if self.model.name == "gcn":
            edges, weight = gcn_norm(edges, None, v, False, True)
        if self.form == "pyg-csr":
            return _csr(edges, weight, v)
        from torch_sparse import SparseTensor

        return SparseTensor(row=edges[1], col=edges[0], value=weight, sparse_sizes=(v, v))

    def step(self) -> float:
        self.optimizer.zero_grad()
        pinned = self.device != "cpu"
        offload = torch.autograd.graph.save_on_cpu(pin_memory=pinned) if self.form == "pyg-offload" else nullcontext()
        with offload:
            loss = self._loss(self.forward(self.features, self.graph))
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def loss(self) -> float:
        with torch.no_grad():
            return float(self._loss(self.forward(self.features, self.graph)))

    def scores(self) -> dict[str, float]:
        with torch.no_grad():
            out = self.forward(self.features, self.graph)
        return scores(out, self.labels, self.masks, "multiclass")

    def forward(self, h: Tensor, graph: Any) -> Tensor:
        activation = nn.functional.elu if self.model.name == "gat" else torch.relu
        for index, module in enumerate(self.modules):
            h = module(h, graph)
            h = activation(h) if index + 1 < len(self.modules) else h
        return h

    def _loss(self, out: Tensor) -> Tensor:
        mask = self.masks["train"]
        return nn.functional.cross_entropy(out[mask], self.labels[mask])


class NeighborSampling(FullBatch):
    """torch_geometric's NeighborLoader: mini-batches of sampled neighbourhoods, an approximation. It learns in every
    mini-batch; ``step`` is one sweep over the train vertices, and returns their mean loss."""

    def __init__(self, form: str, artifact: Artifact, model: Model, layers: Sequence[nn.Module], device: str) -> None:
        super().__init__(form, artifact, model, layers, device)
        self.loader = self._make_loader(artifact, [FAN_OUT] * model.layers)

    def _make_loader(self, artifact: Artifact, fanouts: list[int]) -> Any:
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        data = Data(x=self.features.cpu(), y=self.labels.cpu(), edge_index=self.edges.cpu())
        train = self.masks["train"].cpu()
        return NeighborLoader(data, fanouts, input_nodes=train, batch_size=BATCH, shuffle=True)

    def step(self) -> float:
        total, count = 0.0, 0
        for batch in self.loader:
            batch = batch.to(self.device)
            self.optimizer.zero_grad()
            out = self.forward(batch.x, batch.edge_index)[: batch.batch_size]
            loss = nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            self.optimizer.step()
            total, count = total + float(loss.detach()) * batch.batch_size, count + batch.batch_size
        return total / max(count, 1)


class ArtifactSampling(NeighborSampling):
    """The same by ``hongtu.pyg.NeighborLoader``, which samples from the artifact."""

    def _make_loader(self, artifact: Artifact, fanouts: list[int]) -> Any:
        from hongtu.pyg import NeighborLoader

        if artifact.types is not None:
            raise InputError("baseline loader: batches of a graph with named types are HeteroData; leave it out")
        return NeighborLoader(artifact, fanouts, batch_size=BATCH)


class DenseProducts:
    """The dense products of one epoch: per linear map forward and its weight's gradient, and its input's gradient
    except in the first layer. No graph, no loss: the floor of what an epoch takes."""

    def __init__(self, artifact: Artifact, model: Model) -> None:
        widths = model.widths(artifact)
        self.maps = 2 if model.name == "sage" else 1
        self.inputs = [torch.rand(artifact.num_vertices, width) for width in widths]
        self.weights = [torch.rand(b, a) for a, b in itertools.pairwise(widths)]

    def step(self) -> float:
        for index, weight in enumerate(self.weights):
            for _ in range(self.maps):
                torch.mm(self.inputs[index], weight.t())
                torch.mm(self.inputs[index + 1].t(), self.inputs[index])
                if index > 0:
                    torch.mm(self.inputs[index + 1], weight)
        return float("nan")

    def loss(self) -> float:
        return float("nan")

    def scores(self) -> dict[str, float]:
        return {}


def whole_graph(artifact: Artifact) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Features [V, F], labels, and masks [V] by split, of vertices numbered as they were given."""
    rows = artifact.features if artifact.sparse_features is None else artifact.sparse_features.dense()
    new_id = np.argsort(artifact.original_id)
    masks = {name: torch.from_numpy(mask[new_id]) for name, mask in artifact.masks.items()}
    return torch.from_numpy(np.asarray(rows)[new_id]), torch.from_numpy(artifact.labels[new_id]), masks


def edge_index(artifact: Artifact) -> np.ndarray:
    """int64 [2, E], sources above targets, by target."""
    ids = np.asarray(artifact.original_id, dtype=np.int64)
    target = np.repeat(ids, np.diff(artifact.topology.in_edge_start))
    order = np.argsort(target, kind="stable")
    return np.stack([ids[artifact.topology.global_sources()][order], target[order]])


def _csr(edges: Tensor, weight: Tensor | None, v: int) -> Tensor:
    """[V, V] by destination, with repeated edges as often as they are there: torch_geometric's helper merges them."""
    order = torch.argsort(edges[1] * v + edges[0])
    start = torch.cat([edges.new_zeros(1), torch.bincount(edges[1], minlength=v).cumsum(0)])
    value = torch.ones(len(order), device=edges.device) if weight is None else weight[order]
    return torch.sparse_csr_tensor(start, edges[0, order], value, (v, v), check_invariants=False)


def _modules(artifact: Artifact, model: Model, form: str) -> tuple[nn.ModuleList, Callable[..., Any]]:
    """A form's layers, and what gives one of them parameters by torch_geometric's names."""
    widths = list(itertools.pairwise(model.widths(artifact)))
    if form == "dgl":
        from hongtu.bench.dgl import LAYERS, load

        return nn.ModuleList(LAYERS[model.name](a, b) for a, b in widths), load
    from torch_geometric import nn as pyg

    cached, normalize = form in ("pyg", "pyg-offload"), form not in MATRICES

    def gin(a: int, b: int) -> nn.Module:
        return pyg.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b)))

    make: dict[str, Callable[[int, int], nn.Module]] = {
        "gcn": lambda a, b: pyg.GCNConv(a, b, cached=cached, normalize=normalize),
        "sage": pyg.SAGEConv,
        "gin": gin,
        "gat": pyg.GATConv,
        "ggcn": pyg.ResGatedGraphConv,
    }
    return nn.ModuleList(make[model.name](a, b) for a, b in widths), nn.Module.load_state_dict


def importable(name: str) -> bool:
    """Whether a package is there and loads."""
    try:
        importlib.import_module(name)
    except (ImportError, OSError):  # a build for another torch
        return False
    return True
