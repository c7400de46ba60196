"""What a pass computes of a chunk: the aggregate of a layer and the row-wise stage behind it, forward or backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from hongtu.graph.sparse_rows import PARTS
from hongtu.plan.memory.buffers import aggregates_in_place
from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.memory.structure import Array
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Pass, gradient
from hongtu.plan.program.moves import Call, call, with_drops
from hongtu.plan.program.ref import Ref, Stores, gradient_cache, own, stays_at, stores, value_cache, where
from hongtu.plan.program.rows import FRONT, SOURCES

OF_ROWS = ("ids", "statistics", "factors")  # what combine and stages find of their rows


def chunk_body(plan: PlannedMemory, p: Pass) -> tuple[Call, ...]:
    """The kernels of ``Compute``; registers are dropped where nobody needs them any more."""
    body = _Body(plan, p)
    return with_drops((*body.opening(), *(body.forward() if p.direction == "forward" else body.backward())))


def sort_edges(plan: PlannedMemory, p: Pass) -> tuple[Call, ...]:
    """The kernels that put the edges of a chunk in the order that a pass finds."""
    body, order = _Body(plan, p), plan.edge_order(p)
    indptr, source, _, weight = body.matrix
    arrays = {name: plan.needs(p).structure[name] for name in (indptr, source, weight) if name is not None}
    views = [body.view_of(name, plan.structure_name(p, name), array) for name, array in arrays.items()]
    views += [body.view_of(name, *stays, access=Stores(True)) for name, stays in order.items()]
    mean = body.shape is not None and body.shape.reduce == "mean"
    return with_drops((*views, call("sort_edges", indptr, source, weight, *order, mean=mean)))


class _Body:
    def __init__(self, plan: PlannedMemory, p: Pass) -> None:
        self.plan, self.p = plan, p
        self.shape = None if p.layer is None else plan.shape.layers[p.layer]
        self.wanted = plan.passes.wanted
        self.gives = () if p.stage is None else plan.passes.returned[p.stage]
        self.structure = tuple(plan.needs(p).structure)
        self.of_rows = tuple(name for name in self.structure if name in OF_ROWS)

    def opening(self) -> Iterator[Call]:
        """Registers of what is on the device."""
        plan, p, needs = self.plan, self.p, self.plan.needs(self.p)
        brought = [name for name in (*p.inputs, *p.gradients) if where(plan, name) == "host"]
        if plan.structure_stays(p):
            for name, array in needs.structure.items():
                yield self.view_of(name, plan.structure_name(p, name), array)
            for name, stays in plan.edge_order(p).items():
                yield self.view_of(name, *stays)
        else:
            brought += self.structure
        brought += [name for name in needs.beside if name != "row_in_chunk"]
        if FEATURES in p.inputs and plan.shape.sparse_input is not None:
            parts = tuple(f"{FEATURES} {part}" for part in PARTS)
            if plan.maps_sparse_input:
                yield call("sparse", *parts, gives=FEATURES, columns=plan.shape.features)
            else:
                yield call("dense", *parts, gives=FEATURES, buffer=FEATURES)
        for name in (*p.inputs, *p.gradients):
            if where(plan, name) == "device":
                yield call("view", gives=name, at=own(plan, p, name))
                if (places := plan.places(p, name)) is not None:
                    yield call("pick", name, places, gives=name, buffer=name)
                    brought.append(name)
            elif where(plan, name) == "chunk":
                yield call("view", gives=name, at=own(plan, p, name), last=name in p.frees)
        if p.saves and p.direction == "forward" and brought:  # staging is filled again
            yield call("copy", *brought, gives=tuple(brought))

    def view_of(self, name: str, stays: str, array: Array, access: Literal["read"] | Stores = "read") -> Call:
        """The chunk's part of an array that stays, by what it is called there."""
        return call("view", gives=name, at=replace(stays_at(self.plan, self.p, stays, array), access=access))

    def forward(self) -> Iterator[Call]:
        p = self.p
        yield from self._values(graph=p.saves)
        if p.moments is not None:
            yield call("gather_moments", p.moments)
        if p.loss:
            yield self._loss()
        for name in p.outputs:
            yield self._write(name, name, holds=name in p.holds)
        if p.saves:
            yield call("save", stage=p.stage)

    def _loss(self) -> Call:
        return call("loss", OUTPUT, "labels", "loss_bits", gives=gradient(OUTPUT))

    def backward(self) -> Iterator[Call]:
        p, shape = self.p, self.shape
        if p.saves:
            yield call("resume", stage=p.stage)
        else:
            yield from self._values(graph=True)
        if p.loss:
            yield self._loss()
            incoming: tuple[str | None, ...] = (gradient(OUTPUT),)
        else:
            names = (gradient(name) for name in (*self.gives, *self.p.gives))
            incoming = tuple(name if name in p.gradients else None for name in names)
        if p.moments is not None:
            yield call("through_moments", p.moments, incoming[0], gives=incoming[0], stage=p.stage)
        entered = self._entered()
        found = {name: f"d {name}" for name in entered}
        yield call("differentiate", *incoming, gives=tuple(found.values()))
        base, beside = found.get(self._base), (*p.values, *p.states)
        direct_of_s = p.direct[: len(p.direct) - len(beside)]
        parts = [base] if shape is None or shape.norm else [found.get(name) for name in self._s]
        if base is not None and shape is not None and shape.combined and (p.flush is not None or any(direct_of_s)):
            parts = [None if name is None else f"d s{k}" for k, name in enumerate(direct_of_s)]
            gives = ("d a", *parts)
            yield call(
                "uncombine", base, gives=gives, arrays=self.of_rows, layer=self.p.layer, s=self._columns,
                wanted=tuple(name is not None for name in gives),
            )  # fmt: skip
            base = "d a"
        if p.flush is not None and base is not None:
            yield self._to_cache(base)
        parts += [None] * (len(direct_of_s) - len(parts))
        parts += [found.get(name) for name in beside]
        for target in dict.fromkeys(name for name in p.direct if name is not None):
            of = (part for part, name in zip(parts, p.direct, strict=True) if name == target and part is not None)
            yield from self._write_sum(target, tuple(dict.fromkeys(of)))

    def _values(self, *, graph: bool) -> Iterator[Call]:
        """The aggregate, or what is read in its place, and the stage behind it."""
        p, shape = self.p, self.shape
        if shape is not None and not shape.linear:
            yield call("gather", "slot_of_source", gives="z", at=self._cache("read"))
        elif p.source is None and shape is not None:
            yield from self._linear_aggregate()
        if graph and (entered := self._entered()):
            yield call("enter", *entered, gives=entered)
        if shape is not None and not shape.linear:
            yield self._aggregate(graph=True)
        if p.stage is not None:
            base = "a" if shape is not None and not shape.linear else self._base
            yield call(
                "stage", base, *self._s, *p.values, gives=self.gives, arrays=self.of_rows,
                stage=p.stage, s=len(self._s), keeps_input=shape is None and self.plan.shape.layers[0].z_is_input,
                gradients_only=p.direction != "forward" and not p.saves and not p.loss and p.moments is None,
            )  # fmt: skip

    def _aggregate(self, *, graph: bool) -> Call:
        return call(
            "aggregate", "z", *self.p.s, *self.p.states, gives=("a", *self.p.gives), arrays=self.structure,
            layer=self.p.layer, states=self.p.states, graph=graph,
        )  # fmt: skip

    def _cache(self, access: Literal["read"] | Stores) -> Ref:
        """The slots of the chunk's sources."""
        cache = (value_cache if access == "read" else gradient_cache)(self.plan, self.p)
        return Ref(tensor=cache, rows=SOURCES, access=access)

    def _linear_aggregate(self) -> Iterator[Call]:
        """Without gradients."""
        plan, p, shape = self.plan, self.p, self.shape
        in_place = shape.reduce is not None and aggregates_in_place(plan, p)
        if shape.reduce is None:
            yield call("gather", "slot_of_source", gives="z", at=self._cache("read"))
            yield self._aggregate(graph=False)
        else:
            if p.checkpoint is not None and in_place:
                yield call("view", gives="a", at=Ref(tensor=p.checkpoint, access=Stores(True)))
            elif p.saves:
                yield call("new", gives="a", columns=plan.passes.width[f"a{self.p.layer}"])
            else:
                yield call("view", gives="a", at=Ref(tensor="aggregate", rows=FRONT, access=None))
            yield call("sum", *self.matrix, "a", gives="a", at=self._cache("read"), mean=shape.reduce == "mean")
        if shape.combined:
            yield call("combine", "a", *p.s, gives="a", arrays=self.of_rows, layer=self.p.layer)
        if p.checkpoint is not None and not in_place:
            yield self._write(p.checkpoint, "a")

    def _to_cache(self, base: str) -> Call:
        """The gradients of the sources' rows."""
        shape, cache = self.shape, self._cache(Stores(False))
        if not shape.linear:
            return call("add_to_cache", "slot_of_source", base, at=cache)
        if shape.reduce is not None:
            order = tuple(self.plan.edge_order(self.p))
            return call("transpose_sum", *self.matrix, base, *order, at=cache, mean=shape.reduce == "mean")
        return call(
            "transpose_aggregate", base, at=cache, arrays=self.structure, layer=self.p.layer, z=shape.z, s=self._columns
        )

    def _write_sum(self, name: str, parts: tuple[str, ...]) -> Iterator[Call]:
        """Of registers; zeros without any."""
        if len(parts) == 1:
            yield self._write(name, parts[0])
            return
        if parts:
            yield call("add", *parts, gives=name)
        else:
            yield call("new", gives=name, columns=self.plan.passes.width[name], zero=True)
        yield self._write(name, name)

    def _write(self, name: str, register: str, *, holds: bool = False) -> Call:
        """A register to the destinations' rows of a vertex tensor; where they lie then is what the register has, and,
        if it ``holds`` that, what is saved of it."""
        there, places = own(self.plan, self.p, name, stores(self.plan, self.p, name)), self.plan.places(self.p, name)
        picks = () if places is None else (places,)
        return call("write", register, *picks, gives=register, at=there, holds=holds)

    @property
    def matrix(self) -> tuple[str | None, ...]:
        """The chunk's in-edges."""
        weighted = self.shape.weighted and self.plan.view(self.p).edge_weight is not None
        return "indptr", "local_source", "slot_of_source", "edge_weight" if weighted else None

    @property
    def _columns(self) -> tuple[int, ...]:
        """Of every element of s."""
        return tuple(self.shape.z if columns is None else columns for columns in self.shape.s)

    @property
    def _s(self) -> tuple[str, ...]:
        """What the stage reads of s."""
        return () if self.shape is not None and self.shape.combined else self.p.s

    @property
    def _base(self) -> str:
        """The register whose gradient is that of the aggregate, or of what is read in its place. What was saved was
        entered by the pass that saved it."""
        p = self.p
        if p.saves and p.direction == "backward":
            (p,) = (q for q in self.plan.passes.train if q.direction == "forward" and q.stage == p.stage)
        if self.shape is not None and not self.shape.linear:
            return "z"
        return "a" if p.source is None else p.source

    def _entered(self) -> tuple[str, ...]:
        """The registers of which backward wants gradients."""
        p, shape, wanted = self.p, self.shape, self.wanted
        if shape is None:
            return tuple({self._base} & wanted)
        z, *s = self.plan.passes.layer_inputs[self.p.layer]
        base = z in wanted or (shape.linear and shape.combined and not wanted.isdisjoint(s))
        names = (self._base,) * base + tuple(name for name in (*self._s, *p.values, *p.states) if name in wanted)
        return tuple(dict.fromkeys(names))
