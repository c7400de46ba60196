"""From layers to passes: what each sweep over the batches reads, exchanges and writes.

A pass runs, per chunk, the aggregate of one layer and the row-wise stage behind it (update of that layer, then
transform of the next), forward or backward. Stage 0 (transform of layer 0) is a pass of its own without aggregate.

Host tensors: ``features``; ``z{l}``, ``s{l}.{k}`` (outputs of stage l), ``a{l}`` (cacheable checkpoint), ``output``;
their gradients carry the prefix ``grad ``. A tensor that aliases another has the other's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hongtu.plan.shapes import NetworkShape
from hongtu.plan.strategy import Strategy

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One sweep over all batches.

    Attributes:
        direction: forward or backward; backward visits the batches from last to first.
        layer: the layer whose aggregate runs, or None for stage 0 alone.
        stage: the row-wise stage that runs behind the aggregate (``layer + 1``, or 0).
        exchange: host tensor whose rows go through the caches, or None where no neighbour rows are needed.
        flush: host gradient tensor that receives the caches' gradient rows, or None.
        inputs: host tensors read by contiguous rows: features, or the checkpoint and s elements of ``layer``.
        gradients: host gradient tensors of the stage's outputs, read by contiguous rows (backward).
        outputs: host tensors written by contiguous rows: the stage's outputs, or gradients of s elements (backward).
        checkpoint: host tensor that keeps the aggregate's output for backward, or None (forward).
        direct: for each s element, the host gradient tensor its gradient goes to, or None (backward).
        creates: host tensors allocated before the pass.
        frees: host tensors released after it.
    """

    direction: Direction
    layer: int | None
    stage: int
    exchange: str | None = None
    flush: str | None = None
    inputs: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    checkpoint: str | None = None
    direct: tuple[str | None, ...] = ()
    creates: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people: "forward 1"; stage 0 alone is "forward stage 0"."""
        return f"{self.direction} {'stage 0' if self.layer is None else self.layer}"


@dataclass(frozen=True)
class PassList:
    """The passes of a training epoch and of an evaluation, with the columns of every host tensor they name."""

    train: tuple[Pass, ...]
    evaluate: tuple[Pass, ...]
    width: dict[str, int]


def plan_passes(shape: NetworkShape, strategy: Strategy) -> PassList:
    """Turn a model into passes under a strategy."""
    names = _Names(shape)
    evaluate = _with_lifetimes(_forward_passes(shape, names, train=False), keep=("output",))
    train = _forward_passes(shape, names, train=True) + _backward_passes(shape, names, strategy)
    return PassList(train=_with_lifetimes(train), evaluate=evaluate, width=names.width)


class _Names:
    """Host tensor names of every stage's outputs, aliases resolved."""

    def __init__(self, shape: NetworkShape) -> None:
        self.width: dict[str, int] = {"features": shape.features, "output": shape.output}
        self.z: list[str] = []
        self.s: list[tuple[str, ...]] = []
        for index, layer in enumerate(shape.layers):
            z = "features" if index == 0 and layer.z_is_input else f"z{index}"
            s = tuple(z if columns is None else f"s{index}.{k}" for k, columns in enumerate(layer.s))
            self.z.append(z)
            self.s.append(s)
            self.width[z] = layer.z
            self.width[f"a{index}"] = layer.a
            self.width.update({n: c for n, c in zip(s, layer.s, strict=True) if c is not None})
        self.width.update({f"grad {name}": columns for name, columns in list(self.width.items())})

    def stage_outputs(self, stage: int) -> tuple[str, ...]:
        """Distinct host tensors that a stage writes."""
        if stage == len(self.z):
            return ("output",)
        outputs = (self.z[stage], *(name for name in self.s[stage] if name != self.z[stage]))
        return tuple(name for name in outputs if name != "features")


def _forward_passes(shape: NetworkShape, names: _Names, *, train: bool) -> list[Pass]:
    passes = []
    if outputs := names.stage_outputs(0):
        passes.append(Pass(direction="forward", layer=None, stage=0, inputs=("features",), outputs=outputs))
    last = len(shape.layers) - 1
    for index, layer in enumerate(shape.layers):
        outputs = names.stage_outputs(index + 1)
        passes.append(
            Pass(
                direction="forward",
                layer=index,
                stage=index + 1,
                exchange=names.z[index],
                inputs=names.s[index],
                outputs=("grad output",) if train and index == last else outputs,
                checkpoint=f"a{index}" if train and layer.linear else None,
            )
        )
    return passes


def _backward_passes(shape: NetworkShape, names: _Names, strategy: Strategy) -> list[Pass]:
    passes = []
    for index in reversed(range(len(shape.layers))):
        layer = shape.layers[index]
        wanted = names.z[index] != "features" or not strategy.no_input_gradient
        flush = f"grad {names.z[index]}" if wanted else None
        direct = tuple(f"grad {n}" if wanted or n != "features" else None for n in names.s[index])
        passes.append(
            Pass(
                direction="backward",
                layer=index,
                stage=index + 1,
                exchange=None if layer.linear else names.z[index],
                flush=flush,
                inputs=((f"a{index}",) if layer.linear else ()) + names.s[index],
                gradients=tuple(f"grad {n}" for n in names.stage_outputs(index + 1)),
                outputs=tuple(dict.fromkeys(n for n in direct if n is not None and n != flush)),
                direct=direct,
            )
        )
    if outputs := names.stage_outputs(0):
        passes.append(
            Pass(
                direction="backward",
                layer=None,
                stage=0,
                inputs=("features",),
                gradients=tuple(f"grad {n}" for n in outputs),
                outputs=() if strategy.no_input_gradient else ("grad features",),
                direct=() if strategy.no_input_gradient else ("grad features",),
            )
        )
    return passes


def _with_lifetimes(passes: list[Pass], keep: tuple[str, ...] = ()) -> tuple[Pass, ...]:
    """Create each host tensor before the pass that first touches it and free it after the last one."""
    touched = [_touches(p) for p in passes]
    result = []
    for k, p in enumerate(passes):
        before = set().union(*touched[:k])
        after = set().union(*touched[k + 1 :], keep)
        creates = tuple(n for n in touched[k] if n not in before)
        frees = tuple(n for n in touched[k] if n not in after)
        result.append(Pass(**{**p.__dict__, "creates": creates, "frees": frees}))
    return tuple(result)


def _touches(p: Pass) -> dict[str, None]:
    """The host tensors of a pass, features excepted (they stay), in a fixed order."""
    names = (*p.inputs, *p.gradients, *p.outputs, p.checkpoint, p.exchange, p.flush)
    return {name: None for name in names if name is not None and name != "features"}
