"""What the planner knows of a model: layers with their widths, learned where they are not given, what stages compute,
and bytes beside vertex rows."""

from __future__ import annotations

import copy
from collections.abc import Hashable
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
from hongtu.model.wiring import INPUT, Modules, resolve
from hongtu.nn.context import RowContext
from hongtu.nn.convolution import LazyLayer
from hongtu.nn.dropout import key_bytes
from hongtu.nn.layer import Layer
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.plan.passes.shapes import EdgeData, NetworkShape, Products, StageWork, Sweeps
from hongtu.train.tracing.guards import digest_of, remembered, treats_rows_alone
from hongtu.train.tracing.mixing import refuse_mixing
from hongtu.train.tracing.operations import Function, stage_sweeps
from hongtu.train.tracing.stepping import step_model
from hongtu.train.tracing.trace import GraphForm, Traced, constant_layers, failures_named, gives_probabilities, trace


class _Shown(NamedTuple):
    """What a model showed on a few rows, the forms that its network has then among it."""

    traced: Traced
    forms: Forms
    constant_layers: int
    sweeps: tuple[tuple[Sweeps, Sweeps, Function], ...]


_were_shown: dict[Hashable, _Shown] = {}


def network_shape(
    artifact: Artifact,
    network: Network,
    loss: MeanLoss | EdgeLoss,
    optimizer: torch.optim.Optimizer,
    dtype: torch.dtype,
    *,
    checks_rows: bool = True,
    clips: bool = False,
) -> NetworkShape:
    """All that plans depend on, found by running the model on a few rows; lazy parameters get their shapes.

    Args:
        checks_rows: refuse a model that mixes rows, which the sides of linear maps have no part in.
        clips: gradients are changed before they are stepped by, or may be.
    """
    form = _form_of(artifact, dtype)
    shown = _shown(network, form, checks_rows)
    traced = shown.traced
    network.check_vertices(artifact.whole.num_vertices)
    if isinstance(loss, MeanLoss) and loss.trains and loss.of_probabilities and not gives_probabilities(network, form):
        raise InputError(
            "loss BCELoss: takes numbers from 0 to 1, and the model gives others; end it in a sigmoid, or use "
            "loss='bce_with_logits', torch.nn.BCEWithLogitsLoss"
        )
    layers, stepped = traced.layers, step_model(optimizer)
    copies = clips or stepped.changes
    gradients = 1 + copies if loss.trains else 0
    statistics = sum(WholeGraphNorm.BYTES_PER_COLUMN * layer.z for layer in layers if layer.norm)
    model_bytes = _model_bytes(network.modules, gradients) + stepped.state + statistics
    rows = artifact.sparse_features
    maps_input = rows is not None and network.maps_input
    share = artifact.whole.sparse_features.share if maps_input else 1.0  # the same on every rank
    if rows is not None:  # what goes through caches is dense: a copy of them, if need be
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
        edges=form.edges,
        edge_loss=isinstance(loss, EdgeLoss),
        gathered=_gathered(artifact) if isinstance(loss, EdgeLoss) else (0, 0),
        loss_bytes=loss.predicted_bytes,
        rows_bytes=artifact.held_bytes,
        trains=loss.trains,
        repeats=network.repeats and loss.repeats,
        learned_input=artifact.learns_features,
        sparse_input=rows,
        maps_input=maps_input,
        constant_layers=shown.constant_layers,
        stage_work=_stage_work(network, shown.sweeps, share),
    )


def _gathered(artifact: Artifact) -> tuple[int, int]:
    """Rows of the output that every rank has where a loss over edges is on several, and how many of other ranks."""
    vertices, own = artifact.whole.num_vertices, artifact.span.stop - artifact.span.start
    return (0, 0) if artifact.bounds is None else (vertices, vertices - own)


def _form_of(artifact: Artifact, dtype: torch.dtype) -> GraphForm:
    edges = EdgeData(artifact.edge_feature_width, artifact.num_edge_types)
    return GraphForm(artifact.feature_width, dtype, edges, artifact.topology.edge_weight is not None)


def _shown(network: Network, form: GraphForm, checks_rows: bool) -> _Shown:
    """What a model shows on a few rows. One of known classes is run once in a process, others once for a Trainer."""
    model = digest_of(network.modules)

    def run() -> _Shown:
        traced = trace(network, form)
        forms = copy.deepcopy(network.forms)
        if checks_rows and not treats_rows_alone(network.modules, model):
            with failures_named(network, form):
                refuse_mixing(network, form)
        constant = constant_layers(network, form)
        return _Shown(traced, forms, constant, stage_sweeps(network, traced, form))

    of_sides = network.transform_first, network.once_per_vertex, network.autocast
    memo = network.found if model is None else _were_shown
    shown = remembered(memo, (model, form, kernels_key(), of_sides), run)
    network.forms = copy.deepcopy(shown.forms)
    return shown


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
                    f"{network.title(index)}: reads {piece}, {form}, which {artifact.path} does not "
                    f"have; preprocess again with {piece}=... of preprocess_graph, {field} of the Data, or {piece}.npy "
                    "in the input"
                )
        relations = getattr(getattr(layer, "conv", layer), "num_relations", None)
        if layer.uses_edge_type and isinstance(relations, int) and relations < artifact.num_edge_types:
            raise InputError(
                f"{network.title(index)}: num_relations is {relations}, the graph has "
                f"{artifact.num_edge_types} edge types; give at least as many"
            )


def _stage_work(
    network: Network, sweeps: tuple[tuple[Sweeps, Sweeps, Function], ...], share: float
) -> tuple[StageWork, ...]:
    """About what each stage computes: all of a layer counts before its aggregate, or all after it. Stage 0 multiplies
    this share of the features' numbers: those that are no zeros, where these are left out."""
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
    work = [
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
    ]
    if share < 1:
        maps = {name: getattr(work[0], name) for name in ("products", "entry", "mapped")}
        work[0] = replace(
            work[0], **{name: replace(x, parameters=int(share * x.parameters)) for name, x in maps.items()}
        )
    return tuple(work)


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
    for index, sources in enumerate(resolve(modules)):
        taken = [source.number for source in sources if not source.of_edges]
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
    before = Modules([*modules.first(number + 1), _End()], [*modules.headers[: number + 1], None])
    return trace(Network(before.to("cpu", dtype), RowContext()), _form_of(artifact, dtype)).output
