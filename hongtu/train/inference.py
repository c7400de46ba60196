"""A trained model on a whole graph, which needs neither labels nor masks: the forward half of a Trainer."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.device.backends import Backend
from hongtu.errors import InputError, names_known, refused_as
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.hardware import Hardware
from hongtu.metrics import EpochRecord
from hongtu.model.loss_terms import Unscored
from hongtu.model.pyg import from_pyg
from hongtu.model.wiring import Entry, Modules
from hongtu.nn.layer import Layer
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.strategy import Strategy
from hongtu.ranks.together import Alone, Together
from hongtu.train.outputs import check_rows_file, write_rows
from hongtu.train.trainer import Trainer


class Inference:
    """Runs a model without dropout: one sweep over the graph for each layer, planned for that alone, so that budgets
    may be smaller than in training. Without a limit, results have the bits of ``Trainer.predict``; within one each is
    planned for itself, and results differ in the last digits.

    Args:
        artifact: an opened artifact or its path; labels and masks are not looked at.
        model: a model of torch_geometric (as :func:`hongtu.from_pyg` takes it, and copies it), or layers (as a
            :class:`hongtu.Trainer` takes them), with trained weights.
        vertices: those whose rows are wanted, named as the input names them: what these do not depend on is not
            computed, where that is much of the graph. None: all.
        device, device_memory, host_memory, spill, strategy, dtype, host_dtype, hardware, dependencies, topology, ranks:
            as for a :class:`hongtu.Trainer`.

    Attributes:
        model: ModuleList of the layers.
        record: what the last ``predict`` moved and took, or None before it.

    Raises:
        InputError: for anything that cannot work, before any work.
        BudgetError: when the budget is too small; names the smallest that works.
    """

    @names_known
    def __init__(
        self,
        artifact: Artifact | str | os.PathLike[str],
        model: nn.Module | Sequence[Entry],
        *,
        vertices: Iterable[Any] | None = None,
        device: str | torch.device | Backend = "cpu",
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        spill: str | os.PathLike[str] | None = None,
        strategy: str | Strategy = "full",
        dtype: torch.dtype = torch.float32,
        host_dtype: torch.dtype | str | None = None,
        hardware: Hardware | str | None = None,
        dependencies: str = "cache",
        topology: str | os.PathLike[str] | None = None,
        ranks: Together | None = None,
    ) -> None:
        self.artifact = artifact if isinstance(artifact, Artifact) else open_artifact(artifact)
        if self.artifact.learns_features:
            raise InputError(
                f"{self.artifact.path}: its features are learned, and a model has none of them; use predict of the "
                "Trainer that learned them (`hongtu embed`)"
            )
        self._options: dict[str, Any] = {
            "device": device, "device_memory": device_memory, "host_memory": host_memory, "spill": spill,
            "strategy": strategy, "dtype": dtype, "host_dtype": host_dtype, "hardware": hardware,
            "dependencies": dependencies, "topology": topology, "ranks": ranks,
        }  # fmt: skip
        self._given = self._chosen = self._numbers(vertices)
        self._trainer = self._planned(_layers_of(model))

    def __repr__(self) -> str:
        return f"Inference({self.artifact}, {self.model})"

    @names_known
    def predict(
        self, vertices: Iterable[Any] | None = None, *, out: str | os.PathLike[str] | None = None
    ) -> Tensor | np.ndarray:
        """The model's output, [N, C]: row k is vertex k of the original order, which is ``artifact.vertex_ids[k]``
        where the input has ids of its own.

        Args:
            vertices: the vertices whose rows to return, in this order; others than before are planned for first. None:
                those that the Inference was made for.
            out: a .npy file to write the rows to instead, complete or absent; a memory map of it is returned.
        """
        file = None if out is None else check_rows_file(out)
        wanted = self._given if vertices is None else self._numbers(vertices)
        if not _same(wanted, self._chosen):
            self._trainer.close()
            self._chosen = wanted
            self._trainer = self._planned(self.model)
        if wanted is None:
            return self._trainer.predict(out=file)
        ids = self.artifact.vertex_ids
        rows = self._trainer.predict(wanted if ids is None else [ids[number] for number in wanted])
        assert isinstance(rows, Tensor)
        if file is None:
            return rows
        self._trainer.ranks.first(lambda: len(write_rows(file, rows, torch.arange(len(rows)), Alone())))
        return np.load(file, mmap_mode="r")

    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Take the weights of a snapshot, a run's newest, or safetensors, of the same layers.

        Raises:
            InputError: when it is damaged, or has other layers.
        """
        self._trainer.load_weights(path)

    @property
    def model(self) -> Modules:
        return self._trainer.model

    @property
    def record(self) -> EpochRecord | None:
        return self._trainer.inferred

    @property
    def plan(self) -> ExecutionPlan:
        """What runs: predicted rows, bytes per link, peak bytes."""
        return self._trainer.plan

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest bytes per memory so far."""
        return self._trainer.peak_bytes

    def _numbers(self, vertices: Iterable[Any] | None) -> np.ndarray | None:
        return None if vertices is None else self.artifact.numbers(vertices)

    def _planned(self, layers: Sequence[Entry] | nn.ModuleList) -> Trainer:
        """What runs the model for the output of the chosen vertices, or of all."""
        mask = None
        if self._chosen is not None and len(self._chosen):
            mask = np.zeros(self.artifact.num_vertices, dtype=bool)
            mask[self._chosen] = True
        given: Any = layers
        no_steps = partial(torch.optim.SGD, lr=0.0)
        return Trainer(self.artifact, given, loss=Unscored(mask=mask), optimizer=no_steps, **self._options)


def _layers_of(model: nn.Module | Sequence[Entry]) -> Sequence[Entry] | nn.ModuleList:
    """A model as a list of layers of its own: a Trainer that has the same layers may go on with them."""
    if isinstance(model, Layer):
        model = [model]
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
        return from_pyg(model)
    with refused_as("model: its layers cannot be copied", "torch.nn.utils.parametrizations can be"):
        return copy.deepcopy(model)


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))
