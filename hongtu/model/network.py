"""A list of modules as the engine runs it: graph layers, and row-wise stages between their aggregates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import copied, sort_stably, storage_id
from hongtu.model.checks import call_on
from hongtu.model.structure import Structure
from hongtu.model.wiring import INPUT
from hongtu.nn.block import Block, Rows
from hongtu.nn.context import RowContext
from hongtu.nn.dropout import dropout_key
from hongtu.nn.layer import Layer, refuse_kinds
from hongtu.nn.sparse_input import SparseInput, applied

# What a method of a layer is called for; separates its random streams.
TRANSFORM, AGGREGATE, UPDATE, ROWS = range(4)
_METHOD = (".transform", ".aggregate", ".update", "")

Watch = Callable[[str, Rows, Any], None]


@dataclass
class Forms:
    """In which forms a model's tensors come, by its trace.

    Attributes:
        s: per layer, how its transform returns s: None, Tensor, tuple or list.
        shared: per layer, which elements of s are z itself.
        same_as: per given value, which of (z, s elements...) it is.
    """

    s: list[type | None]
    shared: list[tuple[bool, ...]] = field(default_factory=list)
    same_as: dict[int, int | None] = field(default_factory=dict)


class Network(Structure):
    """Runs stages and aggregates of a model, with the same random numbers in forward and recomputation.

    Arguments as of a ``Structure``.
    """

    def __init__(self, modules: nn.ModuleList, context: RowContext, autocast: torch.dtype | None = None) -> None:
        super().__init__(modules, context, autocast)
        sort_stably()
        self.chunk = 0
        self.watch: Watch | None = None  # sees what every module returns, where it is set
        self._current = 0
        self.must_not_draw = False  # a vertex may run in several chunks, which draw different numbers
        self.drawn: list[Tensor] | None = None  # gets torch's generator behind every module that draws, where it is set
        self.given = 0  # columns of what the current module got
        self.forms = Forms([None] * len(self.layers))
        self.found: dict[Hashable, Any] | None = {}  # of the modules, until people may change them: None from then on

    def twin(self) -> Network:
        """A copy of its modules on the CPU, with a context of its own, in the forms that are known of these."""
        twin = Network(copied(self.modules).cpu(), RowContext(), self.autocast)
        twin.forms = copy.deepcopy(self.forms)
        return twin

    @property
    def repeats(self) -> bool:
        """Whether every epoch does the same operations, as far as modules are known: none draws from torch's generator,
        has hooks, or is of a class that is neither ours nor torch's; and nobody looks."""
        return not any(self._random) and self.watch is None

    def stage(
        self,
        index: int,
        base: Tensor,
        s: tuple[Tensor, ...],
        rows: Rows,
        values: tuple[Tensor, ...] = (),
        *,
        keeps_input: bool = False,
        gradients_only: bool = False,
    ) -> list[Tensor]:
        """Run stage ``index`` on a chunk's own rows.

        Args:
            base: input features [D, F] for stage 0, else the aggregate [D, A] of layer ``index - 1``.
            s: its s elements.
            rows: the chunk's own vertices.
            values: what ``wiring.takes[index]`` names.
            keeps_input: the first of what it returns must be ``base`` as it is.
            gradients_only: nobody looks at what it returns.

        Returns:
            [z, s elements that are not z..., values given that are neither...] of layer ``index``, or [output] for the
            last stage.
        """
        h, a = (base, None) if index == 0 else (None, base)
        z, s_out, given = self.run_stage(index, h, a, s, rows, values, gradients_only=gradients_only)
        if keeps_input and z is not base:
            raise RuntimeError("layer 0: transform changes its input, unlike when planned; make a new Trainer")
        if index == len(self.layers):
            return [z]
        shared = self.forms.shared[index]
        if len(s_out) != len(shared) or any(same and part is not z for part, same in zip(s_out, shared, strict=True)):
            raise RuntimeError(f"{self.title(self.layer_index[index])}: transform returns another s than when planned")
        outs = [z, *(part for part, same in zip(s_out, shared, strict=True) if not same)]
        for number, value in given.items():
            same_as = self.forms.same_as[number]
            if same_as is None:
                outs.append(value)
            elif (z, *s_out)[same_as] is not value:
                raise RuntimeError(f"{self.title(number)}: gives something else than when planned; make a new Trainer")
        return outs

    def aggregate(
        self, index: int, block: Block, z: Tensor, s: tuple[Tensor, ...], e: tuple[Tensor, ...] = ()
    ) -> list[Tensor]:
        """[D, A]: the aggregate of layer ``index`` by its own method; z [S, Z], and e [E, ...] the values of edges that
        ``edge_states`` names. Beside it those that ``gives_edges`` names."""
        number, layer = self.layer_index[index], self.layers[index]
        if self._writes[layer]:
            z, s, e = z.clone(), tuple(part.clone() for part in s), tuple(part.clone() for part in e)
        block = block.seen(layer.drops_weights)
        known = self._edge_rows(number, layer, block, e)
        if number in self._edges:
            block = replace(block, edge_features=known[self._edges[number].value])
        if layer.updates_edges:
            a, states = self._run(
                number, AGGREGATE, block.rows, layer.aggregate_updated, block, z, self._pack(index, s)
            )
            known[number] = self._matrix(states, number, block.num_edges)
            self._run_on_edges(self._edges[number].behind, block, known)
            return [a, *(known[value] for value in self._edges[number].gives)]
        changes = any(getattr(layer, name, None) is not None for name in ("encode_edges", "drop_edges"))
        call = layer.aggregate_changed if changes else layer.aggregate
        return [self._run(number, AGGREGATE, block.rows, call, block, z, self._pack(index, s))]

    def _edge_rows(self, number: int, layer: Layer, block: Block, e: tuple[Tensor, ...]) -> dict[int, Any]:
        """Values of edges, by the modules that give them: those that the aggregate of a layer takes, and what is made
        of the graph's features."""
        edges = self._edges.get(number)
        if edges is None:
            return {}
        known: dict[int, Any] = dict(zip(edges.takes, e, strict=True))
        known[INPUT] = None if block.edge_features is None else layer.given_form(block.edge_features)
        self._run_on_edges(edges.before, block, known)
        return known

    def _run_on_edges(self, modules: tuple[int, ...], block: Block, known: dict[int, Any]) -> None:
        """Run row-wise modules on values of edges, which theirs join."""
        for number in modules:
            module = self.modules[number]
            taken = [known[source.number] for source in self._every[number]]
            taken = [x.clone() for x in taken] if self._writes[module] else taken
            rows = self._run(number, ROWS, block.rows_of_edges, call_on(module), *taken)
            known[number] = self._matrix(rows, number, block.num_edges)

    def combine(
        self, index: int, a: Tensor, s: tuple[Tensor, ...], rows: Rows, *, gradients_only: bool = False
    ) -> Tensor:
        """[D, A]: the aggregate of layer ``index`` together with s, where the layer combines them."""
        number, layer = self.layer_index[index], self.layers[index]
        if self._writes[layer]:
            a, s = a.clone(), tuple(part.clone() for part in s)
        rows = rows.seen(layer.drops_weights)
        return self._run_for(gradients_only, layer, number, AGGREGATE, rows, layer.combine, a, self._pack(index, s))

    def _run_for(self, gradients_only: bool, layer: Layer, *call: Any) -> Any:
        """As ``_run``; of what a layer of our own returns, nobody may look at the numbers."""
        self.context.gradients_only = gradients_only and self.watch is None and layer.built_in
        try:
            return self._run(*call)
        finally:
            self.context.gradients_only = False

    def run_stage(
        self,
        index: int,
        h: Tensor | None,
        a: Tensor | None,
        s: tuple[Tensor, ...],
        rows: Rows,
        values: tuple[Tensor, ...] = (),
        *,
        gradients_only: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...], dict[int, Tensor]]:
        """As ``stage``: z (or the output), all elements of s, and the values given, by the numbers of their modules."""
        known = dict(zip(self.wiring.takes[index], values, strict=True))
        if index == 0:
            known[INPUT] = h
        given = [*known.values()]
        if index > 0:
            number, layer = self.layer_index[index - 1], self.layers[index - 1]
            first, *beside = self.wiring.sources[number]
            numbers = ([first] if layer.reads_input else []) + (beside if self._ends(index - 1) else [])
            others = [known[source] for source in numbers]
            given += [a, *s]
            if self._writes[layer]:
                a, s, others = a.clone(), tuple(part.clone() for part in s), [x.clone() for x in others]
            own = rows.seen(layer.drops_weights)
            known[number] = self._run(number, UPDATE, own, layer.update, a, self._pack(index - 1, s), *others)
        for number, module in self.row_modules[index]:
            taken = [self._taken(source, index, known, given, module) for source in self.wiring.sources[number]]
            known[number] = self._run(number, ROWS, rows, _call_on(module), *taken)
        gives = {number: self._matrix(known[number], number) for number in self.wiring.gives[index]}
        if index == len(self.layers):
            last = len(self.modules) - 1
            return self._matrix(_one_column(known[last], len(rows.ids)), last), (), gives
        number, layer = self.layer_index[index], self.layers[index]
        source = self.wiring.sources[number][0] if self._begins(index) else number
        h = self._taken(source, index, known, given, layer)
        seen = rows.seen(layer.drops_weights)
        result = self._run_for(gradients_only, layer, number, TRANSFORM, seen, layer.transform, h)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(f"{self.title(number)}: transform must return the pair (z, s)")
        z, s_out = result
        self.forms.s[index] = type(s_out) if s_out is None or isinstance(s_out, tuple | list) else Tensor
        elements = () if s_out is None else tuple(s_out) if isinstance(s_out, tuple | list) else (s_out,)
        return self._matrix(z, number), tuple(self._matrix(part, number) for part in elements), gives

    def _taken(
        self, source: int, stage: int, known: dict[int, Tensor], given: list[Tensor], module: nn.Module
    ) -> Tensor:
        """A value for a module, copied where the module may write to it and others read it: modules, or autograd."""
        x = known[source]
        if not isinstance(x, Tensor | SparseInput):
            raise InputError(
                f"{self.title(source)} gives a {type(x).__name__}, expected the rows of one tensor; wrap it in a "
                "module that gives one"
            )
        if not self._writes[module]:
            return x
        if x.requires_grad or not self.wiring.is_own(source, stage):
            return x.clone()
        return _apart(x, [*given, *(value for number, value in known.items() if number != source)])

    def _matrix(self, x: Any, number: int, edges: int | None = None) -> Tensor:
        """It, if it is rows of vertices, or of so many edges."""
        wrong = not isinstance(x, Tensor) or x.ndim != 2 or not x.is_floating_point()
        if wrong or (edges is not None and len(x) != edges):
            found = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            row = "vertex" if edges is None else f"of {edges} edges"
            remedy = "; reshape inside a module" if isinstance(x, Tensor) and x.ndim > 2 else ""
            raise InputError(
                f"{self.title(number)} gives {found}, expected floats [rows, columns], a row for each {row}{remedy}"
            )
        return x

    def _pack(self, index: int, s: Sequence[Tensor]) -> Any:
        """Give s elements back in the form in which the layer's transform returned them; None where they are gone."""
        form = self.forms.s[index]
        if form is Tensor:
            return s[0] if s else None
        return tuple(s) if form in (tuple, list) else None

    def _run(self, number: int, kind: int, rows: Rows, call: Callable[..., Any], *args: Any) -> Any:
        rows_given = [arg for arg in args if isinstance(arg, Tensor) and arg.ndim == 2]
        self.given = rows_given[0].shape[1] if rows_given and kind != AGGREGATE else 0
        dense = self.autocast is not None and kind != AGGREGATE
        self._current = number
        self.context.rows, self.context.calls = rows, (number * 4 + kind) << 16
        draws = self.modules.training and self._random[number]
        try:
            if draws or dense:
                # around one call, so that recomputation casts what forward did; widths do not depend on it
                cast = torch.autocast(rows.ids.device.type, dtype=self.autocast) if dense else nullcontext()
                with self._seeded(number, kind, rows) if draws else nullcontext(), cast:
                    out = call(*args)
            else:
                out = call(*args)
        except IndexError as error:
            refuse_kinds(self.title(number), error)
            raise
        out = _widened(out, args[0].dtype, {}) if dense else out
        if self.watch is not None and not isinstance(out, SparseInput):
            self.watch(self.title(number) + _METHOD[kind], rows, out)
        return out

    @property
    def current(self) -> str:
        """The module that was called last."""
        return self.title(self._current)

    @contextmanager
    def _seeded(self, number: int, kind: int, rows: Rows) -> Iterator[None]:
        """Reseed torch's generator for one call into module ``number``, which may draw from it."""
        with torch.random.fork_rng(devices=[rows.ids.get_device()] if rows.ids.is_cuda else []):
            seed = torch.manual_seed if rows.ids.is_cuda else torch.default_generator.manual_seed  # 100 times faster
            seed(dropout_key(self.context.seed, self.context.epoch, number, kind, self.chunk))
            looks = self.must_not_draw or self.drawn is not None or number in self._anew
            before = torch.get_rng_state() if looks else None
            yield
            if before is None or torch.equal(before, after := torch.get_rng_state()):
                return
            if self.drawn is not None:
                self.drawn.append(after)
            elif number in self._anew:
                raise InputError(
                    f"{self.title(number)}: draws from torch's generator, and several layers compute what it gives "
                    "edges anew, with other numbers; use hongtu.nn.Dropout, which draws by edge"
                )
            else:
                raise InputError(
                    f"{self.title(number)}: draws from torch's generator by chunk, and a vertex is in chunks of "
                    "several ranks; use hongtu.nn.Dropout, which draws by vertex"
                )

    @contextmanager
    def without_autocast(self) -> Iterator[None]:
        """Inside, everything is computed in the run's dtype."""
        autocast, self.autocast = self.autocast, None
        try:
            yield
        finally:
            self.autocast = autocast


def _call_on(module: nn.Module) -> Callable[..., Any]:
    return partial(applied, module) if isinstance(module, nn.Linear) else call_on(module)


def _one_column(out: Any, rows: int) -> Any:
    """[R, columns], of an output [R] that a model has squeezed, too; of one row torch squeezes that as well."""
    squeezed = isinstance(out, Tensor) and out.ndim < 2 and (rows == 1 or out.shape == (rows,))
    return out.reshape(rows, out.numel() if rows == 1 else 1) if squeezed else out


def _widened(out: Any, dtype: torch.dtype, seen: dict[int, Tensor]) -> Any:
    """Tensors in the run's dtype; what was one tensor stays one."""
    if isinstance(out, tuple | list):
        return type(out)(_widened(part, dtype, seen) for part in out)
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return out
    if id(out) not in seen:
        seen[id(out)] = out.to(dtype)
    return seen[id(out)]


def _apart(x: Tensor, others: Sequence[Tensor | SparseInput]) -> Tensor:
    """x, copied where it lies in one of the others; nothing lies in sparse features."""
    own = storage_id(x)
    return x.clone() if any(isinstance(other, Tensor) and storage_id(other) == own for other in others) else x
