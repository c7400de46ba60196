"""What a traced forward hands its convolutions of the graph's edges, and the artifact that gives them just that.

Legend: E edges, F columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.errors import InputError, note
from hongtu.graph.artifact import Artifact
from hongtu.graph.format import OF_SPARSE, TENSOR
from hongtu.nn import GENConv, GINConv, SAGEConv
from hongtu.nn.layer import Layer
from hongtu.nn.layers.normalized import NormalizedSum

WEIGHTS, FEATURES, TYPES, MATRIX = "edge_weight", "edge_attr", "edge_type", "adj_t"
_FILES = {WEIGHTS: "edge_weight", FEATURES: "edge_features", TYPES: "edge_type"}

_LOOPS = {TENSOR: "add", OF_SPARSE: "drop"}  # what stored self-loops are beside the added ones, by kind of matrix


@dataclass(frozen=True)
class EdgeInput:
    """What a convolution is called with.

    Attributes:
        name: the forward's argument, "edge_weight", "edge_attr" or "edge_type"; or "adj_t": the values of that matrix.
        optional: "argument", one with a default, or "field", of a ``Data``: where the graph has none it is None; or "".
        change: what the forward does to it first. Of features the layer's ``encode_edges`` does it.
    """

    name: str
    optional: str = ""
    change: nn.Sequential | None = None


@dataclass
class _Given:
    """Rows of edges as the artifact has them, and the rank and kind of numbers in which the forward gets them."""

    rows: np.ndarray
    form: tuple[int, str]
    of: str  # the artifact's own name

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """[E] or [E, F], in the form given."""
        rank, kind = self.form
        to = {"f": dtype, "i": torch.int64, "b": torch.bool}[kind]
        rows = torch.from_numpy(np.array(self.rows)).to(to)
        return rows.reshape(len(rows)) if rank == 1 else rows.reshape(len(rows), -1)


def bind_edges(modules: Iterable[nn.Module], artifact: Artifact, dtype: torch.dtype) -> Artifact:
    """The artifact whose edges have what the modules are called with, as ``Layer.edge_inputs`` says; of layers without
    such a list it is the artifact as it is stored.

    Args:
        dtype: of the run; what a forward makes of weights is computed in it.

    Raises:
        InputError: for what the artifact does not have, or not in the form that is asked for, and where layers want
            different weights, features or types.
    """
    layers = [(index, part) for index, part in enumerate(modules) if isinstance(part, Layer)]
    stored = artifact.stored
    if all(layer.edge_inputs is None for _, layer in layers):
        unchanged = stored.edge_weight, stored.edge_features, stored.edge_type, artifact.manifest.get("edge_types", 0)
        return artifact if artifact.topology is stored else artifact.with_edge_data(*unchanged)
    found = _Edges(artifact, dtype)
    for index, layer in layers:
        found.give(layer, f"layers[{index}] ({type(layer).__name__})")
    return found.artifact()


class _Edges:
    """What several layers want of one artifact's edges."""

    def __init__(self, artifact: Artifact, dtype: torch.dtype) -> None:
        self._artifact, self._stored, self._dtype = artifact, artifact.stored, dtype
        self._chosen: dict[str, tuple[np.ndarray, str]] = {}  # by the convolution's argument, with who wants it
        self._unweighted: list[str] = []
        self._notes: dict[str, None] = {}
        self._matrix = artifact.edge_forms.get(WEIGHTS, "field").removesuffix("field")

    def artifact(self) -> Artifact:
        """With what was chosen."""
        if self._unweighted and WEIGHTS not in self._chosen and self._stored.edge_weight is not None:
            self._note(
                f"its edge_weight is not used: the forward calls {self._unweighted[0]} without; "
                "conv(x, edge_index, edge_weight) would use it"
            )
        for text in self._notes:
            note(f"{self._artifact.path}: {text}")
        weight, features, kind = (self._chosen.get(name, (None,))[0] for name in (WEIGHTS, FEATURES, TYPES))
        kinds = 0 if kind is None else int(kind.max(initial=0)) + 1
        if kind is not None and kind is self._stored.edge_type:
            kinds = self._artifact.manifest["edge_types"]
        return self._artifact.with_edge_data(weight, features, kind, kinds)

    def give(self, layer: Layer, title: str) -> None:
        """Choose what one layer gets, and tell it what that is."""
        inputs = layer.edge_inputs
        if inputs is None:  # the graph's own
            own = {
                WEIGHTS: self._stored.edge_weight,
                FEATURES: self._stored.edge_features,
                TYPES: self._stored.edge_type,
            }
            reads = layer.uses_edge_features or layer.updates_edges
            uses = {WEIGHTS: layer.weighted, FEATURES: reads, TYPES: layer.uses_edge_type}
            for argument, rows in own.items():
                if uses[argument] and rows is not None:
                    self._choose(argument, rows, title)
            return
        if isinstance(layer, SAGEConv | GINConv):  # they take the values of torch's matrices, and no others
            layer.weighted = self._matrix == TENSOR
        weight = self._numbers(WEIGHTS, layer, title)
        if weight is None and layer.weighted:
            self._unweighted.append(title)
        if weight is None and getattr(layer, "improved", False):
            raise InputError(
                f"{title} is improved, which torch_geometric leaves out of edges without weights, and there are none; "
                "make it without, or use hongtu.nn.GCNConv(improved=True), whose loops have weight 2 on any graph"
            )
        kind = self._numbers(TYPES, layer, title)
        features = self._features(layer, inputs, title)
        wanted = inputs.get(WEIGHTS)
        of_list = wanted is not None and wanted.name != MATRIX and wanted.optional != "argument"  # weights beside edges
        for part in {layer, *layer.expand()}:
            part.ignores_weights = weight is None
            if isinstance(part, NormalizedSum):
                part.stored_loops = "replace" if of_list else _LOOPS.get(self._matrix, "replace")
            if FEATURES in inputs or part.edge_data_optional:
                part.uses_edge_features = features
            if part.edge_data_optional:
                part.uses_edge_type = kind is not None

    def _numbers(self, argument: str, layer: Layer, title: str) -> np.ndarray | None:
        """A number for each edge: weights or types."""
        assert layer.edge_inputs is not None
        wanted = layer.edge_inputs.get(argument)
        if self._matrix and layer.weighted and argument == WEIGHTS:
            wanted = EdgeInput(MATRIX)  # of a matrix the values come along, whatever else is passed
        given = None if wanted is None else self._given(wanted)
        if wanted is None or given is None:
            return None
        numbers = given.rows if wanted.change is None else self._changed(wanted, given, title)
        if numbers.size != len(given.rows):
            raise InputError(
                f"{title}: the forward hands {wanted.name} on as {argument}, {tuple(numbers.shape)}, expected a number "
                f"for each of the {len(given.rows)} edges; hand one column on, as {wanted.name}[:, 0]"
            )
        numbers = numbers if numbers.ndim == 1 else np.ascontiguousarray(numbers).reshape(-1)
        if argument == TYPES:
            self._note_optional(wanted)
            return self._choose(argument, self._types(numbers, wanted, title), title)
        if numbers.dtype.kind != "f":
            numbers = numbers.astype(np.float32)
        self._note_optional(wanted)
        return self._choose(argument, numbers, title)

    def _note_optional(self, wanted: EdgeInput) -> None:
        if wanted.optional == "argument":
            self._note(
                f"its {wanted.name} is the forward's optional {wanted.name}, as in model(x, edge_index, {wanted.name})"
                f'; hongtu.from_pyg(model, without=["{wanted.name}"]) is model(x, edge_index)'
            )

    def _types(self, numbers: np.ndarray, wanted: EdgeInput, title: str) -> np.ndarray:
        if numbers is self._stored.edge_type:
            return numbers
        kinds = numbers.astype(np.int32)
        if (kinds != numbers).any() or kinds.min(initial=0) < 0:
            raise InputError(
                f"{title}: the forward hands {wanted.name} on as edge_type, and some of its numbers are no types, "
                "expected whole numbers from 0"
            )
        return kinds

    def _features(self, layer: Layer, inputs: Any, title: str) -> bool:
        """Whether it gets edge features."""
        wanted = inputs.get(FEATURES)
        given = None if wanted is None else self._given(wanted)
        if wanted is None:
            return False
        if given is None:
            may_lack = layer.edge_data_optional or isinstance(layer, GENConv)
            if not may_lack or hasattr(layer, "encode_edges"):
                raise InputError(
                    f"{title}: the forward hands {wanted.name} on as edge_attr, and {self._artifact.path} has no "
                    f"{_FILES[wanted.name]}; give the Data an {wanted.name}, or save {_FILES[wanted.name]}.npy in the "
                    "directory of edges.npy, and preprocess again"
                )
            return False
        self._note_optional(wanted)
        layer.edge_form = given.form
        rows = given.rows if given.rows.ndim == 2 else np.asarray(given.rows)[:, None]
        if given.form[1] == "i" and len(rows) and any(isinstance(part, nn.Embedding) for part in layer.modules()):
            layer.edge_kinds = torch.from_numpy(np.stack([rows.min(axis=0), rows.max(axis=0)]))
        if rows.dtype != np.float32:
            rows = rows.astype(np.float32)
        self._choose(FEATURES, rows, title)
        return True

    def _given(self, wanted: EdgeInput) -> _Given | None:
        """The forward's argument; None where the graph has none."""
        weight, features, forms = self._stored.edge_weight, self._stored.edge_features, self._artifact.edge_forms
        one_column = features is not None and features.shape[1] == 1
        if wanted.name == TYPES:
            return None if self._stored.edge_type is None else _Given(self._stored.edge_type, (1, "i"), TYPES)
        if wanted.name in (WEIGHTS, MATRIX) and weight is not None:
            return _Given(weight, (1, "f"), WEIGHTS)
        if wanted.name == FEATURES or (wanted.name == WEIGHTS and one_column and not wanted.optional):
            form = forms.get("edge_features", "2f")
            if features is not None:
                if wanted.name == WEIGHTS:
                    self._note("has no edge_weight, and its one edge feature is the forward's edge_weight")
                return _Given(features, (int(form[0]), form[1]), FEATURES)
            if weight is not None and (not wanted.optional or WEIGHTS not in forms):
                self._note("has no edge features, and its edge_weight is the forward's edge_attr, a column [E, 1]")
                return _Given(weight, (2, "f"), WEIGHTS)
        return None

    def _changed(self, wanted: EdgeInput, given: _Given, title: str) -> np.ndarray:
        """What a forward makes of numbers of edges, of all at once."""
        assert wanted.change is not None
        try:
            with torch.no_grad():
                return wanted.change.to(self._dtype)(given.tensor(self._dtype)).numpy()
        except (RuntimeError, TypeError, IndexError) as error:
            if type(error) not in (RuntimeError, TypeError, IndexError):  # memory that ran out
                raise
            raise InputError(
                f"{title}: what the forward makes of {wanted.name} {tuple(given.tensor(self._dtype).shape)} fails: "
                f"{' '.join(str(error).split())}; it is the {_FILES[given.of]} of {self._artifact.path}"
            ) from error

    def _choose(self, argument: str, rows: np.ndarray, title: str) -> np.ndarray:
        before, who = self._chosen.setdefault(argument, (rows, title))
        if before is not rows and not np.array_equal(before, rows):
            remedy = "make one of both before hongtu.preprocess_graph, such as two columns of edge_attr"
            if argument == WEIGHTS:
                remedy = "weigh by one, and take the other by a convolution of edge_attr, such as GATConv(edge_dim=1)"
            raise InputError(f"{title}: is called with another {argument} than {who}, and a run has one; {remedy}")
        return before

    def _note(self, text: str) -> None:
        self._notes[text] = None
