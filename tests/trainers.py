"""Trainers of two GCN layers on the awkward graph, for tests of what is around the engine."""

from __future__ import annotations

import torch

import hongtu
from hongtu import nn as hnn
from tests import problems
from tests.models import SIX, H

GCN, GAT = SIX[0], SIX[4]


def artifact(m=2, n=3):
    return problems.prepare(problems.awkward(), m, n)


def gcn(dropout=0.0):
    torch.manual_seed(0)
    return [hnn.GCNConv(6, H, activation="relu", input_dropout=dropout), hnn.GCNConv(H, 3)]


def adam_and_step(p):
    return torch.optim.Adam(p, lr=0.05, weight_decay=1e-3)


SCHEDULERS = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o, 0.5, 2), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[2],
    ),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
}


def dropout_trainer(**options):
    torch.manual_seed(0)
    layers = [
        hnn.GATConv(6, H, heads=2, dropout=0.5, activation="elu", input_dropout=0.5),
        hnn.Dropout(0.5),
        hnn.SAGEConv(2 * H, 3),
    ]
    defaults = {"optimizer": adam_and_step, "scheduler": SCHEDULERS["StepLR"], "seed": 4, "dtype": torch.float64}
    return hongtu.Trainer(artifact(), layers, **(defaults | options))


def losses_of(records):
    return [record.loss for record in records]
