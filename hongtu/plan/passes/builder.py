"""From layers to the list of passes that a strategy makes of them (tensors' names: ``definition.py``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from hongtu.graph.halo import Halo
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Names, Pass, PassList, gradient
from hongtu.plan.passes.shapes import LayerShape, NetworkShape
from hongtu.plan.passes.strategy import Strategy

# reads rows in order and exchanges none, like a normalisation
STAGE_0 = LayerShape(
    z=0, s=(), a=0, linear=False, reduce=None, weighted=False, z_is_input=False, uses_statistics=False, norm=True
)


def plan_passes(
    shape: NetworkShape, strategy: Strategy, *, fuse: bool, save: bool, prune: bool, halo: Halo | None = None
) -> PassList:
    """Turn a model into passes under a strategy.

    Args:
        fuse: forward, loss and backward of the last layer in one pass.
        save: save what stages compute until backward.
        prune: compute only what the loss depends on.
        halo: what ranks fetch of one another; only what own rows depend on is computed then, in evaluation, too.
    """
    from_csr = shape.sparse_input is not None
    constants = (strategy.no_input_gradient or from_csr) and not shape.learned_input
    names = Names(shape, input_gradient=not constants)
    cached = cached_layers(shape, strategy)
    constant = {FEATURES}
    if cached:
        constant |= {names.z[cached - 1], *names.s[cached - 1], f"a{cached - 1}"}
        constant |= {names.value[value.number] for value in shape.values if value.stage < cached}
    wanted = {
        name
        for layer, z, s in zip(shape.layers, names.z, names.s, strict=True)
        if layer.trained or not constants
        for name in (z, *s)
    }
    wanted |= {names.value[value.number] for value in shape.values if value.trained or not constants}
    given = [state for layer in shape.layers for state in layer.gives]
    wanted |= {names.states[state.number] for state in given if state.trained or not constants}
    wanted = wanted - {FEATURES} if constants else wanted | {FEATURES}
    fuse = fuse and not shape.edge_loss  # it needs the output of all vertices
    kept_layer = cached - 1 if cached else None
    builder = _Builder(shape, names, kept_layer, frozenset(wanted), fuse=fuse, save=save, prune=prune, halo=halo)
    setup, train, evaluate = builder.setup(), builder.train(), builder.evaluate()
    if not shape.trains:
        train, evaluate = [replace(p, when="train") for p in evaluate], []
    later = set().union(*(_touches(p) for p in (*train, *evaluate)))
    kept = constant & later
    rounds = halo.fetched if halo else ()  # of all layers, of which these may be the first
    fetched = [k for k, of_layer in zip(shape.graph_layers, rounds, strict=False) if of_layer]
    on_host = (
        {OUTPUT}
        | ({gradient(OUTPUT)} if shape.edge_loss else set())
        | {part for k in fetched for part in (names.z[k], gradient(names.z[k]))}
        | ({FEATURES, gradient(FEATURES)} if shape.learned_input or from_csr else {FEATURES} - kept)
    )
    pieces: frozenset[str] = frozenset()
    if save and not (prune or halo):
        pieces = _of_one_chunk((*setup, *train, *evaluate)) - kept - on_host
        left = [p.saves and p.direction == "backward" for p in train]
        train = [replace(p, has=pieces) if found else p for p, found in zip(train, left, strict=True)]
    return PassList(
        train=_with_lifetimes(train, kept, results=_results(shape)),
        evaluate=_with_lifetimes(evaluate, kept, results=(OUTPUT,)),
        setup=_with_lifetimes(setup, {FEATURES}, results=tuple(kept)),
        width=names.width,
        constant=frozenset(kept),
        wanted=builder.wanted,
        pieces=pieces,
        on_host=frozenset(on_host),
        layer_inputs=tuple((z, *s) for z, s in zip(names.z, names.s, strict=True)),
        returned=tuple(names.returned(stage) for stage in range(len(shape.layers) + 1)),
        of_edges={
            name: k
            for k, layer in enumerate(shape.layers)
            for state in layer.gives
            for name in (names.states[state.number], gradient(names.states[state.number]))
        },
    )


def _results(shape: NetworkShape) -> tuple[str, ...]:
    """What an epoch leaves on the host."""
    if not shape.trains:
        return (OUTPUT,)
    return (gradient(FEATURES),) if shape.learned_input else ()


def cached_layers(shape: NetworkShape, strategy: Strategy) -> int:
    """How many layers aggregate the same in every epoch, so that the last one's aggregate is computed once and kept;
    that of sparse features is not, for it would be dense."""
    cached = strategy.cache_input_aggregate and strategy.no_input_gradient and not shape.learned_input
    return shape.constant_layers if cached and shape.sparse_input is None else 0


@dataclass(frozen=True)
class _Builder:
    """Passes of one model under one choice of savings. Stage 0 alone counts as a layer -1, ``STAGE_0``.

    Attributes:
        cached: the layer whose aggregate is kept, or None.
    """

    shape: NetworkShape
    names: Names
    cached: int | None
    wanted: frozenset[str]
    fuse: bool
    save: bool
    prune: bool
    halo: Halo | None

    def setup(self) -> list[Pass]:
        k = self.cached
        if k is None:
            return []
        aggregate = Pass(
            direction="forward",
            layer=k,
            stage=None,
            when="setup",
            exchange=self.names.z[k],
            s=self.names.s[k] if self.shape.layers[k].combined else (),
            checkpoint=f"a{k}",
            hops=self._hops(k, train=False),
        )
        return [*(self._forward(hop, "setup") for hop in (*self._stage_0, *range(k))), aggregate]

    def evaluate(self) -> list[Pass]:
        return [self._forward(k, "evaluate") for k in (*self._layers, self.last)]

    def train(self) -> list[Pass]:
        forward = self._layers if self.fuse else (*self._layers, self.last)
        passes = [self._forward(k, "train") for k in forward]
        if self.fuse:
            passes.append(self._backward(self.last, fused=True))
        return passes + [self._backward(k) for k in reversed(forward) if self._goes_back(k)]

    @cached_property
    def last(self) -> int:
        return len(self.shape.layers) - 1

    @cached_property
    def _stage_0(self) -> tuple[int, ...]:
        """Stage 0, where it does anything alone."""
        return (-1,) if self.names.stage_outputs(0) or self.shape.layers[0].norm else ()

    @cached_property
    def _layers(self) -> tuple[int, ...]:
        """What runs in every epoch before the last layer: from a cached aggregate on, or all."""
        if self.cached is not None:
            return tuple(range(self.cached, self.last))
        return (*self._stage_0, *range(self.last))

    def _reads(self, k: int) -> tuple[LayerShape, str, tuple[str, ...]]:
        """A layer, its z, and the elements of its s."""
        return (STAGE_0, FEATURES, ()) if k < 0 else (self.shape.layers[k], self.names.z[k], self.names.s[k])

    def _forward(self, k: int, when: Literal["train", "evaluate", "setup"]) -> Pass:
        (layer, z, s), train = self._reads(k), when == "train"
        last, returns = train and k == self.last, train and self._goes_back(k)
        loss = last and not self.shape.edge_loss
        saves = returns and self._saves(k)
        from_cache = when != "setup" and k == self.cached
        outputs = self.names.stage_outputs(k + 1)
        return Pass(
            direction="forward",
            layer=None if k < 0 else k,
            stage=k + 1,
            when=when,
            exchange=None if from_cache or layer.norm else z,
            source=f"a{k}" if from_cache else z if layer.norm else None,
            s=() if from_cache and layer.combined else s,
            values=self.names.taken(k + 1),
            states=tuple(self.names.states[of] for of in layer.states),
            gives=self._given(k),
            outputs=tuple(gradient(name) for name in outputs) if loss else outputs + self._given(k),
            checkpoint=f"a{k}" if returns and layer.linear and not (from_cache or layer.norm or saves) else None,
            moments=self._moments(k + 1),
            loss=loss,
            edge_loss=last and self.shape.edge_loss,
            saves=saves,
            holds=self._held(k + 1) if saves else (),
            hops=self._hops(k, train=train),
        )

    def _backward(self, k: int, *, fused: bool = False) -> Pass:
        (layer, z, s), names = self._reads(k), self.names
        values = names.taken(k + 1)
        own = (z,) if layer.norm else s
        states = tuple(names.states[of] for of in layer.states)
        direct = tuple(gradient(n) if n in self.wanted else None for n in (*own, *values, *states))
        from_cache, saves = k == self.cached, self._saves(k)
        linear = from_cache or (layer.linear and not fused)
        checkpoint = f"a{k}" if linear and not saves else None
        return Pass(
            direction="fused" if fused else "backward",
            layer=None if k < 0 else k,
            stage=k + 1,
            exchange=None if linear or layer.norm or saves else z,
            flush=gradient(z) if z in self.wanted and not layer.norm else None,
            source=z if layer.norm else checkpoint,
            s=() if layer.combined and (from_cache or not fused) else s,
            values=values,
            states=states,
            gives=self._given(k),
            gradients=() if fused else self._gradients(k + 1, *self._given(k)),
            moments=self._returned_moments(k + 1),
            direct=direct,
            loss=fused,
            saves=saves,
            holds=self._held(k + 1) if saves else (),
            hops=self._hops(k),
        )

    def _saves(self, k: int) -> bool:
        """Whether what the stage behind layer k computes stays until backward. It is worth no memory where the stage
        begins with what stays anyway, the cached aggregate, and computing it again takes at most an eighth of the
        products of an epoch. Stage 0 would save dense rows of sparse features."""
        if not self.save or k == self.last or (k < 0 and self.shape.sparse_input is not None):
            return False
        if k != self.cached or not self.shape.stage_work:
            return True
        forward_and_backward = 3 * sum(work.products.parameters for work in self.shape.stage_work)
        return 8 * self.shape.stage_work[k + 1].again.parameters > forward_and_backward

    def _moments(self, stage: int) -> str | None:
        return self.names.z[stage] if stage <= self.last and self.shape.layers[stage].norm else None

    def _given(self, k: int) -> tuple[str, ...]:
        """The states that layer k gives edges."""
        return tuple(self.names.states[state.number] for state in self.shape.layers[k].gives) if k >= 0 else ()

    def _gradients(self, stage: int, *states: str) -> tuple[str, ...]:
        """Of a stage's outputs, and of what the aggregate before it gives edges."""
        outputs = (*self.names.stage_outputs(stage), *states)
        return tuple(gradient(name) for name in outputs if name in self.wanted or name == OUTPUT)

    def _returned_moments(self, stage: int) -> str | None:
        """Those of a stage's output that gets a gradient."""
        name = self._moments(stage)
        return name if name in self.wanted else None

    def _held(self, stage: int) -> tuple[str, ...]:
        """A stage's output that is exchanged and read as s, too, is likely what its operations save for backward."""
        z = self.names.z[stage]
        return (z,) if z in self.names.s[stage] and z != FEATURES else ()

    def _goes_back(self, k: int) -> bool:
        """Whether layer k has a backward pass: the loss is behind it, or something that gets a gradient."""
        return k == self.last or not self.wanted.isdisjoint((*self.names.stage_outputs(k + 1), *self._given(k)))

    def _hops(self, k: int, *, train: bool = True) -> int | None:
        if self.halo is not None:
            return self.halo.behind[sum(layer <= k for layer in self.shape.graph_layers)]
        train = train or not self.shape.trains
        return self.shape.layers_above(k) if train and self.prune and k >= self.shape.last_norm else None


def _with_lifetimes(passes: list[Pass], constant: set[str], results: tuple[str, ...] = ()) -> tuple[Pass, ...]:
    """Create each vertex tensor before the pass that first touches it and free it after the last one."""
    touched = [_touches(p) for p in passes]
    result = []
    for k, p in enumerate(passes):
        before = set().union(*touched[:k], constant)
        after = set().union(*touched[k + 1 :], constant, results)
        creates = tuple(n for n in touched[k] if n not in before)
        frees = tuple(n for n in touched[k] if n not in after)
        result.append(replace(p, creates=creates, frees=frees))
    return tuple(result)


def _of_one_chunk(passes: tuple[Pass, ...]) -> frozenset[str]:
    """The vertex tensors that passes write and nobody else's chunk reads or adds to."""
    written = {name for p in passes for name in (*p.outputs, *p.direct) if name is not None}
    return frozenset(written - {name for p in passes for name in (p.exchange, p.flush)} - {FEATURES})


def _touches(p: Pass) -> dict[str, None]:
    """The vertex tensors of a pass in a fixed order."""
    names = (*p.inputs, *p.gradients, *p.written, *p.holds, p.exchange, p.flush)
    names += (gradient(OUTPUT),) if p.edge_loss else ()
    return {name: None for name in names if name is not None}
