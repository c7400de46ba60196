"""Layers and normalisations, the base classes of others, and a wrapper for torch_geometric convolutions."""

from hongtu.nn.commnet import CommNetConv
from hongtu.nn.dropout import Dropout
from hongtu.nn.gat import GATConv
from hongtu.nn.gcn import GCNConv
from hongtu.nn.gcn2 import GCN2Conv
from hongtu.nn.ggcn import GGCNConv
from hongtu.nn.gin import GINConv
from hongtu.nn.jumping import JumpingKnowledge
from hongtu.nn.layer import Layer
from hongtu.nn.norm import BatchNorm, GraphNorm, LayerNorm, Normalization, PairNorm
from hongtu.nn.pyg import PyGLayer
from hongtu.nn.sage import SAGEConv

__all__ = [
    "BatchNorm",
    "CommNetConv",
    "Dropout",
    "GATConv",
    "GCN2Conv",
    "GCNConv",
    "GGCNConv",
    "GINConv",
    "GraphNorm",
    "JumpingKnowledge",
    "Layer",
    "LayerNorm",
    "Normalization",
    "PairNorm",
    "PyGLayer",
    "SAGEConv",
]
