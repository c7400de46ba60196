"""Random models of which it is known whether they mix rows: ``python -m tests.train.mixing_models --cases 300``.

A model is a list or a traced forward: graph layers, and before, between and behind them parts of which each is known to
treat rows alone or not. What is known is computed again in plain torch, on all rows and in chunks.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.model.network import Network
from hongtu.model.wiring import as_modules
from hongtu.nn.context import RowContext
from hongtu.train.tracing.mixing import refuse_mixing
from hongtu.train.tracing.trace import GraphForm, trace

F = 8  # columns everywhere
CLASSES = 3


class Of(nn.Module):
    """A function of rows, and modules that it takes, which torch.fx does not look into."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.inside = function, nn.ModuleList(modules)

    def forward(self, h: Tensor) -> Tensor:
        return self.function(h, *self.inside)


def of_one_code(h: Tensor) -> Tensor:
    out, chosen = h.clone(), h[:, 0].round() == 1
    out[chosen] = h[chosen].flip(0)
    return out


class Centred(torch.autograd.Function):
    """Rows as they are; their gradients lose their mean."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad - grad.mean(0)


def hooked(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def call(h: Tensor) -> Tensor:
        h = h * 1.5
        if h.requires_grad:
            h.register_hook(function)
        return h

    return call


def written(where: Any, number: float) -> Callable[[Tensor], Tensor]:
    def call(h: Tensor) -> Tensor:
        h = h.clone()
        h[where] = number
        return h

    return call


def encoder(batch_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(F, 2, 8, dropout=0.0, batch_first=batch_first)


def attended(h: Tensor, attention: nn.Module) -> Tensor:
    x = h.view(-1, 2, 4)
    return attention(x, x, x)[0].reshape(h.shape)


def own_rows(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Attention in a row, or over them."""

    def call(h: Tensor) -> Tensor:
        x = h.view(shape)
        return functional.scaled_dot_product_attention(x, x, x).reshape(h.shape)

    return call


def in_training(function: Callable[[Tensor], Tensor]) -> nn.Module:
    class Trains(nn.Module):
        lag = getattr(function, "lag", 0)

        def forward(self, h: Tensor) -> Tensor:
            return function(h) if self.training else h

    return Trains()


def drawn_lag() -> int:
    return int(torch.randint(1, 5041, ()))


def far(function: Callable[[Tensor, int], Tensor]) -> Callable[[], Callable[[Tensor], Tensor]]:
    """Makes a function of rows so many rows away."""

    def make() -> Callable[[Tensor], Tensor]:
        lag = drawn_lag()

        def call(h: Tensor) -> Tensor:
            return function(h, lag)

        call.lag = lag  # type: ignore[attr-defined]
        return call

    return make


def of_far(function: Callable[[Tensor, int], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Of(far(function)())


class FarConvolution(nn.Module):
    """Over rows, as of a causal network of dilations."""

    def __init__(self) -> None:
        super().__init__()
        self.lag = drawn_lag()
        self.inside = nn.Conv1d(F, F, 2, dilation=self.lag)

    def forward(self, h: Tensor) -> Tensor:
        return self.inside(functional.pad(h.t().unsqueeze(0), (self.lag, 0))).squeeze(0).t()


def unfolded(h: Tensor, lag: int) -> Tensor:
    own: dict[str, Any] = {"kernel_size": (3, 1), "dilation": (lag, 1), "padding": (lag, 0)}
    return functional.fold(functional.unfold(h.t()[None, :, :, None], **own), (len(h), 1), **own)[0, :, :, 0].t()


ALONE: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(F, F),
    "layer norm": lambda: nn.LayerNorm(F),
    "group norm": lambda: nn.GroupNorm(2, F),
    "relu": nn.ReLU,
    "prelu": lambda: nn.PReLU(F),
    "softmax of a row": lambda: nn.Softmax(dim=1),
    "log-softmax": lambda: nn.LogSoftmax(dim=-1),
    "dropout": lambda: nn.Dropout(0.5),
    "own dropout": lambda: hnn.Dropout(0.3),
    "noise": lambda: in_training(lambda h: h + torch.randn_like(h)),
    "sine": lambda: lambda h: torch.sin(40 * h),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(F, F)),
    "residual": lambda: Of(lambda h, lin: h + lin(h), nn.Linear(F, F)),
    "bilinear": lambda: Of(lambda h, lin: lin(h, h.tanh()), nn.Bilinear(F, F, F)),
    "encoder of one token": lambda: Of(lambda h, of: of(h.unsqueeze(1)).squeeze(1), encoder(True)),
    "encoder of a batch": lambda: Of(lambda h, of: of(h.unsqueeze(0)).squeeze(0), encoder(False)),
    "attention in a row": lambda: Of(attended, nn.MultiheadAttention(4, 2, batch_first=True)),
    "dot products in a row": lambda: own_rows((-1, 2, 2, 2)),
    "convolution of columns": lambda: Of(lambda h, of: of(h.unsqueeze(1)).squeeze(1), nn.Conv1d(1, 1, 3, padding=1)),
    "convolution of width 1": lambda: Of(lambda h, of: of(h.t().unsqueeze(0)).squeeze(0).t(), nn.Conv1d(F, F, 1)),
    "convolution of images": lambda: Of(
        lambda h, of: of(h.view(-1, 1, 2, 4)).flatten(1), nn.Conv2d(1, 1, 3, padding=1)
    ),
    "gru in a row": lambda: Of(lambda h, of: of(h.view(-1, 2, 4))[0].flatten(1), nn.GRU(4, 4, batch_first=True)),
    "lstm of a batch": lambda: Of(lambda h, of: of(h.unsqueeze(0))[0].squeeze(0), nn.LSTM(F, F)),
    "einsum of heads": lambda: Of(
        lambda h, of: torch.einsum("rhf,gf->rhg", h.view(-1, 2, 4), of.weight).flatten(1), nn.Linear(4, 4)
    ),
    "gates of heads": lambda: lambda h: (h.view(-1, 2, 2, 2) * h.view(-1, 2, 2, 2).softmax(2)).flatten(1),
    "centred rows": lambda: lambda h: h - h.mean(1, keepdim=True),
    "normalised rows": lambda: lambda h: functional.normalize(h, dim=1),
    "scaled rows": lambda: lambda h: h / (1 + h.norm(dim=-1, keepdim=True)),
    "cumsum of columns": lambda: lambda h: h.cumsum(1),
    "sorted columns": lambda: lambda h: h.sort(1).values,
    "rolled columns": lambda: lambda h: h.roll(1, 1),
    "there and back": lambda: lambda h: torch.relu(h.flip(0)).flip(0),
    "transposed softmax": lambda: lambda h: h.t().softmax(0).t(),
    "largest columns": lambda: lambda h: h * (h >= h.topk(3, 1).values[:, -1:]),
    "median of a row": lambda: lambda h: h - h.median(1, keepdim=True).values,
    "deviation of a row": lambda: lambda h: h / (1 + h.std(1, keepdim=True)),
    "positive": lambda: lambda h: h.masked_fill(h < 0, 0.5),
    "outer products": lambda: lambda h: torch.bmm(h.unsqueeze(2), h.unsqueeze(1)).mean(2),
    "distances of heads": lambda: lambda h: torch.cdist(h.view(-1, 4, 2), h.view(-1, 4, 2)).sum(2).repeat(1, 2),
    "kinds": lambda: Of(lambda h, table: h + table((h[:, 0].sigmoid() * 4).long()), nn.Embedding(5, F)),
    "written columns": lambda: Of(written((slice(None), 0), 0.5)),
    "written numbers": lambda: Of(lambda h: h.clone().masked_fill_(h > 1, 1)),
    "branch by width": lambda: Of(lambda h: h + 1 if h.shape[1] > 3 else h),
    "pieces of rows": lambda: Of(lambda h, lin: torch.cat([lin(part) for part in h.split(3)]), nn.Linear(F, F)),
    "slices of rows": lambda: Of(
        lambda h, lin: torch.cat([lin(h[k : k + 16]) for k in range(0, len(h), 16)]), nn.Linear(F, F)
    ),
    "vmap": lambda: Of(lambda h: torch.vmap(lambda row: row * row.sum())(h)),
    "checkpointed": lambda: Of(lambda h, lin: checkpoint(lin, h, use_reentrant=False), nn.Linear(F, F)),
    "pooled columns": lambda: lambda h: functional.avg_pool1d(h.unsqueeze(0), 3, 1, 1).squeeze(0),
    "rows as positions": lambda: Of(lambda h, lin: lin(h.reshape(-1, 2)).view(h.shape), nn.Linear(2, 2)),
    "clipped gradients": lambda: Of(hooked(lambda grad: grad.clamp(-0.1, 0.1))),
    "dropped heads": lambda: Of(lambda h, drop: drop(h.view(-1, 2, 4)).flatten(1), nn.Dropout1d(0.5)),
    "rounded": lambda: lambda h: h + h.round(),
    "one code": lambda: lambda h: h.where(h.round() == 1, 2 * h),
    "rows of a code alone": lambda: Of(lambda h: h * (1 + torch.isin(h[:, :1].round(), torch.tensor([1.0, 2.0])))),
    "dilated columns": lambda: Of(
        lambda h, of: of(h.unsqueeze(1)).squeeze(1), nn.Conv1d(1, 1, 3, padding=3, dilation=3)
    ),
    "columns far away": far(lambda h, lag: h + h.roll(lag, 1)),
    "far and back": of_far(lambda h, lag: torch.relu(h.roll(lag, 0)).roll(-lag, 0)),
    "many pieces": of_far(lambda h, lag: torch.cat([part * 2 for part in h.split(lag)])),
    "complex": lambda: lambda h: torch.fft.rfft(h, dim=1).abs().repeat(1, 2)[:, :F],
}
MIXING: dict[str, Callable[[], Any]] = {
    "softmax over rows": lambda: nn.Softmax(dim=0),
    "gate": lambda: Of(lambda h, lin: h * lin(h).squeeze(-1).softmax(0).unsqueeze(-1), nn.Linear(F, 1)),
    "detached gate": lambda: lambda h: h * h.sum(1).detach().softmax(0).unsqueeze(1),
    "softmax in four dimensions": lambda: lambda h: (h.view(-1, 2, 2, 2) * h.view(-1, 2, 2, 2).softmax(0)).flatten(1),
    "encoder over rows": lambda: Of(lambda h, of: of(h.unsqueeze(0)).squeeze(0), encoder(True)),
    "encoder of a sequence": lambda: Of(lambda h, of: of(h.unsqueeze(1)).squeeze(1), encoder(False)),
    "attention over rows": lambda: Of(attended, nn.MultiheadAttention(4, 2)),
    "dot products over rows": lambda: own_rows((1, 1, -1, F)),
    "convolution over rows": lambda: Of(
        lambda h, of: of(h.t().unsqueeze(0)).squeeze(0).t(), nn.Conv1d(F, F, 3, padding=1)
    ),
    "convolution of one image": lambda: Of(lambda h, of: of(h[None, None])[0, 0], nn.Conv2d(1, 1, 3, padding=1)),
    "gru over rows": lambda: Of(lambda h, of: of(h.unsqueeze(0))[0].squeeze(0), nn.GRU(F, F, batch_first=True)),
    "lstm over rows": lambda: Of(lambda h, of: of(h.unsqueeze(1))[0].squeeze(1), nn.LSTM(F, F)),
    "rnn of the wrong batch": lambda: Of(lambda h, of: of(h.view(-1, 2, 4))[0].flatten(1), nn.RNN(4, 4)),
    "products of rows": lambda: lambda h: torch.einsum("rf,gf->rg", h, h).softmax(1) @ h,
    "covariance": lambda: lambda h: h @ (h.t() @ h) / 10,
    "distances": lambda: lambda h: h + torch.cdist(h, h).mean(1, keepdim=True),
    "context": lambda: lambda h: h + h.mean(0),
    "context in a module": lambda: Of(lambda h, lin: h + lin(h.mean(0)), nn.Linear(F, F)),
    "largest context": lambda: lambda h: h + h.max(0).values,
    "context in three dimensions": lambda: lambda h: h + h.unsqueeze(0).mean(1).squeeze(0),
    "norm": lambda: lambda h: h / h.norm(),
    "normalised columns": lambda: lambda h: functional.normalize(h, dim=0),
    "largest": lambda: lambda h: h / h.abs().max(),
    "centred": lambda: lambda h: h - h.mean(0, keepdim=True),
    "standard": lambda: lambda h: h / (1 + h.std(0)),
    "in training": lambda: in_training(lambda h: h - h.mean(0)),
    "cumsum": lambda: lambda h: h.cumsum(0),
    "cummax": lambda: lambda h: h.cummax(0).values,
    "sorted": lambda: lambda h: h.sort(0).values,
    "ranks": lambda: lambda h: h + h.argsort(0).argsort(0),
    "rolled": lambda: lambda h: h + h.roll(1, 0),
    "rolled far": far(lambda h, lag: h + h.roll(lag, 0)),
    "rolled back far": of_far(lambda h, lag: h - h.roll(-lag, 0)),
    "seasonal": of_far(lambda h, lag: h - torch.cat([h[:lag], h[:-lag]])),
    "moved far": of_far(lambda h, lag: torch.cat([h[lag:], h[:lag]])),
    "rows before": of_far(lambda h, lag: h + h[(torch.arange(len(h)) - lag).clamp(min=0)]),
    "rows of a period": of_far(
        lambda h, lag: h + h.new_zeros(lag, F).index_add(0, i := torch.arange(len(h)) % lag, h)[i]
    ),
    "convolved far": FarConvolution,
    "unfolded far": of_far(unfolded),
    "pooled far": of_far(lambda h, lag: functional.max_pool1d(functional.pad(h.t(), (lag, 0)), 2, 1, dilation=lag).t()),
    "rolled far in training": lambda: in_training(far(lambda h, lag: h + h.roll(lag, 0))()),
    "gradients rolled far": of_far(lambda h, lag: hooked(lambda grad: grad + grad.roll(lag, 0))(h)),
    "flipped": lambda: lambda h: h.flip(0),
    "differences": lambda: Of(lambda h: torch.cat([h[:1], h.diff(dim=0)])),
    "largest rows": lambda: Of(lambda h: h * (h >= h.topk(min(2, len(h)), 0).values[-1])),
    "first": lambda: lambda h: h - h[0],
    "last": lambda: lambda h: h - h[-1:],
    "written row": lambda: Of(written(0, 0.0)),
    "written last": lambda: Of(written(-1, 0.5)),
    "every other": lambda: Of(written(slice(None, None, 2), 1.0)),
    "first rows": lambda: Of(lambda h: torch.cat([h[:3] * 2, h[3:]])),
    "rows from eight on": lambda: Of(lambda h: torch.cat([h[:8] * 2, h[8:]])),
    "written up to sixteen": lambda: Of(written(slice(None, 16), 0.0)),
    "counted up to thirty": lambda: Of(lambda h: h * (torch.arange(len(h)) < 30).to(h.dtype).unsqueeze(1)),
    "rows from twenty on": lambda: Of(lambda h: torch.cat([h[:20] * 2, h[20:]])),
    "written from sixteen on": lambda: Of(written(slice(16, None), 0.0)),
    "masked": lambda: lambda h: h.masked_fill(h == h.max(), 0),
    "rows of one code": lambda: lambda h: h + (own := (h[:, :1].round() == 1).to(h.dtype)) * (h * own).sum(0),
    "written rows of one code": lambda: Of(of_one_code),
    "threshold": lambda: lambda h: h.where(h > h.mean(), 0.0),
    "bound": lambda: lambda h: h.clamp(min=h.min() / 2),
    "median": lambda: lambda h: h - h.median(),
    "quantile": lambda: lambda h: h - h.quantile(0.3, 0),
    "positions": lambda: Of(lambda h, table: h + table(torch.arange(len(h))), nn.Embedding(512, F)),
    "places": lambda: lambda h: h + torch.arange(h.shape[0]).unsqueeze(1) / 10,
    "count": lambda: lambda h: h / h.shape[0],
    "branch by mean": lambda: Of(lambda h: h + 1 if h[:, 0].mean() > 0 else h),
    "batch norm": lambda: Of(lambda h: functional.batch_norm(h, None, None, training=True)),
    "instance norm": lambda: lambda h: functional.instance_norm(h.t().unsqueeze(0)).squeeze(0).t(),
    "layer norm of all": lambda: Of(lambda h: functional.layer_norm(h, h.shape)),
    "similar": lambda: lambda h: h * torch.cosine_similarity(h, h.roll(1, 0)).unsqueeze(1),
    "centred gradients": lambda: Of(Centred.apply),
    "gradients of norm 1": lambda: Of(hooked(lambda grad: grad / (1e-9 + grad.norm()))),
    "squeezed": lambda: Of(lambda h, lin: h * lin(h).squeeze().softmax(-1).unsqueeze(-1), nn.Linear(F, 1)),
}
CONVOLUTIONS = (pyg.GCNConv, pyg.SAGEConv, pyg.GATConv, pyg.GraphConv)
LAYERS = (hnn.GCNConv, hnn.SAGEConv, hnn.GATConv, hnn.GraphConv)


class Plain(hnn.Layer):
    """A layer of one's own: parts see the rows of sources and those of destinations."""

    def __init__(self, of_sources: nn.Module, of_destinations: nn.Module) -> None:
        super().__init__()
        self.of_sources, self.of_destinations = of_sources, of_destinations

    def forward(self, block: hnn.Block, h: Tensor) -> Tensor:
        return self.of_destinations(block.mean(self.of_sources(h)))


class Traced(nn.Module):
    """Convolutions with parts before, between and behind them."""

    def __init__(self, convolutions: list[nn.Module], parts: list[list[Any]]) -> None:
        super().__init__()
        self.convolutions, self.last = nn.ModuleList(convolutions), nn.Linear(F, CLASSES)
        self.inside = nn.ModuleList(part for some in parts for part in some if isinstance(part, nn.Module))
        self.parts = parts

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        modules = iter(self.inside)
        for k, parts in enumerate(self.parts):
            for part in parts:
                x = next(modules)(x) if isinstance(part, nn.Module) else part(x)
            if k < len(self.convolutions):
                x = self.convolutions[k](x, edge_index)
        return self.last(x)


@dataclass
class Case:
    """A random model, made again by its number alone.

    Attributes:
        names: of its parts.
        mixes: whether one of them does.
    """

    number: int

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([23, self.number])
        torch.manual_seed(self.number)
        self.form = ("list", "traced", "edges")[self.rng.choice(3, p=(0.4, 0.4, 0.2))]
        mixing = self.rng.random() < 0.5
        counts = self.rng.multinomial(self.rng.integers(1, 4), [0.15, 0.7, 0.15])
        where = int(self.rng.integers(counts.sum()))
        self.names, self.parts = [], []
        for count in counts:
            self.parts.append([])
            for _ in range(count):
                kinds = MIXING if mixing and len(self.names) == where else ALONE
                names = [name for name in kinds if self.form != "edges" or name != "own dropout"]  # which wants ids
                name = names[self.rng.integers(len(names))]
                self.names.append(name)
                self.parts[-1].append(kinds[name]())
        before, between, behind = self.parts
        stages = [before + between, behind] if self.form == "edges" else self.parts
        self.mixes = mixing and any(map(chain_differs, stages))  # normalised rows do not show whether all were doubled
        self.dtype = (torch.float32, torch.float64)[self.rng.integers(2)]

    def layers(self) -> list[Any]:
        """Before, between and behind two graph layers."""
        kinds = self.rng.integers(len(LAYERS), size=2)
        if self.form == "traced":
            return hongtu.from_pyg(Traced([CONVOLUTIONS[k](F, F) for k in kinds], self.parts))
        first, second = (LAYERS[k](F, F) for k in kinds)
        before, between, behind = ([as_module(part) for part in parts] for parts in self.parts)
        if self.form == "list":
            return [*before, first, *between, second, *behind, nn.Linear(F, CLASSES)]
        inside = Plain(nn.Sequential(*before, *between), nn.Sequential(*behind))
        return [first, inside, nn.Linear(F, CLASSES)]

    def refused(self) -> str:
        """Why the model is, or nothing."""
        try:
            network = Network(as_modules(self.layers()).to(self.dtype), RowContext())
            trace(network, GraphForm(F, self.dtype))
            refuse_mixing(network, GraphForm(F, self.dtype))
        except InputError as error:
            return str(error)
        return ""


def as_module(part: Any) -> nn.Module:
    return part if isinstance(part, nn.Module) else Of(part)


def differs(part: Any, *, unknown: bool = False) -> bool:
    """Whether a part gives other rows, or other gradients of theirs, in chunks than on all rows, without dropout.

    Args:
        unknown: one row holds no numbers.
    """
    module = as_module(part).double()
    for inside in module.modules():
        if isinstance(inside, nn.Dropout | nn.Dropout1d | hnn.Dropout):
            inside.p = 0.0
    torch.manual_seed(3)
    count = 43 + lag_of(module)
    x = torch.randn(count, F, dtype=torch.float64)
    x[11:30], x[30:] = x[11:30].abs(), -x[30:].abs()
    x[5] = torch.nan if unknown else x[5]
    weight = torch.randn(count, F, dtype=torch.float64)
    found = []
    for chunks in ([count], [1, 10, 19, count - 30]):
        h = x.clone().requires_grad_()
        try:
            outs = [module(rows) for rows in h.split(chunks)]
        except ValueError:  # as batch_norm of one row
            return True
        if any(out.shape != (count, F) for out, count in zip(outs, chunks)):
            return True
        out = torch.cat(outs)
        if out.requires_grad:
            for own, some in zip(outs, weight.split(chunks)):
                own.backward(some, retain_graph=True)
        found.append((out.detach(), h.grad if h.grad is not None else torch.zeros_like(h)))
    return not all(torch.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True) for one, other in zip(*found))


def lag_of(module: nn.Module) -> int:
    """The number of rows between those that its parts put together, or 0."""
    parts = [part for own in module.modules() for part in (own, getattr(own, "function", None))]
    return max(getattr(part, "lag", 0) for part in parts)


def chain_differs(parts: list[Any]) -> bool:
    """Whether parts one after another do."""
    chain = nn.Sequential(*(copy.deepcopy(as_module(part)) for part in parts))
    if differs(chain):
        return True
    try:
        return differs(chain, unknown=True)
    except (IndexError, RuntimeError):  # no number names no row
        return False


def judged(number: int) -> str:
    """What is wrong with the judgement of a case, or nothing."""
    case = Case(number)
    reason = case.refused()
    mixes = case.mixes or (bool(reason) and any("one code" in name for name in case.names))  # which no row may have
    if bool(reason) == mixes and (not reason or "mixes the rows" in reason):
        return ""
    return f"case {number} ({case.form}, {case.dtype}, {', '.join(case.names)}): {reason or 'taken'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    given, begun = parser.parse_args(), time.monotonic()
    wrong = 0
    for number in range(given.first, given.first + given.cases):
        if found := judged(number):
            wrong += 1
            print(found, flush=True)
    print(f"{given.cases} models, {wrong} wrong, {time.monotonic() - begun:.0f} s")
    return wrong > 0


if __name__ == "__main__":
    raise SystemExit(main())
