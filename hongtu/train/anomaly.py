"""Where a NaN or an infinity comes from: the epoch that gave one is run again, looking at every value.

Runs are exact and random numbers counter-based, so the same value comes again; without one, nothing is looked at
but the loss and the gradients of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.engine.engine import Engine
from hongtu.errors import AnomalyError
from hongtu.model.network import Network
from hongtu.nn.block import Rows
from hongtu.ranks.together import Together
from hongtu.train.tracing.operations import tensors_in

BLOCK = 1 << 20  # numbers that are looked at together: what is found of them takes memory, too
REMEDY = "no step was made; lower the learning rate, clip gradients (clip_grad_norm), or mend that input"


def check_epoch(engine: Engine, epoch: int, loss: float, parameters: Sequence[nn.Parameter], ranks: Together) -> None:
    """Look at the loss and the gradients of an epoch.

    Args:
        ranks: who has other gradients than this one, and looks at the same time.

    Raises:
        AnomalyError: when one is not finite; says where the first such value of the epoch appears.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if all(ranks.gather(math.isfinite(loss) and all(_finite(gradient) for gradient in gradients))):
        return
    remedy = _remedy(engine)
    for name, parameter in engine.network.modules.named_parameters():
        if not _finite(parameter):
            raise AnomalyError(f"epoch {epoch + 1}: parameter {name} is {_first(parameter)} before it; {remedy}")
    with _watching(engine, _Watch(engine, epoch, remedy)):
        engine.train(epoch)
    raise AnomalyError(
        f"epoch {epoch + 1}: the loss or a gradient is not finite, but no chunk's part of it is; {remedy}"
    )


def _remedy(engine: Engine) -> str:
    """What to do, with the vertices of which a normalisation by degrees takes the root of a negative number."""
    host = engine.host
    roots = host["factors"][:, 0] if "factors" in host else host["statistics"][:, 0] if "statistics" in host else None
    negative = 0 if roots is None else int(((roots < 0) | roots.isnan()).sum())
    if not negative:
        return REMEDY
    return (
        f"{REMEDY}: the weights of the in-edges of {negative} vertices add up to less than 0, and GCNConv and its like "
        "take the root (normalize=False takes none)"
    )


class _Watch:
    """Sees what every module returns, and every gradient that comes back to it."""

    def __init__(self, engine: Engine, epoch: int, remedy: str) -> None:
        self.engine, self.epoch, self.remedy = engine, epoch, remedy
        self.network = engine.network

    def module(self, network: Network, title: str, rows: Rows, out: Any) -> None:
        """Called by a network with what a module returned."""
        self.network = network
        for x in tensors_in([out]):
            ids = None if rows.of_edges else rows.ids
            self._see(f"what {title} returned", x, ids=ids)
            if x.requires_grad:
                ids = None if ids is None else ids.clone()  # of a buffer that the next chunk overwrites
                x.register_hook(partial(self._see, f"the gradient of what {title} returned", ids=ids))

    def parameter(self, name: str, gradient: Tensor) -> None:
        self._see(f"the gradient of parameter {name}", gradient)

    def loss(self, compute: Callable[..., tuple[Tensor, Tensor]], given: Sequence[Tensor], found: Any) -> None:
        """Called by a loss with its gradient of the current chunk and its part of the loss."""
        if all(map(_finite, found)):
            return
        first, end = 0, len(given[0])
        while end - first > 1:  # the first half that is not finite
            middle = (first + end) // 2
            good = all(map(_finite, compute(*(rows[first:middle] for rows in given))))
            first, end = (middle, end) if good else (first, middle)
        rows = self.network.context.rows
        assert rows is not None
        self._raise("the loss or its gradient", "not finite", int(rows.ids[first]))

    def _see(self, what: str, x: Tensor, ids: Tensor | None = None) -> None:
        if not _finite(x):
            bad = np.flatnonzero(~np.isfinite(_numpy(x)).reshape(len(x), -1).all(axis=1)) if x.ndim else [0]
            self._raise(what, _first(x), None if ids is None or len(ids) != len(x) else int(ids[int(bad[0])]))

    def _raise(self, what: str, value: object, vertex: int | None) -> None:
        of, spot = "" if vertex is None else f" for vertex {vertex}", self.engine.spot
        assert spot is not None
        raise AnomalyError(
            f"epoch {self.epoch + 1}: {what} is {value}{of}, in batch {spot.batch} (chunk {spot.chunk}); {self.remedy}",
            vertex,
        )


@contextmanager
def _watching(engine: Engine, watch: _Watch) -> Iterator[None]:
    """Everything that runs inside is seen."""
    hooks = [
        parameter.register_hook(partial(watch.parameter, name))
        for network in engine.replicas.every
        for name, parameter in network.modules.named_parameters()
        if parameter.requires_grad
    ]
    loss = engine.loss
    assert loss is not None
    loss.watch = watch.loss
    for network in engine.replicas.every:
        network.watch = partial(watch.module, network)
    try:
        with engine.budget_of(None):  # looking takes a little memory
            yield
    finally:
        for network in engine.replicas.every:
            network.watch = None
        loss.watch = None
        for hook in hooks:
            hook.remove()


def _numpy(x: Tensor) -> np.ndarray:
    return x.numpy(force=True)  # in numpy: what torch would allocate counts as a layer's


def _finite(x: Tensor) -> bool:
    if not x.is_floating_point():
        return True
    if x.is_cpu:
        numbers = _numpy(x).reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(numbers.dot(numbers)):  # in one pass; else the squares may be too large
                return True
        return all(np.isfinite(numbers[k : k + BLOCK]).all() for k in range(0, len(numbers), BLOCK))
    return bool(torch.isfinite(x).all())


def _first(x: Tensor) -> float:
    values = _numpy(x).ravel()
    return float(values[~np.isfinite(values)][0])
