"""What hongtu takes from torch that torch does not document: a function for each trick.

``tests/kernels/test_torch_private.py`` holds each to what it is used for, so that a torch that changes it is noticed
there, by name.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode


class Operations(TorchDispatchMode):
    """Inside, ``see`` gets every operation, or ``__torch_dispatch__``, which runs it, where that is overridden.

    Torch would keep its compiler away from the latter with ten calls in Python for each operation; it compiles nothing
    while such a mode is on.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        return self.see(func, (*args, *(kwargs or {}).values()), out)

    def see(self, func: Any, given: tuple[Any, ...], out: Any) -> Any:
        """What an operation gives in place of its result."""
        raise NotImplementedError

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextmanager
def modes_left() -> Iterator[None]:
    """An error leaves every mode that was entered inside: an interrupt at some lines, as those of a mode's own
    ``__exit__``, keeps ``with`` from it, and all of the process's operations would go through that mode for ever."""
    entered = len(_get_current_dispatch_mode_stack())
    try:
        yield
    except BaseException:
        while len(modes := _get_current_dispatch_mode_stack()) > entered:
            with suppress(IndexError):  # what it gives back is given back already
                modes[-1].__exit__(None, None, None)
            if len(_get_current_dispatch_mode_stack()) == len(modes):
                _pop_mode()
        raise


def onednn_linear(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """[M, N]: x W^T + b by oneDNN, float32 on the CPU: what torch.compile calls for a linear layer.

    Raises:
        AttributeError, RuntimeError, TypeError: where this torch has no such operation, or one with other arguments.
    """
    return torch.ops.mkldnn._linear_pointwise(x_MK, w_NK, bias_N, "none", [], "")


def is_pyg(part: Any, where: str = "") -> bool:
    """Whether an object is of one of torch_geometric's classes, in its package ``where``, as "nn.conv"."""
    return type(part).__module__.startswith(f"torch_geometric.{where}")


def is_known(part: Any) -> bool:
    """Whether an object is of one of torch's, torch_geometric's or hongtu's classes."""
    return type(part).__module__.split(".")[0] in ("torch", "torch_geometric", "hongtu")


def derives_from_pyg(part: Any, where: str = "") -> bool:
    """Whether its class, or a base of it, is."""
    return any(base.__module__.startswith(f"torch_geometric.{where}") for base in type(part).__mro__)


class _StableTorch:
    """torch, whose ``sort`` keeps the order of equal numbers."""

    sort = staticmethod(partial(torch.sort, stable=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def sort_stably() -> None:
    """Have torch_geometric's quantiles keep the order of equal numbers, such as the zeros behind a ReLU: which of a
    destination's gets the gradient would depend on the edges of others, which a chunk has not."""
    if (quantile := sys.modules.get("torch_geometric.nn.aggr.quantile")) is not None:
        quantile.torch = _StableTorch()  # type: ignore[attr-defined]


HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
"""Where a module has its hooks."""

HOLDS = "_parameters", "_buffers", "_modules", *HOOKS
"""Where a module has what it is made of."""


def hooks_of(module: nn.Module) -> dict[int, Callable[..., Any]]:
    """What calling a module calls, too, by a number of its own: torch lists its hooks nowhere in public."""
    return {key: hook for name in HOOKS for key, hook in getattr(module, name).items()}


def has_hooks(module: nn.Module) -> bool:
    """Whether calling a module calls something else, too."""
    pre = module._forward_pre_hooks or module._backward_pre_hooks
    return bool(pre or module._forward_hooks or module._backward_hooks)


def copied(whole: Any, module: Any = None) -> Any:
    """A deep copy, in which results of calls that a module keeps are plain numbers, which torch does not copy else.

    Args:
        module: what is a module inside of it; None: itself.
    """
    module = whole if module is None else module
    kept = [value for part in module.modules() for value in vars(part).values()]
    kept += [x for value in kept if isinstance(value, list | tuple) for x in value]
    kept += [x for value in kept if isinstance(value, dict) for x in value.values()]
    tensors = [x for x in kept if isinstance(x, Tensor) and not x.is_leaf]
    return copy.deepcopy(whole, {id(x): x.detach().clone() for x in tensors})


def with_hooks_of(module: nn.Module, made: nn.Module) -> nn.Module:
    """What stands for a module, which has its hooks now."""
    vars(made).update({name: value for name, value in vars(module).items() if "hook" in name})
    return made


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether autograd calls something of a module's."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def parameter_hooks(parameter: nn.Parameter) -> tuple[dict[int, Callable[..., Any]], dict[int, Callable[..., Any]]]:
    """Those of ``register_hook`` and ``register_post_accumulate_grad_hook``, in the dictionaries that autograd has."""
    return parameter._backward_hooks or {}, parameter._post_accumulate_grad_hooks or {}


def end_capture_of_memory(gpu: int, pool: torch.cuda.MemPool, users: int) -> None:
    """Have torch's allocator take memory for streams from where it did before a capture into a pool, and let the pool
    go with its users, of whom there were so many, where torch has done neither."""
    with suppress(RuntimeError):  # it has
        torch._C._cuda_endAllocateToPool(gpu, pool.id)
    if pool.use_count() > users:
        torch._C._cuda_releasePool(gpu, pool.id)


def matmul_precisions() -> tuple[object, ...]:
    """All that says how matrices are multiplied on a GPU. Torch refuses to say it in one way where it was set in
    another, so that they are asked one by one."""
    rules = torch.backends.cuda.matmul
    found: list[object] = [getattr(torch.backends, "fp32_precision", None), getattr(rules, "fp32_precision", None)]
    for ask in (
        torch.get_float32_matmul_precision,
        lambda: rules.allow_tf32,
        lambda: rules.allow_fp16_reduced_precision_reduction,
        lambda: rules.allow_bf16_reduced_precision_reduction,
    ):
        try:
            found.append(ask())
        except RuntimeError:
            found.append(None)
    return tuple(found)


memory_id: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""The same for one storage, whichever object stands for it, while one of them lives."""


def storage_id(x: Tensor) -> int:
    """The same for all tensors that lie in one memory, while one of them lives; ``data_ptr`` is 0 for empty ones."""
    return memory_id(x.untyped_storage())


_BY_ROW, _BY_COLUMN = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_PARTS = {torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: _BY_ROW, torch.sparse_bsr: _BY_ROW}
_PARTS |= {torch.sparse_csc: _BY_COLUMN, torch.sparse_bsc: _BY_COLUMN}


def dense_parts(x: Tensor) -> list[Tensor]:
    """The dense tensors that hold a tensor's numbers: itself, or of a sparse one its indices and values."""
    return [x] if x.layout == torch.strided else [getattr(x, name)() for name in _PARTS.get(x.layout, ())]


def leaves_of(result: Tensor) -> Iterator[Tensor]:
    """The tensors with ``requires_grad`` that a result was computed from."""
    seen: set[Any] = set()
    functions = [result.grad_fn]
    while functions:
        function = functions.pop()
        if function is not None and function not in seen:
            seen.add(function)
            functions += [before for before, _ in function.next_functions]
            if hasattr(function, "variable"):
                yield function.variable


def takes_saved_tensors() -> bool:
    """Whether somebody takes what operations save: inside ``saved_tensors_hooks``."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def run_backward(
    outs: Iterable[Tensor | GradientEdge], gradients: Iterable[Tensor], inputs: Iterable[Tensor] = ()
) -> tuple[Tensor | None, ...]:
    """``torch.autograd.backward`` of outputs with gradients of their forms, or ``torch.autograd.grad`` of inputs, with
    None for those that nothing comes back to: both ask torch's users forty questions in Python before they begin."""
    wanted = tuple(inputs)
    found: tuple[Tensor | None, ...] = _engine_run_backward(
        tuple(outs), tuple(gradients), False, False, wanted, allow_unreachable=True, accumulate_grad=not wanted
    )
    return found


times_written: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor, or a view of it, was written to in place."""


def compiled_from(module: nn.Module) -> nn.Module:
    """What ``torch.compile`` was given, or the module itself."""
    return getattr(module, "_orig_mod", module)


def takes_batch_statistics(module: nn.Module) -> bool:
    """Whether it is one of torch's batch normalisations, which have no base class in public, or of instances with
    statistics of the batch."""
    of_instances = isinstance(module, nn.modules.instancenorm._InstanceNorm) and not module.track_running_stats
    return isinstance(module, nn.modules.batchnorm._NormBase) and not of_instances


def is_dropout(module: nn.Module) -> bool:
    """Whether a module drops elements, by the name of its class: torch's have no base class in public. Recurrent
    networks and attention have a rate of their own."""
    inside = isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
    return inside or "Dropout" in type(module).__name__
