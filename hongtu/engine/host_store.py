"""Vertex tensors in host memory, in new vertex order, with exact accounting.

The one place that knows where host rows are; rows are contiguous by partition and by chunk. Vertex rows are pinned,
where there is a GPU to read them; everything else is pageable and goes to devices through their staging.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hongtu.device.pool import Make, Pool
from hongtu.graph.sparse_rows import PARTS, positions
from hongtu.host import available_bytes


class HostStore:
    """Host tensors by name.

    Args:
        num_vertices: V.
        dtype: dtype of vertex rows and gradients.
        pinned: makes memory for vertex rows; None: plain memory, which may as well be somebody else's.

    Attributes:
        peak_bytes: highest total so far of vertex rows and staging ("pinned host") and of the rest ("pageable host").
    """

    def __init__(self, num_vertices: int, dtype: torch.dtype, pinned: Make | None = None) -> None:
        self.dtype = dtype
        self.num_vertices = num_vertices
        self._tensors: dict[str, Tensor] = {}
        self._borrowed: set[str] = set()
        self._copies = pinned is not None
        self._pool = Pool() if pinned is None else Pool(pinned, room=available_bytes)
        self._pinned = self._pinned_peak = self._pageable = self._staging = 0

    @property
    def peak_bytes(self) -> dict[str, int]:
        return {"pinned host": self._pinned_peak, "pageable host": self._pageable}

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        """Hold vertex rows, or a copy of them in pinned memory; returns what is held."""
        if self._copies:
            self._hold(name, self._pool.take(tuple(tensor.shape), self.dtype).copy_(tensor))
        else:
            self._hold(name, tensor.to(self.dtype))
            self._borrowed.add(name)
        return self._tensors[name]

    def _hold(self, name: str, tensor: Tensor) -> None:
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
        tensor = self._pool.take((self.num_vertices, columns), self.dtype)
        self._hold(name, tensor.zero_() if zero else tensor)

    def staging(self, nbytes: int) -> None:
        """Count the pinned staging memory of a pass, until the next call."""
        self._pinned += nbytes - self._staging
        self._staging = nbytes
        self._pinned_peak = max(self._pinned_peak, self._pinned)

    def free(self, name: str) -> None:
        tensor = self._tensors.pop(name)
        self._pinned -= tensor.nbytes
        if name in self._borrowed:
            self._borrowed.remove(name)
        else:
            self._pool.give(tensor)

    def free_except(self, names: set[str]) -> None:
        """Free whatever an interrupted pass left."""
        for name in [name for name in self._tensors if name not in names]:
            self.free(name)

    def names(self) -> set[str]:
        return set(self._tensors)

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """A view of rows ``first:end``."""
        return self._tensors[name][first:end]

    def sparse_rows(self, name: str, first: int, end: int, index: np.ndarray | None) -> tuple[Tensor, Tensor, Tensor]:
        """Rows ``first:end`` of a CSR tensor, or those of them at ``index``: int64 [D + 1], columns, values."""
        start, column, value = (self[f"{name} {part}"] for part in PARTS)
        if index is None:
            starts = start[first : end + 1]
            lo, hi = int(starts[0]), int(starts[-1])
            return starts - lo, column[lo:hi], value[lo:hi]
        rows = index.astype(np.int64) + first
        at = torch.from_numpy(positions(start.numpy(), rows))
        count = start[rows + 1] - start[rows]
        return torch.cat([count.new_zeros(1), count.cumsum(0)]), column[at], value[at]

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def reset_peak(self) -> None:
        self._pinned_peak = self._pinned
