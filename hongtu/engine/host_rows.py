"""What a run holds on the host: features or embeddings, labels, masks, ids and degree statistics."""

from __future__ import annotations

import numpy as np
import torch

from hongtu.device.pool import Make
from hongtu.engine.host_store import HostStore, in_file
from hongtu.graph.artifact import Artifact
from hongtu.host import drop_pages
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.embedding import VertexRows
from hongtu.model.vertex_loss import MeanLoss
from hongtu.nn.layers.normalized import degree_factors
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
