"""From settings to objects: layers, loss, optimizer, scheduler, and the Trainer of them all."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hongtu.cli.train_config import ModelConfig, TrainConfig
from hongtu.errors import InputError, nearest, refused_as

if TYPE_CHECKING:
    from hongtu.graph.artifact import Artifact
    from hongtu.train.trainer import Trainer

AS_THEY_ARE = (  # settings that the Trainer has, too
    "device_memory", "host_memory", "host_dtype", "gradient_dtype", "spill", "strategy", "seed", "clip_grad_norm",
    "deterministic", "on_oom", "dependencies", "topology",
)  # fmt: skip
MOST_CALLS, ROOM = 4_000_000, 1 << 30  # that begin or end, and bytes, while a file's layers are made without weights


def make_layers(config: ModelConfig, artifact: Artifact, classes: int | None = None) -> list[Any]:
    """The layers that the settings describe, for so many classes; None: the artifact's.

    Raises:
        InputError: also where they are more than the host has room for, as somebody else's file may say.
    """
    from hongtu.host import check_host
    from hongtu.model.random_state import kept_random_state

    if not _is_code(config):
        with kept_random_state():
            check_host(weight_bytes(layers_without_weights(config, artifact, classes)))
    return _layers(config, artifact, classes)


def layers_without_weights(config: ModelConfig, artifact: Artifact, classes: int | None = None) -> list[Any]:
    """The same in no memory, by their shapes alone; those of a person's function as it makes them."""
    import torch

    if _is_code(config):
        return _layers(config, artifact, classes)
    with torch.device("meta"), _within_reason():
        return _layers(config, artifact, classes)


@contextmanager
def _within_reason() -> Iterator[None]:
    """Inside, no loop goes on for ever and no list grows beyond memory, as one number may ask for.

    Raises:
        InputError: instead.
    """
    from hongtu.host import taking_at_most

    refused = InputError("layers that take minutes to make, or memory; ask for fewer hops, steps or layers")
    left, before = MOST_CALLS, sys.getprofile()

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise refused

    sys.setprofile(count)
    try:
        with taking_at_most(ROOM):
            yield
    except MemoryError:
        raise refused from None
    finally:
        sys.setprofile(before)


def weight_bytes(layers: list[Any]) -> int:
    """Of parameters and buffers whose shapes are known."""
    from torch.nn.parameter import is_lazy

    tensors = [tensor for layer in layers for tensor in (*layer.parameters(), *layer.buffers())]
    return sum(tensor.nbytes for tensor in tensors if not is_lazy(tensor))


def _is_code(config: ModelConfig) -> bool:
    return ":" in config.model and not config.modules


def _layers(config: ModelConfig, artifact: Artifact, classes: int | None) -> list[Any]:
    from torch import nn

    import hongtu.nn
    from hongtu.model.named import build_layers
    from hongtu.model.pyg import from_pyg

    if classes is None:
        classes = config.hidden if artifact.task == "links" else artifact.num_classes
    if config.modules:
        widths = {"features": artifact.feature_width, "classes": classes}
        calls = {text: named_call(text, (hongtu.nn, nn), "modules", widths) for text in config.modules}
        return [_made(f"--modules {text!r}", lambda call: call())(calls[text]) for text in config.modules]
    if _is_code(config):
        made = own_model(config.model, artifact)
        return list(made) if isinstance(made, list | tuple) else from_pyg(made)
    degrees = hongtu.nn.degree_histogram(artifact.topology) if config.model == "pna" else None
    types = artifact.vertex_type_widths
    with refused_as(f"model {config.model}", "expect fewer columns or layers"):
        layers = build_layers(
            config.model, config.hidden if types else artifact.feature_width, config.hidden, classes,
            config.layers, dropout=config.dropout, heads=config.heads, degrees=degrees,
            edge_features=artifact.edge_feature_width, edge_types=artifact.num_edge_types,
        )  # fmt: skip
        return [hongtu.nn.TypedLinear(types, config.hidden), *layers] if types else layers


def own_model(name: str, artifact: Artifact, option: str = "--model") -> Any:
    """What a person's function makes of the artifact: layers, or a model of torch_geometric."""
    from torch import nn

    make = _own(option, name)
    try:
        made = make(artifact)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{option} {name}: {type(error).__name__}: {error}; expected a function of the artifact that returns "
            "layers, or a model of torch_geometric"
        ) from error
    if isinstance(made, nn.Module | list | tuple):
        return made
    what = "None" if made is None else f"a {type(made).__name__}"
    what = f"the class {made.__name__}" if isinstance(made, type) else what
    raise InputError(
        f"{option} {name}: it returned {what}, expected layers in a list, or a model of torch_geometric, as "
        "GCN(artifact.feature_width, 16, 2, 7)"
    )


def _own(option: str, name: str) -> Any:
    """A person's function, as module:function found from the current directory."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever a module does
        reason = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{option} {name}: {reason}; expected module:function, found from {os.getcwd()}") from error


def named_call(
    text: str, modules: tuple[ModuleType, ...], title: str, names: Mapping[str, Any] | None = None
) -> partial[Any]:
    """A class of one of the modules, with the arguments that stand behind it; nothing in the text is executed.

    Args:
        text: such as "SGD(momentum=0.9)"; arguments are plain values, or some of ``names``.

    Raises:
        InputError: for what is no such call, with the nearest name.

    >>> import fractions
    >>> named_call("Fraction(1, denominator=n)", (fractions,), "number", {"n": 3})()
    Fraction(1, 3)
    """

    def value(node: ast.expr) -> Any:
        if names and isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):
            raise ValueError(f"{ast.unparse(node)} is no plain value") from None

    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            call = ast.Call(func=call, args=[], keywords=[])
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not a name with arguments")
        positional = [value(node) for node in call.args]
        named = {keyword.arg: value(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        known = f" (and {', '.join(names)})" if names else ""
        reason = error.msg if isinstance(error, SyntaxError) else error  # without a line and a file
        raise InputError(
            f"{title} {text!r}: {reason}; expected a name and plain values{known}, as Name(1, x=2)"
        ) from None
    classes = {
        name: found
        for module in reversed(modules)
        for name, found in vars(module).items()
        if isinstance(found, type) and found.__module__.startswith(module.__name__)  # not what it imports
    }
    if call.func.id in classes:
        return partial(classes[call.func.id], *positional, **named)
    where = " or ".join(module.__name__.replace("hongtu.train.", "hongtu.") for module in modules)
    raise InputError(f"{title} {text!r}: no class of {where}{nearest(call.func.id, classes)}")


def make_loss(config: TrainConfig, artifact: Artifact) -> Any:
    """The loss that the settings describe.

    Raises:
        InputError: for class weights or label smoothing without classes, or negatives without links.
    """
    import torch

    from hongtu.model.link_loss import LinkLoss
    from hongtu.model.loss_terms import DEFAULT, balanced_weights

    of_classes = config.class_weights is not None or config.label_smoothing
    if artifact.task == "links" and config.loss is None and not of_classes:
        return LinkLoss(negatives=config.negatives, corrupt=config.corrupt)
    if (config.negatives, config.corrupt) != (LinkLoss.negatives, LinkLoss.corrupt):
        raise InputError("--negatives and --corrupt are for links (`hongtu preprocess --task links`) without --loss")
    if not of_classes:
        loss = config.loss or DEFAULT[artifact.task]
        return _own("--loss", loss) if ":" in loss else loss
    if artifact.task != "multiclass" or config.loss not in (None, "cross_entropy"):
        raise InputError("--class-weights and --label-smoothing are for one class per vertex and cross_entropy")
    given = artifact.labels, artifact.masks["train"], artifact.num_classes
    weight = None if config.class_weights is None else balanced_weights(*given)
    return torch.nn.CrossEntropyLoss(weight, label_smoothing=config.label_smoothing)


def make_loggers(config: TrainConfig) -> list[Any]:
    """What hears of every epoch."""
    from hongtu.train import callbacks

    found = []
    for text in config.loggers:
        try:
            found.append(named_call(text, (callbacks,), "--loggers")())
        except TypeError as error:
            raise InputError(f"--loggers {text!r}: {error}") from error
    return found


def make_trainer(config: TrainConfig, classes: int | None = None) -> Trainer:
    """The Trainer that the settings describe; ``classes`` as of ``make_layers``."""
    from hongtu.device.backends import get_backend
    from hongtu.graph.artifact import open_artifact
    from hongtu.hardware import load_hardware
    from hongtu.model.random_state import seed_generators
    from hongtu.train.trainer import Trainer

    artifact = open_artifact(config.artifact)
    backend = get_backend(config.device, artifact.size)
    seed_generators(config.seed)
    layers = make_layers(config, artifact, classes)
    return Trainer(
        artifact,
        layers,
        loss=make_loss(config, artifact),
        optimizer=_optimizer(config),
        scheduler=None if config.scheduler is None else _scheduler(config.scheduler),
        device=backend,
        hardware=backend.hardware if config.hardware is None else load_hardware(config.hardware),
        metric=_own("--metric", config.metric) if config.metric and ":" in config.metric else config.metric,
        **{name: getattr(config, name) for name in AS_THEY_ARE},
    )


def _optimizer(config: TrainConfig) -> Callable[[Any], Any]:
    """With the learning rate and weight decay of the settings, where it knows any, instead of torch's defaults."""
    import torch

    option = f"--optimizer {config.optimizer!r}"
    call = named_call(config.optimizer, (torch.optim,), "--optimizer")
    given = {"lr": config.lr, "weight_decay": config.weight_decay}
    for name in given.keys() & call.keywords:
        raise InputError(f"{option}: {name} is an option of its own; pass --{name.replace('_', '-')} instead")
    if not config.weight_decay and "weight_decay" not in inspect.signature(call.func).parameters:
        del given["weight_decay"]
    return _made(option, lambda parameters: call(parameters, **given))


def _scheduler(text: str) -> Any:
    """One that has stepped once, on a copy: torch looks at some arguments then."""
    import torch

    call = named_call(text, (torch.optim.lr_scheduler,), "--scheduler")

    def make(optimizer: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a step before the optimizer's
            trial = call.func(copy.deepcopy(optimizer), *call.args, **call.keywords)
            trial.step(*([0.0] if "metrics" in inspect.signature(trial.step).parameters else []))
        return call.func(optimizer, *call.args, **call.keywords)

    return _made(f"--scheduler {text!r}", make)


def _made(option: str, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, with torch's word on arguments that do not fit as one on the option."""

    def checked(given: Any) -> Any:
        with refused_as(option, "pass what torch takes"):
            return make(given)

    return checked
