"""Sampled mini-batches of an artifact by torch_geometric's interfaces: approximate, beside hongtu's exact training.

Uses: the top; ``graph``, ``ranks`` and ``nn``.
"""

try:
    import torch_geometric  # noqa: F401
except ImportError as error:
    raise ImportError("hongtu.pyg needs torch_geometric: pip install 'hongtu[pyg]'") from error

from hongtu.pyg.loader import NeighborLoader
from hongtu.pyg.stores import NeighborSampler, feature_store, graph_store

__all__ = ["NeighborLoader", "NeighborSampler", "feature_store", "graph_store"]
