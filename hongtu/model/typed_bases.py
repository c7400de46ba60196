"""What ``torch_geometric.nn.to_hetero_with_bases`` makes: rows of all types in one tensor, and edges of all relations.

Here rows stay by type: what such a model does to all of them is done to those of each type, and its convolutions are
called with dictionaries. Legend: K types of vertices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from hongtu.model.typed_attention import TypedConv

GROUPS, SPLITS, EDGE_TYPES = "group_node_placeholder", "split_output", "get_edge_type"
UNNEEDED = "get_node_offset_dict", "get_edge_offset_dict", EDGE_TYPES


class BasesByType(TypedConv):
    """A ``HeteroBasisConv`` of dictionaries.

    Args:
        conv: of rows and edges in one tensor each, and of the edges' relations.
        relations: their numbers.
    """

    def __init__(self, conv: nn.Module, relations: Mapping[Any, int]) -> None:
        super().__init__()
        self.conv, self.relations = conv, dict(relations)

    def forward(self, x: dict[str, Tensor], *given: dict[Any, Tensor], **named: dict[Any, Tensor]) -> dict[str, Tensor]:
        """Rows by type, then what edges have by relation; the first of these is their ends."""
        first, counts = 0, [len(rows) for rows in x.values()]
        starts = {}
        for kind, count in zip(x, counts, strict=True):
            starts[kind], first = first, first + count
        ends = next(iter((*given, *named.values())))

        def joined(of: dict[Any, Tensor]) -> Tensor:
            parts = [of[relation] for relation in self.relations]
            if of is not ends:
                return torch.cat(parts)
            shifts = [torch.tensor([[starts[source]], [starts[to]]]) for source, _, to in self.relations]
            return torch.cat([part + shift.to(part.device) for part, shift in zip(parts, shifts, strict=True)], dim=1)

        numbers = [ends[relation].new_full((ends[relation].shape[1],), k) for relation, k in self.relations.items()]
        others = {name: joined(of) for name, of in named.items()}
        out = self.conv(torch.cat(numbers), torch.cat([*x.values()]), *map(joined, given), **others)
        return dict(zip(x, out.split(counts), strict=True))


@contextmanager
def by_type(root: nn.Module, model: nn.Module) -> Iterator[None]:
    """Inside, such models in ``model`` do to the rows of each type what they do to all rows; what they call joins
    ``root``."""
    graphs = (part for part in model.modules() if isinstance(part, fx.GraphModule))
    changed = [part for part in graphs if any(_name(call) == EDGE_TYPES for call in part.graph.nodes)]
    for part in changed:
        part.forward = _Forward(root, part)
    try:
        yield
    finally:
        for part in changed:
            del part.forward


class _Forward:
    """Of one of them."""

    def __init__(self, root: nn.Module, model: Any) -> None:
        self.model = model
        relations = next(call for call in model.graph.nodes if _name(call) == EDGE_TYPES).args[1]
        number = [*root.modules()].index(model)
        self.bases: dict[str, nn.Module] = {}
        for target in {str(call.target) for call in model.graph.nodes if call.op == "call_module"}:
            module = model.get_submodule(target)
            if type(module).__name__ == "HeteroBasisConv":
                self.bases[target] = BasesByType(module, relations)
                root.add_module(f"bases_{number}_{target.replace('.', '_')}", self.bases[target])

    def __call__(self, *given: Any, **named: Any) -> Any:
        left = [*given]
        known: dict[fx.Node, Any] = {}
        for call in self.model.graph.nodes:
            if call.op == "placeholder":
                known[call] = left.pop(0) if left else named.get(str(call.target), *call.args)
            elif call.op == "output":
                return fx.node.map_arg(call.args[0], known.__getitem__)
            elif _name(call) in UNNEEDED:
                known[call] = None
            elif call.op == "call_function" and _name(call) in (GROUPS, "group_edge_placeholder", SPLITS):
                known[call] = known[call.args[0]]
            else:
                known[call] = self._call(call, known)
        raise AssertionError("no output")

    def _call(self, call: fx.Node, known: dict[fx.Node, Any]) -> Any:
        module = self.model.get_submodule(call.target) if call.op == "call_module" else None
        if call.target in self.bases:
            args, kwargs = fx.node.map_arg((call.args[1:], call.kwargs), known.__getitem__)
            return self.bases[str(call.target)](*args, **kwargs)
        if type(module).__name__ == "LinearAlign":
            return module(known[call.args[0]])  # type: ignore[misc, index]
        taken = [known[other] for other in call.all_input_nodes if isinstance(known[other], dict)]

        def of(key: Any) -> Any:
            def value(other: fx.Node) -> Any:
                return known[other][key] if isinstance(known[other], dict) else known[other]

            args, kwargs = fx.node.map_arg((call.args, call.kwargs), value)
            if module is not None:
                return module(*args, **kwargs)
            if call.op == "call_method":
                return getattr(args[0], str(call.target))(*args[1:], **kwargs)
            if call.op == "get_attr":
                return getattr(self.model, str(call.target))
            return call.target(*args, **kwargs)  # type: ignore[operator]

        return {key: of(key) for key in taken[0]} if taken else of(None)


def _name(call: fx.Node) -> str:
    return str(getattr(call.target, "__name__", ""))
