"""Each thing that hongtu takes from torch without a promise of torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hongtu.kernels.torch_private import has_hooks, onednn_linear, storage_id


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
    handle.remove()
    assert not has_hooks(module), f"a removed {hook} stays"


def test_tensors_of_one_storage_have_one_identity():
    x, other = torch.zeros(4), torch.zeros(4)
    assert storage_id(x) == storage_id(x[1:]) == storage_id(x.view(2, 2).t()), "views have storages of their own"
    assert storage_id(x) != storage_id(other) and storage_id(x[:0]) != storage_id(other[:0]), "identities collide"
