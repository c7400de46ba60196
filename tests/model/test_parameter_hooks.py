"""Hooks of parameters rest while chunks run, and run once behind them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hongtu.model.parameter_hooks import hooks_once


def test_hooks_run_once_on_the_whole_gradient():
    parameter, seen = nn.Parameter(torch.zeros(2)), []
    parameter.register_hook(lambda grad: grad * 2)
    parameter.register_hook(lambda grad: seen.append(("first", grad.tolist())))
    parameter.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.grad.tolist())))
    with hooks_once([parameter], []):
        for _ in range(3):
            parameter.sum().backward()
        assert seen == []
    assert parameter.grad.tolist() == [6, 6] and seen == [("first", [6, 6]), ("after", [6, 6])]
    with pytest.raises(ZeroDivisionError), hooks_once([parameter], []):
        raise ZeroDivisionError
    assert len(seen) == 2
    parameter.sum().backward()  # they are there again
    assert seen[2:] == [("first", [2, 2]), ("after", [8, 8])]
