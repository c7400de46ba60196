"""What a trained model gives: scores, predictions, rows of its layers."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hongtu.engine.engine import Engine
from hongtu.errors import InputError, names_known
from hongtu.graph.artifact import Artifact
from hongtu.metrics import EpochRecord
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.edge_targets import EdgeTargets
from hongtu.model.loss_terms import Unscored
from hongtu.model.network import Network
from hongtu.model.random_state import deterministic_torch
from hongtu.model.vertex_loss import MeanLoss
from hongtu.model.wiring import resolve
from hongtu.nn import Layer
from hongtu.nn.context import RowContext
from hongtu.plan.passes.definition import OUTPUT
from hongtu.ranks.likeness import likeness
from hongtu.ranks.together import Alone, called_by_all
from hongtu.train.evaluators import Evaluation
from hongtu.train.network_plan import Job
from hongtu.train.outputs import check_rows_file, write_rows
from hongtu.train.ranked import state_of
from hongtu.train.resumable import Resumable
from hongtu.train.runtime import Runtime
from hongtu.train.settings import adam, make_loss

T = TypeVar("T")
FEW = 20  # vertices, which a message can name
LOSS_OF_VAL = "val_loss"


class Inferring(Resumable):
    """The part of a :class:`~hongtu.train.trainer.Trainer` that runs its model without training it.

    Attributes:
        inferred: what the last ``predict``, ``embed`` or ``evaluate`` moved and took, without what ran once before it.
    """

    inferred: EpochRecord | None = None
    record: EpochRecord | None
    check_trains: Callable[[], None]
    train_epoch: Callable[[], EpochRecord]
    deterministic: bool
    _budget: int | None
    _evaluation: Evaluation
    _link_scores: Any
    _loss: MeanLoss | EdgeLoss
    _runtime: Runtime
    _share: Artifact
    _validation: MeanLoss | None

    @called_by_all(Resumable._check_whole)
    def evaluate(self) -> dict[str, float]:
        """Scores without dropout, the higher the better: ``{"train", "val", "test"}``, by ``metric``: accuracy;
        micro-F1 for multi-label; R2 for regression, with ``"train_mae"``, ``"train_rmse"``, ... as well; the loss as
        ``"val_loss"`` where a ReduceLROnPlateau is stepped with it; for links the
        AUC: the probability that an edge has a higher score than one of its negatives; for targets of edges as for
        those of vertices. Beside a loss over vertices those of edges are ``"train links"``, ..."""
        edges = self._loss if isinstance(self._loss, EdgeLoss) else None
        if edges is not None and edges.beside is None:
            return self._infer(self._runtime, lambda out, ids: self._scores_of_edges(edges))
        own = self._share.span
        labels = torch.from_numpy(np.array(self.artifact.labels[own]))
        masks = {split: torch.from_numpy(np.array(mask[own])) for split, mask in self.artifact.masks.items()}

        def score(out: Tensor, ids: Tensor) -> dict[str, float]:
            found = self._evaluation(out, labels, masks, self.ranks)
            if edges is not None:
                of_edges = self._scores_of_edges(edges)
                found |= {re.sub("^(train|val|test)", r"\1 links", name): x for name, x in of_edges.items()}
            if self._validation is not None:
                loss = self._validation.value(out, own.start)
                self.ranks.add_up([loss])
                found[LOSS_OF_VAL] = float(loss)
            return found

        return self._infer(self._runtime, score)

    @names_known
    @called_by_all(Resumable._check_whole)
    def predict(self, vertices: Iterable[Any] | None = None, *, out: str | os.PathLike[str] | None = None) -> Any:
        """The model's output without dropout, [N, C]: row k is vertex k of the original order, which is
        ``artifact.vertex_ids[k]`` where the input has ids of its own. Of a model for types of vertices what its forward
        returns: the rows of one type, or a dictionary by type.

        Args:
            vertices: the vertices whose rows to return, in this order, named as the input names them; None: all. With
                types, by their numbers among all vertices.
            out: a .npy file to write all rows to instead, complete or absent; a memory map of it is returned. Of
                several ranks the first writes it, where all can read it.
        """
        if out is not None and vertices is not None:
            raise InputError("predict: vertices and out do not go together; pick rows of the memory map")
        rows, returns = self.embed(-1, vertices, out=out), getattr(self.model[-1], "returns", None)
        if returns is None or vertices is not None or out is not None:
            return rows
        types, (only, columns) = self.artifact.types, returns
        assert types is not None
        by_type = {types.names[kind]: rows[types.span(types.names[kind]), :width] for kind, width in columns.items()}
        return by_type[only] if only else by_type

    @names_known
    @called_by_all(Resumable._check_whole)
    def embed(
        self, layer: int, vertices: Iterable[Any] | None = None, *, out: str | os.PathLike[str] | None = None
    ) -> Tensor | np.ndarray:
        """What one layer gives without dropout, [N, columns] in the original order.

        Args:
            layer: its position in ``model``, from the end where it is negative; -1 is ``predict``.
            vertices, out: as in ``predict``.
        """
        with self.ranks.agreed():
            number = layer_number(self.model, layer)
            numbers = None if vertices is None else torch.from_numpy(self.artifact.numbers(vertices))
        self.ranks.check_same({"layer": number, "vertices": _shown(numbers), "out": out is not None})
        file = None if out is None else Path(self.ranks.first(lambda: str(check_rows_file(out))))

        last = number == len(self.model) - 1
        runtime = self._runtime if last else self._layer_runtime(number)

        def use(rows: Tensor, ids: Tensor) -> Tensor | np.ndarray:
            if file is not None:
                return write_rows(file, rows, ids, self.ranks, runtime.engine.let_go)
            parts = zip(self.ranks.each(rows), self.ranks.each(ids), strict=True)
            return _picked(parts, rows.shape[1], self.artifact.num_vertices, numbers)

        return self._infer(runtime, use)

    def close(self) -> None:
        """Free the devices' and the host's memory, and the disk; the next epoch or prediction takes them again."""
        self._runtime.close()

    def _scores_of_edges(self, loss: EdgeLoss) -> dict[str, float]:
        """By split, of the output that is on the host; every rank finds the same."""
        engine, metrics = self._runtime.engine, self._link_scores
        out = engine.host[OUTPUT] if engine.outputs is None else engine.outputs.fetch(engine.host[OUTPUT])
        if isinstance(loss, EdgeTargets):
            own = self._evaluation if loss.beside is None else Evaluation(None, loss.task)
            own.threshold = loss.threshold
            metrics = partial(own, ranks=Alone())
        return loss.scores(out, self._context.seed, metrics)

    @property
    def validates(self) -> bool:
        """Whether ``evaluate`` has a validation score."""
        if isinstance(self._loss, EdgeLoss) and self._loss.beside is None:
            return self._loss.validates
        return bool(self.artifact.masks["val"].any())

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher score of ``evaluate`` is a better one: by ``metric``."""
        return self._evaluation.higher_is_better

    @property
    def watched(self) -> str | None:
        """Which number of ``evaluate`` a ReduceLROnPlateau is stepped with: the validation score where its mode is the
        score's direction, the validation loss under mode "min"; None: neither."""
        mode = getattr(self.scheduler, "mode", "") if isinstance(self.scheduler, ReduceLROnPlateau) else ""
        if mode == ("max" if self.higher_is_better else "min"):
            return "val"
        return LOSS_OF_VAL if mode == "min" and isinstance(self._loss, MeanLoss) else None

    def _check_ranks_alike(self) -> None:
        """Before a run, of whatever has been changed on some ranks alone."""
        if self.ranks.size > 1:
            self.ranks.check_same(state_of(self.model, self._named, self.optimizer))

    @torch.inference_mode(False)
    def _infer(self, runtime: Runtime, use: Callable[[Tensor, Tensor], T]) -> T:
        """What is made of a model's output, [V, C] in new order, and the original id of every row, int64 [V]."""

        def work(engine: Engine) -> T:
            start = perf_counter()
            engine.reset_counters()
            with deterministic_torch(self.deterministic), engine.inferred() as out:
                self.inferred = engine.record(self.epoch, math.nan, perf_counter() - start)
                return use(self._share.own(out), self._share.own(engine.host["ids"]))

        self._check_ranks_alike()
        return runtime.run(work)

    @torch.inference_mode(False)
    def _layer_runtime(self, number: int) -> Runtime:
        """Infers what layer ``number`` gives: copies of the layers, with a plan of their own within the same budget,
        beside whatever the trainer holds."""
        network = Network(self.model.first(number + 1), RowContext(), self._spec.autocast)
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
        job = Job(
            self._share,
            make_loss(self._share, Unscored()),
            optimizer,
            replace(self._spec, make_rows_optimizer=adam, clips=False),
        )
        embedding = copy.copy(self.embedding)
        if embedding is not None:
            embedding.weight = nn.Parameter(embedding.weight.detach())
        return Runtime(job, network, rows=None if embedding is None else lambda: embedding, budget=self._budget)


def _picked(parts: Iterable[tuple[Tensor, Tensor]], columns: int, vertices: int, numbers: Tensor | None) -> Tensor:
    """Rows of the numbered vertices, or of all, of parts that hold rows [R, C] and the vertex of each."""
    count, found = vertices if numbers is None else len(numbers), None
    for rows, ids in parts:
        found = rows.new_empty((count, columns)) if found is None else found
        if numbers is None:
            found.index_copy_(0, ids, rows)
            continue
        place = torch.full((vertices,), -1)
        place[ids] = torch.arange(len(ids))
        own = place[numbers]
        here = (own >= 0).nonzero().squeeze(1)
        found.index_copy_(0, here, rows.index_select(0, own[here]))
    assert found is not None
    return found


def _shown(numbers: Tensor | None) -> str:
    """What ranks compare vertices by: themselves where they are few."""
    return "all" if numbers is None else str(numbers.tolist()) if len(numbers) <= FEW else likeness(numbers)


def layer_number(model: nn.ModuleList, layer: int) -> int:
    """The position of a layer in the model, counted from its end where it is negative.

    Raises:
        InputError: when there is none, or no graph layer up to it.
    """
    if not isinstance(layer, Integral) or not -len(model) <= layer < len(model):
        last = len(model) - 1
        raise InputError(f"embed: layer {layer!r}, expected 0 to {last}, or -1 to {-len(model)} from the end")
    number = int(layer) % len(model)
    if resolve(model)[number][0].of_edges:
        raise InputError(f"embed: layer {layer} gives rows of edges, expected a layer that gives rows of vertices")
    if not any(isinstance(module, Layer) for module in list(model)[: number + 1]):
        raise InputError(f"embed: layer {layer} comes before the first graph layer; apply it to your features yourself")
    return number
