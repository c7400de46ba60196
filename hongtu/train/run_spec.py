"""How a run goes, whatever its graph, model and loss are."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from hongtu.device.backends import Backend, get_backend
from hongtu.errors import InputError
from hongtu.hardware import CPU, Hardware
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.search.host import HostLimit
from hongtu.ranks.together import Alone, Together
from hongtu.train.survey.stepping import PLAINLY, Stepping

ON_OOM = ("raise", "replan")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a Trainer was given for its runs, read and checked.

    Attributes:
        strategy: which savings may be used.
        dtype: of rows, parameters and gradients.
        autocast: dtype that modules compute in, or None.
        host_dtype: "bfloat16" where the host has values in that, else "".
        hardware: what the planner compares plans by.
        stepping: what is done with gradients.
        limit: what the host may hold; None: anything.
        spill: directory of the file with the rows that the host does not hold, or None.
        on_oom: "raise", or "replan": run again with smaller groups of chunks where a device's memory is not enough.
        backend: the devices.
        ranks: the processes that train together.

    Raises:
        InputError: for another ``on_oom``, and for what works with no ``host_dtype``.
    """

    strategy: Strategy
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    host_dtype: str = ""
    hardware: Hardware = CPU
    stepping: Stepping = PLAINLY
    limit: HostLimit | None = None
    spill: str | os.PathLike[str] | None = None
    on_oom: str = "raise"
    backend: Backend = field(default_factory=lambda: get_backend("cpu"))
    ranks: Together = field(default_factory=Alone)

    def __post_init__(self) -> None:
        if self.on_oom not in ON_OOM:
            raise InputError(f"on_oom {self.on_oom!r}: expected {' or '.join(map(repr, ON_OOM))}")
        if not self.host_dtype:
            return
        title = f"host_dtype {self.host_dtype!r} (--host-dtype): "
        if self.dtype != torch.float32:
            raise InputError(f"{title}rows are narrower than float32, and dtype is {self.dtype}; leave one out")
        if self.hardware.staged or self.backend.pinned is not None:
            raise InputError(f"{title}GPUs read the host's rows in float32; use the CPU")
        if self.ranks.size > 1:
            raise InputError(f"{title}ranks send each other rows in float32; train in one process")
