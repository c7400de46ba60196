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
from hongtu.nn.layers.appnp import APPNP
from hongtu.nn.layers.cg import CGConv
from hongtu.nn.layers.commnet import CommNetConv
from hongtu.nn.layers.gat import GATConv
from hongtu.nn.layers.gated_gcn import GatedGCNConv
from hongtu.nn.layers.gatv2 import GATv2Conv
from hongtu.nn.layers.gcn import GCNConv
from hongtu.nn.layers.gcn2 import GCN2Conv
from hongtu.nn.layers.gen import GENConv
from hongtu.nn.layers.ggcn import GGCNConv
from hongtu.nn.layers.gin import GINConv
from hongtu.nn.layers.gine import GINEConv
from hongtu.nn.layers.gmm import GMMConv
from hongtu.nn.layers.graph_conv import GraphConv
from hongtu.nn.layers.jumping import JumpingKnowledge
from hongtu.nn.layers.mesh import MeshBlock
from hongtu.nn.layers.nnconv import NNConv
from hongtu.nn.layers.pna import PNAConv, degree_histogram
from hongtu.nn.layers.powers import ChebConv, MixHopConv, SSGConv, TAGConv
from hongtu.nn.layers.pyg import PyGLayer
from hongtu.nn.layers.recurrent import ARMAConv, GatedGraphConv
from hongtu.nn.layers.rgcn import RGCNConv
from hongtu.nn.layers.sage import SAGEConv
from hongtu.nn.layers.sgc import SGConv
from hongtu.nn.layers.sign import SIGN
from hongtu.nn.layers.transformer import TransformerConv
from hongtu.nn.layers.typed import TypedLinear
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
