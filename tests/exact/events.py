"""What people do between epochs, done to both sides of a random training (``harness.py``).

Each event takes a ``Case``, and raises ``Nothing`` where that has nothing of the kind. What hongtu takes is done to
torch_geometric's model, too; what it refuses is put back, or a new Trainer is made as the refusal says.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import hongtu
from hongtu.errors import InputError
from hongtu.nn.dropout import dropout_key
from hongtu.nn.layer import Layer
from tests.exact.new_trainer import Nothing, begin_again, entry, halved, interrupt, make, register, resume
from tests.layer_oracle import keep_mask

if TYPE_CHECKING:
    from tests.exact.harness import Case

SETTINGS = ("negative_slope", "alpha", "beta", "eps", "momentum", "scale", "fill_value", "t")


def parameters(case: Case) -> list[tuple[str, nn.Parameter, nn.Parameter]]:
    theirs = dict(case.modules.named_parameters())
    return [(name, p, theirs[name]) for name, p in case.trainer.model.named_parameters()]


def modules(case: Case) -> list[tuple[str, nn.Module, nn.Module]]:
    """Those that have the same name on both sides."""
    theirs = dict(case.modules.named_modules())
    mine = case.trainer.model.named_modules()
    return [(name, module, theirs[name]) for name, module in mine if name and name in theirs]


def one_of(case: Case, things: list[Any]) -> Any:
    if not things:
        raise Nothing
    return things[case.rng.integers(len(things))]


def value(case: Case) -> float:
    return float(case.rng.uniform(0.05, 0.5))


# ------------------------------------------------------------------------------------------------------------- settings


def setting(case: Case) -> None:
    """Another number in an attribute of a module; of one kind, in all of them."""
    found = [
        (mine, theirs, name)
        for _, mine, theirs in modules(case)
        for name in SETTINGS
        if isinstance(getattr(mine, name, None), float) and getattr(theirs, name, None) == getattr(mine, name)
    ]
    mine, theirs, name = one_of(case, found)
    setattr(mine, name, value(case))
    setattr(theirs, name, getattr(mine, name))
    case.done[-1] += f" {type(mine).__name__}.{name}"


def drop(case: Case) -> None:
    """Dropout of a layer's input, 0 until now or not; the other side drops what the same hash says."""
    found = [
        (int(name), mine.input_dropout, theirs)
        for name, mine, theirs in modules(case)
        if name.isdigit() and isinstance(mine, Layer) and hasattr(mine, "input_dropout") and len(mine.expand()) == 1
    ]
    often_first = found[:1] if case.rng.random() < 0.4 else found  # what comes before a drop may be kept
    number, mine, theirs = one_of(case, often_first)
    case.done[-1] += f" {number}"
    mine.p = p = float(case.rng.choice([0, 0.2, 0.5, 1]))
    site = [module for module in case.trainer.model.modules() if isinstance(module, hongtu.nn.Dropout)].index(mine)
    if handle := case.drops.pop(number, None):
        handle.remove()

    def dropped(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x = given[0]
        if p == 0 or not case.modules.training or not case.modules[number].training:
            return given
        key = dropout_key(case.options["seed"], case.trainer.epoch, site, (number * 4) << 16)
        kept = keep_mask(torch.arange(len(x)), x.shape[1], key, p)
        return (torch.where(kept, x / (1 - p if p < 1 else 1), 0), *given[1:])

    case.drops[number] = theirs.register_forward_pre_hook(dropped)


def toggle(case: Case) -> None:
    """One module evaluates while the others train, or trains again."""
    found = modules(case)
    matters = [drawn for drawn in found if isinstance(drawn[1], nn.BatchNorm1d)]
    matters += [(str(number), case.trainer.model[number], case.modules[number]) for number in case.drops]
    name, *both = one_of(case, matters if matters and case.rng.random() < 0.7 else found)
    for module in both:
        module.train(not module.training)
    case.done[-1] += f" {name}"


def freeze(case: Case) -> None:
    trained = [drawn for drawn in parameters(case) if drawn[1].requires_grad]
    name, *both = one_of(case, trained[1:])  # one is left
    for p in both:
        p.requires_grad_(False)
    case.hooks = [hook for hook in case.hooks if hook[1] != name]


def thaw(case: Case) -> None:
    one_of(case, [name for name, mine, _ in parameters(case) if not mine.requires_grad])
    for _, *both in parameters(case):
        for p in both:
            p.requires_grad_(True)


def resume_changed(case: Case) -> None:
    """A snapshot of a training in which one module evaluates and one parameter rests."""
    toggle(case)
    with contextlib.suppress(Nothing):
        freeze(case)
    resume(case)


def rewrite(case: Case) -> None:
    """Other numbers in a parameter: in place, through ``data``, or by a state that is loaded."""
    (name, *both), how = one_of(case, parameters(case)), case.rng.integers(3)
    with torch.no_grad():
        number = (0.5 * both[0] + 0.01).clone()
    for p in both:
        if how == 0:
            p.detach().copy_(number)
        elif how == 1:
            p.data = number.clone()
    if how == 2:
        case.trainer.model.load_state_dict({name: number}, strict=False)
        case.modules.load_state_dict({name: number}, strict=False)


def learning_rate(case: Case) -> None:
    rate, decay = float(case.rng.choice([0, 0.003, 0.1])), float(case.rng.choice([0, 0.01]))
    for optimizer in (case.trainer.optimizer, case.optimizer):
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = rate, decay


# ---------------------------------------------------------------------------------------------------------------- hooks


@dataclass(frozen=True)
class Bound:
    """A hook of a parameter."""

    bound: float

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient.clamp(-self.bound, self.bound)


def doubled(gradient: Tensor) -> Tensor:
    return 2 * gradient


def halve(parameter: nn.Parameter) -> None:
    parameter.grad.mul_(0.5)  # type: ignore[union-attr]


def hook(case: Case) -> None:
    """Of a parameter: on its gradient, or after it."""
    name, *both = one_of(case, [drawn for drawn in parameters(case) if drawn[1].requires_grad])
    of_gradient = Bound(float(case.rng.choice([0.001, 0.01, 1.0]))) if case.rng.random() < 0.5 else doubled
    kind, call = ("after", halve) if case.rng.random() < 0.3 else ("gradient", of_gradient)
    case.hooks.append((kind, name, call))
    for p in both:
        register(p, kind, call)


def forward_hook(case: Case) -> None:
    """Of a module inside: its output is halved."""
    found = [drawn for drawn in modules(case) if is_alike(*drawn[1:]) and drawn[0] not in case.hooked]
    called = called_modules(case)
    name, *both = one_of(case, [drawn for drawn in found if drawn[1] not in bare(case) and drawn[0] in called])
    case.hooked.append(name)
    for module in both:
        module.register_forward_hook(halved)
    case.done[-1] += f" {name}"


def called_modules(case: Case) -> set[str]:
    """Those of the other side whose hooks are called: some layers of torch_geometric call their parts' ``forward``."""
    called, copied = set[str](), copy.deepcopy(case.modules)
    for name, module in copied.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    with torch.no_grad():
        case.model.run_reference(copied, case.problem)
    return called


def bare(case: Case) -> list[nn.Module]:
    """Those of which layers take weights without calling them: without hooks, and with a bias if they had one."""
    layers = [module for module in case.trainer.model.modules() if isinstance(module, Layer)]
    return [part for layer in layers for part in (*layer.bare_maps, *layer.bare_products)]


def module_hook(case: Case) -> None:
    """Of a module's backward, which every chunk would call: refused, and taken away again."""
    module = one_of(case, list(case.trainer.model.modules())[1:])
    make = "register_full_backward_hook" if case.rng.random() < 0.5 else "register_full_backward_pre_hook"
    handle = getattr(module, make)(lambda module, *gradients: None)
    refused(case, "backward hook")
    handle.remove()


# ------------------------------------------------------------------------------------------------------- other modules


def refused(case: Case, words: str) -> None:
    try:
        case.trainer.train_epoch()
    except InputError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"taken without a word: {words}")


def other_layer(case: Case) -> None:
    """Another layer is refused; the old one, put back, goes on."""
    model = case.trainer.model
    index = one_of(case, [k for k, module in enumerate(model) if isinstance(module, Layer)])
    before, model[index] = model[index], hongtu.nn.GCNConv(3, 3)
    refused(case, "make a new Trainer")
    model[index] = before


def other_parameter(case: Case) -> None:
    """Another parameter under the same name: the optimizer would step the old one."""
    name = one_of(case, [name for name, *_ in parameters(case)])
    owner, _, own = name.rpartition(".")
    module = case.trainer.model.get_submodule(owner)
    before = getattr(module, own)
    setattr(module, own, nn.Parameter(before.detach().clone()))
    refused(case, "make a new Trainer")
    setattr(module, own, before)


def other_module(case: Case) -> None:
    """Another submodule on both sides: refused, and taken by the new Trainer that the refusal asks for."""
    name, mine, _ = one_of(case, [found for found in modules(case) if is_alike(*found[1:])])
    if isinstance(mine, nn.Linear):
        biased = mine.bias is not None if mine in bare(case) else case.rng.random() < 0.5
        mine = nn.Linear(mine.in_features, mine.out_features, biased, dtype=mine.weight.dtype)
        theirs: nn.Module = nn.Linear(mine.in_features, mine.out_features, biased).double()
        theirs.load_state_dict(mine.state_dict())
    else:
        mine, theirs = nn.Softplus(), nn.Softplus()
    case.trainer.model.set_submodule(name, mine)
    refused(case, "make a new Trainer")
    case.modules.set_submodule(name, theirs)
    case.done[-1] += f" {name}"
    case.hooks = [hook for hook in case.hooks if not hook[1].startswith(f"{name}.")]
    case.hooked = [hooked for hooked in case.hooked if hooked != name]
    model, epoch = case.trainer.model, case.trainer.epoch
    make(case, list(map(entry, model, model.headers)))
    case.trainer.epoch = epoch
    case.step_reference()


def is_alike(mine: nn.Module, theirs: nn.Module) -> bool:
    """Both a linear map of the same shape, or the same activation."""
    if not isinstance(mine, nn.Linear):
        return type(mine) in (nn.ReLU, nn.ELU, nn.Tanh) and type(mine) is type(theirs)
    linear = isinstance(theirs, nn.Linear | pyg.Linear)
    return linear and mine.weight.shape == theirs.weight.shape and (mine.bias is None) == (theirs.bias is None)


def other_loss(case: Case) -> None:
    """Other class weights in a loss that was given: refused, and taken by a new Trainer."""
    if case.class_weights is None:
        raise Nothing
    case.class_weights[0] *= 2
    refused(case, "the loss has changed")
    begin_again(case)


EVENTS: tuple[Callable[[Case], None], ...] = (
    setting, drop, toggle, freeze, thaw, rewrite, learning_rate, hook, forward_hook, module_hook, other_layer,
    other_parameter, other_module, other_module, other_loss, other_loss, interrupt, interrupt, interrupt, resume,
    resume_changed,
)  # fmt: skip
