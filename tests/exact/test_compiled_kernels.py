"""Small graphs run plain kernels, so that other tests meet those; here compiled ones train the same graphs."""

from __future__ import annotations

import pytest

from hongtu.kernels import dispatch
from tests import problems, training
from tests.models import SIX


@pytest.mark.long(sample=2)
@pytest.mark.parametrize("strategy", ["full", "none"])
@pytest.mark.parametrize("model", SIX, ids=lambda model: model.name)
def test_compiled_kernels_train_as_torch_geometric_does(model, strategy, monkeypatch):
    monkeypatch.setattr(dispatch, "SMALL", -1)
    training.check(model, problems.awkward(), (2, 3), strategy=strategy)
