"""A list of modules as the engine runs it: graph layers, and row-wise stages between their aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hongtu.block import Block, Rows
from hongtu.errors import InputError
from hongtu.modules import check_module, drops, is_random, may_write
from hongtu.nn.context import RowContext, bind
from hongtu.nn.layer import Layer
from hongtu.plan.shapes import NO_EDGE_DATA, EdgeData, LayerShape

# What a method of a layer is called for; separates its random streams.
_TRANSFORM, _AGGREGATE, _UPDATE, _ROWS = range(4)
_METHOD = (".transform", ".aggregate", ".update", "")

Watch = Callable[[str, Rows, Any], None]


def as_modules(layers: Sequence[nn.Module]) -> nn.ModuleList:
    """A ModuleList of the layers.

    Raises:
        InputError: naming the first that is no module.
    """
    if isinstance(layers, nn.Module) and not isinstance(layers, nn.ModuleList | nn.Sequential):
        name = type(layers).__name__
        raise InputError(f"layers is one {name}: expected a list; pass [layer], or hongtu.from_pyg(model)")
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            shown = getattr(layer, "__name__", None) or repr(layer)
            raise InputError(
                f"layers[{index}] is {shown}: expected a hongtu.nn.Layer or a row-wise torch.nn.Module; of functions "
                "pass the module (torch.nn.ReLU() for torch.relu), or the activation of a layer"
            )
    return nn.ModuleList(layers)


class Network:
    """Runs stages and aggregates of a model, with the same random numbers in forward and recomputation.

    Stage l applies the update of layer l - 1 (none for stage 0), then the row-wise modules listed before layer l,
    then the transform of layer l (none for the last stage).

    Args:
        modules: graph layers (:class:`hongtu.nn.Layer`) and row-wise modules such as ``torch.nn.ReLU`` between them.
        context: shared by every Layer and Dropout of the model.
        autocast: what transforms, updates and row-wise modules may compute in, by torch's rules; what they return has
            the run's dtype again. None: that one only.

    Raises:
        InputError: for modules that cannot be exact chunk by chunk.
    """

    def __init__(self, modules: nn.ModuleList, context: RowContext, autocast: torch.dtype | None = None) -> None:
        self.modules, self.context, self.autocast = modules, context, autocast
        self.layers: list[Layer] = []
        self.layer_index: list[int] = []
        self.row_modules: list[list[tuple[int, nn.Module]]] = [[]]
        for index, module in enumerate(modules):
            check_module(index, module)
            if isinstance(module, Layer):
                for layer in module.expand():
                    self.layers.append(layer)
                    self.layer_index.append(index)
                    self.row_modules.append([])
            else:
                self.row_modules[-1].append((index, module))
        if not self.layers:
            raise InputError("layers: no graph layer in the list; use hongtu.nn.GCNConv or another hongtu.nn.Layer")
        self._transform_first = [layer.transform_first for layer in self.layers]
        self.activate()
        self.chunk = 0
        self._current = 0
        self._tracing = False
        self._given = 0  # columns of what the current module got
        self._shared: list[tuple[bool, ...]] = []  # per layer, which elements of s are z itself
        self._forms: list[type | None] = [None] * len(self.layers)
        self._random = [is_random(module) for module in modules]
        self.watch: Watch | None = None  # sees what every module returns, where it is set

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
        if may_write(layer):
            z, s = z.clone(), tuple(part.clone() for part in s)
        with self._call(self.layer_index[index], _AGGREGATE, block.rows):
            return self._seen(
                self.layer_index[index], _AGGREGATE, block.rows, layer.aggregate(block, z, self._pack(index, s))
            )

    def combine(self, index: int, a: Tensor, s: tuple[Tensor, ...], rows: Rows) -> Tensor:
        """[D, A]: the aggregate of layer ``index`` together with s, where the layer combines them."""
        layer = self.layers[index]
        if may_write(layer):
            a, s = a.clone(), tuple(part.clone() for part in s)
        with self._call(self.layer_index[index], _AGGREGATE, rows):
            return self._seen(self.layer_index[index], _AGGREGATE, rows, layer.combine(a, self._pack(index, s)))

    def constant_layers(self, features: int, dtype: torch.dtype, edges: EdgeData = NO_EDGE_DATA) -> int:
        """How many layers, from the first on, aggregate the same in every epoch where the features are constant: their
        aggregates are linear, and no parameter, buffer or randomness is in the stages before them."""
        if any(is_random(module) or drops(module) for module in self._around_input()):
            return 0
        block, h = _toy_block(dtype), torch.ones((2, features), dtype=dtype)
        a: Tensor | None = None
        s: tuple[Tensor, ...] = ()
        with self._differentiated():
            for index, layer in enumerate(self.layers):
                if index > 0 and any(_changes(module) for module in self._around_stage(index)):
                    return index
                z, s = self._stage_pair(index, h, a, s, block.rows)
                if not layer.linear_aggregate or any(part.requires_grad for part in (z, *s)):
                    return index
                a = self.aggregate(index, _with_edge_data(block, layer, edges), z, s)
                if layer.combines:
                    a, s = self.combine(index, a, s, block.rows), ()
        return len(self.layers)

    def _around_input(self) -> list[nn.Module]:
        """The modules whose methods stage 0 may call."""
        own = [self.layers[0]] if type(self.layers[0]).transform is not Layer.transform else []
        return own + [module for _, module in self.row_modules[0]]

    def _around_stage(self, index: int) -> list[nn.Module]:
        """The modules whose methods an inner stage may call."""
        return [*self.layers[index - 1 : index + 1], *(module for _, module in self.row_modules[index])]

    @contextmanager
    def _differentiated(self) -> Iterator[None]:
        """Inside, gradients reach every parameter, frozen ones too, and no generator moves."""
        frozen = [p for p in self.modules.parameters() if not p.requires_grad and p.is_floating_point()]
        for parameter in frozen:
            parameter.requires_grad_(True)
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def trace(
        self, features: int, dtype: torch.dtype, edges: EdgeData = NO_EDGE_DATA
    ) -> tuple[tuple[LayerShape, ...], int]:
        """Run the model on a two-vertex graph to learn its widths.

        Args:
            features: columns of the graph's.
            edges: what lies beside its edges.

        Returns:
            a LayerShape per layer and the number of output columns.

        Raises:
            InputError: when a module does not accept what the one before it gives.
        """
        training = self.modules.training
        self._tracing = True
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                versions = self._buffer_versions()
                shapes, output = self._trace(features, dtype, edges, training=False)
                with torch.enable_grad():  # to see what depends on a parameter that is trained
                    trained, _ = self._trace(features, dtype, edges, training=True)
                self._check_buffers(versions)
        except (RuntimeError, TypeError, IndexError) as error:
            text = " ".join(str(error).split())[:200]
            raise InputError(
                f"{self._title(self._current)} failed on a small graph, given rows of {self._given} columns "
                f"(the features have {features}): {text}; its input width must be what comes before gives"
            ) from error
        finally:
            self._tracing = False
            self.modules.train(training)
        merged = tuple(_common(a, b) for a, b in zip(shapes, trained, strict=True))
        self._shared = [tuple(columns is None for columns in shape.s) for shape in merged]
        return merged, output

    def _trace(
        self, features: int, dtype: torch.dtype, edges: EdgeData, *, training: bool
    ) -> tuple[list[LayerShape], int]:
        self.modules.train(training)
        block = _toy_block(dtype)
        h: Tensor | None = torch.sin(torch.arange(2 * features, dtype=dtype)).reshape(2, features)
        a: Tensor | None = None
        s: tuple[Tensor, ...] = ()
        shapes = []
        for index, layer in enumerate(self.layers):
            block = _with_edge_data(block, layer, edges)
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
                    trained=any(part.requires_grad for part in (z, *s)),
                    edge_features=block.edge_features is not None,
                    edge_type=block.edge_type is not None,
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
            given = (a, *s)
            if may_write(layer):
                a, s = a.clone(), tuple(part.clone() for part in s)
            h = self._run(number, _UPDATE, rows, layer.update, a, self._pack(index - 1, s))
        else:
            given = (h,)
        for number, module in self.row_modules[index]:
            h = self._run(number, _ROWS, rows, module, _apart(h, given) if may_write(module) else h)
        if index == len(self.layers):
            return self._matrix(h, self.layer_index[-1]), ()
        number = self.layer_index[index]
        if may_write(self.layers[index]):
            h = _apart(h, given)
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
        if isinstance(args[0], Tensor) and args[0].ndim == 2:
            self._given = args[0].shape[1]
        with self._call(number, kind, rows), self._autocast(rows):
            out = call(*args)
        out = self._seen(number, kind, rows, out if self.autocast is None else _widened(out, args[0].dtype, {}))
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

    def _autocast(self, rows: Rows) -> AbstractContextManager[Any]:
        """Around one call, so that recomputation casts what forward did."""
        if self.autocast is None or self._tracing:  # widths do not depend on it
            return nullcontext()
        return torch.autocast(rows.ids.device.type, dtype=self.autocast)

    def _title(self, number: int) -> str:
        return f"layers[{number}] ({type(self.modules[number]).__name__})"


def _widened(out: Any, dtype: torch.dtype, seen: dict[int, Tensor]) -> Any:
    """Tensors in the run's dtype; what was one tensor stays one."""
    if isinstance(out, tuple | list):
        return type(out)(_widened(part, dtype, seen) for part in out)
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return out
    if id(out) not in seen:
        seen[id(out)] = out.to(dtype)
    return seen[id(out)]


def _apart(x: Tensor, given: tuple[Tensor, ...]) -> Tensor:
    """x, copied where it lies in what was given."""
    storage = x.untyped_storage()._cdata
    return x.clone() if any(storage == part.untyped_storage()._cdata for part in given) else x


def _changes(module: nn.Module) -> bool:
    """Whether a module without trained parameters may give something else in the next epoch."""
    return is_random(module) or drops(module) or next(module.buffers(), None) is not None


def _common(a: LayerShape, b: LayerShape) -> LayerShape:
    """What holds both in evaluation (a) and in training (b): tensors are shared only where they are in both."""
    s = tuple(y if x is None else x for x, y in zip(a.s, b.s, strict=True))
    return replace(a, s=s, z_is_input=a.z_is_input and b.z_is_input, trained=b.trained)


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


def _with_edge_data(block: Block, layer: Layer, edges: EdgeData) -> Block:
    """A toy block with what the layer reads beside its edges, where the graph has it."""
    assert block.rows.statistics is not None
    numbers = torch.arange(2 * edges.features, dtype=block.rows.statistics.dtype)
    features = torch.sin(numbers).reshape(2, edges.features)
    return replace(
        block,
        edge_features=features if layer.uses_edge_features and edges.features else None,
        edge_type=torch.tensor([0, edges.types - 1], dtype=torch.int32)
        if layer.uses_edge_type and edges.types
        else None,
    )
