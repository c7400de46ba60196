"""The layer list with named values, in the form of torch_geometric's Sequential: ``(module, "x, x0 -> x1")``.

A module takes the values named before the arrow, in this order, and gives the one after it. One without such a header
takes what the module before it gave, and gives it anew under the same name. The features are ``x``. A name means what
was given to it last; what others take never changes, even where a module works in place.

Values are rows of vertices or of edges, whose features are ``e``. A layer that updates edges takes and gives one of
each, "x, e -> x, e"; other layers may take edges in place of the graph's features. Row-wise modules take only one kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import copied
from hongtu.nn.layer import Layer
from hongtu.nn.whole_graph import rules_of

INPUT = -1  # the features, among the numbers of the modules that give values
FIRST_NAME, FIRST_EDGES = "x", "e"

Entry = nn.Module | tuple[nn.Module | Callable[..., Any], str]


@dataclass(frozen=True)
class Header:
    """The names of what a module takes and of what it gives."""

    takes: tuple[str, ...]
    gives: str
    edges: str | None = None

    def __str__(self) -> str:
        return f"{', '.join(self.takes)} -> {self.gives}" + (f", {self.edges}" if self.edges else "")


class Modules(nn.ModuleList):
    """The modules of a layer list and their headers.

    Attributes:
        headers: per module, or None.
    """

    def __init__(self, modules: Sequence[nn.Module], headers: Sequence[Header | None]) -> None:
        super().__init__(modules)
        self.headers = list(headers)

    def first(self, count: int) -> Modules:
        """Copies of the first ones."""
        return copied(Modules(list(self)[:count], self.headers[:count]))


class RowFunction(nn.Module):
    """A function of rows in the layer list, such as ``lambda x, x0: x + x0`` or an activation."""

    def __init__(self, activation: Callable[..., Any]) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, *rows: Any) -> Any:
        return self.activation(*rows)

    def extra_repr(self) -> str:
        return getattr(self.activation, "__name__", type(self.activation).__name__)


class TakenApart(nn.Module):
    """A module of the model, called with rows and plain values, and what of its result the forward goes on with: a
    recurrent network's last rows, say.

    Args:
        module: the model's.
        place: its name there.
        call: (the module, rows it takes) -> rows.
    """

    def __init__(self, module: nn.Module, place: str, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call
        self.pyg_names = {f"module.{name}": f"{place}.{name}" for name in module.state_dict()}

    def forward(self, *rows: Any) -> Any:
        return self.call(self.module, *rows)

    def extra_repr(self) -> str:
        return type(self.module).__name__


def as_modules(layers: Sequence[Entry]) -> Modules:
    """The modules of a layer list. Single ones that evaluate stay so; where all do, they train.

    Raises:
        InputError: naming the first entry that is none.
    """
    if isinstance(layers, nn.Module) and not isinstance(layers, nn.ModuleList | nn.Sequential):
        name = type(layers).__name__
        raise InputError(f"layers is one {name}: expected a list; pass [layer], or hongtu.from_pyg(model)")
    if not isinstance(layers, Iterable):
        raise InputError(f"layers is {layers!r}: expected a list, as [hongtu.nn.GCNConv(32, 8)]")
    if isinstance(layers, Modules):  # of another Trainer
        modules, headers = list(layers), layers.headers
        layers = ()
    else:
        modules, headers = [], []
    for index, entry in enumerate(layers):
        module, header = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, None)
        if isinstance(header, str) and not isinstance(module, nn.Module) and callable(module):
            module = RowFunction(module)
        if not isinstance(module, nn.Module) or not isinstance(header, str | None):
            shown = getattr(entry, "__name__", None) or repr(entry)
            if isinstance(entry, type):
                raise InputError(f"layers[{index}] is the class {shown}: expected a layer; pass {shown}(...)")
            if isinstance(entry, list | nn.ModuleList):
                raise InputError(f"layers[{index}] is a list of {len(entry)}: expected a layer; unpack it, as *layers")
            raise InputError(
                f"layers[{index}] is {shown}: expected a hongtu.nn.Layer or a row-wise torch.nn.Module, or a pair of "
                'one and a header such as "x, x0 -> x"; of functions pass the module (torch.nn.ReLU() for '
                'torch.relu), the activation of a layer, or (function, "x -> x")'
            )
        modules.append(module)
        headers.append(None if header is None else _parse(index, header))
    made = Modules(modules, headers)
    _check_all_taken(made)
    if not any(module.training for module in modules):
        made.train()
    return made


class Source(NamedTuple):
    """A value: rows of vertices or of edges, by the number of the module that gives it."""

    number: int
    of_edges: bool


def resolve(modules: nn.ModuleList) -> list[tuple[Source, ...]]:
    """Per module, all values that it takes.

    Raises:
        InputError: for a name that nothing before has given, or values of which a module takes no such kind.
    """
    current, edges = FIRST_NAME, FIRST_EDGES
    given = {FIRST_NAME: Source(INPUT, False), FIRST_EDGES: Source(INPUT, True)}
    sources = []
    for index, module in enumerate(modules):
        updates = isinstance(module, Layer) and module.updates_edges
        header = modules.headers[index] if isinstance(modules, Modules) else None
        header = header or (Header((current, edges), current, edges) if updates else Header((current,), current))
        for name in header.takes:
            if name not in given:
                raise InputError(
                    f"layers[{index}]: takes {name!r}, which nothing before it gives; there are "
                    f"{', '.join(map(repr, given))} (edges reach every layer without being named)"
                )
        taken = tuple(given[name] for name in header.takes)
        _check_kinds(f"layers[{index}] ({type(module).__name__})", module, header, taken, updates=updates)
        sources.append(taken)
        if taken[0].of_edges:
            edges = header.gives
            given[edges] = Source(index, True)
            continue
        current = header.gives
        given[current] = Source(index, False)
        if header.edges is not None:
            edges = header.edges
            given[edges] = Source(index, True)
    return sources


def _check_kinds(title: str, module: nn.Module, header: Header, taken: tuple[Source, ...], *, updates: bool) -> None:
    of_edges = sum(source.of_edges for source in taken)
    if not isinstance(module, Layer):
        if 0 < of_edges < len(taken):
            raise InputError(
                f'{title}: "{header}" takes rows of vertices and of edges, of which there are different numbers; '
                "a hongtu.nn.Layer with update_edges(block, z, s, e) has both"
            )
        if of_edges and (rules_of(module) is not None):
            raise InputError(
                f'{title}: "{header}" normalises over all edges of the graph; use torch.nn.LayerNorm for rows of edges'
            )
    elif of_edges > 1 or taken[0].of_edges or (of_edges and taken[-1].number >= 0 and len(module.expand()) > 1):
        raise InputError(
            f'{title}: "{header}" takes {of_edges} values of edges, expected rows of vertices first, and at most one '
            'of edges, of a layer with one aggregate: "x, e -> x, e"'
        )
    elif updates and not of_edges:
        raise InputError(f'{title}: "{header}" has no rows of edges, and it updates them; name them: "x, e -> x, e"')
    if header.edges is not None and not updates:
        raise InputError(f'{title}: "{header}" gives two values, and it updates no edges; name one behind the arrow')


def _check_all_taken(modules: Modules) -> None:
    """Refuse a module whose rows nothing takes: nothing would train it."""
    every = resolve(modules)
    taken = {source.number for sources in every for source in sources}
    for index in range(len(modules) - 1):
        if index not in taken:
            raise InputError(f"layers[{index}]: nothing takes what it gives; name it in a header, or remove it")
    if every and every[-1][0].of_edges:
        raise InputError(
            f"layers[{len(every) - 1}]: gives rows of edges, and a model's output has a row for each vertex; losses of "
            "edges are those of hongtu.LinkLoss, which scores an edge by the outputs of its ends"
        )


class EdgeWiring(NamedTuple):
    """What a layer finds and leaves of its edges; values are named by the modules that give them.

    Attributes:
        takes: the values of earlier layers that are needed; ``features``: the graph's are.
        before: row-wise modules of features alone, which every layer that needs them computes; ``value``: what the
            aggregate finds.
        behind: those that need what the layer gives edges, in order; ``gives``: values that later layers need.
    """

    takes: tuple[int, ...]
    features: bool
    before: tuple[int, ...]
    value: int
    behind: tuple[int, ...]
    gives: tuple[int, ...]


def wire_edges(every: list[tuple[Source, ...]], layers: Sequence[int]) -> dict[int, EdgeWiring]:
    """By the numbers of the layers that are given other rows of edges than the graph's features, or update them.

    Args:
        layers: the numbers of all layers.
    """
    sources = {number: [source.number for source in taken if source.of_edges] for number, taken in enumerate(every)}
    stage = {INPUT: -1}  # the position of the last layer that a value depends on
    for number, taken in sources.items():
        position = layers.index(number) if number in layers else -1
        stage[number] = max([position, *([] if number in layers else (stage[source] for source in taken))])
    modules = [number for number, taken in sources.items() if taken and number not in layers]
    parts: dict[int, tuple[list[int], list[int], set[int]]] = {}
    for layer in dict.fromkeys(layers):
        behind = [number for number in modules if stage[number] == stage[layer]]
        needed = {*sources[layer], *(source for number in behind for source in sources[number])}
        before = [number for number in modules if stage[number] == -1]
        for number in reversed(before):
            needed |= {*sources[number]} if number in needed else set()
        parts[layer] = [number for number in before if number in needed], behind, needed
    taken_later = {layer: {v for v in needed if -1 < stage[v] < stage[layer]} for layer, (*_, needed) in parts.items()}
    return {
        layer: EdgeWiring(
            takes=tuple(sorted(taken_later[layer])),
            features=INPUT in needed,
            before=tuple(before),
            value=sources[layer][0],
            behind=tuple(behind),
            gives=tuple(
                value
                for value in (layer, *behind)
                if any(value in taken for other, taken in taken_later.items() if other != layer)
            ),
        )
        for layer, (before, behind, needed) in parts.items()
        if sources[layer]
    }


@dataclass(frozen=True)
class Wiring:
    """Which stage gives each value and which take it; modules are named by their numbers.

    Attributes:
        sources: per module, the modules whose values it takes.
        stage_of: per module, the stage in which its value appears: a layer's behind its aggregate.
        takes: per stage, the values of earlier stages that it needs, INPUT for the features.
        gives: per stage, its values that later ones need.
    """

    sources: list[tuple[int, ...]]
    stage_of: list[int]
    takes: list[tuple[int, ...]]
    gives: list[tuple[int, ...]]

    def is_own(self, number: int, stage: int) -> bool:
        """Whether a value appears in a stage and is taken once, so that who takes it may overwrite it."""
        taken = sum(sources.count(number) for sources in self.sources)
        return number != INPUT and self.stage_of[number] == stage and taken == 1


def wire(sources: list[tuple[int, ...]], layers: Sequence[int], readers: Sequence[int] = ()) -> Wiring:
    """Cut the modules into stages.

    Args:
        layers: the numbers of those with an aggregate, as often as they have one; what they take besides their first
            value is for the last ``update``.
        readers: those of them whose first value is for every ``update``, too.

    >>> wire([(-1,), (0,), (1, 0)], [1])  # a row-wise module, a layer, and one that adds what both gave
    Wiring(sources=[(-1,), (0,), (1, 0)], stage_of=[0, 1, 1], takes=[(), (0,)], gives=[(0,), ()])
    """
    stage_of, needed = [], []
    stage = 0
    for number, taken in enumerate(sources):
        if number in layers:
            needed.append((taken[0], stage))
            hops = layers.count(number)
            if number in readers:
                needed += [(taken[0], stage + hop) for hop in range(1, hops + 1)]
            stage += hops
            needed += [(value, stage) for value in taken[1:]]
        else:
            needed += [(value, stage) for value in taken]
        stage_of.append(stage)
    far = dict.fromkeys((value, k) for value, k in needed if k > (0 if value == INPUT else stage_of[value]))
    return Wiring(
        sources=sources,
        stage_of=stage_of,
        takes=[tuple(value for value, k in far if k == index) for index in range(stage + 1)],
        gives=[
            tuple(dict.fromkeys(value for value, _ in far if value != INPUT and stage_of[value] == index))
            for index in range(stage + 1)
        ],
    )


def _parse(index: int, header: str) -> Header:
    """
    >>> _parse(0, "x, x0 -> x1")
    Header(takes=('x', 'x0'), gives='x1', edges=None)
    """
    found = re.fullmatch(r"\s*(\w+(?:\s*,\s*\w+)*)\s*->\s*(\w+)\s*(?:,\s*(\w+)\s*)?", header)
    if found is None:
        raise InputError(f'layers[{index}]: header {header!r}; expected names like "x" or "x, x0 -> x1"')
    return Header(tuple(name.strip() for name in found[1].split(",")), found[2], found[3])
