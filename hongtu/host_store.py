"""Vertex tensors in host memory, in new vertex order, with exact accounting.

The one place that knows where host rows are; rows are contiguous by partition and by chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor


class HostStore:
    """Host tensors by name.

    Args:
        num_vertices: V.
        dtype: dtype of vertex rows and gradients.

    Attributes:
        live: bytes of all tensors; ``peak`` is the highest so far.
    """

    def __init__(self, num_vertices: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.num_vertices = num_vertices
        self._tensors: dict[str, Tensor] = {}
        self.live = self.peak = 0

    def keep(self, name: str, tensor: Tensor) -> None:
        """Hold a tensor for the whole run."""
        assert name not in self._tensors, name
        self._tensors[name] = tensor
        self._grow(tensor.nbytes)

    def create(self, name: str, columns: int, *, zero: bool) -> None:
        """Allocate vertex rows [V, columns]."""
        make = torch.zeros if zero else torch.empty
        self.keep(name, make((self.num_vertices, columns), dtype=self.dtype))

    def free(self, name: str) -> None:
        self.live -= self._tensors.pop(name).nbytes

    def free_except(self, names: set[str]) -> None:
        """Free whatever an interrupted pass left."""
        for name in [name for name in self._tensors if name not in names]:
            self.free(name)

    def names(self) -> set[str]:
        return set(self._tensors)

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """A view of rows ``first:end``."""
        return self._tensors[name][first:end]

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def reset_peak(self) -> None:
        self.peak = self.live

    def _grow(self, nbytes: int) -> None:
        self.live += nbytes
        self.peak = max(self.peak, self.live)
