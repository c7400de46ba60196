"""A list of modules as the engine runs it: graph layers, and row-wise stages between their aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hongtu.block import Block, Rows
from hongtu.errors import InputError
from hongtu.modules import check_module, drops, is_random, modes_kept
from hongtu.nn.context import RowContext, bind
from hongtu.nn.layer import Layer
from hongtu.nn.whole_graph import WholeGraphNorm, rules_of
from hongtu.plan.shapes import LayerShape

# What a method of a layer is called for; separates its random streams.
_TRANSFORM, _AGGREGATE, _UPDATE, _ROWS = range(4)
_METHOD = (".transform", ".aggregate", ".update", "")

Watch = Callable[[str, Rows, Any], None]


def as_modules(layers: Sequence[nn.Module]) -> nn.ModuleList:
    """A ModuleList of the layers. Single ones that evaluate stay so; where all do, they train.

    Raises:
        InputError: naming the first that is no module.
    """
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise InputError(f"layers[{index}] is {layer!r}: expected a hongtu.nn.Layer or a row-wise torch.nn.Module")
    modules = nn.ModuleList(layers)
    return modules if any(layer.training for layer in modules) else modules.train()


class Network:
    """Runs stages and aggregates of a model, with the same random numbers in forward and recomputation.

    Stage l applies the update of layer l - 1 (none for stage 0), then the row-wise modules listed before layer l,
    then the transform of layer l (none for the last stage). A whole-graph normalisation counts as a layer.

    Args:
        modules: graph layers (:class:`hongtu.nn.Layer`) and row-wise modules such as ``torch.nn.ReLU`` between them.
        context: shared by every Layer and Dropout of the model.

    Raises:
        InputError: for modules that cannot be exact chunk by chunk.
    """

    def __init__(self, modules: nn.ModuleList, context: RowContext) -> None:
        self.modules, self.context = modules, context
        self.layers: list[Layer] = []
        self.layer_index: list[int] = []
        self.row_modules: list[list[tuple[int, nn.Module]]] = [[]]
        for index, module in enumerate(modules):
            check_module(index, module)
            rules = rules_of(module)
            layer = module if rules is None else WholeGraphNorm(module, rules)
            if isinstance(layer, Layer):
                self.layers.append(layer)
                self.layer_index.append(index)
                self.row_modules.append([])
            else:
                self.row_modules[-1].append((index, module))
        if len(self.norms) == len(self.layers):
            raise InputError("layers: no graph layer in the list; use hongtu.nn.GCNConv or another hongtu.nn.Layer")
        self._transform_first = [layer.transform_first for layer in self.layers]
        self.activate()
        self.chunk = 0
        self._current = 0
        self._tracing = False
        self._shared: list[tuple[bool, ...]] = []  # per layer, which elements of s are z itself
        self._forms: list[type | None] = [None] * len(self.layers)
        self._random = [is_random(module) for module in modules]
        self.watch: Watch | None = None  # sees what every module returns, where it is set

    @property
    def norms(self) -> list[WholeGraphNorm]:
        """The whole-graph normalisations among the layers."""
        return [layer for layer in self.layers if isinstance(layer, WholeGraphNorm)]

    def norm(self, index: int) -> WholeGraphNorm:
        """Layer ``index``, which is one of them."""
        layer = self.layers[index]
        assert isinstance(layer, WholeGraphNorm), index
        return layer

    def check_vertices(self, vertices: int) -> None:
        """Refuse a graph with too few vertices for the statistics that training needs.

        Raises:
            InputError: naming the normalisation.
        """
        for index, layer in zip(self.layer_index, self.layers, strict=True):
            try:
                if isinstance(layer, WholeGraphNorm):
                    layer.gathers(vertices)
            except InputError as error:
                raise InputError(f"{self._title(index)}: {error}") from None

    def set_transform_first(self, wanted: Sequence[bool]) -> None:
        """Choose, per layer, the side of the exchange on which it applies its first linear map, where it can."""
        pairs = zip(wanted, self.layers, strict=True)
        self._transform_first = [first and layer.can_transform_first for first, layer in pairs]
        self.activate()

    def activate(self) -> None:
        """Make this run's context and choices those of its modules; another run may have used them since."""
        bind(self.modules, self.context)
        for layer, first in zip(self.layers, self._transform_first, strict=True):
            layer.transform_first = first

    def stage(self, index: int, h: Tensor | None, a: Tensor | None, s: tuple[Tensor, ...], rows: Rows) -> list[Tensor]:
        """Run stage ``index`` on a chunk's own rows.

        Args:
            h: input features [D, F] for stage 0, else None.
            a, s: aggregate [D, A] and s elements of layer ``index - 1``.
            rows: the chunk's own vertices.

        Returns:
            [z, s elements that are not z...] of layer ``index``, or [output] for the last stage.
        """
        z, s_out = self._stage_pair(index, h, a, s, rows)
        if index == len(self.layers):
            return [z]
        shared = self._shared[index]
        if len(s_out) != len(shared) or any(same and part is not z for part, same in zip(s_out, shared, strict=True)):
            raise RuntimeError(f"{self._title(self.layer_index[index])}: transform returns another s than when planned")
        return [z, *(part for part, same in zip(s_out, shared, strict=True) if not same)]

    def aggregate(self, index: int, block: Block, z: Tensor, s: tuple[Tensor, ...]) -> Tensor:
        """[D, A]: the aggregate of layer ``index`` by its own method; z [S, Z]."""
        layer = self.layers[index]
        if _is_users(layer):
            z, s = _writable(z), tuple(_writable(part) for part in s)
        with self._call(self.layer_index[index], _AGGREGATE, block.rows):
            return self._seen(
                self.layer_index[index], _AGGREGATE, block.rows, layer.aggregate(block, z, self._pack(index, s))
            )

    def combine(self, index: int, a: Tensor, s: tuple[Tensor, ...], rows: Rows) -> Tensor:
        """[D, A]: the aggregate of layer ``index`` together with s, where the layer combines them."""
        layer = self.layers[index]
        if _is_users(layer):
            a, s = _writable(a), tuple(_writable(part) for part in s)
        with self._call(self.layer_index[index], _AGGREGATE, rows):
            return self._seen(self.layer_index[index], _AGGREGATE, rows, layer.combine(a, self._pack(index, s)))

    def input_is_trained(self, features: int, dtype: torch.dtype) -> bool:
        """Whether stage 0 depends on a parameter, frozen or not."""
        frozen = [p for p in self.modules.parameters() if not p.requires_grad and p.is_floating_point()]
        for parameter in frozen:
            parameter.requires_grad_(True)
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                z, s = self._stage_pair(0, torch.ones((2, features), dtype=dtype), None, (), _toy_block(dtype).rows)
            return any(part.requires_grad for part in (z, *s))
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def input_is_random(self) -> bool:
        """Whether stage 0 may give other numbers in the next epoch."""
        modules = [module for _, module in self.row_modules[0]]
        if type(self.layers[0]).transform not in (Layer.transform, WholeGraphNorm.transform):
            modules.append(self.layers[0])
        return any(is_random(module) or drops(module) for module in modules)

    def trace(self, features: int, dtype: torch.dtype) -> tuple[tuple[LayerShape, ...], int]:
        """Run the model on a two-vertex graph to learn its widths.

        Returns:
            a LayerShape per layer and the number of output columns.

        Raises:
            InputError: when a module does not accept what the one before it gives.
        """
        self._tracing = True
        for norm in self.norms:
            norm.forget()
        try:
            with modes_kept(self.modules), torch.no_grad(), torch.random.fork_rng(devices=[]):
                versions = self._buffer_versions()
                shapes, output = self._trace(features, dtype, training=False)
                trained, _ = self._trace(features, dtype, training=True)
                self._check_buffers(versions)
        except (RuntimeError, TypeError, IndexError) as error:
            raise InputError(f"{self._title(self._current)} failed on a small graph: {error}") from error
        finally:
            self._tracing = False
        merged = tuple(_common(a, b) for a, b in zip(shapes, trained, strict=True))
        self._shared = [tuple(columns is None for columns in shape.s) for shape in merged]
        return merged, output

    def _trace(self, features: int, dtype: torch.dtype, *, training: bool) -> tuple[list[LayerShape], int]:
        self.modules.train(training)
        block = _toy_block(dtype)
        h: Tensor | None = torch.sin(torch.arange(2 * features, dtype=dtype)).reshape(2, features)
        a: Tensor | None = None
        s: tuple[Tensor, ...] = ()
        shapes = []
        for index, layer in enumerate(self.layers):
            version = 0 if h is None else h._version
            z, s = self._stage_pair(index, h, a, s, block.rows)
            z_is_input = index == 0 and z is h and h._version == version
            h = None
            a = self.aggregate(index, block, z, s)
            combined = layer.linear_aggregate and layer.combines
            if combined:
                a = self.combine(index, a, s, block.rows)
            if not isinstance(a, Tensor) or a.ndim != 2 or len(a) != 2:
                raise InputError(f"{self._title(self.layer_index[index])}: aggregate must return a tensor [D, columns]")
            shapes.append(
                LayerShape(
                    z=z.shape[1],
                    s=tuple(None if part is z else part.shape[1] for part in s),
                    a=a.shape[1],
                    linear=layer.linear_aggregate,
                    reduce=layer.reduce,
                    weighted=layer.weighted,
                    z_is_input=z_is_input,
                    uses_statistics=layer.uses_statistics,
                    combined=combined,
                    norm=isinstance(layer, WholeGraphNorm),
                )
            )
            if combined:
                s = ()
        (out,) = self.stage(len(self.layers), None, a, s, block.rows)
        return shapes, out.shape[1]

    def _stage_pair(
        self, index: int, h: Tensor | None, a: Tensor | None, s: tuple[Tensor, ...], rows: Rows
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if index > 0:
            number, layer = self.layer_index[index - 1], self.layers[index - 1]
            if _is_users(layer):
                a, s = _writable(a), tuple(_writable(part) for part in s)
            h = self._run(number, _UPDATE, rows, layer.update, a, self._pack(index - 1, s))
        for number, module in self.row_modules[index]:
            h = self._run(number, _ROWS, rows, module, _writable(h))
        if index == len(self.layers):
            return self._matrix(h, self.layer_index[-1]), ()
        number = self.layer_index[index]
        if _is_users(self.layers[index]):
            h = _writable(h)
        result = self._run(number, _TRANSFORM, rows, self.layers[index].transform, h)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(f"{self._title(number)}: transform must return the pair (z, s)")
        z, s_out = result
        self._forms[index] = type(s_out) if s_out is None or isinstance(s_out, tuple | list) else Tensor
        parts = () if s_out is None else tuple(s_out) if isinstance(s_out, tuple | list) else (s_out,)
        return self._matrix(z, number), tuple(self._matrix(part, number) for part in parts)

    def _matrix(self, x: Any, number: int) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 2 or not x.is_floating_point():
            found = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"{self._title(number)}: got {found} where rows [D, columns] of floats are expected")
        return x

    def _pack(self, index: int, s: tuple[Tensor, ...]) -> Any:
        """Give s elements back in the form in which the layer's transform returned them; None where they are gone."""
        form = self._forms[index]
        if form is Tensor:
            return s[0] if s else None
        return s if form in (tuple, list) else None

    def _run(self, number: int, kind: int, rows: Rows, call: Callable[..., Any], *args: Any) -> Any:
        checked = self._tracing and kind == _ROWS and not self.modules.training
        first_row = args[0][:1].clone() if checked else None
        with self._call(number, kind, rows):
            out = self._seen(number, kind, rows, call(*args))
        if first_row is not None:
            self._check_rows(number, first_row, out)
        return out

    def _seen(self, number: int, kind: int, rows: Rows, out: Any) -> Any:
        if self.watch is not None:
            self.watch(self._title(number) + _METHOD[kind], rows, out)
        return out

    def _check_rows(self, number: int, first_row: Tensor, out: Tensor) -> None:
        """Refuse a row-wise module whose output for a row depends on the other rows."""
        alone = self.modules[number](first_row)
        if alone.shape != out[:1].shape or not torch.allclose(alone, out[:1], rtol=1e-4, atol=1e-6, equal_nan=True):
            raise InputError(
                f"{self._title(number)} mixes the rows of its input, which would be those of a chunk instead of the "
                "whole graph; a module between layers must treat each row alone"
            )

    def _buffer_versions(self) -> dict[str, int]:
        return {name: buffer._version for name, buffer in self.modules.named_buffers()}

    def _check_buffers(self, before: dict[str, int]) -> None:
        """Refuse modules that update a buffer when they run: once per chunk and again in recomputation."""
        for name, version in self._buffer_versions().items():
            if before.get(name) != version:
                raise InputError(
                    f"{self._title(int(name.split('.')[0]))}: its buffer {name!r} changes in training, once per chunk "
                    "and recomputation instead of once per epoch; use a module without running state"
                )

    @property
    def current(self) -> str:
        """The module that was called last."""
        return self._title(self._current)

    @contextmanager
    def _call(self, number: int, kind: int, rows: Rows) -> Iterator[None]:
        """Set the context of one call into module ``number``; reseed torch where the module may draw from it."""
        self._current = number
        self.context.rows, self.context.calls = rows, (number * 4 + kind) << 16
        if self.modules.training and self._random[number]:
            with torch.random.fork_rng(devices=[rows.ids.get_device()] if rows.ids.is_cuda else []):
                torch.manual_seed(_mix(self.context.seed, self.context.epoch, number, kind, self.chunk))
                yield
        else:
            yield

    def _title(self, number: int) -> str:
        return f"layers[{number}] ({type(self.modules[number]).__name__})"


def _writable(x: Tensor) -> Tensor:
    """What others' code may change in place: autograd forbids that on a leaf."""
    return x.clone() if x.is_leaf and x.requires_grad else x


def _is_users(layer: Layer) -> bool:
    return not type(layer).__module__.startswith("hongtu.")


def _common(a: LayerShape, b: LayerShape) -> LayerShape:
    """What holds both in evaluation and in training: tensors are shared only where they are in both."""
    s = tuple(y if x is None else x for x, y in zip(a.s, b.s, strict=True))
    return replace(a, s=s, z_is_input=a.z_is_input and b.z_is_input)


def _mix(*words: int) -> int:
    """A 63-bit seed from several integers (SplitMix64 steps)."""
    state = 0x9E3779B97F4A7C15
    for word in words:
        state = (state ^ (word & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 29)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 32
    return state >> 1


def _toy_block(dtype: torch.dtype) -> Block:
    """Two vertices with an edge each way."""
    statistics = torch.tensor([[1.0, 0.0, float("nan")]] * 2, dtype=dtype)
    return Block(
        indptr=torch.tensor([0, 1, 2]),
        local_source=torch.tensor([1, 0], dtype=torch.int32),
        sources=torch.tensor([0, 1], dtype=torch.int32),
        first=0,
        edge_weight=None,
        rows=Rows(ids=torch.tensor([0, 1]), statistics=statistics),
        edge_id_start=torch.tensor([0, 1]),
        num_graph_edges=2,
    )
