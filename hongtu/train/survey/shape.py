"""What the planner knows of a model: layers with their widths, what stages compute, and bytes beside vertex rows."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.kernels.dispatch import kernels_key
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.network import Forms, Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.nn.dropout import key_bytes
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.plan.passes.shapes import EdgeData, LayerShape, NetworkShape, Products, StageWork, Sweeps
from hongtu.train.survey.digest import digest_of, treats_rows_alone
from hongtu.train.survey.mixing import refuse_mixing
from hongtu.train.survey.stages import Function, stage_sweeps
from hongtu.train.survey.stepping import step_model
from hongtu.train.survey.tracing import Traced, constant_layers, failures_named, trace


class _Shown(NamedTuple):
    """What a model showed on a few rows, the forms that its network has then among it."""

    traced: Traced
    forms: Forms
    constant_layers: int
    sweeps: tuple[tuple[Sweeps, Sweeps, Function], ...]


_were_shown: dict[Hashable, _Shown] = {}
_keep_rows_apart: set[Hashable] = set()


def network_shape(
    artifact: Artifact,
    network: Network,
    loss: MeanLoss | EdgeLoss,
    optimizer: torch.optim.Optimizer,
    dtype: torch.dtype,
    *,
    looks: bool = True,
    clips: bool = False,
) -> NetworkShape:
    """All that plans depend on, found by running the model on a few rows; lazy parameters get their shapes.

    Args:
        looks: refuse a model that mixes rows, which the sides of linear maps have no part in.
        clips: gradients are changed before they are stepped by, or may be.
    """
    edges = EdgeData(artifact.edge_feature_width, artifact.num_edge_types)
    shown = _shown(network, artifact, dtype, edges, looks)
    traced = shown.traced
    network.check_vertices(artifact.whole.num_vertices)
    layers, stepped = traced.layers, step_model(optimizer)
    copies = clips or stepped.changes
    gradients = 1 + copies if loss.trains else 0
    model_bytes = _model_bytes(network.modules, gradients) + stepped.state + _statistics_bytes(layers)
    if artifact.sparse_features is not None:  # what goes through caches is dense: a copy of them, if need be
        layers = (replace(layers[0], z_is_input=False), *layers[1:])
    return NetworkShape(
        features=artifact.feature_width,
        layers=layers,
        output=traced.output,
        values=traced.values,
        takes=tuple(network.wiring.takes),
        itemsize=dtype.itemsize,
        model_bytes=model_bytes,
        copies_gradients=copies,
        label_bytes=loss.label_bytes,
        autocast="" if network.autocast is None else str(network.autocast).removeprefix("torch."),
        edges=edges,
        edge_loss=isinstance(loss, EdgeLoss),
        loss_bytes=loss.predicted_bytes,
        rows_bytes=artifact.held_bytes,
        trains=loss.trains,
        repeats=network.repeats and loss.repeats,
        learned_input=artifact.learns_features,
        sparse_input=artifact.sparse_features,
        constant_layers=shown.constant_layers,
        stage_work=_stage_work(network, shown.sweeps),
    )


def _shown(network: Network, artifact: Artifact, dtype: torch.dtype, edges: EdgeData, looks: bool) -> _Shown:
    """What a model shows on a few rows. One of known classes is run once in a process."""
    model, features = digest_of(network.modules), artifact.feature_width
    key = model, features, dtype, edges, kernels_key()
    of_sides = key, network.transform_first, network.once_per_vertex, network.autocast
    known = _were_shown.get(of_sides)
    if known is None:
        traced = trace(network, features, dtype, edges)
        forms = network.forms
    network.forms = copy.deepcopy(forms if known is None else known.forms)
    if looks and not treats_rows_alone(network.modules, model):
        weights = artifact.topology.edge_weight is not None
        if (key, weights) not in _keep_rows_apart:
            with failures_named(network, features, edges):
                refuse_mixing(network, features, dtype, edges, weights=weights)
            if model is not None:
                _keep_rows_apart.add((key, weights))
    if known is None:
        constant = constant_layers(network, features, dtype, edges)
        known = _Shown(traced, forms, constant, stage_sweeps(network, traced, features, dtype, edges))
        if model is not None:
            _were_shown[of_sides] = known
    return known


def check_edge_data(artifact: Artifact, network: Network) -> None:
    """Refuse layers that read what the artifact does not have."""
    for k, (index, layer) in enumerate(zip(network.layer_index, network.layers, strict=True)):
        reads = network.reads_edge_features(k)
        for uses, found, what in (
            (reads, artifact.edge_feature_width, ("edge_features", "edge_attr", "float32 [E, F]")),
            (layer.uses_edge_type, artifact.num_edge_types, ("edge_type", "edge_type", "integers [E]")),
        ):
            if uses and not found and not layer.edge_data_optional:
                piece, field, form = what
                raise InputError(
                    f"layers[{index}] ({type(layer).__name__}): reads {piece}, {form}, which {artifact.path} does not "
                    f"have; preprocess again with {piece}=... of preprocess_graph, {field} of the Data, or {piece}.npy "
                    "in the input"
                )
        relations = getattr(layer, "num_relations", artifact.num_edge_types)
        if relations < artifact.num_edge_types:
            raise InputError(
                f"layers[{index}] ({type(layer).__name__}): num_relations is {relations}, the graph has "
                f"{artifact.num_edge_types} edge types; give at least as many"
            )


def _stage_work(network: Network, sweeps: tuple[tuple[Sweeps, Sweeps, Function], ...]) -> tuple[StageWork, ...]:
    """About what each stage computes: all of a layer counts before its aggregate, or all after it."""
    before: list[list[nn.Module]] = [[module for _, module in modules] for modules in network.row_modules]
    last: list[list[nn.Module]] = [[] for _ in before]  # transforms
    entries: list[list[nn.Module]] = [[] for _ in before]
    replicas: list[list[nn.Module]] = [[] for _ in before]  # layers that map every replica of a row
    for index, layer in enumerate(network.layers):
        if not (layer.once_per_vertex or layer.linear_aggregate):
            replicas[index + 1].append(layer)
        elif layer.transform_first or not layer.linear_aggregate:
            last[index].append(layer)
        else:
            before[index + 1].append(layer)
            entries[index + 1] = [layer]
    entries[0] = (before[0] + last[0])[:1]
    return tuple(
        StageWork(
            products=_products(*first, *then),
            entry=sum((_entry(module) for module in entry), Products()),
            mapped=_products(*(layer for layer in then if layer.transform_first and layer.built_in)),
            widest=max(given, default=0),
            sweeps=swept,
            combine=combine,
            function=function,
            replicas=_products(*mapped),
        )
        for first, then, entry, mapped, (swept, combine, function) in zip(
            before, last, entries, replicas, sweeps, strict=True
        )
        for given in [[len(p) for module in (*first, *then) for p in module.parameters() if p.ndim == 2]]
    )


def _products(*modules: nn.Module) -> Products:
    return sum((_product(p) for module in modules for p in module.parameters() if p.ndim > 1), Products())


def _product(parameter: Tensor) -> Products:
    return Products(parameter.numel(), sum(parameter.shape[-2:]))


def _entry(module: nn.Module) -> Products:
    """What multiplies a module's input: all, but of modules in a row those of the first that has some."""
    if isinstance(module, nn.Sequential):
        return next((found for found in map(_entry, module) if found.parameters), Products())
    own = (_product(p) for p in module.parameters(recurse=False) if p.ndim > 1)
    return sum((*own, *map(_entry, module.children())), Products())


def _model_bytes(model: nn.Module, gradients: int) -> int:
    """Bytes of parameters, their gradients and copies of these, and buffers, and of what dropout reads of the epoch."""
    parameters = sum(p.nbytes * (1 + gradients * p.requires_grad) for p in model.parameters())
    return parameters + sum(b.nbytes for b in model.buffers()) + key_bytes(model)


def _statistics_bytes(layers: Iterable[LayerShape]) -> int:
    """Bytes of the normalisations' statistics on a device."""
    return sum(WholeGraphNorm.BYTES_PER_COLUMN * layer.z for layer in layers if layer.norm)
