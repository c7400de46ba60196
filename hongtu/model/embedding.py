"""Learned vertex embeddings in place of features: parameters that live on the host, and their optimizer.

Rows are those of ``torch.nn.Embedding``: standard normal at first. Their gradient is added up on the host by the same
passes that would flush the gradient of features; the optimizer is torch's own and runs on the host, over all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.graph.artifact import Artifact

NAME = "embedding.weight"
BLOCK = 1 << 20  # values that are drawn at a time


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
    """One learned row per vertex. Of several ranks each learns its own vertices' rows; all call ``ordered`` and
    ``state``, which have everybody's.

    Args:
        artifact: whose features are learned, or a rank's share of it.
        make_optimizer: as the trainer's, called with this one parameter.
        seed: of the first rows, which do not depend on the partitioning.
        each: every rank's tensor, by rank, given this one's.

    Attributes:
        weight: [V, width], in new order; of a share its rows, of which those beside own ones may be anything.
    """

    weight: nn.Parameter

    def __init__(
        self,
        artifact: Artifact,
        make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        seed: int,
        dtype: torch.dtype,
        each: Callable[[Tensor], Iterator[Tensor]],
    ) -> None:
        weight = torch.empty((artifact.num_vertices, artifact.feature_width), dtype=dtype)
        super().__init__(artifact.original_id, nn.Parameter(weight))
        self._artifact, self._each = artifact, each
        order = torch.argsort(self._ids)
        for first, rows in first_rows(artifact.whole.num_vertices, artifact.feature_width, seed):
            bounds = torch.searchsorted(self._ids, torch.tensor([first, first + len(rows)]), sorter=order)
            here = order[slice(*bounds.tolist())]
            weight[here] = rows[self._ids[here] - first].to(dtype)
        self.optimizer = make_optimizer([self.weight])

    def ordered(self, rows: Tensor) -> Tensor:
        if self._is_whole:
            return super().ordered(rows)
        ids = self._artifact.whole.original_id
        return self._of_all(rows, lambda first, end: torch.from_numpy(ids[first:end].astype(np.int64)))

    def own(self, rows: Tensor) -> Tensor:
        """Those of this rank's vertices."""
        return self._artifact.own(rows)

    @property
    def _is_whole(self) -> bool:
        return self._artifact.whole is self._artifact

    def _of_all(self, rows: Tensor, place: Callable[[int, int], Any] = slice) -> Tensor:
        """[V, ...] in new order, or where ``place`` says of new ids from a first one up to an end."""
        if self._is_whole:
            return rows
        found, first = rows.new_empty((self._artifact.whole.num_vertices, *rows.shape[1:])), 0
        for part in self._each(self.own(rows)):
            found[place(first, first + len(part))] = part
            first += len(part)
        return found

    def step(self) -> None:
        """Update every row by ``weight.grad``."""
        self.optimizer.step()
        self.weight.grad = None

    def state(self) -> dict[str, Any]:
        """For a snapshot; rows in the original order."""
        return {
            "weight": self.ordered(self.weight.detach()),
            "trained": self.weight.requires_grad,
            "optimizer": self._moved(self.optimizer.state_dict(), len(self.weight), self._of_all),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.set(state["weight"])
        self.weight.requires_grad_(state.get("trained", True))
        length = len(state["weight"])
        self.optimizer.load_state_dict(self._moved(state["optimizer"], length, self._whole_to_here))

    def _whole_to_here(self, rows: Tensor) -> Tensor:
        """[V, ...] in new order, of which this rank's stay."""
        if self._is_whole:
            return rows
        return self.renumbered(VertexRows(self._artifact.whole.original_id, rows).ordered(rows))

    def _moved(self, state: dict[str, Any], length: int, move: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """An optimizer's state, what it has of every row moved from or to all ranks."""
        shape = (length, self.weight.shape[1])
        moved = {
            number: {name: move(x) if isinstance(x, Tensor) and x.shape == shape else x for name, x in entry.items()}
            for number, entry in state["state"].items()
        }
        return state | {"state": moved}

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state."""
        return state_bytes(self.optimizer)


def first_rows(num_vertices: int, width: int, seed: int) -> Iterator[tuple[int, Tensor]]:
    """The rows of ``torch.randn((num_vertices, width))`` in the original order, in blocks, each with the number of its
    first row. Torch draws 16 values at a time, and the last 16 again where the last values are fewer."""
    generator, block = torch.Generator().manual_seed(seed), 16 * max(1, BLOCK // (16 * max(1, width)))
    firsts = [*range(0, max(1, num_vertices - 16), block), num_vertices]
    for first, end in itertools.pairwise(firsts):
        yield first, torch.randn((end - first, width), generator=generator)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the tensors of an optimizer's state."""
    state = optimizer.state_dict()["state"].values()
    return sum(value.nbytes for entry in state for value in entry.values() if isinstance(value, Tensor))
