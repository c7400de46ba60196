"""Input widths that are not known when layers are made, learned from what comes before them."""

from __future__ import annotations

import copy

import torch
from torch import nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.model.network import Network
from hongtu.model.wiring import INPUT, Modules, resolve
from hongtu.nn.context import RowContext
from hongtu.nn.convolution import LazyLayer
from hongtu.nn.layer import Layer
from hongtu.plan.passes.shapes import EdgeData
from hongtu.train.tracing.trace import trace


class _End(Layer):
    """A graph layer that keeps columns as they are."""

    reduce = "sum"


def fill_widths(modules: Modules, artifact: Artifact, dtype: torch.dtype) -> None:
    """Make the layers that do not know how many columns they are given, in their order: the artifact's features, or
    what the layer before gives.

    Raises:
        InputError: when a module before does not accept what it is given, or one that maps all columns alike would map
            the types of vertices.
    """
    for index, taken in enumerate(resolve(modules)):
        if not taken:  # rows of edges
            continue
        layer, first = modules[index], taken[0]
        ours = isinstance(layer, LazyLayer) or (isinstance(layer, Layer) and layer.built_in)
        if first == INPUT and artifact.vertex_type_widths and (ours or type(layer) is nn.Linear):
            raise InputError(
                f"layers[{index}] ({type(layer).__name__}): features of several types of vertices, and column 0 "
                "is the type; put hongtu.nn.TypedLinear(artifact.vertex_type_widths, columns) in front"
            )
        if isinstance(layer, LazyLayer):
            layer.fill(artifact.feature_width if first == INPUT else _columns(modules, first, artifact, dtype))


def _columns(modules: Modules, number: int, artifact: Artifact, dtype: torch.dtype) -> int:
    """Of what module ``number`` gives, all before it being made."""
    before = Modules([*copy.deepcopy(list(modules)[: number + 1]), _End()], [*modules.headers[: number + 1], None])
    edges = EdgeData(artifact.edge_feature_width, artifact.num_edge_types)
    return trace(Network(before.to("cpu", dtype), RowContext()), artifact.feature_width, dtype, edges).output
