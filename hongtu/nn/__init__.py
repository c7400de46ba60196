"""Layers and normalisations, the base classes of others, and a wrapper for torch_geometric convolutions."""

from hongtu.nn.aggr import (
    Aggregation,
    MultiAggregation,
    PowerMeanAggregation,
    SoftmaxAggregation,
    StdAggregation,
    VarAggregation,
)
from hongtu.nn.appnp import APPNP
from hongtu.nn.cg import CGConv
from hongtu.nn.commnet import CommNetConv
from hongtu.nn.dropout import Dropout
from hongtu.nn.gat import GATConv
from hongtu.nn.gatv2 import GATv2Conv
from hongtu.nn.gcn import GCNConv
from hongtu.nn.gcn2 import GCN2Conv
from hongtu.nn.gen import GENConv
from hongtu.nn.ggcn import GGCNConv
from hongtu.nn.gin import GINConv
from hongtu.nn.gine import GINEConv
from hongtu.nn.gmm import GMMConv
from hongtu.nn.graph_conv import GraphConv
from hongtu.nn.jumping import JumpingKnowledge
from hongtu.nn.layer import Layer
from hongtu.nn.nnconv import NNConv
from hongtu.nn.norm import BatchNorm, GraphNorm, LayerNorm, Normalization, PairNorm
from hongtu.nn.pna import PNAConv, degree_histogram
from hongtu.nn.pyg import PyGLayer
from hongtu.nn.rgcn import RGCNConv
from hongtu.nn.sage import SAGEConv
from hongtu.nn.sgc import SGConv
from hongtu.nn.sign import SIGN
from hongtu.nn.transformer import TransformerConv
from hongtu.nn.typed import TypedLinear

__all__ = [
    "APPNP",
    "SIGN",
    "Aggregation",
    "BatchNorm",
    "CGConv",
    "CommNetConv",
    "Dropout",
    "GATConv",
    "GATv2Conv",
    "GCN2Conv",
    "GCNConv",
    "GENConv",
    "GGCNConv",
    "GINConv",
    "GINEConv",
    "GMMConv",
    "GraphConv",
    "GraphNorm",
    "JumpingKnowledge",
    "Layer",
    "LayerNorm",
    "MultiAggregation",
    "NNConv",
    "Normalization",
    "PNAConv",
    "PairNorm",
    "PowerMeanAggregation",
    "PyGLayer",
    "RGCNConv",
    "SAGEConv",
    "SGConv",
    "SoftmaxAggregation",
    "StdAggregation",
    "TransformerConv",
    "TypedLinear",
    "VarAggregation",
    "degree_histogram",
]
