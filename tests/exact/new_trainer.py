"""Events of a random training (``harness.py``) after which a Trainer goes on: interrupts, snapshots, a new Trainer."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

import hongtu
from hongtu.errors import BudgetError
from tests.models import modules_of

if TYPE_CHECKING:
    from tests.exact.harness import Case


class Nothing(Exception):
    """The training has nothing that the event is about."""


ROOT = str(Path(hongtu.__file__).parent)
ERRORS = (KeyboardInterrupt, RuntimeError, MemoryError, ZeroDivisionError)
MOST_LINES = 20_000  # of hongtu, about what an epoch runs


def interrupt(case: Case) -> None:
    """Ctrl-C or an error at some line of hongtu, in an epoch (the first sets up), an evaluation, or a load.

    The epoch counts if it was finished, and a snapshot mends what was torn.
    """
    with snapshot_of(case.trainer) as path:
        trainer, epoch = case.trainer, case.trainer.epoch
        works = [trainer.train_epoch, trainer.train_epoch, trainer.predict, lambda: trainer.load(path)]
        left = int(math.exp(case.rng.uniform(0, math.log(MOST_LINES))))
        error, work = ERRORS[case.rng.integers(len(ERRORS))], works[case.rng.integers(len(works))]

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
        case.done[-1] += f" by {error.__name__}"
        if trainer._torn is not None or trainer.epoch != epoch:
            trainer.load(path)
        if left > 0:
            raise Nothing  # it came too late


def resume(case: Case) -> None:
    """A new Trainer goes on from a snapshot, which has all that was learned, who learns, and who drops."""
    with snapshot_of(case.trainer) as path:
        begin_again(case, fresh=True)
        case.trainer.load(path)


def begin_again(case: Case, fresh: bool = False) -> None:
    """A new Trainer of new layers, with the settings and hooks of the old one; with what it learned, unless fresh."""
    before = case.trainer
    layers = case.layers()
    new = modules_of(layers)
    for index, module in enumerate(before.model):  # other_module may have changed what the model is made of
        if form(new[index]) != form(module):
            new[index] = module
            layers[index] = entry(module, before.model.headers[index])
    new.to(case.options["dtype"])
    for mine, old in zip(new.modules(), before.model.modules(), strict=True):
        for name, setting in vars(old).items():
            if isinstance(setting, float):
                setattr(mine, name, setting)
        if not fresh:
            mine.training = old.training
    if not fresh:
        new.load_state_dict(before.model.state_dict())
    make(case, layers)
    if not fresh:
        case.trainer.epoch = before.epoch
        case.trainer.optimizer.load_state_dict(before.optimizer.state_dict())
        if before.scheduler is not None:
            case.trainer.scheduler.load_state_dict(before.scheduler.state_dict())
    old_modules, old_parameters = dict(before.model.named_modules()), dict(before.model.named_parameters())
    for name, module in case.trainer.model.named_modules():
        if module is not old_modules[name] and name in case.hooked:
            module.register_forward_hook(halved)
    for name, p in case.trainer.model.named_parameters():
        if p is old_parameters[name]:
            continue  # of a module that was taken over, with its hooks
        for kind, hooked, call in case.hooks:
            if hooked == name and p.requires_grad:
                register(p, kind, call)
        if not fresh:
            p.requires_grad_(old_parameters[name].requires_grad)


def make(case: Case, layers: list[Any]) -> None:
    """A new Trainer, with a larger budget where what was changed takes more."""
    try:
        case.trainer = hongtu.Trainer(case.artifact, layers, **case.options)
    except BudgetError as error:
        case.options["device_memory"] = error.smallest
        case.trainer = hongtu.Trainer(case.artifact, layers, **case.options)


def form(module: nn.Module) -> list[Any]:
    """What a module is made of."""
    parts = [type(part) for part in module.modules()]
    return parts + [
        (name, p.shape) for name, p in module.named_parameters() if not isinstance(p, nn.UninitializedParameter)
    ]


def entry(module: nn.Module, header: Any) -> Any:
    """As it was given to the Trainer."""
    return module if header is None else (module, str(header))


def register(p: nn.Parameter, kind: str, call: Any) -> None:
    p.register_post_accumulate_grad_hook(call) if kind == "after" else p.register_hook(call)


def halved(module: nn.Module, given: Any, out: Any) -> Any:
    return out / 2


@contextlib.contextmanager
def snapshot_of(trainer: hongtu.Trainer) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hongtu-harness-"))
    try:
        trainer.save(folder / "snapshot.pt")
        yield folder / "snapshot.pt"
    finally:
        shutil.rmtree(folder)
