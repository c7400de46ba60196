"""Training on several ranks: what they cannot do, that all were given the same, who computes whose rows, and where each
has the rows of others from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from math import inf
from typing import Any, NamedTuple

import torch
from torch import nn

import hongtu
from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.hardware import Hardware
from hongtu.model.checks import may_draw
from hongtu.model.embedding import Embedding
from hongtu.model.link_loss import link_loss_in
from hongtu.model.network import Network
from hongtu.nn.message_dropout import dropped_by_id
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.plan.cost.seconds import aggregate_seconds, partition_seconds, predict_seconds, rowwise_seconds
from hongtu.plan.cost.work import Extent, pass_work
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import Pass
from hongtu.ranks.likeness import checksum, likeness, plain_tensors
from hongtu.ranks.share import deal_partitions
from hongtu.ranks.stages import ByLayer, ByVertex, Stages
from hongtu.ranks.together import Together

DEPENDENCIES = ("cache", "comm", "hybrid")
ROWS = 1000  # whose seconds those of one are taken from


class Tried(NamedTuple):
    """What is predicted of one rank's plan, in plain values that ranks tell one another: inf and None where device or
    host memory is too small.

    Attributes:
        choice: what its parts would choose, the fields of a ``ByVertex``.
    """

    seconds: float
    choice: tuple[Any, ...] | None


def try_plan(make_plan: Callable[[], ExecutionPlan], hardware: Hardware) -> Tried:
    """What an epoch is predicted to take, and what its parts would choose."""
    try:
        plan = make_plan()
    except InputError:  # where no choice fits, the last plan is refused for all to see
        return Tried(inf, None)
    return Tried(predict_seconds(plan, hardware).total, astuple(by_vertex(plan, hardware)))


def choose_stages(layers: int, dependencies: str, tried: Callable[[Stages], Sequence[Tried]]) -> Stages:
    """What ranks compute of one another's vertices.

    Args:
        layers: of the model that exchange rows.
        dependencies: one of ``DEPENDENCIES``.
        tried: what is predicted of every rank under a choice; asked for "hybrid" only.

    >>> choose_stages(3, "hybrid", lambda chosen: [Tried(s, None) for s in ((), (4, 5), (3, 3), (2, 9))[chosen.first]])
    ByLayer(layers=3, first=2)
    """
    if dependencies != "hybrid":
        return ByLayer(layers, layers if dependencies == "cache" else 1)
    found: dict[Stages, Sequence[Tried]] = {}
    for chosen in (ByLayer(layers, first) for first in range(layers, 0, -1)):
        found[chosen] = tried(chosen)
    choices = [one.choice for of_ranks in found.values() for one in of_ranks if one.choice is not None]
    if choices and layers > 2:  # else what one layer exchanges costs the same for every vertex
        by_parts = ByVertex(*choices[0])
        found[by_parts] = tried(by_parts)
    return min(found, key=lambda chosen: max(one.seconds for one in found[chosen]))


def by_vertex(plan: ExecutionPlan, hardware: Hardware) -> ByVertex:
    """The choice by the seconds that single vertices, in-edges and rows take in an epoch."""
    layers, topology = plan.shape.graph_layers, plan.topology
    row, edge = [0.0] * (len(layers) + 1), [0.0] * (len(layers) + 1)
    fetch = [0.0] * len(layers)
    sources = int(topology.num_sources.sum()) / max(topology.num_edges, 1)
    for p in plan.passes.train:
        stage = sum(p.layer is not None and k <= p.layer for k in layers)
        alone, read = (_seconds(plan, p, Extent(ROWS, n, int(n * sources)), hardware) for n in (0, ROWS))
        row[stage] += alone / ROWS
        edge[stage] += (read - alone) / ROWS
        if p.layer in layers:
            names = (p.exchange if p.direction != "backward" else None, p.flush)
            columns = sum(plan.passes.width[name] for name in names if name is not None)
            taken = columns * plan.shape.itemsize * (1 / hardware.network_link + 2 / hardware.host_link)
            fetch[layers.index(p.layer)] += taken
    return ByVertex(len(layers), tuple(row), tuple(edge), tuple(fetch))


def _seconds(plan: ExecutionPlan, p: Pass, extent: Extent, hardware: Hardware) -> float:
    work = pass_work(plan, p, extent, hardware.cache)
    return aggregate_seconds(work, hardware) + rowwise_seconds(work, hardware)


ALONE = "start one process, without torchrun"


def check_ranked(
    artifact: Artifact, network: Network, loss: Any, ranks: int, dependencies: str, on_oom: str = "raise"
) -> None:
    """Refuse what is exact in one process only.

    Args:
        ranks: how many there are.
        dependencies, on_oom: as for a Trainer.

    Raises:
        InputError: naming it.
    """
    if dependencies not in DEPENDENCIES:
        raise InputError(f"dependencies {dependencies!r}: expected {', '.join(map(repr, DEPENDENCIES))}")
    if ranks == 1:
        return
    links = link_loss_in(loss) is not None
    if on_oom == "replan" and (dependencies != "cache" or network.norms or links):
        meet = "statistics over the whole graph" if network.norms else "a LinkLoss" if links else ""
        raise InputError(
            f"on_oom 'replan' runs passes of one rank again, and with {meet or f'dependencies {dependencies!r}'} the "
            "others would wait for them; use on_oom 'raise'" + ("" if meet else ", or dependencies 'cache'")
        )
    if artifact.learns_features and dependencies == "cache":
        raise InputError(
            f"{artifact.path}: its features are learned embeddings, which change, so that no rank can compute from "
            "those of others again; use dependencies 'comm'"
        )
    for index, module in enumerate(network.modules):
        by_id = dropped_by_id(module)
        of_torch = [p for p in module.modules() if type(p).__module__.startswith("torch.") and p not in by_id]
        drawn = [
            part for part in of_torch if may_draw(part) and getattr(part, "p", None) != 0
        ]  # a rate of 0 draws nothing
        if drawn:
            like = "use hongtu.nn.Dropout, which draws by vertex, or " if type(drawn[0]) is nn.Dropout else ""
            raise InputError(
                f"{network.title(index)}: {type(drawn[0]).__name__} of torch draws by chunk, and a vertex is in chunks "
                f"of several ranks; {like}{ALONE}"
            )
    network.must_not_draw = True


BY_ENTRY = ("SGD", "ASGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop")


def check_rows_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse one for rows of which every rank has some, unless it looks at each number alone.

    Raises:
        InputError: naming it.
    """
    if (name := type(optimizer).__name__) not in BY_ENTRY:
        raise InputError(
            f"embedding_optimizer: {name} may look at all rows at once, and every rank has its own; use one of "
            f"{', '.join(BY_ENTRY)}, or {ALONE}"
        )


def clip_gradients(parameters: Sequence[nn.Parameter], most: float, rows: Embedding | None, ranks: Together) -> None:
    """``torch.nn.utils.clip_grad_norm_`` of all parameters, of which every rank has its own ``rows``."""
    if rows is None or rows.weight.grad is None or ranks.size == 1:
        torch.nn.utils.clip_grad_norm_(parameters, most)
        return
    found = [p.grad for p in parameters if p.grad is not None and p is not rows.weight]
    squares = sum(float(gradient.double().square().sum()) for gradient in found)
    squares += ranks.sum(float(rows.own(rows.weight.grad).double().square().sum()))
    for gradient in (*found, rows.weight.grad):
        gradient.mul_(min(1.0, most / (squares**0.5 + 1e-6)))


def exchanging_layers(network: Network) -> int:
    """How many layers read the rows of in-neighbours."""
    return sum(not isinstance(layer, WholeGraphNorm) for layer in network.layers)


def deal(artifact: Artifact, ranks: int, sketch: Callable[[], ExecutionPlan], hardware: Hardware) -> list[int]:
    """The first partition of every rank, then their number: by what each is predicted to take for its own vertices.

    Args:
        sketch: as ``Job.sketch`` gives it; asked for where there is a choice.

    Raises:
        InputError: when there are more ranks than partitions.
    """
    even = deal_partitions(artifact, ranks)
    if ranks in (1, artifact.topology.partitions):
        return even
    return deal_partitions(artifact, ranks, partition_seconds(sketch(), hardware))


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of every group of parameters."""
    return [{name: x for name, x in group.items() if name != "params"} for group in optimizer.param_groups]


PLANNED = ("transform_first", "once_per_vertex", "fuse")  # set by each rank's plan, or, as FastRGCNConv's, in a call


def state_of(
    model: nn.Module, named: Iterable[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """What must be the same on every rank whenever it runs, by name; nobody may have changed it on some alone."""
    found = {f"learning rate {k}": str(float(group["lr"])) for k, group in enumerate(optimizer.param_groups)}
    for name, p in named:
        found[f"parameter {name}"] = f"{'' if p.requires_grad else 'fixed '}numbers of checksum {checksum(p):08x}"
    for place, part in model.named_modules():
        kept = [(name, x) for name, x in vars(part).items() if isinstance(x, bool | float | str) and name[0] != "_"]
        kept = [(name, x) for name, x in kept if name not in PLANNED]
        kept += [(name, f"of checksum {checksum(x):08x}") for name, x in part.named_buffers(recurse=False)]
        found[f"module {place} ({type(part).__name__})"] = "\n".join(f"{name} {x}" for name, x in kept)
    return found


def described(model: nn.Module, optimizer: Any, scheduler: Any, loss: Any, more: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on every rank, by name; parameters and buffers will be rank 0's."""
    return {
        "hongtu": hongtu.__version__,
        **more,
        "loss": likeness(loss),
        "scheduler": likeness(scheduler),
        "tensors of the model": likeness(dict(plain_tensors(model))),
        "optimizer's settings": likeness(settings_of(optimizer)),
        "trained parameters": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
    }
