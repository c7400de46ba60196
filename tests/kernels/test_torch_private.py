"""Each thing that hongtu takes from torch without a promise of torch's."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from hongtu.kernels.torch_private import (
    Operations,
    compiled_from,
    has_backward_hooks,
    has_hooks,
    is_dropout,
    matmul_precisions,
    memory_id,
    modes_left,
    onednn_linear,
    parameter_hooks,
    run_backward,
    storage_id,
    takes_batch_statistics,
    takes_saved_tensors,
    times_written,
)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("biased", [False, True])
def test_torch_has_onednns_linear_map(biased):
    x, weight = torch.randn(5, 3), torch.randn(4, 3)
    bias = torch.randn(4) if biased else None
    try:
        found = onednn_linear(x, weight, bias)
    except (AttributeError, RuntimeError, TypeError) as error:
        pytest.fail(f"torch.ops.mkldnn._linear_pointwise has gone or takes other arguments: {error}")
    torch.testing.assert_close(found, nn.functional.linear(x, weight, bias))


@pytest.mark.parametrize(
    "hook",
    ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"],
)
def test_torch_keeps_a_modules_hooks_where_they_are_looked_for(hook):
    module = nn.Linear(2, 2)
    assert not has_hooks(module), "torch.nn.Module has hooks from the start"
    handle = getattr(module, f"register_{hook}")(lambda *given: None)
    assert has_hooks(module), f"torch.nn.Module.register_{hook} keeps the hook under another name"
    assert has_backward_hooks(module) == ("backward" in hook), f"{hook} is among those of another direction"
    handle.remove()
    assert not has_hooks(module), f"a removed {hook} stays"


def test_tensors_of_one_storage_have_one_identity():
    x, other = torch.zeros(4), torch.zeros(4)
    assert storage_id(x) == storage_id(x[1:]) == storage_id(x.view(2, 2).t()), "views have storages of their own"
    assert storage_id(x) != storage_id(other) and storage_id(x[:0]) != storage_id(other[:0]), "identities collide"
    assert memory_id(x.untyped_storage()) == memory_id(x.untyped_storage()), "two objects for one storage differ"


def test_a_parameters_hooks_rest_while_the_dictionaries_of_autograd_are_empty():
    parameter, called = nn.Parameter(torch.ones(2)), []
    parameter.register_hook(lambda gradient: called.append("gradient"))
    parameter.register_post_accumulate_grad_hook(lambda given: called.append("after"))
    parameter.sum().backward()
    assert called == ["gradient", "after"]
    held = parameter_hooks(parameter)
    assert [len(hooks) for hooks in held] == [1, 1], "torch.Tensor keeps its hooks under other names"
    for hooks in held:
        hooks.clear()
    parameter.sum().backward()
    assert len(called) == 2, "autograd calls hooks that are in none of these dictionaries"


def test_writing_in_place_is_counted():
    x = torch.zeros(4)
    before = times_written(x)
    x[1:].add_(1)
    assert times_written(x) == before + 1, "torch.Tensor._version does not count what a view writes"
    x.detach().mul_(2)
    assert times_written(x) == before + 2, "a detached tensor has a count of its own"


def test_every_operation_passes_a_dispatch_mode():
    class Seen(Operations):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            callers.add(sys._getframe(1).f_code.co_filename)
            return func(*args, **(kwargs or {}))

    seen, x = [], torch.ones(2, 2, requires_grad=True)
    callers = set()
    with Seen():
        x.mm(x).view(4).sum().backward()
    assert seen.count(torch.ops.aten.mm.default) == 3, "forward and backward products"
    assert not any("_dynamo" in name for name in callers), "_should_skip_dynamo has gone: operations take longer"
    assert any(func.is_view for func in seen), "OpOverload.is_view has gone"


class Kept(Operations):
    """A mode that an interrupt keeps from being left once, before or after torch takes back what it says of modes."""

    def __init__(self, late):
        super().__init__()
        self.late, self.interrupted = late, False

    def see(self, func, given, out):
        return out

    def __exit__(self, *error):
        if self.interrupted:
            return super().__exit__(*error)
        self.interrupted = True
        if self.late:
            for flags in [found for name, found in vars(self).items() if name.startswith("old_")]:
                flags.pop()
        raise KeyboardInterrupt


@pytest.mark.parametrize("late", [(False,), (True,), (False, True), (True, False)], ids=str)
def test_an_error_leaves_modes_that_an_interrupt_kept(late):
    outer = Kept(False)
    outer.__enter__()
    with pytest.raises(KeyboardInterrupt), modes_left(), contextlib.ExitStack() as stack:
        for one in late:
            stack.enter_context(Kept(one))
    assert _get_current_dispatch_mode_stack() == [outer], "those from before stay"
    outer.interrupted = True
    outer.__exit__(None, None, None)
    assert not _get_current_dispatch_mode_stack()


def test_a_compiled_module_tells_what_it_was_made_of():
    module = nn.Linear(2, 2)
    assert compiled_from(torch.compile(module)) is module, "torch.compile keeps the module under another name"
    assert compiled_from(module) is module


def test_normalisations_over_rows_have_one_base_class():
    assert takes_batch_statistics(nn.InstanceNorm1d(3, track_running_stats=True))
    assert not takes_batch_statistics(nn.InstanceNorm1d(3))
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.LazyBatchNorm1d):
        assert takes_batch_statistics(kind() if kind is nn.LazyBatchNorm1d else kind(3)), kind
    assert not takes_batch_statistics(nn.LayerNorm(3)) and not takes_batch_statistics(nn.GroupNorm(1, 3))


def test_what_drops_says_so_in_its_name():
    of_torch = [kind for name, kind in vars(nn.modules.dropout).items() if name in nn.modules.dropout.__all__]
    assert of_torch and all(is_dropout(kind()) and kind().p == 0.5 for kind in of_torch), "p is called otherwise"
    assert not is_dropout(nn.Linear(2, 2))


def test_how_matrices_are_multiplied_is_told_however_it_was_set():
    rules = torch.backends.cuda.matmul
    found, before = {matmul_precisions()}, rules.fp32_precision
    try:
        rules.fp32_precision = "tf32"  # torch refuses to tell the older settings then
        found.add(matmul_precisions())
    finally:
        rules.fp32_precision = before
    rules.allow_bf16_reduced_precision_reduction = False
    try:
        found.add(matmul_precisions())
    finally:
        rules.allow_bf16_reduced_precision_reduction = True
    assert len(found) == 3


@pytest.mark.parametrize("as_edge", [False, True], ids=["a tensor", "an edge of the graph"])
def test_backward_is_torchs(as_edge):
    x, w = torch.randn(5, 3, requires_grad=True), nn.Parameter(torch.randn(3))
    out, gradient = (x * w).tanh(), torch.randn(5, 3)
    expected = torch.autograd.grad(out, (x, w), gradient, retain_graph=True)
    run_backward([get_gradient_edge(out) if as_edge else out], [gradient])
    assert torch.equal(x.grad, expected[0]) and torch.equal(w.grad, expected[1])


def test_gradients_of_inputs_are_torchs_and_parameters_get_none():
    x, other, w = (torch.randn(4, requires_grad=True) for _ in range(3))
    out = x * w
    found, nothing = run_backward([out], [torch.ones(4)], [x, other])
    assert torch.equal(found, w) and nothing is None and w.grad is None


def test_who_takes_saved_tensors_is_seen():
    assert not takes_saved_tensors()
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        assert takes_saved_tensors()
    assert not takes_saved_tensors()
