"""The recipes: on which graph, the settings of its run, and what was published.

A graph is found in the user's folder under its own name, or generated with as many columns and classes. Accuracies with
a hint of a paper are that paper's; others are of OGB's leaderboards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MODELS = "experiments.recipes.models"


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Attributes:
    folder: in the directory of graphs; of OGB as its package unpacks it.
    settings: of :class:`~hongtu.config.PreprocessConfig`.
    features, classes: columns and classes of its stand-in.
    edge_features: columns beside its edges, of the stand-in.
    """

    folder: str
    settings: dict[str, Any] = field(default_factory=dict)
    features: int = 128
    classes: int = 40
    edge_features: int = 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Attributes:
    graph: of ``GRAPHS``.
    run: settings of `hongtu train`; empty where nothing is trained.
    published: test score, and where it is from.
    parameters: how many are published; None: not said.
    propagate: alpha and normalisation of label propagation, which takes the place of a model.
    correct, smooth: alpha and normalisation of each, for what the trained model says; None: not done.
    """

    graph: str
    published: str
    run: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    propagate: tuple[float, str] | None = None
    correct: tuple[float, str] | None = None
    smooth: tuple[float, str] | None = None


SMALL = {"partitions": 1, "chunks": 1, "normalize_features": True}
UNDIRECTED = {"partitions": 1, "chunks": 64, "undirected": True}
GRAPHS = {
    "cora": Graph(folder="planetoid-cora", settings=SMALL, features=1433, classes=7),
    "citeseer": Graph(folder="planetoid-citeseer", settings=SMALL, features=3703, classes=6),
    "physics": Graph(
        folder="coauthor-physics", features=8415, classes=5,
        settings=SMALL | {"random_split": (20, 30, "rest"), "stratify": True},
    ),
    "arxiv": Graph(folder="ogbn_arxiv", settings=UNDIRECTED),
    "arxiv-loops": Graph(folder="ogbn_arxiv", settings=UNDIRECTED | {"self_loops": True}),
    "arxiv-edges": Graph(folder="ogbn_arxiv", settings=UNDIRECTED | {"features": "degree"}),
    "products": Graph(folder="ogbn_products", settings=UNDIRECTED | {"chunks": 256}, features=100, classes=47),
    "proteins": Graph(
        folder="ogbn_proteins", settings=UNDIRECTED | {"features": "degree"}, features=4, classes=112, edge_features=8
    ),
    "papers": Graph(folder="ogbn_papers100M", settings=UNDIRECTED | {"chunks": 512, "order": "input"}, classes=172),
}  # fmt: skip


def best(model: str, epochs: int, lr: float, **more: Any) -> dict[str, Any]:
    """A run whose weights are those of the best validation score, looked at after every epoch."""
    model = model if model in ("gcn", "gat") else f"{MODELS}:{model}"
    return {"model": model, "epochs": epochs, "lr": lr, "eval_every": 1, "restore_best": True, **more}


KIPF = {"model": "gcn", "hidden": 16, "dropout": 0.5, "weight_decay": 5e-4, "epochs": 200, "eval_every": 0}
VELICKOVIC = {
    "model": "gat", "hidden": 64, "heads": 8, "dropout": 0.6, "lr": 0.005, "weight_decay": 5e-4, "epochs": 200,
    "eval_every": 0,
}  # fmt: skip
RECIPES = {
    "cora-gcn": Recipe(graph="cora", run=KIPF, published="0.815 (Kipf and Welling, 2017)"),
    "cora-gat": Recipe(graph="cora", run=VELICKOVIC, published="0.830 +- 0.007 (Velickovic et al., 2018)"),
    "cora-propagation": Recipe(
        graph="cora", propagate=(0.9, "symmetric"), published="0.680 (of Zhu et al., in Kipf and Welling, 2017)"
    ),
    "citeseer-gcn": Recipe(graph="citeseer", run=KIPF, published="0.703 (Kipf and Welling, 2017)"),
    "citeseer-propagation": Recipe(
        graph="citeseer", propagate=(0.9, "symmetric"), published="0.453 (of Zhu et al., in Kipf and Welling, 2017)"
    ),
    "physics-gcn": Recipe(
        graph="physics", run=best("physics_gcn", 200, 0.01, weight_decay=1e-3),
        published="0.928 +- 0.010 (Shchur et al., 2018)",
    ),
    "arxiv-propagation": Recipe(graph="arxiv-edges", propagate=(0.868, "source"), published="0.6832 +- 0.0000"),
    "arxiv-linear-cs": Recipe(
        graph="arxiv", run=best("linear", 1000, 0.01), published="0.7126 +- 0.0001 (Huang et al., 2021)",
        parameters=5_160, correct=(0.87, "source"), smooth=(0.81, "symmetric"),
    ),
    "arxiv-gcn": Recipe(
        graph="arxiv", run=best("arxiv_gcn", 500, 0.01), published="0.7174 +- 0.0029", parameters=110_120
    ),
    "arxiv-sage": Recipe(
        graph="arxiv", run=best("arxiv_sage", 500, 0.01), published="0.7149 +- 0.0027", parameters=218_664
    ),
    "arxiv-gcnii": Recipe(
        graph="arxiv", run=best("arxiv_gcnii", 1000, 0.001, patience=200), published="0.7274 +- 0.0016",
        parameters=2_148_648,
    ),
    "arxiv-gcn-tuned": Recipe(
        graph="arxiv", run=best("tuned_gcn", 2000, 5e-4, weight_decay=5e-4),
        published="0.7353 +- 0.0012 (Luo et al., 2024)",
    ),
    "arxiv-gat": Recipe(
        graph="arxiv-loops", published="0.7366 +- 0.0011 (norm. adj. and labels; Wang et al., 2021)",
        parameters=1_441_580,
        run=best(
            "arxiv_gat", 2000, 0.002, optimizer="RMSprop", scheduler="LinearLR(0.02, 1, 49)",
            loss=f"{MODELS}:of_hidden", metric=f"{MODELS}:accuracy",
        ),
    ),
    "arxiv-gat-cs": Recipe(
        graph="arxiv-loops", published="0.7386 +- 0.0014 (without labels as input; Huang et al., 2021)",
        run=best(
            "arxiv_gat", 2000, 0.002, optimizer="RMSprop", scheduler="LinearLR(0.02, 1, 49)",
            loss=f"{MODELS}:of_hidden", metric=f"{MODELS}:accuracy",
        ), smooth=(0.8, "symmetric"),
    ),
    "products-gcn": Recipe(
        graph="products", run=best("products_gcn", 300, 0.01), published="0.7564 +- 0.0021", parameters=103_727
    ),
    "products-sage": Recipe(
        graph="products", run=best("products_sage", 300, 0.01), published="0.7850 +- 0.0014", parameters=206_895
    ),
    "proteins-gcn": Recipe(
        graph="proteins", run=best("proteins_gcn", 1000, 0.01, metric="auc", eval_every=5),
        published="0.7251 +- 0.0035", parameters=96_880,
    ),
    "proteins-sage": Recipe(
        graph="proteins", run=best("proteins_sage", 1000, 0.01, metric="auc", eval_every=5),
        published="0.7768 +- 0.0020", parameters=193_136,
    ),
    "papers-sgc": Recipe(
        graph="papers", run=best("papers_sgc", 100, 0.01), published="0.6329 +- 0.0019", parameters=144_044
    ),
    "papers-sign": Recipe(
        graph="papers", run=best("papers_sign", 1000, 5e-5),
        published="0.6568 +- 0.0006 (hops along, against and both ways; here both ways)",
    ),
}  # fmt: skip
