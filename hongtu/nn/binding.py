"""Ties the modules of a model to what they must know of the run."""

from __future__ import annotations

import torch

from hongtu.nn.context import RowContext
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Layer


def bind(model: torch.nn.Module, context: RowContext) -> RowContext:
    """Give every ``Layer`` and ``Dropout`` of the model the context, and every dropout its ``site`` number.

    Sites are counted in module order, so that the same model has the same masks in every run.
    """
    sites = 0
    for module in model.modules():
        if isinstance(module, (Layer, Dropout)):
            module.context = context
        if isinstance(module, Dropout):
            module.site = sites
            sites += 1
    return context
