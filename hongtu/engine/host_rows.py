"""What a run holds on the host: features or embeddings, labels, masks, ids and degree statistics."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from hongtu.device.pool import Make
from hongtu.engine.host_store import HostStore
from hongtu.graph.artifact import Artifact
from hongtu.graph.degrees import degree_statistics, edge_id_starts
from hongtu.graph.sparse_rows import SparseRows
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.embedding import VertexRows
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES


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
    host.count_pageable(sum(array.nbytes for array in plan.arrays()))
    if embedding is not None:
        embedding.weight.data = host.keep(FEATURES, embedding.weight.data)
    elif artifact.sparse_features is not None:
        keep_sparse(host, artifact.sparse_features)
    else:
        assert artifact.features is not None
        host.keep(FEATURES, _in_file(artifact.features))
    if isinstance(loss, EdgeLoss):
        host.count_pageable(loss.nbytes)
    elif loss is not None:
        host.keep_pageable("labels", torch.from_numpy(loss.label_rows()))
        host.keep_pageable("loss_bits", torch.from_numpy(loss.bits))
    host.keep_pageable("ids", torch.from_numpy(np.array(artifact.original_id)).long())
    if any(layer.uses_statistics for layer in plan.shape.layers):
        statistics = degree_statistics(artifact.topology)
        host.keep_pageable("statistics", torch.from_numpy(statistics).to(dtype))
    if plan.shape.uses_edge_ids:
        starts = edge_id_starts(artifact.topology.in_edge_start, artifact.original_id)
        host.keep_pageable("edge_id_start", torch.from_numpy(starts))
    return host


def keep_sparse(host: HostStore, rows: SparseRows) -> None:
    """Hold CSR features for the whole run; they go to devices through staging, so nothing of them is pinned."""
    host.keep_pageable(f"{FEATURES} start", _in_file(rows.start))
    host.keep_pageable(f"{FEATURES} column", _in_file(rows.column))
    host.keep_pageable(f"{FEATURES} value", _in_file(rows.value).to(host.dtype))


def _in_file(array: np.ndarray) -> torch.Tensor:
    """Features stay in their file, and nobody writes to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))
