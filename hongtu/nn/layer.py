"""The base class of layers: transform (per vertex), aggregate (over in-edges), combine and update (per vertex).

Legend: R rows of a row-wise call, D destinations and S sources of a block, F features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hongtu.errors import InputError
from hongtu.graph.paper_edges import PaperEdges
from hongtu.graph.topology import Topology
from hongtu.kernels.torch_private import has_hooks
from hongtu.nn.block import Block, Rows
from hongtu.nn.context import RowContext
from hongtu.nn.dropout import Dropout
from hongtu.nn.sparse_input import SparseInput

Skip = Tensor | tuple[Tensor, ...] | None
TRANSFORMS = {"can_transform_first", "transform", "aggregate", "combine", "update", "spread", "map", "mapped"}


class Layer(torch.nn.Module):
    """One layer of a GNN; give the three methods, or only ``forward(block, h)``.

    ``z`` is exchanged between vertices; ``s`` stays with its vertex. Biases come after the aggregate: inside ``z``
    they are wrong for isolated vertices and for degrees other than one. What a layer allocates must depend on the sizes
    of its inputs only: a budget is planned from these, and exceeding it raises ``DeviceOutOfMemory``.

    Attributes:
        reduce: "sum" or "mean": declares that ``aggregate`` is this reduction of ``z`` over in-edges (linear, without
            parameters, so that its output can be cached); None: it is something else.
        weighted: the declared reduction uses the graph's edge weights when it has any.
        uses_statistics: ``transform`` or ``update`` read ``self.rows.statistics``.
        uses_out_degrees: these have a fourth column, the sums of the weights of out-edges but self-loops.
        factors: of ``degree_factors``, what of these they are content with; None: nothing but the statistics.
        uses_edge_features: ``aggregate`` (or ``forward``) reads ``block.edge_features``; a graph without is refused.
        uses_edge_type: the same for ``block.edge_type``.
        updates_edges: the layer gives every edge a new state, for layers after it: ``update_edges`` is overridden, or
            ``forward(block, h)`` returns a pair, of which the second is the state of the block's edges; say so there.
        reads_input: of several that ``expand`` gives: ``update`` takes the h that went into the first, too; it is kept
            once for all.
        encode_edges: a module of one's own that may be set on an object: ``aggregate`` gets its rows for edge features.
        drop_edges: an ``EdgeDropout`` that may be set on an object: ``aggregate`` gets the edges that it leaves.
        edge_inputs: of a traced forward, by the convolution's argument (edge_weight, edge_attr, edge_type) what it is
            called with; an argument that is missing gets nothing. None: each is the graph's own.
        edge_form: the rank and the kind of numbers ("f", "i", "b") in which ``encode_edges`` gets edge features.
        edge_kinds: [2, F], the least and the most of edge features that are integers, where an Embedding looks them up.
        ignores_weights: ``aggregate`` gets no edge weights, and statistics count edges; set by ``edge_inputs``.
        edge_data_optional: graphs without them are not refused; the block then has None.
        transform_first: apply the layer's first linear map in ``transform`` (before the exchange) and not in
            ``update``; set by the planner, only where ``can_transform_first``.
        once_per_vertex: what depends on one vertex alone is computed before the exchange. Else, as in the HongTu paper,
            h is exchanged as it is, and each replica of it computes that anew; set by the planner, only where there are
            ``paper_edges``.
    """

    reduce: str | None = None
    weighted: bool = False
    uses_statistics: bool = False
    uses_out_degrees: bool = False
    factors: tuple[bool, bool, str] | None = None
    uses_edge_features: bool = False
    uses_edge_type: bool = False
    reads_input: bool = False
    edge_data_optional: bool = False
    edge_inputs: dict[str, Any] | None = None
    edge_form: tuple[int, str] = (2, "f")
    edge_kinds: Tensor | None = None
    ignores_weights: bool = False
    transform_first: bool = False
    once_per_vertex: bool = True

    def __init__(self) -> None:
        super().__init__()
        self.context: RowContext | None = None

    @property
    def can_transform_first(self) -> bool:
        """Whether ``transform_first`` may be set."""
        return False

    @property
    def may_transform_first(self) -> bool:
        """Whether it can, and no subclass has overridden what that is about."""
        definer = next(base for base in type(self).__mro__ if not vars(base).keys().isdisjoint(TRANSFORMS))
        return self.can_transform_first and "can_transform_first" in vars(definer)

    @property
    def paper_edges(self) -> PaperEdges | None:
        """The edges that the layer aggregates over where it is not ``once_per_vertex``; None: it always is."""
        return None

    @property
    def drops_weights(self) -> bool:
        """Whether it sees no weights of the edges that it aggregates over; those that normalise it does."""
        edges = None if self.once_per_vertex else self.paper_edges
        return self.ignores_weights and not (edges is not None and edges.normalized)

    @property
    def bare_maps(self) -> tuple[torch.nn.Module, ...]:
        """Submodules of which the layer takes weight and bias without calling them."""
        return ()

    @property
    def bare_products(self) -> tuple[torch.nn.Module, ...]:
        """Submodules without a bias of which the layer takes the weight without calling them."""
        return ()

    @property
    def linear_aggregate(self) -> bool:
        """Whether ``aggregate`` is linear in ``z``, ignores ``s`` and has no parameters; a subclass may set True."""
        return self.reduce is not None

    @property
    def combines(self) -> bool:
        """Whether ``combine`` takes ``s``; then ``update`` gets None for it."""
        return False

    @property
    def plain(self) -> bool:
        """Whether only ``forward(block, h)`` is given: transform and update are the identity."""
        return type(self).forward is not Layer.forward and type(self).aggregate is Layer.aggregate

    @property
    def updates_edges(self) -> bool:
        return type(self).update_edges is not Layer.update_edges

    @property
    def rows(self) -> Rows:
        """The vertices of the current call."""
        assert self.context is not None and self.context.rows is not None, "no current rows: bind() the model first"
        return self.context.rows

    @property
    def maps_input(self) -> bool:
        """Whether all that ``transform`` does with h is to drop elements and multiply by weights, so that a
        ``SparseInput`` will do."""
        return self.built_in and self.transform_first

    def mapped(self, h: Tensor | SparseInput, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """h W^T + b, for a ``transform`` to return it as it is or times constants: where only its gradients are wanted,
        there are no numbers in it. For the weight of a module that ``is_plain``."""
        only = self.context is not None and self.context.gradients_only and self.built_in
        if isinstance(h, SparseInput):
            return h.mapped(weight, bias, gradients_only=only)
        if only and not torch.is_autocast_enabled(h.device.type):
            return _MapGradients.apply(h, weight, bias)
        return torch.nn.functional.linear(h, weight, bias)

    @property
    def built_in(self) -> bool:
        """Whether nobody has overridden anything: what a subclass does with a result is not known."""
        return type(self).__module__.startswith("hongtu.nn.")

    def read_graph(self, topology: Topology) -> None:
        """Called with the whole graph before a run, for what a layer has to know beside statistics of vertices."""

    def expand(self) -> list[Layer]:
        """The layers that the engine runs in its place, in order: several for several aggregates in a row. Each that
        is not ``self`` is a submodule, which keeps the parameters under the names of this layer."""
        return [self]

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        """[R, F] -> z [R, F'], s: None, a tensor or a tuple of tensors [R, ...]; what *is* ``z`` is stored once."""
        return h, h

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        """z [S, F'] of the sources, s [D, ...] of the destinations -> a [D, F'']."""
        if self.reduce == "sum":
            return block.sum(z, weighted=self.weighted)
        if self.reduce == "mean":
            return block.mean(z, weighted=self.weighted)
        if self.reduce is not None:
            raise ValueError(f"{type(self).__name__}.reduce is {self.reduce!r}: expected 'sum', 'mean' or None")
        with_destinations, others = block.with_destinations()
        return self.forward(with_destinations, torch.cat([s, z[others]]))

    def update_edges(self, block: Block, z: Tensor, s: Skip, e: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """z [S, F'] of the sources, s [D, ...] of the destinations, e [E, F] of the edges -> e' [E, F''], the edges'
        states behind this layer, which ``aggregate`` then finds in ``block.edge_features``; or a pair of e' and of what
        it finds there instead. A row of e' may depend on that edge, its ends, and other in-edges of its destination. A
        ``Dropout`` inside draws by edge."""
        raise NotImplementedError(f"{type(self).__name__} defines no update_edges(block, z, s, e)")

    def aggregate_updated(self, block: Block, z: Tensor, s: Skip) -> tuple[Tensor, Tensor]:
        """``aggregate`` and the new states of the edges, of those in ``block.edge_features``."""
        if type(self).update_edges is Layer.update_edges:  # forward(block, h) returns both
            found: Any = self.aggregate(block, z, s)
            if not isinstance(found, tuple) or len(found) != 2:
                raise InputError(f"{type(self).__name__}: updates_edges, so forward must return the pair (h, e)")
            return found
        assert self.context is not None
        rows, self.context.rows = self.context.rows, block.rows_of_edges
        found = self.update_edges(block, z, s, block.edge_features)
        self.context.rows = rows
        states, seen = found if isinstance(found, tuple) else (found, found)
        return self.aggregate(replace(block, edge_features=seen), z, s), states

    def aggregate_changed(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        """``aggregate``, of the edges that ``drop_edges`` leaves, and of features as ``encode_edges`` gives them, where
        these are set."""
        encoder, dropout = getattr(self, "encode_edges", None), getattr(self, "drop_edges", None)
        block = block if dropout is None else dropout(block)
        if encoder is not None and block.edge_features is not None:
            block = replace(block, edge_features=encoder(self.given_form(block.edge_features)))
        return self.aggregate(block, z, s)

    def given_form(self, rows_EF: Tensor) -> Tensor:
        """Edge features in the form in which the graph was given them, as ``edge_form`` says: [E] or [E, F]."""
        rank, kind = self.edge_form
        rows = rows_EF if kind == "f" else rows_EF.bool() if kind == "b" else rows_EF.long()
        return rows.squeeze(1) if rank == 1 else rows

    def combine(self, a: Tensor, s: Skip) -> Tensor:
        """a and s [R, ...] of the same rows, where ``combines``: linear in both and without parameters, so that its
        result is all that has to be kept (a self-loop, a normalisation)."""
        raise NotImplementedError(f"{type(self).__name__}.combines is True: define combine(a, s)")

    def update(self, a: Tensor, s: Skip) -> Tensor:
        """a [R, F''], s [R, ...] -> h [R, F''']."""
        return a

    def forward(self, block: Block, h: Tensor) -> Tensor:
        """h [S, F], its first D rows those of the destinations -> [D, F']."""
        raise NotImplementedError(
            f"{type(self).__name__} defines neither forward(block, h) nor an aggregate: give forward, or "
            "transform/aggregate/update, or set reduce = 'sum' | 'mean'"
        )


def bind(model: torch.nn.Module, context: RowContext) -> RowContext:
    """Give every ``Layer`` and ``Dropout`` of the model the context, and every dropout its ``site`` number.

    Sites are counted in module order, so that the same model has the same masks in every run.
    """
    sites = 0
    for module in model.modules():
        if isinstance(module, (Layer, Dropout)):
            module.context = context
        if isinstance(module, Dropout):
            module.site = sites
            sites += 1
    return context


class _MapGradients(torch.autograd.Function):
    """The gradients of h W^T + b, without its numbers."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(h, weight)
        return h.new_zeros(()).expand(len(h), len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (h, weight), (of_h, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            grad.mm(weight) if of_h else None,
            h.t().mm(grad).t() if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


def is_plain(module: torch.nn.Module) -> bool:
    """Whether a module is h W^T + b and nothing else, so that its weight says it all."""
    linear = isinstance(module, torch.nn.Linear) and type(module).forward is torch.nn.Linear.forward
    return linear and "forward" not in vars(module) and not has_hooks(module)


def is_chain(module: torch.nn.Module) -> bool:
    """Whether a module is its parts, at least one, called in order, and nothing else."""
    chain = type(module) is torch.nn.Sequential and len(module) > 0
    return chain and "forward" not in vars(module) and not has_hooks(module)


def is_product(module: torch.nn.Module) -> bool:
    """Whether a module is h W^T and nothing else."""
    return is_plain(module) and module.bias is None


def refuse_kinds(title: str, error: Exception) -> None:
    """Refuse kinds that an Embedding has no rows for, where that is what failed.

    Raises:
        InputError: naming them.
    """
    frame = error.__traceback__
    while type(error) is IndexError and frame is not None:
        own = frame.tb_frame.f_locals
        if isinstance(part := own.get("self"), torch.nn.Embedding) and isinstance(given := own.get("input"), Tensor):
            least, most, rows = int(given.min()), int(given.max()), part.num_embeddings
            remedy = "number them from 0, as kinds - kinds.min()" if least < 0 else f"make it of {most + 1}"
            raise InputError(
                f"{title}: looks up kinds from {least} to {most} in an Embedding of {rows} rows, expected 0 to "
                f"{rows - 1}; {remedy}"
            ) from error
        frame = frame.tb_next
