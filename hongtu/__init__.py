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
__all__ = [
    "CorrectAndSmooth",
    "Inference",
    "LabelPropagation",
    "LinkLoss",
    "LossTerm",
    "Propagation",
    "Ranks",
    "Strategy",
    "Trainer",
    "__version__",
    "callbacks",
    "errors",
    "evaluators",
    "from_dgl",
    "from_pyg",
    "nn",
    "open_artifact",
    "plan_model",
    "preprocess_graph",
    "pyg",
    "to_pyg",
]

if TYPE_CHECKING:  # type checkers and editors see the names; running code loads them on first use
    from hongtu import errors, nn, pyg
    from hongtu.graph.artifact import open_artifact
    from hongtu.model.link_loss import LinkLoss
    from hongtu.model.loss_terms import LossTerm
    from hongtu.model.pyg import from_pyg, to_pyg
    from hongtu.plan.passes.strategy import Strategy
    from hongtu.preprocess.entry import preprocess_graph
    from hongtu.preprocess.read.formats.hetero_data import from_dgl
    from hongtu.ranks.group import Ranks
    from hongtu.train import callbacks, evaluators
    from hongtu.train.inference import Inference
    from hongtu.train.planning import plan_model
    from hongtu.train.postprocess import CorrectAndSmooth, LabelPropagation
    from hongtu.train.propagation import Propagation
    from hongtu.train.trainer import Trainer

# attribute -> (module, name in it; None for the module itself)
_LAZY = {
    "preprocess_graph": ("hongtu.preprocess.entry", "preprocess_graph"),
    "open_artifact": ("hongtu.graph.artifact", "open_artifact"),
    "Trainer": ("hongtu.train.trainer", "Trainer"),
    "from_dgl": ("hongtu.preprocess.read.formats.hetero_data", "from_dgl"),
    "from_pyg": ("hongtu.model.pyg", "from_pyg"),
    "to_pyg": ("hongtu.model.pyg", "to_pyg"),
    "Inference": ("hongtu.train.inference", "Inference"),
    "LinkLoss": ("hongtu.model.link_loss", "LinkLoss"),
    "Ranks": ("hongtu.ranks.group", "Ranks"),
    "LossTerm": ("hongtu.model.loss_terms", "LossTerm"),
    "Propagation": ("hongtu.train.propagation", "Propagation"),
    "LabelPropagation": ("hongtu.train.postprocess", "LabelPropagation"),
    "CorrectAndSmooth": ("hongtu.train.postprocess", "CorrectAndSmooth"),
    "Strategy": ("hongtu.plan.passes.strategy", "Strategy"),
    "plan_model": ("hongtu.train.planning", "plan_model"),
    "callbacks": ("hongtu.train.callbacks", None),
    "evaluators": ("hongtu.train.evaluators", None),
    "nn": ("hongtu.nn", None),
    "pyg": ("hongtu.pyg", None),
    "errors": ("hongtu.errors", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hongtu' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
