"""Torch's losses in every form: chunk by chunk, value and gradient are those of torch on the rows of the mask at once.

Legend: V vertices, C columns of the output.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hongtu
from hongtu.errors import InputError
from hongtu.model.torch_losses import FUNCTIONS
from hongtu.model.vertex_loss import MeanLoss
from tests import problems

V, C = 41, 4
RNG = np.random.default_rng(3)
CLASSES = RNG.integers(0, C, V)
MANY = (RNG.random((V, C)) < 0.4).astype(np.float32)
NUMBERS = RNG.normal(size=(V, C)).astype(np.float32)
SIGNS = np.where(MANY > 0, 1, -1).astype(np.float32)
W = torch.tensor([1.0, 5.0, 0.2, 9.0])
MASKS = {"train": np.arange(V) % 2 == 0, "val": np.arange(V) % 4 == 1, "test": np.arange(V) % 4 == 3}
TASKS = {id(CLASSES): "multiclass", id(MANY): "multilabel", id(NUMBERS): "regression", id(SIGNS): "regression"}


def make(loss, labels=CLASSES, masks=MASKS, task=None):
    classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    task = task or TASKS.get(id(labels)) or ("multiclass" if labels.ndim == 1 else "multilabel")
    return MeanLoss(
        loss, labels=labels, masks=masks, task=task, num_classes=classes, original_id=np.arange(V, dtype=np.int32)
    )


def in_chunks(loss, labels, out, **options):
    """The loss, and its gradient by ``out``, of some chunks."""
    made = make(loss, labels, **options)
    made.check_output(out.shape[1], out.dtype)
    rows, bits = torch.from_numpy(made.label_rows()), torch.from_numpy(made.bits)
    parts = [made.gradient(*chunk) for chunk in zip(*(x.detach().split([7, 1, 20, 13]) for x in (out, rows, bits)))]
    return sum(float(part) for _, part in parts), torch.cat([gradient for gradient, _ in parts])


def check(loss, labels, whole, columns=C, **options):
    """Against ``whole(out, labels)`` on the train rows."""
    raw = torch.from_numpy(np.random.default_rng(8).normal(size=(V, columns)))
    for map_rows in (lambda x: x, lambda x: x.log_softmax(1), torch.sigmoid):
        out = map_rows(raw).requires_grad_()
        if make(loss, labels, **options).threshold and map_rows is not torch.sigmoid:
            continue  # of probabilities
        mask, target = torch.from_numpy(MASKS["train"]), torch.from_numpy(labels)
        target = target.double() if target.is_floating_point() else target
        expected = whole(out[mask], target[mask])
        (gradient,) = torch.autograd.grad(expected, out)
        found, by_out = in_chunks(loss, labels, out, **options)
        assert found == pytest.approx(float(expected.detach()), rel=1e-12, abs=1e-13)
        torch.testing.assert_close(by_out, gradient, rtol=1e-12, atol=1e-14)


OF_CLASSES = {
    nn.CrossEntropyLoss: [
        {}, {"weight": W}, {"ignore_index": 2}, {"weight": W, "ignore_index": 0, "label_smoothing": 0.1},
    ],
    nn.NLLLoss: [{}, {"weight": W}, {"weight": W, "ignore_index": 3}],
    nn.MultiMarginLoss: [{}, {"p": 2, "margin": 0.7}, {"weight": W}],
}  # fmt: skip
OF_MANY = {
    nn.BCELoss: [{}, {"weight": W}],
    nn.BCEWithLogitsLoss: [{}, {"weight": W, "pos_weight": 2 * W}],
    nn.MultiLabelSoftMarginLoss: [{}, {"weight": W}],
    nn.CrossEntropyLoss: [{}, {"weight": W, "label_smoothing": 0.1}],
    nn.KLDivLoss: [{}, {"log_target": True}],
    nn.PoissonNLLLoss: [{"full": True}, {"log_input": True}],
}
OF_NUMBERS = {
    nn.MSELoss: [{}], nn.L1Loss: [{}], nn.SmoothL1Loss: [{"beta": 0.3}], nn.HuberLoss: [{"delta": 0.4}],
    nn.PoissonNLLLoss: [{}],
}  # fmt: skip
OF_SIGNS = {nn.SoftMarginLoss: [{}], nn.HingeEmbeddingLoss: [{"margin": 0.5}]}
GIVEN = [
    pytest.param(kind, options, labels, id=f"{kind.__name__} {sorted(options)}")
    for table, labels in ((OF_CLASSES, CLASSES), (OF_MANY, MANY), (OF_NUMBERS, NUMBERS), (OF_SIGNS, SIGNS))
    for kind, all_options in table.items()
    for options in all_options
]
FUNCTION = {module: function for function, module in FUNCTIONS.items()}


@pytest.mark.parametrize(("kind", "options", "labels"), GIVEN)
def test_modules_functions_and_partials(kind, options, labels):
    in_double = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    for reduction in ("mean", "sum", *(["batchmean"] if kind is nn.KLDivLoss else [])):
        whole = kind(**in_double, reduction=reduction)
        check(kind(**options, reduction=reduction), labels, whole)
        check(partial(FUNCTION[kind], **options, reduction=reduction), labels, whole)
    if not options:
        check(FUNCTION[kind], labels, kind())
    rows = kind(**options, reduction="none")  # of which the plain mean is taken
    check(rows, labels, lambda out, y: kind(**in_double, reduction="none")(out, y).mean())


@pytest.mark.parametrize("kind", [nn.BCELoss, nn.BCEWithLogitsLoss, nn.MSELoss, nn.L1Loss], ids=lambda k: k.__name__)
def test_one_output_for_classes_0_and_1(kind):
    """As ``criterion(out, y.float()[:, None])``; a class that no mask holds does not matter."""
    labels = CLASSES % 2
    check(kind(), labels, lambda out, y: kind()(out, y.double().unsqueeze(1)), columns=1)
    if kind is nn.BCEWithLogitsLoss:
        options = {"pos_weight": torch.tensor([9.0], dtype=torch.float64)}
        whole = lambda out, y: kind(**options)(out, y.double().unsqueeze(1))  # noqa: E731
        check(kind(pos_weight=torch.tensor([9.0])), labels, whole, columns=1)
        check("bce_with_logits", labels, lambda out, y: kind()(out, y.double().unsqueeze(1)), columns=1)
    masks = {split: mask & (labels < 2) for split, mask in MASKS.items()}
    check(kind(), np.where(masks["test"], 7, labels), lambda out, y: kind()(out, y.double().unsqueeze(1)), columns=1,
          masks={**masks, "test": np.zeros(V, bool)})  # fmt: skip


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss], ids=lambda k: k.__name__)
def test_fewer_outputs_than_classes(kind):
    """Labels that no mask holds, or that the loss ignores, need no output."""
    unknown = RNG.random(V) < 0.3
    labels = np.where(unknown, 255, CLASSES)
    masks = {split: mask & ~unknown for split, mask in MASKS.items()}
    whole = lambda out, y: kind()(out[~torch.from_numpy(unknown[MASKS["train"]])], y[y < 255])  # noqa: E731
    check(kind(), labels, whole, masks=masks)
    with pytest.raises(
        InputError,
        match=rf"has 4 columns.* 256 classes, and {(unknown & MASKS['val']).sum()} vertices of "
        r"the val mask have one of 4 or above; give it more columns, or take these vertices out",
    ):
        in_chunks(kind(), labels, torch.zeros(V, C), masks={**masks, "val": MASKS["val"]})
    if kind is not nn.MultiMarginLoss:
        check(kind(weight=W, ignore_index=255), labels, kind(weight=W.double(), ignore_index=255))
    if kind is nn.CrossEntropyLoss:  # unlabelled vertices, as torch has them
        term = hongtu.LossTerm(kind(ignore_index=-1), mask=MASKS["train"])
        check(term, np.where(unknown, -1, CLASSES), kind(ignore_index=-1), masks=masks)


HOLES = [
    (nn.MSELoss, NUMBERS),
    (nn.L1Loss, NUMBERS),
    (nn.HuberLoss, NUMBERS),
    (nn.BCEWithLogitsLoss, MANY),
    (nn.BCELoss, MANY),
]


@pytest.mark.parametrize(("kind", "labels"), HOLES, ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_targets_with_holes(kind, labels, reduction):
    """As ``known = ~y.isnan(); criterion(out[known], y[known])``; a vertex may have all columns but one missing."""
    task, holes = TASKS[id(labels)], np.random.default_rng(1).random(labels.shape) < 0.4
    holes[::5, 1:] = True
    holes[:, 0] = False
    labels = np.where(holes, np.float32(np.nan), labels)

    def whole(out, y):
        losses = kind(reduction="none")(out[~y.isnan()], y[~y.isnan()])
        return losses.sum() if reduction == "sum" else losses.mean()

    check(kind(reduction=reduction), labels, whole, task=task)
    weight = RNG.uniform(0, 2, V)

    def weighed(out, y):
        known, own = ~y.isnan(), torch.from_numpy(weight[MASKS["train"]]).unsqueeze(1)
        losses = kind(reduction="none")(out, y.nan_to_num(0)) * own * known
        return losses.sum() if reduction == "sum" else losses.sum() / (own * known).sum()

    check(hongtu.LossTerm(kind(reduction=reduction), vertex_weight=weight), labels, weighed, task=task)


class Focal(nn.Module):
    """A loss of one's own with torch's ``reduction``; ``broken`` divides by something else."""

    def __init__(self, reduction="mean", broken=False):
        super().__init__()
        self.reduction, self.broken = reduction, broken

    def forward(self, out, target):
        losses = F.cross_entropy(out, target, reduction="none")
        losses = (1 - (-losses).exp()) ** 2 * losses
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.sum() / (self.broken or len(losses))


def test_modules_of_ones_own_with_a_reduction():
    for reduction in ("mean", "sum"):
        check(Focal(reduction), CLASSES, Focal(reduction))
    unreduced = Focal("none")
    unreduced.reduction = "mean"
    unreduced.forward = lambda out, y: F.cross_entropy(out, y, reduction="none")
    check(unreduced, CLASSES, nn.CrossEntropyLoss())
    with pytest.raises(InputError, match="loss Focal: with reduction='mean' it is no mean or sum of what"):
        in_chunks(Focal(broken=3.0), CLASSES, torch.zeros(V, C))


class Weighs(nn.Module):
    """One's own, whose mean is over the weights of classes, or over the rows of some."""

    def __init__(self, weight=None, ignored=-100, reduction="mean"):
        super().__init__()
        self.weight, self.ignored, self.reduction = weight, ignored, reduction

    def forward(self, out, target):
        weight = torch.ones(len(target)) if self.weight is None else self.weight[target]
        weight = (weight * (target != self.ignored)).to(out.dtype)
        losses = F.cross_entropy(out, target, reduction="none") * weight
        return losses if self.reduction == "none" else losses.sum() / weight.sum()


class PlainMean(nn.CrossEntropyLoss):
    """Derived from torch's, whose mean would be over the weights."""

    def forward(self, out, target):
        losses = F.cross_entropy(out, target, weight=self.weight.to(out.dtype), reduction="none")
        return losses if self.reduction == "none" else losses.mean()


class OfPositives(nn.Module):
    reduction = "mean"

    def forward(self, out, target):
        losses = F.binary_cross_entropy_with_logits(out, target, reduction="none").sum(1)
        return losses if self.reduction == "none" else losses.sum() / (len(target) + target.sum())


LAST_YES = np.zeros((V, C), dtype=np.float32)
LAST_YES[-3:] = 1


@pytest.mark.parametrize("loss", [Weighs(W), Weighs(ignored=2), PlainMean(weight=W), OfPositives()], ids=repr)
def test_a_mean_of_ones_own_is_refused_wherever_the_first_rows_agree_with_it(loss):
    """The first rows of the mask have one class, or no label."""
    labels = LAST_YES if isinstance(loss, OfPositives) else np.sort(CLASSES)
    with pytest.raises(InputError, match="with reduction='mean' it is no mean or sum of what it gives"):
        in_chunks(loss, labels, torch.zeros(V, C), masks=MASKS | {"train": np.arange(V) > -1, "val": np.zeros(V, bool)})


class AlwaysReduced(nn.CrossEntropyLoss):
    def forward(self, out, target):
        return F.cross_entropy(out, target, reduction="none").square().mean()


PER_VERTEX = "return losses per vertex, whose plain mean"
REFUSED = {
    "a mean of weights": (
        lambda out, y: F.nll_loss(out, y, weight=W),
        CLASSES,
        "pass torch's loss itself.*" + PER_VERTEX,
    ),
    "a sum": (lambda out, y: (out - y).square().sum(), NUMBERS, "pass torch's loss itself.*" + PER_VERTEX),
    "a row each": (lambda out, y: (out - y).square(), NUMBERS, r"return their mean\(dim=1\)"),
    "torch's with a mean in forward": (AlwaysReduced(), CLASSES, PER_VERTEX),
    "nothing": (lambda out, y: None, CLASSES, "returned None.*" + PER_VERTEX),
    "apart from the output": (lambda out, y: out.detach().sum(1), CLASSES, "does not depend on the output"),
    "two more inputs": (nn.GaussianNLLLoss(), NUMBERS, "loss GaussianNLLLoss: .*'var'"),
    "lists of classes": (nn.MultiLabelMarginLoss(), MANY, "loss MultiLabelMarginLoss: .*targets float32"),
    "three rows": (nn.TripletMarginLoss(), NUMBERS, "loss TripletMarginLoss"),
    "sequences": (nn.CTCLoss(), CLASSES, "loss CTCLoss"),
    "a function of three": (F.cosine_embedding_loss, NUMBERS, "loss cosine_embedding_loss"),
    "a keyword that is none": (partial(F.l1_loss, margin=1.0), NUMBERS, r"loss l1_loss: .*pass torch.nn.L1Loss\(...\)"),
    "a class": (nn.NLLLoss, CLASSES, r"pass NLLLoss\(\)"),
    "numbers for classes": (nn.L1Loss(), CLASSES, r"one class per vertex\): use loss='cross_entropy' or.* one column"),
    "classes for numbers": (nn.NLLLoss(), NUMBERS, "loss NLLLoss"),
    "holes in one number a vertex": (nn.MultiLabelSoftMarginLoss(), np.where(MANY > 0, np.float32(np.nan), 0), "holes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_losses_are_refused(name):
    loss, labels, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as refused:
        in_chunks(loss, labels, torch.zeros(V, C))
    assert "pass reduction='none'" not in str(refused.value)


@pytest.mark.parametrize("loss", [F.nll_loss, lambda out, y: F.cross_entropy(out, y, weight=W[:3]), nn.CTCLoss()])
def test_the_trainer_judges_losses(loss):
    problem = problems.awkward()
    layers = [hongtu.nn.GCNConv(6, 3), nn.LogSoftmax(dim=1)]
    make_trainer = lambda: hongtu.Trainer(problems.prepare(problem, 2, 3), layers, loss=loss)  # noqa: E731
    if loss is F.nll_loss:
        assert make_trainer().train_epoch().loss > 0
    else:
        with pytest.raises(InputError, match="loss "):
            make_trainer()


def test_a_loss_of_classes_with_one_output():
    with pytest.raises(InputError, match="with one column use classes 0 and 1, and loss='bce_with_logits'"):
        in_chunks("cross_entropy", CLASSES % 2, torch.zeros(V, 1))
    with pytest.raises(InputError, match="have one of 2 or above"):
        in_chunks(nn.BCEWithLogitsLoss(), CLASSES, torch.zeros(V, 1))


def punctured():
    """Numbers of which some are missing, in all rows but the first ones."""
    labels = NUMBERS.copy()
    labels[10:, 0] = np.where(np.arange(V - 10) % 7 == 3, np.nan, labels[10:, 0])
    return labels


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, target: (out - target).square().mean(1),
        lambda out, target: F.l1_loss(out, target, reduction="none").sum(1),
        lambda out, target: torch.where(target.isnan(), 0.0, (out - target).square()).mean(1),  # its gradient is nan
    ],
)
def test_losses_that_are_nan_where_targets_have_holes_are_refused(loss):
    with pytest.raises(InputError, match=r"where a target has holes .nan in some columns.; have it replace these"):
        in_chunks(loss, punctured(), torch.zeros(V, C), task="regression")


def test_losses_that_leave_holes_out_are_taken():
    whole = lambda out, y: torch.where(y.isnan(), 0.0, (out - y.nan_to_num()).square()).mean(1)  # noqa: E731
    check(whole, punctured(), lambda out, y: whole(out, y).mean(), task="regression")


@pytest.mark.parametrize(
    "loss",
    [
        lambda: nn.CrossEntropyLoss(weight=W.clone().requires_grad_()),
        lambda: nn.NLLLoss(weight=nn.Parameter(W.clone())),
        lambda: partial(F.cross_entropy, weight=W.clone().requires_grad_() * 2),
    ],
)
def test_weights_of_losses_that_require_gradients_are_refused(loss):
    with pytest.raises(InputError, match=r"has parameters, which nothing would train.*requires_grad_\(False\)"):
        make(loss(), CLASSES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, nn.NLLLoss], ids=lambda k: k.__name__)
def test_scripted_losses_are_refused(kind):
    with pytest.raises(InputError, match=f"loss {kind.__name__}: it is scripted.*before torch.jit.script"):
        make(torch.jit.script(kind()), CLASSES)
