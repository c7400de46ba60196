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
        hardware: what the planner compares plans by.
        stepping: what is done with gradients.
        limit: what the host may hold; None: anything.
        spill: directory of the file with the rows that the host does not hold, or None.
        on_oom: "raise", or "replan": run again with smaller groups of chunks where a device's memory is not enough.
        backend: the devices.
        ranks: the processes that train together.

    Raises:
        InputError: for another ``on_oom``.
    """

    strategy: Strategy
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
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
