"""What a plan takes for granted about a model, looked at again before each run: people change models in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import has_backward_hooks, hooks_of, is_dropout
from hongtu.model.checks import check_module
from hongtu.model.fingerprint import Fingerprint
from hongtu.nn.layer import Layer

OURS = {"training", "context", "site", "transform_first", "once_per_vertex"}  # attributes that planning and running set
PLAIN = (bool, int, float, str, type(None), torch.dtype, np.generic)
ANEW = "its run was planned with what it was; make a new Trainer (load_state_dict takes the weights over)"


class Witness:
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
        self.look()

    def look(self) -> None:
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
