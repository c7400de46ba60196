"""What newcomers do wrong, and the one line that tells them: what was found, what was expected, what to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import BudgetError, InputError
from tests import problems

V, F, C = 64, 6, 3


def preprocess(**changed):
    """The awkward graph in memory, with some arguments changed; None leaves one out."""
    given = problems.awkward()
    arguments = {
        "edges": given.edges, "num_vertices": V, "artifact": problems.new_path(), "features": given.features,
        "labels": given.labels, "masks": given.masks, "partitions": 2, "chunks": 3,
    } | changed  # fmt: skip
    hongtu.preprocess_graph(**{name: value for name, value in arguments.items() if value is not None})


def make(layers=None, **options):
    layers = [hnn.GCNConv(F, 8), hnn.GCNConv(8, C)] if layers is None else layers
    return hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers, **options)


def make_of_two(layers, **options):
    problem = replace(problems.awkward(), labels=problems.awkward().labels % 2)
    return hongtu.Trainer(problems.prepare(problem, 2, 3), layers, **options)


def links(**options):
    return make(loss=hongtu.LinkLoss(**options))


def nan_features():
    features = problems.awkward().features.copy()
    features[7, 2] = np.nan
    return features


class Casts(nn.Linear):
    def forward(self, h):
        return super().forward(h.double())


class Asserts(nn.Identity):
    def forward(self, h):
        raise AssertionError


class Skips(hnn.Layer):
    """Forgets that transform returns a pair."""

    reduce = "sum"

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(F, C)

    def transform(self, h):
        return self.lin(h)


LABELS = problems.awkward().labels
MASKS = problems.awkward().masks

WRONG = {
    # the graph
    "edges as rows of pairs": (
        lambda: preprocess(edges=problems.awkward().edges.T.copy()),
        "expected int32 or int64 [2, E]",
        "transpose",
    ),
    "ids that start at 1": (
        lambda: preprocess(edges=problems.awkward().edges + 12),
        "expected 0 to 63",
        "remove the edge or add the vertex",
    ),
    "too few rows of features": (
        lambda: preprocess(features=np.ones((60, F), np.float32)),
        "features: float32 of shape (60, 6), expected float32 [64, F]",
        "",
    ),
    "features of complex numbers": (
        lambda: preprocess(features=np.ones((V, F), complex)),
        "features: complex128",
        "astype(numpy.float32)",
    ),
    "labels as strings": (
        lambda: preprocess(labels=np.array(["cat", "dog", "owl"])[LABELS]),
        "labels: <U3 of shape (64,), expected integers [64]",
        "numpy.unique(labels, return_inverse=True)[1]",
    ),
    "labels as objects": (
        lambda: preprocess(labels=np.array(["cat", "dog", "owl"], dtype=object)[LABELS]),
        "labels: object",
        "numpy.unique(labels, return_inverse=True)[1]",
    ),
    "a vertex of a mask that is not there": (
        lambda: preprocess(masks={"train": [3, 64]}),
        "masks['train']: [1] is 64, expected distinct vertex numbers from 0 to 63, or bool [64]",
        "random_split=",
    ),
    "a vertex from the end": (lambda: preprocess(masks={"train": [3, -1]}), "[1] is -1, expected", "from 0 to 63"),
    "a vertex that a mask has twice": (
        lambda: preprocess(masks={"train": [3, 5, 3]}),
        "masks['train']: vertex 3 is there 2 times",
        "expected distinct",
    ),
    "vertices of a mask in floating point": (
        lambda: preprocess(masks={"train": np.array([3.0, 5.0])}),
        "masks['train']: float64 of shape (2,)",
        "save it as numpy.int64",
    ),
    "NaN in features": (lambda: preprocess(features=nan_features()), "features: [7, 2] is nan", "nan_to_num"),
    "labels with halves": (
        lambda: preprocess(labels=LABELS.astype(np.float32) + 0.5),
        "labels: float32 of shape (64,)",
        "integers",
    ),
    "labels as one-hot integers": (
        lambda: preprocess(labels=np.eye(C, dtype=int)[LABELS]),
        "labels: int64 of shape (64, 3), expected integers [64], or float32 [64, C] for multi-label",
        "pass labels.argmax(1)",
    ),
    "counts whose rows add up to one": (
        lambda: preprocess(labels=np.tile([0, 2, -1], (V, 1))),
        "labels: [0, 1] is 2.0, expected a number from 0 to 1",
        "task='regression'",
    ),
    "a dense adjacency matrix": (
        lambda: preprocess(edges=np.eye(V)),
        "edges: float64 of shape (64, 64), expected int32 or int64 [2, E]",
        "pass scipy.sparse.csr_matrix(matrix)",
    ),
    "a dense adjacency matrix as data": (
        lambda: preprocess(edges=None, num_vertices=None, data=np.eye(V)),
        "no edge_index",
        "pass scipy.sparse.csr_matrix(matrix)",
    ),
    "a sparse matrix of blocks": (
        lambda: preprocess(edges=torch.eye(V).to_sparse_bsr((2, 2)), num_vertices=None),
        "it holds blocks",
        "to_dense().to_sparse()",
    ),
    "masked features": (
        lambda: preprocess(features=np.ma.masked_invalid(nan_features())),
        "features: not convertible",
        "array.filled(0)",
    ),
    "masked labels of a Data": (
        lambda: preprocess(
            edges=None,
            num_vertices=None,
            labels=None,
            masks=None,
            data={"edge_index": problems.awkward().edges, "y": np.ma.masked_equal(LABELS, 0)},
        ),
        "data.y: not convertible",
        "array.filled(0)",
    ),
    "masks, and a split that is drawn": (
        lambda: preprocess(random_split=(0.5, 0.5, 0)),
        "masks, and a random_split that would replace them",
        "leave one out",
    ),
    "masks whose splits are columns": (
        lambda: preprocess(masks={"train": np.stack([MASKS["train"]] * 2, axis=1)}),
        "masks['train']: bool of shape (64, 2), expected bool [64] or [S, 64]",
        "save its .T, and say which split by split=0",
    ),
    "forgotten labels": (lambda: preprocess(labels=None), "labels: missing", "pass labels='random:C'"),
    "masks of a graph to predict on": (
        lambda: preprocess(labels=None),
        "labels: missing",
        "leave masks and random_split out for a graph to predict on",
    ),
    "labels of fewer vertices": (
        lambda: preprocess(labels=LABELS[:60]),
        "labels: int64 of shape (60,), expected integers [64]",
        "give one for each vertex, -1 (of several columns nan) where there is none",
    ),
    "a class below none": (
        lambda: preprocess(labels=np.where(LABELS == 0, -9, LABELS)),
        "is -9, expected -1 (none) or a class from 0",
        "put -1 where there is none",
    ),
    "masks of zeros and ones as floats": (
        lambda: preprocess(masks={"train": MASKS["train"].astype(np.float32)}),
        "masks['train']: float32 of shape (64,), expected bool [64]",
        "numpy.bool_",
    ),
    "masks that overlap": (
        lambda: preprocess(masks={"train": MASKS["train"], "val": MASKS["train"]}),
        "overlapping masks",
        "take them out of one",
    ),
    "training on unlabelled vertices": (
        lambda: preprocess(labels=np.where(MASKS["train"], -1, 0)),
        "whose label is -1",
        "clear the mask",
    ),
    "more chunks than vertices": (lambda: preprocess(chunks=100), "more chunks than vertices (64)", "chunks='auto'"),
    "a split that is not there": (
        lambda: preprocess(masks={"train": np.stack([MASKS["train"]] * 2)}, split=2),
        "2 splits, but split is 2; ",
        "pass a smaller one",
    ),
    # the run
    "the input instead of the artifact": (
        lambda: hongtu.Trainer("graph", [hnn.GCNConv(F, C)]),
        "graph: not an artifact",
        "hongtu preprocess",
    ),
    "a graph instead of the artifact": (
        lambda: hongtu.Trainer(problems.awkward(), [hnn.GCNConv(F, C)]),
        "expected a directory",
        "hongtu.preprocess_graph",
    ),
    "a logger that is no list": (
        lambda: make().fit(1, callbacks=hongtu.callbacks.Callback()),
        "one Callback, expected a list",
        "pass [it]",
    ),
    "a mask instead of numbers": (
        lambda: make().predict(MASKS["train"]),
        "vertices: a mask",
        "pass mask.nonzero()[:, 0], or numpy",
    ),
    "edge features of another width": (
        lambda: hongtu.Trainer(problems.prepare(problems.edge_data(), 1, 1), [hnn.GATConv(6, 3, edge_dim=9)]),
        f"those of edges {problems.EDGE_COLUMNS}): mat1 and mat2",
        "must be that of the output before it",
    ),
    "a GPU of torch's where none is": (lambda: make(device=torch.device("cuda")), "no CUDA GPU", "hongtu doctor"),
    "CUDA where none is": (lambda: make(device="cuda"), "no CUDA GPU", "hongtu doctor"),
    "a device by its number": (lambda: make(device=0), "device 0", "cuda:K"),
    "a device that is none": (lambda: make(device="gpu"), "device 'gpu'", "cuda"),
    "a budget of one byte and a half": (
        lambda: make(device_memory=1.5),
        "device_memory 1.5",
        "a number alone is bytes",
    ),
    "a budget of two bytes in floating point": (lambda: make(device_memory=2.0), "device_memory 2.0", "such as 512MiB"),
    "a budget as a share of 1": (lambda: make(device_memory=0.5), "device_memory 0.5", "'50%' half of what the run"),
    "half a byte in text": (lambda: make(device_memory="1.5"), "device_memory '1.5'", "a number alone is bytes"),
    "a metric that is none": (lambda: make(metric=["auc", "acc"]), "metric['acc'] is 'acc'", "a list of these names"),
    "metrics of nothing": (lambda: make(metric=[]), "metric: none", "leave it out"),
    "a budget in words": (lambda: make(device_memory="2 gigs"), "2 gigs", "GiB"),
    "a budget that is too small": (lambda: make(device_memory=2000), "the smallest that works is", "give more memory"),
    "an optimizer instead of a function": (
        lambda: make(optimizer=torch.optim.Adam([nn.Parameter(torch.zeros(1))])),
        "optimizer",
        "lambda p: torch.optim.Adam(p",
    ),
    "a loss that is a mean": (
        lambda: make(loss=lambda out, target: nn.functional.cross_entropy(out, target)),
        "expected one loss per vertex",
        "pass torch's loss itself",
    ),
    "a loss that does not fit the labels": (
        lambda: make(loss="bce_with_logits"),
        "does not fit the labels",
        "cross_entropy",
    ),
    "no epochs": (lambda: make().fit(0), "epochs is 0", "a whole number of at least 1"),
    "no patience": (lambda: make().fit(2, eval_every=1, patience=0), "patience is 0", "a whole number of at least 1"),
    "no snapshots": (lambda: make().fit(2, run_dir="run", keep=0), "keep is 0", "a whole number of at least 1"),
    "a loss of numbers for classes": (
        lambda: make(loss="mse"),
        "loss 'mse': does not fit the labels (one class per vertex)",
        "to predict numbers preprocess with task='regression'",
    ),
    "edge features that are not there": (
        lambda: make([hnn.GATConv(F, C, edge_dim=2)]),
        "layers[0] (GATConv): reads edge_features, float32 [E, F], which",
        "edge_features=... of preprocess_graph, edge_attr of the Data, or edge_features.npy in the input",
    ),
    "edge types that are not there": (
        lambda: make([hnn.RGCNConv(F, C, 2)]),
        "layers[0] (RGCNConv): reads edge_type, integers [E], which",
        "edge_type=... of preprocess_graph, edge_type of the Data, or edge_type.npy in the input",
    ),
    "epochs as text": (lambda: make().fit("10"), "epochs is '10'", "a whole number"),
    "an optimizer's name": (lambda: make(optimizer="adam"), "optimizer is 'adam'", "expected a function"),
    "a loss of nothing": (lambda: make(loss=lambda out, target: None), "returned None", "per vertex"),
    "a loss with parameters": (
        lambda: make(loss=nn.Sequential(nn.Linear(C, C))),
        "loss Sequential: has parameters, which nothing would train",
        "requires_grad_(False)",
    ),
    "an optimizer for GPUs": (
        lambda: make(optimizer=lambda p: torch.optim.Adam(p, capturable=True)),
        "optimizer Adam: If capturable=True",
        "use torch.optim.Adam",
    ),
    "a directory of another run": (
        lambda: [make().fit(2, run_dir=directory) for directory in [problems.new_path()] * 2],
        "epochs.jsonl: has an epoch 2, later than this run's 0",
        "choose another directory",
    ),
    "a detached loss": (
        lambda: make(loss=lambda out, target: out.sum(1).detach()).train_epoch(),
        "does not depend on the output",
        "leave out detach()",
    ),
    "a misspelt argument": (
        lambda: make(device_memroy="1GiB"),
        "Trainer: no argument is named 'device_memroy'",
        "device_memory?",
    ),
    "a misspelt argument of a layer": (
        lambda: hnn.GCNConv(F, C, activaton="relu"),
        "GCNConv: no argument is named 'activaton'",
        "did you mean activation?",
    ),
    "a misspelt argument of a layer's own": (
        lambda: hnn.GATConv(F, C, head=4),
        "GATConv: no argument is named 'head'",
        "did you mean heads?",
    ),
    "a misspelt argument of fit": (lambda: make().fit(epoch=3), "Trainer.fit: no argument is named 'epoch'", "epochs?"),
    "a misspelt argument of predict": (lambda: make().predict(vertice=[1]), "'vertice'", "did you mean vertices?"),
    "a misspelt argument of plan_model": (
        lambda: hongtu.plan_model(None, [], device_memroy=1),
        "plan_model: no argument is named 'device_memroy'",
        "did you mean device_memory?",
    ),
    "a misspelt argument of open_artifact": (
        lambda: hongtu.open_artifact("a", verfy=True),
        "open_artifact: no argument is named 'verfy'",
        "did you mean verify?",
    ),
    "a misspelt argument of preprocess_graph": (lambda: preprocess(mask=MASKS), "'mask'", "did you mean masks?"),
    "one vertex": (lambda: make().predict(3), "vertices is 3", "pass [it]"),
    "one vertex of a tensor": (lambda: make().predict(torch.tensor(3)), "vertices is tensor(3)", "pass [it]"),
    "a number of ranks": (lambda: make(ranks=2), "ranks is 2: expected hongtu.Ranks(group)", "torchrun"),
    "callbacks that are none": (lambda: make().fit(1, callbacks=3), "callbacks: one int, expected a list", "pass [it]"),
    "a class of callbacks": (
        lambda: make().fit(1, callbacks=[hongtu.callbacks.CSVLogger]),
        "callbacks: the class CSVLogger",
        "an object",
    ),
    "a run directory that is none": (lambda: make().fit(1, run_dir=3), "run_dir is 3", "expected a directory"),
    "what is called after an epoch": (lambda: make().fit(1, on_epoch=3), "on_epoch is 3", "a function"),
    "a metric of outputs alone": (
        lambda: make(metric=lambda out: 1.0),
        "metric is <function",
        "(out, target) -> number",
    ),
    "a learning rate below 0": (
        lambda: make(optimizer=lambda p: torch.optim.Adam(p, lr=-1)),
        "optimizer: Invalid learning rate: -1",
        "lambda p: torch.optim.Adam(p, lr=0.01)",
    ),
    "an optimizer of sparse gradients": (
        lambda: make(optimizer=torch.optim.SparseAdam),
        "optimizer SparseAdam: SparseAdam does not support dense gradients",
        "use torch.optim.Adam",
    ),
    "a link loss by name": (
        lambda: hongtu.LinkLoss(loss="bce"),
        "loss is 'bce', expected a function of scores [B]",
        "leave it out for binary cross-entropy",
    ),
    "a decoder by name": (
        lambda: hongtu.LinkLoss(decoder="dot"),
        "decoder is 'dot', expected a function of rows [B, C]",
        "leave it out for inner products",
    ),
    "a decoder of one end": (
        lambda: links(decoder=nn.Linear(C, 1)),
        "LinkLoss: its decoder or loss: Linear.forward() takes 2 positional arguments but 3 were given",
        "a decoder takes rows [B, C] of both ends",
    ),
    "a link loss of equal shapes": (
        lambda: links(loss=nn.functional.binary_cross_entropy_with_logits),
        "LinkLoss: its decoder or loss: Target size",
        "a loss scores [B] and [B, K]",
    ),
    "a decoder that is not made": (lambda: hongtu.LinkLoss(decoder=nn.Bilinear), "decoder is <class", "a function"),
    "a misspelt argument of LinkLoss": (
        lambda: hongtu.LinkLoss(negative=2),
        "LinkLoss: no argument is named 'negative'",
        "did you mean negatives?",
    ),
    "a block in words": (lambda: hongtu.LinkLoss(block="x"), "block is 'x', expected a whole number", "leave it out"),
    "masked edges of a loss": (
        lambda: links(edges=np.ma.masked_equal([[1, 2], [3, 4]], 2)),
        "LinkLoss: train edges: not convertible",
        "array.filled(0)",
    ),
    "masked negatives of a loss": (
        lambda: links(edges=[[1, 2], [3, 4]], negatives=np.ma.masked_equal([[1], [2]], 2)),
        "LinkLoss: negatives of train edges: not convertible",
        "array.filled(0)",
    ),
    "a masked mask of a loss": (
        lambda: make(loss=hongtu.LossTerm("cross_entropy", mask=np.ma.array(MASKS["train"], mask=~MASKS["train"]))),
        "loss: mask: not convertible",
        "array.filled(0)",
    ),
    "masked weights of vertices": (
        lambda: make(loss=hongtu.LossTerm("cross_entropy", vertex_weight=np.ma.masked_equal(np.arange(V), 3))),
        "loss: vertex_weight: not convertible",
        "array.filled(0)",
    ),
    "a weight in words": (lambda: hongtu.LossTerm("mse", weight="2"), "weight is '2', expected a finite", "pass one"),
    "a weight that is none": (lambda: hongtu.LossTerm("mse", weight=float("nan")), "weight is nan", "pass one"),
    "a file that is none": (lambda: make().save(3), "save: path is 3, expected a file", "pass its path"),
    "a snapshot that is none": (lambda: make().load(3), "load: path is 3, expected a file", "pass its path"),
    "weights of no file": (lambda: make().load_weights(3), "load_weights: path is 3", "pass its path"),
    "a run of no directory": (lambda: make().resume(3), "run_dir is 3, expected a directory", "pass its path"),
    "rows for no file": (lambda: make().predict(out=3), "out is 3, expected a .npy file", "pass its path"),
    "a state dict as weights": (
        lambda: make().set_weights(make().model.state_dict()),
        "set_weights: expected what trainer.weights() gave",
        "trainer.model.load_state_dict",
    ),
    "columns as text": (
        lambda: hongtu.Propagation(problems.prepare(problems.awkward(), 2, 3), columns="3"),
        "columns '3'",
        "a whole number of at least 1",
    ),
    "a misspelt argument of a norm": (
        lambda: hnn.BatchNorm(8, epss=1),
        "BatchNorm: no argument is named 'epss'",
        "did you mean eps?",
    ),
    "a misspelt argument of jumping knowledge": (
        lambda: hnn.JumpingKnowledge(mod="cat"),
        "JumpingKnowledge: no argument is named 'mod'",
        "did you mean mode?",
    ),
    # the layers
    "columns of a layer in words": (
        lambda: hnn.GCNConv("5", 3),
        "GCNConv: in_channels is '5', expected a whole number of at least 1",
        "-1 where it is not known",
    ),
    "columns of both ends": (lambda: hnn.SAGEConv((5, 5), 3), "in_channels is (5, 5)", "one number of columns"),
    "no columns": (lambda: hnn.GATConv(5, out_channels=0), "GATConv: out_channels is 0, expected a", "pass a number"),
    "heads in words": (lambda: hnn.GATConv(5, 3, heads="2"), "GATConv: heads is '2', expected a", "pass a number"),
    "no layers": (lambda: hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), None), "layers is None", "a list"),
    "one layer instead of a list": (lambda: make(hnn.GCNConv(F, C)), "layers", "a list"),
    "a function among the layers": (
        lambda: make([hnn.GCNConv(F, 8), torch.relu, hnn.GCNConv(8, C)]),
        "layers[1] is",
        "torch.nn.ReLU()",
    ),
    "a torch_geometric model": (lambda: make([pyg.GCN(F, 8, 2, C)]), "layers[0] (GCN)", "hongtu.from_pyg(model)"),
    "a torch_geometric convolution": (
        lambda: make([pyg.SAGEConv(F, C)]),
        "layers[0] (SAGEConv)",
        "hongtu.nn.PyGLayer(conv)",
    ),
    "no convolution": (lambda: hnn.PyGLayer(3), "PyGLayer(3)", "PyGLayer(SAGEConv(16, 32))"),
    "a layer by name": (lambda: make().embed("1"), "embed: layer '1'", "expected 0 to 1"),
    "a convolution that needs self-loops and degrees": (
        lambda: make([hnn.PyGLayer(pyg.GCNConv(F, C))]),
        "GCNConv",
        "use hongtu.nn.GCNConv",
    ),
    "a square convolution of another width": (
        lambda: make([hnn.PyGLayer(pyg.EdgeConv(nn.Linear(16, C)), square=True)]),
        "layers[0] (PyGLayer of EdgeConv) failed on a small graph (the features have 6 columns)",
        "its input width must be that of the output before it",
    ),
    "a convolution that needs positions": (
        lambda: hnn.PyGLayer(pyg.PointNetConv(nn.Linear(F + 3, C))),
        "its forward needs x, pos, edge_index",
        "write it as a hongtu.nn.Layer",
    ),
    "widths that do not chain": (
        lambda: make([hnn.GCNConv(F, 8), hnn.GCNConv(9, C)]),
        "layers[1] (GCNConv)",
        "given rows of 8 columns",
    ),
    "another number of features": (lambda: make([hnn.GCNConv(7, C)]), "layers[0] (GCNConv)", "the features have 6"),
    "fewer outputs than classes": (
        lambda: make([hnn.GCNConv(F, 2)]),
        "the last layer has 2 columns, the labels have 3 classes",
        "",
    ),
    "only row-wise modules": (lambda: make([nn.Linear(F, C)]), "no graph layer", "hongtu.nn.GCNConv"),
    "a module of three dimensions": (
        lambda: make([hnn.GCNConv(F, C), nn.LocalResponseNorm(2)]),
        "layers[1] (LocalResponseNorm) failed on a small graph",
        "Expected 3D or higher",
    ),
    "rows that are cast": (
        lambda: make([hnn.GCNConv(F, C), Casts(C, C)]),
        "must have the same dtype",
        "leave out what casts rows, as x.float() and h.double()",
    ),
    "what asserts without a word": (lambda: make([hnn.GCNConv(F, C), Asserts()]), "AssertionError; it must take", ""),
    "statistics over rows": (
        lambda: make([hnn.GCNConv(F, C), nn.InstanceNorm1d(C, track_running_stats=True)]),
        "layers[1] (InstanceNorm1d)",
        "LayerNorm",
    ),
    "probabilities of what is none": (
        lambda: make_of_two([hnn.GCNConv(F, 1)], loss=nn.BCELoss()),
        "loss BCELoss: takes numbers from 0 to 1",
        "BCEWithLogitsLoss",
    ),
    "a module that gives cubes": (
        lambda: make([hnn.GCNConv(F, 8), nn.Unflatten(1, (2, 4)), hnn.GCNConv(8, C)]),
        "gives torch.float32 (2, 2, 4)",
        "reshape inside a module",
    ),
    "an aggregation by the longest list": (
        lambda: make([hnn.PyGLayer(pyg.SAGEConv(F, C, aggr="lstm"))]),
        "layers[0] (PyGLayer of SAGEConv).aggregate mixes",
        "aggr='lstm'",
    ),
    "a loss that is not made": (
        lambda: make(loss=nn.CrossEntropyLoss),
        "loss is the class CrossEntropyLoss",
        "pass CrossEntropyLoss()",
    ),
    "a scheduler by name": (lambda: make(scheduler="StepLR"), "scheduler is 'StepLR'", "lr_scheduler.StepLR(o, 10)"),
    "a norm below 0": (lambda: make(clip_grad_norm=-1), "clip_grad_norm is -1", "a number above 0"),
    "a scheduler without its numbers": (
        lambda: make(scheduler=torch.optim.lr_scheduler.StepLR),
        "scheduler: StepLR.__init__() missing 1 required",
        "lr_scheduler.StepLR(o, 10)",
    ),
    "no norm": (lambda: make(clip_grad_norm=float("nan")), "clip_grad_norm is nan", "a number above 0"),
    "an unknown machine": (lambda: make(hardware="a100"), "hardware 'a100': not found", "a100x4"),
    "no scheduler": (lambda: make(scheduler=lambda o: None), "scheduler gave None", "lr_scheduler.StepLR(o, 10)"),
    "a switch in words": (lambda: make(deterministic="no"), "deterministic is 'no'", "expected True or False"),
    "a seed in words": (lambda: make(seed="a"), "seed is 'a'", "a whole number"),
    "a file without a name": (lambda: make().save(""), "save: path is ''", "pass its path"),
    "a log that is no file": (lambda: hongtu.callbacks.CSVLogger(3), "CSVLogger: path is 3", "pass its path"),
    "no optimizer": (lambda: make(optimizer=lambda p: None), "optimizer gave None", "torch.optim.Adam(p, lr=0.01)"),
    "an optimizer of another model": (
        lambda: make(optimizer=lambda p: torch.optim.Adam(pyg.GCN(F, 8, 2, C).parameters())),
        "none of the parameters that it is given",
        "torch.optim.Adam(p, lr=0.01)",
    ),
    "a layer of one's own without the pair": (lambda: make([Skips()]), "transform must return the pair (z, s)", ""),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_clear_message(case):
    use, found, remedy = WRONG[case]
    with pytest.raises((InputError, BudgetError, ValueError, TypeError)) as caught:
        use()
    message = str(caught.value)
    print(f"{case}: {message}")
    assert found in message and remedy in message, message
    assert "\n" not in message and len(message) < 400, message


def test_there_are_at_least_twenty():
    assert len(WRONG) >= 20
