"""What the layers and dropouts of a model know of the run: seed, epoch and the rows of the current call."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from hongtu.nn.block import Rows


@dataclass(eq=False)
class RowContext:
    """Shared by all modules of a model; the executor sets it before every call of a layer's method.

    It is no part of the model: not in ``state_dict``, shared by ``copy.deepcopy``, pickled without its tensors.

    Attributes:
        seed: of the run.
        epoch: current epoch; new dropout masks in every one.
        training: False in evaluation: no dropout, whatever the modules say.
        rows: the vertices of the current call.
        gradients_only: a chunk is computed again, and nobody looks at the numbers that a method returns.
        calls: dropout calls so far within the current layer call; the executor resets it before each.
        keys: by device, what kernels read of seed and epoch there, and of which ones it is: ``nn.dropout.epoch_key``.
    """

    seed: int = 0
    epoch: int = 0
    training: bool = True
    rows: Rows | None = None
    gradients_only: bool = False
    calls: int = 0
    keys: dict[torch.device, tuple[tuple[int, int], torch.Tensor]] = field(default_factory=dict)

    def next_call(self) -> int:
        """The number of this dropout call within the layer call, counted from ``calls``."""
        call = self.calls
        self.calls += 1
        return call

    def __deepcopy__(self, memo: dict) -> RowContext:
        return self

    def __getstate__(self) -> dict:
        return {**self.__dict__, "rows": None, "keys": {}}
