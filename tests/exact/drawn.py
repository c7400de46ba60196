"""What a random training (``harness.py``) is of: a graph, its labels, a model with its reference, and a loss.

Legend: V vertices, E edges.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

import hongtu
from tests import additions, graphs, problems
from tests.models import SIX, Model, vertex_losses
from tests.problems import Problem

LOSSES = {"classes": "cross_entropy", "labels": "bce_with_logits", "numbers": "mse"}


@dataclass
class Drawn:
    """A training.

    Attributes:
        kind: "classes", "labels" or "numbers".
        class_weights: in the loss module of the model, or None.
        traits: what the training has that others have not.
    """

    kind: str
    problem: Problem
    model: Model
    class_weights: Tensor | None = None
    traits: list[str] = field(default_factory=list)


def draw(rng: np.random.Generator) -> Drawn:
    kind, problem = _problem(rng)
    which, traits = rng.random(), [kind]
    kinds = [*SIX, *additions.NORMS, *additions.CONNECTIONS, *additions.AGGREGATES]
    if which < 0.15:
        problem = problems.with_edge_data(problem)
        kinds = [model for model in additions.EDGES if model.name != "tides"]
        traits.append("edge features")
    elif which < 0.25:
        problem = _typed(problem, int(rng.integers(99)))
        kinds = [additions.TYPED]
        traits.append("vertex types")
    model = _fitting(rng, kinds, problem)
    drawn = Drawn(kind, problem, Model(model.name, model.layers, model.reference, model.inner, LOSSES[kind]))
    drawn.traits = traits + ["an odd number of label columns"] * (problem.labels.ndim == 2 and problem.classes % 2)
    how = rng.random()
    if how < 1 / 4:
        _link(rng, drawn)
    elif how < 1 / 2:
        _target_edges(rng, drawn, beside=how < 3 / 8)
    elif how < 3 / 4:
        _weigh_vertices(rng, drawn)
    elif kind == "classes" and rng.random() < 0.6:
        _weigh_classes(rng, drawn)
    return drawn


def _problem(rng: np.random.Generator) -> tuple[str, Problem]:
    v = int(rng.integers(4, 70))
    e = int(rng.choice([0, rng.integers(1, 30), rng.integers(30, 400)], p=[0.04, 0.2, 0.76]))
    edges = rng.integers(0, v, (2, e))
    if rng.random() < 0.3 and e:
        edges[:, : e // 3] = edges[0, : e // 3]  # loops
    if rng.random() < 0.3 and e:
        edges[rng.integers(2), e // 2 :] = rng.integers(v)  # a hub
    weights = rng.uniform(0.1, 2, e) if rng.random() < 0.4 else None
    kind = str(rng.choice(["classes", "labels", "numbers"], p=[0.5, 0.3, 0.2]))
    graph = graphs.Graph(f"{kind}-{'weighted' if weights is not None else 'plain'}", edges, weights, v)
    classes = int(rng.choice([2, 3, 5, 7] if kind != "classes" else [2, 3, 4]))
    problem = problems.problem_of(
        graph, width=int(rng.integers(1, 9)), classes=classes, multi_label=kind == "labels",
        regression=kind == "numbers",
    )  # fmt: skip
    if rng.random() < 0.3:
        train = np.zeros(v, dtype=bool)
        train[rng.choice(v, size=int(rng.integers(1, 3)), replace=False)] = True
        problem = replace(problem, masks={"train": train, "val": ~train, "test": np.zeros_like(train)})
    return kind, problem


def _typed(problem: Problem, seed: int) -> Problem:
    """With types of vertices, and of edges."""
    kind, parts = problems.typed(problem.num_vertices, seed)
    rows = np.zeros((len(kind), 1 + max(problems.TYPE_WIDTHS)), dtype=np.float32)
    rows[:, 0] = kind
    for k, part in enumerate(parts):
        rows[kind == k, 1 : 1 + part.shape[1]] = part
    return replace(problems.with_edge_data(problem), features=rows, vertex_type=kind, type_features=parts)


def _fitting(rng: np.random.Generator, kinds: list[Model], problem: Problem) -> Model:
    """One that takes these widths: towers divide them."""
    for k in rng.permutation(len(kinds)):
        with contextlib.suppress(ValueError):
            kinds[k].build(problem)
            return kinds[k]
    raise AssertionError("no model takes these widths")


def _link(rng: np.random.Generator, drawn: Drawn) -> None:
    """To a loss of links."""
    edges = additions.some_edges(int(rng.integers(1, 60)), int(rng.integers(99))) % drawn.problem.num_vertices
    negatives = int(rng.integers(1, 4))
    link = hongtu.LinkLoss(edges, negatives=negatives, block=int(rng.choice([8, 64])))
    if rng.random() < 0.5:
        link = hongtu.LinkLoss(edges, decoder=additions.distance, loss=additions.hinge, negatives=negatives)
    link = replace(link, corrupt="both" if negatives == 3 else "destination")
    drawn.model = additions.linked(f"{drawn.model.name} with links", link, drawn.model)
    drawn.traits.append("links")


def _target_edges(rng: np.random.Generator, drawn: Drawn, *, beside: bool) -> None:
    """To a loss of targets of edges, or to this and the one there was."""
    count, columns = int(rng.integers(1, 60)), drawn.problem.classes
    edges = additions.some_edges(count, int(rng.integers(99))) % drawn.problem.num_vertices
    form = str(rng.choice(["numbers", "numbers with holes", "classes", "yes or no"]))
    numbers = rng.normal(size=count if form == "numbers" else (count, columns)).astype(np.float32)
    if form == "numbers with holes":
        numbers[np.add.outer(np.arange(count), np.arange(columns)) % 3 == 0] = np.nan
    targets = {
        "classes": rng.integers(0, columns, count),
        "yes or no": numbers.reshape(count, -1)[:, 0] > 0,
    }.get(form, numbers)  # type: ignore[call-overload]
    of_one = form in ("numbers", "yes or no")
    decoder = additions.distance if of_one else torch.mul
    link = hongtu.LinkLoss(edges, targets=targets, decoder=decoder, block=int(rng.choice([8, 64])))
    weight, name = float(rng.choice([1, 0.3])), drawn.model.loss

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        decoded, truth = decoder(*(out[end] for end in edges)), torch.from_numpy(targets)
        if form == "classes":
            loss = nn.functional.cross_entropy(decoded, truth)
        elif form == "yes or no":
            loss = nn.functional.binary_cross_entropy_with_logits(decoded, truth.double())
        else:
            known = ~truth.isnan()
            loss = nn.functional.mse_loss(decoded[known], truth[known].double())
        if not beside:
            return loss
        mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
        return weight * loss + vertex_losses(squares if name == "mse" else name, out[mask], labels[mask]).mean()

    given = [name, hongtu.LossTerm(link, weight=weight)] if beside else link
    drawn.model = additions.with_loss(f"{drawn.model.name} with {form} of edges", given, whole, drawn.model)
    drawn.traits += [f"{form} of edges", *["a loss of vertices beside"] * beside]


def _weigh_vertices(rng: np.random.Generator, drawn: Drawn) -> None:
    """To a loss with a weight per vertex, some of them zero."""
    weight = rng.uniform(0.1, 3, drawn.problem.num_vertices)
    weight[rng.random(len(weight)) < 0.2] = 0
    weight[drawn.problem.masks["train"].argmax()] = 1
    name = drawn.model.loss

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        mask, target = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
        each = squares if name == "mse" else name
        own = torch.from_numpy(weight)[mask]
        return (vertex_losses(each, out[mask], target[mask]) * own).sum() / own.sum()

    term = hongtu.LossTerm(name, vertex_weight=weight)
    drawn.model = additions.with_loss(f"{drawn.model.name} with vertex weights", term, whole, drawn.model)
    drawn.traits.append("vertex weights")


def _weigh_classes(rng: np.random.Generator, drawn: Drawn) -> None:
    """To a loss with a weight per class, in a module."""
    drawn.class_weights = torch.from_numpy(rng.uniform(0.5, 2, drawn.problem.classes)).float()
    given = nn.CrossEntropyLoss(drawn.class_weights)

    def whole(out: Tensor, problem: Problem, epoch: int) -> Tensor:
        mask, target = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
        return nn.functional.cross_entropy(out[mask], target[mask], given.weight.double())

    drawn.model = additions.with_loss(f"{drawn.model.name} with class weights", given, whole, drawn.model)
    drawn.traits.append("class weights")


def squares(out: Tensor, target: Tensor) -> Tensor:
    return (out - target).square().mean(1)
