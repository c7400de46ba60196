"""From an artifact, layers and a budget to an execution plan, without a Trainer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hongtu.device.backends import get_backend
from hongtu.errors import names_known
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.hardware import CPU, Hardware, load_hardware
from hongtu.model.checks import cast
from hongtu.model.link_loss import LinkLoss, trained_decoder
from hongtu.model.loss_terms import Losses
from hongtu.model.network import Network
from hongtu.model.typed import with_types
from hongtu.model.wiring import Entry, as_modules
from hongtu.nn.context import RowContext
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.strategy import Strategy, get_strategy
from hongtu.plan.search.host import HostLimit
from hongtu.ranks.fabric import load_fabric, over
from hongtu.ranks.share import share_of
from hongtu.ranks.stages import ByLayer, Stages
from hongtu.train.network_plan import Job
from hongtu.train.ranked import Tried, check_ranked, choose_stages, deal, exchanging_layers, try_plan
from hongtu.train.settings import (
    OptimizerFactory,
    RunSpec,
    adam,
    budget_bytes,
    host_limit,
    make_loss,
    make_optimizer,
    read_host_dtypes,
)
from hongtu.train.tracing.shape import fill_widths


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
    host_memory: int | str | HostLimit | None = None,
    spill: bool = False,
    host_dtype: torch.dtype | str | None = None,
    gradient_dtype: torch.dtype | str | None = None,
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
    network, made = _prepared(artifact, layers, loss, optimizer, dtype)
    unlimited, spec = _specs(
        artifact, load_hardware(hardware), device_memory, host_memory=host_memory, spill=spill, host_dtype=host_dtype,
        gradient_dtype=gradient_dtype, strategy=get_strategy(strategy), dtype=dtype, make_rows_optimizer=optimizer,
    )  # fmt: skip
    job = Job(artifact, make_loss(artifact, loss), made, unlimited).with_sparse_rows(network)
    budget = budget_bytes(device_memory, partial(job.plan, network))
    return replace(job, spec=spec).plan(network, budget)


def plan_ranks(
    artifact: Artifact,
    layers: Sequence[Entry],
    ranks: int,
    dependencies: str,
    *,
    loss: Losses | LinkLoss,
    device_memory: int | str | None,
    strategy: str | Strategy,
    hardware: Hardware,
    topology: str | os.PathLike[str] | None = None,
    **host: Any,
) -> list[tuple[Artifact, ExecutionPlan]]:
    """Every rank's share and plan, as Trainers on so many ranks would have them; arguments as for these, ``host`` the
    host's: host_memory, spill, host_dtype and gradient_dtype. Without a topology file every rank is on a host of its
    own.

    Raises:
        InputError: for anything that cannot work.
        BudgetError: when the budget is too small for a rank; names the smallest that works.
    """
    network, optimizer = _prepared(artifact, layers, loss)
    check_ranked(artifact, network, loss, ranks, dependencies)
    unlimited, spec = _specs(artifact, hardware, device_memory, strategy=get_strategy(strategy), **host)
    whole, count = Job(artifact, make_loss(artifact, loss), optimizer, unlimited), exchanging_layers(network)
    fabric = None if topology is None else load_fabric(topology, ranks, hardware)
    budget = budget_bytes(device_memory, partial(whole.plan, network))
    bounds = deal(artifact, ranks, lambda: whole.sketch(network), hardware)

    def share_and_plan(rank: int, stages: Stages) -> tuple[Artifact, ExecutionPlan]:
        share = share_of(artifact, rank, bounds, stages, fabric)
        job = Job(share, make_loss(share, loss), optimizer, spec)
        return share, job.plan(network, budget)

    def tried(stages: Stages) -> list[Tried]:
        joined = over(fabric, hardware)
        return [try_plan(lambda: share_and_plan(rank, stages)[1], joined) for rank in range(ranks)]  # noqa: B023

    stages = ByLayer(count, 0) if artifact.learns_features else choose_stages(count, dependencies, tried)
    return [share_and_plan(rank, stages) for rank in range(ranks)]


def _specs(
    artifact: Artifact,
    hardware: Hardware,
    device_memory: int | str | None,
    *,
    host_memory: int | str | HostLimit | None = None,
    spill: bool = False,
    host_dtype: torch.dtype | str | None = None,
    gradient_dtype: torch.dtype | str | None = None,
    **others: Any,
) -> tuple[RunSpec, RunSpec]:
    """How a run goes that the host does not limit, by which shares of device memory are found, and how it goes."""
    limit = host_limit(host_memory, spills=spill, has_devices=not hardware.staged, device_memory=device_memory)
    backend = get_backend("cpu", artifact.size)
    unlimited = RunSpec(hardware=hardware, backend=backend, **read_host_dtypes(host_dtype, gradient_dtype), **others)
    return unlimited, replace(unlimited, limit=limit)


def _prepared(
    artifact: Artifact,
    layers: Sequence[Entry],
    loss: Losses | LinkLoss,
    optimizer: OptimizerFactory = adam,
    dtype: torch.dtype = torch.float32,
) -> tuple[Network, torch.optim.Optimizer]:
    artifact.check_bounds()
    modules = as_modules(with_types(layers, artifact))
    fill_widths(modules, artifact, dtype)
    decoder = trained_decoder(loss)
    for module in (modules,) if decoder is None else (modules, decoder):
        cast(module, dtype)
    network = Network(modules, RowContext())
    learned = *modules.parameters(), *(() if decoder is None else decoder.parameters())
    return network, make_optimizer(optimizer, learned)
