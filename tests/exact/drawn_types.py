"""Random graphs with types of vertices and relations, and models for them (``drawn.py``): torch_geometric's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import hongtu
from tests.models import Model, modules_of
from tests.problems import Problem

Relation = tuple[str, str, str]


# ---------------------------------------------------------------------------------------------------------------- graph


def draw_graph(rng: np.random.Generator, kind: str) -> tuple[Problem, HeteroData]:
    """Types of few vertices or of many, with features or without; relations with edges or without, edges twice, loops,
    and vertices without any."""
    counts = {f"t{k}": int(rng.choice([1, 2, rng.integers(3, 50)])) for k in range(rng.integers(1, 5))}
    counts["t0"] = max(counts["t0"], 8)
    names = [*counts]
    pairs = [(str(rng.choice(names)), name) for name in names]  # each type is a destination
    pairs += [(str(rng.choice(names)), str(rng.choice(names))) for _ in range(rng.integers(0, 3))]
    data, generator = HeteroData(), torch.Generator().manual_seed(int(rng.integers(1 << 30)))
    for name, count in counts.items():
        data[name].num_nodes = count
        if name == "t0" or rng.random() < 0.7:
            data[name].x = torch.randn(count, int(rng.integers(1, 7)), generator=generator)
    weighted = rng.random() < 0.4
    for k, (source, destination) in enumerate(pairs):
        size = int(rng.choice([0, rng.integers(1, 8), rng.integers(8, 120)], p=[0.15, 0.2, 0.65]))
        ends = [torch.randint(max(1, counts[name] - 2), (size,), generator=generator) for name in (source, destination)]
        store = data[source, f"r{k}", destination]
        store.edge_index = torch.stack(ends)
        store.edge_index[:, : size // 5] = store.edge_index[:, size - size // 5 :]
        if rng.random() < 0.5:
            store.edge_attr = torch.randn(size, int(rng.integers(1, 4)), generator=generator)
        if weighted:
            store.edge_weight = torch.rand(size, generator=generator) + 0.5
    return _labelled(rng, kind, data, counts), data


def _labelled(rng: np.random.Generator, kind: str, data: HeteroData, counts: dict[str, int]) -> Problem:
    """Labels of one type, or of two."""
    labelled = [name for name, count in counts.items() if name == "t0" or (count > 3 and rng.random() < 0.2)]
    classes, few = int(rng.integers(2, 5)), rng.random() < 0.3
    for name in labelled:
        store, count = data[name], counts[name]
        if kind == "classes":
            store.y = torch.from_numpy(np.r_[np.arange(classes), rng.integers(0, classes, count)][:count])
        elif kind == "labels":
            store.y = torch.from_numpy((rng.random((count, classes)) < 0.4).astype(np.float32))
        else:
            store.y = torch.from_numpy(rng.normal(size=(count, classes)).astype(np.float32))
        train = torch.from_numpy(np.arange(count) < 2 if few else rng.random(count) < 0.5)
        train[0] = True
        store.train_mask, store.val_mask, store.test_mask = train, ~train, torch.zeros_like(train)
    blank = {"classes": torch.full, "labels": torch.zeros, "numbers": torch.zeros}[kind]
    rows = {name: data[name].get("y") for name in counts}
    unknown = ((-1,),) if kind == "classes" else ()
    shape = () if kind == "classes" else (classes,)
    labels = [blank((count, *shape), *(x[0] for x in unknown)) for count in counts.values()]
    labels = [own if rows[name] is None else rows[name] for name, own in zip(counts, labels, strict=True)]
    none = {name: torch.zeros(count, dtype=torch.bool) for name, count in counts.items()}
    masks = {
        split: torch.cat([data[name].get(f"{split}_mask", none[name]) for name in counts]).numpy()
        for split in ("train", "val", "test")
    }
    first = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    ends = [data[r].edge_index.numpy() + np.array([[first[r[0]]], [first[r[2]]]]) for r in data.edge_types]
    return Problem(
        name="types",
        edges=np.concatenate(ends, axis=1),
        weights=None,
        features=np.zeros((sum(counts.values()), 1), np.float32),
        labels=torch.cat(labels).numpy(),
        masks=masks,
        task={"numbers": "regression"}.get(kind),
        columns=classes,
        given={"data": data},
    )


# --------------------------------------------------------------------------------------------------------------- models


class Random(nn.Module):
    """Some hops, and what stands between them.

    Args:
        spec: how it was drawn, of plain values: the same again is the same model.
    """

    def __init__(self, data: HeteroData, spec: Spec) -> None:
        super().__init__()
        self.spec, self.labelled = spec, [name for name in data.node_types if "y" in data[name]]
        bare = {name: data[name].num_nodes for name in data.node_types if "x" not in data[name]}
        self.rows = nn.ModuleDict({name: nn.Embedding(count, spec.width) for name, count in bare.items()})
        mapped = [name for name in data.node_types if name not in bare and spec.maps]
        self.first = nn.ModuleDict({name: pyg.Linear(-1, spec.width) for name in mapped})
        self.hops = nn.ModuleList(spec.hop(data, k) for k in range(spec.hops))
        self.norm = nn.LayerNorm(spec.width)
        self.last = nn.ModuleDict({name: pyg.Linear(-1, spec.columns) for name in self.labelled})
        self.dropout, self.end = nn.Dropout(0.4), nn.Identity() if spec.last is None else spec.last()

    def forward(
        self, x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any = None, edge_weight_dict: Any = None
    ) -> Any:
        spec = self.spec
        x_dict = {**x_dict, **{name: rows.weight for name, rows in self.rows.items()}}
        x_dict = {**x_dict, **{name: lin(x_dict[name]).relu() for name, lin in self.first.items()}}
        for k, hop in enumerate(self.hops):
            before, beside = x_dict, {}
            if isinstance(hop, pyg.HeteroConv):
                of_edges = {"edge_attr": edge_attr_dict, "edge_weight": edge_weight_dict}
                for name, given in of_edges.items():
                    taken = spec.taken[k][name]
                    if given is not None and taken:
                        beside[f"{name}_dict"] = {relation: given[relation] for relation in taken}
            x_dict = hop(x_dict, edge_index_dict, **beside)
            alike = {name for name in before if spec.alike and (k > 0 or name in self.rows or name in self.first)}
            x_dict = {
                name: self._between(x) + before[name] if spec.skips and name in alike else self._between(x)
                for name, x in x_dict.items()
                if x is not None
            }
        out = {name: lin(x_dict[name]) for name, lin in self.last.items()}
        out = {name: self.end(x) for name, x in out.items()}
        return out if len(out) > 1 else out["t0"]

    def _between(self, x: Tensor) -> Tensor:
        x = self.norm(x) if self.spec.norm and self.spec.alike else x
        x = x.relu() if self.spec.relu else x.tanh()
        return self.dropout(x) if self.spec.drops else x


class Homogeneous(nn.Module):
    """For ``to_hetero``."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.a = pyg.SAGEConv((-1, -1), width)
        self.b = (
            pyg.GraphConv((-1, -1), width) if kind == "sum" else pyg.GATv2Conv((-1, -1), width, add_self_loops=False)
        )

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.b(self.a(x, edge_index).relu(), edge_index)


@dataclass
class Spec:
    """What a random model is made of.

    Attributes:
        kind: "hetero", "hgt", "han" or "to_hetero".
        convs: by hop and relation, the number of a convolution.
        taken: by hop, what convolutions take of edges, and of which relations.
        last: makes what stands behind the model.
    """

    kind: str
    hops: int
    width: int
    columns: int
    aggr: str
    maps: bool
    norm: bool
    relu: bool
    skips: bool
    drops: bool
    convs: list[dict[Relation, int]]
    taken: list[dict[str, list[Relation]]]
    last: Any = None

    @property
    def alike(self) -> bool:
        """Whether all that hops give is of one width."""
        return self.kind != "hetero" or self.aggr != "cat"

    def hop(self, data: HeteroData, k: int) -> nn.Module:
        if self.kind == "hgt":
            return pyg.HGTConv(-1 if not self.maps else self.width, self.width, data.metadata(), heads=self._heads())
        if self.kind == "han":
            return pyg.HANConv(-1, self.width, data.metadata(), heads=self._heads(), dropout=0.3 * self.drops)
        if self.kind == "to_hetero":
            return pyg.to_hetero(Homogeneous(self.width, self.aggr), data.metadata(), aggr=self.aggr)
        return pyg.HeteroConv({r: self._conv(data, k, r, number) for r, number in self.convs[k].items()}, self.aggr)

    def _heads(self) -> int:
        return 2 if self.width % 2 == 0 else 1

    def _conv(self, data: HeteroData, k: int, relation: Relation, number: int) -> nn.Module:
        width, alike, both = self.width, relation[0] == relation[2], (-1, -1)
        edges = {"edge_dim": data[relation].edge_attr.shape[1]} if relation in self.taken[k]["edge_attr"] else {}
        shares = edges | {"dropout": 0.4 * self.drops}
        if number == 0:
            return pyg.SAGEConv(both, width, aggr=("mean", "max", "sum", "std")[k % 4])
        if number == 1:
            return pyg.GraphConv(both, width)
        if number == 2:
            return pyg.GATConv(both, width, heads=2, concat=False, add_self_loops=False, **shares)
        if number == 3:
            return pyg.GATv2Conv(both, width, add_self_loops=False, **shares)
        if number == 4:
            return pyg.TransformerConv(both, width, heads=2, concat=False, beta=True, **shares)
        if number == 5 and alike:
            return pyg.GCNConv(-1, width, improved=k % 2 == 1)
        if number == 6 and alike:
            return pyg.GATConv(-1, width, fill_value=0.3, **shares)
        if number == 7 and alike:
            return pyg.SAGEConv(-1, width, aggr="max")
        return pyg.ResGatedGraphConv(both, width)


TAKE = {"edge_attr": (2, 3, 4, 6), "edge_weight": (1, 5)}  # the numbers of convolutions


def draw_types(rng: np.random.Generator, problem: Problem, data: HeteroData, *, drops: bool) -> Model:
    """A model for such a graph."""
    hops = int(rng.choice([1, 2, 3], p=[0.3, 0.5, 0.2]))
    convs: list[dict[Relation, int]] = [{r: int(rng.integers(9)) for r in data.edge_types} for _ in range(hops)]
    for hop in convs:
        for relation in hop:
            if hop[relation] in (5, 6, 7) and relation[0] != relation[2]:
                hop[relation] = 8
    has = {
        name: [r for r in data.edge_types if name in data[r] and rng.random() < 0.7]
        for name in ("edge_attr", "edge_weight")
    }
    taken = [{name: [r for r in has[name] if hop[r] in TAKE[name]] for name in has} for hop in convs]
    kind = str(rng.choice(["hetero", "hgt", "han", "to_hetero"], p=[0.5, 0.2, 0.15, 0.15]))
    spec = Spec(
        kind, hops, int(rng.integers(1, 7)), problem.classes, str(rng.choice(["sum", "mean", "max", "min", "cat"])),
        *(bool(x) for x in rng.random(4) < (0.6, 0.3, 0.5, 0.4)), drops, convs, taken,
    )  # fmt: skip
    if spec.kind == "to_hetero":
        spec.aggr = "mean" if spec.aggr == "cat" else spec.aggr
    spec.maps |= kind == "hgt"
    none: Any = None
    return TypedModelOf(f"{kind} {spec.aggr} {hops}", none, none, data=data, spec=spec)


@dataclass(frozen=True, eq=False)
class TypedModelOf(Model):
    """torch_geometric's model, and the layers that hongtu makes of it."""

    data: Any = None
    spec: Any = None

    def model(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Random(self.data, self.spec)
            with torch.no_grad():
                self._call(model, torch.float32)  # lazy weights get their shapes
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    def build(self, problem: Problem, seed: int = 0) -> list[Any]:
        return hongtu.from_pyg(self.model(seed))

    def build_reference(self, problem: Problem, dtype: torch.dtype = torch.float64) -> Any:
        return OfTypes(self.model().to(dtype))

    def run_reference(self, modules: Any, problem: Problem, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.of_all(self._call(modules.inside, dtype))

    def _call(self, model: nn.Module, dtype: torch.dtype) -> Any:
        data = copy.copy(self.data)
        given = {"x": data.x_dict, "edge_attr": {}, "edge_weight": {}}
        for name in ("edge_attr", "edge_weight"):
            given[name] = {r: data[r][name] for r in data.edge_types if name in data[r]}
        given = {name: {key: x.to(dtype) for key, x in of.items()} for name, of in given.items()}
        return model(given["x"], data.edge_index_dict, given["edge_attr"] or None, given["edge_weight"] or None)

    def of_all(self, out: Any) -> Tensor:
        """[V, C], NaN for vertices of which the model returns nothing."""
        rows = out if isinstance(out, dict) else {"t0": out}
        first = next(iter(rows.values()))
        blank = {
            name: first.new_full((self.data[name].num_nodes, first.shape[1]), torch.nan)
            for name in self.data.node_types
        }
        return torch.cat([rows.get(name, own) for name, own in blank.items()])


class OfTypes(nn.Module):
    """A model whose parameters have the names that they have in a Trainer's layers."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.names: dict[str, str] = {}

    def know(self, layers: list[Any]) -> None:
        """The layers that stand for it."""
        for name, _ in modules_of(layers).named_parameters():
            number, _, own = name.partition(".")
            self.names[name] = layers[int(number)].pyg_names[own]

    def named_parameters(self, *given: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        found = dict(self.inside.named_parameters(remove_duplicate=False))
        yield from ((name, found[own]) for name, own in self.names.items())

    def load_state_dict(self, state: Any, *given: Any, **options: Any) -> Any:
        named = {f"inside.{self.names[name]}" if name in self.names else name: x for name, x in state.items()}
        return super().load_state_dict(named, *given, **options)
