"""The output of a layer inside a model: the layers up to it, planned and run as a model of their own."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from numbers import Integral

import torch
from torch import nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.model.embedding import Embedding
from hongtu.model.loss_terms import Unscored
from hongtu.model.network import Network
from hongtu.model.wiring import Modules, resolve_all
from hongtu.nn import Layer
from hongtu.nn.context import RowContext
from hongtu.train.network_plan import plan_network
from hongtu.train.run_spec import RunSpec
from hongtu.train.runtime import Runtime
from hongtu.train.settings import make_loss
from hongtu.train.survey.stepping import PLAINLY


def layer_number(model: nn.ModuleList, layer: int) -> int:
    """The position of a layer in the model, counted from its end where it is negative.

    Raises:
        InputError: when there is none, or no graph layer up to it.
    """
    if not isinstance(layer, Integral) or not -len(model) <= layer < len(model):
        last = len(model) - 1
        raise InputError(f"embed: layer {layer!r}, expected 0 to {last}, or -1 to {-len(model)} from the end")
    number = int(layer) % len(model)
    if resolve_all(model)[number][0].of_edges:
        raise InputError(f"embed: layer {layer} gives rows of edges, expected a layer that gives rows of vertices")
    if not any(isinstance(module, Layer) for module in list(model)[: number + 1]):
        raise InputError(f"embed: layer {layer} comes before the first graph layer; apply it to your features yourself")
    return number


def layer_runtime(
    artifact: Artifact,
    model: Modules,
    number: int,
    *,
    spec: RunSpec,
    budget: int | None,
    embedding: Embedding | None,
) -> Runtime:
    """Infers what layer ``number`` gives: copies of the layers, with a plan of their own within the same budget,
    beside whatever the trainer holds."""
    network = Network(model.first(number + 1).cpu(), RowContext(), spec.autocast)
    loss = make_loss(artifact, Unscored())
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
    if embedding is not None:
        embedding = copy.copy(embedding)
        embedding.weight = nn.Parameter(embedding.weight.detach())
    spec = replace(spec, stepping=PLAINLY)
    make_plan = partial(plan_network, artifact, loss=loss, optimizer=optimizer, spec=spec)
    rows = None if embedding is None else lambda: embedding
    return Runtime(artifact, network, loss, make_plan, spec, rows=rows, budget=budget)
