"""Models for typed graphs, ``forward(x_dict, edge_index_dict)``: traced for the types of a graph, and cut into hops."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn
from torch.nn.parameter import is_lazy

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.vertex_types import VertexTypes
from hongtu.model.typed_attention import TypedStatistics
from hongtu.model.typed_cut import Hops
from hongtu.model.typed_hop import TypedHop
from hongtu.model.typed_trace import PREFIX, TypedRoot


class TypedModel(nn.Module):
    """Stands in a list for the layers of a model whose forward takes dictionaries by type, until a Trainer knows the
    types of its graph.

    Args:
        model: whose copy trains.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def pyg_names(self) -> dict[str, str]:
        """Its weights' names in the model, by their names here."""
        return {f"{PREFIX}{name}": name for name in self.model.state_dict()}

    def layers(self, artifact: Artifact) -> list[TypedHop | TypedStatistics]:
        """Those of the model on this graph, with its weights.

        Raises:
            InputError: naming what cannot be done hop by hop, or what the graph lacks.
        """
        title = f"from_pyg: {type(self.model).__name__}"
        types = artifact.types
        if types is None:
            raise InputError(
                f"{title}.forward takes dictionaries by type, and {artifact.path} has no named types; preprocess a "
                "HeteroData, without undirected or self_loops (torch_geometric.transforms.ToUndirected adds reverse "
                "relations)"
            )
        layers = Hops(TypedRoot(self.model, artifact, types, title), types, title).layers()
        names: list[dict[str, str]] = [layer.pyg_names for layer in layers]  # type: ignore[misc]
        for layer, places in zip(layers, names, strict=True):
            for lazy in (places[own] for own, weight in layer.named_parameters() if is_lazy(weight)):
                raise InputError(
                    f"{title}: {lazy} has no shape, as nothing of {artifact.path} goes through it; make the model of "
                    "this graph's types and relations, data.metadata()"
                )
        _check_labelled(artifact, types, layers[-1].returns, title)
        called = {name for places in names for name in places.values()}
        for layer in layers:
            layer.pyg_uncalled = {*self.model.state_dict()} - called  # type: ignore[assignment]
        return layers


def with_types(layers: Any, artifact: Artifact) -> Any:
    """A layer list in which what stands for a model of types has become its layers.

    Raises:
        InputError: where it stands beside others.
    """
    if not isinstance(layers, list | tuple) or not any(isinstance(entry, TypedModel) for entry in layers):
        return layers
    if len(layers) > 1:
        raise InputError(
            f"layers[0] ({type(layers[0]).__name__}): the layers of a model of types stand alone; put what is beside "
            "them into its forward"
        )
    return layers[0].layers(artifact)


def _check_labelled(artifact: Artifact, types: VertexTypes, returns: Any, title: str) -> None:
    """Refuse a model whose output for vertices that have labels is not there, or has fewer columns than another's."""
    columns = {types.names[kind]: width for kind, width in returns[1].items()}
    used = np.any([*artifact.masks.values()], axis=0)
    kinds = np.unique(np.searchsorted(types.starts, artifact.original_id[used], side="right") - 1)
    for name in (types.names[kind] for kind in kinds):
        if name not in columns:
            raise InputError(f"{title}.forward returns rows of {', '.join(columns)}, and labels are of {name}")
        widest = max(columns, key=columns.__getitem__)
        if columns[name] < columns[widest]:
            raise InputError(
                f"{title}.forward returns {columns[name]} columns for {name}, which has the labels, and "
                f"{columns[widest]} for {widest}; return the rows of {name} alone, or as many columns for both"
            )
