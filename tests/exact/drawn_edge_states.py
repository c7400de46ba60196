"""Random models whose edges have states from layer to layer (``drawn.py``), ours and the same on the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from hongtu import nn as hnn
from tests.edge_state_models import EdgeModel, GatedWhole, Gine, MeshWhole, Own, OwnWhole, Pair, PairWhole, Sum
from tests.models import Model
from tests.problems import Problem


def draw_edge_states(rng: np.random.Generator, problem: Problem, *, drops: bool) -> Model:
    """A model for a graph with edge features; its reference has no dropout."""
    drawn = _Drawn(rng, problem, drops)
    for _ in range(int(rng.integers(1, 4))):
        drawn.add_layer()
    drawn.add(lambda ours, columns=drawn.columns: [nn.Linear(columns, problem.classes)])

    def side(ours: bool) -> Callable[[int, int], list[Any]]:
        return lambda f, c: [entry for make in drawn.parts for entry in make(ours)]

    return EdgeModel(f"states: {' '.join(drawn.names)}", side(True), side(False))


class _Drawn:
    """A layer list in the making.

    Attributes:
        parts: (ours, or the reference) -> entries.
        columns: of the rows of vertices.
        states: by the names of values of edges, their columns.
    """

    def __init__(self, rng: np.random.Generator, problem: Problem, drops: bool) -> None:
        assert problem.edge_features is not None
        self.rng, self.drops = rng, drops
        self.parts: list[Callable[[bool], list[Any]]] = []
        self.names: list[str] = []
        self.columns, self.states = problem.width, {"e": problem.edge_features.shape[1]}

    def add(self, make: Callable[[bool], list[Any]]) -> None:
        self.parts.append(make)

    def some(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def width(self) -> int:
        return int(self.rng.integers(1, 7))

    def name(self) -> str:
        """Of a value of edges: a new one, or one whose value nobody can have any more."""
        return f"e{len(self.states)}" if self.some(0.7) else str(self.rng.choice([*self.states]))

    def add_layer(self) -> None:
        columns, kinds = self.columns, [self._mesh, self._mesh, self._gated, self._own, self._pair, self._gine]
        if self.some(0.4):
            self.columns = width = self.width()
            self.add(lambda ours: [(nn.Linear(columns, width), "x -> x")])
        if self.some(0.25):
            between = [nn.ReLU, lambda width=self.columns: nn.BatchNorm1d(width), lambda: hnn.Dropout(0.3)]
            make = between[self.rng.integers(3 if self.drops else 2)]
            self.add(lambda ours: [(make(), "x -> x")])
        taken = str(self.rng.choice([*self.states]))
        if self.some(0.4):
            taken = self._rows_of_edges(taken, self.width())
        layer = kinds[self.rng.integers(len(kinds))]
        self.names.append(layer.__name__.removeprefix("_"))
        layer(taken)

    def _rows_of_edges(self, taken: str, width: int) -> str:
        """A linear map, and what may stand behind it; or the sum of several."""
        alike = [name for name in self.states if self.states[name] == self.states[taken]]
        given, columns = self.name(), self.states[taken]
        if len(alike) > 1 and self.some(0.5) and width == columns:
            self.add(lambda ours: [(Sum(), f"{', '.join(alike)} -> {given}")])
            self.states[given] = columns
            return given
        behind = [nn.Tanh, lambda: nn.LayerNorm(width), lambda: hnn.Dropout(0.4)]
        make = behind[self.rng.integers(3 if self.drops else 2)]
        self.add(lambda ours: [(nn.Linear(columns, width), f"{taken} -> {given}"), (make(), f"{given} -> {given}")])
        self.states[given] = width
        return given

    def _mesh(self, taken: str) -> None:
        columns, edges, times = self.columns, self.states[taken], int(self.rng.integers(1, 4))
        options: dict[str, Any] = {"hidden": self.width(), "hidden_layers": int(self.rng.integers(1, 3))}
        options |= {"norm": self.some(0.6), "aggr": "mean" if self.some(0.4) else "sum", "activation": "tanh"}
        given = self.name()

        def make(ours: bool) -> list[Any]:
            block = (hnn.MeshBlock if ours else MeshWhole)(columns, edges, **options)
            again = [(block, f"x, {given} -> x, {given}")] * (times - 1)  # steps with the same weights
            return [(block, f"x, {taken} -> x, {given}"), *again]

        self.add(make)
        self.states[given] = edges

    def _gated(self, taken: str) -> None:
        out, norm, residual = self.width(), "layer" if self.some(0.5) else None, self.some(0.5)
        options = {"norm": norm, "residual": residual}
        self._layer(hnn.GatedGCNConv, GatedWhole, (self.columns, out, self.states[taken]), taken, out, out, options)

    def _own(self, taken: str) -> None:
        out = self.width()
        self._layer(Own, OwnWhole, (self.columns, self.states[taken], out), taken, self.columns + out, out)

    def _pair(self, taken: str) -> None:
        out = self.width()
        self._layer(Pair, PairWhole, (self.columns, self.states[taken], out), taken, out, out)

    def _gine(self, taken: str) -> None:
        columns, out = self.columns, self.width()
        if self.states[taken] != columns:
            taken = self._rows_of_edges(taken, columns)
        self.add(
            lambda ours: [((hnn.GINEConv if ours else Gine)(nn.Linear(columns, out)), f"x, {taken} -> x"), nn.Tanh()]
        )
        self.columns = out

    def _layer(
        self, ours: Any, whole: Any, given: tuple[int, ...], taken: str, columns: int, edges: int, options: Any = None
    ) -> None:
        gives, options = self.name(), options or {}
        kinds = {True: ours, False: whole}
        self.add(lambda ours: [(kinds[ours](*given, **options), f"x, {taken} -> x, {gives}")])
        self.columns, self.states[gives] = columns, edges
