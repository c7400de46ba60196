"""What people do between epochs, done to both sides of a random training (``harness.py``).

Each event takes a ``Case``. What hongtu takes is done to torch_geometric's model, too; what it refuses is put back, or
a new Trainer is made as the refusal says.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import hongtu
from hongtu.errors import BudgetError, InputError
from hongtu.nn.dropout import dropout_key, keep_mask
from hongtu.nn.layer import Layer

if TYPE_CHECKING:
    from tests.exact.harness import Case

ROOT = str(Path(hongtu.__file__).parent)
ERRORS = (KeyboardInterrupt, RuntimeError, MemoryError, ZeroDivisionError)
MOST_LINES = 20_000  # of hongtu, about what an epoch runs
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
    return things[case.rng.integers(len(things))] if things else None


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
    if found:
        mine, theirs, name = one_of(case, found)
        setattr(mine, name, value(case))
        setattr(theirs, name, getattr(mine, name))
        case.done[-1] += f" {type(mine).__name__}.{name}"


def drop(case: Case) -> None:
    """Dropout of a layer's input, 0 until now or not; the other side drops what the same hash says."""
    found = [
        (number, mine.input_dropout, theirs)
        for number, (mine, theirs) in enumerate(zip(case.trainer.model, case.modules, strict=True))
        if isinstance(mine, Layer) and hasattr(mine, "input_dropout") and len(mine.expand()) == 1
    ]
    if not found or case.trainer.embedding is not None:
        return
    number, mine, theirs = one_of(case, found)
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
    if drawn := one_of(case, modules(case)):
        for module in drawn[1:]:
            module.train(not module.training)
        case.done[-1] += f" {drawn[0]}"


def freeze(case: Case) -> None:
    drawn = one_of(case, parameters(case))
    if drawn and sum(p.requires_grad for _, p, _ in parameters(case)) > 1:
        for p in drawn[1:]:
            p.requires_grad_(False)
        case.hooks = [hook for hook in case.hooks if hook[1] != drawn[0]]


def thaw(case: Case) -> None:
    for _, mine, theirs in parameters(case):
        mine.requires_grad_(True)
        theirs.requires_grad_(True)


def rewrite(case: Case) -> None:
    """Other numbers in a parameter: in place, through ``data``, or by a state that is loaded."""
    if drawn := one_of(case, parameters(case)):
        name, how = drawn[0], case.rng.integers(3)
        with torch.no_grad():
            number = (0.5 * drawn[1] + 0.01).clone()
        for p in drawn[1:]:
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
    drawn = one_of(case, [drawn for drawn in parameters(case) if drawn[1].requires_grad])
    if drawn:
        of_gradient = Bound(float(case.rng.choice([0.001, 0.01, 1.0]))) if case.rng.random() < 0.5 else doubled
        kind, call = ("after", halve) if case.rng.random() < 0.3 else ("gradient", of_gradient)
        case.hooks.append((kind, drawn[0], call))
        for p in drawn[1:]:
            register(p, kind, call)


def register(p: nn.Parameter, kind: str, call: Callable[..., Any]) -> None:
    p.register_post_accumulate_grad_hook(call) if kind == "after" else p.register_hook(call)


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
    if name is None:
        return
    owner, _, own = name.rpartition(".")
    module = case.trainer.model.get_submodule(owner)
    before = getattr(module, own)
    setattr(module, own, nn.Parameter(before.detach().clone()))
    refused(case, "make a new Trainer")
    setattr(module, own, before)


def other_module(case: Case) -> None:
    """Another submodule on both sides: refused, and taken by the new Trainer that the refusal asks for."""
    kinds = (nn.Linear, nn.ReLU, nn.ELU, nn.Tanh)
    drawn = one_of(case, [found for found in modules(case) if type(found[1]) in kinds and is_alike(*found[1:])])
    if drawn is None:
        return
    name, mine, _ = drawn
    if isinstance(mine, nn.Linear):
        mine = nn.Linear(mine.in_features, mine.out_features, mine.bias is not None, dtype=mine.weight.dtype)
        theirs: nn.Module = nn.Linear(mine.in_features, mine.out_features, mine.bias is not None).double()
        theirs.load_state_dict(mine.state_dict())
    else:
        mine, theirs = nn.Softplus(), nn.Softplus()
    case.trainer.model.set_submodule(name, mine)
    refused(case, "make a new Trainer")
    case.modules.set_submodule(name, theirs)
    case.done[-1] += f" {name}"
    case.hooks = [hook for hook in case.hooks if not hook[1].startswith(f"{name}.")]
    model, epoch = case.trainer.model, case.trainer.epoch
    layers = list(map(entry, model, model.headers))
    try:
        case.trainer = hongtu.Trainer(case.artifact, layers, **case.options)
    except BudgetError as error:  # the other module takes more
        case.options["device_memory"] = error.smallest
        case.trainer = hongtu.Trainer(case.artifact, layers, **case.options)
    case.trainer.epoch = epoch
    case.optimizer = case.sgd(case.modules.parameters())


def entry(module: nn.Module, header: Any) -> Any:
    """As it was given to the Trainer."""
    return module if header is None else (module, f"{', '.join(header.takes)} -> {header.gives}")


def is_alike(mine: nn.Module, theirs: nn.Module) -> bool:
    if not isinstance(mine, nn.Linear):
        return type(mine) is type(theirs)
    linear = isinstance(theirs, nn.Linear | pyg.Linear)
    return linear and mine.weight.shape == theirs.weight.shape and (mine.bias is None) == (theirs.bias is None)


def other_loss(case: Case) -> None:
    """Other class weights in a loss that was given: refused, and taken by a new Trainer."""
    if case.class_weights is not None:
        case.class_weights[0] *= 2
        refused(case, "the loss has changed")
        begin_again(case)


# ------------------------------------------------------------------------------------------- interrupts and snapshots


def interrupt(case: Case) -> None:
    """Ctrl-C or an error at some line of hongtu, in an epoch (the first sets up), an evaluation, or a load.

    The epoch counts if it was finished, and a snapshot mends what was torn.
    """
    with snapshot_of(case.trainer) as path:
        trainer, epoch = case.trainer, case.trainer.epoch
        works = [trainer.train_epoch, trainer.train_epoch, trainer.predict, lambda: trainer.load(path)]
        left = int(math.exp(case.rng.uniform(0, math.log(MOST_LINES))))
        error, work = one_of(case, list(ERRORS)), one_of(case, works)

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.startswith(ROOT):
                return None
            left -= event == "line"
            if left == 0:
                raise error
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        except BaseException:  # hongtu makes an InputError of some others
            if left > 0:
                raise
        finally:
            sys.settrace(before)
        if left <= 0:
            case.done[-1] += f" ({error.__name__})"
        if trainer._torn is not None or trainer.epoch != epoch:
            trainer.load(path)


def resume(case: Case) -> None:
    """A new Trainer goes on from a snapshot."""
    with snapshot_of(case.trainer) as path:
        begin_again(case)
        case.trainer.load(path)


def begin_again(case: Case) -> None:
    """A new Trainer of new layers, with the weights and settings of the old one."""
    before = case.trainer
    layers = case.layers()
    new = nn.ModuleList(entry[0] if isinstance(entry, tuple) else entry for entry in layers)
    for index, module in enumerate(before.model):  # other_module may have changed what the model is made of
        if [type(part) for part in new[index].modules()] != [type(part) for part in module.modules()]:
            new[index] = module
            layers[index] = entry(module, before.model.headers[index])
    for mine, old in zip(new.modules(), before.model.modules(), strict=True):
        for name, setting in vars(old).items():
            if isinstance(setting, float):
                setattr(mine, name, setting)
        mine.training = old.training
    new.to(case.options["dtype"]).load_state_dict(before.model.state_dict())
    case.trainer = hongtu.Trainer(case.artifact, layers, **case.options)
    case.trainer.epoch = before.epoch
    case.trainer.optimizer.load_state_dict(before.optimizer.state_dict())
    mine = dict(case.trainer.model.named_parameters())
    for name, p in before.model.named_parameters():
        mine[name].requires_grad_(p.requires_grad)
        if mine[name] is p:
            continue  # of a module that was taken over, with its hooks
        for kind, hooked, call in case.hooks:
            if hooked == name and p.requires_grad:
                register(mine[name], kind, call)


@contextlib.contextmanager
def snapshot_of(trainer: hongtu.Trainer) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hongtu-harness-"))
    try:
        trainer.save(folder / "snapshot.pt")
        yield folder / "snapshot.pt"
    finally:
        shutil.rmtree(folder)


EVENTS: tuple[Callable[[Case], None], ...] = (
    setting, drop, toggle, freeze, thaw, rewrite, learning_rate, hook, module_hook, other_layer, other_parameter,
    other_module, other_loss, interrupt, interrupt, resume,
)  # fmt: skip
