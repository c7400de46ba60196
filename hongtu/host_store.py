"""Vertex tensors in host memory, in new vertex order, with exact accounting.

The one place that knows where host rows are; rows are contiguous by partition and by chunk. Vertex rows are pinned,
where there is a GPU to read them; everything else is pageable and goes to devices through their staging.
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
        peak_bytes: highest total so far of vertex rows ("pinned host") and of the rest ("pageable host").
    """

    def __init__(self, num_vertices: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.num_vertices = num_vertices
        self._tensors: dict[str, Tensor] = {}
        self._pinned = self._pinned_peak = self._pageable = self._staging = 0

    @property
    def peak_bytes(self) -> dict[str, int]:
        return {"pinned host": self._pinned_peak, "pageable host": self._pageable}

    def keep(self, name: str, tensor: Tensor) -> None:
        """Hold vertex rows."""
        assert name not in self._tensors, name
        self._tensors[name] = tensor
        self._pinned += tensor.nbytes
        self._pinned_peak = max(self._pinned_peak, self._pinned)

    def keep_pageable(self, name: str, tensor: Tensor) -> None:
        """Hold a tensor other than vertex rows for the whole run."""
        assert name not in self._tensors, name
        self._tensors[name] = tensor
        self.count_pageable(tensor.nbytes)

    def count_pageable(self, nbytes: int) -> None:
        """Count memory that is held elsewhere for the whole run."""
        self._pageable += nbytes

    def create(self, name: str, columns: int, *, zero: bool) -> None:
        """Allocate vertex rows [V, columns]."""
        make = torch.zeros if zero else torch.empty
        self.keep(name, make((self.num_vertices, columns), dtype=self.dtype))

    def staging(self, nbytes: int) -> None:
        """Count the pinned staging memory of a pass, until the next call."""
        self._pinned += nbytes - self._staging
        self._staging = nbytes
        self._pinned_peak = max(self._pinned_peak, self._pinned)

    def free(self, name: str) -> None:
        self.take(name)

    def take(self, name: str) -> Tensor:
        """Give a tensor away."""
        self._pinned -= self._tensors[name].nbytes
        return self._tensors.pop(name)

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
        self._pinned_peak = self._pinned
