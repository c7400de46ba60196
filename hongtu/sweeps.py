"""What row-wise stages read and write beside their dense products: every operation is seen once, on a few rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hongtu.block import Rows
from hongtu.modules import modes_kept
from hongtu.network import Network
from hongtu.plan.shapes import Sweeps
from hongtu.tracing import Traced

ROWS = 11  # a number that no width of a model should be
aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.addmm_.default, aten.bmm.default, aten.baddbmm.default}


class _Seen(TorchDispatchMode):
    """Counts operations, and the columns of the rows that they take and give."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = self.calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        if not func.is_view and func not in PRODUCTS:
            self._add((*args, *(kwargs or {}).values(), out))
        return out

    def _add(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            for entry in value:
                self._add(entry)
        elif isinstance(value, Tensor) and value.ndim > 1 and len(value) == ROWS:
            self.columns += value[0].numel()


def stage_sweeps(network: Network, traced: Traced, features: int, dtype: torch.dtype) -> tuple[Sweeps, ...]:
    """Per stage of a network that was traced, what its operations do in training."""
    with modes_kept(network.modules), torch.random.fork_rng(devices=[]):
        network.modules.train()
        return tuple(_sweeps(network, traced, features, dtype))


def _sweeps(network: Network, traced: Traced, features: int, dtype: torch.dtype) -> Iterator[Sweeps]:
    rows = Rows(ids=torch.arange(ROWS) % 2, statistics=torch.ones((ROWS, 3), dtype=dtype))
    h = torch.ones((ROWS, features), dtype=dtype)
    known = {-1: h}
    a: Tensor | None = None
    s: tuple[Tensor, ...] = ()
    for index in range(len(network.layers) + 1):
        taken = tuple(known[number] for number in network.wiring.takes[index])
        leaves = [x.detach().clone().requires_grad_(index > 0) for x in (a, *s, *taken) if x is not None]
        own, beside = leaves[: len(leaves) - len(taken)], leaves[len(leaves) - len(taken) :]
        with torch.enable_grad():
            forward, backward = _Seen(), _Seen()
            with forward:
                z, s, given = network.run_stage(
                    index, None if index else h, own[0] if index else None, tuple(own[1:]), rows, tuple(beside)
                )
            _differentiate([z, *s, *given.values()], [*leaves, *network.modules.parameters()], backward)
        yield Sweeps(forward.columns, backward.columns, forward.calls, backward.calls)
        if index < len(network.layers):
            known.update(given)
            layer = traced.layers[index]
            a, s = torch.ones((ROWS, layer.a), dtype=dtype), () if layer.combined else s


def _differentiate(outputs: list[Tensor], inputs: list[Tensor], seen: _Seen) -> None:
    outs = list({id(out): out for out in outputs if out.requires_grad}.values())
    wanted = [x for x in inputs if x.requires_grad]
    if outs and wanted:
        ones = [torch.ones_like(out) for out in outs]
        with seen, suppress(RuntimeError):  # a layer without gradients is refused where it trains
            torch.autograd.grad(outs, wanted, ones, allow_unused=True)
