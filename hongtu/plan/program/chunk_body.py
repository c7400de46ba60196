"""What a pass computes of a chunk: the aggregate of a layer and the row-wise stage behind it, forward or backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hongtu.plan.memory.buffers import aggregates_in_place
from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Pass, gradient
from hongtu.plan.program import computing
from hongtu.plan.program.instruction import Instruction
from hongtu.plan.program.operands import STAYS, gradient_cache, stores, value_cache, where


def chunk_body(plan: PlannedMemory, p: Pass) -> tuple[Instruction, ...]:
    """The instructions of ``Compute``, with registers dropped where nobody needs them any more."""
    body = _Body(plan, p)
    return tuple(_with_drops([*body.opening(), *(body.forward() if p.direction == "forward" else body.backward())]))


def chunk_arrays(plan: PlannedMemory, p: Pass) -> tuple[str, ...]:
    """The registers beside vertex rows that a body finds, or takes from what stays."""
    needs, pruned = plan.needs(p), plan.view(p).active is not None
    names = [*needs.structure, *["row_in_chunk"] * pruned, *["active"] * (needs.identity and pruned)]
    return (*names, *["labels", "loss_bits"] * needs.labels)


class _Body:
    def __init__(self, plan: PlannedMemory, p: Pass) -> None:
        self.plan, self.p = plan, p
        self.shape = None if p.layer is None else plan.shape.layers[p.layer]
        self.wanted = plan.passes.wanted
        self.gives = () if p.stage is None else plan.passes.returned[p.stage]

    def opening(self) -> Iterator[Instruction]:
        """Registers of what is on the device."""
        plan, p = self.plan, self.p
        needs, pruned = plan.needs(p), plan.view(p).active is not None
        brought = [name for name in (*p.inputs, *p.gradients) if where(plan, name) == "host"]
        if plan.structure_stays(p):
            devices = range(plan.topology.partitions)
            for name, array in needs.structure.items():
                start = tuple(plan.structure_spans[i][array.over] for i in devices)
                yield computing.Here(name=name, buffer=STAYS.format(plan.structure_name(p, name)), start=start)
        else:
            brought += needs.structure
        brought += ["active"] * (needs.identity and pruned) + ["labels", "loss_bits"] * needs.labels
        if FEATURES in p.inputs and plan.shape.sparse_input is not None:
            yield computing.Dense(name=FEATURES)
        for name in (*p.inputs, *p.gradients):
            if where(plan, name) == "device":
                yield computing.Own(name=name, tensor=name)
                if pruned:
                    yield computing.Pick(name=name)
                    brought.append(name)
            elif where(plan, name) == "chunk":
                yield computing.Take(name=name, last=name in p.frees)
        if p.saves and p.direction == "forward":
            yield computing.Copy(names=tuple(brought))

    def forward(self) -> Iterator[Instruction]:
        p = self.p
        yield from self._values(graph=p.saves)
        if p.moments is not None:
            yield computing.GatherMoments(name=p.moments)
        if p.loss:
            yield computing.Loss(output=OUTPUT, gradient=gradient(OUTPUT))
        for name in p.outputs:
            yield self._write(name, name, holds=name in p.holds)
        if p.saves:
            yield computing.Save(stage=self._stage)

    def backward(self) -> Iterator[Instruction]:
        p, shape = self.p, self.shape
        if p.saves:
            yield computing.Resume(stage=self._stage)
        else:
            yield from self._values(graph=True)
        if p.loss:
            yield computing.Loss(output=OUTPUT, gradient=gradient(OUTPUT))
            incoming: tuple[str | None, ...] = (gradient(OUTPUT),)
        else:
            names = (gradient(name) for name in self.gives)
            incoming = tuple(name if name in p.gradients else None for name in names)
        if p.moments is not None and p.stage is not None:
            through = incoming[0]
            assert through is not None
            yield computing.ThroughMoments(stage=p.stage, x=p.moments, gradient=through)
        entered = self._entered()
        yield computing.Differentiate(gradients=incoming, gives=tuple(f"d {name}" for name in entered))
        base = f"d {self._base}" if self._base in entered else None
        parts: list[str | None] = []
        if shape is None or shape.norm:
            parts = [base]
        elif shape.linear:
            parts = [f"d {name}" if name in entered else None for name in self._s]
            direct_of_s = p.direct[: len(p.direct) - len(p.values)]
            if base is not None and shape.combined and (p.flush is not None or any(direct_of_s)):
                columns = tuple(shape.z if columns is None else columns for columns in shape.s)
                parts = [None if name is None else f"d s{k}" for k, name in enumerate(direct_of_s)]
                yield computing.Uncombine(layer=self._layer, gradient=base, columns=columns, gives=("d a", *parts))
                base = "d a"
            if p.flush is not None and base is not None:
                yield self._transposed(base)
        else:
            parts = [f"d {name}" if name in entered else None for name in p.s]
            if p.flush is not None and base is not None:
                yield computing.AddToCache(gradient=base, cache=gradient_cache(self.plan, p))
        parts += [None] * (len(p.direct) - len(p.values) - len(parts))
        parts += [f"d {name}" if name in entered else None for name in p.values]
        for target in dict.fromkeys(name for name in p.direct if name is not None):
            found = (part for part, name in zip(parts, p.direct, strict=True) if name == target and part is not None)
            yield from self._write_sum(target, tuple(dict.fromkeys(found)))

    def _values(self, *, graph: bool) -> Iterator[Instruction]:
        """The aggregate, or what is read in its place, and the stage behind it."""
        p, shape = self.p, self.shape
        if shape is not None and not shape.linear:
            yield computing.Gather(cache=value_cache(self.plan, p))
        elif p.source is None and shape is not None:
            yield from self._linear_aggregate()
        if graph and self._entered():
            yield computing.Enter(names=self._entered())
        if shape is not None and not shape.linear:
            yield computing.Aggregate(layer=self._layer, s=p.s, graph=True)
        if p.stage is not None:
            yield computing.Stage(
                stage=p.stage,
                base="a" if shape is not None and not shape.linear else self._base,
                s=self._s,
                values=p.values,
                gives=self.gives,
                keeps_input=shape is None and self.plan.shape.layers[0].z_is_input,
                gradients_only=p.direction != "forward" and not p.saves and not p.loss and p.moments is None,
            )

    def _linear_aggregate(self) -> Iterator[Instruction]:
        """Without gradients."""
        plan, p, shape, cache = self.plan, self.p, self.shape, value_cache(self.plan, self.p)
        assert shape is not None
        in_place = shape.reduce is not None and aggregates_in_place(p, plan.shape, plan.view(p), plan.resident)
        if shape.reduce is None:
            yield computing.Gather(cache=cache)
            yield computing.Aggregate(layer=self._layer, s=p.s, graph=False)
        else:
            if p.checkpoint is not None and in_place:
                yield computing.Own(name="a", tensor=p.checkpoint, written=False)
            elif p.saves:
                yield computing.New(name="a", columns=plan.passes.width[f"a{self._layer}"])
            else:
                yield computing.Front(name="a", buffer="aggregate")
            yield computing.Sum(cache=cache, mean=shape.reduce == "mean", weighted=self._weighted)
        if shape.combined:
            yield computing.Combine(layer=self._layer, s=p.s)
        if p.checkpoint is not None and not in_place:
            yield self._write(p.checkpoint, "a")

    def _transposed(self, base: str) -> Instruction:
        shape, cache = self.shape, gradient_cache(self.plan, self.p)
        assert shape is not None
        if shape.reduce is not None:
            return computing.TransposeSum(
                gradient=base, cache=cache, mean=shape.reduce == "mean", weighted=self._weighted
            )
        columns = tuple(shape.z if columns is None else columns for columns in shape.s)
        return computing.TransposeAggregate(layer=self._layer, gradient=base, cache=cache, z=shape.z, s=columns)

    def _write_sum(self, name: str, parts: tuple[str, ...]) -> Iterator[Instruction]:
        """Of registers; zeros without any."""
        if len(parts) == 1:
            yield self._write(name, parts[0])
            return
        if parts:
            yield computing.Add(name=name, parts=parts)
        else:
            yield computing.New(name=name, columns=self.plan.passes.width[name], zero=True)
        yield self._write(name, name)

    def _write(self, name: str, register: str, *, holds: bool = False) -> Instruction:
        plan, p, pruned = self.plan, self.p, self.plan.view(self.p).active is not None
        return computing.Write(
            name=name, where=where(plan, name), register=register, stores=stores(plan, p, name), holds=holds,
            picked=pruned, kept=plan.kept.get(name),
        )  # fmt: skip

    @property
    def _weighted(self) -> bool:
        assert self.shape is not None
        return self.shape.weighted and self.plan.view(self.p).edge_weight is not None

    @property
    def _layer(self) -> int:
        assert self.p.layer is not None
        return self.p.layer

    @property
    def _stage(self) -> int:
        assert self.p.stage is not None
        return self.p.stage

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
        z, *s = self.plan.passes.layer_inputs[self._layer]
        base = z in wanted or (shape.linear and shape.combined and not wanted.isdisjoint(s))
        names = (self._base,) * base + tuple(name for name in (*self._s, *p.values) if name in wanted)
        return tuple(dict.fromkeys(names))


def _with_drops(body: Iterable[Instruction]) -> Iterator[Instruction]:
    """Every register is dropped behind the last instruction that reads it, or behind the one that makes it."""
    body = list(body)
    last: dict[str, int] = {}
    for k, instruction in enumerate(body):
        last |= dict.fromkeys((*instruction.makes, *instruction.reads), k)
    for k, instruction in enumerate(body):
        yield instruction
        names = tuple(name for name, end in last.items() if end == k)
        if names:
            yield computing.Drop(names=names)
