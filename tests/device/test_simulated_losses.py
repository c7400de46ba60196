"""Losses of every kind and propagation through CUDA's engine on the CPU: the numbers and bytes of the CPU's engine."""

from __future__ import annotations

import pytest
import torch

import hongtu
from hongtu.cuda_ext.compile import KernelError
from hongtu.device.simulated import SimulatedBackend
from hongtu.model.loss_terms import LossTerm
from tests import problems, training
from tests.models import DEEP

try:
    SimulatedBackend()
except KernelError as error:
    pytest.skip(str(error), allow_module_level=True)

LOSSES = {
    "links": lambda: hongtu.LinkLoss(negatives=3),
    "terms": lambda: [LossTerm(torch.nn.CrossEntropyLoss(label_smoothing=0.1)), LossTerm("cross_entropy", 0.3, "val")],
}


@pytest.mark.long
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    options = {"loss": LOSSES[name](), "device_memory": "256KiB"}
    trainers = [
        training.make_trainer(DEEP, problems.awkward(), (2, 3), device=device, **options)
        for device in ("cpu", SimulatedBackend(seed=1))
    ]
    found = [training.train(trainer, 2) for trainer in trainers]
    training.assert_same(found[1], found[0], 1e-9)
    record = trainers[1].train_epoch()
    assert (record.bytes, record.arena_bytes) == (trainers[1].plan.bytes, trainers[1].plan.arena_bytes)


def test_propagation():
    problem, found = problems.awkward(), []
    labels, mask = torch.from_numpy(problem.labels), torch.from_numpy(problem.masks["train"])
    for device in ("cpu", SimulatedBackend(seed=2)):
        options = {"device": device, "device_memory": "128KiB", "dtype": torch.float64}
        propagation = hongtu.Propagation(problems.prepare(problem, 2, 3), 3, **options)
        found.append(hongtu.LabelPropagation(5, 0.8)(propagation, labels, mask))
        assert propagation.record.bytes == propagation.plan.bytes
        assert propagation.record.arena_bytes == propagation.plan.arena_bytes
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
