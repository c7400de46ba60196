"""From an artifact, layers and a budget to an execution plan: what a Trainer does before it trains.

Features and labels are not read; layers run on toy blocks only, to learn widths and to bound their memory.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hongtu.config import parse_bytes
from hongtu.errors import BudgetError, InputError, names_known, refused_as
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.graph.paper_edges import PaperEdges, with_paper_edges
from hongtu.graph.topology import Topology
from hongtu.hardware import CPU, Hardware, load_hardware
from hongtu.host import available_bytes, drop_pages, return_freed_memory, reuse_freed_memory
from hongtu.kernels.dispatch import as_on_gpu
from hongtu.model.checks import check_default_device
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.embedding import predict_state_bytes
from hongtu.model.link_loss import LinkLoss, trained_decoder
from hongtu.model.loss_terms import Losses
from hongtu.model.network import Forms, Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.model.wiring import Entry, as_modules
from hongtu.nn.context import RowContext
from hongtu.plan.cost.seconds import predict_seconds, sketch_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.choice import Choice
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import Strategy, get_strategy
from hongtu.plan.search.build import sketch_plan
from hongtu.plan.search.host import HostLimit, fit_host, without_scripts
from hongtu.plan.search.planner import plan_run
from hongtu.ranks.share import Share
from hongtu.train.budget import budget_bytes
from hongtu.train.survey.probe import Correct, probe_workspace
from hongtu.train.survey.shape import check_edge_data, network_shape
from hongtu.train.survey.widths import fill_widths

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

LARGE = 1 << 20  # edges of a graph whose plans take tens of MiB


def check_precision(dtype: torch.dtype, autocast: torch.dtype | None = None) -> None:
    """Refuse what a run cannot compute in.

    Raises:
        InputError: naming what it can.
    """
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype {dtype}: expected torch.float32 or torch.float64")
    if autocast not in (None, torch.bfloat16) or (autocast is not None and dtype != torch.float32):
        raise InputError(f"autocast {autocast} with dtype {dtype}: expected torch.bfloat16 with float32, or None")


def check_steps(scheduler: object, clip_grad_norm: object) -> None:
    """Refuse what cannot stand beside an optimizer.

    Raises:
        InputError: naming what can.
    """
    if scheduler is not None and not callable(scheduler):
        raise InputError(
            f"scheduler is {scheduler!r}: expected a function, as lambda o: torch.optim.lr_scheduler.StepLR(o, 10)"
        )
    norm = 1.0 if clip_grad_norm is None else clip_grad_norm
    if not isinstance(norm, int | float) or not norm > 0:
        raise InputError(f"clip_grad_norm is {norm!r}: expected a number above 0, or None")


def make_optimizer(optimizer: OptimizerFactory, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """What a person's function makes of the parameters.

    Raises:
        InputError: where it is no function, such as an optimizer that is made already, or makes one of other
            parameters, which would train nothing.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        name = type(optimizer).__name__
        raise InputError(
            f"optimizer is a {name}: expected a function that makes one; pass lambda p: torch.optim.{name}(p, ...)"
        )
    if not callable(optimizer):
        raise InputError(f"optimizer is {optimizer!r}: expected a function, as lambda p: torch.optim.Adam(p, lr=0.01)")
    given = [*parameters] or [nn.Parameter(torch.empty(0))]  # torch's take no empty list
    with refused_as("optimizer", "pass what torch takes, as lambda p: torch.optim.Adam(p, lr=0.01)"):
        made = optimizer(given)
    if not hasattr(made, "param_groups"):
        raise InputError(
            f"optimizer gave {made!r}: expected an optimizer, as of lambda p: torch.optim.Adam(p, lr=0.01)"
        )
    if not {id(p) for group in made.param_groups for p in group["params"]} & set(map(id, given)):
        raise InputError(
            "optimizer holds none of the parameters that it is given, and would train nothing; make it of these, as "
            "lambda p: torch.optim.Adam(p, lr=0.01)"
        )
    return made


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The default optimizer."""
    return torch.optim.Adam(parameters, lr=1e-2)


@names_known
def plan_model(
    artifact: Artifact | str | os.PathLike[str],
    layers: Sequence[Entry],
    *,
    loss: Losses | LinkLoss = "cross_entropy",
    optimizer: OptimizerFactory = adam,
    device_memory: int | str | None = None,
    strategy: str | Strategy = "full",
    dtype: torch.dtype = torch.float32,
    hardware: Hardware | str = CPU,
    host_memory: int | str | None = None,
    spill: bool = False,
) -> ExecutionPlan:
    """The plan of a :class:`hongtu.Trainer` with the same arguments, for a machine of the reader's choice.

    Args:
        hardware: what the planner compares plans by, or its name; a Trainer on the CPU has ``CPU``.
        spill: rows that do not fit ``host_memory`` may lie on a disk.

    Raises:
        InputError: for anything that cannot work.
        BudgetError: when the budget is too small; names the smallest that works.
    """
    artifact = artifact if isinstance(artifact, Artifact) else open_artifact(artifact)
    artifact.check_bounds()
    modules = as_modules(layers)
    fill_widths(modules, artifact, dtype)
    network = Network(modules.to(dtype=dtype), RowContext())
    mean_loss, decoder = make_loss(artifact, loss), trained_decoder(loss)
    learned = *network.modules.parameters(), *(() if decoder is None else decoder.to(dtype).parameters())
    made = make_optimizer(optimizer, learned)
    hardware = load_hardware(hardware)
    limit = host_limit(host_memory, spills=spill, has_devices=not hardware.staged, device_memory=device_memory)
    make = partial(
        plan_network, artifact, network, mean_loss, made, get_strategy(strategy), dtype=dtype, hardware=hardware,
        make_embedding_optimizer=optimizer,
    )  # fmt: skip
    return make(budget_bytes(device_memory, lambda: make(None)), limit=limit)


def host_limit(
    host_memory: int | str | None,
    *,
    spills: bool,
    has_devices: bool,
    device_memory: int | str | None,
    ranks: int = 1,
) -> HostLimit | None:
    """What a person's settings say of the host.

    Raises:
        InputError: for a combination that cannot be kept.
    """
    if host_memory is None:
        if spills:
            raise InputError("spill: nothing says what fits; give host_memory (--host-memory), too, or leave it out")
        return None
    if ranks > 1:
        raise InputError("host_memory: is for one process, and there are several ranks; leave it out")
    memory = parse_bytes(host_memory)
    if has_devices and device_memory is None:
        raise InputError(
            "host_memory: the devices' memory is the host's, and without a limit of its own; give device_memory "
            "(--device-memory), too"
        )
    return HostLimit(memory=memory, spills=spills, has_devices=has_devices)


def plan_network(
    artifact: Artifact,
    network: Network,
    loss: MeanLoss | EdgeLoss,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    budget: int | None,
    dtype: torch.dtype,
    hardware: Hardware = CPU,
    make_embedding_optimizer: OptimizerFactory = adam,
    correct: Correct | None = None,
    limit: HostLimit | None = None,
) -> ExecutionPlan:
    """Set ``transform_first`` and ``once_per_vertex`` of the network's layers and plan its run. Ranks that fetch rows
    of one another get the same sides and savings, or are refused.

    Args:
        correct: what layers take in a pass, by its name and what a probe finds; None: what the probe finds.
        limit: what the host may hold; None: anything.
    """

    traced: dict[tuple[tuple[bool, ...], ...], tuple[NetworkShape, Forms]] = {}
    unmixed: set[object] = set()

    def shape_with(transform_first: tuple[bool, ...]) -> NetworkShape:
        network.set_transform_first(transform_first)
        choices = network.transform_first, network.once_per_vertex
        if choices not in traced:
            with as_on_gpu() if hardware.staged else nullcontext():  # what layers do there is counted
                shape = network_shape(artifact, network, loss, optimizer, dtype, unmixed)
            shape = replace(shape, learned_bytes=learned_bytes) if shape.learned_input else shape
            traced[choices] = shape, network.forms
        shape, network.forms = traced[choices]
        return shape

    check_default_device()
    check_edge_data(artifact, network)
    stored = artifact.topology.keeping(
        edge_features=any(layer.uses_edge_features for layer in network.layers),
        edge_type=any(layer.uses_edge_type for layer in network.layers),
    )
    learned_bytes = 0
    if artifact.learns_features:
        rows = artifact.num_vertices, artifact.feature_width
        learned_bytes = predict_state_bytes(make_embedding_optimizer, *rows, dtype)

    def choose_edges(used: Strategy) -> PaperEdges:
        return network.set_once_per_vertex([used.once_per_vertex] * len(network.layers))

    @cache
    def topology_with(edges: PaperEdges) -> Topology:
        if edges == PaperEdges():
            return stored
        return with_paper_edges(stored, edges, artifact.degree_statistics(), str(dtype).removeprefix("torch."))

    def plan(sides: tuple[bool, ...], used: Strategy) -> ExecutionPlan:
        if limit is None:
            return without_scripts(planned(sides, used, None), available_bytes(), has_devices=not hardware.staged)
        spills = False
        try:
            found = fitting(sides, used, limit)
            spills = bool(found.spilled)
            return found
        finally:
            forget()
            if not spills:  # else until its engine ends
                reuse_freed_memory()

    def fitting(sides: tuple[bool, ...], used: Strategy, limit: HostLimit) -> ExecutionPlan:
        """Where groups of chunks are too much, whose structure may come beside the artifact's: groups of half as many,
        or none, whichever is predicted to be faster."""
        plans = [afresh(sides, used, limit.left)]  # one at a time
        size = -(-stored.chunks // plans[0].topology.chunks)
        try:
            return fit_host(plans.pop(), limit)
        except InputError:
            if size == 1:
                raise
        plans = [fit_host(afresh(sides, used, limit.left, 1), limit)]
        if size < 4:
            return plans[0]
        seconds = predict_seconds(plans.pop(), hardware).total
        with suppress(InputError):
            found = fit_host(afresh(sides, used, limit.left, size // 2), limit)
            if predict_seconds(found, hardware).total < seconds:
                return found
            del found
        return fit_host(afresh(sides, used, limit.left, 1), limit)

    def afresh(sides: tuple[bool, ...], used: Strategy, host_memory: int, largest: int | None = None) -> ExecutionPlan:
        """Without the memory of plans that were tried before."""
        forget()
        return planned(sides, used, host_memory, largest)

    def forget() -> None:
        """Give back what plans that were tried have left."""
        if stored.num_edges >= LARGE:  # else there is room for them in what every process takes
            gc.collect()
        return_freed_memory()

    def planned(
        sides: tuple[bool, ...], used: Strategy, host_memory: int | None, largest: int | None = None
    ) -> ExecutionPlan:
        topology = topology_with(choose_edges(used))
        give_up = partial(drop_pages, topology.local_source, cached=True)
        return plan_run(
            topology,
            artifact.schedule_paper,
            shape_with(sides),
            used,
            budget,
            partial(
                probe_workspace,
                network=network,
                loss=loss,
                vertices=artifact.whole.num_vertices,
                dtype=dtype,
                correct=correct,
            ),
            hardware,
            artifact.original_id,
            loss.loss_vertices,
            artifact.halo,
            host_memory,
            (lambda: None) if host_memory is None else give_up,
            largest,
        )

    never = (False,) * len(network.layers)
    choose_edges(strategy)
    loss.check_output(shape_with(never).output, dtype)
    sides = never
    if strategy.transform_first:
        sides = _choose_sides(artifact, network, shape_with, strategy, hardware, linked=budget is not None)
    if artifact.halo is not None:
        return plan(sides, strategy)
    try:
        return plan(sides, strategy)
    except BudgetError as refused:  # what saves time may cost memory
        least = refused.with_traceback(None)  # which has the plans that were tried
    uncached = replace(strategy, cache_input_aggregate=False)
    others = _other_sides(network, sides) if strategy.transform_first else (never,)
    tried = list(itertools.product(others, dict.fromkeys((strategy, uncached))))[1:]
    if any(layer.paper_edges is not None for layer in network.layers):
        tried.append((never, replace(uncached, once_per_vertex=False)))
    for other, used in tried:
        if used == uncached != strategy and not shape_with(other).constant_layers:
            continue  # nothing is cached in the plan that was tried before
        try:
            return plan(other, used)
        except BudgetError as refused:
            least = min(least, refused.with_traceback(None), key=lambda error: error.smallest)
    raise least


def sketch_network(
    artifact: Artifact,
    network: Network,
    loss: MeanLoss | EdgeLoss,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    dtype: torch.dtype,
) -> ExecutionPlan:
    """What a network computes, without planned transfers, and linear maps behind the exchanges."""
    network.set_once_per_vertex([False] * len(network.layers))
    network.set_transform_first((False,) * len(network.layers))
    shape = network_shape(artifact, network, loss, optimizer, dtype, set())
    return _sketch(artifact.topology, shape, strategy)


def _sketch(topology: Topology, shape: NetworkShape, strategy: Strategy) -> ExecutionPlan:
    schedule = np.zeros((topology.partitions, 0), dtype=np.int32)  # nothing is planned that depends on it
    return sketch_plan(topology, schedule, shape, strategy, Choice(fuse=strategy.fuse_last_layer))


def _choose_sides(
    artifact: Artifact,
    network: Network,
    shape_with: Callable[[tuple[bool, ...]], NetworkShape],
    strategy: Strategy,
    hardware: Hardware,
    *,
    linked: bool,
) -> tuple[bool, ...]:
    """Per layer, whether its linear map comes before the exchange: layer by layer the predicted cheaper side. Where
    what stages compute is saved, and it costs about the same, it does: the aggregate need not be kept then."""
    chosen = [False] * len(network.layers)
    topology = artifact.topology if artifact.halo is None else artifact.whole.topology  # the same on every rank
    saves = not linked and strategy.resident and strategy.save

    def seconds(sides: list[bool]) -> float:
        shape = shape_with(tuple(sides))
        if artifact.halo is not None:
            sparse: Any = artifact.whole.sparse_features
            shape = replace(shape, loss_rows=0, sparse_input=sparse)
        return sketch_seconds(_sketch(topology, shape, strategy), hardware, linked=linked)

    best = seconds(chosen)
    for index, layer in enumerate(network.layers):
        if layer.may_transform_first:
            trial = [*chosen[:index], True, *chosen[index + 1 :]]
            found = seconds(trial)
            if found < best or (saves and found < best * ABOUT):
                chosen, best = trial, found
    return tuple(chosen)


ABOUT = 1.02  # times the best: as fast, for what is saved is worth more than an estimate's error
MOST_SIDES = 3  # layers of which every combination is tried


def _other_sides(network: Network, chosen: tuple[bool, ...]) -> list[tuple[bool, ...]]:
    """Sides to try where the chosen ones do not fit, those first: every combination, or, of many layers, all on one
    side and each alone on its other one."""
    free = [k for k, layer in enumerate(network.layers) if layer.may_transform_first]
    if len(free) <= MOST_SIDES:
        combinations = [dict(zip(free, picked)) for picked in itertools.product((False, True), repeat=len(free))]
    else:
        combinations = [dict.fromkeys(free, side) for side in (False, True)] + [{k: not chosen[k]} for k in free]
    sides = (tuple(c.get(k, side) for k, side in enumerate(chosen)) for c in combinations)
    return list(dict.fromkeys((chosen, *sides)))


def make_loss(artifact: Artifact, loss: Losses | LinkLoss) -> MeanLoss | EdgeLoss:
    """The loss on the artifact's labels, or over edges."""
    if isinstance(loss, LinkLoss):
        return EdgeLoss(loss, artifact)
    whole = artifact.whole
    mean = MeanLoss(
        loss, labels=whole.labels, masks=whole.masks, task=whole.task, num_classes=whole.num_classes,
        original_id=whole.original_id,
    )  # fmt: skip
    return mean.of_rows(artifact.rows, artifact.owned) if isinstance(artifact, Share) else mean
