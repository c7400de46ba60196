"""An unchanged torch_geometric convolution as a layer."""

from __future__ import annotations

import inspect
import math
import typing
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hongtu.errors import InputError, names_known
from hongtu.kernels.torch_private import copied, has_hooks, is_pyg
from hongtu.nn.block import Block
from hongtu.nn.layer import Layer, refuse_kinds
from hongtu.nn.message_dropout import Edges, MessageDropout, may_drop, nothing_left, told_apart

_OURS = (
    "GCNConv", "GCN2Conv", "GATConv", "SAGEConv", "GINConv", "ResGatedGraphConv", "SGConv", "APPNP", "ChebConv",
    "PNAConv",
)  # fmt: skip


@names_known
class PyGLayer(Layer):
    """Runs ``conv((h, h[:D]), edge_index)`` on every block, or ``conv(h, edge_index)[:D]`` where it takes no pair, or
    has hooks; the whole layer is recomputed in backward.

    Edge weights, features and types are passed when the convolution takes ``edge_weight``, ``edge_attr`` (and its
    ``edge_dim``, if it has one, is given) or ``edge_type``, and the graph has them. Parameters keep their names under
    ``conv.``.

    Args:
        conv: a ``torch_geometric.nn.MessagePassing`` that runs on bipartite graphs, between [S, F] and [D, F]; or takes
            one tensor [V, F], where what it gives for a vertex depends on that vertex, its in-edges and their sources
            alone, which is tried on a small graph.
            A ``MetaLayer`` without a global model, too.
        square: it is given one tensor, though it might take a pair.
        updates_edges: it returns what edges have from then on behind the rows, (x, edge_attr), and is given one tensor.

    Raises:
        ValueError: for a convolution that takes no pair and needs more of the graph (degrees of sources, as GCNConv, or
            several hops), or that caches a graph (``cached=True``).
        InputError: when it runs, for one of one's own that says nothing of pairs and does so, or one that fails on
            vertices without in-edges.
    """

    edge_data_optional = True
    updates_edges = False

    def __init__(self, conv: torch.nn.Module, square: bool = False, updates_edges: bool = False) -> None:
        super().__init__()
        self.updates_edges = updates_edges or type(conv).__name__ == "MetaLayer"
        check_convolution(conv, updates_edges=self.updates_edges)
        self.square = square or self.updates_edges or not takes_pair(conv)
        parameters = inspect.signature(conv.forward).parameters
        self.conv = conv
        if may_drop(conv):
            self.message_dropout = MessageDropout()
        self._takes, self._takes_size = [*parameters], "size" in parameters
        self._of_ones_own = not is_pyg(conv)
        self.weighted = "edge_weight" in parameters
        self.uses_edge_features = "edge_attr" in parameters and getattr(conv, "edge_dim", 0) is not None
        self.uses_edge_type = "edge_type" in parameters
        self._as_given = self._of_ones_own or any(isinstance(part, torch.nn.Embedding) for part in conv.modules())
        self._given_one, self._is_local, self._is_tried = self.square, False, not self._of_ones_own
        if self.square:
            width, columns = (getattr(conv, name, None) for name in ("in_channels", "edge_dim"))
            beside = {"edge_attr": torch.empty(0, columns)} if self.uses_edge_features and type(columns) is int else {}
            beside |= {"edge_type": torch.empty(0, dtype=torch.long)} if self.uses_edge_type else {}
            try:
                self._check_local((width if isinstance(width, int) and width > 0 else 4,), beside)
            except InputError:
                raise
            except Exception:  # the convolution's own, for other rows than it takes: it is tried with those it is given
                pass

    def forward(self, block: Block, h: Tensor) -> Any:
        dropout, rows = getattr(self, "message_dropout", None), (h, h[: block.num_dst])
        if dropout is None or not dropout.drops:
            with nothing_left(self.conv):
                return self._called(block, *rows)
        h, own = (told_apart(x, block.num_edges) for x in rows)

        @cache
        def edges() -> Edges:
            count = len(h if self._given_one else own)
            ids = block.num_graph_edges + block.rows.ids
            return Edges(block.edge_index, block.edge_ids, ids, vertices=count)

        with nothing_left(self.conv), dropout.inside(self.conv, edges):
            found = self._called(block, h, own)
        return found if self._given_one else found[: block.num_dst]

    def _called(self, block: Block, h: Tensor, own: Tensor) -> Any:
        self._given_one |= has_hooks(self.conv)  # which get what forward gives, the rows
        bipartite = self._takes_size and not self._given_one
        options: dict[str, Any] = {"size": (len(h), len(own))} if bipartite else {}
        if self.weighted and block.edge_weight is not None:
            options["edge_weight"] = block.edge_weight.to(h.dtype)
        if self.uses_edge_features and block.edge_features is not None:
            made = hasattr(self, "encode_edges") or not self._as_given
            options["edge_attr"] = block.edge_features if made else self.given_form(block.edge_features)
        if block.edge_type is not None:
            options["edge_type"] = block.edge_type.long()
        if self._given_one:
            if not self._is_local:
                try:
                    self._check_local(h.shape[1:], options)
                except AssertionError as error:
                    raise InputError(
                        f"PyGLayer({type(self.conv).__name__}): asserts what does not hold for rows {[*h.shape]} and "
                        f"edges alone ({error or 'without a word'}); write it as a hongtu.nn.Layer"
                    ) from error
            found = self.conv(h, block.edge_index, **options)
            return (found[0][: block.num_dst], found[1]) if self.updates_edges else found[: block.num_dst]
        if not self._is_tried:
            self._is_tried = True
            try:
                self._check_local(h.shape[1:], {key: x for key, x in options.items() if key != "size"})
            except InputError:
                raise
            except Exception:  # it takes pairs alone
                pass
        before = dict(vars(self.conv))
        try:
            return self.conv((h, own), block.edge_index, **options)
        except (AttributeError, TypeError, RuntimeError, IndexError, ValueError) as error:
            vars(self.conv).update(before)  # without what it has kept of a call that failed
            refuse_kinds(f"PyGLayer({type(self.conv).__name__})", error)
            name = type(self.conv).__name__
            without = int((block.in_degree == 0).sum()) + len(own) - block.num_dst
            if without and type(error) in (RuntimeError, IndexError):
                try:
                    return with_extra_destination(self.conv, (h, own), block.edge_index, **options)
                except (RuntimeError, IndexError) as again:
                    if type(again) not in (RuntimeError, IndexError):  # memory that ran out
                        raise
            if without and type(error) in (RuntimeError, IndexError):  # not memory that ran out
                raise InputError(
                    f"PyGLayer({name}): fails on a chunk where {without} of {block.num_dst} vertices have no in-edges "
                    f"({error}); preprocess with self-loops, or write it as a hongtu.nn.Layer"
                ) from error
            lacks = [
                key for key in ("edge_attr", "edge_weight", "edge_type") if key in self._takes and key not in options
            ]
            failed: Exception = error
            of_pairs = type(error) is ValueError  # as SimpleConv(combine_root="self_loop") says
            if of_pairs or (self._of_ones_own and not isinstance(error, RuntimeError | IndexError)):
                try:
                    if not self._is_local:
                        self._check_local(h.shape[1:], {key: x for key, x in options.items() if key != "size"})
                except (AttributeError, TypeError, RuntimeError, IndexError) as again:
                    failed = again
                else:
                    self._given_one = True
                    return self._called(block, h, own)
            if lacks and isinstance(error, AttributeError | TypeError):
                raise InputError(
                    f"PyGLayer({name}): its forward fails without {lacks[0]} ({failed}); hand it on, as conv(x, "
                    f"edge_index, {lacks[0]}), and preprocess a graph that has one, as data.{lacks[0]}"
                ) from error
            if failed is error:
                raise
            raise InputError(
                f"PyGLayer({name}): its forward takes neither rows nor a pair of rows, of sources and destinations "
                f"({error}; {failed}); {_cast(failed)}make it take x as in torch_geometric's own, or write it as a "
                "hongtu.nn.Layer"
            ) from error

    def _check_local(self, form: tuple[int, ...], beside: dict[str, Tensor]) -> None:
        """Refuse a convolution of one tensor that gives other rows where edges into other vertices, and vertices that
        none of the edges has, are left out, and the others are numbered anew.

        Args:
            form: of one of the rows that it is tried with, as (columns,).
            beside: what edges have, by the name of its argument; the columns and the kind of each matter.

        Raises:
            InputError: with what to use instead.
            RuntimeError: torch's, when it takes rows of another width.
        """
        conv, name = copied(self.conv).eval().cpu(), type(self.conv).__name__
        dtype = next((p.dtype for p in conv.parameters() if p.is_floating_point()), torch.float32)
        edges = torch.arange(48)
        source, destination = edges * edges % 17 % 16, edges * 5 % 13 % 16  # some edges twice, some self-loops
        source, destination = torch.stack([source, destination])[:, destination.argsort(stable=True)]  # as in a chunk
        x = torch.sin(torch.arange(16 * math.prod(form))).reshape(16, *form).to(dtype)
        options = {}
        for key, given in beside.items():
            numbers = 1.5 + torch.cos(torch.arange(48 * given.shape[1:].numel()))
            numbers = numbers.reshape(48, *given.shape[1:])
            options[key] = numbers.to(dtype) if given.is_floating_point() else (0 * numbers).to(given.dtype)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            whole, again = (conv(x, torch.stack([source, destination]), **options) for _ in range(2))
            whole, again = (found[0] if self.updates_edges else found for found in (whole, again))
            if not torch.equal(whole, again):
                raise InputError(
                    f"PyGLayer({name}): gives other numbers when it is called again; keep nothing between calls, and "
                    "draw no numbers in evaluation"
                )
            for first in (0, 10):
                own = (destination >= first) & (destination < first + 3)
                ends, mine = torch.stack([source, destination])[:, own], [*range(first, first + 3)]
                rows = [*mine, *sorted({*ends[0].tolist()}.difference(mine), reverse=True)]  # as in a chunk
                near = torch.stack([(ends[k].unsqueeze(1) == torch.tensor(rows)).int().argmax(dim=1) for k in range(2)])
                conv = copied(self.conv).eval().cpu()  # which has kept nothing of other edges
                part = conv(x[rows], near, **{key: value[own] for key, value in options.items()})
                part = part[0] if self.updates_edges else part  # a trial run finds out whether edges follow from own
                if not torch.allclose(whole[mine], part[:3], rtol=1e-4, atol=1e-5):
                    raise InputError(
                        f"PyGLayer({name}): what it gives for a vertex depends on more than its in-edges and their "
                        f"sources, all that a chunk has; {_remedy(name)}"
                    )
        self._is_local = True


def with_extra_destination(
    conv: torch.nn.Module, pair: tuple[Tensor, Tensor], edge_index: Tensor, *of_edges: Any, **named: Any
) -> Tensor:
    """Call a convolution that fails where the first destinations, or all, have no in-edges, as torch_geometric's median
    does: a destination with two in-edges comes before them, and is left out again."""

    def behind(x: Any) -> Any:
        return torch.cat([x.new_zeros((2, *x.shape[1:])), x]) if isinstance(x, Tensor) else x

    if "size" in named:
        named["size"] = tuple(count + 1 for count in named["size"])
    rows = tuple(torch.cat([x[:1] if len(x) else x.new_zeros((1, *x.shape[1:])), x]) for x in pair)
    ends = torch.cat([edge_index.new_zeros((2, 2)), edge_index + 1], dim=1)
    return conv(rows, ends, *map(behind, of_edges), **{name: behind(x) for name, x in named.items()})[1:]


def _cast(error: Exception) -> str:
    """What mends edge features of another kind of numbers than a convolution takes."""
    if "scalar types: Long" in str(error):
        return "kinds are integers, as edge_attr.long(); or "
    return "integers become floats by edge_attr.float(); or " if "got Long and" in str(error) else ""


def _remedy(name: str) -> str:
    ours = "GGCNConv" if name == "ResGatedGraphConv" else name
    return f"use hongtu.nn.{ours}" if name in _OURS else "write it as a hongtu.nn.Layer"


def check_convolution(conv: torch.nn.Module, *, updates_edges: bool = False) -> None:
    """Refuse a convolution whose forward, or an option, wants what no chunk has.

    Raises:
        ValueError: with what to use instead.
    """
    name = type(conv).__name__
    if not isinstance(conv, torch.nn.Module):
        raise TypeError(f"PyGLayer({conv!r}): expected a convolution of torch_geometric, as PyGLayer(SAGEConv(16, 32))")
    remedy = _remedy(name)
    if getattr(conv, "cached", False):
        raise ValueError(f"PyGLayer({name}): cached=True keeps one graph, chunks are many; {remedy} or cached=False")
    if getattr(conv, "flow", "source_to_target") != "source_to_target":
        raise ValueError(f"PyGLayer({name}): flow={conv.flow!r}, expected 'source_to_target'; reverse the edges")
    if getattr(conv, "global_model", None) is not None:
        raise ValueError(
            f"PyGLayer({name}): its global_model takes all vertices and edges, of which a chunk has some; leave it out"
        )
    beside = ("edge_weight", "edge_attr", "edge_type", "size")
    signature = inspect.signature(conv.forward)
    gives = str(signature.return_annotation).removeprefix("typing.")
    if gives.lower().startswith("tuple[") and (not updates_edges or "Sparse" in gives):
        raise ValueError(f"PyGLayer({name}): its forward returns a {gives}, expected the rows of one tensor; {remedy}")
    parameters = signature.parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if needed[:1] == ["edge_index"]:
        raise ValueError(
            f"PyGLayer({name}): its forward takes edges and no rows, and has weights for each vertex, of which a chunk "
            "has some; rows that are learned are the x of an artifact with features='embedding:D', and SAGEConv adds up"
        )
    if len([argument for argument in needed if argument not in beside]) > 2:
        raise ValueError(
            f"PyGLayer({name}): its forward needs {', '.join(needed)}, and a layer has rows, edges, and weights, "
            f"features and types of edges; {remedy}"
        )


def takes_pair(conv: torch.nn.Module) -> bool:
    """Whether the first argument of ``forward`` may be a (source, destination) pair, by its annotation."""
    parameters = list(inspect.signature(conv.forward).parameters.values())
    if not parameters:
        return False
    annotation = parameters[0].annotation
    if annotation is inspect.Parameter.empty:
        return True
    if isinstance(annotation, str):
        return "Pair" in annotation or "uple" in annotation
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is not tuple else (annotation,)
    return any(choice is tuple or typing.get_origin(choice) is tuple for choice in choices)
