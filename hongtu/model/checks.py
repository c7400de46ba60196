"""Which modules can be exact when they run chunk by chunk, draw random numbers, change their input, and which train."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hongtu.errors import InputError, note
from hongtu.kernels.torch_private import (
    compiled_from,
    derives_from_pyg,
    has_hooks,
    is_dropout,
    is_known,
    takes_batch_statistics,
)
from hongtu.nn.layer import TRANSFORMS, Layer, is_plain
from hongtu.nn.whole_graph import WholeGraphNorm, rules_of


def check_module(index: int, module: nn.Module) -> None:
    """Refuse a module whose result depends on which rows run together.

    Raises:
        InputError: naming the module and what to use instead.
    """
    title = f"layers[{index}] ({type(module).__name__})"
    compiled = compiled_from(module)
    if compiled is not module and (isinstance(compiled, Layer) or rules_of(compiled) is not None):
        raise InputError(
            f"{title}: a {type(compiled).__name__} that torch.compile wraps as a whole, which would hide its parts; "
            "compile the row-wise modules inside it and in the list"
        )
    if derives_from_pyg(module, "nn.conv"):
        raise InputError(
            f"{title}: a convolution of torch_geometric; pass *hongtu.from_pyg(conv), or hongtu.nn.PyGLayer(conv)"
        )
    if any(
        base.__module__.startswith(("torch_geometric.nn.models", "torch_geometric.nn.sequential"))
        for base in type(module).__mro__
        if base.__name__ != "JumpingKnowledge"
    ):
        raise InputError(f"{title}: a model, expected its layers; pass *hongtu.from_pyg(model) in its place")
    if isinstance(module, Layer) or rules_of(module) is not None:
        if any(map(has_hooks, [module] if isinstance(module, Layer) else module.modules())):
            remedy = "a module inside it" if isinstance(module, Layer) else "a torch.nn.Identity() before or behind it"
            raise InputError(f"{title}: it has hooks, which would not be called; remove them, or hook {remedy}")
        own = TRANSFORMS | {"forward", "normalize"}
        patched = sorted(name for name, value in vars(module).items() if name in own and callable(value))
        if patched and not (isinstance(module, Layer) and module.plain):
            raise InputError(
                f"{title}: its {patched[0]} was replaced in the object, which may not be called; define a subclass"
            )
    maps, products = (module.bare_maps, module.bare_products) if isinstance(module, Layer) else ((), ())
    for part in (*maps, *products):
        hooked, biased = has_hooks(part), part in products and getattr(part, "bias", None) is not None
        if not is_plain(part) or biased:
            name = next(name for name, inside in module.named_modules() if inside is part)
            raise InputError(
                f"{title}: its {name} is a {type(part).__name__}{' with hooks' * hooked}{' with a bias' * biased}, "
                f"expected a plain torch.nn.Linear{' without a bias' if part in products else ''}: its weight is used "
                "without calling it; torch.nn.utils.parametrizations can change that"
            )
    if rules_of(module) is not None:
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            raise InputError(f"{title}: its width is not known yet; use torch.nn.BatchNorm1d(columns)")
        definer = next(base for base in type(module).__mro__ if "forward" in vars(base))
        if definer.__module__.split(".")[0] not in ("hongtu", "torch", "torch_geometric"):
            raise InputError(
                f"{title}: its own forward would not run, for the statistics are those of the whole graph; define "
                "normalize of a hongtu.nn.Normalization, or put what forward adds into a module before or after it"
            )
        return
    parts = module.expand() if isinstance(module, Layer) else []
    inside = [part.module for part in parts if isinstance(part, WholeGraphNorm)]
    instead = "torch.nn.LayerNorm can stand there, which is another model"
    for part in module.modules():
        name = type(part).__name__
        if part in inside:
            check_module(index, part)
            continue
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            check_embedding(f"{title}: its {name}", part)
        if rules_of(part) is not None:
            remedy = "can stand in the list of layers only; give the modules around it one by one"
            if isinstance(module, Layer):
                remedy = f"a layer sees a chunk's; {instead}"
                if module.uses_edge_features:
                    remedy += ", or normalise edge_attr beforehand"
            raise InputError(f"{title}: the {name} inside takes statistics over the whole graph, and {remedy}")
        mixes_rows = takes_batch_statistics(part)
        if derives_from_pyg(part, "nn.norm"):
            mixes_rows = name not in ("LayerNorm", "MessageNorm")
        if mixes_rows:
            remedy = (
                instead if isinstance(module, Layer) else "use hongtu.nn.BatchNorm, GraphNorm, PairNorm or LayerNorm"
            )
            raise InputError(
                f"{title}: {name} takes statistics over rows, which would be those of a chunk instead of the whole "
                f"graph; {remedy}"
            )


def check_embedding(title: str, embedding: nn.Embedding | nn.EmbeddingBag) -> None:
    """Refuse an Embedding that is another one in chunks, or whose gradients are not dense.

    Raises:
        InputError: with the title, naming the option.
    """
    if embedding.sparse or embedding.max_norm is not None:
        raise InputError(
            f"{title} has sparse=True or max_norm, and gradients are dense, and weights the same in all chunks of an "
            "epoch; make it without"
        )
    if embedding.scale_grad_by_freq:
        raise InputError(
            f"{title} has scale_grad_by_freq=True, which divides gradients by how often a kind is looked up, and a "
            "chunk counts its own rows alone; make it without"
        )


@contextmanager
def modes_kept(modules: nn.Module) -> Iterator[None]:
    """Afterwards every module trains or evaluates as before."""
    before = [(module, module.training) for module in modules.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def check_tensors(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse parameters, with their names, that cannot be trained.

    Raises:
        InputError: naming the first, and what to do.
    """
    for name, parameter in named:
        if isinstance(parameter, nn.UninitializedParameter):
            continue
        if parameter.is_meta:
            raise InputError(f"layers: {name} has no numbers (it is on the meta device); make the layers on the CPU")
        if not parameter.is_leaf:
            raise InputError(
                f"layers: {name} is computed of others, as in copies of torch.jit modules; give these unscripted"
            )
        if parameter.is_inference():
            raise InputError(f"layers: {name} was made under torch.inference_mode; make the layers outside of it")


def cast(module: nn.Module, dtype: torch.dtype, device: torch.device | str | None = None) -> None:
    """Give a module's numbers a dtype, and move them where a device is given; a note says what is rounded.
    ``module.to`` would keep the real parts of complex numbers alone; those of buffers are cast as pairs of real ones.

    Raises:
        InputError: for a complex parameter, with its name.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_complex():
            raise InputError(
                f"layers: {name} is complex, and a run trains real numbers; have torch.view_as_real of it as the "
                "parameter, and call torch.view_as_complex in forward"
            )
    if any(p.dtype == torch.float64 != dtype for p in module.parameters()):
        name = str(dtype).removeprefix("torch.")
        note(f"layers: float64, rounded to the {name} of the run; dtype=torch.float64 keeps it")
    parts = [(part, name, x) for part in module.modules() for name, x in part.named_buffers(recurse=False)]
    pairs = [(part, name, torch.view_as_real(x.resolve_conj())) for part, name, x in parts if x.is_complex()]
    for part, name, pair in pairs:
        setattr(part, name, pair)
    module.to(device, dtype)
    for part, name, _ in pairs:
        setattr(part, name, torch.view_as_complex(getattr(part, name)))


def check_default_device() -> None:
    """Refuse to work where tensors are made elsewhere than they are meant to be.

    Raises:
        InputError: naming the device.
    """
    default = torch.empty(0)  # get_default_device takes five times as long
    if not default.is_cpu:
        raise InputError(
            f"torch's default device is {str(default.device)!r}, expected 'cpu': a Trainer takes its device as an "
            "argument; leave out torch.set_default_device, or call the Trainer outside of `with torch.device(...)`"
        )


def call_on(module: nn.Module) -> Callable[..., Any]:
    """What to call with the rows that a module takes; JumpingKnowledge, compiled or not, wants them as a list."""
    if type(compiled_from(module)).__name__ == "JumpingKnowledge":
        return lambda *rows: module(list(rows))
    return module


# Functions that are used as activations, draw no random numbers and leave their input.
PLAIN_ACTIVATIONS = {
    getattr(library, name)
    for library in (torch, torch.nn.functional)
    for name in (
        "relu", "elu", "selu", "celu", "gelu", "silu", "mish", "leaky_relu", "tanh", "sigmoid", "softplus",
        "softsign", "relu6", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "softmax", "log_softmax",
    )
    if hasattr(library, name)
}  # fmt: skip


def is_altered(module: nn.Module) -> bool:
    """Whether somebody's function is called with a part of a module, or in its place: it may do anything to rows."""
    return any(has_hooks(part) or "forward" in vars(part) for part in module.modules())


def may_write(module: nn.Module) -> bool:
    """Whether a module may change its input in place: any that is not known to leave it."""
    return any(_may_write(part) for part in module.modules())


def _may_write(module: nn.Module) -> bool:
    return not is_known(module) or getattr(module, "inplace", False) or not _plain_activation(module)


def is_random(module: nn.Module) -> bool:
    """Whether a module may draw from torch's generator: any that is not known to draw nothing."""
    return any(may_draw(part) for part in module.modules())


def may_draw(module: nn.Module) -> bool:
    """The same of a module without its parts."""
    name, library = type(module).__name__, type(module).__module__.split(".")[0]
    known = library == "hongtu" or (library == "torch" and not is_dropout(module) and name != "RReLU")
    return not known or name == "PyGLayer" or not _plain_activation(module)


def _plain_activation(module: nn.Module) -> bool:
    activation = getattr(module, "activation", None)
    return activation is None or activation in PLAIN_ACTIVATIONS


def drops(module: nn.Module) -> bool:
    """Whether a module contains dropout with a probability above zero."""
    return any(is_dropout(part) and getattr(part, "p", 1) > 0 for part in module.modules())
