"""What a person gives a run beside layers and an artifact: checked, and made what the run needs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hongtu.config import HOST_DTYPES, BudgetShare, parse_bytes, parse_share
from hongtu.device.backends import Backend, get_backend
from hongtu.errors import BudgetError, InputError, refused_as
from hongtu.graph.artifact import Artifact
from hongtu.hardware import CPU, Hardware
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.edge_targets import EdgeTargets
from hongtu.model.link_loss import LinkLoss
from hongtu.model.loss_terms import Losses, parts_of, terms_of
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.search.host import HostLimit
from hongtu.ranks.share import Share
from hongtu.ranks.together import Alone, Together

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def check_precision(dtype: torch.dtype, autocast: torch.dtype | None = None) -> None:
    """Refuse what a run cannot compute in.

    Raises:
        InputError: naming what it can.
    """
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype {dtype}: expected torch.float32 or torch.float64")
    if autocast not in (None, torch.bfloat16) or (autocast is not None and dtype != torch.float32):
        raise InputError(f"autocast {autocast} with dtype {dtype}: expected torch.bfloat16 with float32, or None")


def read_host_dtypes(*given: object) -> dict[str, Any]:
    """By the name of the setting, "bfloat16", or "" for rows as a run computes with them.

    Args:
        given: for each of ``HOST_DTYPES``.

    Raises:
        InputError: for anything else.
    """
    found = dict.fromkeys(HOST_DTYPES, "")
    for name, value in zip(HOST_DTYPES, given, strict=True):
        word = str(value).removeprefix("torch.")
        if value is None or word == "float32":
            continue
        if word not in ("bfloat16", "bf16"):
            raise InputError(f"{name} is {value!r}: expected torch.bfloat16, or None for the run's own")
        found[name] = "bfloat16"
    return found


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


def check_plain(seed: object, **switches: object) -> None:
    """Refuse a seed that is no number, and switches that are neither on nor off.

    Raises:
        InputError: naming the argument.
    """
    if not isinstance(seed, Integral):
        raise InputError(f"seed is {seed!r}: expected a whole number")
    for name, given in switches.items():
        if not isinstance(given, bool):
            raise InputError(f"{name} is {given!r}: expected True or False")


def make_scheduler(scheduler: Callable[[torch.optim.Optimizer], Any], optimizer: torch.optim.Optimizer) -> Any:
    """What a person's function makes of the optimizer.

    Raises:
        InputError: where it makes none, such as one that does not return it.
    """
    remedy = "pass a function, as lambda o: torch.optim.lr_scheduler.StepLR(o, 10)"
    with refused_as("scheduler", remedy):
        made = scheduler(optimizer)
    if not hasattr(made, "step"):
        raise InputError(
            f"scheduler gave {made!r}: expected one scheduler of torch.optim.lr_scheduler, which is stepped once per "
            f"epoch; several go into a SequentialLR or ChainedScheduler; {remedy}"
        )
    if not isinstance(made, ReduceLROnPlateau):
        try:
            inspect.signature(made.step).bind()
        except TypeError:
            raise InputError(
                f"scheduler: the step of a {type(made).__name__} takes arguments, and fit gives none; derive it from "
                "ReduceLROnPlateau, which is given a score or a loss, or give its arguments defaults"
            ) from None
    return made


def validation_loss(artifact: Artifact, loss: Losses) -> MeanLoss:
    """The loss over the val mask: of the terms that are over the train mask, where any is, else of all. As torch's, it
    is nan where nothing there has a weight."""
    terms = terms_of(loss)
    own = [term for term in terms if isinstance(term.mask, str) and term.mask == "train"] or terms
    return _mean_loss(artifact, [replace(term, mask="val") for term in own], may_be_nan=True)


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


def host_limit(
    host_memory: int | str | HostLimit | None,
    *,
    spills: bool,
    has_devices: bool,
    device_memory: int | str | None,
) -> HostLimit | None:
    """What a person's settings say of the host; each of several ranks has all of it for itself.

    Raises:
        InputError: for a combination that cannot be kept.
    """
    if host_memory is None:
        if spills:
            raise InputError("spill: nothing says what fits; give host_memory (--host-memory), too, or leave it out")
        return None
    if isinstance(host_memory, HostLimit):
        return host_memory
    memory = parse_bytes(host_memory, "host_memory")
    if has_devices and device_memory is None:
        raise InputError(
            "host_memory: the devices' memory is the host's, and without a limit of its own; give device_memory "
            "(--device-memory), too"
        )
    return HostLimit(memory=memory, spills=spills, has_devices=has_devices)


def make_loss(artifact: Artifact, loss: Losses | LinkLoss) -> MeanLoss | EdgeLoss:
    """The loss on the artifact's labels, or over edges, or both."""
    over_edges, others = parts_of(loss)
    if over_edges is not None:
        link: Any = over_edges.loss
        kind = EdgeLoss if link.targets is None else EdgeTargets
        whole = artifact.whole
        return kind(link, whole, over_edges.weight, _mean_loss(whole, others) if others else None)
    mean = _mean_loss(artifact.whole, others)
    return mean.of_rows(artifact.rows, artifact.owned) if isinstance(artifact, Share) else mean


def _mean_loss(whole: Artifact, loss: Losses, *, may_be_nan: bool = False) -> MeanLoss:
    return MeanLoss(
        loss, labels=whole.labels, masks=whole.masks, task=whole.task, num_classes=whole.num_classes,
        original_id=whole.original_id, may_be_nan=may_be_nan,
    )  # fmt: skip


def budget_bytes(device_memory: int | str | None, plan: Callable[[int | None], ExecutionPlan]) -> int | None:
    """Bytes per device, or None for no limit.

    Args:
        device_memory: bytes, a size such as "2GiB", or a share such as "50%" of what the largest device is likely to
            hold without a limit; all of it is enough in any case.
        plan: within so many bytes, or without a limit; only a share asks for it.

    Raises:
        InputError: for what is none of these.
    """
    if isinstance(device_memory, BudgetShare):
        return device_memory
    share = parse_share(device_memory, "device_memory")
    if share is None:
        return None if device_memory is None else parse_bytes(device_memory, "device_memory")
    whole = plan(None).likely_bytes
    if share == 1:
        try:
            plan(whole)
        except BudgetError as refused:  # a bound on what layers take in chunks may be beyond what they take of all
            whole = refused.smallest
    return BudgetShare.of(whole, share)


ON_OOM = ("raise", "replan")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a Trainer was given for its runs, read and checked.

    Attributes:
        strategy: which savings may be used.
        dtype: of rows, parameters and gradients.
        autocast: dtype that modules compute in, or None.
        host_dtype, gradient_dtype: "bfloat16" where the host has values, or gradients of rows, in that, else "".
        hardware: what the planner compares plans by.
        make_rows_optimizer: which steps learned rows.
        clips: gradients are clipped before a step.
        limit: what the host may hold; None: anything.
        spill: directory of the file with the rows that the host does not hold, or None.
        on_oom: "raise", or "replan": run again with smaller groups of chunks where a device's memory is not enough.
        backend: the devices.
        ranks: the processes that train together.

    Raises:
        InputError: for another ``on_oom``, and for what works with none of these dtypes.
    """

    strategy: Strategy
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    host_dtype: str = ""
    gradient_dtype: str = ""
    hardware: Hardware = CPU
    make_rows_optimizer: OptimizerFactory = adam
    clips: bool = False
    limit: HostLimit | None = None
    spill: str | os.PathLike[str] | None = None
    on_oom: str = "raise"
    backend: Backend = field(default_factory=lambda: get_backend("cpu"))
    ranks: Together = field(default_factory=Alone)

    def __post_init__(self) -> None:
        if self.on_oom not in ON_OOM:
            raise InputError(f"on_oom {self.on_oom!r}: expected {' or '.join(map(repr, ON_OOM))}")
        for name in HOST_DTYPES:
            if (narrow := getattr(self, name)) and self.dtype != torch.float32:
                raise InputError(
                    f"{name} {narrow!r} (--{name.replace('_', '-')}): rows are narrower than float32, and dtype is "
                    f"{self.dtype}; leave one out"
                )
