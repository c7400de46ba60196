"""What a model of known classes computes, as a key: models of one key differ in the numbers of their parameters."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from hongtu.kernels.torch_private import hooks_of
from hongtu.model.checks import PLAIN_ACTIVATIONS
from hongtu.train.survey.witness import OURS, PLAIN

LIBRARIES = {"hongtu", "torch", "torch_geometric", "builtins", "math", "_operator", "numpy"}
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
    if not isinstance(part, nn.Module) or hooks_of(part):
        raise UnknownPart
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
