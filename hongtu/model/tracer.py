"""What the forward of a torch_geometric model calls, in training and in evaluation, traced by torch.fx."""

from __future__ import annotations

import inspect
import operator
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from hongtu.errors import InputError
from hongtu.model.checks import drops
from hongtu.model.edge_functions import (
    drops_edges,
    functions_of_edges,
    functions_of_edges_seen,
    is_of_edges,
    refuse_edges,
)
from hongtu.model.expression import label
from hongtu.model.in_place import OF_NUMPY, ChangesTracer, ChangingProxy, gives_rows
from hongtu.model.own_state import OwnState
from hongtu.model.python_questions import answered_for
from hongtu.model.questions import MADE, Questions, Unanswered, is_traced
from hongtu.model.root import OF_EDGES, GivenData, Root

_CONSTANT = re.compile(r"(?<=_tensor_constant)\d+")  # tensors that a forward makes are numbered through
_DRAWS = re.compile(r"(rand|randn|randint|normal|bernoulli|poisson|multinomial|uniform|exponential|random)(_|_like)?")
_TENSOR = torch.empty(0)


class Tracer(ChangesTracer):
    """Looks into modules that hold convolutions, and into no other; those that the forward makes join the model."""

    def __init__(self, title: str, questions: Questions | None = None) -> None:
        super().__init__(autowrap_functions=tuple(functions_of_edges().values()))
        self.title, self.questions, self.made = title, questions, list[nn.Module]()
        self.modes: tuple[bool, bool] | None = _modes()
        self.unanswered: Exception | None = None

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        with self._functions_called():
            graph = super().trace(root, concrete_args)
        self.modes = None  # what is kept of it may be used in another trace
        if self.unanswered is not None:  # a forward that goes on where it fails
            raise self.unanswered
        return graph

    @contextmanager
    def _functions_called(self) -> Iterator[None]:
        """Inside, a ``torch.autograd.Function`` is called as one function, with its own backward, what is checkpointed
        is traced, ``torch.tensor`` takes sizes, and what stands for rows, edges or a ``Data`` is such for those who
        ask."""
        plain, make = Function.__dict__["apply"], torch.tensor

        def apply(cls: type[Function], *args: Any, **options: Any) -> Any:
            if cls is CheckpointFunction:
                return args[0](*args[2:])
            if cls.__module__ == "torch_geometric.nn.models.rev_gnn":  # (function, its inverse, passes, inputs, *given)
                return args[0](*args[4 : 4 + args[3]])
            if not any(isinstance(x, fx.Proxy) for x in (*args, *options.values())):
                return plain.__get__(None, cls)(*args, **options)

            def call(*given: Any, **options: Any) -> Any:
                return cls.apply(*given, **options)

            call.__name__ = cls.__name__
            return self.create_proxy("call_function", call, args, options)

        def tensor(data: Any, **options: Any) -> Tensor:
            def told(x: Any) -> Any:
                return self.answer(x, lambda value: value) if isinstance(x, fx.Proxy) else x

            return make(fx.node.map_aggregate(data, told), **options)

        Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
        torch.tensor = tensor  # type: ignore[assignment]
        try:
            with answered_for(self._stands_for):
                yield
        finally:
            Function.apply, torch.tensor = plain, make  # type: ignore[method-assign]

    def _stands_for(self, value: Any) -> Any:
        """What is asked in place of a traced value."""
        if isinstance(value, GivenData) and "torch_geometric.data" in sys.modules:
            return sys.modules["torch_geometric.data"].Data()
        if not isinstance(value, ChangingProxy):
            return value
        if value.node.op == "placeholder" or self.questions is None:
            return _TENSOR if gives_rows(value.node) else value
        try:
            return self.questions.example(value.node)
        except Unanswered:
            return _TENSOR if gives_rows(value.node) else value

    def answer(self, proxy: fx.Proxy, ask: Callable[[Any], Any]) -> Any:
        if self.questions is None:
            return super().answer(proxy, ask)
        try:
            return self.questions.answer(proxy.node, ask)
        except Unanswered as error:
            failed = fx.proxy.TraceError(str(error))
            if ask is not operator.index:  # of which C asks whether there is one
                self.unanswered = failed
            raise failed from None

    def refused(self, what: str) -> Exception:
        error = InputError(f"{self.title}.forward {what}")
        if is_traced():  # and is not run beside the trace, with what it kept of it
            self.unanswered = self.unanswered or error
        return error

    def has(self, proxy: fx.Proxy, name: str) -> bool:
        with suppress(Unanswered):
            if self.questions is not None and proxy.node.op != "placeholder":
                return hasattr(self.questions.example(proxy.node), name)
        return super().has(proxy, name)

    def text(self, proxy: fx.Proxy, how: str = "") -> str:
        with suppress(Unanswered):
            if self.questions is not None and not isinstance(self.questions.example(proxy.node), Tensor):
                return self.questions.answer(proxy.node, lambda value: format(value, how))
        return super().text(proxy)

    def create_node(self, kind: str, target: Any, *given: Any, **options: Any) -> fx.Node:
        if kind.startswith("call") and self.root.training and self.modes not in (None, now := _modes()):
            how, remedy = "under torch.autocast", "take it out, and pass autocast=torch.bfloat16 to hongtu.Trainer"
            if self.modes and now[0] != self.modes[0]:
                how, remedy = "under torch.no_grad", "take it out, and .detach() what is computed there"
            name = getattr(target, "__name__", str(target).removeprefix("model."))
            raise self.refused(f"calls {name} {how}, which its trace does not show; {remedy}")
        if target in ("backward", torch.autograd.backward, torch.autograd.grad):
            raise self.refused(
                "takes gradients itself, which its trace does not show; return what the loss is taken of, or write a "
                "torch.autograd.Function"
            )
        taken_out = kind == "call_method" and target in ("numpy", "tolist") and self.questions is not None
        if taken_out and gives_rows(given[0][0]):
            self.unanswered = self.unanswered or fx.proxy.TraceError(OF_NUMPY)
            raise self.unanswered
        return super().create_node(kind, target, *given, **options)

    def path_of_module(self, mod: nn.Module) -> str:
        try:
            return super().path_of_module(mod)
        except NameError:  # it is no part of the model
            kind = type(mod).__name__
            if any(True for _ in (*mod.parameters(), *mod.buffers())):
                raise InputError(
                    f"{self.title}.forward makes a {kind}, whose weights are new in every call, so that nothing trains "
                    f"them; make it in __init__, as self.{kind.lower()}, and call that"
                ) from None
            if drops(mod):
                raise InputError(
                    f"{self.title}.forward makes a {kind}, which drops in evaluation, too; make it in __init__, or "
                    "call torch.nn.functional.dropout(x, p, training=self.training)"
                ) from None
            name = f"{MADE}{len(self.made)}"
            self.made.append(mod)
            self.root.get_submodule("model").add_module(name, mod)
            return f"model.{name}"

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m).__name__ == "MLP":  # torch_geometric's: functions and normalisations between linear maps
            return False
        return is_convolution(m) or not any(is_convolution(part) for part in m.modules())


def _modes() -> tuple[bool, bool]:
    """Whether what is computed now has gradients, and whether it is in less precision."""
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def is_convolution(module: nn.Module) -> bool:
    """Whether it is a convolution of torch_geometric, or derived from one, or a MetaLayer."""
    return any(base.__name__ in ("MessagePassing", "MetaLayer") for base in type(module).__mro__)


def trace_forward(root: Root, title: str) -> tuple[Root, fx.Graph]:
    """What a model does with all that it takes of edges. Where it does something else without what is optional, and can
    do without, what it does without."""
    if not root.optional:
        return root, traced(root, title)
    without, found, errors = Root(root.model, OF_EDGES), list[tuple[Root, fx.Graph]](), list[Exception]()
    for one in (root, without):
        try:
            found.append((one, traced(one, title)))
        except Exception as error:  # whatever a forward does with what is no tensor, or is None
            errors.append(error)
    if not found:
        raise errors[1]
    if found[-1][0] is root:
        root.optional = set()  # it cannot do without
    elif len(found) == 2 and _calls(found[0][1]) != _calls(found[1][1]):
        return found[1]
    return found[0]


def _calls(graph: fx.Graph) -> list[tuple[str, str, list[int]]]:
    """What is called with rows, in order, with the numbers of the calls that these come from."""
    first, *others = graph.nodes
    number, found = {first: 0}, list[tuple[str, str, list[int]]]()
    for node in others:
        rows = [number[other] for other in node.all_input_nodes if other in number]
        if rows or node.op == "output":
            number[node] = len(found) + 1
            found.append((node.op, _CONSTANT.sub("", str(node.target)), rows))
    return found


def traced(root: nn.Module, title: str, make: Callable[[], Tracer] | None = None) -> fx.Graph:
    """What a model does in training; functions of dropout that do nothing then are left out.

    Raises:
        InputError: where it does something else in evaluation, but for dropout.
    """
    flags = {module: module.training for module in root.modules()}
    own = OwnState(root)

    def trace_in(tracer: Tracer, mode: bool) -> fx.Graph:
        modes = [(module, module.training) for module in root.train(mode).modules()]
        with torch.set_grad_enabled(mode and torch.is_grad_enabled()):  # who evaluates takes no gradients
            graph = tracer.trace(root)
        if switched := [module for module, flag in modes if module.training != flag]:
            raise InputError(
                f"{title}.forward calls train() or eval() of a {type(switched[0]).__name__}, which its trace does not "
                "show; switch it before from_pyg, where it stays so"
            )
        return graph

    try:
        questions = getattr(root, "questions", None)
        tracers = (make(), make()) if make else (Tracer(title, questions), Tracer(title, questions))
        with functions_of_edges_seen(), own:
            training = trace_in(tracers[0], True)
            kept = [*_places_of_proxies(root)]
            evaluation = trace_in(tracers[1], False)
    finally:
        for module, flag in flags.items():
            module.training = flag
    own.check(title)
    for node in training.nodes:
        if is_of_edges(node):
            refuse_edges(node, title)
        if _DRAWS.fullmatch(label(node)) and questions is not None and questions.as_many(node):
            raise InputError(
                f"{title}.forward draws as many random numbers ({label(node)}) whatever the rows are, and every chunk "
                "would have others; leave that out, or draw for each row, as torch.rand_like(h)"
            )
    off = set[str]()  # what drops nothing in training
    for node in [*training.nodes, *evaluation.nodes]:
        if node.target is nn.functional.dropout or drops_edges(node):
            given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
            name = node.target.__name__
            if given.pop("force_undirected", False):
                raise InputError(
                    f"{title}.forward calls {name} with force_undirected=True, and an edge does not know its reverse, "
                    "which may lie in another chunk; leave it out"
                )
            if isinstance(given.get("p"), fx.Node):
                raise InputError(
                    f"{title}.forward calls {name} with a p that it computes, and layers take a number; make it in "
                    "__init__, and a new Trainer where it changes"
                )
            trains = given.pop("training", True)
            if trains is False and node.graph is training:
                off.add(node.name)
            if trains and node.graph is evaluation and given.get("p", 0.5):
                raise InputError(
                    f"{title}.forward calls {name} so that it drops in evaluation, too; pass training=self.training"
                )
            node.args = (given.pop("edge_index" if drops_edges(node) else "input"),)
            node.kwargs = {**given, "p": 0.0} if node.name in off else given
    calls = [[_CONSTANT.sub("", str(node.format_node())) for node in graph.nodes] for graph in (training, evaluation)]
    if calls[0] != calls[1] and kept:
        raise InputError(
            f"{title}.forward keeps {kept[0]} of one call for the next, and layers keep nothing between calls; make it "
            "in every call, or beforehand, as columns of data.x"
        )
    if calls[0] != calls[1] or len({str(tracer.made) for tracer in tracers}) > 1:
        raise InputError(
            f"{title}.forward does something else in evaluation (self.training, h.requires_grad) than in training; "
            "only torch.nn.functional.dropout and torch_geometric.utils.dropout_edge may, called with "
            "training=self.training: leave the rest to modules, or to what is done with the predictions"
        )
    for one, other in zip(training.nodes, evaluation.nodes, strict=True):
        found = [tensor_at(root, node, title) for node in (one, other) if node.op == "get_attr" and node.users]
        if found and found[0] is not found[1] and not torch.equal(*found):
            raise InputError(f"{title}.forward makes other numbers in every call; make them once, as a buffer")
    return training


def _places_of_proxies(root: nn.Module) -> Iterator[str]:
    """Where modules hold what stands for rows."""
    for place, part in root.named_modules():
        for name, value in vars(part).items():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            if any(isinstance(x, fx.Proxy) for x in held):
                yield f"{place}.{name}".removeprefix("model.")


def tensor_at(root: nn.Module, node: fx.Node, title: str) -> Tensor:
    """A parameter, a buffer or a constant tensor, which no module that is called has, too.

    Raises:
        InputError: where one does, whose counterpart has a copy.
    """
    owner, _, name = str(node.target).rpartition(".")
    found = getattr(root.get_submodule(owner), name)
    places = [place for place, parameter in root.named_parameters(remove_duplicate=False) if parameter is found]
    called = [f"{other.target}." for other in node.graph.nodes if other.op == "call_module"]
    if len(places) > 1 or f"{owner}.".startswith(tuple(called)):
        raise InputError(
            f"{title}.forward uses {str(node.target).removeprefix('model.')}, a weight of a module that it calls as "
            "well; use its weights alone, as torch.nn.functional.linear(h, self.lin.weight), or call it alone"
        )
    return found
