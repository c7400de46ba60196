"""Layers: the built-in ones, the base class of others, and a wrapper for torch_geometric convolutions."""

from hongtu.nn.cg import CGConv
from hongtu.nn.commnet import CommNetConv
from hongtu.nn.dropout import Dropout
from hongtu.nn.gat import GATConv
from hongtu.nn.gcn import GCNConv
from hongtu.nn.ggcn import GGCNConv
from hongtu.nn.gin import GINConv
from hongtu.nn.gine import GINEConv
from hongtu.nn.gmm import GMMConv
from hongtu.nn.layer import Layer
from hongtu.nn.nnconv import NNConv
from hongtu.nn.pyg import PyGLayer
from hongtu.nn.rgcn import RGCNConv
from hongtu.nn.sage import SAGEConv

__all__ = [
    "CGConv",
    "CommNetConv",
    "Dropout",
    "GATConv",
    "GCNConv",
    "GGCNConv",
    "GINConv",
    "GINEConv",
    "GMMConv",
    "Layer",
    "NNConv",
    "PyGLayer",
    "RGCNConv",
    "SAGEConv",
]
