"""Learned vertex embeddings in place of features: parameters that live on the host, and their optimizer.

Rows are those of ``torch.nn.Embedding``: standard normal at first. Their gradient is added up on the host by the same
passes that would flush the gradient of features; the optimizer is torch's own and runs on the host, over all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

NAME = "embedding.weight"


class VertexRows:
    """Rows on the host that change between epochs, and stand in for features.

    Args:
        original_id: int32 [V], original id of every new id.
        weight: [V, width], in new order.
    """

    def __init__(self, original_id: np.ndarray, weight: Tensor) -> None:
        self._ids = torch.from_numpy(np.array(original_id)).long()
        self.weight = weight

    def ordered(self, rows: Tensor) -> Tensor:
        """[V, ...] in new order -> in the original order."""
        out = torch.empty_like(rows)
        out[self._ids] = rows
        return out

    def renumbered(self, rows: Tensor) -> Tensor:
        """[V, ...] in the original order -> in new order."""
        return rows[self._ids]

    def set(self, rows: Tensor) -> None:
        """Take over rows [V, width] given in the original order."""
        with torch.no_grad():
            self.weight.copy_(self.renumbered(rows))


class Embedding(VertexRows):
    """One learned row per vertex.

    Args:
        original_id: int32 [V], original id of every new id.
        width: columns.
        make_optimizer: as the trainer's, called with this one parameter.
        seed: of the first rows, which do not depend on the partitioning.

    Attributes:
        weight: [V, width], in new order.
    """

    weight: nn.Parameter

    def __init__(
        self,
        original_id: np.ndarray,
        width: int,
        make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn((len(original_id), width), generator=generator)
        super().__init__(original_id, rows)
        self.weight = nn.Parameter(self.renumbered(rows).to(dtype))
        self.optimizer = make_optimizer([self.weight])

    def step(self) -> None:
        """Update every row by ``weight.grad``."""
        self.optimizer.step()
        self.weight.grad = None

    def state(self) -> dict[str, Any]:
        """For a snapshot; rows in the original order."""
        return {
            "weight": self.ordered(self.weight.detach()),
            "trained": self.weight.requires_grad,
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.set(state["weight"])
        self.weight.requires_grad_(state.get("trained", True))
        self.optimizer.load_state_dict(state["optimizer"])

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state."""
        return state_bytes(self.optimizer)


def predict_state_bytes(
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    num_vertices: int,
    width: int,
    dtype: torch.dtype,
) -> int:
    """Bytes of optimizer state after a step on [V, width], learned from a step on two rows and one on three."""
    taken = []
    for rows in (2, 3):
        trial = nn.Parameter(torch.zeros((rows, width), dtype=dtype))
        optimizer = make_optimizer([trial])
        trial.grad = torch.zeros_like(trial)
        optimizer.step()
        taken.append(state_bytes(optimizer))
    per_row = taken[1] - taken[0]
    return taken[0] + per_row * (num_vertices - 2)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the tensors of an optimizer's state."""
    state = optimizer.state_dict()["state"].values()
    return sum(value.nbytes for entry in state for value in entry.values() if isinstance(value, Tensor))
