"""torch_geometric's convolutions between types with hongtu's kernels in them: no edge has a row of features.

A convolution runs as it is, but for its ``propagate``. Legend: D destinations and S sources of a relation, or of all, E
edges, F features, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from hongtu.kernels.torch_private import has_hooks, is_pyg
from hongtu.nn.layers.pyg import with_extra_destination
from hongtu.nn.ops import aggregates, attention

_OWN = "torch_geometric.nn.", "torch.nn.modules.container"  # of HGTConv's parts


class WithKernels(nn.Module):
    """A convolution for which :func:`has_kernels`.

    Args:
        conv: the convolution; its parameters stay its own.
        run: what calls it, if not itself.
    """

    def __init__(self, conv: nn.Module, run: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.run = conv, run or conv

    def forward(self, *given: Any, **named: Any) -> Any:
        return called(self.conv, *given, run=self.run, **named)


class OnFewEdges(nn.Module):
    """A convolution that may fail where there are no edges, or destinations without: it runs
    :func:`with_extra_destination` then.

    Args:
        conv: between rows of sources and of destinations; its parameters stay its own.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, pair: tuple[Tensor, Tensor], edge_index: Tensor, *given: Any, **named: Any) -> Any:
        try:
            return self.conv(pair, edge_index, *given, **named)
        except (RuntimeError, IndexError) as error:
            if type(error) not in (RuntimeError, IndexError):  # memory that ran out
                raise
        return with_extra_destination(self.conv, pair, edge_index, *given, **named)


def called(conv: Any, *given: Any, run: Any = None, **named: Any) -> Any:
    """What it gives, or ``run``, which calls it, with kernels where it has some."""
    run = run or conv
    if not has_kernels(conv):
        return run(*given, **named)
    conv.propagate = partial(_PROPAGATE[type(conv).__name__], conv)
    try:
        return run(*given, **named)
    finally:
        del conv.propagate


def has_kernels(conv: Any) -> bool:
    """Whether a convolution is one of torch_geometric's, unchanged, that adds up rows of sources, by weights or by
    attention."""
    cls = type(conv)
    if cls.__name__ not in (*_PROPAGATE, "HGTConv") or not is_pyg(conv, "nn.conv."):
        return False
    changed = {"propagate", "message", "aggregate", "update", "message_and_aggregate"} & vars(conv).keys()
    hooked = any(vars(conv)[name] for name in vars(conv) if name.endswith(("_forward_hooks", "_forward_pre_hooks"))
                 and name not in ("_forward_hooks", "_forward_pre_hooks") and "edge_update" not in name)  # fmt: skip
    alike = conv.aggr in ("add", "sum", "mean") and conv.decomposed_layers == 1 and not conv.explain
    if cls.__name__ == "HGTConv":  # whose own forward, and those of its maps, are not called
        alike &= all(type(part).__module__.startswith(_OWN) and not has_hooks(part) for part in conv.modules())
        changed |= {"forward"} & vars(conv).keys()
    return alike and not changed and not hooked


def _by_destination(edge_index: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of edges [2, E] indptr [count + 1] and sources [E], by destination, and the order that they are in then; None: in
    the same."""
    source, destination = edge_index
    order = None
    if bool((destination[1:] < destination[:-1]).any()):
        destination, order = destination.sort(stable=True)
        source = source[order]
    indptr = torch.searchsorted(destination.contiguous(), torch.arange(count + 1, device=destination.device))
    return indptr, source.int(), order


def _ordered(values: Tensor, order: Tensor | None) -> Tensor:
    return values if order is None else values[order]


def _as_it_is(conv: Any, edge_index: Tensor, size: Any, given: dict[str, Any]) -> Tensor:
    return type(conv).propagate(conv, edge_index, size=size, **given)


def _sums(conv: Any, edge_index: Tensor, size: Any = None, **given: Any) -> Tensor:
    """[D, F], of x ([S, F], [D, ...]) and perhaps edge_weight [E]: ``aggregate`` of ``x_j * edge_weight``."""
    (rows, own), weight = given["x"] if isinstance(given["x"], tuple) else (given["x"],) * 2, given.get("edge_weight")
    learned = weight is not None and weight.requires_grad
    if own is None or learned or rows.ndim != 2 or not _has_kernels_of(rows):
        return _as_it_is(conv, edge_index, size, given)
    indptr, source, order = _by_destination(edge_index, len(own))
    weight = None if weight is None else _ordered(weight.flatten(), order)
    return aggregates.aggregate(rows, indptr, source, weight, conv.aggr == "mean")


def _attends(conv: Any, edge_index: Tensor, size: Any = None, **given: Any) -> Tensor:
    """[D, H, C], of x ([S, H, C], ...) and alpha [E, H]: the sum of ``x_j * alpha``, as of a GATConv."""
    rows, own = given["x"]
    if own is None or not _has_kernels_of(rows):
        return _as_it_is(conv, edge_index, size, given)
    indptr, source, order = _by_destination(edge_index, len(own))
    alpha, width = _ordered(given["alpha"], order), rows.shape[1:].numel()
    return aggregates.attend(rows.reshape(len(rows), width), alpha, indptr, source, width).view(-1, *rows.shape[1:])


def _has_kernels_of(rows: Tensor) -> bool:
    return rows.dtype in (torch.float32, torch.float64)


_PROPAGATE: dict[str, Callable[..., Tensor]] = dict.fromkeys(("SAGEConv", "GraphConv", "GINConv", "GCNConv"), _sums)
_PROPAGATE |= {"GATConv": _attends}


class HgtWithKernels(nn.Module):
    """An HGTConv on a chunk: matrices of relations act on rows of destinations, which are fewer than those of sources
    (Hu et al., "Heterogeneous Graph Transformer", WWW 2020, equations 3 to 5).

    Args:
        conv: the convolution, for which :func:`has_kernels`.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor], own: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """By type [D, F], of rows of sources and edges, and of the destinations' rows, which come first among those."""
        conv: Any = self.conv
        keys, values, queries = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
        for kind, lin in conv.kqv_lin.lins.items():
            if kind in x_dict:
                key_W, query_W, value_W = lin.weight.chunk(3)
                of_key, of_query, of_value = (None,) * 3 if lin.bias is None else lin.bias.chunk(3)
                keys[kind], values[kind] = linear(x_dict[kind], key_W, of_key), linear(x_dict[kind], value_W, of_value)
                queries[kind] = linear(own[kind], query_W, of_query)
        found: dict[str, Tensor] = {}
        for kind in (kind for kind in x_dict if kind in conv.dst_node_types):
            to_it = [relation for relation in edge_index_dict if relation[2] == kind]
            edges = {relation: edge_index_dict[relation] for relation in to_it}
            rows = self._attended(edges, keys, queries[kind], values)
            rows = conv.out_lin.lins[kind](gelu(rows))
            if rows.shape[1] == own[kind].shape[1]:
                share = conv.skip[kind].sigmoid()
                rows = share * rows + (1 - share) * own[kind]
            found[kind] = rows
        return found

    def _attended(
        self, edges: dict[Any, Tensor], keys: dict[str, Tensor], query_DF: Tensor, values: dict[str, Tensor]
    ) -> Tensor:
        """[D, F]: the sum over a type's in-edges of all relations, by shares that add up to one over all of them."""
        conv: Any = self.conv
        logits, blocks, out = [], [], torch.zeros_like(query_DF)
        for relation, edge_index in edges.items():
            indptr, source, _ = _by_destination(edge_index, len(query_DF))
            factor = conv.p_rel["__".join(relation)].view(1, -1, 1) / math.sqrt(conv.out_channels // conv.heads)
            query = self._mapped(query_DF, self._of_relation(conv.k_rel, relation).mT, factor)
            logits.append(attention.dot(keys[relation[0]], query, indptr, source, conv.heads))
            blocks.append((relation, indptr, source))
        for (relation, indptr, source), alpha in zip(
            blocks, _shares(logits, [indptr for _, indptr, _ in blocks]), strict=True
        ):
            rows = aggregates.attend(values[relation[0]], alpha, indptr, source, out.shape[1])
            out = out + self._mapped(rows, self._of_relation(conv.v_rel, relation))
        return out

    def _of_relation(self, module: Any, relation: Any) -> Tensor:
        """[H, C, C]."""
        conv: Any = self.conv
        weight: Tensor = module.weight.unflatten(0, (conv.heads, -1))[:, conv.edge_types_map[relation]]
        return weight

    def _mapped(self, rows_DF: Tensor, matrices_HCC: Tensor, factor: Tensor | float = 1.0) -> Tensor:
        """[D, F]: each head's columns times its matrix."""
        rows_DHC = rows_DF.unflatten(1, (len(matrices_HCC), -1))
        return (torch.einsum("dhi,hij->dhj", rows_DHC, matrices_HCC) * factor).flatten(1)


def _shares(logits: list[Tensor], starts: list[Tensor]) -> list[Tensor]:
    """For each relation [E, H]: the softmax over all in-edges of a destination, of which each has its ``starts``."""
    if len(logits) < 2:
        return [aggregates.edge_softmax(*of_one)[0] for of_one in zip(logits, starts, strict=True)]
    ends = torch.cat([torch.repeat_interleave(indptr.diff()) for indptr in starts])
    every = torch.stack([torch.arange(len(ends), device=ends.device), ends])
    indptr, order, _ = _by_destination(every, len(starts[0]) - 1)
    alpha, _ = aggregates.edge_softmax(aggregates.edge_gather(torch.cat(logits), order), indptr)
    back = torch.empty_like(order)
    back[order.long()] = torch.arange(len(order), dtype=order.dtype, device=order.device)
    return [*aggregates.edge_gather(alpha, back).split([*map(len, logits)])]
