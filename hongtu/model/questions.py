"""What a traced forward asks of its values' form, as ``if x.dim() == 2`` does: small graphs that run through the model
answer, where all of them do so alike.

An answer may depend on how many columns there are and on the kind of numbers, which the run is held to then, and never
on how many vertices and edges there are or on what their numbers are.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor, fx, nn

from hongtu.kernels.torch_private import copied, times_written
from hongtu.model.asked import Asked
from hongtu.model.edge_inputs import FEATURES, MATRIX, TYPES, WEIGHTS
from hongtu.model.expression import label
from hongtu.model.random_state import kept_random_state

ROWS, EDGES = (7, 11), (17, 23)  # of small graphs
DTYPES = torch.float32, torch.float64
UNKNOWN = 5, 9  # columns where no module says how many there are
MADE = "made_in_forward_"
MOST = 12  # numbers of columns that are tried
_ATTRIBUTES = {
    "shape", "ndim", "dtype", "layout", "device", "is_cuda", "is_sparse", "is_sparse_csr", "is_quantized", "is_meta",
    "is_mps", "is_xpu", "itemsize",
}  # fmt: skip
_METHODS = {
    "size", "dim", "ndimension", "is_floating_point", "is_complex", "get_device", "element_size", "numel", "nelement",
}  # fmt: skip
_OF_DEVICE = {"device", "is_cuda", "get_device", "is_mps", "is_xpu"}
_OF_SIZES = {"shape", "size", "numel", "nelement"}
_COLUMNS = (
    "in_channels", "in_features", "input_size", "embed_dim", "num_features", "normalized_shape", "channels", "dim",
    "edge_dim", "in_edge_channels", "out_channels", "out_features",
)  # fmt: skip
_CALLS = nn.Module.__call__, nn.Module.__getattr__  # torch.fx puts its own there while it traces


OF_ROWS = "it depends on how many vertices or edges there are"
OF_NUMBERS = "it depends on numbers"
OF_COLUMNS = "it depends on how many columns there are, and no module says how many"
OF_EDGE_ATTR = "it depends on the form of edge_attr, [E] or [E, columns]; give it one, as edge_attr.view(-1, 1)"


class Unanswered(Exception):
    """What an answer would depend on."""


@contextmanager
def untraced() -> Iterator[None]:
    """Inside, calls of modules are no part of a trace."""
    traced_calls = nn.Module.__call__, nn.Module.__getattr__
    nn.Module.__call__, nn.Module.__getattr__ = _CALLS  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__, nn.Module.__getattr__ = traced_calls  # type: ignore[method-assign]


def is_traced() -> bool:
    """Whether calls of modules are part of a trace now."""
    return nn.Module.__call__ is not _CALLS[0]


@dataclass
class _World:
    """One small graph, and what nodes of a trace give on it."""

    root: nn.Module
    made: nn.Module  # has what the forward makes, without weights
    given: Mapping[str, Tensor]
    found: dict[fx.Node, Any] = field(default_factory=dict)
    written: set[fx.Node] = field(default_factory=set)  # calls of modules that change what they are given

    def value(self, node: fx.Node) -> Any:
        needed, left = {node}, [node]
        while left:
            new = [other for other in left.pop().all_input_nodes if other not in needed and other not in self.found]
            needed.update(new)
            left += new
        for other in node.graph.nodes:
            if other in needed and other not in self.found:
                self.found[other] = self._run(other)
        return self.found[node]

    def _run(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self.given[str(node.target)]
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.root)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.found.__getitem__)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        made = str(node.target).startswith(f"model.{MADE}")
        given = [x for other in node.all_input_nodes if isinstance(x := self.found[other], Tensor)]
        before = [(x, times_written(x), x.clone()) for x in given]
        result = (self.made if made else self.root).get_submodule(str(node.target))(*args, **kwargs)
        if any(times_written(x) != times or not torch.equal(x, same) for x, times, same in before):
            self.written.add(node)
        return result


@dataclass
class _Pair:
    """Two graphs of as many columns and of one dtype, which have other vertices and edges."""

    form: tuple[int, int | None]  # columns of x, and of edge_attr, None for one without
    dtype: torch.dtype
    worlds: tuple[_World, ...]

    def values(self, node: fx.Node) -> tuple[Any, Any]:
        """What a node gives on each.

        Raises:
            Unanswered: where it fails.
        """
        try:
            with untraced(), torch.no_grad(), kept_random_state():
                first, second = (world.value(node) for world in self.worlds)
                return first, second
        except Exception as error:  # whatever a forward calls
            raise Unanswered(f"{node.target} fails on a small graph: {error}") from error


class Questions:
    """Answers what a forward asks while it is traced.

    Args:
        root: calls the model with the names of ``_example``'s.
        of_edges: what the model's forward may take of edges.
        of_matrix: it may take edges as a sparse tensor.
    """

    def __init__(self, root: nn.Module, of_edges: Iterable[str], *, of_matrix: bool) -> None:
        self.asked = Asked()
        self._root, self._of_edges, self._of_matrix = root, {*of_edges}, of_matrix
        self._whole: tuple[str, ...] = ()  # what an Embedding takes

    def __deepcopy__(self, memo: dict[int, Any]) -> Questions:
        return self  # of the model that is traced

    def example(self, node: fx.Node) -> Any:
        """What a node of the trace gives on a small graph.

        Raises:
            Unanswered: where the model runs on none.
        """
        return self._first.values(node)[0]

    def writes(self, node: fx.Node) -> bool | None:
        """Whether a call of a module changes rows that it is given; None where it runs on no small graph."""
        with suppress(Unanswered):
            self._first.values(node)
            return any(node in world.written for world in self._first.worlds)
        return None

    def as_many(self, node: fx.Node) -> bool:
        """Whether a node gives as many numbers whatever the graph; not where the model runs on no small graph."""
        with suppress(Unanswered):
            first, second = self._first.values(node)
            return isinstance(first, Tensor) and first.shape == second.shape
        return False

    def answer(self, node: fx.Node, ask: Callable[[Any], Any]) -> Any:
        """What any graph would answer to a question about a node's value.

        Raises:
            Unanswered: where not all would do so alike.
        """
        of_columns = self._check(node, part=ask is len)
        answers = [tuple(map(ask, pair.values(node))) for pair in self._pairs]
        if any(first != second for first, second in answers):
            raise Unanswered(OF_ROWS)
        if any(answer != answers[0] for answer in answers) and (kept := self._of_lists(answers)):
            self._first, self._pairs = kept[0], kept
            vars(self).pop("_in_other_dtype", None)
            answers = [tuple(map(ask, pair.values(node))) for pair in kept]
        if any(answer != answers[0] for answer in answers):
            same_x = {pair.form[0] for pair in self._pairs} == {self._first.form[0]}
            raise Unanswered(OF_EDGE_ATTR if same_x else OF_COLUMNS)
        if self._of_dtype(node, ask) != answers[0][0]:
            self.asked.dtype = self._first.dtype
        if of_columns:
            self.asked.columns = {pair.form[0] for pair in self._pairs}
            self.asked.edge_columns = {pair.form[1] for pair in self._pairs} if FEATURES in self._of_edges else None
        return answers[0][0]

    def _of_lists(self, answers: list[Any]) -> list[_Pair]:
        """Pairs of one answer that have a column of x, or of edge_attr, for each part of a list in the model; empty
        where there are none. Of several lists it is the longest with which the model runs."""
        for k in (0, 1):
            most = max((n for pair in self._pairs if (n := pair.form[k]) in self._lists), default=None)
            kept = [(pair, answer) for pair, answer in zip(self._pairs, answers, strict=True) if pair.form[k] == most]
            if most is not None and all(answer == kept[0][1] for _, answer in kept):
                return [pair for pair, _ in kept]
        return []

    def _of_dtype(self, node: fx.Node, ask: Callable[[Any], Any]) -> Any:
        """What is answered in the other of two dtypes; None where the model fails in it."""
        with suppress(Unanswered):
            return ask(self._in_other_dtype.values(node)[0])
        return None

    def _check(self, node: fx.Node, *, part: bool) -> bool:
        """Whether a value depends on numbers of columns.

        Args:
            part: only its length or a part of it is asked for.

        Raises:
            Unanswered: where it depends on how many vertices or edges there are, or on numbers.
        """
        both = self._first.values(node)
        tensors, before = [_holds_tensors(value) for value in both], node.all_input_nodes
        if (any(tensors) and not part) or node.op == "get_attr":
            raise Unanswered(OF_NUMBERS)
        if not part and both[0] != both[1]:
            raise Unanswered(OF_NUMBERS if self._of_numbers(node) else OF_ROWS)
        if node.target in (operator.eq, operator.ne) and self._are_alike(node):
            return True
        if all(tensors):
            return isinstance(both[0], Tensor)
        name = label(node)
        self.asked.device = self._device.type if name in _OF_DEVICE else self.asked.device
        if self._of_numbers(node):
            raise Unanswered(OF_NUMBERS)
        if any(isinstance(self.example(other), Tensor) for other in before):
            return name in _OF_SIZES
        taken_apart = node.target in (operator.getitem, len)
        return any([self._check(other, part=taken_apart and k == 0) for k, other in enumerate(before)])

    def _of_numbers(self, node: fx.Node) -> bool:
        """Whether a value that is no tensor is made of what tensors hold, and not of their form alone."""
        before = node.all_input_nodes
        if any(isinstance(self.example(other), Tensor) for other in before):
            return label(node) not in (_ATTRIBUTES if node.target is getattr else _METHODS)
        return any(map(self._of_numbers, before))

    def _are_alike(self, node: fx.Node) -> bool:
        """Whether two sizes or shapes are compared that are the same whatever the graph."""
        if len(node.all_input_nodes) < 2 or any(isinstance(self.example(one), Tensor) for one in node.all_input_nodes):
            return False
        one, other = (self._first.values(one) for one in node.all_input_nodes)
        for of in node.all_input_nodes:
            self._check(of, part=True)
        return one[0] != one[1] and one == other

    @cached_property
    def _device(self) -> torch.device:
        return next((p.device for p in self._root.parameters()), torch.device("cpu"))

    @cached_property
    def _first(self) -> _Pair:
        found = next(self._running, None)
        if found is None:
            raise Unanswered("the model fails on small graphs")
        return found

    @cached_property
    def _pairs(self) -> list[_Pair]:
        """All that the model runs on."""
        return [self._first, *self._running]

    @cached_property
    def _running(self) -> Iterator[_Pair]:
        known = [*dict.fromkeys([*self._lists, *_numbers_of_columns(self._root)])][:MOST]
        of_edges = (None, *known) if FEATURES in self._of_edges else (None,)
        dtypes = (p.dtype for p in self._root.parameters() if p.is_floating_point())
        own = next(dtypes, torch.get_default_dtype())
        forms = [*product(known or UNKNOWN, of_edges)]
        looks_up = any(isinstance(module, nn.Embedding) for module in self._root.modules())
        for whole in ((), ("x",), (FEATURES,), ("x", FEATURES)) if looks_up else ((),):
            self._whole = whole
            running = (form for form in forms if self._runs(form, own))
            if (first := next(running, None)) is not None:
                return (self._pair(form, own) for form in chain((first,), running))
        return iter(())

    @cached_property
    def _lists(self) -> set[int]:
        kinds = nn.ModuleList, nn.ParameterList
        return {len(module) for module in self._root.modules() if isinstance(module, kinds) and len(module) > 0}

    def _runs(self, form: tuple[int, int | None], dtype: torch.dtype) -> bool:
        with suppress(Exception), untraced(), torch.no_grad(), kept_random_state():  # whatever a forward calls
            copied(self._root).train()(**self._example(form, dtype, 0))
            return True
        return False

    @cached_property
    def _in_other_dtype(self) -> _Pair:
        first = self._first
        return self._pair(first.form, next(dtype for dtype in DTYPES if dtype is not first.dtype), own=False)

    def _pair(self, form: tuple[int, int | None], dtype: torch.dtype, *, own: bool = True) -> _Pair:
        with untraced(), kept_random_state():  # copies may draw
            roots = [copied(self._root).train() for _ in ROWS]
            roots = roots if own else [root.to(dtype) for root in roots]
        worlds = (_World(root, self._root, self._example(form, dtype, k)) for k, root in enumerate(roots))
        return _Pair(form, dtype, tuple(worlds))

    def _example(self, form: tuple[int, int | None], dtype: torch.dtype, k: int) -> dict[str, Tensor]:
        """What the root is called with."""
        columns, of_edges = form
        rows, at = ROWS[k], torch.arange(EDGES[k])
        ends = torch.stack([at * at % rows, at * 3 % rows])
        weight = 0.5 + 0.25 * torch.sin(at.to(dtype))
        example = {
            "x": 0.5 + 0.25 * torch.sin(torch.arange(rows * columns).to(dtype)).view(rows, columns),
            "edge_index": ends,
            WEIGHTS: weight,
            FEATURES: weight if of_edges is None else weight[:, None].repeat(1, of_edges),
            TYPES: torch.zeros_like(at),
        }
        if self._of_matrix:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse", UserWarning)  # torch's, who says that they are new
                example[MATRIX] = torch.sparse_coo_tensor(ends.flip(0), weight, (rows, rows)).to_sparse_csr()
        example |= {name: torch.zeros_like(example[name], dtype=torch.int64) for name in self._whole}  # kinds
        return {name: value.to(self._device) for name, value in example.items()}


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value.values()]
    return isinstance(value, Tensor) or (isinstance(value, tuple | list) and any(map(_holds_tensors, value)))


def _numbers_of_columns(root: nn.Module) -> Iterator[int]:
    """Those that modules take or give, as they say."""
    for module in root.modules():
        for name in _COLUMNS:
            value = getattr(module, name, None)
            yield from (n for n in (value if isinstance(value, tuple) else (value,)) if type(n) is int and n > 0)
