"""What hongtu takes from torch that torch does not document: a function for each trick.

``tests/kernels/test_torch_private.py`` holds each to what it is used for, so that a torch that changes it is noticed
there, by name.
"""

from __future__ import annotations

import torch
from torch import Tensor


def onednn_linear(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """[M, N]: x W^T + b by oneDNN, float32 on the CPU: what torch.compile calls for a linear layer.

    Raises:
        AttributeError, RuntimeError, TypeError: where this torch has no such operation, or one with other arguments.
    """
    return torch.ops.mkldnn._linear_pointwise(x_MK, w_NK, bias_N, "none", [], "")


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calling a module calls something else, too: torch lists its hooks nowhere in public."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in names)


def storage_id(x: Tensor) -> int:
    """The same for all tensors that lie in one memory, while one of them lives; ``data_ptr`` is 0 for empty ones."""
    return x.untyped_storage()._cdata
