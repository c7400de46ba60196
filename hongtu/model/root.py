"""How a model is called while it is traced: with rows and edges by its own names, or with one ``Data`` of them."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from torch import nn

from hongtu.model.edge_inputs import FEATURES, MATRIX, TYPES, WEIGHTS
from hongtu.model.python_questions import class_of
from hongtu.model.questions import Questions

OF_EDGES = (WEIGHTS, FEATURES, TYPES)  # arguments of a model, and of convolutions, that have a row for each edge


class NoField(Exception):
    """A field that a ``Data`` may have, and this one has not; whoever asks whether it has gets this, too."""


class GivenData(SimpleNamespace):
    """A ``Data`` of the whole graph as a forward may read it."""

    batch = None
    __class__ = property(class_of)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else NoField(name)

    @property
    def num_nodes(self) -> Any:
        return self.x.size(0)

    @property
    def num_features(self) -> Any:
        return self.x.size(1)

    num_node_features = num_features

    def to(self, *given: Any, **more: Any) -> GivenData:
        """It is where the run has it."""
        return self

    def __contains__(self, name: str) -> bool:
        if name in ("x", "edge_index"):
            return True
        raise NoField(name)

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, str):
            raise TypeError(f"a {GivenData.__name__} has no {name!r}")
        return getattr(self, name)


class Root(nn.Module):
    """Calls the model with rows, edges and what it asks of edges, or with one ``Data`` of them all; everything else has
    its default.

    Args:
        without: what it takes of edges with a default, or as a field of a ``Data``, and is None; the rest is given.
    """

    def __init__(self, model: nn.Module, without: Collection[str]) -> None:
        super().__init__()
        self.model = model
        given = inspect.signature(model.forward).parameters.values()
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        self.unnamed = [str(argument) for argument in given if argument.kind in several]
        single = [argument for argument in given if argument.kind not in several]
        needed = [argument.name for argument in single if argument.default is argument.empty]
        self.asked = needed or [argument.name for argument in single if argument.name not in OF_EDGES][:2]
        others = [argument.name for argument in given if argument.name not in self.asked]
        possible = (*self.asked, *others) if len(self.asked) == 1 else self.asked
        known = [name for name in possible if name in ("edge_index", MATRIX, "adj")]
        self.rows, edges, *_ = [*(name for name in self.asked if name not in known[:1]), "", ""]
        self.edges = known[0] if known else edges
        self.of_matrix = self.edges in (MATRIX, "adj")
        self.of_data = len(self.asked) == 1 and not known
        self._in_order = [  # what comes first, as people give it, and as hooks get it
            argument for argument in single
            if argument.kind is argument.POSITIONAL_ONLY
            or (argument.kind is argument.POSITIONAL_OR_KEYWORD and argument.name in needed)
        ]  # fmt: skip
        self.optional = ({*OF_EDGES} if self.of_data else {*OF_EDGES} & {*others}) - {*without}
        self.given = {*OF_EDGES} - ({*without} - {*self.asked})
        of_edges = {*OF_EDGES} & ({*self.asked} | self.optional)
        self.questions = Questions(self, of_edges, of_matrix=self.of_matrix or self.of_data)

    def forward(
        self, x: Any, edge_index: Any, adj_t: Any = None, edge_weight: Any = None, edge_attr: Any = None,
        edge_type: Any = None,
    ) -> Any:  # fmt: skip
        of_edges = dict(zip(OF_EDGES, (edge_weight, edge_attr, edge_type), strict=True))
        of_edges = {name: value if name in self.given else None for name, value in of_edges.items()}
        if self.of_data:
            return self._called({self.rows: GivenData(x=x, edge_index=edge_index, adj_t=adj_t, **of_edges)})
        wanted = {name: of_edges[name] for name in (*self.asked, *self.optional & self.given) if name in of_edges}
        edges = adj_t if self.of_matrix else edge_index
        if not self.rows:  # it takes any, by no name
            return self.model(x, edges, **wanted)
        return self._called({self.rows: x, self.edges: edges} | wanted)

    def _called(self, given: dict[str, Any]) -> Any:
        """What the model gives for arguments by name."""
        in_order = [given.pop(argument.name, argument.default) for argument in self._in_order]
        return self.model(*in_order, **given)
