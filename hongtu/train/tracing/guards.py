"""What is known of a model by its settings: a key, the same for models that compute alike, and what has changed since a
plan was made: people change models in between."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import fx, nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import has_backward_hooks, hooks_of, is_dropout
from hongtu.model.checks import PLAIN_ACTIVATIONS, check_module
from hongtu.model.own_state import Fingerprint
from hongtu.nn.layer import Layer

OURS = {"training", "context", "site", "transform_first", "once_per_vertex"}  # attributes that planning and running set
PLAIN = (bool, int, float, str, type(None), torch.dtype, np.generic)
ANEW = "its run was planned with what it was; make a new Trainer (load_state_dict takes the weights over)"


class Guards:
    """The modules, parameters and settings of a model, and the tensors of its losses, as they were last seen.

    Args:
        modules: the model.
        losses: modules of the loss.
    """

    def __init__(self, modules: nn.ModuleList, losses: list[nn.Module]) -> None:
        self._model, self._losses = modules, losses
        self._parts = _parts(modules)
        self._forms = _forms(modules)
        self._state = _state(losses)
        self._has_numbers = any(loss.state_dict() for loss in losses)  # in losses, which somebody may write
        self._fingerprint = Fingerprint([modules, *losses])
        self.renew()

    def renew(self) -> None:
        """Take the settings that are there for known: a run changes some itself."""
        if self._fingerprint.is_same():
            return
        self._fingerprint.see()
        self._settings = {name: _settings(module) for name, module in self._model.named_modules()}

    def changed(self) -> bool:
        """Whether settings have changed so that the run has to be planned anew.

        Raises:
            InputError: where it cannot be, naming the module and what to do.
        """
        if not self._has_numbers and self._fingerprint.is_same():
            return False
        self._refuse_other_parts()
        anew = False
        for name, module in self._model.named_modules():
            before, now = self._settings[name], _settings(module)
            for key in before.keys() | now.keys():
                was, found = before.get(key), now.get(key)
                if was is found or (type(was) is type(found) and isinstance(was, PLAIN) and was == found):
                    continue
                if isinstance(module, Layer) and not (isinstance(was, float) and isinstance(found, float)):
                    raise InputError(f"model.{name}.{key} was {was!r} and is {found!r} now: {ANEW}")
                drops_still = key == "p" and is_dropout(module) and bool(was) and bool(found)
                anew |= not drops_still
        return anew

    def _refuse_other_parts(self) -> None:
        now = _parts(self._model)
        for name in sorted(self._parts.keys() | now.keys()):
            was, found = self._parts.get(name), now.get(name)
            if was is not found:
                now_is = "another" if _title(was) == _title(found) else _title(found)
                raise InputError(f"model.{name} was {_title(was)} and is {now_is} now: {ANEW}")
        for name, form in _forms(self._model).items():
            if form != self._forms.setdefault(name, form):
                was, found = (f"{dtype} {tuple(shape)}" for dtype, shape in (self._forms[name], form))
                raise InputError(f"model.{name} was {was} and is {found} now: {ANEW}")
        for name, module in self._model.named_modules():
            if has_backward_hooks(module):
                raise InputError(
                    f"model.{name} ({type(module).__name__}) has a backward hook, which every chunk would call, "
                    "with a chunk's gradient; hook its parameters (register_hook runs once, on the epoch's gradient)"
                )
        for index, module in enumerate(self._model):
            check_module(index, module)
        if _state(self._losses) != self._state:
            raise InputError(f"the loss has changed since the Trainer was made: {ANEW}")


def _parts(model: nn.Module) -> dict[str, Any]:
    """Modules and parameters by name."""
    return dict(model.named_modules(remove_duplicate=False)) | dict(model.named_parameters(remove_duplicate=False))


def _forms(model: nn.Module) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """The dtype and the shape of every parameter that has one by now: what ``half`` and ``data`` change in place."""
    known = (item for item in model.named_parameters() if not isinstance(item[1], nn.UninitializedParameter))
    return {name: (p.dtype, p.shape) for name, p in known}


def _settings(module: nn.Module) -> dict[str, Any]:
    """Plain values and functions that are public attributes of a module, its class and its hooks."""
    settings = {
        key: value
        for key, value in vars(module).items()
        if key[0] != "_" and key not in OURS and (isinstance(value, PLAIN) or callable(value))
    }
    return settings | {"class": type(module)} | {f"hook {key}": hook for key, hook in hooks_of(module).items()}


def _state(losses: list[nn.Module]) -> list[Any]:
    """The numbers in the tensors of losses (as text: NaN is NaN), whoever wrote them, and their settings."""
    tensors = [tensor for loss in losses for tensor in loss.state_dict().values()]
    return [*(str(tensor.tolist()) for tensor in tensors), *(_settings(loss) for loss in losses)]


def _title(part: Any) -> str:
    if part is None:
        return "not there"
    return f"a {type(part).__name__}" + (f" {tuple(part.shape)}" if isinstance(part, torch.Tensor) else "")


T = TypeVar("T")
LIBRARIES = {"hongtu", "torch", "torch_geometric", "builtins", "math", "_operator", "numpy"}
MOST_REMEMBERED = 1024  # of models, sizes and choices
MOST = 64  # numbers of a tensor that is no parameter
BY_ROW = {
    nn.BatchNorm1d, nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
    nn.LayerNorm, nn.LeakyReLU, nn.Linear, nn.LogSigmoid, nn.Mish, nn.ModuleDict, nn.ModuleList, nn.PReLU, nn.ReLU,
    nn.ReLU6, nn.SELU, nn.Sequential, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Tanh,
}  # fmt: skip


class UnknownPart(Exception):
    """A part of a model is somebody's own, and may do anything."""


def digest_of(model: Any) -> Hashable | None:
    """The key of a module, or of several in a list, or None where a part of it, a function or a hook is not of torch,
    torch_geometric or hongtu: such a part may compute something else by what it finds when it is called."""
    try:
        return _key(model, {})
    except UnknownPart:
        return None


def remembered(memo: dict[Hashable, T] | None, key: Hashable, find: Callable[[], T]) -> T:
    """What was found under a key, the oldest of too many being forgotten; without a memo it is found anew."""
    if memo is None:
        return find()
    if key not in memo:
        memo[key] = find()
        if len(memo) > MOST_REMEMBERED:
            del memo[next(iter(memo))]
    return memo[key]


def treats_rows_alone(model: nn.Module, digest: Hashable | None) -> bool:
    """Whether all parts of a model with this digest are of classes that are known to, so that nobody need try: torch's
    linear maps and functions of single numbers, and layers of hongtu, which its tests try, without functions inside."""
    return digest is not None and all(map(_is_by_row, model.modules()))


def _is_by_row(module: nn.Module) -> bool:
    own = type(module).__module__.startswith("hongtu.nn.") and type(module).__name__ != "PyGLayer"
    functions = {value for value in vars(module).values() if callable(value)}
    return (own or type(module) in BY_ROW) and functions <= PLAIN_ACTIVATIONS


def _key(part: Any, seen: dict[int, int]) -> Hashable:
    if isinstance(part, (*PLAIN, Enum, torch.device, torch.Size)):
        return type(part), repr(part)
    if isinstance(part, (type, FunctionType, BuiltinFunctionType)):
        if (part.__module__ or "").split(".")[0] not in LIBRARIES or getattr(part, "__closure__", None):
            raise UnknownPart
        return part
    if id(part) in seen:
        return "again", seen[id(part)]
    seen[id(part)] = len(seen)
    if isinstance(part, (torch.Tensor, np.ndarray)):
        return _tensor_key(part)
    if isinstance(part, (list, tuple)):
        return type(part), *(_key(x, seen) for x in part)
    if isinstance(part, dict):
        return type(part), *((_key(name, seen), _key(x, seen)) for name, x in part.items())
    if isinstance(part, (set, frozenset)):
        return type(part), frozenset(_key(x, seen) for x in part)
    if isinstance(part, partial):
        return partial, _key(part.func, seen), _key(part.args, seen), _key(part.keywords, seen)
    if isinstance(part, ModuleType) and part.__name__.split(".")[0] in LIBRARIES:
        return part.__name__
    if type(part).__module__ == "torch_geometric.inspector":  # what a convolution's class says
        return ()
    if is_dataclass(part) and type(part).__module__.startswith("hongtu."):
        return type(part), *(_key(getattr(part, field.name), seen) for field in fields(part))
    if not isinstance(part, nn.Module) or hooks_of(part):
        raise UnknownPart
    if isinstance(part, fx.GraphModule):
        code, held = part.graph.python_code("self"), (part._modules, part._parameters, part._buffers)
        named = {name: x for name, x in vars(part).items() if name[0] != "_" and name not in OURS}
        return fx.GraphModule, code.src, *(_key(x, seen) for x in (code.globals, *held, named))
    return _key(type(part), seen), *((n, _key(x, seen)) for n, x in vars(part).items() if n not in OURS)


def _tensor_key(x: torch.Tensor | np.ndarray) -> Hashable:
    """Of parameters the form, and whether there are numbers at all: a gate that is closed hides what is behind it."""
    if isinstance(x, nn.UninitializedParameter):
        raise UnknownPart
    form = type(x), x.dtype, tuple(x.shape)
    if isinstance(x, nn.Parameter):
        return *form, x.requires_grad, bool(x.detach().any())
    if x.size == 0 if isinstance(x, np.ndarray) else x.numel() == 0:
        return form
    if len(x.reshape(-1)) > MOST:
        raise UnknownPart
    return *form, repr(x.tolist())
