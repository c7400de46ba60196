"""Dropout whose mask depends on what a row is, never on where or when it is computed.

Legend: R rows, F columns. An element is dropped where the 32-bit hash of (seed, epoch, site, call, row id, column) is
below p * 2^32. The hash is splitmix64's mixing; one 64-bit hash serves two columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hongtu.compiled import compiled
from hongtu.errors import InputError, names_known
from hongtu.kernels.dispatch import kernels_for, on_numba, plain_rows
from hongtu.kernels.parts import by_row
from hongtu.kernels.torch_private import times_written
from hongtu.nn.context import RowContext
from hongtu.nn.sparse_input import SparseInput

if TYPE_CHECKING:
    from hongtu.nn.block import Block

AT_ONCE = 1 << 15  # elements whose hashes fit a processor's cache
_MASK = (1 << 64) - 1
_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@names_known
class Dropout(torch.nn.Module):
    """Drops elements of ``x`` with probability ``p`` and scales the others by 1 / (1 - p).

    Bound to a run (``hongtu.nn.layer.bind``) the mask of a row depends only on (seed, epoch, site, number of the
    call within the layer call, row id, column): recomputation and any cutting into chunks see the same one. Unbound
    it is ``torch.nn.functional.dropout``.

    Args:
        p: 0 to 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability {p}: expected 0 to 1")
        self.p = p
        self.site = 0
        self.context: RowContext | None = None

    def forward(self, x: Any, ids: Tensor | None = None, p: float | None = None) -> Any:
        """``x`` float [R, ...], or a ``SparseInput``; ``ids`` int64 [R], identity of each row (default: original vertex
        ids of the call); ``p``: of this call alone."""
        context, p = self.context, self.p if p is None else p
        if x.dtype not in (torch.float32, torch.float64):  # under autocast; the mask is the same
            return self.forward(x.float(), ids, p).to(x.dtype)
        if not self.drops:
            return x
        if context is None:
            return torch.nn.functional.dropout(x, p)
        if ids is None:
            if context.rows is None:
                raise InputError(
                    "a hongtu.nn.Dropout is called when no layer is, as where torch.utils.checkpoint computes it "
                    "again; leave that out: chunks are computed again as it is"
                )
            ids = context.rows.ids
        if len(ids) != len(x):
            raise InputError(
                f"a dropout is given {len(x)} rows of {len(ids)}, and drops by vertex; give it all rows, or "
                "rows of edges their block.edge_ids, too; in a convolution of torch_geometric, "
                "torch.nn.Dropout drops by edge"
            )
        mask = Mask(epoch_key(context, x.device), self.site, context.next_call(), p)
        if isinstance(x, SparseInput):
            return _of_numbers(x, ids, mask)
        return _Dropout.apply(x.reshape(len(x), x.shape[1:].numel()), ids, mask).view(x.shape)

    @property
    def drops(self) -> bool:
        """Whether it does anything now."""
        return self.p > 0 and self.training and (self.context is None or self.context.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


@names_known
class EdgeDropout(Dropout):
    """Leaves out edges with probability ``p``, in training: what ``torch_geometric.utils.dropout_edge`` draws.

    Set as ``drop_edges`` of a layer whose aggregate needs its vertices' in-edges and nothing else. Layers that share
    one leave out the same edges.

    Args:
        p: 0 to 1.
    """

    def forward(self, block: Block) -> Block:  # type: ignore[override]
        """The block, or one of fewer edges; each edge's number depends on its id alone."""
        if not self.drops:
            return block
        one_E1, context = torch.ones(block.num_edges, 1, device=block.indptr.device), self.context
        if context is None:
            return block.keeping(torch.rand_like(one_E1).squeeze(1) >= self.p)
        mask = Mask(epoch_key(context, one_E1.device), self.site, 0, self.p)  # the same in every layer
        return block.keeping(_apply_mask(one_E1, block.edge_ids, mask).squeeze(1) > 0)


def check_drop_edges(layer: Any, title: str) -> None:
    """Have all parts of a layer drop the edges that it drops.

    Raises:
        InputError: for a layer that needs more of the graph than in-edges.
    """
    dropout = getattr(layer, "drop_edges", None)
    for part in layer.expand() if dropout is not None else ():
        if part.uses_statistics:
            raise InputError(
                f"{title} normalises by degrees: of edges that dropout_edge leaves these change in every epoch, and a "
                "chunk does not show its sources'; normalise by all edges, once: torch_geometric.transforms.GCNNorm "
                "and GCNConv(normalize=False), called with edge_weight[mask]; or drop edges of a layer that needs "
                "in-edges alone (SAGEConv, GraphConv, GINConv, GATConv, GATv2Conv, TransformerConv)"
            )
        part.drop_edges = dropout


class Mask(NamedTuple):
    """What a mask depends on beside rows and columns.

    Attributes:
        key: int64 [1], of the seed and the epoch: kernels read it where it is.
        site, call: of the dropout.
        p: the probability.
    """

    key: Tensor
    site: int
    call: int
    p: float

    @property
    def scale(self) -> float:
        """Of the elements that stay."""
        return 0.0 if self.p == 1 else 1 / (1 - self.p)


def epoch_key(context: RowContext, where: torch.device) -> Tensor:
    """int64 [1], at one address of a device for the whole run: the key of (seed, epoch), written anew where these have
    changed. The engine asks for it before the passes of an epoch, so that nothing is written inside."""
    now, (then, key) = (context.seed, context.epoch), context.keys.get(where, (None, None))
    if key is None or then != now:
        with torch.inference_mode(False):
            key = torch.empty(1, dtype=torch.int64, device=where) if key is None else key
            context.keys[where] = now, key.fill_(_signed(dropout_key(*now)))
    return key


def key_bytes(model: torch.nn.Module) -> int:
    """What the key takes of a device that runs a model."""
    return 8 if any(isinstance(module, Dropout) for module in model.modules()) else 0


def dropout_key(*parts: int, key: int = 0) -> int:
    """One 64-bit key of what tells random numbers apart: for dropout (seed, epoch, site, call). The first parts may be
    in a ``key`` already."""
    for part in parts:
        key = _mix_int(key ^ _mix_int((int(part) + _GOLDEN) & _MASK))
    return key


def hashes(ids: np.ndarray, count: int, key: int) -> np.ndarray:
    """uint64 [R, count]: for every row id [R] so many hashes under a key."""
    return _row_hashes(ids, np.uint64(key), np.arange(count, dtype=np.uint64))


def _row_hashes(ids: np.ndarray, key: np.uint64, numbers: np.ndarray) -> np.ndarray:
    found: np.ndarray = mix.py_func(_of_rows(ids, key)[:, None] + numbers * np.uint64(_GOLDEN))
    return found


def _of_rows(ids: np.ndarray, key: np.uint64) -> np.ndarray:
    """uint64 [R], what all hashes of a row are made of."""
    found: np.ndarray = mix.py_func(mix.py_func(ids.astype(np.uint64)) ^ key)
    return found


def _of_numbers(x: SparseInput, ids: Tensor, mask: Mask) -> SparseInput:
    """The same mask on the numbers that are stored: zeros stay zeros."""
    column, of_call = x.column.numpy(), np.uint64(dropout_key(mask.site, mask.call, key=int(mask.key) & _MASK))
    row_K = np.repeat(_of_rows(ids.numpy(), of_call), np.diff(x.start.numpy()))
    hash_K = mix.py_func(row_K + (column >> 1).astype(np.uint64) * np.uint64(_GOLDEN))
    half_K = np.where(column & 1, hash_K >> np.uint64(32), hash_K) & np.uint64(0xFFFFFFFF)
    value = x.value * mask.scale
    value.numpy()[half_K < _threshold(mask.p)] = 0
    return replace(x, value=value)


class _Dropout(torch.autograd.Function):
    """Recomputes the mask in backward: nothing but the ids is kept."""

    @staticmethod
    def forward(ctx, x_RF, ids, mask):
        ctx.mask, ctx.written = mask, times_written(mask.key)
        ctx.save_for_backward(ids)
        return _apply_mask(x_RF, ids, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_RF):
        assert times_written(ctx.mask.key) == ctx.written, "another epoch has begun"
        return _apply_mask(grad_RF, *ctx.saved_tensors, ctx.mask), None, None


def _apply_mask(x_RF: Tensor, ids: Tensor, mask: Mask) -> Tensor:
    key, site, call, p = mask
    scale, out_RF = mask.scale, x_RF.new_empty(x_RF.shape)
    if not on_numba(x_RF):
        numbers = site, call, _threshold(p), scale
        kernels_for(x_RF).dropout(plain_rows(x_RF), ids.contiguous(), key, *numbers, out_RF)
        return out_RF
    _dropout(
        x_RF.detach().contiguous().numpy(),
        ids.contiguous().numpy(),
        key.numpy().view(np.uint64),
        np.uint64(site),
        np.uint64(call),
        np.uint64(_threshold(p)),
        x_RF.detach().numpy().dtype.type(scale),
        out_RF.numpy(),
    )
    return out_RF


def _threshold(p: float) -> int:
    return round(p * 2**32)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX2) & _MASK
    return x ^ (x >> 31)


@compiled
def mix(x):
    """64 bits in which each of the 64 of ``x`` counts, for kernels that draw."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _dropout_arrays(x_RF, ids, key, site, call, threshold, scale, out_RF):
    """As ``_dropout``, for some rows at a time."""
    (num_rows, width), of_call = x_RF.shape, np.uint64(dropout_key(site, call, key=int(key[0])))
    pairs = np.arange((width + 1) // 2, dtype=np.uint64)
    step = max(1, AT_ONCE // max(1, width))
    for first in range(0, num_rows, step):
        rows = slice(first, first + step)
        halves = np.ascontiguousarray(_row_hashes(ids[rows], of_call, pairs)).view("<u4")  # the lower one first
        np.multiply(x_RF[rows], scale, out=out_RF[rows])
        out_RF[rows][halves[:, :width] < threshold] = 0


@by_row(cost=4, plain=_dropout_arrays, until=1_000_000_000)
def _dropout(part, bounds, x_RF, ids, key, site, call, threshold, scale, out_RF):
    width = x_RF.shape[1]
    golden = np.uint64(0x9E3779B97F4A7C15)
    of_call = mix(mix(key[0] ^ mix(site + golden)) ^ mix(call + golden))
    low = np.uint64(0xFFFFFFFF)
    zero = x_RF.dtype.type(0)
    for r in range(bounds[part], bounds[part + 1]):
        row = mix(mix(np.uint64(ids[r])) ^ of_call)
        for pair in range(width // 2):
            bits = mix(row + np.uint64(pair) * golden)
            f = 2 * pair
            out_RF[r, f] = x_RF[r, f] * scale if bits & low >= threshold else zero
            out_RF[r, f + 1] = x_RF[r, f + 1] * scale if bits >> np.uint64(32) >= threshold else zero
        if width % 2:
            bits = mix(row + np.uint64(width // 2) * golden)
            f = width - 1
            out_RF[r, f] = x_RF[r, f] * scale if bits & low >= threshold else zero
