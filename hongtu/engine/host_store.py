"""Vertex tensors in host memory, in new vertex order, with exact accounting.

The one place that knows where host rows are; rows are contiguous by partition and by chunk. Vertex rows are pinned,
where there is a GPU to read them; everything else is pageable and goes to devices through their staging.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hongtu.device.memory import as_numpy
from hongtu.device.pool import Make, Pool
from hongtu.graph.artifact import Artifact
from hongtu.graph.sparse_rows import SparseRows
from hongtu.host import available_bytes, drop_pages
from hongtu.kernels.rows import zero_rows
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.embedding import VertexRows
from hongtu.model.vertex_loss import MeanLoss
from hongtu.nn.layers.normalized import degree_factors
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.memory.host import Kept
from hongtu.plan.memory.structure import FLOAT
from hongtu.plan.passes.definition import FEATURES

GATHERED = 16 << 20  # bytes of rows that are copied at a time


class HostStore:
    """Host tensors by name.

    Args:
        num_vertices: V.
        dtype: dtype of vertex rows and gradients.
        pinned: makes memory for vertex rows; None: plain memory, which may as well be somebody else's.

    Attributes:
        sparse: CSR features, or None.
        peak_bytes: highest total so far of vertex rows and staging ("pinned host") and of the rest ("pageable host").
    """

    def __init__(self, num_vertices: int, dtype: torch.dtype, pinned: Make | None = None) -> None:
        self.dtype, self.num_vertices = dtype, num_vertices
        self.sparse: SparseRows | None = None
        self._tensors: dict[str, Tensor] = {}
        self._borrowed: set[str] = set()
        self._kept: dict[str, Kept] = {}
        self._copies = pinned is not None
        self._pool = Pool() if pinned is None else Pool(pinned, room=available_bytes)
        self._pinned = self._pinned_peak = self._pageable = self._staging = 0

    @property
    def peak_bytes(self) -> dict[str, int]:
        return {"pinned host": self._pinned_peak, "pageable host": self._pageable}

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        """Hold vertex rows, or a copy of them in pinned memory; returns what is held."""
        if self._copies:
            return self._keep(name, self._pool.take(tuple(tensor.shape), self.dtype).copy_(tensor))
        self._borrowed.add(name)
        return self._keep(name, tensor.to(self.dtype))

    def torch_dtype(self, name: str) -> torch.dtype:
        """What a plan calls so; "float" stands for the run's."""
        return self.dtype if name == FLOAT else getattr(torch, name)

    def create(
        self, name: str, shape: tuple[int, ...], zero: bool | np.ndarray, kept: Kept | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """Allocate rows, all of a tensor or those kept, of which all, or those numbered (int32), begin as zeros."""
        rows = self._keep(name, self._pool.take(shape, dtype or self.dtype), kept)
        if isinstance(zero, np.ndarray):
            zero_rows(as_numpy(rows), zero if kept is None else kept.places(zero))
        elif zero:
            rows.zero_()

    def gather(
        self, name: str, columns: int, of: Callable[[int, int], np.ndarray], kept: Kept | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """Hold a copy of vertex rows, all or those kept; ``of`` gives those of vertices first to end - 1."""
        every = kept or Kept(np.array([0]), np.array([self.num_vertices]))
        rows, at = self._keep(name, self._pool.take((every.rows, columns), dtype or self.dtype), kept), 0
        step = max(1, GATHERED // (4 * max(columns, 1)))
        for start, end in zip(every.start.tolist(), every.end.tolist(), strict=True):
            for first in range(start, end, step):
                part = in_file(of(first, min(first + step, end)))
                rows[at : at + len(part)].copy_(part)
                at += len(part)

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """Vertex rows of a chunk, which are in memory."""
        kept = self._kept.get(name)
        at = first if kept is None else int(kept.places(np.array([first]))[0]) if first < end else 0
        return self._tensors[name][at : at + end - first]

    def _keep(self, name: str, rows: Tensor, kept: Kept | None = None) -> Tensor:
        assert name not in self._tensors, name
        self._tensors[name] = rows
        if kept is not None:
            self._kept[name] = kept
        self.count_pinned(rows.nbytes)
        return rows

    def count_pinned(self, nbytes: int) -> None:
        """Count pinned memory for the rest of the run."""
        self._pinned += nbytes
        self._pinned_peak = max(self._pinned_peak, self._pinned)

    def staging(self, nbytes: int) -> None:
        """Count the pinned staging memory of a pass, until the next call."""
        self.count_pinned(nbytes - self._staging)
        self._staging = nbytes

    def free(self, name: str) -> None:
        tensor = self._tensors.pop(name)
        self._pinned -= tensor.nbytes
        if name not in self._borrowed:
            self._pool.give(tensor)
        self._borrowed.discard(name)
        self._kept.pop(name, None)

    def drop_spare(self) -> None:
        """Free the memory of vertex rows that was kept for the next ones."""
        self._pool.shrink(0)

    def keep_pageable(self, name: str, tensor: Tensor) -> None:
        """Hold a tensor other than vertex rows for the whole run."""
        assert name not in self._tensors, name
        self._tensors[name] = tensor
        self.count_pageable(tensor.nbytes)

    def keep_sparse(self, rows: SparseRows) -> None:
        """Hold CSR features for the whole run; they go to devices through staging, so nothing of them is pinned."""
        value = in_file(rows.value).to(self.dtype).numpy()
        self.sparse = replace(rows, value=value)
        self.count_pageable(self.sparse.nbytes(self.dtype.itemsize))

    def count_pageable(self, nbytes: int) -> None:
        """Count memory that is held elsewhere for the whole run."""
        self._pageable += nbytes

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    @property
    def addresses(self) -> dict[str, int]:
        """Of all that is here."""
        return {name: tensor.data_ptr() for name, tensor in self._tensors.items()}

    def names(self) -> set[str]:
        return set(self._tensors)

    def reset_peak(self) -> None:
        self._pinned_peak = self._pinned


def in_file(array: np.ndarray) -> Tensor:
    """Rows that stay in their file, and that nobody writes to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))


def make_host(
    artifact: Artifact,
    plan: ExecutionPlan,
    loss: MeanLoss | EdgeLoss | None,
    embedding: VertexRows | None,
    dtype: torch.dtype,
    pinned: Make | None = None,
) -> HostStore:
    """The host's tensors before the first pass; ``pinned`` as for ``HostStore``."""
    host = HostStore(artifact.num_vertices, dtype, pinned)
    beside = (array for buckets in plan.disk.buckets for array in buckets.arrays)
    host.count_pageable(sum(array.nbytes for array in (*plan.arrays(), *beside)) + artifact.held_bytes)
    if embedding is not None:
        embedding.weight.data = host.keep(FEATURES, embedding.weight.data)
    elif artifact.sparse_features is not None:
        host.keep_sparse(artifact.sparse_features)
    elif plan.has_memory(FEATURES):
        kept = plan.kept.get(FEATURES)
        held = host.torch_dtype(plan.host_dtype(FEATURES))
        if kept is None and pinned is None and dtype == held == torch.float32:
            rows = artifact.features
            assert rows is not None
            host.keep(FEATURES, in_file(rows))
        else:
            host.gather(FEATURES, artifact.feature_width, artifact.feature_rows, kept, held)
        if kept is not None and artifact.whole.features is not None:
            drop_pages(artifact.whole.features, cached=True)
    if isinstance(loss, EdgeLoss):
        host.count_pageable(loss.nbytes)
    elif loss is not None and loss.trains:
        host.keep_pageable("labels", torch.from_numpy(loss.label_rows()))
        host.keep_pageable("loss_bits", torch.from_numpy(loss.bits))
    host.keep_pageable("ids", torch.from_numpy(np.array(artifact.original_id)).long())
    for array in (artifact.labels, artifact.original_id, *artifact.masks.values()) if plan.spilled else ():
        drop_pages(array, cached=True)  # of which there is a copy now
    if plan.shape.statistics_columns:
        named, columns = str(dtype).removeprefix("torch."), max(3, plan.shape.statistics_columns)
        statistics = torch.from_numpy(artifact.degree_statistics(named, columns))
        if plan.shape.factors is None:
            host.keep_pageable("statistics", statistics)
        else:
            host.keep_pageable("factors", degree_factors(statistics, *plan.shape.factors))
    if plan.shape.uses_edge_ids:
        host.keep_pageable("edge_id_start", torch.from_numpy(artifact.edge_id_starts()))
    return host
