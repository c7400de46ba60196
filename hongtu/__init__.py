"""hongtu: train GNNs on whole graphs that are larger than the memory of the devices.

Attributes are loaded on first use: ``import hongtu`` imports neither torch nor numba. The modules beside this file are
*the top*, which every room may use; each folder is a room, and its ``__init__`` says what it is for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hongtu.threads import set_wait_policy

set_wait_policy()

__version__ = "0.2.0"

if TYPE_CHECKING:  # type checkers and editors see the names; running code loads them on first use
    from hongtu import errors as errors
    from hongtu import nn as nn
    from hongtu import pyg as pyg
    from hongtu.graph.artifact import open_artifact as open_artifact
    from hongtu.model.link_loss import LinkLoss as LinkLoss
    from hongtu.model.loss_terms import LossTerm as LossTerm
    from hongtu.model.pyg import from_pyg as from_pyg
    from hongtu.model.pyg import to_pyg as to_pyg
    from hongtu.plan.passes.strategy import Strategy as Strategy
    from hongtu.preprocess.entry import preprocess_graph as preprocess_graph
    from hongtu.preprocess.read.formats.hetero_data import from_dgl as from_dgl
    from hongtu.ranks.group import Ranks as Ranks
    from hongtu.train import callbacks as callbacks
    from hongtu.train import evaluators as evaluators
    from hongtu.train.inference import Inference as Inference
    from hongtu.train.planning import plan_model as plan_model
    from hongtu.train.postprocess import CorrectAndSmooth as CorrectAndSmooth
    from hongtu.train.postprocess import LabelPropagation as LabelPropagation
    from hongtu.train.propagation import Propagation as Propagation
    from hongtu.train.trainer import Trainer as Trainer

# name -> the module that has it, or that it is
_LAZY = {
    "preprocess_graph": "hongtu.preprocess.entry",
    "open_artifact": "hongtu.graph.artifact",
    "Trainer": "hongtu.train.trainer",
    "from_dgl": "hongtu.preprocess.read.formats.hetero_data",
    "from_pyg": "hongtu.model.pyg",
    "to_pyg": "hongtu.model.pyg",
    "Inference": "hongtu.train.inference",
    "LinkLoss": "hongtu.model.link_loss",
    "Ranks": "hongtu.ranks.group",
    "LossTerm": "hongtu.model.loss_terms",
    "Propagation": "hongtu.train.propagation",
    "LabelPropagation": "hongtu.train.postprocess",
    "CorrectAndSmooth": "hongtu.train.postprocess",
    "Strategy": "hongtu.plan.passes.strategy",
    "plan_model": "hongtu.train.planning",
    "callbacks": "hongtu.train.callbacks",
    "evaluators": "hongtu.train.evaluators",
    "nn": "hongtu.nn",
    "pyg": "hongtu.pyg",
    "errors": "hongtu.errors",
}


__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hongtu' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    value = module if _LAZY[name].endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
