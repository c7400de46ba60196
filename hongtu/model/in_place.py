"""What a traced forward changes in place: whoever takes such rows afterwards gets the changed ones, as in torch."""

from __future__ import annotations

import copy
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import derives_from_pyg
from hongtu.model.edge_inputs import FEATURES, MATRIX, TYPES, WEIGHTS
from hongtu.model.python_questions import class_of, goes_by_identity
from hongtu.model.questions import untraced

OF_NUMPY = "it makes an array, or a list, of rows"
_NO_ROWS = (len, "size", "dim", "numel")  # what gives no rows
_SIZES = ("shape", "ndim", "dtype", "device", "layout", "itemsize", "nbytes", "requires_grad")  # and attributes
_ROWS = ("x", WEIGHTS, FEATURES, TYPES)  # arguments that are tensors, whatever edges are
_OF_OWN = ("shape", "ndim", "size", "dim", "numel", "nelement", "is_floating_point", "dtype", "device")
_AUGMENTED = tuple(f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"))
_MAY_SHARE = {  # functions and methods whose result may lie where their input does
    "getitem", "view", "view_as", "reshape", "reshape_as", "t", "transpose", "permute", "movedim", "moveaxis",
    "swapaxes", "swapdims", "adjoint", "squeeze", "unsqueeze", "flatten", "unflatten", "ravel", "chunk", "split",
    "tensor_split", "hsplit", "dsplit", "vsplit", "narrow", "select", "unbind", "expand", "expand_as", "broadcast_to",
    "diagonal", "unfold", "as_strided", "contiguous", "detach", "to", "type", "type_as", "float", "double", "half",
    "bfloat16", "dropout", "requires_grad_",
}  # fmt: skip
_SHARING_ATTRIBUTES = ("T", "mT", "H", "mH", "data", "real")
_SHARING_MODULES = ("Identity", "Dropout", "Dropout1d", "AlphaDropout", "FeatureAlphaDropout", "Flatten", "Unflatten")


class ChangingProxy(fx.Proxy):
    """Keeps ``h += y`` apart from ``h = h + y``, which torch.fx takes for the same, and sees ``h[h < 0] = 0``."""

    __array_priority__ = torch.Tensor.__array_priority__
    __class__ = property(class_of)

    @property
    def requires_grad(self) -> bool:
        """Whether a parameter that is trained has part in it, and what is computed now has gradients."""
        own = self.node.op == "get_attr"
        return (own or torch.is_grad_enabled()) and _is_learned(self.node, self.tracer.root)  # type: ignore[attr-defined]

    def register_hook(self, hook: Any) -> None:
        raise self.tracer.refused(  # type: ignore[attr-defined]
            "registers a hook on rows, which no trace shows; write a torch.autograd.Function with that backward"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data":
            raise self.tracer.refused(  # type: ignore[attr-defined]
                "sets the data of rows, which no trace shows; make new ones, as h = h * 2"
            )
        super().__setattr__(name, value)

    @property
    def layout(self) -> torch.layout:
        """Whether it is sparse: edges are where they stand for a matrix."""
        return torch.sparse_csr if self.node.target == MATRIX else torch.strided

    @property
    def _own(self) -> Any:
        """The model's own tensor that this stands for."""
        with untraced():
            return operator.attrgetter(str(self.node.target))(self.tracer.root)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if self.node.op == "get_attr" and name in _OF_OWN:
            if name not in ("dtype", "device"):
                return getattr(self._own, name)
            rows = self.tracer.rows(self)  # type: ignore[attr-defined]  # the model is where they are, and as exact
            return getattr(rows, name)
        known = hasattr(torch.Tensor, name) or self.tracer.has(self, name)  # type: ignore[attr-defined]
        if not known or name == "__class__" or name.startswith(("__array_", "__cuda_array_", "__dlpack")):
            asked = "; ask type(...)" if name == "__class__" else ""
            raise AttributeError(f"'Tensor' object has no attribute {name!r}{asked}")
        found = (_Shape if name == "shape" else _ChangingAttribute)(self, name)
        if goes_by_identity(sys._getframe(1)):
            return self.tracer.answer(found, lambda value: value)  # type: ignore[attr-defined]
        return found

    def __copy__(self) -> fx.Proxy:
        return self.detach()  # as torch's: of the same numbers, without their gradients

    def __deepcopy__(self, memo: dict[int, Any]) -> fx.Proxy:
        return self

    def __str__(self) -> str:
        return self.tracer.text(self)  # type: ignore[attr-defined]

    def __format__(self, how: str) -> str:
        return self.tracer.text(self, how)  # type: ignore[attr-defined]

    def __array__(self, *dtype: Any, **options: Any) -> np.ndarray:
        try:
            return np.asarray(self.tracer.answer(self, lambda number: number), *dtype)  # type: ignore[attr-defined]
        except fx.proxy.TraceError:
            raise fx.proxy.TraceError(OF_NUMPY) from None

    def __setitem__(self, where: Any, values: Any) -> None:
        if isinstance(values, ChangingProxy) and _label(values.node, None) in _AUGMENTED:
            part: Any = values.node.args[0]  # of h[:, 0] += 1 the part is changed, and then put where it is
            if part.target is operator.getitem and part.args == (self.node, self.tracer.create_arg(where)):
                values.node.target = getattr(operator, _label(values.node, None)[1:])
        self.tracer.create_proxy("call_function", write_, (self, where, values), {})

    def __round__(self, *digits: int) -> Any:
        return self.tracer.answer(self, lambda number: round(number, *digits))  # type: ignore[attr-defined]


class _ChangingAttribute(fx.proxy.Attribute, ChangingProxy):
    """What ``x.T`` and ``x.shape`` are, and ``x.relu`` before it is called."""


class _Shape(_ChangingAttribute):
    """What ``match x.shape`` takes apart, as a tuple."""


Sequence.register(_Shape)


class ChangesTracer(fx.Tracer):
    """Sees changes in place by ``+=`` and its like, and by assignment to a part."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return ChangingProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        return super().create_arg(a.item() if isinstance(a, np.generic) else a)

    def answer(self, proxy: fx.Proxy, ask: Callable[[Any], Any]) -> Any:
        """What a value of the trace would say to a question.

        Raises:
            fx.proxy.TraceError: where it may be one thing or another.
        """
        raise fx.proxy.TraceError("its way depends on what is traced")

    def refused(self, what: str) -> Exception:
        """What to raise for what a forward does; it is raised even where the forward goes on."""
        return InputError(f"it {what}")

    def has(self, proxy: fx.Proxy, name: str) -> bool:
        """Whether a value of the trace may have an attribute that tensors have not, as a matrix of edges."""
        return proxy.node.op != "placeholder" or proxy.node.target not in _ROWS

    def rows(self, of: fx.Proxy) -> fx.Proxy:
        """Those that a value is made of, or are where it is: the first argument."""
        return self.proxy(next(iter(self.graph.nodes)))

    def text(self, proxy: fx.Proxy, how: str = "") -> str:
        """What a value of the trace is as text, as ``format`` gives it."""
        return repr(proxy)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return self.answer(obj, bool)

    def iter(self, obj: fx.Proxy) -> Iterator[fx.Proxy]:
        return (obj[k] for k in range(self.answer(obj, len)))  # type: ignore[index]


def _is_learned(node: fx.Node, root: nn.Module) -> bool:
    seen, left = {node}, [node]
    with untraced():
        while left:
            one = left.pop()
            if one.op == "get_attr" and operator.attrgetter(str(one.target))(root).requires_grad:
                return True
            if one.op == "call_module" and any(
                p.requires_grad for p in root.get_submodule(str(one.target)).parameters()
            ):
                return True
            before = [] if one.target == "detach" else [other for other in one.all_input_nodes if other not in seen]
            seen.update(before)
            left += before
    return False


def _augmented(name: str) -> Callable[[ChangingProxy, Any], fx.Proxy]:
    def method(self: ChangingProxy, other: Any) -> fx.Proxy:
        target = getattr(operator, name if gives_rows(self.node) else name[1:])
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return method


def write_(rows: Any, where: Any, values: Any) -> Any:
    """Set a part of rows, and give them."""
    rows[where] = values
    return rows


for _name in _AUGMENTED:
    setattr(ChangingProxy, f"__{_name}__", _augmented(_name))
for _name, _ask in (("len", len), ("index", operator.index), ("int", int), ("float", float)):
    setattr(ChangingProxy, f"__{_name}__", lambda self, ask=_ask: self.tracer.answer(self, ask))


def gives_rows(node: fx.Node) -> bool:
    """Whether a value may be a tensor, and no size."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return gives_rows(node.args[0])
    return node.args[1] not in _SIZES if node.target is getattr else node.target not in _NO_ROWS


def settle(
    graph: fx.Graph,
    module_of: Callable[[fx.Node], nn.Module | None],
    title: str,
    writes: Callable[[fx.Node], bool | None] = lambda node: None,
) -> None:
    """Let what is called after a change in place take the changed value.

    Args:
        writes: whether a call of a module changes what it is given; None: its own forward is traced.

    Raises:
        InputError: where a view of the changed rows is used afterwards, too.
    """
    position = {node: k for k, node in enumerate(graph.nodes)}
    together: dict[fx.Node, set[fx.Node]] = {}  # values that may share memory
    for node in graph.nodes:
        module = module_of(node)
        changed = _changed(node, module, writes)
        source = changed if changed is not None else next(iter(node.all_input_nodes), None)
        group = {node}
        if source is not None and (changed is not None or _shares(node, module)):
            group = together[source]
        if changed is not None:
            if any(other.op == "get_attr" for other in group):
                raise InputError(f"{title}.forward changes a parameter of its own; leave that out")
            for other in group:
                later = [user for user in other.users if position[user] > position[node]]
                if later and (other is not changed or (module is not None and not hasattr(module, "inplace"))):
                    raise InputError(
                        f"{title}.forward changes rows in place ({_label(node, module)}) that it uses by another name "
                        "as well; make new ones, such as h = h.relu() for h.relu_()"
                    )
                for user in later:
                    user.replace_input_with(other, node)
            if node.op == "call_function" and _label(node, None) in _AUGMENTED:  # nobody sees the difference any more
                node.target = getattr(operator, _label(node, None)[1:])
        group.add(node)
        together[node] = group


def _changed(
    node: fx.Node, module: nn.Module | None, writes: Callable[[fx.Node], bool | None] = lambda node: None
) -> fx.Node | None:
    """What a call changes in place."""
    if module is not None:
        written = _may_write(module) and (_writes(module) if (found := writes(node)) is None else found)
    elif node.op == "call_method":
        written = _is_written(str(node.target)) and node.target != "requires_grad_"
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        written = name in _AUGMENTED or _is_written(name) or _argument(node, "inplace") is True
        if isinstance(node.kwargs.get("out"), fx.Node):
            return node.kwargs["out"]  # type: ignore[return-value]
    else:
        written = False
    return next(iter(node.all_input_nodes), None) if written else None


def _may_write(module: nn.Module) -> bool:
    known = type(module).__module__.split(".")[0] in ("torch", "torch_geometric")
    known |= derives_from_pyg(module)  # a convolution, say
    return getattr(module, "inplace", False) is True or type(module) is nn.Sequential or not known


def _writes(module: nn.Module) -> bool:
    """Whether a module changes its input in place, as far as its own forward can be traced."""
    if getattr(module, "inplace", False) is True:
        return True
    try:
        graph = ChangesTracer().trace(copy.copy(module))  # what it sets on itself is lost
    except Exception:  # whatever a forward does with what is no tensor
        return False
    rows = {next((node for node in graph.nodes if node.op == "placeholder"), None)}
    for node in graph.nodes:
        called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if next(iter(node.all_input_nodes), None) in rows:
            if _changed(node, called) is not None:
                return True
            rows |= {node} if _shares(node, called) else set()
    return False


def _is_written(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


def _argument(node: fx.Node, name: str) -> Any:
    try:
        return inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments.get(name)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # built-in functions have no signature
        return node.kwargs.get(name)


def _shares(node: fx.Node, module: nn.Module | None) -> bool:
    if module is not None:
        return type(module).__name__ in _SHARING_MODULES
    if node.target is getattr:
        return node.args[1] in _SHARING_ATTRIBUTES
    return node.op in ("call_function", "call_method") and _label(node, None) in _MAY_SHARE


def _label(node: fx.Node, module: nn.Module | None) -> str:
    return type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
