"""Linear maps inside layers that were given, or lost, a bias, a hook or a part: as torch_geometric calls them."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from tests import problems
from tests.models import H

BOTH = {
    "gine": lambda library: library.GINEConv(nn.Sequential(nn.Linear(6, H)), edge_dim=4),
    "cg": lambda library: library.CGConv(6, 4),
    "bare cg": lambda library: library.CGConv(6, 4, bias=False),
    "pna": lambda library: library.PNAConv(6, 6, ["mean", "max"], ["identity"], torch.ones(9, dtype=int), towers=2),
    "sg": lambda library: library.SGConv(6, 6, 2),
}


def linear(given, wanted, biased):
    made = nn.Linear(given, wanted, biased)
    if biased:
        nn.init.constant_(made.bias, 0.3)
    return made


def deeper(conv):
    conv.pre_nns[1] = nn.Sequential(*conv.pre_nns[1], nn.Tanh())


@pytest.mark.parametrize(
    "kind, change",
    [
        ("gine", lambda conv: setattr(conv, "lin", linear(4, 6, False))),
        ("cg", lambda conv: setattr(conv, "lin_f", linear(16, 6, False))),
        ("cg", lambda conv: setattr(conv, "lin_s", linear(16, 6, False))),
        ("bare cg", lambda conv: setattr(conv, "lin_f", linear(16, 6, True))),
        ("bare cg", lambda conv: setattr(conv, "lin_s", linear(16, 6, True))),
        ("pna", deeper),
        ("sg", lambda conv: setattr(conv, "lin", nn.Identity())),
    ],
)
def test_a_map_that_is_another_is_called_as_torch_geometric_calls_it(kind, change):
    mine, theirs = (BOTH[kind](library) for library in (hnn, pyg))
    change(mine), change(theirs)
    mine.activation = torch.relu
    problem, last = problems.edge_data(), nn.Linear(H if kind == "gine" else 6, 3)
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), [mine, last], dtype=torch.float64)
    reference = nn.ModuleList([theirs, copy.deepcopy(last)]).double()
    reference.load_state_dict(trainer.model.state_dict(), strict=False)
    given = problem.edge_data()
    beside = [given["edge_weight" if kind == "sg" else "edge_attr"]] if kind != "pna" else []
    out = reference[1](theirs(torch.from_numpy(problem.features).double(), problem.edge_index, *beside).relu())
    mask = torch.from_numpy(problem.masks["train"])
    nn.functional.cross_entropy(out[mask], torch.from_numpy(problem.labels)[mask]).backward()
    for _ in range(2):  # the first leaves what it kept as it was
        torch.testing.assert_close(trainer.predict(), out.detach(), rtol=1e-9, atol=1e-12)
    trainer.train_epoch()
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(trainer.gradients()[name], parameter.grad, rtol=1e-9, atol=1e-12)


class Twice(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda pre: pre[0].register_forward_hook(lambda module, given, out: 2 * out), "Sequential with hooks"),
        (lambda pre: setattr(pre[0], "forward", lambda x: 2 * pre[0][0](x)), "Sequential"),
        (lambda pre: pre.__setitem__(0, Twice(nn.Linear(12, 6))), "Twice"),
    ],
)
def test_a_network_of_messages_that_would_not_be_called_is_refused(change, found):
    layer = BOTH["pna"](hnn)
    change(layer.pre_nns)
    with pytest.raises(InputError, match=rf"its pre_nns.0 is a {found}, expected a plain torch.nn.Linear"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), [layer])
