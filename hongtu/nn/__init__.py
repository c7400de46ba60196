"""Layers: transform a vertex's row, aggregate over its in-edges, update the result.

Uses: the top; ``graph`` and ``kernels``.
"""

from hongtu.nn.aggr import (
    Aggregation,
    MultiAggregation,
    PowerMeanAggregation,
    SoftmaxAggregation,
    StdAggregation,
    VarAggregation,
)
from hongtu.nn.dropout import Dropout, EdgeDropout
from hongtu.nn.layer import Layer
from hongtu.nn.layers.attention import TransformerConv
from hongtu.nn.layers.edge_data import CGConv, GMMConv, NNConv, RGCNConv
from hongtu.nn.layers.gat import GATConv, GATv2Conv
from hongtu.nn.layers.gated import GatedGCNConv, GGCNConv, MeshBlock
from hongtu.nn.layers.gin import GENConv, GINConv, GINEConv
from hongtu.nn.layers.hops import APPNP, SIGN
from hongtu.nn.layers.normalized import GCN2Conv, GCNConv
from hongtu.nn.layers.pna import PNAConv, degree_histogram
from hongtu.nn.layers.powers import ChebConv, MixHopConv, SSGConv, TAGConv
from hongtu.nn.layers.pyg import PyGLayer
from hongtu.nn.layers.recurrent import ARMAConv, GatedGraphConv
from hongtu.nn.layers.rowwise import JumpingKnowledge, TypedLinear
from hongtu.nn.layers.sgc import SGConv
from hongtu.nn.layers.two_maps import CommNetConv, GraphConv, SAGEConv
from hongtu.nn.norm import BatchNorm, GraphNorm, LayerNorm, Normalization, PairNorm

__all__ = [
    "APPNP",
    "SIGN",
    "ARMAConv",
    "Aggregation",
    "BatchNorm",
    "CGConv",
    "ChebConv",
    "CommNetConv",
    "Dropout",
    "EdgeDropout",
    "GATConv",
    "GATv2Conv",
    "GCN2Conv",
    "GCNConv",
    "GENConv",
    "GGCNConv",
    "GINConv",
    "GINEConv",
    "GMMConv",
    "GatedGCNConv",
    "GatedGraphConv",
    "GraphConv",
    "GraphNorm",
    "JumpingKnowledge",
    "Layer",
    "LayerNorm",
    "MeshBlock",
    "MixHopConv",
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
    "SSGConv",
    "SoftmaxAggregation",
    "StdAggregation",
    "TAGConv",
    "TransformerConv",
    "TypedLinear",
    "VarAggregation",
    "degree_histogram",
]
