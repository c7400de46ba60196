"""Counter-based dropout: identity of masks, statistics, and the context it reads."""

import copy
import pickle

import pytest
import torch

from hongtu.nn import Dropout, Layer
from hongtu.nn.block import Rows
from hongtu.nn.context import RowContext
from hongtu.nn.dropout import Mask, _apply_mask, _dropout, dropout_key, epoch_key
from hongtu.nn.layer import bind
from tests.layer_oracle import keep_mask


def bound(p=0.5, seed=0, epoch=0, ids=None, sites=1):
    modules = torch.nn.Sequential(*(Dropout(p) for _ in range(sites)))
    context = bind(modules, RowContext(seed=seed, epoch=epoch, rows=None if ids is None else Rows(ids)))
    return (*modules, context)


def mask(dropout, ids, width=64, call=0):
    dropout.context.calls = call
    return dropout(torch.ones(len(ids), width), ids) != 0


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 2, 3, 47, 128, 130])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("form", ["plain", "compiled"])
def test_kernel_equals_the_torch_reference(width, p, dtype, form, monkeypatch):
    monkeypatch.setattr(_dropout.kernel, "_left", 10**9 if form == "plain" else 0)
    monkeypatch.setattr(_dropout.kernel, "_dispatcher", None if form == "plain" else _dropout.kernel.dispatcher)
    monkeypatch.setattr("hongtu.nn.dropout.AT_ONCE", 500)
    ids = torch.cat([torch.arange(200), torch.tensor([2**31, 2**40 + 1, 2**62])])
    for key, site, call in ((0, 0, 0), (1, 2, 3), (-1, 4, 7 << 16), (-(2**63), 0, 2**40)):
        of, whole = Mask(torch.tensor([key]), site, call, p), dropout_key(site, call, key=key % 2**64)
        kept = _apply_mask(torch.ones(len(ids), width, dtype=dtype), ids, of) != 0
        expected = keep_mask(ids, width, whole, p) if p < 1 else torch.zeros(len(ids), width, dtype=torch.bool)
        assert torch.equal(kept, expected)


def test_values_are_scaled():
    dropout, _ = bound(p=0.2)
    x = torch.randn(50, 7, dtype=torch.float64)
    out = dropout(x, torch.arange(50))
    kept = out != 0
    torch.testing.assert_close(out[kept], x[kept] / 0.8)


def test_mask_belongs_to_the_row_not_to_the_chunk():
    dropout, _ = bound()
    ids = torch.randperm(1000)
    whole = mask(dropout, ids)
    parts = [mask(dropout, part) for part in ids.split([1, 0, 499, 500])]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(mask(dropout, torch.arange(1000)), whole[ids.argsort()])


def test_ids_default_to_the_rows_of_the_call():
    ids = torch.arange(100, 130)
    dropout, context = bound(ids=ids)
    found = dropout(torch.ones(30, 8))
    context.calls = 0
    assert torch.equal(found, dropout(torch.ones(30, 8), ids))


def test_rate():
    ids = torch.arange(20_000)
    for p in (0.1, 0.5, 0.8):
        dropout, _ = bound(p=p)
        dropped = (~mask(dropout, ids)).double()
        deviation = (p * (1 - p) / dropped.numel()) ** 0.5
        assert abs(dropped.mean() - p) < 5 * deviation
        assert (dropped.mean(0) - p).abs().max() < 5.5 * deviation * 64**0.5  # each column
        assert abs(dropped.mean(1).var() * 64 / (p * (1 - p)) - 1) < 0.06  # rows are binomial


def test_masks_are_independent():
    ids = torch.arange(20_000)
    first, second, context = bound(sites=2)
    base = mask(first, ids)

    def agreement(other):
        return abs((base == other).double().mean().item() - 0.5)

    tolerance = 5 * 0.5 / base.numel() ** 0.5
    assert agreement(mask(second, ids)) < tolerance  # sites
    assert agreement(mask(first, ids, call=1)) < tolerance  # calls
    assert agreement(base.roll(1, 0)) < tolerance  # rows
    for shift in (1, 2, 3, 32):
        assert agreement(base.roll(shift, 1)) < tolerance  # columns
    context.epoch = 1
    assert agreement(mask(first, ids)) < tolerance
    context.epoch, context.seed = 0, 1
    assert agreement(mask(first, ids)) < tolerance
    context.seed = 0
    assert torch.equal(mask(first, ids), base)


def test_calls_within_a_layer_call_differ_and_repeat():
    ids = torch.arange(40)
    dropout, context = bound(ids=ids)
    x = torch.ones(40, 30)
    first, second = dropout(x), dropout(x)
    assert not torch.equal(first, second)
    context.calls = 0
    assert torch.equal(dropout(x), first) and torch.equal(dropout(x), second)


def test_backward_uses_the_same_mask():
    dropout, context = bound(p=0.3)
    x = torch.randn(60, 5, dtype=torch.float64, requires_grad=True)
    out = dropout(x, torch.arange(60))
    context.epoch, context.calls = 9, 3
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient * x, out)


def test_the_key_of_an_epoch_stays_where_it_is():
    """And backward of an epoch that is over is refused: it would draw another mask."""
    dropout, context = bound(seed=3, epoch=1)
    where = torch.device("cpu")
    key = epoch_key(context, where)
    assert key.item() % 2**64 == dropout_key(3, 1)
    out = dropout(torch.ones(4, 5, requires_grad=True), torch.arange(4))
    version = key._version
    assert epoch_key(context, where) is key and key._version == version, "written without a need"
    context.epoch = 2
    with torch.inference_mode():
        assert epoch_key(context, where) is key and key.item() % 2**64 == dropout_key(3, 2)
    with pytest.raises(AssertionError, match="another epoch"):
        out.sum().backward()


def test_shapes_and_strides():
    dropout, context = bound()
    ids = torch.arange(30)
    x = torch.ones(30, 4, 5)
    flat = dropout(x.flatten(1), ids)
    context.calls = 0
    assert torch.equal(dropout(x, ids).flatten(1), flat)
    context.calls = 0
    strided = torch.ones(20, 30).t()
    assert torch.equal(dropout(strided, ids), flat)
    assert dropout(torch.ones(0, 4), torch.arange(0)).shape == (0, 4)
    assert dropout(torch.ones(30), ids).shape == (30,)


def test_nan_and_infinity_can_be_dropped():
    dropout, _ = bound(p=0.5)
    out = dropout(torch.full((100, 10), torch.nan), torch.arange(100))
    assert (out == 0).any() and out.isnan().any()


def test_identity_in_evaluation():
    dropout, context = bound(ids=torch.arange(3))
    x = torch.ones(3, 4)
    context.training = False
    assert dropout(x) is x
    context.training = True
    dropout.eval()
    assert dropout(x) is x
    assert bound(p=0.0)[0](x) is x


def test_unbound_is_torch_dropout():
    torch.manual_seed(0)
    found = Dropout(0.5)(torch.ones(5, 5))
    torch.manual_seed(0)
    assert torch.equal(found, torch.nn.functional.dropout(torch.ones(5, 5), 0.5))


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_bad_probability(p):
    with pytest.raises(ValueError, match="expected 0 to 1"):
        Dropout(p)


def test_context_is_no_part_of_the_model():
    model = torch.nn.ModuleList([Layer(), torch.nn.Sequential(Dropout(0.1), Dropout(0.2))])
    context = bind(model, RowContext(rows=Rows(torch.arange(3))))
    epoch_key(context, torch.device("cpu"))
    assert [module.site for module in model[1]] == [0, 1]
    assert all(module.context is context for module in (model[0], *model[1]))
    assert model.state_dict() == {}
    assert copy.deepcopy(model)[0].context is context
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded[0].context is loaded[1][0].context and loaded[0].context.rows is None
    assert context.keys and not loaded[0].context.keys
    assert context.rows is not None
